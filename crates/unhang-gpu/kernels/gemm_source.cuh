// The source's slices of the implicit GEMM: gathered from images into LDS, [BK][BN].

// How the source is read: along the columns in NCHW, along the channels in NHWC (in quads where they divide).
#if CHANNELS_LAST
#define SOURCE_WIDTH (SOURCE_QUADS ? 4 : 1)
#define SOURCE_UNITS ((BN * BK / SOURCE_WIDTH + THREADS - 1) / THREADS)
#define SOURCE_EXACT ((BN * BK / SOURCE_WIDTH) % THREADS == 0)
#define SOURCE_COLUMNS SOURCE_UNITS
#elif POINTWISE
#define SOURCE_WIDTH 4
#define SOURCE_UNITS ((BN * BK / 4 + THREADS - 1) / THREADS)
#define SOURCE_EXACT ((BN * BK / 4) % THREADS == 0)
#define SOURCE_COLUMNS 1
#else
#define SOURCE_WIDTH 1
#define SOURCE_UNITS (BN * BK / THREADS)
#define SOURCE_EXACT 1
#define SOURCE_COLUMNS (THREADS >= BN ? 1 : BN / THREADS)
#endif

// Whether every slice is within the channels, so that a unit is there where its column's pixel is.
#if !FLAT && CHANNELS_GIVEN
#if REDUCED % BK == 0
#define WHOLE_SLICES SOURCE_EXACT
#endif
#endif
#ifndef WHOLE_SLICES
#define WHOLE_SLICES 0
#endif

// Whether the taps whose pixels lie inside are found once, a bit for each: two registers a column less, and a step to another tap
// is no test. For windows that the compiler knows and that have as few taps.
#if !FLAT && WINDOW_GIVEN
#if TAPS <= 32
#define TAP_BITS 1
#endif
#endif
#ifndef TAP_BITS
#define TAP_BITS 0
#endif

struct SourceReader {
    const GemmShape& shape;
    const Storage* group_source;
    unsigned plane;
    int thread;
    // What a thread gathers: from which channel of a slice on, for which columns.
    int lane_k, lane_column, column_step;
#if TAP_BITS
    // Where the columns' windows begin, and which of their taps are inside.
    unsigned origin[SOURCE_COLUMNS], taps_inside[SOURCE_COLUMNS];
#else
    // Where the columns' windows begin, and their images.
    int window_h[SOURCE_COLUMNS], window_w[SOURCE_COLUMNS];
    unsigned image[SOURCE_COLUMNS];
#endif
#if !FLAT
    // The columns' pixels under the current tap; all ones where a pixel is inside of its image.
    unsigned place[SOURCE_COLUMNS];
    unsigned inside[SOURCE_COLUMNS];
#endif
    Waiting<SOURCE_WIDTH> next[SOURCE_UNITS];
    // Bit i: whether unit i was read from within the source.
    unsigned there;

    METHOD SourceReader(const GemmShape& given, const Storage* source, int group, int thread_)
        : shape(given), thread(thread_), there(0) {
        plane = (unsigned)(shape.source_h * shape.source_w);
        group_source = source + (unsigned)(group * REDUCED) * (CHANNELS_LAST ? 1u : plane);
#if CHANNELS_LAST
        lane_k = (thread % (BK / SOURCE_WIDTH)) * SOURCE_WIDTH;
        lane_column = thread / (BK / SOURCE_WIDTH);
        column_step = THREADS / (BK / SOURCE_WIDTH);
#elif POINTWISE
        lane_k = thread / (BN / 4);
        lane_column = (thread % (BN / 4)) * 4;
        column_step = 0;
#else
        // With whole waves on one slice of the reduction its index is the same in every lane.
        lane_k = THREADS < BN ? 0 : BN % 64 == 0 ? UNIFORM(thread / BN) : thread / BN;
        lane_column = THREADS < BN ? thread : thread % BN;
        column_step = THREADS;
#endif
    }

    // Finds the windows of the columns from `column_begin` on, of `columns` in all.
    METHOD void find_windows(int column_begin, int columns, int image_columns, const Axis& axis_h, const Axis& axis_w) {
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; ++j) {
            const int column = column_begin + lane_column + j * column_step;
            const Column at(shape, column, image_columns);
            const unsigned first = (unsigned)(at.image * SOURCE_CHANNELS) * plane;
#if POINTWISE
            // The source has as many pixels.
            origin[j] = first + (unsigned)at.pixel;
            taps_inside[j] = column < columns ? 1u : 0u;
#else
            const int y = row_of(shape, at.pixel, axis_w), x = at.pixel - y * axis_w.extent;
            // A column beyond the last is given a window outside of every image.
            const int h = column < columns ? y * SOURCE_STEP_H + axis_h.offset : -(1 << 28);
            const int w = x * SOURCE_STEP_W + axis_w.offset;
#if TAP_BITS
            origin[j] = first + in_image(h, w) + (CHANNELS_LAST ? (unsigned)lane_k : 0u);
            taps_inside[j] = find_taps(h, w);
#else
            window_h[j] = h;
            window_w[j] = w;
            image[j] = first;
#endif
#endif
        }
    }

#if TAP_BITS
    // How far a pixel is from the beginning of its image, in elements.
    METHOD unsigned in_image(int h, int w) const {
        return (unsigned)(h * shape.source_w + w) * (CHANNELS_LAST ? (unsigned)SOURCE_CHANNELS : 1u);
    }

    METHOD unsigned find_taps(int h, int w) const {
        unsigned in_row = 0, all = 0;
#pragma unroll
        for (int tap = 0; tap < FILTER_W; ++tap)
            in_row |= (unsigned)((unsigned)(w + tap * SOURCE_TAP_W) < (unsigned)shape.source_w) << tap;
#pragma unroll
        for (int tap = 0; tap < FILTER_H; ++tap)
            all |= (unsigned)(h + tap * SOURCE_TAP_H) < (unsigned)shape.source_h ? in_row << (tap * FILTER_W) : 0u;
        return all;
    }

    METHOD void find_places(const Step& step) {
        const int tap = step.tap_h * FILTER_W + step.tap_w;
        const unsigned from_origin = in_image(step.tap_h * SOURCE_TAP_H, step.tap_w * SOURCE_TAP_W);
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; ++j) {
            inside[j] = spread_bit(taps_inside[j], tap);
            place[j] = ((origin[j] + from_origin) * (unsigned)sizeof(Storage)) & inside[j];
        }
    }
#elif !FLAT
    METHOD void find_places(const Step& step) {
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; ++j) {
            const int h = window_h[j] + step.tap_h * SOURCE_TAP_H, w = window_w[j] + step.tap_w * SOURCE_TAP_W;
            const bool is_inside = (unsigned)h < (unsigned)shape.source_h && (unsigned)w < (unsigned)shape.source_w;
            inside[j] = is_inside ? 0xffffffffu : 0u;
            const unsigned pixel = (unsigned)(h * shape.source_w + w);
            const unsigned at = image[j] + (CHANNELS_LAST ? pixel * SOURCE_CHANNELS + lane_k : pixel);
            place[j] = is_inside ? at * (unsigned)sizeof(Storage) : 0u;
        }
    }
#endif

    // The channel, in its slice, of a unit that is read along the columns.
    METHOD int channel_of(int unit) const {
        return THREADS < BN ? unit / SOURCE_COLUMNS : lane_k + unit * (THREADS / BN);
    }

#if FLAT
    // The obvious way: every element finds its own tap and channel.
    METHOD void read(const Step& step) {
        there = 0;
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const int j = CHANNELS_LAST ? i : i % SOURCE_COLUMNS;
            const int k = step.block * BK + (CHANNELS_LAST ? lane_k : channel_of(i));
            const int quotient = CHANNELS_LAST ? BY_REDUCED(k) : BY_TAPS(k);
            const int channel = CHANNELS_LAST ? k - quotient * REDUCED : quotient;
            const int tap = CHANNELS_LAST ? quotient : k - quotient * TAPS;
            const int tap_h = BY_FILTER_W(tap), tap_w = tap - tap_h * FILTER_W;
            const int h = window_h[j] + tap_h * SOURCE_TAP_H, w = window_w[j] + tap_w * SOURCE_TAP_W;
            const bool read_it = (unsigned)h < (unsigned)shape.source_h && (unsigned)w < (unsigned)shape.source_w &&
                                 (FLAT_LENGTH % BK == 0 || k < FLAT_LENGTH);
            const unsigned pixel = (unsigned)(h * shape.source_w + w);
            const unsigned at = image[j] + (CHANNELS_LAST ? pixel * SOURCE_CHANNELS + channel : channel * plane + pixel);
            next[i].read(group_source, read_it ? at * (unsigned)sizeof(Storage) : 0u);
            there |= (unsigned)read_it << i;
        }
    }
#elif CHANNELS_LAST
    METHOD void read(const Step& step) {
        there = 0;
        const Storage* slice = group_source + step.block * BK;
        const bool channel_there = REDUCED % BK == 0 || step.block * BK + lane_k < REDUCED;
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const bool read_it = inside[i] != 0 && channel_there;
            // Without a channel there is nothing to read at the slice's beginning either: read the group's first.
            const Storage* from = channel_there ? slice : group_source;
            next[i].read(from, channel_there ? place[i] : 0u);
            there |= (unsigned)read_it << i;
        }
    }
#elif POINTWISE
    METHOD void read(const Step& step) {
        there = 0;
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const int k = lane_k + i * (THREADS / (BN / 4));
            const int channel = step.block * BK + k;
            const bool read_it = (SOURCE_EXACT || k < BK) && (REDUCED % BK == 0 || channel < REDUCED) && inside[0] != 0;
            next[i].read(group_source, read_it ? place[0] + (unsigned)channel * plane * (unsigned)sizeof(Storage) : 0u);
            there |= (unsigned)read_it << i;
        }
    }
#else
    // Lane by lane only the column differs; the channel's plane goes into the common base.
    METHOD void read(const Step& step) {
        there = 0;
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const int j = i % SOURCE_COLUMNS;
            const int channel = step.block * BK + channel_of(i);
            const bool channel_there = REDUCED % BK == 0 || channel < REDUCED;
            const Storage* from = group_source + (channel_there ? (unsigned)channel * plane : 0u);
            next[i].read(from, place[j]);
            there |= (unsigned)(inside[j] != 0 && channel_there) << i;
        }
    }
#endif

    // What is left of a unit: nothing where it was read from outside. Columns of a matrix product beyond the last are not
    // written, whatever they hold.
    METHOD unsigned mask_of(int unit) const {
#if WHOLE_SLICES && POINTWISE
        return 0xffffffffu;
#elif WHOLE_SLICES
        return inside[CHANNELS_LAST ? unit : unit % SOURCE_COLUMNS];
#else
        return spread_bit(there, unit);
#endif
    }

    METHOD void write(Cell* lds) const {
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const unsigned mask = mask_of(i);
#if CHANNELS_LAST
            if (SOURCE_EXACT || thread + i * THREADS < BN * BK / SOURCE_WIDTH) {
#pragma unroll
                for (int e = 0; e < SOURCE_WIDTH; ++e)
                    lds[(lane_k + e) * LDS_B_PITCH + lane_column + i * column_step] = cell(next[i], e, mask);
            }
#elif POINTWISE
            const int k = lane_k + i * (THREADS / (BN / 4));
            if (SOURCE_EXACT || k < BK) *(CellQuad*)(lds + k * LDS_B_PITCH + lane_column) = cell_quad(next[i], mask);
#else
            lds[channel_of(i) * LDS_B_PITCH + lane_column + (i % SOURCE_COLUMNS) * column_step] = cell(next[i], 0, mask);
#endif
        }
    }
};
