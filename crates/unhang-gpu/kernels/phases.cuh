// Forward and backward-data as one: windows of the source, in phases of the stride.
//
// Backward-data is split into phases: the pixels whose position leaves the same rest by the stride. Within a phase the
// taps that meet anything are evenly spaced. So each phase is a convolution of stride 1 over the gradient of the
// output, and nothing is multiplied with the zeros between. Forward is one phase.

// One axis of a phase: which tap comes first, how many there are, where the source's window begins.
struct Axis {
    int extent, offset, taps, first_tap;
};

DEVICE Axis forward_axis(int result, int filter, int pad) {
    Axis axis;
    axis.extent = result;
    axis.offset = -pad;
    axis.taps = filter;
    axis.first_tap = 0;
    return axis;
}

template <class Divide>
DEVICE Axis backward_axis(int phase, int result, int filter, int stride, int pad, int dilation, int tap_step, Divide by_stride) {
    Axis axis;
    axis.extent = phase < result ? by_stride(result - phase + stride - 1) : 0;
    axis.first_tap = -1;
    for (int tap = (tap_step < filter ? tap_step : filter) - 1; tap >= 0; --tap) {
        const int meets = phase + pad + tap * dilation * (stride - 1);
        if (by_stride(meets) * stride == meets) axis.first_tap = tap;
    }
    axis.taps = axis.first_tap < 0 ? 0 : (filter - 1 - axis.first_tap) / tap_step + 1;
    const int meets = phase + pad - (axis.first_tap < 0 ? 0 : axis.first_tap) * dilation;
    // An exact division where there are taps; where there are none, nothing is read.
    axis.offset = meets >= 0 ? by_stride(meets) : -by_stride(-meets);
    return axis;
}

// SPREAD: a 1 × 1 filter without padding meets the first phase only, whose workgroups write the zeros of the others as well.
#ifndef SPREAD
#define SPREAD 0
#endif

#if WINDOW_GIVEN
#define BACKWARD (DIRECTION == 1)
#define BY_STRIDE_H [](int n) { return n / STRIDE_H; }
#define BY_STRIDE_W [](int n) { return n / STRIDE_W; }
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
#if SPREAD
#define PHASES_H 1
#define PHASES_W 1
#else
#define PHASES_H STRIDE_H
#define PHASES_W STRIDE_W
#endif
#define SOURCE_STEP_H 1
#define SOURCE_STEP_W 1
#define SOURCE_TAP_H (-(DILATION_H / greatest_common_divisor(STRIDE_H, DILATION_H)))
#define SOURCE_TAP_W (-(DILATION_W / greatest_common_divisor(STRIDE_W, DILATION_W)))
#define TAP_STEP_H (STRIDE_H / greatest_common_divisor(STRIDE_H, DILATION_H))
#define TAP_STEP_W (STRIDE_W / greatest_common_divisor(STRIDE_W, DILATION_W))
#endif
#define BY_PHASES(n) ((n) / (PHASES_H * PHASES_W))
#define BY_PHASES_W(n) ((n) / PHASES_W)
// Whether there is one phase only, whose pixels are as many as the host knows.
#define ONE_PHASE (PHASES_H * PHASES_W == 1)
#else
#define ONE_PHASE 0
#define BACKWARD shape.backward
#define BY_STRIDE_H [&](int n) { return divide(n, shape.by_stride_h); }
#define BY_STRIDE_W [&](int n) { return divide(n, shape.by_stride_w); }
#define PHASES_H shape.phases_h
#define PHASES_W shape.phases_w
#define SOURCE_STEP_H shape.source_step_h
#define SOURCE_STEP_W shape.source_step_w
#define SOURCE_TAP_H shape.source_tap_h
#define SOURCE_TAP_W shape.source_tap_w
#define TAP_STEP_H shape.tap_step_h
#define TAP_STEP_W shape.tap_step_w
#define BY_PHASES(n) divide(n, shape.by_phases)
#define BY_PHASES_W(n) divide(n, shape.by_phases_w)
#endif

#define FIND_AXIS_H(phase) \
    (BACKWARD ? backward_axis(phase, shape.result_h, FILTER_H, STRIDE_H, PAD_H, DILATION_H, TAP_STEP_H, BY_STRIDE_H) \
              : forward_axis(shape.result_h, FILTER_H, PAD_H))
#define FIND_AXIS_W(phase) \
    (BACKWARD ? backward_axis(phase, shape.result_w, FILTER_W, STRIDE_W, PAD_W, DILATION_W, TAP_STEP_W, BY_STRIDE_W) \
              : forward_axis(shape.result_w, FILTER_W, PAD_W))
