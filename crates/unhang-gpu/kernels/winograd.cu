// Winograd F(4 × 4, 3 × 3) for stride 1, NCHW, not fused: the input in tiles of 6 × 6, the filter, and a batch of 36
// matrix products between them, which `gemm.cu` and `weights.cu` compute as 1 × 1 convolutions with 36 groups. A quarter
// of the multiplications of the direct way, for moving the transformed tensors through memory.
//
// Points 0, ±1, ±2, ∞. The transforms are f32 whatever the storage type is. P below is the number of tiles rounded up
// to a quad; columns beyond the last tile hold zeros, because the gradient of the filter sums over them.

struct WinogradShape {
    int batch, channels, height, width;  // of the tensor that is read (input transform) or written (output transform)
    int tiles_h, tiles_w, tiles, padded_tiles;
    int pad_h, pad_w;
};

// The input's transform of one line of six, in place.
DEVICE void transform_six(float& a, float& b, float& c, float& d, float& e, float& f) {
    const float t0 = multiply_add(-5.0f, c, multiply_add(4.0f, a, e));
    const float t1 = multiply_add(-4.0f, b + c, d + e);
    const float t2 = multiply_add(4.0f, b - c, e - d);
    const float t3 = multiply_add(2.0f, d - b, e - c);
    const float t4 = multiply_add(2.0f, b - d, e - c);
    const float t5 = multiply_add(-5.0f, d, multiply_add(4.0f, b, f));
    a = t0;
    b = t1;
    c = t2;
    d = t3;
    e = t4;
    f = t5;
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_input(const Storage* __restrict__ source, float* __restrict__ transformed, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int channel = index / s.padded_tiles, tile = index - channel * s.padded_tiles;
    if (channel >= s.channels) return;
    float v[6][6];
    const int n = tile / (s.tiles_h * s.tiles_w);
    const int in_image = tile - n * (s.tiles_h * s.tiles_w);
    const int top = (in_image / s.tiles_w) * 4 - s.pad_h, left = (in_image % s.tiles_w) * 4 - s.pad_w;
    const unsigned plane = (unsigned)(n * s.channels + channel) * (unsigned)(s.height * s.width);
#pragma unroll
    for (int i = 0; i < 6; ++i)
#pragma unroll
        for (int j = 0; j < 6; ++j) {
            const int h = top + i, w = left + j;
            const bool there = tile < s.tiles && (unsigned)h < (unsigned)s.height && (unsigned)w < (unsigned)s.width;
            const float read = load_at(source, there ? (plane + (unsigned)(h * s.width + w)) * (unsigned)sizeof(Storage) : 0u);
            v[i][j] = there ? read : 0.0f;
        }
#pragma unroll
    for (int j = 0; j < 6; ++j) transform_six(v[0][j], v[1][j], v[2][j], v[3][j], v[4][j], v[5][j]);
#pragma unroll
    for (int i = 0; i < 6; ++i) transform_six(v[i][0], v[i][1], v[i][2], v[i][3], v[i][4], v[i][5]);
    const long long apart = (long long)s.channels * s.padded_tiles;
    float* to = transformed + (long long)channel * s.padded_tiles + tile;
#pragma unroll
    for (int i = 0; i < 6; ++i)
#pragma unroll
        for (int j = 0; j < 6; ++j) to[(i * 6 + j) * apart] = v[i][j];
}

// The gradient's transform for the gradient of the filter: a line of four becomes six.
DEVICE void transform_four(float a, float b, float c, float d, float (&to)[6]) {
    const float even = a + c, odd = b + d;
    const float even2 = multiply_add(4.0f, c, a), odd2 = multiply_add(8.0f, d, 2.0f * b);
    to[0] = 0.25f * a;
    to[1] = (even + odd) * (-1.0f / 6.0f);
    to[2] = (even - odd) * (-1.0f / 6.0f);
    to[3] = (even2 + odd2) * (1.0f / 24.0f);
    to[4] = (even2 - odd2) * (1.0f / 24.0f);
    to[5] = d;
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_gradient(const Storage* __restrict__ source, float* __restrict__ transformed, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int channel = index / s.padded_tiles, tile = index - channel * s.padded_tiles;
    if (channel >= s.channels) return;
    float v[4][4];
    const int n = tile / (s.tiles_h * s.tiles_w);
    const int in_image = tile - n * (s.tiles_h * s.tiles_w);
    const int top = (in_image / s.tiles_w) * 4, left = (in_image % s.tiles_w) * 4;
    const unsigned plane = (unsigned)(n * s.channels + channel) * (unsigned)(s.height * s.width);
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            const int h = top + i, w = left + j;
            const bool there = tile < s.tiles && h < s.height && w < s.width;
            const float read = load_at(source, there ? (plane + (unsigned)(h * s.width + w)) * (unsigned)sizeof(Storage) : 0u);
            v[i][j] = there ? read : 0.0f;
        }
    float half[6][4];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
        float line[6];
        transform_four(v[0][j], v[1][j], v[2][j], v[3][j], line);
#pragma unroll
        for (int i = 0; i < 6; ++i) half[i][j] = line[i];
    }
    const long long apart = (long long)s.channels * s.padded_tiles;
    float* to = transformed + (long long)channel * s.padded_tiles + tile;
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        float line[6];
        transform_four(half[i][0], half[i][1], half[i][2], half[i][3], line);
#pragma unroll
        for (int j = 0; j < 6; ++j) to[(i * 6 + j) * apart] = line[j];
    }
}

struct WinogradFilterShape {
    int rows, padded_rows, reduced, padded_reduced;
    int row_elements, reduced_elements;  // where a 3 × 3 filter lies
    int turned;                          // backward-data: the filter turned by half a turn
};

DEVICE void transform_three(float a, float b, float c, float (&to)[6]) {
    const float even = a + c, even2 = multiply_add(4.0f, c, a), odd2 = 2.0f * b;
    to[0] = 0.25f * a;
    to[1] = (even + b) * (-1.0f / 6.0f);
    to[2] = (even - b) * (-1.0f / 6.0f);
    to[3] = (even2 + odd2) * (1.0f / 24.0f);
    to[4] = (even2 - odd2) * (1.0f / 24.0f);
    to[5] = c;
}

// The filter becomes [36][reduced][rows], padded with zeros as `gemm.cu` wants a packed filter.
extern "C" __global__ void __launch_bounds__(128)
    winograd_filter(const Storage* __restrict__ filter, float* __restrict__ transformed, WinogradFilterShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int reduced = index / s.padded_rows, row = index - reduced * s.padded_rows;
    if (reduced >= s.padded_reduced) return;
    const bool there = row < s.rows && reduced < s.reduced;
    const Storage* from = filter + (there ? (long long)row * s.row_elements + (long long)reduced * s.reduced_elements : 0);
    float g[3][3];
#pragma unroll
    for (int i = 0; i < 3; ++i)
#pragma unroll
        for (int j = 0; j < 3; ++j) {
            const float read = widen(from[s.turned ? 8 - i * 3 - j : i * 3 + j]);
            g[i][j] = there ? read : 0.0f;
        }
    float half[6][3];
#pragma unroll
    for (int j = 0; j < 3; ++j) {
        float line[6];
        transform_three(g[0][j], g[1][j], g[2][j], line);
#pragma unroll
        for (int i = 0; i < 6; ++i) half[i][j] = line[i];
    }
    const long long apart = (long long)s.padded_reduced * s.padded_rows;
#pragma unroll
    for (int i = 0; i < 6; ++i) {
        float line[6];
        transform_three(half[i][0], half[i][1], half[i][2], line);
#pragma unroll
        for (int j = 0; j < 6; ++j) transformed[(i * 6 + j) * apart + index] = line[j];
    }
}

// Six sums of products become the four results of a line.
DEVICE void gather_four(float a, float b, float c, float d, float e, float f, float (&to)[4]) {
    const float sum1 = b + c, difference1 = b - c, sum2 = d + e, difference2 = d - e;
    to[0] = a + sum1 + sum2;
    to[1] = multiply_add(2.0f, difference2, difference1);
    to[2] = multiply_add(4.0f, sum2, sum1);
    to[3] = multiply_add(8.0f, difference2, difference1) + f;
}

extern "C" __global__ void __launch_bounds__(128)
    winograd_output(const float* __restrict__ products, const Storage* __restrict__ bias, Storage* __restrict__ result, WinogradShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int channel = index / s.padded_tiles, tile = index - channel * s.padded_tiles;
    if (channel >= s.channels || tile >= s.tiles) return;
    const long long apart = (long long)s.channels * s.padded_tiles;
    const float* from = products + (long long)channel * s.padded_tiles + tile;
    float half[4][6];
#pragma unroll
    for (int j = 0; j < 6; ++j) {
        float line[4];
        gather_four(from[j * apart], from[(6 + j) * apart], from[(12 + j) * apart], from[(18 + j) * apart],
                    from[(24 + j) * apart], from[(30 + j) * apart], line);
#pragma unroll
        for (int i = 0; i < 4; ++i) half[i][j] = line[i];
    }
    const float add = bias != nullptr ? (float)widen(bias[channel]) : 0.0f;
    const int n = tile / (s.tiles_h * s.tiles_w);
    const int in_image = tile - n * (s.tiles_h * s.tiles_w);
    const int top = (in_image / s.tiles_w) * 4, left = (in_image % s.tiles_w) * 4;
    Storage* plane = result + (unsigned)(n * s.channels + channel) * (unsigned)(s.height * s.width);
    const bool quads = s.width % 4 == 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        if (top + i >= s.height) break;
        float line[4];
        gather_four(half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5], line);
        Storage* to = plane + (top + i) * s.width + left;
        if (quads)
            store_quad(to, line[0] + add, line[1] + add, line[2] + add, line[3] + add);
        else
#pragma unroll
            for (int j = 0; j < 4; ++j)
                if (left + j < s.width) to[j] = narrow(line[j] + add);
    }
}

struct WinogradWeightsShape {
    int rows, channels, planes;
};

DEVICE void gather_three(float a, float b, float c, float d, float e, float f, float (&to)[3]) {
    const float sum1 = b + c, sum2 = d + e;
    to[0] = a + sum1 + sum2;
    to[1] = multiply_add(2.0f, d - e, b - c);
    to[2] = multiply_add(4.0f, sum2, sum1) + f;
}

// Adds the planes [plane][36][rows][channels] up in order and brings the sums back to 3 × 3.
extern "C" __global__ void __launch_bounds__(128)
    winograd_weights(const float* __restrict__ planes, Storage* __restrict__ result, WinogradWeightsShape s) {
    const int index = BLOCK_X * 128 + THREAD_X;
    const int elements = s.rows * s.channels;
    if (index >= elements) return;
    float v[6][6];
#pragma unroll
    for (int i = 0; i < 6; ++i)
#pragma unroll
        for (int j = 0; j < 6; ++j) {
            float sum = 0.0f;
            for (int p = 0; p < s.planes; ++p) sum += planes[((long long)p * 36 + i * 6 + j) * elements + index];
            v[i][j] = sum;
        }
    float half[3][6];
#pragma unroll
    for (int j = 0; j < 6; ++j) {
        float line[3];
        gather_three(v[0][j], v[1][j], v[2][j], v[3][j], v[4][j], v[5][j], line);
#pragma unroll
        for (int i = 0; i < 3; ++i) half[i][j] = line[i];
    }
#pragma unroll
    for (int i = 0; i < 3; ++i) {
        float line[3];
        gather_three(half[i][0], half[i][1], half[i][2], half[i][3], half[i][4], half[i][5], line);
#pragma unroll
        for (int j = 0; j < 3; ++j) result[(long long)index * 9 + i * 3 + j] = narrow(line[j]);
    }
}
