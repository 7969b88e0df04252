// The cost of a convolution call through libunhang_miopen.so over a launch by HIP itself, in processor time of the
// calling thread. It times a launch of an empty kernel, a small convolution that was computed before, and a MIOpen
// query, in turns.
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef void *P;
int hipHostMalloc(P *, size_t, unsigned), hipDeviceSynchronize(void), hipModuleLoadData(P *, const void *), hipModuleGetFunction(P *, P, const char *);
int hipModuleLaunchKernel(P, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, P, P *, P *);
int hiprtcCreateProgram(P *, const char *, const char *, int, const char **, const char **), hiprtcCompileProgram(P, int, const char **);
int hiprtcGetCodeSize(P, size_t *), hiprtcGetCode(P, char *);
int miopenCreate(P *), miopenCreateTensorDescriptor(P *), miopenSetTensorDescriptor(P, int, int, const int *, const int *), miopenCreateConvolutionDescriptor(P *);
int miopenInitConvolutionNdDescriptor(P, int, const int *, const int *, const int *, int), miopenConvolutionForwardGetWorkSpaceSize(P, P, P, P, P, size_t *);
int miopenConvolutionForward(P, P, P, P, P, P, P, int, P, P, P, P, size_t);

#define CHECK(condition) do { if (!(condition)) { fprintf(stderr, "overhead.c:%d: %s\n", __LINE__, #condition); exit(1); } } while (0)
enum { ROUNDS = 21, CALLS = 64 };

static P function, handle, x, w, y, convolution, memory;
static float one = 1, zero = 0;

static void launch(void) {
    struct { char bytes[128]; } shape = {{0}};
    P a = memory, b = memory, c = memory, d = memory;
    P arguments[] = {&a, &b, &c, &d, &shape};
    CHECK(hipModuleLaunchKernel(function, 1, 1, 1, 64, 1, 1, 0, 0, arguments, 0) == 0);
}
static void convolve(void) { CHECK(miopenConvolutionForward(handle, &one, x, memory, w, memory, convolution, 1, &zero, y, (char *)memory + 4096, 0, 0) == 0); }
static void ask(void) {
    size_t bytes;
    CHECK(miopenConvolutionForwardGetWorkSpaceSize(handle, w, x, convolution, y, &bytes) == 0);
}

static double microseconds(void (*call)(void)) {
    struct timespec before, after;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &before);
    for (int i = 0; i < CALLS; i++) call();
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &after);
    CHECK(hipDeviceSynchronize() == 0);
    return ((double)(after.tv_sec - before.tv_sec) * 1e9 + (double)(after.tv_nsec - before.tv_nsec)) / 1e3 / CALLS;
}
static int ascending(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

int main(void) {
    const char *options[] = {"--gpu-architecture=gfx1010"}, *source =
        "struct Shape { char bytes[128]; }; extern \"C\" __global__ void nothing(float*, float*, float*, float*, Shape) {}";
    const int x_sizes[4] = {1, 1, 1, 1}, strides[4] = {1, 1, 1, 1}, zeros[2] = {0, 0}, ones[2] = {1, 1};
    P program, module;
    size_t size;
    CHECK(hiprtcCreateProgram(&program, source, "nothing.hip", 0, 0, 0) == 0 && hiprtcCompileProgram(program, 1, options) == 0);
    CHECK(hiprtcGetCodeSize(program, &size) == 0);
    char *code = malloc(size);
    CHECK(hiprtcGetCode(program, code) == 0 && hipModuleLoadData(&module, code) == 0 && hipModuleGetFunction(&function, module, "nothing") == 0);
    CHECK(hipHostMalloc(&memory, 8192, 0) == 0);
    ((float *)memory)[0] = 1;
    miopenCreate(&handle), miopenCreateTensorDescriptor(&x), miopenCreateTensorDescriptor(&w), miopenCreateTensorDescriptor(&y);
    miopenSetTensorDescriptor(x, 1, 4, x_sizes, strides), miopenSetTensorDescriptor(w, 1, 4, x_sizes, strides), miopenSetTensorDescriptor(y, 1, 4, x_sizes, strides);
    miopenCreateConvolutionDescriptor(&convolution), miopenInitConvolutionNdDescriptor(convolution, 2, zeros, ones, ones, 0);
    void (*const calls[3])(void) = {launch, convolve, ask};
    double times[3][ROUNDS], over[ROUNDS];
    for (int i = 0; i < 3; i++) microseconds(calls[i]);
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3; i++) times[(i + round) % 3][round] = microseconds(calls[(i + round) % 3]);
        over[round] = times[1][round] - times[0][round];
    }
    for (int i = 0; i < 3; i++) qsort(times[i], ROUNDS, sizeof(double), ascending);
    qsort(over, ROUNDS, sizeof(double), ascending);
    const char *names[3] = {"a launch by HIP alone", "a convolution call, launch included", "a question (workspace)"};
    for (int i = 0; i < 3; i++) printf("%-38s %6.2f us (%.2f to %.2f)\n", names[i], times[i][ROUNDS / 2], times[i][ROUNDS / 10], times[i][ROUNDS - 1 - ROUNDS / 10]);
    printf("%-38s %6.2f us (%.2f to %.2f)\n", "a convolution call over a launch", over[ROUNDS / 2], over[ROUNDS / 10], over[ROUNDS - 1 - ROUNDS / 10]);
    return 0;
}
