// A framework in small, as a library: it asks MIOpen for convolutions and compares them with its own sums.
//   run(part): 0 where everything was as it should be, else the number of the line that was not.
// -DBY_DLSYM: every function is looked up in a handle, as XLA does it; else by reference, as torch does.
// -DREAL_HIP: on a real HIP runtime, with memory that host and card share. -DPROGRAM: a program and not a library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct { int algorithm; float time; size_t memory; } Performance;
typedef struct { float time; size_t workspace; uint64_t id; int algorithm; } Solution;
typedef void *P;

#ifdef BY_DLSYM
static void *library;
#define CALL(name, ...) ((int (*)())dlsym(library, #name))(__VA_ARGS__)
#else
#define CALL(name, ...) name(__VA_ARGS__)
int miopenCreate(), miopenCreateWithStream(), miopenCreateTensorDescriptor(), miopenSetTensorDescriptor(), miopenSetTensorDescriptorV2();
int miopenCreateConvolutionDescriptor(), miopenInitConvolutionNdDescriptor(), miopenSetConvolutionGroupCount(), miopenActivationForward();
int miopenConvolutionForwardGetWorkSpaceSize(), miopenFindConvolutionForwardAlgorithm(), miopenConvolutionForward();
int miopenFindConvolutionBackwardDataAlgorithm(), miopenConvolutionBackwardData(), miopenFindConvolutionBackwardWeightsAlgorithm();
int miopenConvolutionBackwardWeights(), miopenConvolutionForwardGetSolutionCount(), miopenConvolutionForwardGetSolution();
int miopenConvolutionForwardGetSolutionWorkspaceSize(), miopenConvolutionForwardCompileSolution(), miopenConvolutionForwardImmediate();
int miopenConvolutionBackwardDataImmediate(), miopenConvolutionBackwardWeightsImmediate(), miopenCreateFusionPlan(), miopenCreateOpConvForward();
int miopenCreateOpActivationForward(), miopenCompileFusionPlan(), miopenDestroyFusionPlan(), miopenCreateConvProblem(), miopenFindSolutions();
int miopenConvolutionForwardBias(), miopenConvolutionBackwardBias();
int miopenConvolutionBackwardDataGetSolutionCount(), miopenConvolutionBackwardDataGetSolution(), miopenConvolutionBackwardDataCompileSolution();
int miopenConvolutionBackwardDataGetSolutionWorkspaceSize(), miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize();
int miopenConvolutionBackwardWeightsGetSolutionCount(), miopenConvolutionBackwardWeightsGetSolution(), miopenConvolutionBackwardWeightsCompileSolution();
#endif
#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "client.c:%d: %s\n", __LINE__, #condition); return __LINE__; } } while (0)

// 2 images, 4 channels of 6x5 with gaps, 6 filters of 3x2 in two groups, stride 2x1, padding 1x0, dilation 1x2.
enum { N = 2, C = 4, H = 6, W = 5, K = 6, R = 3, S = 2, G = 2, OH = 3, OW = 3 };
static const int x_sizes[4] = {N, C, H, W}, x_strides[4] = {200, 45, 7, 1};
static const int w_sizes[4] = {K, C / G, R, S}, w_strides[4] = {12, 1, 4, 2};  // channels last
static const int y_sizes[4] = {N, K, OH, OW}, y_strides[4] = {54, 9, 3, 1};
enum { XS = 400, WS = 80, YS = 108 };
static const int pad[2] = {1, 0}, stride[2] = {2, 1}, dilation[2] = {1, 2};
static size_t at(const int *s, int a, int b, int c, int d) { return (size_t)(a * s[0] + b * s[1] + c * s[2] + d * s[3]); }

typedef struct { P handle, x, w, y, it; float xd[XS], wd[WS], yd[YS], want[XS], b[2 * K], sums[2 * K]; } Case;

static int prepare(Case *c, P stream) {
#ifdef BY_DLSYM
    library = dlopen("libMIOpen.so.1", RTLD_NOW | RTLD_LOCAL);
    CHECK(library != NULL);
#endif
    CHECK(CALL(miopenCreateWithStream, &c->handle, stream) == 0);
    CALL(miopenCreateTensorDescriptor, &c->x), CALL(miopenCreateTensorDescriptor, &c->w), CALL(miopenCreateTensorDescriptor, &c->y);
    CALL(miopenSetTensorDescriptor, c->x, 1, 4, x_sizes, x_strides);
    CALL(miopenSetTensorDescriptor, c->w, 1, 4, w_sizes, w_strides);
    CALL(miopenSetTensorDescriptor, c->y, 1, 4, y_sizes, y_strides);
    CALL(miopenCreateConvolutionDescriptor, &c->it);
    CALL(miopenInitConvolutionNdDescriptor, c->it, 2, pad, stride, dilation, 0);
    CALL(miopenSetConvolutionGroupCount, c->it, G);
    for (int i = 0; i < XS; i++) c->xd[i] = (float)(i * 7 % 11) - 5;
    for (int i = 0; i < WS; i++) c->wd[i] = (float)(i * 5 % 13) - 6;
    for (int i = 0; i < YS; i++) c->yd[i] = (float)(i * 3 % 17) - 8;
    return 0;
}
// What the direction should give, into c->want; gaps keep what they have.
static void expect(Case *c, int direction) {
    const float *was = direction == 0 ? c->yd : direction == 1 ? c->xd : c->wd;
    const int *sizes = direction == 0 ? y_sizes : direction == 1 ? x_sizes : w_sizes, *strides = direction == 0 ? y_strides : direction == 1 ? x_strides : w_strides;
    memcpy(c->want, was, sizeof(float) * (direction == 0 ? YS : direction == 1 ? XS : WS));
    for (int a = 0; a < sizes[0]; a++) for (int b = 0; b < sizes[1]; b++) for (int d = 0; d < sizes[2]; d++) for (int e = 0; e < sizes[3]; e++)
        c->want[at(strides, a, b, d, e)] = 0;
    for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) for (int p = 0; p < OH; p++) for (int q = 0; q < OW; q++)
    for (int i = 0; i < C / G; i++) for (int r = 0; r < R; r++) for (int s = 0; s < S; s++) {
        int h = p * 2 + r - 1, v = q + s * 2;
        if (h < 0 || h >= H || v < 0 || v >= W) continue;
        size_t ix = at(x_strides, n, k / (K / G) * (C / G) + i, h, v), iw = at(w_strides, k, i, r, s), iy = at(y_strides, n, k, p, q);
        if (direction == 0) c->want[iy] += c->xd[ix] * c->wd[iw];
        else if (direction == 1) c->want[ix] += c->yd[iy] * c->wd[iw];
        else c->want[iw] += c->xd[ix] * c->yd[iy];
    }
}
#ifdef REAL_HIP
int hipHostMalloc(void **, size_t, unsigned), hipDeviceSynchronize(void), hipStreamCreate(P *), hipStreamBeginCapture(P, int), hipStreamEndCapture(P, P *);
int hipGraphInstantiate(P *, P, P, P, size_t), hipGraphLaunch(P, P), hipMalloc(void **, size_t), hipStreamSynchronize(P);
static Case *room(void) { void *it = 0; return hipHostMalloc(&it, sizeof(Case), 0) == 0 ? it : 0; }
static void settle(void) { hipDeviceSynchronize(); }
#else
int hipMalloc(void **, size_t);
static Case *room(void) { return malloc(sizeof(Case)); }
static void settle(void) {}
#endif
static int compare(const float *got, const float *want, int count) {
    settle();
    for (int i = 0; i < count; i++) if (fabsf(got[i] - want[i]) > 1e-3f) { fprintf(stderr, "element %d is %g and should be %g\n", i, got[i], want[i]); return 0; }
    return 1;
}

#include "volume.h"

// Every part has one case, in memory that both sides see.
#define c (*place)
#ifdef REAL_HIP
#define WORKSPACE bytes
#else
#define WORKSPACE 0
#endif

static int find_and_execute(P stream) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, stream), count = 0;
    if (line) return line;
    float one = 1, zero = 0, two = 2;
    size_t bytes = 99;
    Performance found = {-1, -1, 99};
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, c.it, c.y, &bytes) == 0 && bytes == WORKSPACE);
    CHECK(CALL(miopenFindConvolutionForwardAlgorithm, c.handle, c.x, c.xd, c.w, c.wd, c.it, c.y, c.yd, 4, &count, &found, (P)0, (size_t)0, false) == 0);
    CHECK(count == 1 && found.algorithm == 1 && found.memory == WORKSPACE);
    expect(&c, 0);
    CHECK(CALL(miopenConvolutionForward, c.handle, &two, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 6);
    CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 0);
    CHECK(compare(c.yd, c.want, YS));
    CHECK(CALL(miopenFindConvolutionBackwardDataAlgorithm, c.handle, c.y, c.yd, c.w, c.wd, c.it, c.x, c.xd, 1, &count, &found, (P)0, (size_t)0, false) == 0);
    expect(&c, 1);
    CHECK(CALL(miopenConvolutionBackwardData, c.handle, &one, c.y, c.yd, c.w, c.wd, c.it, 1, &zero, c.x, c.xd, (P)0, (size_t)0) == 0);
    CHECK(compare(c.xd, c.want, XS));
    CHECK(CALL(miopenFindConvolutionBackwardWeightsAlgorithm, c.handle, c.y, c.yd, c.x, c.xd, c.it, c.w, c.wd, 1, &count, &found, (P)0, (size_t)0, false) == 0);
    expect(&c, 2);
    CHECK(CALL(miopenConvolutionBackwardWeights, c.handle, &one, c.y, c.yd, c.x, c.xd, c.it, 1, &zero, c.w, c.wd, (P)0, (size_t)0) == 0);
    CHECK(compare(c.wd, c.want, WS));
    return 0;
}
static int immediate(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    size_t count = 0, bytes = 99;
    Solution s = {-1, 99, 0, -1};
    CHECK(CALL(miopenConvolutionForwardGetSolutionCount, c.handle, c.w, c.x, c.it, c.y, &count) == 0 && count == 1);
    CHECK(CALL(miopenConvolutionForwardGetSolution, c.handle, c.w, c.x, c.it, c.y, (size_t)10, &count, &s) == 0 && count == 1 && s.id == 85);
    CHECK(CALL(miopenConvolutionForwardGetSolutionWorkspaceSize, c.handle, c.w, c.x, c.it, c.y, s.id, &bytes) == 0 && bytes == s.workspace);
    CHECK(CALL(miopenConvolutionForwardCompileSolution, c.handle, c.w, c.x, c.it, c.y, s.id) == 0);
    CHECK(CALL(miopenConvolutionForwardImmediate, c.handle, c.w, c.wd, c.x, c.xd, c.it, c.y, c.yd, (P)0, (size_t)0, (uint64_t)100000) == 3);
    expect(&c, 0);
    CHECK(CALL(miopenConvolutionForwardImmediate, c.handle, c.w, c.wd, c.x, c.xd, c.it, c.y, c.yd, (P)0, (size_t)0, s.id) == 0);
    CHECK(compare(c.yd, c.want, YS));
    expect(&c, 1);
    CHECK(CALL(miopenConvolutionBackwardDataImmediate, c.handle, c.y, c.yd, c.w, c.wd, c.it, c.x, c.xd, (P)0, (size_t)0, (uint64_t)86) == 0);
    CHECK(compare(c.xd, c.want, XS));
    expect(&c, 2);
    CHECK(CALL(miopenConvolutionBackwardWeightsImmediate, c.handle, c.y, c.yd, c.x, c.xd, c.it, c.w, c.wd, (P)0, (size_t)0, (uint64_t)87) == 0);
    CHECK(compare(c.wd, c.want, WS));
    return 0;
}
// As JAX does it: no search and no execution, only solutions; each is compiled and run in the workspace that it asks for.
#define SOLVED(Name, direction, at, ap, bt, bp, ct, cp, size) do { \
        size_t count = 0, told = 99; \
        Solution all[4] = {{-1, 99, 0, -1}}; \
        P workspace = 0; \
        CHECK(CALL(miopenConvolution##Name##GetSolutionCount, c.handle, at, bt, c.it, ct, &count) == 0 && count == 1); \
        CHECK(CALL(miopenConvolution##Name##GetSolution, c.handle, at, bt, c.it, ct, count, &count, all) == 0 && count == 1); \
        CHECK(CALL(miopenConvolution##Name##GetSolutionWorkspaceSize, c.handle, at, bt, c.it, ct, all[0].id, &told) == 0 && told == all[0].workspace); \
        CHECK(told == 0 || hipMalloc(&workspace, told) == 0); \
        CHECK(CALL(miopenConvolution##Name##CompileSolution, c.handle, at, bt, c.it, ct, all[0].id) == 0); \
        expect(&c, direction); \
        CHECK(CALL(miopenConvolution##Name##Immediate, c.handle, at, ap, bt, bp, c.it, ct, cp, workspace, told, all[0].id) == 0); \
        CHECK(compare(cp, c.want, size)); \
    } while (0)
static int immediate_only(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    SOLVED(Forward, 0, c.w, c.wd, c.x, c.xd, c.y, c.yd, YS);
    SOLVED(BackwardData, 1, c.y, c.yd, c.w, c.wd, c.x, c.xd, XS);
    SOLVED(BackwardWeights, 2, c.y, c.yd, c.x, c.xd, c.w, c.wd, WS);
    return 0;
}
// As frameworks fuse: a plan of convolution and ReLU, and where that does not compile the convolution by itself and the ReLU after it.
static int fused(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0), count = 0;
    if (line) return line;
    float one = 1, zero = 0;
    Performance found = {-1, -1, 99};
    P plan = 0, convolution = 0, activation = 0;
    CHECK(CALL(miopenCreateFusionPlan, &plan, 0, c.x) == 0 && CALL(miopenCreateOpConvForward, plan, &convolution, c.it, c.w) == 0);
    CHECK(CALL(miopenCreateOpActivationForward, plan, &activation, 3) == 0);
    int compiled = CALL(miopenCompileFusionPlan, c.handle, plan);
    CHECK(CALL(miopenDestroyFusionPlan, plan) == 0);
    CHECK(compiled == 8);
    expect(&c, 0);
    CHECK(CALL(miopenFindConvolutionForwardAlgorithm, c.handle, c.x, c.xd, c.w, c.wd, c.it, c.y, c.yd, 1, &count, &found, (P)0, (size_t)0, false) == 0);
    CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, found.algorithm, &zero, c.y, c.yd, (P)0, (size_t)0) == 0);
    settle();
    for (int i = 0; i < YS; i++) c.yd[i] = c.yd[i] > 0 ? c.yd[i] : 0, c.want[i] = c.want[i] > 0 ? c.want[i] : 0;
    CHECK(compare(c.yd, c.want, YS));
    return 0;
}
static int faults(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0), count = 0;
    if (line) return line;
    float one = 1, zero = 0;
    size_t bytes = 0;
    Performance found;
    P plan = 0, op = 0, problem = 0, deep = 0;
    CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, (P)0, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 3);
    CHECK(CALL(miopenConvolutionForward, c.handle, (P)0, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 3);
    CHECK(CALL(miopenConvolutionForward, (P)0, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 3);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, (P)0, c.it, c.y, &bytes) == 3);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, (P)0, c.y, &bytes) == 3);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, c.it, c.y, (P)0) == 3);
    CHECK(CALL(miopenFindConvolutionForwardAlgorithm, c.handle, c.x, c.xd, c.w, c.wd, c.it, c.y, c.yd, 0, &count, &found, (P)0, (size_t)0, false) == 3);
    CHECK(CALL(miopenFindConvolutionForwardAlgorithm, c.handle, c.x, c.xd, c.w, c.wd, c.it, c.y, c.yd, 1, (P)0, &found, (P)0, (size_t)0, false) == 3);
    // Fusion plans: with a convolution refused at compilation, without one MIOpen's own.
    CHECK(CALL(miopenCreateFusionPlan, &plan, 0, c.x) == 0 && CALL(miopenCreateOpActivationForward, plan, &op, 3) == 0);
    CHECK(CALL(miopenCompileFusionPlan, c.handle, plan) == 42);
    CHECK(CALL(miopenCreateOpConvForward, plan, &op, c.it, c.w) == 0 && CALL(miopenCompileFusionPlan, c.handle, plan) == 8);
    CHECK(CALL(miopenDestroyFusionPlan, plan) == 0);
    CHECK(CALL(miopenCreateConvProblem, &problem, c.it, 0) == 0);
    CHECK(CALL(miopenFindSolutions, c.handle, problem, (P)0, (P)0, (P)0, (size_t)1) == 6);
    // A refusal says that nothing was found: some callers read the number whatever the status.
    size_t solutions = 77;
    CHECK(CALL(miopenFindSolutions, c.handle, problem, (P)0, (P)0, &solutions, (size_t)1) == 6 && solutions == 0);
    CHECK(CALL(miopenActivationForward) == 42);
    // Three axes of space whose sizes make no convolution, and a tensor that getters cut off: not ours, and not MIOpen's on this card.
    const int sizes[5] = {1, 4, 6, 6, 6}, strides[5] = {864, 216, 36, 6, 1}, ones[3] = {1, 1, 1};
    CALL(miopenCreateTensorDescriptor, &deep), CALL(miopenSetTensorDescriptor, deep, 1, 5, sizes, strides);
    CALL(miopenInitConvolutionNdDescriptor, c.it, 3, ones, ones, ones, 0);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, deep, deep, c.it, deep, &bytes) == 6);
    CALL(miopenInitConvolutionNdDescriptor, c.it, 2, pad, stride, dilation, 0);
    const size_t large[4] = {(size_t)N + ((size_t)1 << 32), C, H, W}, far[4] = {200, 45, 7, 1};
    CALL(miopenSetTensorDescriptorV2, c.x, 1, 4, large, far);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, c.it, c.y, &bytes) == 6);
    return 0;
}
static int biases(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    const int sizes[4] = {1, K, 1, 1}, strides[4] = {K * 2, 2, 1, 1};
    float one = 1, zero = 0, *b = c.b, *sums = c.sums;
    P d = 0;
    CALL(miopenCreateTensorDescriptor, &d), CALL(miopenSetTensorDescriptor, d, 1, 4, sizes, strides);
    for (int i = 0; i < 2 * K; i++) b[i] = (float)i * 10, sums[i] = -1;
    memcpy(c.want, c.yd, sizeof c.yd);
    float expected[K] = {0};
    for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) for (int p = 0; p < OH; p++) for (int q = 0; q < OW; q++) {
        size_t i = at(y_strides, n, k, p, q);
        expected[k] += c.yd[i], c.want[i] += b[2 * k];
    }
    CHECK(CALL(miopenConvolutionBackwardBias, c.handle, &one, c.y, c.yd, &zero, d, sums) == 0);
    settle();
    for (int k = 0; k < K; k++) CHECK(fabsf(sums[2 * k] - expected[k]) < 1e-3f && (k + 1 == K || sums[2 * k + 1] == -1));
    CHECK(CALL(miopenConvolutionForwardBias, c.handle, &one, d, b, &zero, c.y, c.yd) == 0);
    CHECK(compare(c.yd, c.want, YS));
    return 0;
}
// A graph is being recorded (see the stand-in's stream 7): declined, and nothing waited for.
static int recording(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, (P)7);
    if (line) return line;
    float one = 1, zero = 0;
    CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 6);
    return 0;
}
static int reached(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    size_t bytes;
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, c.it, c.y, &bytes) == 42);
    return 0;
}
static int refused(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    size_t bytes;
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, c.it, c.y, &bytes) == 6);
    return 0;
}
static int failing(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    float one = 1, zero = 0;
    for (int i = 0; i < 2; i++) {
        int code = CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0);
        CHECK(code == 5 || code == 6);
    }
    return 0;
}
// The face in torch's dispatcher has planned: what this thread asks goes through.
static int planned(void) {
    void (*say)(int) = (void (*)(int))dlsym(RTLD_DEFAULT, "unhang_miopen_planned");
    CHECK(say != NULL);
    say(1);
    int line = reached();
    say(0);
    return line ? line : find_and_execute(0);
}
static void *repeat(void *unused) {
    (void)unused;
    for (int i = 0; i < 25; i++) {
        long line = i % 2 ? find_and_execute(0) : immediate();
        if (line) return (void *)line;
    }
    return 0;
}
static int threads(void) {
    pthread_t all[8];
    long line = 0;
    void *ended;
    for (int i = 0; i < 8; i++) pthread_create(&all[i], 0, repeat, 0);
    for (int i = 0; i < 8; i++) { pthread_join(all[i], &ended); line = line ? line : (long)ended; }
    return (int)line;
}
static int forked(void) {
    int line = find_and_execute(0), status;
    if (line) return line;
    pid_t child = fork();
    if (child == 0) _exit(reached() != 0);
    waitpid(child, &status, 0);
    CHECK(status == 0);
    return 0;
}

#ifdef REAL_HIP
// One stream of two threads, tensors with gaps and no workspace: both have their operands rearranged in memory of the library's own.
static void *shared(void *seed) {
    Case *place = room();
    long line = prepare(&c, 0);
    for (int i = 0; i < XS; i++) c.xd[i] += (float)(long)seed * 3;
    expect(&c, 0);
    for (int i = 0; i < 5 && !line; i++) {
        memset(c.yd, 0, sizeof c.yd);
        if (CALL(miopenConvolutionForwardImmediate, c.handle, c.w, c.wd, c.x, c.xd, c.it, c.y, c.yd, (P)0, (size_t)0, (uint64_t)85) != 0) line = __LINE__;
        if (!compare(c.yd, c.want, YS)) line = __LINE__;
    }
    return (void *)line;
}
static int sharing(void) {
    pthread_t all[3];
    void *ended;
    long line = 0;
    for (long i = 0; i < 3; i++) pthread_create(&all[i], 0, shared, (void *)i);
    for (int i = 0; i < 3; i++) { pthread_join(all[i], &ended); line = line ? line : (long)ended; }
    return (int)line;
}
// What is new while a graph is recorded is declined, and the recording goes on; what is known is recorded.
static int capturing(void) {
    Case *place = room();
    P stream = 0, graph = 0, replay = 0, workspace = 0, d = 0;
    CHECK(place != NULL && hipStreamCreate(&stream) == 0);
    int line = prepare(&c, stream);
    if (line) return line;
    const int sizes[4] = {1, K, 1, 1}, strides[4] = {K, 1, 1, 1};
    float one = 1, zero = 0, *sums = c.sums;
    size_t bytes = 0;
    CALL(miopenCreateTensorDescriptor, &d), CALL(miopenSetTensorDescriptor, d, 1, 4, sizes, strides);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, c.it, c.y, &bytes) == 0 && hipMalloc(&workspace, bytes) == 0);
    for (int turn = 0; turn < 2; turn++) {
        int expected = turn == 0 ? 6 : 0;
        CHECK(hipStreamBeginCapture(stream, 2) == 0);
        CHECK(CALL(miopenConvolutionBackwardBias, c.handle, &one, c.y, c.yd, &zero, d, sums) == expected);
        CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, workspace, bytes) == expected);
        CHECK(hipStreamEndCapture(stream, &graph) == 0);
        if (turn == 1) break;
        CHECK(CALL(miopenConvolutionBackwardBias, c.handle, &one, c.y, c.yd, &zero, d, sums) == 0);
        CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, workspace, bytes) == 0);
        settle();
    }
    for (int i = 0; i < XS; i++) c.xd[i] += 1;
    expect(&c, 0);
    CHECK(hipGraphInstantiate(&replay, graph, 0, 0, 0) == 0 && hipGraphLaunch(replay, stream) == 0 && hipStreamSynchronize(stream) == 0);
    CHECK(compare(c.yd, c.want, YS));
    return 0;
}
// MIOpen's own convolution does not come back: the program waits for it, and only a watchdog ends that.
static int hanging(void) {
    Case *place = room();
    int line = prepare(&c, 0);
    if (line) return line;
    float one = 1, zero = 0;
    CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 0);
    settle();
    CHECK(!"it came back");
}
#endif

int run(const char *part) {
#ifdef REAL_HIP
    if (!strcmp(part, "sharing")) return sharing();
    if (!strcmp(part, "capturing")) return capturing();
    if (!strcmp(part, "hanging")) return hanging();
#endif

    if (!strcmp(part, "find")) return find_and_execute(0);
    if (!strcmp(part, "immediate")) return immediate();
    if (!strcmp(part, "immediate only")) return immediate_only();
    if (!strcmp(part, "fused")) return fused();
    if (!strcmp(part, "faults")) return faults();
    if (!strcmp(part, "biases")) return biases();
    if (!strcmp(part, "three axes")) return deep();
    if (!strcmp(part, "recording")) return recording();
    if (!strcmp(part, "reached")) return reached();
    if (!strcmp(part, "refused")) return refused();
    if (!strcmp(part, "failing")) return failing();
    if (!strcmp(part, "planned")) return planned();
    if (!strcmp(part, "threads")) return threads();
    if (!strcmp(part, "forked")) return forked();
    return -1;
}

#ifdef PROGRAM
// A program that is linked to MIOpen itself, as MIOpenDriver is.
int main(int count, char **words) {
    for (int i = 1; i < count; i++) {
        int line = run(words[i]);
        if (line) { fprintf(stderr, "%s: line %d\n", words[i], line); return 1; }
    }
    puts("right");
    return 0;
}
#endif
