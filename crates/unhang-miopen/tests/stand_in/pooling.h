// Pooling in every kind, over two and three axes, with indices of every size that count in windows and in images, channels first and last.
enum { PN = 2, PC = 3, PD = 3, PH = 6, PW = 7, POOL_X = PN * PC * PD * PH * PW + 40, POOL_Y = 400 };
typedef struct { float x[POOL_X], y[POOL_Y], dy[POOL_Y], dx[POOL_X], want[POOL_X]; uint64_t indices[POOL_Y]; } Pools;
#ifdef REAL_HIP
static Pools *pool_room(void) { void *it = 0; return hipHostMalloc(&it, sizeof(Pools), 0) == 0 ? it : 0; }
#else
static Pools *pool_room(void) { return malloc(sizeof(Pools)); }
#endif
static size_t at5(const int *s, int n, int ch, int d, int h, int w) { return (size_t)(n * s[0] + ch * s[1] + d * s[2] + h * s[3] + w * s[4]); }
static uint64_t index_at(const void *indices, int type, size_t place) {
    return type == 0 ? ((const uint8_t *)indices)[place] : type == 1 ? ((const uint16_t *)indices)[place] : type == 2 ? ((const uint32_t *)indices)[place] : ((const uint64_t *)indices)[place];
}
static void lie(int *strides, const int *sizes, int last, int gap) {
    const int orders[2][5] = {{4, 3, 2, 1, 0}, {1, 4, 3, 2, 0}};
    for (int i = 0, next = 1; i < 5; i++) strides[orders[last][i]] = next, next = next * sizes[orders[last][i]] + (i == 2 ? gap : 0);
}

static int pools(void) {
    Case *place = room();
    Pools *o = pool_room();
    CHECK(place != NULL && o != NULL);
    int line = prepare(place, 0);
    if (line) return line;
    P pool = 0, xt = 0, yt = 0, handle = place->handle;
    CALL(miopenCreatePoolingDescriptor, &pool), CALL(miopenCreateTensorDescriptor, &xt), CALL(miopenCreateTensorDescriptor, &yt);
    for (int turn = 0; turn < 24; turn++) {
        const int mode = turn % 3, type = turn % 4, in_image = turn / 3 % 2, deep = turn / 6 % 2, last = turn / 12;
        const int xs[5] = {PN, PC, deep ? PD : 1, PH, PW}, window[3] = {deep ? 2 : 1, 3, 2 + turn % 3}, stride[3] = {1, 2, 2}, pad[3] = {0, 1, 1};
        int ys[5] = {PN, PC}, xl[5], yl[5];
        for (int i = 0; i < 3; i++) ys[2 + i] = (xs[2 + i] + 2 * pad[i] - window[i]) / stride[i] + 1;
        lie(xl, xs, last, 1), lie(yl, ys, last, 0);
        const float alpha = turn % 5 ? 1 : 2, beta = turn % 5 ? 0 : 0.5f;
        CALL(miopenSetNdPoolingDescriptor, pool, mode, 2 + deep, window + !deep, pad + !deep, stride + !deep);
        CALL(miopenSetPoolingIndexType, pool, type), CALL(miopenSetPoolingWorkSpaceIndexMode, pool, in_image);
        // Two axes of space: the tensors are without depth.
        const int small[4][4] = {{xs[0], xs[1], xs[3], xs[4]}, {xl[0], xl[1], xl[3], xl[4]}, {ys[0], ys[1], ys[3], ys[4]}, {yl[0], yl[1], yl[3], yl[4]}};
        CALL(miopenSetTensorDescriptor, xt, 1, 4 + deep, deep ? xs : small[0], deep ? xl : small[1]);
        CALL(miopenSetTensorDescriptor, yt, 1, 4 + deep, deep ? ys : small[2], deep ? yl : small[3]);
        for (int i = 0; i < POOL_X; i++) o->x[i] = (float)(i * 37 % 101) / 8 - 6, o->dx[i] = (float)(i % 5);
        for (int i = 0; i < POOL_Y; i++) o->y[i] = o->want[i] = (float)(i % 3), o->dy[i] = (float)(i * 11 % 23) / 4 - 2;
        memset(o->indices, 0xee, sizeof o->indices);
        static uint64_t indices[POOL_Y];
        static float back[POOL_X];
        memcpy(back, o->dx, sizeof back);
        for (int pass = 0; pass < 2; pass++) {
            if (pass == 1) for (int n = 0; n < PN; n++) for (int ch = 0; ch < PC; ch++) for (int d = 0; d < xs[2]; d++) for (int h = 0; h < PH; h++) for (int w = 0; w < PW; w++)
                back[at5(xl, n, ch, d, h, w)] *= beta;
            size_t at_index = 0;
            for (int n = 0; n < PN; n++) for (int ch = 0; ch < PC; ch++) for (int d = 0; d < ys[2]; d++) for (int h = 0; h < ys[3]; h++) for (int w = 0; w < ys[4]; w++, at_index++) {
                double sum = 0, best = -1e30, inside = 0, taps = window[0] * window[1] * window[2];
                size_t best_at = 0, y_at = at5(yl, n, ch, d, h, w);
                for (int i = 0; i < window[0]; i++) for (int j = 0; j < window[1]; j++) for (int k = 0; k < window[2]; k++) {
                    int a = d * stride[0] + i - pad[0], b = h * stride[1] + j - pad[1], e = w * stride[2] + k - pad[2];
                    if (a < 0 || a >= xs[2] || b < 0 || b >= PH || e < 0 || e >= PW) continue;
                    double v = o->x[at5(xl, n, ch, a, b, e)];
                    sum += v, inside++;
                    if (v > best) best = v, best_at = at5(xl, n, ch, a, b, e), indices[at_index] = in_image ? (uint64_t)((a * PH + b) * PW + e) : (uint64_t)((i * window[1] + j) * window[2] + k);
                }
                if (pass == 0) { o->want[y_at] = (float)(alpha * (mode == 0 ? best : sum / (mode == 1 ? inside : taps)) + beta * o->want[y_at]); continue; }
                if (mode == 0) { back[best_at] += alpha * o->dy[y_at]; continue; }
                for (int i = 0; i < window[0]; i++) for (int j = 0; j < window[1]; j++) for (int k = 0; k < window[2]; k++) {
                    int a = d * stride[0] + i - pad[0], b = h * stride[1] + j - pad[1], e = w * stride[2] + k - pad[2];
                    if (a < 0 || a >= xs[2] || b < 0 || b >= PH || e < 0 || e >= PW) continue;
                    back[at5(xl, n, ch, a, b, e)] += (float)(alpha * o->dy[y_at] / (mode == 1 ? inside : taps));
                }
            }
        }
        size_t count = (size_t)(PN * PC * ys[2] * ys[3] * ys[4]);
        CHECK(CALL(miopenPoolingForward, handle, pool, &alpha, xt, o->x, &beta, yt, o->y, true, o->indices, count << type) == 0);
        CHECK(compare(o->y, o->want, POOL_Y));
        if (mode == 0) for (size_t i = 0; i < count; i++) CHECK(index_at(o->indices, type, i) == indices[i]);
        CHECK(CALL(miopenPoolingBackward, handle, pool, &alpha, yt, o->y, yt, o->dy, xt, o->x, &beta, xt, o->dx, mode == 0 ? o->indices : (P)0) == 0);
        CHECK(compare(o->dx, back, POOL_X));
        if (mode != 0) continue;
        // Without a place for indices, with too small a one, and where none are asked for.
        CHECK(CALL(miopenPoolingForward, handle, pool, &alpha, xt, o->x, &beta, yt, o->y, true, (P)0, (size_t)0) == 3);
        CHECK(CALL(miopenPoolingForward, handle, pool, &alpha, xt, o->x, &beta, yt, o->y, true, o->indices, (count << type) - 1) == 3);
        CHECK(CALL(miopenPoolingBackward, handle, pool, &alpha, yt, o->y, yt, o->dy, xt, o->x, &beta, xt, o->dx, (P)0) == 3);
        CHECK(CALL(miopenPoolingForward, handle, pool, &alpha, xt, (P)0, &beta, yt, o->y, false, (P)0, (size_t)0) == 3);
        CHECK(CALL(miopenPoolingForward, handle, pool, &alpha, xt, o->x, &beta, yt, o->y, false, (P)0, (size_t)0) == 0);
        settle();
    }
    // Indices that cannot count the image's elements: MIOpen refuses that itself.
    const int large[4] = {1, 1, 20, 20}, far[4] = {400, 400, 20, 1}, pooled[4] = {1, 1, 10, 10}, packed_small[4] = {100, 100, 10, 1}, two[2] = {2, 2}, none[2] = {0, 0};
    float one = 1, zero = 0;
    CALL(miopenSetNdPoolingDescriptor, pool, 0, 2, two, none, two), CALL(miopenSetPoolingWorkSpaceIndexMode, pool, 1);
    CALL(miopenSetTensorDescriptor, xt, 1, 4, large, far), CALL(miopenSetTensorDescriptor, yt, 1, 4, pooled, packed_small);
    CHECK(CALL(miopenPoolingForward, handle, pool, &one, xt, o->x, &zero, yt, o->y, true, o->indices, (size_t)100) == 42);
    return 0;
}
#ifdef REAL_HIP
// So much that the emulated card takes longer for it than a short deadline: the program waits for what it takes for a hang.
static int slow_pool(void) {
    Case *place = room();
    float *memory = 0, one = 1, zero = 0;
    const int sizes[4] = {1, 1, 600, 600}, strides[4] = {360000, 360000, 600, 1}, window[2] = {61, 61}, pad[2] = {30, 30}, step[2] = {1, 1};
    CHECK(place != NULL && hipHostMalloc((void **)&memory, 2 * 360000 * sizeof(float), 0) == 0);
    int line = prepare(place, 0);
    if (line) return line;
    P pool = 0, t = 0;
    CALL(miopenCreatePoolingDescriptor, &pool), CALL(miopenCreateTensorDescriptor, &t);
    CALL(miopenSetNdPoolingDescriptor, pool, 1, 2, window, pad, step), CALL(miopenSetTensorDescriptor, t, 1, 4, sizes, strides);
    CHECK(CALL(miopenPoolingForward, place->handle, pool, &one, t, memory, &zero, t, memory + 360000, false, (P)0, (size_t)0) == 0);
    settle();
    return 0;
}
#endif
