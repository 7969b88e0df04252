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

struct SourceReader {
    const GemmShape& shape;
    const Storage* group_source;
    unsigned plane;
    int thread;
    // What a thread gathers: from which channel of a slice on, for which columns; where their windows begin, and their
    // images.
    int lane_k, lane_column, column_step;
    int window_h[SOURCE_COLUMNS], window_w[SOURCE_COLUMNS];
    unsigned image[SOURCE_COLUMNS];
#if !FLAT
    // The columns' pixels under the current tap.
    unsigned place[SOURCE_COLUMNS];
    bool inside[SOURCE_COLUMNS];
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
            const int n = column / image_columns;
            const int pixel = column - n * image_columns;
            const int y = pixel / axis_w.extent, x = pixel - y * axis_w.extent;
            // A column beyond the last is given a window that lies outside of every image.
            window_h[j] = column < columns ? y * SOURCE_STEP_H + axis_h.offset : -(1 << 28);
            window_w[j] = x * SOURCE_STEP_W + axis_w.offset;
            image[j] = (unsigned)(n * SOURCE_CHANNELS) * plane;
        }
    }

#if !FLAT
    METHOD void find_places(const Step& step) {
#pragma unroll
        for (int j = 0; j < SOURCE_COLUMNS; ++j) {
            const int h = window_h[j] + step.tap_h * SOURCE_TAP_H, w = window_w[j] + step.tap_w * SOURCE_TAP_W;
            inside[j] = (unsigned)h < (unsigned)shape.source_h && (unsigned)w < (unsigned)shape.source_w;
            const unsigned pixel = (unsigned)(h * shape.source_w + w);
            const unsigned at = image[j] + (CHANNELS_LAST ? pixel * SOURCE_CHANNELS + lane_k : pixel);
            place[j] = inside[j] ? at * (unsigned)sizeof(Storage) : 0u;
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
            const bool read_it = inside[i] && channel_there;
            // Without a channel there is nothing to read at the slice's beginning either: read the group's first.
            const Storage* from = channel_there ? slice : group_source;
            next[i].read(from, read_it ? place[i] : 0u);
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
            const bool read_it = (SOURCE_EXACT || k < BK) && (REDUCED % BK == 0 || channel < REDUCED) && inside[0];
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
            there |= (unsigned)(inside[j] && channel_there) << i;
        }
    }
#endif

    METHOD void write(Cell* lds) const {
#pragma unroll
        for (int i = 0; i < SOURCE_UNITS; ++i) {
            const unsigned mask = spread_bit(there, i);
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
