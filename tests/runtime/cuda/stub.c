/* A CUDA driver, and torch's C functions, that run nothing: what is asked of them is kept for tests to read. Memory of
   the "device" is the host's. A launch can be made to fail, and to report a violated check. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 64 };
typedef struct {
    void *function, *stream, *context;
    unsigned grid[3], block, shared;
    uint64_t values[16], map[16];
} Call;

Call stub_calls[MOST];
int stub_overlaps, stub_cluster, stub_large, stub_count, stub_launch_error, stub_load_error, stub_parameters = 4, stub_capturing, stub_memsets, stub_tensors;
volatile int stub_delay, stub_launching, stub_deleted_early; /* microseconds that a launch takes; memory let go meanwhile */
int stub_described = -1; /* the parameter that is a descriptor */
int stub_max_threads = 1024, stub_shared_limit = 227 * 1024;
void *stub_stream = (void *)0x77;
static __thread void *contexts[16];
static __thread int depth;

int cuInit(unsigned flags) { return 0; }
int stub_version = 13000;
int cuDriverGetVersion(int *version) { *version = stub_version; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index > 1 ? 101 : 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)(uintptr_t)(0x1000 + device); return 0; }
int cuCtxPushCurrent_v2(void *context) { contexts[++depth] = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = contexts[depth--]; return 0; }
int cuCtxGetCurrent(void **context) { *context = depth ? contexts[depth] : NULL; return 0; }
int cuModuleLoadData(void **module, const void *image) { *module = (void *)0x2000; return stub_load_error; }
int cuModuleUnload(void *module) { return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    *function = (void *)0x3000;
    return strcmp(name, "missing") == 0 ? 500 : 0;
}
int cuFuncGetAttribute(int *value, int which, void *function)
{
    *value = which == 0 ? stub_max_threads : which == 4 ? 32 : 0;
    return 0;
}
int cuFuncSetAttribute(void *function, int which, int value)
{
    if (which == 14)
        stub_large = value;
    return value > stub_shared_limit ? 1 : 0;
}
int cuGetErrorName(int code, const char **text)
{
    *text = code == 1 ? "CUDA_ERROR_INVALID_VALUE" : code == 701 ? "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES" : "CUDA_ERROR";
    return 0;
}
int cuGetErrorString(int code, const char **text) { *text = "as the test asked"; return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
typedef struct { int id, unused, value, rest[15]; } CUlaunchAttribute;
typedef struct {
    unsigned grid[3], block[3], shared;
    void *stream;
    CUlaunchAttribute *attributes;
    unsigned count;
} CUlaunchConfig;
/* Graphs: a node is a launch with the values of its parameters; a launched graph makes the calls of its nodes. */
typedef struct Node { Call call; struct Node *before; } Node;
typedef struct { Node *last; size_t count; } Graph;
typedef struct { size_t count; Node *nodes[MOST]; Call calls[MOST]; } Executable;
typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
} NodeParameters;
int stub_graphs, stub_launched_graphs, stub_updates, stub_instantiate_error, stub_update_error;
static void *capture_stream = (void *)0x88;
static Graph *captured;
static void *values_of_node[16];

int cuStreamCreate(void **stream, unsigned flags) { *stream = capture_stream; return 0; }
int cuStreamBeginCapture_v2(void *stream, int mode) { captured = calloc(1, sizeof(Graph)); return captured == NULL; }
int cuStreamEndCapture(void *stream, void **graph) { *graph = captured; captured = NULL; return 0; }
int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph, void **nodes, size_t *count)
{
    if (stream == capture_stream && captured != NULL) {
        *status = 1;
        if (graph == NULL)
            return 0;
        *graph = captured;
        *(void ***)nodes = (void **)&captured->last;
        *count = 1;
        return 0;
    }
    *status = stub_capturing != 0;
    *id = (uint64_t)stub_capturing;
    return 0;
}
/* Kernels that may overlap: of them a driver tells only those who ask for edges, too. */
int stub_lossy;
typedef struct { unsigned char from, to, type, reserved[5]; } Edge;
static const Edge edge = {1, 0, 1, {0}};
int cuStreamGetCaptureInfo_v3(void *stream, int *status, uint64_t *id, void **graph, void **nodes, const Edge **edges, size_t *count)
{
    *edges = &edge;
    return cuStreamGetCaptureInfo_v2(stream, status, id, graph, nodes, count);
}
int cuGraphGetNodes(void *graph, void **nodes, size_t *count) { *count = ((Graph *)graph)->count; return 0; }
int cuGraphNodeGetDependencies_v2(void *node, void **nodes, Edge *edges, size_t *count)
{
    if (edges != NULL)
        *edges = edge;
    *count = ((Node *)node)->before != NULL;
    if (nodes != NULL && *count)
        *nodes = ((Node *)node)->before;
    return 0;
}
int cuGraphNodeGetDependencies(void *node, void **nodes, size_t *count)
{
    return stub_lossy ? 155 : cuGraphNodeGetDependencies_v2(node, nodes, NULL, count);
}
int stub_node_type;
int cuGraphNodeGetType(void *node, int *type) { *type = stub_node_type; return 0; }
int cuGraphKernelNodeGetAttribute(void *node, int attribute, void *value) { memset(value, 0, 64); return 0; }
int cuGraphKernelNodeGetParams_v2(void *node, NodeParameters *given)
{
    Call *call = &((Node *)node)->call;
    for (int i = 0; i < 16; i++)
        values_of_node[i] = &call->values[i];
    *given = (NodeParameters){call->function, {call->grid[0], call->grid[1], call->grid[2]}, {call->block, 1, 1}, call->shared,
                              values_of_node};
    return 0;
}
int cuGraphInstantiateWithFlags(void **result, void *graph, unsigned long long flags)
{
    Executable *made = calloc(1, sizeof(Executable));
    made->count = ((Graph *)graph)->count;
    size_t i = made->count;
    for (Node *node = ((Graph *)graph)->last; node != NULL; node = node->before) {
        made->nodes[--i] = node;
        made->calls[i] = node->call;
    }
    stub_graphs += stub_instantiate_error == 0;
    *result = made;
    return stub_instantiate_error;
}
int cuGraphExecKernelNodeSetParams_v2(void *executable, void *node, const NodeParameters *given)
{
    Executable *of = executable;
    for (size_t i = 0; i < of->count; i++)
        if (of->nodes[i] == node) {
            of->calls[i] = (Call){given->function, NULL, NULL, {given->grid[0], given->grid[1], given->grid[2]}, given->block[0],
                                  given->shared};
            for (int k = 0; k < stub_parameters && k < 16; k++)
                of->calls[i].values[k] = *(uint64_t *)given->parameters[k];
            stub_updates++;
            return stub_update_error;
        }
    return 1;
}
int cuFuncGetParamInfo(void *function, size_t number, size_t *at, size_t *bytes)
{
    *at = 8 * number;
    *bytes = 8;
    return number >= (size_t)stub_parameters;
}
/* A library's call: two kernels, of (first address, size) and of (second address, something else by `stub_odd`). */
int stub_library_calls, stub_odd;
int cuLaunchKernelEx(const CUlaunchConfig *how, void *function, void **parameters, void **extra);
int stub_library(const void *data, void *stream)
{
    const uint64_t *words = data;
    uint64_t nothing = 0, odd = stub_odd ? words[1] + 8 : 5;
    void *first[] = {(void *)&words[0], (void *)&words[2], &nothing, &nothing};
    void *second[] = {(void *)&words[1], &odd, &nothing, &nothing};
    CUlaunchConfig how = {{(unsigned)words[2], 1, 1}, {128, 1, 1}, 0, stream};
    stub_library_calls++;
    int code = cuLaunchKernelEx(&how, (void *)0x5000, first, NULL);
    return code != 0 ? -code : -cuLaunchKernelEx(&how, (void *)0x5001, second, NULL);
}
int cuGraphUpload(void *executable, void *stream) { return 0; }
int cuGraphLaunch(void *executable, void *stream)
{
    Executable *of = executable;
    if (stub_launch_error != 0)
        return stub_launch_error;
    stub_launched_graphs++;
    for (size_t i = 0; i < of->count; i++) {
        Call *call = &stub_calls[stub_count++ % MOST];
        *call = of->calls[i];
        call->stream = stream;
    }
    return 0;
}
int cuGraphExecDestroy(void *executable) { stub_graphs--; free(executable); return 0; }
int cuGraphDestroy(void *graph)
{
    for (Node *node = ((Graph *)graph)->last, *before; node != NULL; node = before) {
        before = node->before;
        free(node);
    }
    free(graph);
    return 0;
}
int cuMemsetD8Async(uintptr_t destination, unsigned char value, size_t count, void *stream)
{
    memset((void *)destination, value, count);
    stub_memsets++;
    return 0;
}
int cuTensorMapEncodeTiled(uint64_t *map, int type, uint32_t rank, uintptr_t address, const uint64_t *sizes,
                           const uint64_t *strides, const uint32_t *block, const uint32_t *steps, int interleave,
                           int swizzle, int fetch, int fill)
{
    const uint64_t told[16] = {address, sizes[0], sizes[1], strides[0], block[0], block[1], steps[0], steps[1],
                               type, rank, interleave, swizzle, fetch, fill};
    memcpy(map, told, sizeof told);
    return (uintptr_t)map % 64 != 0 || strides[0] % 16 != 0 || sizes[0] == 0 || sizes[1] == 0;
}
int cuLaunchKernelEx(const CUlaunchConfig *how, void *function, void **parameters, void **extra)
{
    if (stub_launch_error)
        return stub_launch_error;
    if (stub_delay) {
        stub_launching = 1;
        usleep(stub_delay);
        stub_launching = 0;
    }
    Call *call = &stub_calls[stub_count % MOST];
    if (how->stream == capture_stream) {
        Node *node = calloc(1, sizeof(Node));
        node->before = captured->last;
        captured->last = node;
        captured->count++;
        call = &node->call;
    } else {
        stub_count++;
    }
    *call = (Call){function, how->stream, depth ? contexts[depth] : NULL, {how->grid[0], how->grid[1], how->grid[2]},
                   how->block[0], how->shared, {0}, {0}};
    stub_overlaps = stub_cluster = 0;
    for (unsigned i = 0; i < how->count; i++) {
        const CUlaunchAttribute *each = &how->attributes[i];
        stub_overlaps |= each->id == 6 && each->value == 1;
        if (each->id == 4 && each->rest[0] == 1 && each->rest[1] == 1)
            stub_cluster = each->value;
    }
    for (int i = 0; i < stub_parameters && i < 16; i++)
        call->values[i] = *(uint64_t *)parameters[i];
    if (stub_described >= 0)
        memcpy(call->map, parameters[stub_described], sizeof call->map);
    return 0;
}
int32_t aoti_torch_get_current_cuda_stream(int32_t device, void **stream) { *stream = stub_stream; return 0; }
int32_t aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type,
                                 int32_t device, void **tensor)
{
    if (sizes[0] > 1 << 20)
        return 1;
    *tensor = malloc((size_t)sizes[0]);
    memset(*tensor, 0xEE, (size_t)sizes[0]);
    stub_tensors++;
    return 0;
}
int32_t aoti_torch_delete_tensor_object(void *tensor) 
{
    stub_deleted_early += stub_launching;
    free(tensor);
    stub_tensors--;
    return 0;
}
int32_t aoti_torch_new_tensor_handle(void *tensor, void **same) { *same = malloc(1); stub_tensors++; return 0; }
int32_t aoti_torch_get_data_ptr(void *tensor, void **pointer) { *pointer = tensor; return 0; }
/* What packages ask for besides (packages/gpu.c). */
int stub_modules, stub_blocks, stub_architecture = 90;
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 75 ? stub_architecture / 10 : stub_architecture % 10;
    return 0;
}
int cuCtxGetDevice(int *device) { *device = depth ? (int)((uintptr_t)contexts[depth] - 0x1000) : 0; return depth ? 0 : 201; }
int cuCtxSetCurrent(void *context) { contexts[++depth] = context; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuMemPoolCreate(void **pool, const int *properties) { *pool = (void *)0x4000; return properties[0] != 1 || properties[2] != 1; }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { return attribute != 4; }
int cuMemAlloc_v2(uintptr_t *data, size_t bytes)
{
    *data = (uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    stub_blocks++;
    return *data == 0 ? 2 : 0;
}
int cuMemFree_v2(uintptr_t data) { free((void *)data); stub_blocks--; return 0; }
int cuMemAllocFromPoolAsync(uintptr_t *data, size_t bytes, void *pool, void *stream) { return cuMemAlloc_v2(data, bytes); }
int cuMemFreeAsync(uintptr_t data, void *stream) { return cuMemFree_v2(data); }
int cuMemHostAlloc(void **data, size_t bytes, unsigned flags) { return cuMemAlloc_v2((uintptr_t *)data, bytes); }
int cuMemFreeHost(void *data) { return cuMemFree_v2((uintptr_t)data); }
int cuMemcpyHtoD_v2(uintptr_t to, const void *from, size_t bytes) { memcpy((void *)to, from, bytes); return 0; }
int cuMemcpyDtoH_v2(void *to, uintptr_t from, size_t bytes) { memcpy(to, (void *)from, bytes); return 0; }
int cuMemcpyDtoDAsync_v2(uintptr_t to, uintptr_t from, size_t bytes, void *stream) { memcpy((void *)to, (void *)from, bytes); return 0; }
int cuStreamIsCapturing(void *stream, int *status) { *status = stub_capturing != 0; return 0; }
