/* The part of NVIDIA's driver interface that polytile uses, on top of AMD's runtime, so that launches on ROCm use the
   same code as on CUDA. hip.py prepends a definition of HIP_LIBRARY, the runtime's file.

   Error and attribute numbers are the same in both. A context is a device's number plus one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>

enum { INVALID_VALUE = 1, NOT_INITIALIZED = 3, NOT_SUPPORTED = 801, DEEPEST = 16 };

#define EVERY(of)                                                                                                        \
    of(hipInit, (unsigned flags))                                                                                        \
    of(hipDriverGetVersion, (int *version))                                                                              \
    of(hipDeviceGet, (int *device, int index))                                                                           \
    of(hipGetDevice, (int *device))                                                                                      \
    of(hipSetDevice, (int device))                                                                                       \
    of(hipModuleLoadData, (void **module, const void *image))                                                            \
    of(hipModuleUnload, (void *module))                                                                                  \
    of(hipModuleGetFunction, (void **function, void *module, const char *name))                                          \
    of(hipFuncGetAttribute, (int *value, int which, void *function))                                                     \
    of(hipModuleLaunchKernel, (void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,      \
                               unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **parameters,     \
                               void **extra))                                                                            \
    of(hipThreadExchangeStreamCaptureMode, (int *mode))                                                                  \
    of(hipStreamGetCaptureInfo_v2, (void *stream, int *status, uint64_t *id, void **graph, void **nodes, size_t *count)) \
    of(hipStreamQuery, (void *stream))                                                                                   \
    of(hipMalloc, (void **address, size_t bytes))                                                                        \
    of(hipFree, (void *address))                                                                                         \
    of(hipMemsetD8, (void *address, unsigned char value, size_t count))                                                  \
    of(hipMemsetD8Async, (void *address, unsigned char value, size_t count, void *stream))                               \
    of(hipMemcpyHtoD, (void *to, const void *from, size_t bytes))                                                        \
    of(hipMemcpyDtoH, (void *to, const void *from, size_t bytes))

#define MEMBER(name, parameters) int(*name) parameters;
#define FOUND(name, parameters) &&(*(void **)&hip.name = dlsym(library, #name)) != NULL

static struct {
    EVERY(MEMBER)
    const char *(*name)(int error), *(*text)(int error);
} hip;
static int ready;
static __thread int before[DEEPEST], depth;

int cuInit(unsigned flags)
{
    if (!ready) {
        void *library = dlopen(HIP_LIBRARY, RTLD_NOW);
        if (library == NULL)
            return NOT_INITIALIZED;
        *(void **)&hip.name = dlsym(library, "hipGetErrorName");
        *(void **)&hip.text = dlsym(library, "hipGetErrorString");
        if (!(1 EVERY(FOUND)))
            return NOT_SUPPORTED;
        ready = 1;
    }
    return hip.hipInit(flags);
}

static int told(const char *(*words)(int), int code, const char **text)
{
    if (words == NULL)
        return NOT_INITIALIZED;
    *text = words(code);
    return 0;
}

int cuGetErrorName(int code, const char **text) { return told(hip.name, code, text); }
int cuGetErrorString(int code, const char **text) { return told(hip.text, code, text); }
int cuDriverGetVersion(int *version) { return hip.hipDriverGetVersion(version); }
int cuDeviceGet(int *device, int index) { return hip.hipDeviceGet(device, index); }

int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = (void *)(uintptr_t)(device + 1);
    return 0;
}

int cuCtxGetCurrent(void **context)
{
    int device = 0, code = hip.hipGetDevice(&device);
    *context = (void *)(uintptr_t)(device + 1);
    return code;
}

int cuCtxPushCurrent_v2(void *context)
{
    int code = depth < DEEPEST ? hip.hipGetDevice(&before[depth]) : INVALID_VALUE;
    if (code == 0)
        code = hip.hipSetDevice((int)(uintptr_t)context - 1);
    depth += code == 0;
    return code;
}

int cuCtxPopCurrent_v2(void **context)
{
    int code = depth > 0 ? cuCtxGetCurrent(context) : INVALID_VALUE;
    return code == 0 ? hip.hipSetDevice(before[--depth]) : code;
}

int cuModuleLoadData(void **module, const void *image) { return hip.hipModuleLoadData(module, image); }
int cuModuleUnload(void *module) { return hip.hipModuleUnload(module); }

int cuModuleGetFunction(void **function, void *module, const char *name)
{
    return hip.hipModuleGetFunction(function, module, name);
}

int cuFuncGetAttribute(int *value, int which, void *function) { return hip.hipFuncGetAttribute(value, which, function); }

/* A block may use all of its shared memory without opting in. */
int cuFuncSetAttribute(void *function, int which, int value) { return 0; }

typedef struct { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
} How;

int cuLaunchKernelEx(const How *how, void *function, void **parameters, void **extra)
{
    const unsigned *grid = how->grid, *block = how->block;
    if (how->count != 0) /* clusters, overlapping launches */
        return NOT_SUPPORTED;
    return hip.hipModuleLaunchKernel(function, grid[0], grid[1], grid[2], block[0], block[1], block[2], how->shared,
                                     how->stream, parameters, extra);
}

int cuThreadExchangeStreamCaptureMode(int *mode) { return hip.hipThreadExchangeStreamCaptureMode(mode); }

int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void **nodes, size_t *count)
{
    return hip.hipStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}

int cuStreamQuery(void *stream) { return hip.hipStreamQuery(stream); }
int cuMemAlloc_v2(uint64_t *address, size_t bytes) { return hip.hipMalloc((void **)address, bytes); }
int cuMemFree_v2(uint64_t address) { return hip.hipFree((void *)(uintptr_t)address); }

int cuMemsetD8_v2(uint64_t address, unsigned char value, size_t count)
{
    return hip.hipMemsetD8((void *)(uintptr_t)address, value, count);
}

int cuMemsetD8Async(uintptr_t address, unsigned char value, size_t count, void *stream)
{
    return hip.hipMemsetD8Async((void *)address, value, count, stream);
}

int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t bytes)
{
    return hip.hipMemcpyHtoD((void *)(uintptr_t)to, from, bytes);
}

int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t bytes)
{
    return hip.hipMemcpyDtoH(to, (const void *)(uintptr_t)from, bytes);
}
