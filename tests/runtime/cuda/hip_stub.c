/* AMD's runtime, as far as hip.c calls it, that runs nothing: what is asked of it is kept for tests to read. Memory of the
   "device" is the host's. */

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 64 };
typedef struct {
    void *function, *stream;
    int device;
    unsigned grid[3], block[3], shared;
    uint64_t values[16];
} Call;

Call stub_calls[MOST];
int stub_count, stub_parameters = 4, stub_launch_error, stub_blocks;
static int current;
unsigned char stub_image[4];

int hipInit(unsigned flags) { return 0; }
int hipDriverGetVersion(int *version) { *version = 60443483; return 0; }
int hipDeviceGet(int *device, int index) { *device = index; return index > 1 ? 101 : 0; }
int hipGetDevice(int *device) { *device = current; return 0; }
int hipSetDevice(int device) { current = device; return 0; }
int hipModuleLoadData(void **module, const void *image)
{
    *module = (void *)0x2000;
    memcpy(stub_image, image, sizeof stub_image);
    return 0;
}
int hipModuleUnload(void *module) { return 0; }
int hipModuleGetFunction(void **function, void *module, const char *name) { *function = (void *)0x3000; return 0; }
int hipFuncGetAttribute(int *value, int which, void *function) { *value = which == 0 ? 1024 : 0; return 0; }
int hipModuleLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters, void **extra)
{
    if (stub_launch_error)
        return stub_launch_error;
    Call *call = &stub_calls[stub_count++ % MOST];
    *call = (Call){function, stream, current, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, {0}};
    for (int i = 0; i < stub_parameters && i < 16; i++)
        call->values[i] = *(uint64_t *)parameters[i];
    return 0;
}
int hipThreadExchangeStreamCaptureMode(int *mode) { return 0; }
int hipStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void **nodes, size_t *count)
{
    *status = 0;
    return 0;
}
int hipStreamQuery(void *stream) { return 0; }
int hipMalloc(void **address, size_t bytes) { stub_blocks++; *address = malloc(bytes); return 0; }
int hipFree(void *address) { stub_blocks--; free(address); return 0; }
int hipMemsetD8(void *address, unsigned char value, size_t count) { memset(address, value, count); return 0; }
int hipMemsetD8Async(void *address, unsigned char value, size_t count, void *stream) { return hipMemsetD8(address, value, count); }
int hipMemcpyHtoD(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); return 0; }
int hipMemcpyDtoH(void *to, const void *from, size_t bytes) { memcpy(to, from, bytes); return 0; }
const char *hipGetErrorName(int code) { return code == 719 ? "hipErrorLaunchFailure" : "hipError"; }
const char *hipGetErrorString(int code) { return "as the test asked"; }
