// What HIP programs do, one part after another: `hip PART…` runs the parts and prints one line for each that is right.
// Built by a plain HIP compiler and linked against the real libamdhip64; nothing in it knows of an emulated card.
#include <hip/hip_runtime.h>
#include <hip/hiprtc.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#define CHECK(call)                                                                                    \
    do {                                                                                               \
        hipError_t error_ = (call);                                                                    \
        if (error_ != hipSuccess) {                                                                    \
            fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #call, hipGetErrorString(error_)); \
            exit(1);                                                                                   \
        }                                                                                              \
    } while (0)
#define EXPECT(condition)                                                           \
    do {                                                                            \
        if (!(condition)) {                                                         \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

__global__ void axpy(float a, const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] += a * x[i];
}

__global__ void reverse_in_lds(float* data, int n) {
    extern __shared__ float tile[];
    int i = threadIdx.x;
    tile[i] = data[blockIdx.x * n + i];
    __syncthreads();
    data[blockIdx.x * n + i] = tile[n - 1 - i];
}

__global__ void beyond_lds(float* data, int places) {
    extern __shared__ float tile[];
    int i = threadIdx.x;
    tile[i] = data[i];
    tile[i + places] = 7;
    __syncthreads();
    data[i] = tile[i] + tile[i + places];
}

__global__ void scratch(const int* places, int* result) {
    int table[64];
    for (int i = 0; i < 64; i++) table[i] = i * i + threadIdx.x;
    int sum = 0;
    for (int i = 0; i < 8; i++) {
        table[places[i] & 63] += i;
        sum += table[(places[i] + threadIdx.x) & 63];
    }
    result[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}

// Private memory of a chosen size: the compiler may not keep it in registers.
template <int Words>
__global__ void private_words(const int* places, int* result) {
    volatile int words[Words];
    for (int i = 0; i < Words; i++) words[i] = i * 3 + threadIdx.x;
    int item = blockIdx.x * blockDim.x + threadIdx.x;
    result[item] = words[places[item] % Words];
}

// An instruction that no chip has.
__global__ void illegal(int* result) {
    asm volatile(".long 0xbe80ff00");
    *result = 1;
}

__global__ void count(unsigned* totals, const unsigned char* keys, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) {
        atomicAdd(&totals[keys[i] & 7], 1u);
        atomicMax(&totals[8], (unsigned)i);
        atomicAdd((unsigned long long*)(totals + 10), 1ull << 20);
    }
}

__global__ void say(int n) {
    if (threadIdx.x < n) printf("lane %d of %d says %s\n", (int)threadIdx.x, n, "hello");
}

__global__ void store(int* address, int value) { *address = value; }

__global__ void spin(volatile int* flag) {
    while (*flag == 0) {
    }
}

__global__ void branches(const int* in, int* out, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    int value = in[i], steps = 0;
    while (value != 1 && steps < 100) {
        value = value & 1 ? 3 * value + 1 : value / 2;
        steps++;
    }
    out[i] = steps;
}

static std::vector<float> ramp(int n, float scale) {
    std::vector<float> values(n);
    for (int i = 0; i < n; i++) values[i] = scale * (i % 1009);
    return values;
}

template <typename T>
static T* device(size_t count) {
    T* pointer = nullptr;
    CHECK(hipMalloc((void**)&pointer, count * sizeof(T)));
    return pointer;
}

static void run_axpy(hipStream_t stream, int n) {
    auto x = ramp(n, 1), y = ramp(n, 0.5f), out = y;
    float *dx = device<float>(n), *dy = device<float>(n);
    CHECK(hipMemcpyAsync(dx, x.data(), n * 4, hipMemcpyHostToDevice, stream));
    CHECK(hipMemcpyAsync(dy, y.data(), n * 4, hipMemcpyHostToDevice, stream));
    axpy<<<(n + 255) / 256, 256, 0, stream>>>(2, dx, dy, n);
    CHECK(hipGetLastError());
    CHECK(hipMemcpyAsync(out.data(), dy, n * 4, hipMemcpyDeviceToHost, stream));
    CHECK(hipStreamSynchronize(stream));
    for (int i = 0; i < n; i++) EXPECT(out[i] == y[i] + 2 * x[i]);
    CHECK(hipFree(dx));
    CHECK(hipFree(dy));
}

static void part_launch() { run_axpy(nullptr, 5000); }

static void part_branches() {
    const int n = 300;
    std::vector<int> in(n), out(n);
    for (int i = 0; i < n; i++) in[i] = i + 1;
    int *din = device<int>(n), *dout = device<int>(n);
    CHECK(hipMemcpy(din, in.data(), n * 4, hipMemcpyHostToDevice));
    branches<<<(n + 63) / 64, 64>>>(din, dout, n);
    CHECK(hipMemcpy(out.data(), dout, n * 4, hipMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) {
        int value = in[i], steps = 0;
        while (value != 1 && steps < 100) value = value & 1 ? 3 * value + 1 : value / 2, steps++;
        EXPECT(out[i] == steps);
    }
}

static void part_copies() {
    for (size_t size : {1ul, 3ul, 64ul, 4095ul, 65537ul, 1000003ul, 5000000ul}) {
        std::vector<char> from(size), to(size);
        for (size_t i = 0; i < size; i++) from[i] = (char)(i * 7 + size);
        char *a = device<char>(size + 64), *b = device<char>(size + 64);
        CHECK(hipMemcpy(a + 1, from.data(), size, hipMemcpyHostToDevice));
        CHECK(hipMemcpy(b + 3, a + 1, size, hipMemcpyDeviceToDevice));
        CHECK(hipMemcpy(to.data(), b + 3, size, hipMemcpyDeviceToHost));
        EXPECT(from == to);
        CHECK(hipFree(a));
        CHECK(hipFree(b));
    }
    // Rectangles, with pinned and with plain memory.
    const int width = 100, height = 37;
    size_t pitch = 0;
    char *image = nullptr, *pinned = nullptr;
    CHECK(hipMallocPitch((void**)&image, &pitch, width, height));
    CHECK(hipHostMalloc((void**)&pinned, width * height));
    std::vector<char> rows(width * height), back(width * height);
    for (int i = 0; i < width * height; i++) pinned[i] = rows[i] = (char)(i * 3);
    CHECK(hipMemcpy2D(image, pitch, rows.data(), width, width, height, hipMemcpyHostToDevice));
    CHECK(hipMemcpy2D(back.data(), width, image, pitch, width, height, hipMemcpyDeviceToHost));
    EXPECT(rows == back);
    CHECK(hipMemset2D(image, pitch, 0, width, height));
    CHECK(hipMemcpy2D(image, pitch, pinned, width, width, height, hipMemcpyHostToDevice));
    memset(pinned, 0, width * height);
    CHECK(hipMemcpy2DAsync(pinned, width, image, pitch, width, height, hipMemcpyDeviceToHost, nullptr));
    CHECK(hipStreamSynchronize(nullptr));
    EXPECT(memcmp(pinned, rows.data(), rows.size()) == 0);
    // The program's own memory, registered.
    std::vector<float> own(100000, 3);
    float* view = nullptr;
    CHECK(hipHostRegister(own.data(), own.size() * 4, hipHostRegisterMapped));
    CHECK(hipHostGetDevicePointer((void**)&view, own.data(), 0));
    axpy<<<(own.size() + 255) / 256, 256>>>(1, view, view, (int)own.size());
    CHECK(hipDeviceSynchronize());
    CHECK(hipHostUnregister(own.data()));
    for (float value : own) EXPECT(value == 6);
    CHECK(hipFree(image));
    CHECK(hipHostFree(pinned));
}

static void part_memset() {
    const int n = 100001;
    unsigned char* bytes = device<unsigned char>(n * 4);
    std::vector<unsigned char> host(n * 4);
    CHECK(hipMemset(bytes, 0x5a, n));
    CHECK(hipMemsetD32((hipDeviceptr_t)(bytes + 100004), 0x01020304, 1000));
    CHECK(hipMemsetD16((hipDeviceptr_t)(bytes + 200000), 0x0a0b, 501));
    CHECK(hipMemcpy(host.data(), bytes, n * 4, hipMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(host[i] == 0x5a);
    for (int i = 0; i < 4000; i++) EXPECT(host[100004 + i] == 4 - i % 4);
    for (int i = 0; i < 1002; i++) EXPECT(host[200000 + i] == (i % 2 ? 0x0a : 0x0b));
    CHECK(hipFree(bytes));
}

static void part_streams() {
    hipStream_t streams[6];
    for (auto& stream : streams) CHECK(hipStreamCreateWithFlags(&stream, hipStreamNonBlocking));
    std::vector<std::thread> threads;
    for (auto& stream : streams) threads.emplace_back([&] { run_axpy(stream, 3000); });
    for (auto& thread : threads) thread.join();
    // One stream's kernel waits for what another stream's writes: both make progress.
    int* flag = nullptr;
    CHECK(hipHostMalloc((void**)&flag, 4, hipHostMallocCoherent));
    *flag = 0;
    spin<<<1, 1, 0, streams[0]>>>(flag);
    CHECK(hipStreamQuery(streams[0]) == hipErrorNotReady ? hipSuccess : hipErrorUnknown);
    store<<<1, 1, 0, streams[1]>>>(flag, 1);
    CHECK(hipStreamSynchronize(streams[0]));
    for (auto& stream : streams) CHECK(hipStreamDestroy(stream));
    CHECK(hipHostFree(flag));
}

static void part_events() {
    hipStream_t first, second;
    hipEvent_t start, middle, stop;
    CHECK(hipStreamCreate(&first));
    CHECK(hipStreamCreate(&second));
    CHECK(hipEventCreate(&start));
    CHECK(hipEventCreateWithFlags(&middle, hipEventDisableTiming));
    CHECK(hipEventCreate(&stop));
    const int n = 20000;
    float *x = device<float>(n), *y = device<float>(n);
    CHECK(hipMemset(x, 0, n * 4));
    CHECK(hipMemset(y, 0, n * 4));
    auto began = std::chrono::steady_clock::now();
    CHECK(hipEventRecord(start, first));
    auto ones = std::vector<float>(n, 1);
    CHECK(hipMemcpyAsync(x, ones.data(), n * 4, hipMemcpyHostToDevice, first));
    CHECK(hipEventRecord(middle, first));
    CHECK(hipStreamWaitEvent(second, middle, 0));
    axpy<<<(n + 255) / 256, 256, 0, second>>>(3, x, y, n);
    CHECK(hipEventRecord(stop, second));
    CHECK(hipEventSynchronize(stop));
    float milliseconds = -1;
    CHECK(hipEventElapsedTime(&milliseconds, start, stop));
    double elapsed = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began).count();
    // The kernel alone takes the emulator most of this time; a card's own times are within what the host has waited.
    EXPECT(milliseconds > elapsed / 1000 && milliseconds <= elapsed);
    EXPECT(hipEventQuery(stop) == hipSuccess);
    std::vector<float> out(n);
    CHECK(hipMemcpy(out.data(), y, n * 4, hipMemcpyDeviceToHost));
    for (float value : out) EXPECT(value == 3);
}

static void part_graph() {
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    const int n = 4000;
    auto x = ramp(n, 1);
    std::vector<float> out(n);
    float *dx = device<float>(n), *dy = device<float>(n);
    CHECK(hipMemset(dy, 0, n * 4));
    CHECK(hipMemcpy(dx, x.data(), n * 4, hipMemcpyHostToDevice));
    hipGraph_t graph;
    hipGraphExec_t replay;
    CHECK(hipStreamBeginCapture(stream, hipStreamCaptureModeGlobal));
    axpy<<<(n + 255) / 256, 256, 0, stream>>>(1, dx, dy, n);
    axpy<<<(n + 255) / 256, 256, 0, stream>>>(1, dx, dy, n);
    CHECK(hipStreamEndCapture(stream, &graph));
    CHECK(hipGraphInstantiate(&replay, graph, nullptr, nullptr, 0));
    for (int i = 0; i < 3; i++) CHECK(hipGraphLaunch(replay, stream));
    CHECK(hipStreamSynchronize(stream));
    CHECK(hipMemcpy(out.data(), dy, n * 4, hipMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(out[i] == 6 * x[i]);
}

static void part_lds() {
    const int n = 512, groups = 5;
    auto data = ramp(n * groups, 1), out = data;
    float* d = device<float>(n * groups);
    CHECK(hipMemcpy(d, data.data(), n * groups * 4, hipMemcpyHostToDevice));
    reverse_in_lds<<<groups, n, n * 4>>>(d, n);
    CHECK(hipMemcpy(out.data(), d, n * groups * 4, hipMemcpyDeviceToHost));
    for (int g = 0; g < groups; g++)
        for (int i = 0; i < n; i++) EXPECT(out[g * n + i] == data[g * n + n - 1 - i]);
    // The card gives LDS out in pieces of 512 bytes, and programs get away with using all of the last one.
    reverse_in_lds<<<groups, n, n * 4 - 508>>>(d, n);
    CHECK(hipMemcpy(out.data(), d, n * groups * 4, hipMemcpyDeviceToHost));
    EXPECT(out == data);
}

static void part_beyond_lds() {
    const int n = 128;
    auto data = ramp(n, 1), out = data;
    float* d = device<float>(n);
    CHECK(hipMemcpy(d, data.data(), n * 4, hipMemcpyHostToDevice));
    // What is behind all of its LDS is zero, and stays so when it is written.
    for (int turn = 0; turn < 2; turn++) beyond_lds<<<1, n, n * 4>>>(d, n);
    CHECK(hipMemcpy(out.data(), d, n * 4, hipMemcpyDeviceToHost));
    EXPECT(out == data);
    // Within it, what was written is read.
    beyond_lds<<<1, n, n * 8>>>(d, n);
    CHECK(hipMemcpy(out.data(), d, n * 4, hipMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(out[i] == data[i] + 7);
}

static void part_scratch() {
    const int lanes = 64, groups = 6;
    std::vector<int> places = {3, 60, 17, 3, 42, 0, 63, 17}, out(lanes * groups);
    int *dp = device<int>(8), *dr = device<int>(lanes * groups);
    CHECK(hipMemcpy(dp, places.data(), 32, hipMemcpyHostToDevice));
    scratch<<<groups, lanes>>>(dp, dr);
    CHECK(hipMemcpy(out.data(), dr, lanes * groups * 4, hipMemcpyDeviceToHost));
    for (int lane = 0; lane < lanes * groups; lane++) {
        int id = lane % lanes, table[64], sum = 0;
        for (int i = 0; i < 64; i++) table[i] = i * i + id;
        for (int i = 0; i < 8; i++) table[places[i] & 63] += i, sum += table[(places[i] + id) & 63];
        EXPECT(out[lane] == sum);
    }
}

template <int Words>
static void check_private_words(int lanes, int groups) {
    const int n = lanes * groups;
    std::vector<int> places(n), out(n);
    for (int i = 0; i < n; i++) places[i] = i * 7919 % 1021;
    int *dp = device<int>(n), *dr = device<int>(n);
    CHECK(hipMemcpy(dp, places.data(), n * 4, hipMemcpyHostToDevice));
    private_words<Words><<<groups, lanes>>>(dp, dr);
    CHECK(hipMemcpy(out.data(), dr, n * 4, hipMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(out[i] == places[i] % Words * 3 + i % lanes);
    CHECK(hipFree(dp));
    CHECK(hipFree(dr));
}

// Private memory of several sizes, in small and large workgroups, more and less than before.
static void part_private() {
    for (int groups : {1, 40}) {
        for (int lanes : {32, 64, 256}) {
            check_private_words<29>(lanes, groups);
            check_private_words<256>(lanes, groups);
            check_private_words<64>(lanes, groups);
        }
    }
    check_private_words<256>(1024, 2);
}

static void part_atomics() {
    const int n = 3000;
    std::vector<unsigned char> keys(n);
    unsigned expected[8] = {}, totals[12];
    for (int i = 0; i < n; i++) keys[i] = (unsigned char)(i * 13), expected[keys[i] & 7]++;
    unsigned* dt = device<unsigned>(12);
    unsigned char* dk = device<unsigned char>(n);
    CHECK(hipMemset(dt, 0, 48));
    CHECK(hipMemcpy(dk, keys.data(), n, hipMemcpyHostToDevice));
    count<<<(n + 127) / 128, 128>>>(dt, dk, n);
    CHECK(hipMemcpy(totals, dt, 48, hipMemcpyDeviceToHost));
    for (int i = 0; i < 8; i++) EXPECT(totals[i] == expected[i]);
    EXPECT(totals[8] == n - 1);
    unsigned long long wide;
    memcpy(&wide, totals + 10, 8);
    EXPECT(wide == (unsigned long long)n << 20);
}

static void part_printf() {
    say<<<1, 64>>>(3);
    CHECK(hipDeviceSynchronize());
}

static void part_rtc() {
    const char* source =
        "extern \"C\" __global__ void twice(float* x, int n) {"
        "  int i = blockIdx.x * blockDim.x + threadIdx.x; if (i < n) x[i] = 2 * x[i] + sqrtf(x[i]); }";
    hipDeviceProp_t properties;
    CHECK(hipGetDeviceProperties(&properties, 0));
    std::string architecture = "--gpu-architecture=" + std::string(properties.gcnArchName);
    const char* options[] = {architecture.c_str()};
    hiprtcProgram program;
    EXPECT(hiprtcCreateProgram(&program, source, "twice.hip", 0, nullptr, nullptr) == HIPRTC_SUCCESS);
    EXPECT(hiprtcCompileProgram(program, 1, options) == HIPRTC_SUCCESS);
    size_t size = 0;
    EXPECT(hiprtcGetCodeSize(program, &size) == HIPRTC_SUCCESS);
    std::vector<char> code(size);
    EXPECT(hiprtcGetCode(program, code.data()) == HIPRTC_SUCCESS);
    hipModule_t module;
    hipFunction_t function;
    CHECK(hipModuleLoadData(&module, code.data()));
    CHECK(hipModuleGetFunction(&function, module, "twice"));
    int n = 1000;
    auto x = ramp(n, 1), out = x;
    float* dx = device<float>(n);
    CHECK(hipMemcpy(dx, x.data(), n * 4, hipMemcpyHostToDevice));
    void* arguments[] = {&dx, &n};
    CHECK(hipModuleLaunchKernel(function, (n + 63) / 64, 1, 1, 64, 1, 1, 0, nullptr, arguments, nullptr));
    CHECK(hipMemcpy(out.data(), dx, n * 4, hipMemcpyDeviceToHost));
    for (int i = 0; i < n; i++) EXPECT(std::fabs(out[i] - (2 * x[i] + std::sqrt(x[i]))) <= 1e-5f * (1 + out[i]));
    CHECK(hipModuleUnload(module));
}

static void part_memory() {
    size_t free_bytes = 0, total = 0;
    CHECK(hipMemGetInfo(&free_bytes, &total));
    EXPECT(free_bytes <= total && total > (size_t)4 << 30);
    void* pointer = nullptr;
    EXPECT(hipMalloc(&pointer, total + (1 << 20)) == hipErrorOutOfMemory);
    (void)hipGetLastError();
    std::vector<void*> blocks;
    while (hipMalloc(&pointer, (size_t)256 << 20) == hipSuccess) blocks.push_back(pointer);
    (void)hipGetLastError();
    EXPECT(blocks.size() >= total / ((size_t)256 << 20) - 2 && blocks.size() <= total / ((size_t)256 << 20));
    for (void* block : blocks) CHECK(hipFree(block));
    CHECK(hipMalloc(&pointer, total / 2));
    CHECK(hipFree(pointer));
    run_axpy(nullptr, 1000);
}

static void part_peer() {
    int count = 0, can = -1;
    CHECK(hipGetDeviceCount(&count));
    EXPECT(count == 2);
    CHECK(hipDeviceCanAccessPeer(&can, 0, 1));
    EXPECT(can == 0);
    std::vector<float> from(10000, 7), to(10000);
    float* first = device<float>(10000);
    CHECK(hipMemcpy(first, from.data(), 40000, hipMemcpyHostToDevice));
    CHECK(hipSetDevice(1));
    float* second = device<float>(10000);
    CHECK(hipMemcpyPeer(second, 1, first, 0, 40000));
    CHECK(hipMemcpy(to.data(), second, 40000, hipMemcpyDeviceToHost));
    EXPECT(from == to);
    run_axpy(nullptr, 2000);
    CHECK(hipSetDevice(0));
    run_axpy(nullptr, 2000);
}

static void part_fork() {
    // Before the runtime starts: each child has its own card.
    for (int i = 0; i < 2; i++) {
        pid_t child = fork();
        if (child == 0) {
            run_axpy(nullptr, 2000);
            _exit(0);
        }
    }
    int status = 0, good = 0;
    while (wait(&status) > 0) good += WIFEXITED(status) && WEXITSTATUS(status) == 0;
    EXPECT(good == 2);
    run_axpy(nullptr, 2000);
    // A child of a process that uses the card, and does not use it itself.
    if (fork() == 0) _exit(7);
    EXPECT(wait(&status) > 0 && WEXITSTATUS(status) == 7);
    run_axpy(nullptr, 2000);
}

static void part_fault() {
    int* inside = device<int>(1024);
    store<<<1, 1>>>(inside + (64 << 20), 1);
    fprintf(stderr, "the synchronisation returned %d\n", hipDeviceSynchronize());
}

// A queue that has failed, and a program that waits for it: by a synchronisation, by asking for an event again and again, or by
// a function that the stream is to call. Whatever the runtime makes of it, the program must end.
static void part_illegal_waited() {
    illegal<<<1, 32>>>(device<int>(1));
    fprintf(stderr, "the synchronisation returned %d\n", hipDeviceSynchronize());
    exit(3);
}

static void part_illegal_asked() {
    hipEvent_t done;
    CHECK(hipEventCreate(&done));
    illegal<<<1, 32>>>(device<int>(1));
    CHECK(hipEventRecord(done, nullptr));
    hipError_t answer;
    while ((answer = hipEventQuery(done)) == hipErrorNotReady) usleep(10000);
    fprintf(stderr, "the event answered %d\n", answer);
    exit(3);
}

static void part_illegal_called() {
    volatile bool called = false;
    hipStream_t stream;
    CHECK(hipStreamCreate(&stream));
    illegal<<<1, 32, 0, stream>>>(device<int>(1));
    auto call = [](hipStream_t, hipError_t, void* flag) { *(volatile bool*)flag = true; };
    CHECK(hipStreamAddCallback(stream, call, (void*)&called, 0));
    while (!called) usleep(10000);
    fprintf(stderr, "the function was called\n");
    exit(3);
}

// A watchdog of the simplest kind: an event that does not happen within three seconds.
static void part_watched() {
    const int n = 1000;
    float *x = device<float>(n), *y = device<float>(n);
    hipEvent_t done;
    CHECK(hipEventCreate(&done));
    axpy<<<(n + 255) / 256, 256>>>(1, x, y, n);
    CHECK(hipEventRecord(done, nullptr));
    for (int i = 0; i < 300; i++) {
        if (hipEventQuery(done) == hipSuccess) return;
        usleep(10000);
    }
    printf("watched: it did not return\n");
    fflush(stdout);
    _exit(86);
}

// Kernels that never end: the program ends all the same.
static void part_endless() {
    int* flag = nullptr;
    CHECK(hipHostMalloc((void**)&flag, 4, hipHostMallocCoherent));
    *flag = 0;
    spin<<<1, 32>>>(flag);
    usleep(100000);
    EXPECT(hipStreamQuery(nullptr) == hipErrorNotReady);
    printf("endless: still running, leaving\n");
    fflush(stdout);
    _exit(0);
}

// The kernel without an end, and the program waits for it.
static void part_stuck() {
    int* flag = nullptr;
    CHECK(hipHostMalloc((void**)&flag, 4, hipHostMallocCoherent));
    *flag = 0;
    spin<<<1, 32>>>(flag);
    CHECK(hipDeviceSynchronize());
}

int main(int count, char** names) {
    struct {
        const char* name;
        void (*run)();
    } parts[] = {
        {"launch", part_launch},   {"branches", part_branches}, {"copies", part_copies}, {"memset", part_memset},
        {"streams", part_streams}, {"events", part_events},     {"graph", part_graph},   {"lds", part_lds},
        {"scratch", part_scratch}, {"atomics", part_atomics},   {"printf", part_printf}, {"rtc", part_rtc},
        {"memory", part_memory},   {"peer", part_peer},         {"fork", part_fork},     {"fault", part_fault},
        {"endless", part_endless}, {"watched", part_watched},   {"stuck", part_stuck},   {"beyond_lds", part_beyond_lds},
        {"private", part_private},
        {"illegal_waited", part_illegal_waited},
        {"illegal_asked", part_illegal_asked},
        {"illegal_called", part_illegal_called},
    };
    for (int i = 1; i < count; i++) {
        bool found = false;
        for (auto& part : parts) {
            if (strcmp(part.name, names[i]) == 0) {
                part.run();
                printf("right: %s\n", part.name);
                fflush(stdout);
                found = true;
            }
        }
        EXPECT(found);
    }
    return 0;
}
