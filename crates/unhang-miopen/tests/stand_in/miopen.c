// A stand-in for libMIOpen: descriptors with getters, and its own status (42) from everything that computes, so that a caller
// knows when it was reached. Descriptors bear the library's mark: whoever asks one library about another's has crashed.
// -DHANGS: on a real HIP runtime, a convolution forward that is a kernel without an end. -DMARK=n: the mark. -DWITHOUT_BYTES: a library that lacks a getter.
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef MARK
#define MARK 1
#endif
enum { REACHED = 42 };
typedef struct { int mark, type, axes, sizes[6], strides[6]; size_t bytes; } Tensor;
typedef struct { int mark, mode, axes, pad[3], stride[3], dilation[3], groups; } Convolution;
typedef struct { int mark; void *stream; } Handle;
static void *marked(void *it) { if (((Tensor *)it)->mark != MARK) abort(); return it; }

int miopenGetVersion(size_t *major, size_t *minor, size_t *patch) { *major = 3, *minor = 4, *patch = 0; return 0; }
int miopenCreateWithStream(Handle **handle, void *stream) { *handle = calloc(1, sizeof **handle); (*handle)->mark = MARK, (*handle)->stream = stream; return 0; }
int miopenCreate(Handle **handle) { return miopenCreateWithStream(handle, 0); }
int miopenGetStream(Handle *handle, void **stream) { *stream = ((Handle *)marked(handle))->stream; return 0; }
int miopenCreateTensorDescriptor(Tensor **it) { *it = calloc(1, sizeof **it); (*it)->mark = MARK; return 0; }
int miopenSetTensorDescriptor(Tensor *it, int type, int axes, const int *sizes, const int *strides) {
    marked(it);
    it->type = type, it->axes = axes, it->bytes = 1;
    for (int i = 0; i < axes; i++) it->sizes[i] = sizes[i], it->strides[i] = strides[i], it->bytes += (size_t)(sizes[i] - 1) * (size_t)strides[i];
    it->bytes *= type == 6 ? 8 : type == 1 ? 4 : type == 3 ? 1 : 2;
    return 0;
}
// What a descriptor of the second kind says beyond 31 bits no getter tells.
int miopenSetTensorDescriptorV2(Tensor *it, int type, int axes, const size_t *sizes, const size_t *strides) {
    int small[2][5];
    for (int i = 0; i < axes; i++) small[0][i] = (int)sizes[i], small[1][i] = (int)strides[i];
    miopenSetTensorDescriptor(it, type, axes, small[0], small[1]);
    it->bytes = 1;
    for (int i = 0; i < axes; i++) it->bytes += (sizes[i] - 1) * strides[i];
    it->bytes *= 4;
    return 0;
}
int miopenGetTensorDescriptorSize(Tensor *it, int *axes) { *axes = ((Tensor *)marked(it))->axes; return 0; }
int miopenGetTensorDescriptor(Tensor *it, int *type, int *sizes, int *strides) {
    marked(it);
    *type = it->type;
    memcpy(sizes, it->sizes, (size_t)it->axes * sizeof(int)), memcpy(strides, it->strides, (size_t)it->axes * sizeof(int));
    return 0;
}
#ifndef WITHOUT_BYTES
int miopenGetTensorNumBytes(Tensor *it, size_t *bytes) { *bytes = ((Tensor *)marked(it))->bytes; return 0; }
#endif
int miopenCreateConvolutionDescriptor(Convolution **it) { *it = calloc(1, sizeof **it); (*it)->mark = MARK, (*it)->groups = 1; return 0; }
int miopenInitConvolutionNdDescriptor(Convolution *it, int axes, const int *pad, const int *stride, const int *dilation, int mode) {
    marked(it);
    it->axes = axes, it->mode = mode;
    for (int i = 0; i < axes; i++) it->pad[i] = pad[i], it->stride[i] = stride[i], it->dilation[i] = dilation[i];
    return 0;
}
int miopenSetConvolutionGroupCount(Convolution *it, int groups) { ((Convolution *)marked(it))->groups = groups; return 0; }
int miopenGetConvolutionSpatialDim(Convolution *it, int *axes) { *axes = ((Convolution *)marked(it))->axes; return 0; }
int miopenGetConvolutionNdDescriptor(Convolution *it, int asked, int *axes, int *pad, int *stride, int *dilation, int *mode) {
    marked(it);
    if (asked < it->axes) return 3;
    *axes = it->axes, *mode = it->mode;
    for (int i = 0; i < it->axes; i++) pad[i] = it->pad[i], stride[i] = it->stride[i], dilation[i] = it->dilation[i];
    return 0;
}
int miopenGetConvolutionGroupCount(Convolution *it, int *groups) { *groups = ((Convolution *)marked(it))->groups; return 0; }
int miopenGetSolverIdConvAlgorithm(uint64_t id, int *algorithm) { *algorithm = 1; return id > 0 && id < 200 ? 0 : 3; }
int miopenCreateFusionPlan(void **plan, int direction, Tensor *input) { (void)direction, (void)input; *plan = malloc(1); return 0; }
int miopenDestroyFusionPlan(void *plan) { free(plan); return 0; }
int miopenCreateOpConvForward(void *plan, void **op, Convolution *it, Tensor *w) { (void)plan, (void)it, (void)w; *op = malloc(1); return 0; }
int miopenCreateOpActivationForward(void *plan, void **op, int mode) { (void)plan, (void)mode; *op = malloc(1); return 0; }
int miopenCreateOpActivationBackward(void *plan, void **op, int mode) { (void)plan, (void)mode; *op = malloc(1); return 0; }
int miopenCreateOpBiasForward(void *plan, void **op, Tensor *b) { (void)plan, (void)b; *op = malloc(1); return 0; }
int miopenCreateOpBatchNormInference(void *plan, void **op, int mode, Tensor *p) { (void)plan, (void)mode, (void)p; *op = malloc(1); return 0; }
int miopenCreateOpBatchNormForward(void *plan, void **op, int mode, bool running) { (void)plan, (void)mode, (void)running; *op = malloc(1); return 0; }
int miopenCreateOpBatchNormBackward(void *plan, void **op, int mode) { (void)plan, (void)mode; *op = malloc(1); return 0; }
int miopenCreateOperatorArgs(void **arguments) { *arguments = malloc(1); return 0; }
int miopenDestroyOperatorArgs(void *arguments) { free(arguments); return 0; }
int miopenSetOpArgsConvForward(void) { return 0; }
int miopenSetOpArgsActivForward(void) { return 0; }
int miopenSetOpArgsActivBackward(void) { return 0; }
int miopenSetOpArgsBiasForward(void) { return 0; }
int miopenSetOpArgsBatchNormInference(void) { return 0; }
int miopenSetOpArgsBatchNormForward(void) { return 0; }
int miopenSetOpArgsBatchNormBackward(void) { return 0; }
int miopenCompileFusionPlan(void *handle, void *plan) { (void)handle, (void)plan; return REACHED; }
int miopenExecuteFusionPlan(void) { return REACHED; }
int miopenFusionPlanGetWorkSpaceSize(void) { return REACHED; }
int miopenFusionPlanConvolutionGetAlgo(void) { return REACHED; }
int miopenFusionPlanConvolutionSetAlgo(void) { return REACHED; }
int miopenConvolutionBiasActivationForward(void) { return REACHED; }
int miopenCreateConvProblem(void **problem, Convolution *it, int direction) { (void)it, (void)direction; *problem = malloc(1); return 0; }
int miopenCreateSoftmaxProblem(void **problem, void *it, int direction) { (void)it, (void)direction; *problem = malloc(1); return 0; }
int miopenSetProblemTensorDescriptor(void *problem, int id, Tensor *it) { (void)problem, (void)id, (void)it; return 0; }
int miopenFuseProblems(void *one, void *other) { (void)one, (void)other; return 0; }
int miopenFindSolutions(void *handle, void *problem, void *options, void **solutions, size_t *count, size_t most) {
    (void)handle, (void)problem, (void)options, (void)solutions, (void)count, (void)most;
    return REACHED;
}
int miopenDestroyProblem(void *problem) { free(problem); return 0; }
int miopenCreateFindOptions(void **options) { *options = malloc(1); return 0; }
int miopenSetFindOptionWorkspaceLimit(void *options, size_t bytes) { (void)options, (void)bytes; return 0; }
int miopenDestroyFindOptions(void *options) { free(options); return 0; }
int miopenRunSolution(void) { return REACHED; }
int miopenDestroySolution(void) { return REACHED; }
int miopenGetSolutionSize(void) { return REACHED; }
int miopenSaveSolution(void) { return REACHED; }
int miopenLoadSolution(void) { return REACHED; }
int miopenGetSolutionWorkspaceSize(void) { return REACHED; }
int miopenGetSolutionTime(void) { return REACHED; }
int miopenGetSolutionSolverId(void) { return REACHED; }
typedef struct { int mark, mode; double alpha, beta, gamma; } Activation;
int miopenCreateActivationDescriptor(Activation **it) { *it = calloc(1, sizeof **it); (*it)->mark = MARK; return 0; }
int miopenSetActivationDescriptor(Activation *it, int mode, double alpha, double beta, double gamma) { marked(it); it->mode = mode, it->alpha = alpha, it->beta = beta, it->gamma = gamma; return 0; }
int miopenGetActivationDescriptor(Activation *it, int *mode, double *alpha, double *beta, double *gamma) { marked(it); *mode = it->mode, *alpha = it->alpha, *beta = it->beta, *gamma = it->gamma; return 0; }
int miopenBatchNormalizationForwardTraining(void) { return REACHED; }
int miopenBatchNormalizationForwardTraining_V2(void) { return REACHED; }
int miopenBatchNormForwardTrainingActivation(void) { return REACHED; }
int miopenBatchNormalizationForwardInference(void) { return REACHED; }
int miopenBatchNormalizationForwardInference_V2(void) { return REACHED; }
int miopenBatchNormForwardInferenceActivation(void) { return REACHED; }
int miopenBatchNormalizationBackward(void) { return REACHED; }
int miopenBatchNormalizationBackward_V2(void) { return REACHED; }
int miopenBatchNormBackwardActivation(void) { return REACHED; }
typedef struct { int mark, mode, axes, window[3], pad[3], stride[3], index, in_image; } Pooling;
int miopenCreatePoolingDescriptor(Pooling **it) { *it = calloc(1, sizeof **it); (*it)->mark = MARK; return 0; }
int miopenSetNdPoolingDescriptor(Pooling *it, int mode, int axes, const int *window, const int *pad, const int *stride) {
    marked(it);
    it->mode = mode, it->axes = axes, it->index = 0, it->in_image = axes == 3;
    for (int i = 0; i < axes; i++) it->window[i] = window[i], it->pad[i] = pad[i], it->stride[i] = stride[i];
    return 0;
}
int miopenSetPoolingIndexType(Pooling *it, int index) { ((Pooling *)marked(it))->index = index; return 0; }
int miopenGetPoolingIndexType(Pooling *it, int *index) { *index = ((Pooling *)marked(it))->index; return 0; }
int miopenSetPoolingWorkSpaceIndexMode(Pooling *it, int in_image) { ((Pooling *)marked(it))->in_image = in_image; return 0; }
int miopenGetPoolingWorkSpaceIndexMode(Pooling *it, int *in_image) { *in_image = ((Pooling *)marked(it))->in_image; return 0; }
// As MIOpen's own it copies what it is asked for; asked for more than there is, it would read behind a vector's end.
int miopenGetNdPoolingDescriptor(Pooling *it, int asked, int *mode, int *axes, int *window, int *pad, int *stride) {
    marked(it);
    if (asked > it->axes) abort();
    *mode = it->mode, *axes = it->axes;
    for (int i = 0; i < asked; i++) window[i] = it->window[i], pad[i] = it->pad[i], stride[i] = it->stride[i];
    return 0;
}
int miopenPoolingForward(void) { return REACHED; }
int miopenPoolingBackward(void) { return REACHED; }
typedef struct { int mark, op, type, nan, indices, index_type; } Reduction;
int miopenCreateReduceTensorDescriptor(Reduction **it) { *it = calloc(1, sizeof **it); (*it)->mark = MARK; return 0; }
int miopenSetReduceTensorDescriptor(Reduction *it, int op, int type, int nan, int indices, int index_type) { marked(it); *it = (Reduction){MARK, op, type, nan, indices, index_type}; return 0; }
int miopenGetReduceTensorDescriptor(Reduction *it, int *op, int *type, int *nan, int *indices, int *index_type) { marked(it); *op = it->op, *type = it->type, *nan = it->nan, *indices = it->indices, *index_type = it->index_type; return 0; }
int miopenReduceTensor(void) { return REACHED; }
int miopenActivationForward(void) { return REACHED; }
int miopenConvolutionForwardBias(void *h, void *a, Tensor *bt, void *b, void *be, Tensor *yt, void *y) { (void)h, (void)a, (void)bt, (void)b, (void)be, (void)yt, (void)y; return REACHED; }
int miopenConvolutionBackwardBias(void *h, void *a, Tensor *yt, void *y, void *be, Tensor *bt, void *b) { (void)h, (void)a, (void)bt, (void)b, (void)be, (void)yt, (void)y; return REACHED; }
#ifdef HANGS
int hiprtcCreateProgram(void **, const char *, const char *, int, const char **, const char **), hiprtcCompileProgram(void *, int, const char **);
int hiprtcGetCodeSize(void *, size_t *), hiprtcGetCode(void *, char *), hipModuleLoadData(void **, const void *), hipModuleGetFunction(void **, void *, const char *);
int hipModuleLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
static int execute(Handle *handle) {
    const char *options[] = {"--gpu-architecture=gfx1010"};
    void *program = 0, *module = 0, *function = 0;
    size_t size = 0;
    if (hiprtcCreateProgram(&program, "extern \"C\" __global__ void endless() { for (;;) __builtin_amdgcn_s_sleep(1); }", "endless.hip", 0, 0, 0)) return 7;
    if (hiprtcCompileProgram(program, 1, options) || hiprtcGetCodeSize(program, &size)) return 7;
    char *code = malloc(size);
    if (hiprtcGetCode(program, code) || hipModuleLoadData(&module, code) || hipModuleGetFunction(&function, module, "endless")) return 7;
    return hipModuleLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, handle->stream, 0, 0) ? 7 : 0;
}
#else
static int execute(Handle *handle) { (void)handle; return REACHED; }
#endif
#define CALLS(Name) \
    int miopenConvolution##Name##GetWorkSpaceSize(void *h, Tensor *a, Tensor *b, Convolution *it, Tensor *c, size_t *n) { (void)h, (void)a, (void)b, (void)it, (void)c, (void)n; return REACHED; } \
    int miopenFindConvolution##Name##Algorithm(void *h, Tensor *at, void *a, Tensor *bt, void *b, Convolution *it, Tensor *ct, void *c, int most, int *count, void *results, void *w, size_t n, bool e) { (void)h, (void)at, (void)a, (void)bt, (void)b, (void)it, (void)ct, (void)c, (void)most, (void)count, (void)results, (void)w, (void)n, (void)e; return REACHED; } \
    int miopenConvolution##Name(void *h, void *al, Tensor *at, void *a, Tensor *bt, void *b, Convolution *it, int algo, void *be, Tensor *ct, void *c, void *w, size_t n) { (void)h, (void)al, (void)at, (void)a, (void)bt, (void)b, (void)it, (void)algo, (void)be, (void)ct, (void)c, (void)w, (void)n; return execute(h); } \
    int miopenConvolution##Name##GetSolutionCount(void *h, Tensor *a, Tensor *b, Convolution *it, Tensor *c, size_t *n) { (void)h, (void)a, (void)b, (void)it, (void)c, (void)n; return REACHED; } \
    int miopenConvolution##Name##GetSolution(void *h, Tensor *a, Tensor *b, Convolution *it, Tensor *c, size_t most, size_t *n, void *s) { (void)h, (void)a, (void)b, (void)it, (void)c, (void)most, (void)n, (void)s; return REACHED; } \
    int miopenConvolution##Name##GetSolutionWorkspaceSize(void *h, Tensor *a, Tensor *b, Convolution *it, Tensor *c, uint64_t id, size_t *n) { (void)h, (void)a, (void)b, (void)it, (void)c, (void)id, (void)n; return REACHED; } \
    int miopenConvolution##Name##CompileSolution(void *h, Tensor *a, Tensor *b, Convolution *it, Tensor *c, uint64_t id) { (void)h, (void)a, (void)b, (void)it, (void)c, (void)id; return REACHED; } \
    int miopenConvolution##Name##Immediate(void *h, Tensor *at, void *a, Tensor *bt, void *b, Convolution *it, Tensor *ct, void *c, void *w, size_t n, uint64_t id) { (void)h, (void)at, (void)a, (void)bt, (void)b, (void)it, (void)ct, (void)c, (void)w, (void)n, (void)id; return REACHED; }
CALLS(Forward)
CALLS(BackwardData)
CALLS(BackwardWeights)
