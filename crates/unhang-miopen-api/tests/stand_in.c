// A stand-in for libMIOpen with the HIP runtime in it: the same interface, a naive convolution on the CPU behind it. It holds the
// caller to the interface's rules (a search before a convolution, the workspace that was asked for, descriptors that
// live). STAND_IN has it misbehave.
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FORWARD, DATA, WEIGHTS };
enum { GEMM = 0, SUCCESS = 0, BAD_PARAMETER = 3, INTERNAL = 5 };
enum { WORKSPACE = 256, TENSOR = 0x7e50, CONVOLUTION = 0xc0 };

typedef struct { int kind, type, size[4], stride[4]; } Tensor;
typedef struct { int kind, pad[2], stride[2], dilation[2], groups; } Convolution;
typedef struct { int algorithm; float time; size_t memory; } Performance;

static int searched = -1;

static bool mood(const char *name) {
    const char *set = getenv("STAND_IN");
    return set != NULL && strcmp(set, name) == 0;
}

int hipGetDeviceCount(int *count) { *count = mood("nodevice") ? 0 : 1; return mood("nodevice") ? 100 : 0; }
int hipDeviceGetName(char *name, int length, int device) { (void)device; strncpy(name, "stand-in", (size_t)length); return 0; }
int hipRuntimeGetVersion(int *version) { *version = 60443484; return 0; }
int hipMalloc(void **address, size_t bytes) { *address = malloc(bytes); return *address == NULL ? 2 : 0; }
int hipFree(void *address) { free(address); return 0; }
int hipMemcpy(void *to, const void *from, size_t bytes, int kind) {
    if (kind != 1 && kind != 2) return 1;
    memcpy(to, from, bytes);
    if (kind == 2 && mood("garble")) *(char *)to ^= 1;
    return 0;
}
int hipEventCreate(void **event) { *event = malloc(1); return 0; }
int hipEventRecord(void *event, void *stream) { (void)event; return stream == NULL ? 0 : 400; }
int hipEventQuery(void *event) { (void)event; return mood("hang") ? 600 : 0; }
int hipEventElapsedTime(float *milliseconds, void *from, void *to) { (void)from, (void)to; *milliseconds = 0.5f; return 0; }
int hipEventDestroy(void *event) { free(event); return 0; }

int miopenGetVersion(size_t *major, size_t *minor, size_t *patch) { *major = 3, *minor = 4, *patch = 0; return 0; }
int miopenCreate(void **handle) { *handle = malloc(1); return SUCCESS; }
int miopenCreateTensorDescriptor(void **tensor) { *tensor = calloc(1, sizeof(Tensor)); return SUCCESS; }
int miopenSetTensorDescriptor(Tensor *tensor, int type, int count, const int *sizes, const int *strides) {
    if (count != 4) return BAD_PARAMETER;
    tensor->kind = TENSOR, tensor->type = type;
    memcpy(tensor->size, sizes, sizeof tensor->size);
    memcpy(tensor->stride, strides, sizeof tensor->stride);
    return SUCCESS;
}
int miopenDestroyTensorDescriptor(Tensor *tensor) { tensor->kind = 0; free(tensor); return SUCCESS; }
int miopenCreateConvolutionDescriptor(void **convolution) { *convolution = calloc(1, sizeof(Convolution)); return SUCCESS; }
int miopenInitConvolutionDescriptor(Convolution *it, int mode, int ph, int pw, int sh, int sw, int dh, int dw) {
    if (mode != 0) return BAD_PARAMETER;
    *it = (Convolution){CONVOLUTION, {ph, pw}, {sh, sw}, {dh, dw}, 1};
    return SUCCESS;
}
int miopenSetConvolutionGroupCount(Convolution *it, int groups) { it->groups = groups; return SUCCESS; }
int miopenDestroyConvolutionDescriptor(Convolution *it) { it->kind = 0; free(it); return SUCCESS; }

static double get(const Tensor *t, const void *data, size_t at) {
    if (t->type == 1) return ((const float *)data)[at];
    if (t->type == 0) return ((const _Float16 *)data)[at];
    uint32_t bits = (uint32_t)((const uint16_t *)data)[at] << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static void set(const Tensor *t, void *data, size_t at, double value) {
    if (t->type == 1) ((float *)data)[at] = (float)value;
    else if (t->type == 0) ((_Float16 *)data)[at] = (_Float16)value;
    else {
        float single = (float)value;
        uint32_t bits;
        memcpy(&bits, &single, 4);
        ((uint16_t *)data)[at] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}
static size_t offset(const Tensor *t, int a, int b, int c, int d) {
    return (size_t)a * t->stride[0] + (size_t)b * t->stride[1] + (size_t)c * t->stride[2] + (size_t)d * t->stride[3];
}

// Every product of an element of x and one of w, added to one of y. The result is whichever of the three the direction
// writes.
static void convolve(int direction, const Convolution *it, const Tensor *t[3], void *data[3]) {
    const Tensor *x = t[0], *w = t[1], *y = t[2];
    int result = direction == FORWARD ? 2 : direction == DATA ? 0 : 1;
    const Tensor *r = t[result];
    size_t count = (size_t)r->size[0] * r->size[1] * r->size[2] * r->size[3];
    double *sums = calloc(count, sizeof *sums);
    int in = x->size[1] / it->groups, out = y->size[1] / it->groups;
    for (int n = 0; n < y->size[0]; n++) for (int k = 0; k < y->size[1]; k++)
    for (int p = 0; p < y->size[2]; p++) for (int q = 0; q < y->size[3]; q++)
    for (int c = 0; c < in; c++) for (int i = 0; i < w->size[2]; i++) for (int j = 0; j < w->size[3]; j++) {
        int h = p * it->stride[0] + i * it->dilation[0] - it->pad[0], v = q * it->stride[1] + j * it->dilation[1] - it->pad[1];
        if (h < 0 || h >= x->size[2] || v < 0 || v >= x->size[3]) continue;
        size_t at[3] = {offset(x, n, k / out * in + c, h, v), offset(w, k, c, i, j), offset(y, n, k, p, q)};
        double product = 1;
        for (int operand = 0; operand < 3; operand++)
            if (operand != result) product *= get(t[operand], data[operand], at[operand]);
        sums[at[result]] += product;
    }
    for (size_t at = 0; at < count; at++) set(r, data[result], at, mood("wrong") ? -sums[at] : sums[at]);
    free(sums);
}

static bool alive(const Tensor *a, const Tensor *b, const Convolution *it, const Tensor *c) {
    return a->kind == TENSOR && b->kind == TENSOR && c->kind == TENSOR && it->kind == CONVOLUTION && a->type == c->type;
}
static int search(int direction, const Tensor *a, const Tensor *b, const Convolution *it, const Tensor *c, int most, int *count,
                  Performance *results, void *workspace, size_t bytes, bool exhaustive) {
    if (!alive(a, b, it, c) || most < 1 || workspace == NULL || bytes != WORKSPACE || exhaustive) return BAD_PARAMETER;
    if (mood("error")) return INTERNAL;
    while (mood("hangfind")) sleep(1);
    memset(workspace, 1, bytes);
    *count = mood("none") ? 0 : 1;
    results[0] = (Performance){GEMM, 0.25f, WORKSPACE};
    searched = direction;
    return SUCCESS;
}
static int execute(int direction, const float *alpha, const float *beta, int algorithm, const Tensor *a, const Tensor *b,
                   const Convolution *it, const Tensor *c, void *workspace, size_t bytes) {
    bool asked = searched == direction && algorithm == GEMM && *alpha == 1 && *beta == 0;
    return asked && alive(a, b, it, c) && workspace != NULL && bytes == WORKSPACE ? SUCCESS : BAD_PARAMETER;
}

#define SIZE(name, first, second, third) \
    int name(void *handle, Tensor *first, Tensor *second, Convolution *it, Tensor *third, size_t *bytes) { \
        *bytes = WORKSPACE; \
        return handle != NULL && alive(first, second, it, third) ? SUCCESS : BAD_PARAMETER; \
    }
// The forward one has the filter first: a filter of another shape than the input's is recognised by its channels.
int miopenConvolutionForwardGetWorkSpaceSize(void *handle, Tensor *w, Tensor *x, Convolution *it, Tensor *y, size_t *bytes) {
    *bytes = WORKSPACE;
    bool right = alive(w, x, it, y) && w->size[0] == y->size[1] && w->size[1] * it->groups == x->size[1];
    return handle != NULL && right ? SUCCESS : BAD_PARAMETER;
}
SIZE(miopenConvolutionBackwardDataGetWorkSpaceSize, dy, w, dx)
SIZE(miopenConvolutionBackwardWeightsGetWorkSpaceSize, dy, x, dw)

#define CALLS(Name, direction, first, second, third) \
    int miopenFindConvolution##Name##Algorithm(void *handle, Tensor *at, void *a, Tensor *bt, void *b, Convolution *it, Tensor *ct, \
                                               void *c, int most, int *count, Performance *results, void *workspace, size_t bytes, \
                                               bool exhaustive) { \
        (void)handle, (void)a, (void)b, (void)c; \
        return search(direction, at, bt, it, ct, most, count, results, workspace, bytes, exhaustive); \
    } \
    int miopenConvolution##Name(void *handle, const float *alpha, Tensor *at, void *a, Tensor *bt, void *b, Convolution *it, \
                                int algorithm, const float *beta, Tensor *ct, void *c, void *workspace, size_t bytes) { \
        (void)handle; \
        const Tensor *tensors[3]; \
        void *data[3]; \
        tensors[first] = at, tensors[second] = bt, tensors[third] = ct; \
        data[first] = a, data[second] = b, data[third] = c; \
        int code = execute(direction, alpha, beta, algorithm, at, bt, it, ct, workspace, bytes); \
        if (code == SUCCESS) convolve(direction, it, tensors, data); \
        return code; \
    }
CALLS(Forward, FORWARD, 0, 1, 2)
CALLS(BackwardData, DATA, 2, 1, 0)
CALLS(BackwardWeights, WEIGHTS, 2, 0, 1)
