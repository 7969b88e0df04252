// Rows of an image read in vectors, for kernels whose threads compute WIDTH neighbouring columns (NCHW). Widths are
// multiples of what is read at once, so that a vector is inside of a row or outside, and never half.
//
// Constants: STRIDE_W, PAD_W, FILTER_W, DILATION_W, WIDTH.

// The columns FROM … TO of a row, relative to `column`, which is a multiple of COUNT and is at `at`.
template <int COUNT, int FROM, int TO>
DEVICE void read_line(const Storage* base, unsigned at, int column, int width, bool there, float (&line)[TO - FROM + 1]) {
#pragma unroll
    for (int v = round_down(FROM, COUNT); v <= round_down(TO, COUNT); ++v) {
        const int begin = v * COUNT < FROM ? FROM : v * COUNT;
        const int end = v * COUNT + COUNT - 1 > TO ? TO : v * COUNT + COUNT - 1;
        const bool inside = there && (unsigned)(column + v * COUNT) < (unsigned)width;
        if (begin == end) {
            const float read = load_at(base, inside ? (at + (unsigned)begin) * (unsigned)sizeof(Storage) : 0u);
            line[begin - FROM] = inside ? read : 0.0f;
        } else {
            float read[COUNT];
            Neighbours<COUNT>::read(element(base, inside ? at + (unsigned)(v * COUNT) : 0u), inside, read);
#pragma unroll
            for (int e = 0; e < COUNT; ++e)
                if (v * COUNT + e >= begin && v * COUNT + e <= end) line[v * COUNT + e - FROM] = read[e];
        }
    }
}

// The columns of the input that WIDTH columns of the output meet, relative to STRIDE_W times the first of these.
#define INPUT_FROM (-(PAD_W))
#define INPUT_TO ((WIDTH - 1) * STRIDE_W + (FILTER_W - 1) * DILATION_W - (PAD_W))
// The columns of the gradient that WIDTH columns of the input meet, relative to the first of these by STRIDE_W.
#define GRADIENT_WIDTH (WIDTH / STRIDE_W > 0 ? WIDTH / STRIDE_W : 1)
#define GRADIENT_FROM round_down(PAD_W - (FILTER_W - 1) * DILATION_W, STRIDE_W)
#define GRADIENT_TO round_down(WIDTH - 1 + PAD_W, STRIDE_W)
