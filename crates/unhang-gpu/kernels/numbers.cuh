// What describes a problem, as constants or as numbers of the launch. A kernel is *specialised* where the compiler is
// given them, and *general* where it is not: then they come with the launch, in `shape`, and one object serves every
// problem. Divisions by numbers of the launch are multiplications with what the host has prepared.
//
// Groups and channels are given all or none, and so is the window: filter, stride, padding and dilation. But where a thread has
// all of a pixel's channels (direct.cu in NHWC), these are given alone.

#ifdef ROWS
#define CHANNELS_GIVEN 1
#ifndef REDUCED
#define REDUCED shape.reduced
#endif
#define BY_REDUCED(n) ((n) / REDUCED)
#define BY_ROW_TILES(n) ((n) / ROW_TILES)
#define BY_ROW_BLOCKS(n) ((n) / ROW_BLOCKS)
#define BY_COLUMN_CHANNELS(n) ((n) / COLUMN_CHANNELS)
#else
#define CHANNELS_GIVEN 0
#define GROUPS shape.groups
#define ROWS shape.rows
#define REDUCED shape.reduced
#define CHANNELS shape.channels
#define BY_REDUCED(n) divide(n, shape.by_reduced)
#define BY_ROW_TILES(n) divide(n, shape.by_row_tiles)
#define BY_ROW_BLOCKS(n) divide(n, shape.by_row_blocks)
#define BY_COLUMN_CHANNELS(n) divide(n, shape.by_column_channels)
#endif

#ifdef FILTER_W
#define WINDOW_GIVEN 1
#define BY_FILTER_W(n) ((n) / FILTER_W)
#define BY_TAPS(n) ((n) / (FILTER_H * FILTER_W))
#else
#define WINDOW_GIVEN 0
#define FILTER_H shape.filter_h
#define FILTER_W shape.filter_w
#define STRIDE_H shape.stride_h
#define STRIDE_W shape.stride_w
#define PAD_H shape.pad_h
#define PAD_W shape.pad_w
#define DILATION_H shape.dilation_h
#define DILATION_W shape.dilation_w
#define BY_FILTER_W(n) divide(n, shape.by_filter_w)
#define BY_TAPS(n) divide(n, shape.by_taps)
#endif
