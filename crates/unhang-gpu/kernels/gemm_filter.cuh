// The filter's slices of the implicit GEMM: from memory into LDS, [BK][BM].

// Where an element of the unpacked filter is: row × FILTER_ROW + channel × FILTER_CHANNEL + tap × FILTER_TAP. Forward,
// and a group's filter, lie as torch has them.
#if DIRECTION == 0
#if CHANNELS_LAST
#define FILTER_ROW (TAPS * REDUCED)
#define FILTER_TAP REDUCED
#define FILTER_CHANNEL 1
#else
#define FILTER_ROW (TAPS * REDUCED)
#define FILTER_TAP 1
#define FILTER_CHANNEL TAPS
#endif
#else
#if CHANNELS_LAST
#define FILTER_ROW 1
#define FILTER_TAP ROWS
#define FILTER_CHANNEL (TAPS * ROWS)
#else
#define FILTER_ROW TAPS
#define FILTER_TAP 1
#define FILTER_CHANNEL (TAPS * ROWS)
#endif
#endif

// How the filter is read: 1 in quads along the rows, 2 in quads along the reduction, 0 one by one.
#if PACKED
#define FILTER_READ 1
#elif FLAT
#define FILTER_READ ((FLAT_LENGTH) % 4 == 0 ? 2 : 0)
#else
#define FILTER_READ (FILTER_ROW == 1 && ROWS % 4 == 0 ? 1 : FILTER_CHANNEL == 1 && REDUCED % 4 == 0 ? 2 : 0)
#endif
#define FILTER_WIDTH (FILTER_READ == 0 ? 1 : 4)
#define FILTER_ALL (BM * BK / FILTER_WIDTH)
#define FILTER_UNITS ((FILTER_ALL + THREADS - 1) / THREADS)
#define FILTER_EXACT (FILTER_ALL % THREADS == 0)

struct FilterReader {
    const GemmShape& shape;
    const Storage* group_filter;
    int thread, row_begin;
    // Where the first unit of a packed slice is in it, in bytes.
    unsigned packed_place;
    Waiting<FILTER_WIDTH> next[FILTER_UNITS];
    // Bit i: whether unit i was read from within the filter.
    unsigned there;

    METHOD FilterReader(const GemmShape& given, const Storage* filter, int group, int thread_, int row_begin_)
        : shape(given), thread(thread_), row_begin(row_begin_), there(0) {
#if PACKED
        group_filter = filter + (long long)group * (FLAT ? 1 : TAPS) * PADDED_REDUCED * PADDED_ROWS;
        const int row = row_begin + (thread % (BM / 4)) * 4, k = thread / (BM / 4);
        packed_place = (unsigned)(k * PADDED_ROWS + row) * (unsigned)sizeof(Storage);
#else
        group_filter = filter + (long long)group * ROWS * REDUCED * TAPS;
#endif
    }

    METHOD void read(const Step& step, const Axis& axis_h, const Axis& axis_w) {
        there = 0;
        const int k_begin = step.block * BK;
#if FLAT
        const Storage* slice = group_filter + (PACKED ? (unsigned)k_begin * PADDED_ROWS : (unsigned)k_begin);
        const int k_end = FLAT_LENGTH;
#else
        const int tap = (axis_h.first_tap + step.tap_h * TAP_STEP_H) * FILTER_W + axis_w.first_tap + step.tap_w * TAP_STEP_W;
        const Storage* slice = group_filter + (PACKED ? (unsigned)(tap * PADDED_REDUCED + k_begin) * PADDED_ROWS
                                                      : (unsigned)(tap * FILTER_TAP + k_begin * FILTER_CHANNEL));
        const int k_end = REDUCED;
#endif
#if PACKED
        // It does not change from step to step; but a wave that knows adds it to the slice's address, in two vector registers a unit.
        OPAQUE_ON_AMD(packed_place);
#endif
#pragma unroll
        for (int i = 0; i < FILTER_UNITS; ++i) {
            const int unit = thread + i * THREADS;
#if PACKED
            // From one unit of a thread to the next only the slice's depth differs.
            static_assert(THREADS % (BM / 4) == 0 || FILTER_UNITS == 1, "units of a thread lie in one row");
            const bool inside = FILTER_EXACT || unit < FILTER_ALL;
            next[i].read(slice + (unsigned)(i * (THREADS / (BM / 4))) * PADDED_ROWS, inside ? packed_place : 0u);
#else
            const bool along_rows = FILTER_READ == 1;
            const int in_row = along_rows ? unit % (BM / 4) : unit / (BK / FILTER_WIDTH);
            const int row = row_begin + in_row * (along_rows ? 4 : 1);
            const int k = along_rows ? unit / (BM / 4) : (unit % (BK / FILTER_WIDTH)) * FILTER_WIDTH;
            const bool inside = (FILTER_EXACT || unit < FILTER_ALL) && (ROWS % BM == 0 || row < ROWS) &&
                                (PADDED_REDUCED == k_end || k_begin + k < k_end);
            const unsigned at = (unsigned)(row * FILTER_ROW) + (unsigned)(k * (FLAT ? 1 : FILTER_CHANNEL));
            next[i].read(slice, inside ? at * (unsigned)sizeof(Storage) : 0u);
#endif
            there |= (unsigned)inside << i;
        }
    }

    METHOD void write(Cell* lds) const {
#if PACKED
        Cell* quads = lds + (thread / (BM / 4)) * LDS_A_PITCH + (thread % (BM / 4)) * 4;
#endif
#pragma unroll
        for (int i = 0; i < FILTER_UNITS; ++i) {
            const int unit = thread + i * THREADS;
            const unsigned mask = PACKED ? 0xffffffffu : spread_bit(there, i);
            if (!FILTER_EXACT && unit >= FILTER_ALL) continue;
#if PACKED
            *(CellQuad*)(quads + i * (THREADS / (BM / 4)) * LDS_A_PITCH) = cell_quad(next[i], mask);
#else
            if (FILTER_READ == 1) {
                *(CellQuad*)(lds + (unit / (BM / 4)) * LDS_A_PITCH + (unit % (BM / 4)) * 4) = cell_quad(next[i], mask);
            } else {
#pragma unroll
                for (int e = 0; e < FILTER_WIDTH; ++e)
                    lds[((unit % (BK / FILTER_WIDTH)) * FILTER_WIDTH + e) * LDS_A_PITCH + unit / (BK / FILTER_WIDTH)] =
                        cell(next[i], e, mask);
            }
#endif
        }
    }
};
