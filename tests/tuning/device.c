/* A CUDA driver whose device is the host: memory is malloc's, machine code a shared object, and a kernel a C function

       int kernel(void **parameters, unsigned grid)

   that runs at once and returns 0, an error that stays (700: an illegal address), or 600 for ever. Whatever waits for the
   device then waits for ever, as it does on a real one. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, LARGEST = 1 << 26 };
static int state;

static int done(void)
{
    while (state == 600)
        pause();
    return state;
}

int cuInit(unsigned flags) { return getenv("POLYTILE_TEST_NO_DEVICE") ? 100 : 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index > 1 ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1; return 0; }
int cuCtxPushCurrent_v2(void *context) { return 0; }
int cuMemAlloc_v2(uint64_t *address, size_t size)
{
    void *memory = NULL;
    if (state || size > LARGEST || posix_memalign(&memory, 512, size))
        return state ? state : OUT_OF_MEMORY;
    *address = (uint64_t)memory;
    return 0;
}
int cuMemFree_v2(uint64_t address) { int code = done(); free((void *)address); return code; }
int cuMemsetD8_v2(uint64_t to, unsigned char value, size_t size) { memset((void *)to, value, size); return state; }
int cuMemcpyHtoD_v2(uint64_t to, const void *from, size_t size) { int code = done(); memcpy((void *)to, from, size); return code; }
int cuMemcpyDtoH_v2(void *to, uint64_t from, size_t size) { int code = done(); memcpy(to, (void *)from, size); return code; }
int cuModuleLoadData(void **module, const void *image)
{
    const Elf64_Ehdr *head = image;
    char path[64];
    int file = memfd_create("image", 0);
    size_t size = head->e_shoff + (size_t)head->e_shnum * head->e_shentsize;
    if (write(file, image, size) != (ssize_t)size)
        return 200;
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    return *module ? 0 : 200;
}
int cuModuleUnload(void *module) { return done(); }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = dlsym(module, name);
    return *function ? 0 : 500;
}
int cuFuncSetAttribute(void *function, int which, int value) { return value > 227 * 1024 ? 1 : 0; }
int cuLaunchKernelEx(const unsigned *grid, void *function, void **parameters, void **extra)
{
    int code = ((int (*)(void **, unsigned))function)(parameters, grid[0]);
    state = code >= 600 ? code : 0;
    return state ? 0 : code;
}
int cuTensorMapEncodeTiled(uint64_t *map, int type, uint32_t rank, uint64_t address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *block, const uint32_t *steps, int interleave,
                           int swizzle, int fetch, int fill)
{
    uint64_t told[16] = {address, sizes[0], sizes[1], strides[0], block[0], block[1], type, rank, swizzle, fetch, steps[1]};
    memcpy(map, told, sizeof told);
    return (uint64_t)map % 64 != 0 || interleave || fill;
}
int cuStreamQuery(void *stream) { return state; }
int cuGetErrorName(int code, const char **text)
{
    *text = code == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR";
    return 0;
}
int cuGetErrorString(int code, const char **text)
{
    *text = code == 700   ? "an illegal memory access was encountered"
            : code == 2   ? "out of memory"
            : code == 100 ? "no CUDA-capable device is detected"
                          : "as the test asked";
    return 0;
}
