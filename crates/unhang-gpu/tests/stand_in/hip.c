// A stand-in for libamdhip64 with hiprtc in it, as ROCm 5.2 has it: the calls that the driver makes and no device. Errors are
// kept as HIP 7 keeps them: per thread, until somebody reads them.
#include <stddef.h>
#include <string.h>

static __thread int last_error;

// What went wrong is noted; "not ready" (600) too, as up to HIP 6.
static int returned(int code) {
    if (code != 0) last_error = code;
    return code;
}

int hipPeekAtLastError(void) { return last_error; }
int hipGetLastError(void) {
    int code = last_error;
    last_error = 0;
    return code;
}
int hipInit(unsigned flags) { return returned(flags == 0 ? 0 : 1); }
int hipRuntimeGetVersion(int *version) { *version = 70000000; return returned(0); }
int hipGetDevice(int *device) { *device = 0; return returned(0); }
int hipSetDevice(int device) { return returned(device == 0 ? 0 : 101); }
int hipDeviceGetName(char *name, int length, int device) {
    strncpy(name, "a stand-in", (size_t)length);
    return returned(device == 0 ? 0 : 101);
}
int hipDeviceGetPCIBusId(char *name, int length, int device) {
    strncpy(name, "0000:03:00.0", (size_t)length);
    return returned(device == 0 ? 0 : 101);
}
int hipDeviceTotalMem(size_t *bytes, int device) { *bytes = 1 << 20; return returned(device == 0 ? 0 : 101); }
// An image that begins with 'w' is for the wrong chip.
int hipModuleLoadData(void **module, const void *image) {
    *module = (void *)image;
    return returned(*(const char *)image == 'w' ? 303 : 0);
}
int hipModuleGetFunction(void **function, void *module, const char *name) {
    *function = module;
    return returned(strcmp(name, "missing") == 0 ? 500 : 0);
}
// The image, which the runtime goes on reading, must still be what was loaded.
int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void *stream, void **arguments, void **extra) {
    (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)arguments, (void)extra;
    return returned(strcmp(function, "the object") == 0 ? 0 : 719);
}
// Stream 1 records: asked about the default stream HIP 6.4 answers with an error.
int hipStreamIsCapturing(void *stream, int *status) {
    *status = stream == (void *)1;
    return returned(stream == 0 ? 906 : stream == (void *)9 ? 400 : 0);
}
int hipEventCreateWithFlags(void **event, unsigned flags) { (void)flags; *event = (void *)1; return returned(0); }
int hipEventRecord(void *event, void *stream) { (void)event, (void)stream; return returned(0); }
int hipEventQuery(void *event) { return returned(event == (void *)2 ? 600 : 0); }
int hipEventElapsedTime(float *milliseconds, void *from, void *to) {
    (void)from, (void)to;
    *milliseconds = 1.0f;
    return returned(0);
}
int hipEventDestroy(void *event) { return returned(event == 0 ? 400 : 0); }
/* Filling returns before it is done; waiting for the null stream, in which it is queued, waits for it. */
static int fills, allocated;
int fillsUnderWay(void) { return fills; }
int memoryInUse(void) { return allocated; }
int hipStreamSynchronize(void *stream) { fills = stream ? fills : 0; return returned(0); }
int hipMalloc(void **address, size_t bytes) {
    *address = 0;
    if (bytes > 1 << 20)
        return returned(2);
    allocated++;
    return returned(0);
}
int hipMemsetD32(void *address, int value, size_t count) {
    (void)address, (void)value;
    if (count == 906)
        return returned(906);
    fills++;
    return returned(0);
}
int hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, void *stream) {
    (void)stream;
    memcpy(to, from, bytes);
    return returned(0);
}
int hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, void *stream) { return hipMemcpyDtoHAsync(to, from, bytes, stream); }
int hipFree(void *address) { (void)address; allocated--; return returned(0); }

int hiprtcVersion(int *major, int *minor) { *major = 9, *minor = 0; return 0; }
int hiprtcCreateProgram(void **program, const char *source, const char *name, int count, const char **headers, const char **names) {
    (void)source, (void)name, (void)count, (void)headers, (void)names;
    *program = (void *)1;
    return 0;
}
int hiprtcCompileProgram(void *program, int count, const char **options) { (void)program, (void)count, (void)options; return 6; }
int hiprtcGetProgramLogSize(void *program, size_t *size) { (void)program; *size = 1; return 0; }
int hiprtcGetProgramLog(void *program, char *log) { (void)program; *log = 0; return 0; }
int hiprtcGetCodeSize(void *program, size_t *size) { (void)program; *size = 0; return 0; }
int hiprtcGetCode(void *program, char *code) { (void)program, (void)code; return 0; }
int hiprtcDestroyProgram(void **program) { *program = 0; return 0; }
