// The client's part with three axes of space, ordinary and transposed, in groups; the input has gaps and the filter is stored channels last.

// 2 images, 4 channels of 5x4x5, 6 filters of 3x3x2 in two groups, stride 2x1x1, padding 1x1x0, dilation 1x1x2.
enum { VC = 4, VD = 5, VH = 4, VW = 5, VK = 6, VT = 3, VR = 3, VS = 2, VOD = 3, VOH = 4, VOW = 3 };
enum { VXS = 1200, VWS = 216, VYS = 2 * VK * VOD * VOH * VOW };
static const int vx_sizes[5] = {2, VC, VD, VH, VW}, vx_strides[5] = {600, 145, 29, 7, 1};
static const int vw_sizes[5] = {VK, VC / 2, VT, VR, VS}, vw_strides[5] = {36, 1, 12, 4, 2};
static const int vy_sizes[5] = {2, VK, VOD, VOH, VOW}, vy_strides[5] = {VK * 36, 36, 12, 3, 1};
static const int v_pad[3] = {1, 1, 0}, v_stride[3] = {2, 1, 1}, v_dilation[3] = {1, 1, 2};

typedef struct { P handle, x, w, y, it; float xd[VXS], wd[VWS], yd[VYS], want[VXS], b[VK], sums[VK]; } Deep;

static size_t deep_at(const int *s, int a, int b, int d, int e, int f) { return (size_t)(a * s[0] + b * s[1] + d * s[2] + e * s[3] + f * s[4]); }

static void deep_expect(Deep *v, int direction) {
    const float *was = direction == 0 ? v->yd : direction == 1 ? v->xd : v->wd;
    const int *sizes = direction == 0 ? vy_sizes : direction == 1 ? vx_sizes : vw_sizes, *strides = direction == 0 ? vy_strides : direction == 1 ? vx_strides : vw_strides;
    memcpy(v->want, was, sizeof(float) * (direction == 0 ? VYS : direction == 1 ? VXS : VWS));
    for (int a = 0; a < sizes[0]; a++) for (int b = 0; b < sizes[1]; b++) for (int d = 0; d < sizes[2]; d++) for (int e = 0; e < sizes[3]; e++) for (int f = 0; f < sizes[4]; f++)
        v->want[deep_at(strides, a, b, d, e, f)] = 0;
    for (int n = 0; n < 2; n++) for (int k = 0; k < VK; k++) for (int o = 0; o < VOD; o++) for (int p = 0; p < VOH; p++) for (int q = 0; q < VOW; q++)
    for (int i = 0; i < VC / 2; i++) for (int t = 0; t < VT; t++) for (int r = 0; r < VR; r++) for (int s = 0; s < VS; s++) {
        int z = o * 2 + t - 1, h = p + r - 1, w = q + s * 2;
        if (z < 0 || z >= VD || h < 0 || h >= VH || w >= VW) continue;
        size_t ix = deep_at(vx_strides, n, k / 3 * 2 + i, z, h, w), iw = deep_at(vw_strides, k, i, t, r, s), iy = deep_at(vy_strides, n, k, o, p, q);
        if (direction == 0) v->want[iy] += v->xd[ix] * v->wd[iw];
        else if (direction == 1) v->want[ix] += v->yd[iy] * v->wd[iw];
        else v->want[iw] += v->xd[ix] * v->yd[iy];
    }
}
static int deep_prepare(Deep *v, int mode) {
#ifdef BY_DLSYM
    library = dlopen("libMIOpen.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
#endif
    CHECK(CALL(miopenCreateWithStream, &v->handle, (P)0) == 0);
    CALL(miopenCreateTensorDescriptor, &v->x), CALL(miopenCreateTensorDescriptor, &v->w), CALL(miopenCreateTensorDescriptor, &v->y);
    CALL(miopenSetTensorDescriptor, v->x, 1, 5, vx_sizes, vx_strides);
    CALL(miopenSetTensorDescriptor, v->w, 1, 5, vw_sizes, vw_strides);
    CALL(miopenSetTensorDescriptor, v->y, 1, 5, vy_sizes, vy_strides);
    CALL(miopenCreateConvolutionDescriptor, &v->it);
    CALL(miopenInitConvolutionNdDescriptor, v->it, 3, v_pad, v_stride, v_dilation, mode);
    CALL(miopenSetConvolutionGroupCount, v->it, 2);
    for (int i = 0; i < VXS; i++) v->xd[i] = (float)(i * 7 % 11) - 5;
    for (int i = 0; i < VWS; i++) v->wd[i] = (float)(i * 5 % 13) - 6;
    for (int i = 0; i < VYS; i++) v->yd[i] = (float)(i * 3 % 17) - 8;
    return 0;
}
#ifdef REAL_HIP
static Deep *deep_room(void) { void *it = 0; return hipHostMalloc(&it, sizeof(Deep), 0) == 0 ? it : 0; }
#else
static Deep *deep_room(void) { return malloc(sizeof(Deep)); }
#endif

// Searched and executed in the workspace that is asked for.
static int deep_find(Deep *v) {
    float one = 1, zero = 0;
    int count = 0;
    Performance found = {-1, -1, 99};
    size_t bytes = 99;
    P workspace = 0;
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, v->handle, v->w, v->x, v->it, v->y, &bytes) == 0);
    CHECK(CALL(miopenFindConvolutionForwardAlgorithm, v->handle, v->x, v->xd, v->w, v->wd, v->it, v->y, v->yd, 4, &count, &found, (P)0, (size_t)0, false) == 0);
    CHECK(count == 1 && found.algorithm == 1 && found.memory == bytes);
    CHECK(bytes == 0 || hipMalloc(&workspace, bytes) == 0);
    deep_expect(v, 0);
    CHECK(CALL(miopenConvolutionForward, v->handle, &one, v->x, v->xd, v->w, v->wd, v->it, 1, &zero, v->y, v->yd, workspace, bytes) == 0);
    CHECK(compare(v->yd, v->want, VYS));
    CHECK(CALL(miopenFindConvolutionBackwardDataAlgorithm, v->handle, v->y, v->yd, v->w, v->wd, v->it, v->x, v->xd, 1, &count, &found, (P)0, (size_t)0, false) == 0);
    CHECK(found.memory == 0 || hipMalloc(&workspace, found.memory) == 0);
    deep_expect(v, 1);
    CHECK(CALL(miopenConvolutionBackwardData, v->handle, &one, v->y, v->yd, v->w, v->wd, v->it, 1, &zero, v->x, v->xd, workspace, found.memory) == 0);
    CHECK(compare(v->xd, v->want, VXS));
    CHECK(CALL(miopenFindConvolutionBackwardWeightsAlgorithm, v->handle, v->y, v->yd, v->x, v->xd, v->it, v->w, v->wd, 1, &count, &found, (P)0, (size_t)0, false) == 0);
    CHECK(found.memory == 0 || hipMalloc(&workspace, found.memory) == 0);
    deep_expect(v, 2);
    CHECK(CALL(miopenConvolutionBackwardWeights, v->handle, &one, v->y, v->yd, v->x, v->xd, v->it, 1, &zero, v->w, v->wd, workspace, found.memory) == 0);
    CHECK(compare(v->wd, v->want, VWS));
    return 0;
}
// By solutions, without a workspace.
static int deep_immediate(Deep *v) {
    size_t count = 0, bytes = 99;
    Solution s = {-1, 99, 0, -1};
    CHECK(CALL(miopenConvolutionForwardGetSolutionCount, v->handle, v->w, v->x, v->it, v->y, &count) == 0 && count == 1);
    CHECK(CALL(miopenConvolutionForwardGetSolution, v->handle, v->w, v->x, v->it, v->y, (size_t)10, &count, &s) == 0 && count == 1 && s.id == 85);
    CHECK(CALL(miopenConvolutionForwardGetSolutionWorkspaceSize, v->handle, v->w, v->x, v->it, v->y, s.id, &bytes) == 0 && bytes == s.workspace);
    CHECK(CALL(miopenConvolutionForwardCompileSolution, v->handle, v->w, v->x, v->it, v->y, s.id) == 0);
    deep_expect(v, 0);
    CHECK(CALL(miopenConvolutionForwardImmediate, v->handle, v->w, v->wd, v->x, v->xd, v->it, v->y, v->yd, (P)0, (size_t)0, s.id) == 0);
    CHECK(compare(v->yd, v->want, VYS));
    deep_expect(v, 1);
    CHECK(CALL(miopenConvolutionBackwardDataImmediate, v->handle, v->y, v->yd, v->w, v->wd, v->it, v->x, v->xd, (P)0, (size_t)0, (uint64_t)86) == 0);
    CHECK(compare(v->xd, v->want, VXS));
    deep_expect(v, 2);
    CHECK(CALL(miopenConvolutionBackwardWeightsImmediate, v->handle, v->y, v->yd, v->x, v->xd, v->it, v->w, v->wd, (P)0, (size_t)0, (uint64_t)87) == 0);
    CHECK(compare(v->wd, v->want, VWS));
    return 0;
}
// Transposed: what was the output goes in, and its gradient comes out of the forward.
static int deep_transposed(Deep *v) {
    deep_expect(v, 1);
    CHECK(CALL(miopenConvolutionForwardImmediate, v->handle, v->w, v->wd, v->y, v->yd, v->it, v->x, v->xd, (P)0, (size_t)0, (uint64_t)85) == 0);
    CHECK(compare(v->xd, v->want, VXS));
    deep_expect(v, 0);
    CHECK(CALL(miopenConvolutionBackwardDataImmediate, v->handle, v->x, v->xd, v->w, v->wd, v->it, v->y, v->yd, (P)0, (size_t)0, (uint64_t)86) == 0);
    CHECK(compare(v->yd, v->want, VYS));
    deep_expect(v, 2);
    CHECK(CALL(miopenConvolutionBackwardWeightsImmediate, v->handle, v->x, v->xd, v->y, v->yd, v->it, v->w, v->wd, (P)0, (size_t)0, (uint64_t)87) == 0);
    CHECK(compare(v->wd, v->want, VWS));
    return 0;
}
static int deep_biases(Deep *v) {
    const int sizes[5] = {1, VK, 1, 1, 1}, strides[5] = {VK, 1, 1, 1, 1};
    float one = 1, zero = 0, expected[VK] = {0};
    P d = 0;
    CALL(miopenCreateTensorDescriptor, &d), CALL(miopenSetTensorDescriptor, d, 1, 5, sizes, strides);
    memcpy(v->want, v->yd, sizeof v->yd);
    for (int i = 0; i < VYS; i++) expected[i / 36 % VK] += v->yd[i], v->want[i] += (float)(i / 36 % VK) * 10;
    for (int k = 0; k < VK; k++) v->b[k] = (float)k * 10;
    CHECK(CALL(miopenConvolutionBackwardBias, v->handle, &one, v->y, v->yd, &zero, d, v->sums) == 0);
    settle();
    for (int k = 0; k < VK; k++) CHECK(fabsf(v->sums[k] - expected[k]) < 1e-3f);
    CHECK(CALL(miopenConvolutionForwardBias, v->handle, &one, d, v->b, &zero, v->y, v->yd) == 0);
    CHECK(compare(v->yd, v->want, VYS));
    return 0;
}
static int deep(void) {
    int (*parts[])(Deep *) = {deep_find, deep_immediate, deep_transposed, deep_biases};
    for (int i = 0; i < 4; i++) {
        Deep *v = deep_room();
        CHECK(v != NULL);
        int line = deep_prepare(v, i == 2);
        line = line ? line : parts[i](v);
        if (line) return line;
    }
    return 0;
}
