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
int miopenConvolutionForwardBias(), miopenConvolutionBackwardBias(), miopenCreateActivationDescriptor(), miopenSetActivationDescriptor();
int miopenBatchNormalizationForwardTraining(), miopenBatchNormalizationForwardTraining_V2(), miopenBatchNormForwardTrainingActivation();
int miopenBatchNormalizationForwardInference(), miopenBatchNormalizationForwardInference_V2(), miopenBatchNormForwardInferenceActivation();
int miopenBatchNormalizationBackward(), miopenBatchNormalizationBackward_V2(), miopenBatchNormBackwardActivation();
int miopenCreateOpActivationBackward(), miopenCreateOpBiasForward(), miopenCreateOpBatchNormInference(), miopenCreateOpBatchNormForward(), miopenCreateOpBatchNormBackward();
int miopenCreateOperatorArgs(), miopenDestroyOperatorArgs(), miopenSetOpArgsConvForward(), miopenSetOpArgsActivForward(), miopenSetOpArgsActivBackward();
int miopenSetOpArgsBiasForward(), miopenSetOpArgsBatchNormInference(), miopenSetOpArgsBatchNormForward(), miopenSetOpArgsBatchNormBackward(), miopenExecuteFusionPlan();
int miopenConvolutionBiasActivationForward(), miopenFusionPlanGetWorkSpaceSize(), miopenCreateSoftmaxProblem(), miopenSetProblemTensorDescriptor();
int miopenFuseProblems(), miopenDestroyProblem(), miopenRunSolution(), miopenDestroySolution(), miopenGetSolutionSize(), miopenSaveSolution(), miopenLoadSolution();
int miopenGetSolutionWorkspaceSize(), miopenGetSolutionTime(), miopenGetSolutionSolverId(), miopenCreateFindOptions(), miopenSetFindOptionWorkspaceLimit();
int miopenConvolutionBackwardDataGetSolutionCount(), miopenConvolutionBackwardDataGetSolution(), miopenConvolutionBackwardDataCompileSolution();
int miopenConvolutionBackwardDataGetSolutionWorkspaceSize(), miopenConvolutionBackwardWeightsGetSolutionWorkspaceSize();
int miopenCreatePoolingDescriptor(), miopenSetNdPoolingDescriptor(), miopenSetPoolingIndexType(), miopenSetPoolingWorkSpaceIndexMode();
int miopenPoolingForward(), miopenPoolingBackward(), miopenCreateReduceTensorDescriptor(), miopenSetReduceTensorDescriptor(), miopenReduceTensor();
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
// By Newton's steps: in a namespace of its own the client has no mathematical library.
static double root(double v) {
    double r = v > 1 ? v : 1;
    for (int i = 0; i < 60; i++) r = (r + v / r) / 2;
    return r;
}
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
#include "pooling.h"
#include "reduction.h"

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
// As frameworks fuse: convolution with bias, with batch normalisation, with both; and with what is added, in one call. A leaky ReLU behind each.
static int fused(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    float one = 1, zero = 0, three = 3, *b = c.b, *numbers = c.sums;
    P p = 0, leaky = 0;
    const int sizes[4] = {1, K, 1, 1}, strides[4] = {K, 1, 1, 1};
    CALL(miopenCreateTensorDescriptor, &p), CALL(miopenSetTensorDescriptor, p, 1, 4, sizes, strides);
    CALL(miopenCreateActivationDescriptor, &leaky), CALL(miopenSetActivationDescriptor, leaky, 8, 0.5, 0.0, 0.0);
    for (int i = 0; i < K; i++) b[i] = (float)i * 4 - 9, numbers[i] = 1 + (float)(i % 3), numbers[K + i] = (float)i - 2;
    static float before[YS];
    for (int kind = 0; kind < 4; kind++) {
        for (int i = 0; i < YS; i++) before[i] = c.yd[i];
        expect(&c, 0);
        for (int n = 0; n < N; n++) for (int k = 0; k < K; k++) for (int o = 0; o < OH; o++) for (int q = 0; q < OW; q++) {
            float *it = &c.want[at(y_strides, n, k, o, q)];
            if (kind == 3) *it = *it * 3 + before[at(y_strides, n, k, o, q)];
            if (kind != 1) *it += b[k];
            if (kind == 1 || kind == 2) *it = (*it - numbers[K + k]) / (float)root(numbers[k] + 1e-3f) * numbers[k] + b[k];
            if (*it < 0) *it *= 0.5f;
        }
        if (kind == 3) {
            // What is added is the result's own place, read before it is written.
            static float added[YS];
            P z = 0;
#ifdef REAL_HIP
            CHECK(hipHostMalloc(&z, sizeof added, 0) == 0);
#else
            z = added;
#endif
            memcpy(z, before, sizeof added);
            CHECK(CALL(miopenConvolutionBiasActivationForward, c.handle, &three, c.x, c.xd, c.w, c.wd, c.it, 1, (P)0, (size_t)0, &one, c.y, z, p, b, leaky, c.y, c.yd) == 0);
            CHECK(compare(c.yd, c.want, YS));
            continue;
        }
        P plan = 0, convolution = 0, bias = 0, norm = 0, activation = 0, arguments = 0;
        size_t bytes = 99;
        CHECK(CALL(miopenCreateFusionPlan, &plan, 0, c.x) == 0 && CALL(miopenCreateOpConvForward, plan, &convolution, c.it, c.w) == 0);
        CHECK(kind == 1 || CALL(miopenCreateOpBiasForward, plan, &bias, p) == 0);
        CHECK(kind == 0 || CALL(miopenCreateOpBatchNormInference, plan, &norm, 1, p) == 0);
        CHECK(CALL(miopenCreateOpActivationForward, plan, &activation, 8) == 0);
        CHECK(CALL(miopenCompileFusionPlan, c.handle, plan) == 0);
        CHECK(CALL(miopenFusionPlanGetWorkSpaceSize, c.handle, plan, &bytes, 1) == 0 && bytes == WORKSPACE);
        CHECK(CALL(miopenCreateOperatorArgs, &arguments) == 0 && CALL(miopenSetOpArgsConvForward, arguments, convolution, &one, &zero, c.wd) == 0);
        if (bias) CALL(miopenSetOpArgsBiasForward, arguments, bias, &one, &zero, b);
        if (norm) CALL(miopenSetOpArgsBatchNormInference, arguments, norm, &one, &zero, numbers, b, numbers + K, numbers, 1e-3);
        // Nothing was given to the activation yet.
        CHECK(CALL(miopenExecuteFusionPlan, c.handle, plan, c.x, c.xd, c.y, c.yd, arguments) == 3);
        CALL(miopenSetOpArgsActivForward, arguments, activation, &one, &zero, 0.5, 0.0, 0.0);
        CHECK(CALL(miopenExecuteFusionPlan, c.handle, plan, c.x, c.xd, c.y, c.yd, arguments) == 0);
        CHECK(compare(c.yd, c.want, YS));
        CHECK(CALL(miopenDestroyFusionPlan, plan) == 0 && CALL(miopenDestroyOperatorArgs, arguments) == 0);
    }
    return 0;
}
// "find 2.0": searches, solutions that are saved and loaded, and objects of MIOpen's own.
typedef struct { int id; P *descriptor; P buffer; } Argument;
static int solutions(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    const int sizes[3] = {YS, XS, WS};
    float *const results[3] = {c.yd, c.xd, c.wd};
    P other = 0, foreign = malloc(8), options = 0;
    for (int direction = 0; direction < 3; direction++) {
        P problem = 0, solution = 0, again = 0;
        size_t count = 77, bytes = 99, limited = 99;
        float time = -1;
        uint64_t id = 0;
        CHECK(CALL(miopenCreateConvProblem, &problem, c.it, direction) == 0);
        // Without its tensors it is MIOpen's to complain.
        CHECK(CALL(miopenFindSolutions, c.handle, problem, (P)0, &solution, &count, (size_t)1) == 42);
        CHECK(CALL(miopenSetProblemTensorDescriptor, problem, 1, c.x) == 0 && CALL(miopenSetProblemTensorDescriptor, problem, 2, c.w) == 0);
        CHECK(CALL(miopenSetProblemTensorDescriptor, problem, 3, c.y) == 0);
        CHECK(CALL(miopenFindSolutions, c.handle, problem, (P)0, (P)0, &count, (size_t)1) == 3);
        CHECK(CALL(miopenFindSolutions, c.handle, problem, (P)0, &solution, &count, (size_t)5) == 0 && count == 1 && solution);
        CHECK(CALL(miopenGetSolutionWorkspaceSize, solution, &bytes) == 0 && CALL(miopenGetSolutionTime, solution, &time) == 0 && time >= 0);
        CHECK(CALL(miopenGetSolutionSolverId, solution, &id) == 0 && id == 85u + (unsigned)direction);
        Argument given[3] = {{1, 0, c.xd}, {2, 0, c.wd}, {3, &c.y, c.yd}};
        expect(&c, direction);
        CHECK(CALL(miopenRunSolution, c.handle, solution, (size_t)3, given, (P)0, (size_t)0) == 0 && compare(results[direction], c.want, sizes[direction]));
        // Saved, destroyed, loaded: it computes as before.
        CHECK(CALL(miopenGetSolutionSize, solution, &bytes) == 0 && bytes > 0);
        char *text = malloc(bytes);
        CHECK(CALL(miopenSaveSolution, solution, text) == 0 && CALL(miopenDestroySolution, solution) == 0 && CALL(miopenDestroySolution, solution) == 42);
        CHECK(CALL(miopenLoadSolution, &again, text, bytes) == 0);
        expect(&c, direction);
        CHECK(CALL(miopenRunSolution, c.handle, again, (size_t)3, given, (P)0, (size_t)0) == 0 && compare(results[direction], c.want, sizes[direction]));
        CHECK(CALL(miopenRunSolution, c.handle, again, (size_t)2, given, (P)0, (size_t)0) == 3);
        CHECK(CALL(miopenCreateFindOptions, &options) == 0 && CALL(miopenSetFindOptionWorkspaceLimit, options, (size_t)16) == 0);
        CHECK(CALL(miopenFindSolutions, c.handle, problem, options, &solution, (P)0, (size_t)1) == 0);
        CHECK(CALL(miopenGetSolutionWorkspaceSize, solution, &limited) == 0 && limited <= 16);
        // Joined to another problem nobody computes it here. A refusal says that nothing was found: some callers read the number whatever the status.
        CHECK(CALL(miopenCreateSoftmaxProblem, &other, (P)0, 0) == 0 && CALL(miopenFuseProblems, problem, other) == 0);
        count = 77;
        CHECK(CALL(miopenFindSolutions, c.handle, problem, (P)0, &solution, &count, (size_t)1) == 6 && count == 0);
        CHECK(CALL(miopenDestroyProblem, problem) == 0);
    }
    // MIOpen's own problems and solutions go to MIOpen; a solution that it stored is refused on this card.
    CHECK(CALL(miopenFindSolutions, c.handle, other, (P)0, &foreign, (P)0, (size_t)1) == 42);
    CHECK(CALL(miopenRunSolution, c.handle, foreign, (size_t)0, (P)0, (P)0, (size_t)0) == 42 && CALL(miopenDestroySolution, foreign) == 42);
    CHECK(CALL(miopenLoadSolution, &other, "MIOpen's", (size_t)8) == 6);
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
    P plan = 0, op = 0, deep = 0;
    CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, (P)0, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 3);
    CHECK(CALL(miopenConvolutionForward, c.handle, (P)0, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 3);
    CHECK(CALL(miopenConvolutionForward, (P)0, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 3);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, (P)0, c.it, c.y, &bytes) == 3);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, (P)0, c.y, &bytes) == 3);
    CHECK(CALL(miopenConvolutionForwardGetWorkSpaceSize, c.handle, c.w, c.x, c.it, c.y, (P)0) == 3);
    CHECK(CALL(miopenFindConvolutionForwardAlgorithm, c.handle, c.x, c.xd, c.w, c.wd, c.it, c.y, c.yd, 0, &count, &found, (P)0, (size_t)0, false) == 3);
    CHECK(CALL(miopenFindConvolutionForwardAlgorithm, c.handle, c.x, c.xd, c.w, c.wd, c.it, c.y, c.yd, 1, (P)0, &found, (P)0, (size_t)0, false) == 3);
    // Fusion plans: a convolution behind its activation is refused at compilation; without one it is MIOpen's own.
    CHECK(CALL(miopenCreateFusionPlan, &plan, 0, c.x) == 0 && CALL(miopenCreateOpActivationForward, plan, &op, 3) == 0);
    CHECK(CALL(miopenCompileFusionPlan, c.handle, plan) == 42);
    CHECK(CALL(miopenCreateOpConvForward, plan, &op, c.it, c.w) == 0 && CALL(miopenCompileFusionPlan, c.handle, plan) == 8);
    CHECK(CALL(miopenDestroyFusionPlan, plan) == 0);
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
// Batch normalisation of x, which has gaps, into y: by channels and by positions, in three versions of each call. A ReLU in the third.
typedef struct { float mean[C * H * W], inverse[C * H * W], scale[C * H * W], bias[C * H * W], running[2][C * H * W], gradient[2][C * H * W], dy[XS], dx[XS], y[XS], want[XS]; } Norm;
static int unit_of(int mode, int ch, int h, int v) { return mode ? ch : (ch * H + h) * W + v; }
#define EACH for (int n = 0; n < N; n++) for (int ch = 0; ch < C; ch++) for (int h = 0; h < H; h++) for (int v = 0; v < W; v++)
static int norms(void) {
    Case *place = room();
    CHECK(place != NULL);
    int line = prepare(&c, 0);
    if (line) return line;
    Norm *o = 0;
#ifdef REAL_HIP
    CHECK(hipHostMalloc((void **)&o, sizeof *o, 0) == 0);
#else
    o = malloc(sizeof *o);
#endif
    const int by_channel[4] = {1, C, 1, 1}, by_position[4] = {1, C, H, W}, packed[2][4] = {{C * H * W, H * W, W, 1}, {C, 1, 1, 1}};
    float one = 1, zero = 0, two = 2;
    P p = 0, relu = 0, d = 0;
    // Rows with gaps, which our kernels leave to the CPU, and channels last.
    const int lies[2][4] = {{200, 45, 7, 1}, {130, 1, 20, 4}};
    CALL(miopenCreateTensorDescriptor, &d);
    CALL(miopenCreateTensorDescriptor, &p), CALL(miopenCreateActivationDescriptor, &relu), CALL(miopenSetActivationDescriptor, relu, 3, 1.0, 1.0, 1.0);
    const double epsilon = 1e-3, factor = 0.25;
    for (int mode = 0; mode < 2; mode++) for (int version = 1; version <= 3; version++) {
        CALL(miopenSetTensorDescriptor, p, 1, 4, mode ? by_channel : by_position, packed[mode]);
        const int *s = lies[version > 1];
        CALL(miopenSetTensorDescriptor, d, 1, 4, x_sizes, s);
        const int units = mode ? C : C * H * W;
        double mean[C * H * W] = {0}, variance[C * H * W] = {0}, sums[2][C * H * W] = {{0}}, count = mode ? N * H * W : N;
        EACH mean[unit_of(mode, ch, h, v)] += c.xd[at(s, n, ch, h, v)] / count;
        EACH { double d = c.xd[at(s, n, ch, h, v)] - mean[unit_of(mode, ch, h, v)]; variance[unit_of(mode, ch, h, v)] += d * d / count; }
        for (int i = 0; i < units; i++) o->scale[i] = 0.5f + (float)(i % 5), o->bias[i] = (float)(i % 7) - 3, o->running[0][i] = 2, o->running[1][i] = 3;
        for (int i = 0; i < XS; i++) o->y[i] = o->dx[i] = o->want[i] = -77, o->dy[i] = (float)(i * 5 % 9) - 4;
        // A training step, with everything that it saves.
        EACH {
            int u = unit_of(mode, ch, h, v);
            double it = (c.xd[at(s, n, ch, h, v)] - mean[u]) / root(variance[u] + epsilon) * o->scale[u] + o->bias[u];
            o->want[at(s, n, ch, h, v)] = (float)(version == 3 && it < 0 ? 0 : it);
        }
        int status = version == 1 ? CALL(miopenBatchNormalizationForwardTraining, c.handle, mode, &one, &zero, d, c.xd, d, o->y, p, o->scale, o->bias, factor, o->running[0], o->running[1], epsilon, o->mean, o->inverse)
            : version == 2 ? CALL(miopenBatchNormalizationForwardTraining_V2, c.handle, mode, &one, &zero, d, c.xd, d, o->y, p, p, p, p, o->scale, o->bias, factor, o->running[0], o->running[1], epsilon, o->mean, o->inverse)
            : CALL(miopenBatchNormForwardTrainingActivation, c.handle, mode, &one, &zero, d, c.xd, d, o->y, p, p, p, p, o->scale, o->bias, factor, o->running[0], o->running[1], epsilon, o->mean, o->inverse, relu);
        CHECK(status == 0 && compare(o->y, o->want, XS));
        for (int i = 0; i < units; i++) {
            double unbiased = variance[i] * count / (count - 1);
            CHECK(fabs(o->mean[i] - mean[i]) < 1e-3 && fabs(o->inverse[i] * root(variance[i] + epsilon) - 1) < 1e-3);
            CHECK(fabs(o->running[0][i] - (0.75 * 2 + 0.25 * mean[i])) < 1e-3 && fabs(o->running[1][i] - (0.75 * 3 + 0.25 * unbiased)) < 1e-2);
        }
        // By estimates.
        for (int i = 0; i < units; i++) o->running[0][i] = (float)i, o->running[1][i] = 1 + (float)(i % 3);
        EACH {
            int u = unit_of(mode, ch, h, v);
            double it = (c.xd[at(s, n, ch, h, v)] - o->running[0][u]) / root(o->running[1][u] + epsilon) * o->scale[u] + o->bias[u];
            o->want[at(s, n, ch, h, v)] = (float)(version == 3 && it < 0 ? 0 : it);
        }
        status = version == 1 ? CALL(miopenBatchNormalizationForwardInference, c.handle, mode, &one, &zero, d, c.xd, d, o->y, p, o->scale, o->bias, o->running[0], o->running[1], epsilon)
            : version == 2 ? CALL(miopenBatchNormalizationForwardInference_V2, c.handle, mode, &one, &zero, d, c.xd, d, o->y, p, p, p, p, o->scale, o->bias, o->running[0], o->running[1], epsilon)
            : CALL(miopenBatchNormForwardInferenceActivation, c.handle, mode, &one, &zero, d, c.xd, d, o->y, p, p, p, p, o->scale, o->bias, o->running[0], o->running[1], epsilon, relu);
        CHECK(status == 0 && compare(o->y, o->want, XS));
        // The gradients; the second version has nothing saved.
        P saved_mean = version == 2 ? (P)0 : o->mean, saved_inverse = version == 2 ? (P)0 : o->inverse;
#define THROUGH(u, it) (version == 3 && (it) * o->scale[u] + o->bias[u] <= 0 ? 0.0 : o->dy[at(s, n, ch, h, v)])
        EACH {
            int u = unit_of(mode, ch, h, v);
            double it = (c.xd[at(s, n, ch, h, v)] - mean[u]) / root(variance[u] + epsilon);
            sums[0][u] += THROUGH(u, it) * it, sums[1][u] += THROUGH(u, it);
        }
        EACH {
            int u = unit_of(mode, ch, h, v);
            double it = (c.xd[at(s, n, ch, h, v)] - mean[u]) / root(variance[u] + epsilon);
            o->want[at(s, n, ch, h, v)] = (float)(o->scale[u] / root(variance[u] + epsilon) * (THROUGH(u, it) - (sums[1][u] + it * sums[0][u]) / count));
        }
        status = version == 1 ? CALL(miopenBatchNormalizationBackward, c.handle, mode, &one, &zero, &one, &zero, d, c.xd, d, o->dy, d, o->dx, p, o->scale, o->gradient[0], o->gradient[1], epsilon, saved_mean, saved_inverse)
            : version == 2 ? CALL(miopenBatchNormalizationBackward_V2, c.handle, mode, &one, &zero, &one, &zero, d, c.xd, d, o->dy, d, o->dx, p, p, p, p, o->scale, o->gradient[0], o->gradient[1], epsilon, saved_mean, saved_inverse)
            : CALL(miopenBatchNormBackwardActivation, c.handle, mode, &one, &zero, &one, &zero, d, c.xd, d, o->dy, d, o->dx, p, p, p, p, o->scale, o->bias, o->gradient[0], o->gradient[1], epsilon, saved_mean, saved_inverse, relu);
        CHECK(status == 0 && compare(o->dx, o->want, XS));
        for (int i = 0; i < units; i++) CHECK(fabs(o->gradient[0][i] - sums[0][i]) < 1e-2 && fabs(o->gradient[1][i] - sums[1][i]) < 1e-2);
        CHECK(CALL(miopenBatchNormalizationForwardInference, c.handle, mode, &two, &zero, d, c.xd, d, o->y, p, o->scale, o->bias, o->running[0], o->running[1], epsilon) == 3);
        CHECK(CALL(miopenBatchNormalizationForwardInference, c.handle, mode, &one, &zero, d, (P)0, d, o->y, p, o->scale, o->bias, o->running[0], o->running[1], epsilon) == 3);
    }
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
    CHECK(CALL(miopenBatchNormalizationForwardInference, c.handle, 1, (P)0, (P)0, c.x, c.xd, c.x, c.xd, c.x, c.xd, c.xd, c.xd, c.xd, 1e-3) == 42);
    CHECK(CALL(miopenPoolingForward, c.handle, (P)0, (P)0, c.x, c.xd, (P)0, c.y, c.yd, false, (P)0, (size_t)0) == 42);
    CHECK(CALL(miopenPoolingBackward, c.handle, (P)0, (P)0, c.y, c.yd, c.y, c.yd, c.x, c.xd, (P)0, c.x, c.xd, (P)0) == 42);
    CHECK(CALL(miopenReduceTensor, c.handle, (P)0, (P)0, (size_t)0, (P)0, (size_t)0, (P)0, c.x, c.xd, (P)0, c.y, c.yd) == 42);
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
// MIOpen's own convolution does not return: the program waits for it, and only a watchdog ends that.
static int hanging(void) {
    Case *place = room();
    int line = prepare(&c, 0);
    if (line) return line;
    float one = 1, zero = 0;
    CHECK(CALL(miopenConvolutionForward, c.handle, &one, c.x, c.xd, c.w, c.wd, c.it, 1, &zero, c.y, c.yd, (P)0, (size_t)0) == 0);
    settle();
    CHECK(!"it returned");
}
#endif

int run(const char *part) {
#ifdef REAL_HIP
    if (!strcmp(part, "sharing")) return sharing();
    if (!strcmp(part, "capturing")) return capturing();
    if (!strcmp(part, "hanging")) return hanging();
    if (!strcmp(part, "slow pool")) return slow_pool();
#endif

    if (!strcmp(part, "find")) return find_and_execute(0);
    if (!strcmp(part, "immediate")) return immediate();
    if (!strcmp(part, "immediate only")) return immediate_only();
    if (!strcmp(part, "fused")) return fused();
    if (!strcmp(part, "solutions")) return solutions();
    if (!strcmp(part, "faults")) return faults();
    if (!strcmp(part, "biases")) return biases();
    if (!strcmp(part, "three axes")) return deep();
    if (!strcmp(part, "norms")) return norms();
    if (!strcmp(part, "pools")) return pools();
    if (!strcmp(part, "reductions")) return reductions();
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
