// A stand-in for libamdhip64 whose device memory is the host's: what copies need, and no kernels. A stream at address 7 is recording
// a graph; waiting for it then is what a real runtime forbids.
#include <stdlib.h>
#include <string.h>

static int recording(void *stream) { return stream == (void *)7; }

int hipPeekAtLastError(void) { return 0; }
int hipGetLastError(void) { return 0; }
int hipInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int hipRuntimeGetVersion(int *version) { *version = 60443484; return 0; }
int hipGetDevice(int *device) { *device = 0; return 0; }
int hipSetDevice(int device) { return device == 0 ? 0 : 101; }
int hipDeviceGetName(char *name, int length, int device) { (void)device; strncpy(name, "a stand-in", (size_t)length); return 0; }
int hipDeviceGetPCIBusId(char *name, int length, int device) { (void)device; strncpy(name, "0000:09:00.0", (size_t)length); return 0; }
int hipDeviceTotalMem(size_t *bytes, int device) { (void)device; *bytes = 1 << 30; return 0; }
int hipModuleLoadData(void **module, const void *image) { (void)module, (void)image; return 209; }
int hipModuleGetFunction(void **function, void *module, const char *name) { (void)function, (void)module, (void)name; return 500; }
int hipModuleLaunchKernel(void *f, unsigned a, unsigned b, unsigned c, unsigned d, unsigned e, unsigned g, unsigned h, void *s, void **i, void **j) {
    (void)f, (void)a, (void)b, (void)c, (void)d, (void)e, (void)g, (void)h, (void)s, (void)i, (void)j;
    return 719;
}
int hipStreamIsCapturing(void *stream, int *status) { *status = recording(stream); return 0; }
int hipEventCreateWithFlags(void **event, unsigned flags) { (void)flags; *event = (void *)1; return 0; }
int hipEventRecord(void *event, void *stream) { (void)event, (void)stream; return 0; }
int hipEventQuery(void *event) { (void)event; return 0; }
int hipEventElapsedTime(float *time, void *from, void *to) { (void)from, (void)to; *time = 1; return 0; }
int hipEventDestroy(void *event) { (void)event; return 0; }
int hipStreamSynchronize(void *stream) { if (recording(stream)) abort(); return 0; }
int hipMalloc(void **address, size_t bytes) { *address = malloc(bytes); return 0; }
int hipMemsetD32(void *address, int value, size_t count) { for (size_t i = 0; i < count; i++) ((int *)address)[i] = value; return 0; }
int hipMemcpyDtoHAsync(void *to, const void *from, size_t bytes, void *stream) {
    if (recording(stream)) abort();
    if (getenv("STAND_IN_COPIES_FAIL")) return atoi(getenv("STAND_IN_COPIES_FAIL"));
    memcpy(to, from, bytes);
    return 0;
}
int hipMemcpyHtoDAsync(void *to, const void *from, size_t bytes, void *stream) { return hipMemcpyDtoHAsync(to, from, bytes, stream); }
int hipFree(void *address) { free(address); return 0; }
