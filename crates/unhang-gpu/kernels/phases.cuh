// Forward and backward-data as one: windows of the source, in phases of the stride.
//
// Backward-data is split into phases: the pixels whose position leaves the same rest by the stride. Within a phase the
// taps that meet anything are evenly spaced, so that each phase is a convolution of stride 1 over the gradient of the
// output; nothing is multiplied with the zeros between. Forward is one phase.

// One axis of a phase: which tap comes first, how many there are, where the source's window begins.
struct Axis {
    int extent, offset, taps, first_tap;
};

DEVICE Axis find_axis(int phase, int result, int filter, int stride, int pad, int dilation) {
    Axis axis;
#if DIRECTION == 0
    axis.extent = result;
    axis.offset = -pad;
    axis.taps = filter;
    axis.first_tap = 0;
#else
    axis.extent = phase < result ? (result - phase + stride - 1) / stride : 0;
    axis.first_tap = -1;
    const int tap_step = stride / greatest_common_divisor(stride, dilation);
    for (int tap = (tap_step < filter ? tap_step : filter) - 1; tap >= 0; --tap)
        if ((phase + pad + tap * dilation * (stride - 1)) % stride == 0) axis.first_tap = tap;
    axis.taps = axis.first_tap < 0 ? 0 : (filter - 1 - axis.first_tap) / tap_step + 1;
    const int meets = phase + pad - (axis.first_tap < 0 ? 0 : axis.first_tap) * dilation;
    // An exact division where there are taps; where there are none, nothing is read.
    axis.offset = meets / stride;
#endif
    return axis;
}

#if DIRECTION == 0
#define PHASES_H 1
#define PHASES_W 1
#define SOURCE_STEP_H STRIDE_H
#define SOURCE_STEP_W STRIDE_W
#define SOURCE_TAP_H DILATION_H
#define SOURCE_TAP_W DILATION_W
#define TAP_STEP_H 1
#define TAP_STEP_W 1
#else
#define PHASES_H STRIDE_H
#define PHASES_W STRIDE_W
#define SOURCE_STEP_H 1
#define SOURCE_STEP_W 1
#define SOURCE_TAP_H (-(DILATION_H / greatest_common_divisor(STRIDE_H, DILATION_H)))
#define SOURCE_TAP_W (-(DILATION_W / greatest_common_divisor(STRIDE_W, DILATION_W)))
#define TAP_STEP_H (STRIDE_H / greatest_common_divisor(STRIDE_H, DILATION_H))
#define TAP_STEP_W (STRIDE_W / greatest_common_divisor(STRIDE_W, DILATION_W))
#endif
