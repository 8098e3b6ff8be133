/* GPUs by NVIDIA's driver, which is loaded at the first use: their contexts and memory, and what launch.c and product.c call in the
   place of torch's functions. State of the process: nothing here knows of a package.

   Memory comes from one pool for each GPU, in the order of a stream: what a call lets go may be taken by whatever follows it there. */

enum { CPU_DEVICE = 1, GPU_DEVICE = 2, MOST_GPUS = 64, MAJOR = 75, MINOR = 76 };

/* ---- the driver ---- */

typedef struct { /* CUmemPoolProps */
    int type, handles, location, device;
    void *security;
    size_t most;
    unsigned short usage;
    unsigned char reserved[54];
} PoolProperties;

static struct {
    int (*init)(unsigned flags);
    int (*device_count)(int *count);
    int (*device_attribute)(int *value, int attribute, int device);
    int (*retain_context)(void **context, int device);
    int (*get_context)(void **context);
    int (*push_context)(void *context);
    int (*pop_context)(void **context);
    int (*current_device)(int *device);
    int (*synchronise)(void);
    int (*load_module)(void **module, const void *image);
    int (*unload_module)(void *module);
    int (*get_function)(void **function, void *module, const char *name);
    int (*set_function)(void *function, int attribute, int value);
    int (*new_pool)(void **pool, const PoolProperties *properties);
    int (*set_pool)(void *pool, int attribute, void *value);
    int (*allocate)(uintptr_t *data, size_t bytes, void *pool, void *stream);
    int (*let_go)(uintptr_t data, void *stream);
    int (*allocate_now)(uintptr_t *data, size_t bytes);
    int (*let_go_now)(uintptr_t data);
    int (*allocate_on_host)(void **data, size_t bytes, unsigned flags);
    int (*let_go_on_host)(void *data);
    int (*to_device)(uintptr_t to, const void *from, size_t bytes);
    int (*copy)(uintptr_t to, uintptr_t from, size_t bytes, void *stream);
    int (*is_capturing)(void *stream, int *status);
    int (*exchange_mode)(int *mode);
    int (*name_of_error)(int code, const char **name);
    int (*launch_kernel)(void);
    int (*capture_info)(void);
    int (*set_bytes)(void);
    int (*describe)(void); /* drivers before CUDA 12 lack it */
} cu;

static const char *const driver_names[] = {
    "cuInit", "cuDeviceGetCount", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuCtxGetCurrent", "cuCtxPushCurrent_v2",
    "cuCtxPopCurrent_v2", "cuCtxGetDevice", "cuCtxSynchronize", "cuModuleLoadData", "cuModuleUnload", "cuModuleGetFunction",
    "cuFuncSetAttribute", "cuMemPoolCreate", "cuMemPoolSetAttribute", "cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemAlloc_v2",
    "cuMemFree_v2", "cuMemHostAlloc", "cuMemFreeHost", "cuMemcpyHtoD_v2", "cuMemcpyDtoDAsync_v2", "cuStreamIsCapturing",
    "cuThreadExchangeStreamCaptureMode", "cuGetErrorName", "cuLaunchKernelEx", "cuStreamGetCaptureInfo_v2", "cuMemsetD8Async",
    "cuTensorMapEncodeTiled",
};
enum { DRIVER_FUNCTIONS = sizeof driver_names / sizeof *driver_names };
_Static_assert(sizeof cu == DRIVER_FUNCTIONS * sizeof(void *), "a name for each function");

static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static int open_driver(const char **trouble)
{
    void *functions[DRIVER_FUNCTIONS], *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    *trouble = "NVIDIA's driver is not installed (there is no libcuda.so.1)";
    for (int i = 0; i < DRIVER_FUNCTIONS; i++) {
        functions[i] = library == NULL ? NULL : dlsym(library, driver_names[i]);
        if (functions[i] == NULL && i + 1 < DRIVER_FUNCTIONS) {
            if (library != NULL)
                *trouble = "NVIDIA's driver is older than CUDA 11.8; update it";
            return -1;
        }
    }
    memcpy(&cu, functions, sizeof cu);
    *trouble = "NVIDIA's driver does not start; see nvidia-smi";
    if (cu.init(0) == 0)
        return 0;
    cu.init = NULL;
    return -1;
}

/* Returns -1, and what is wrong, where there is no driver. */
static int start_driver(const char **trouble)
{
    pthread_mutex_lock(&starting);
    int status = cu.init != NULL ? 0 : open_driver(trouble);
    pthread_mutex_unlock(&starting);
    return status;
}

static const char *name_of(int code)
{
    const char *name = NULL;
    return cu.name_of_error(code, &name) == 0 && name != NULL ? name : "unknown";
}

/* ---- devices ---- */

typedef struct {
    int index, architecture; /* 90 */
    void *context;           /* the primary one, which torch and the CUDA runtime use too */
    void *pool, *cublaslt;   /* its handle; NULL: not made yet */
} Gpu;

static Gpu *gpus[MOST_GPUS];

/* Which device and stream this thread's call is on. */
static _Thread_local struct {
    const Gpu *gpu;
    void *stream;
} here;

static int enter(const Gpu *gpu)
{
    return cu.push_context(gpu->context);
}

static void leave(void)
{
    void *popped;
    cu.pop_context(&popped);
}

static int new_gpu(int index, Gpu **made)
{
    enum { PINNED = 1, ON_DEVICE = 1, RELEASE_THRESHOLD = 4 };
    uint64_t everything = UINT64_MAX;
    int major = 0, minor = 0;
    Gpu gpu = {.index = index};
    PoolProperties pool = {.type = PINNED, .location = ON_DEVICE, .device = index};
    int code = cu.retain_context(&gpu.context, index);
    if (code == 0)
        code = cu.device_attribute(&major, MAJOR, index);
    if (code == 0)
        code = cu.device_attribute(&minor, MINOR, index);
    if (code == 0)
        code = cu.new_pool(&gpu.pool, &pool);
    if (code == 0)
        code = cu.set_pool(gpu.pool, RELEASE_THRESHOLD, &everything);
    gpu.architecture = 10 * major + minor;
    if (code == 0 && (*made = malloc(sizeof gpu)) != NULL)
        **made = gpu;
    return code;
}

/* The GPU of this number, NULL and the driver's error where it cannot be used. */
static Gpu *gpu_of(int index, int *code)
{
    enum { INVALID_DEVICE = 101 };
    *code = INVALID_DEVICE;
    if (index < 0 || index >= MOST_GPUS)
        return NULL;
    pthread_mutex_lock(&starting);
    if (gpus[index] == NULL)
        *code = new_gpu(index, &gpus[index]);
    Gpu *gpu = gpus[index];
    pthread_mutex_unlock(&starting);
    return gpu;
}

/* ---- memory, of the host and of devices ---- */

typedef struct {
    int users;
    char *data;
    const Gpu *gpu; /* NULL: it is the host's */
    void *stream;
} Memory;

/* So many bytes of a device, or of the host where `gpu` is NULL. NULL: there is none. */
static Memory *new_memory(const Gpu *gpu, int64_t bytes)
{
    uintptr_t data = 0;
    size_t whole = (size_t)(bytes + 63) / 64 * 64 + 64;
    Memory *memory = malloc(sizeof *memory);
    if (memory == NULL)
        return NULL;
    *memory = (Memory){1, NULL, gpu, here.stream};
    if (gpu == NULL)
        memory->data = aligned_alloc(64, whole);
    else if (cu.allocate(&data, whole, gpu->pool, here.stream) == 0)
        memory->data = (char *)data;
    if (memory->data != NULL)
        return memory;
    free(memory);
    return NULL;
}

static Memory *shared(Memory *memory)
{
    if (memory != NULL)
        __atomic_add_fetch(&memory->users, 1, __ATOMIC_RELAXED);
    return memory;
}

static void drop(Memory *memory)
{
    if (memory == NULL || __atomic_sub_fetch(&memory->users, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (memory->gpu == NULL) {
        free(memory->data);
    } else if (enter(memory->gpu) == 0) {
        cu.let_go((uintptr_t)memory->data, memory->stream);
        leave();
    }
    free(memory);
}

/* ---- what launch.c and product.c call in the place of torch's functions ---- */

static int32_t stream_here(int32_t device, void **stream)
{
    (void)device;
    *stream = here.stream;
    return 0;
}

static int32_t new_block(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type, int32_t device,
                         void **tensor)
{
    (void)rank, (void)strides, (void)dtype, (void)type, (void)device;
    *tensor = new_memory(here.gpu, sizes[0]); /* of bytes */
    return *tensor == NULL;
}

static int32_t delete_block(void *tensor)
{
    drop(tensor);
    return 0;
}

static int32_t block_data(void *tensor, void **data)
{
    *data = ((Memory *)tensor)->data;
    return 0;
}

/* ---- cuBLASLt ---- */

enum { CUBLASLT_FUNCTIONS = 11, BEFORE_CUBLASLT = 11 };

static void *product_functions[BEFORE_CUBLASLT + CUBLASLT_FUNCTIONS]; /* in the order of a ProductApi; none of ATen's */
static int (*new_cublaslt)(void **handle);

/* Loads the library of this name. -1: it is not there. */
static int open_cublaslt(const char *name)
{
    static const char *const functions[CUBLASLT_FUNCTIONS] = {
        "cublasLtMatmulDescCreate", "cublasLtMatmulDescSetAttribute", "cublasLtMatmulDescDestroy", "cublasLtMatrixLayoutCreate",
        "cublasLtMatrixLayoutSetAttribute", "cublasLtMatrixLayoutDestroy", "cublasLtMatmulPreferenceCreate",
        "cublasLtMatmulPreferenceSetAttribute", "cublasLtMatmulPreferenceDestroy", "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul",
    };
    void *const own[] = {(void *)cu.get_context, (void *)cu.push_context, (void *)cu.pop_context, (void *)stream_here,
                         (void *)new_block, (void *)delete_block, (void *)block_data};
    pthread_mutex_lock(&starting);
    void *library = new_cublaslt == NULL ? dlopen(name, RTLD_NOW | RTLD_LOCAL) : NULL;
    if (library != NULL) {
        int missing = 0;
        memcpy(product_functions, own, sizeof own);
        for (int i = 0; i < CUBLASLT_FUNCTIONS; i++)
            missing |= (product_functions[BEFORE_CUBLASLT + i] = dlsym(library, functions[i])) == NULL;
        void *create = missing ? NULL : dlsym(library, "cublasLtCreate");
        memcpy(&new_cublaslt, &create, sizeof create);
    }
    pthread_mutex_unlock(&starting);
    return new_cublaslt == NULL ? -1 : 0;
}

/* The library's handle for a device that is current; its status. */
static int cublaslt_of(Gpu *gpu, void **handle)
{
    pthread_mutex_lock(&starting);
    int status = gpu->cublaslt != NULL ? 0 : new_cublaslt(&gpu->cublaslt);
    *handle = gpu->cublaslt;
    pthread_mutex_unlock(&starting);
    return status;
}
