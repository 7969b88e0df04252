// Implicit GEMM for forward and backward-data: rows are the result's channels, columns its pixels, and the reduction
// runs over taps of the filter and the source's channels. This file: the constants, and what follows from them.
//
// Constants:
// * CHANNELS_LAST, and the tile (tile.cuh);
// * PACKED: the filter was brought into [group][tap][REDUCED rounded up to BK][ROWS rounded up to BM] before;
// * FLAT: taps and channels are one axis (for few channels; forward only);
// * POINTWISE: 1 × 1, stride 1 or SPREAD, no padding, NCHW, and planes of whole quads;
// * SOURCE_QUADS: NHWC, and the channels of a group are whole quads;
// * HALF: products of f16 in pairs, see tile.cuh.
//
// Constants, or numbers of the launch where they are not given (numbers.cuh):
// * GROUPS, REDUCED (channels summed over, a group), ROWS (channels of the result, a group);
// * FILTER_H/W, STRIDE_H/W, PAD_H/W, DILATION_H/W and DIRECTION (0 forward, 1 backward-data);
// * SPREAD: see phases.cuh;
// * SKIP_EMPTY: phases without taps write nothing, because the result was filled before;
// * PLANES: sums go to one plane of f32 for each split, to be added up by `reduce`.
//
// A general kernel's filter is packed.

struct GemmShape {
    int batch, source_h, source_w, result_h, result_w;
    int groups, reduced, rows;
    int filter_h, filter_w, stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
    int backward, phases_h, phases_w;
    int source_step_h, source_step_w, source_tap_h, source_tap_w, tap_step_h, tap_step_w;
    int steps_per_split, planes, skip_empty;
    Divisor by_row_tiles, by_phases, by_phases_w, by_stride_h, by_stride_w, by_taps, by_filter_w, by_reduced;
    Divisor by_image, by_width;  // columns of an image and of one of its rows, where there is one phase
};

#ifndef PLANES
#define PLANES shape.planes
#define SKIP_EMPTY shape.skip_empty
#endif

#define TAPS (FILTER_H * FILTER_W)
#define SOURCE_CHANNELS (GROUPS * REDUCED)
#define RESULT_CHANNELS (GROUPS * ROWS)
#define ROW_TILES ((ROWS + BM - 1) / BM)
#define PADDED_ROWS (ROW_TILES * BM)
#if FLAT
#define FLAT_LENGTH (TAPS * REDUCED)
#define PADDED_REDUCED ((FLAT_LENGTH + BK - 1) / BK * BK)
#else
#define CHANNEL_BLOCKS ((REDUCED + BK - 1) / BK)
#define PADDED_REDUCED (CHANNEL_BLOCKS * BK)
#endif

// A column of the result: its image, and which of the image's columns it is.
struct Column {
    int image, pixel;
    METHOD Column(const GemmShape& shape, int column, int image_columns) {
#if ONE_PHASE
        image = divide(column, shape.by_image);
#else
        image = column / image_columns;
#endif
        pixel = column - image * image_columns;
    }
};
DEVICE int row_of(const GemmShape& shape, int pixel, const Axis& axis_w) {
#if ONE_PHASE
    return divide(pixel, shape.by_width);
#else
    return pixel / axis_w.extent;
#endif
}

// Where a workgroup is in its reduction: a block of channels of one tap. A flat reduction counts blocks only.
struct Step {
    int tap_h, tap_w, block;
};
