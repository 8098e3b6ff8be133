/* Part of the recorder: launches as bytes, and the functions of the driver and of torch that it calls. */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801, INVALID_VALUE = 1 };
enum { RELAXED = 2, NON_BLOCKING = 1, KERNEL_NODE = 0 }; /* CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_NON_BLOCKING, CU_GRAPH_NODE_TYPE_KERNEL */
enum { COOPERATIVE = 2, CLUSTER = 4, MAY_OVERLAP = 6 };  /* CUlaunchAttributeID */
enum { LEAST_LAUNCHES = 4, MOST_PLACES = 64, MOST_GRAPHS = 6, SEEN = 32, COMES_BACK = 3 };
enum { FIRST_PART = 6 };
enum { FIRST_LAUNCHES = 3, FIRST_GRAPHS = 8, CALLS_A_GRAPH = 128, FRUITLESS = 64, REST = 1024, ASKED_AGAIN = 64, MOST_NODES_OF_CALL = 8, MOST_PARAMETERS = 256 };
enum { MOST_SHARED = 256, MOST_PARAMETERS_OF_CALL = 32, MOST_BYTES_OF_CALL = 4096, MOST_PATCHES = 32, TEMPLATES = 2048 };
enum { MOST_KEPT_BYTES = 32 << 20, TORCH_UINT8 = 0, TORCH_CUDA = 1 };

typedef struct { /* CUDA_KERNEL_NODE_PARAMS_v2 */
    void *function;
    unsigned grid[3], block[3], shared;
    void **parameters, **extra;
    void *kernel, *context;
} NodeParameters;

typedef struct { /* CUgraphEdgeData */
    unsigned char from, to, type, reserved[5];
} Edge;

typedef struct {
    int (*launch_kernel)(const How *how, void *function, void **parameters, void **extra);
    int (*get_context)(void **context);
    int (*new_stream)(void **stream, unsigned flags);
    int (*begin_capture)(void *stream, int mode);
    int (*end_capture)(void *stream, void **graph);
    int (*capture_info)(void *stream, int *status, uint64_t *recording, void **graph, void ***nodes, size_t *count);
    int (*nodes)(void *graph, void **nodes, size_t *count);
    int (*dependencies)(void *node, void **nodes, size_t *count);
    int (*type)(void *node, int *type);
    int (*get_parameters)(void *node, NodeParameters *parameters);
    int (*get_attribute)(void *node, int attribute, void *value);
    int (*set_parameters)(void *executable, void *node, const NodeParameters *parameters);
    int (*instantiate)(void **executable, void *graph, unsigned long long flags);
    int (*upload)(void *executable, void *stream);
    int (*launch)(void *executable, void *stream);
    int (*delete_executable)(void *executable);
    int (*delete_graph)(void *graph);
    int (*parameter)(void *function, size_t number, size_t *at, size_t *bytes); /* NULL: the driver does not report it */
    /* the same with the edges: without them a driver refuses to tell of kernels that may overlap; NULL: it knows no such edges */
    int (*capture_info_with_edges)(void *stream, int *status, uint64_t *recording, void **graph, void ***nodes, const Edge **edges,
                                   size_t *count);
    int (*dependencies_with_edges)(void *node, void **nodes, Edge *edges, size_t *count);
    /* what torch allocates and starts in between belongs to a capture on `stream`, which stands for `of` */
    int (*enter_capture)(int32_t device, void *stream, void *of);
    void (*leave_capture)(void);
    int32_t (*current_stream)(int32_t device, void **stream);
    int32_t (*new_tensor)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type,
                          int32_t device, void **tensor);
    int32_t (*delete_tensor)(void *tensor);
    int32_t (*data_pointer)(void *tensor, void **pointer);
    int32_t (*new_handle)(void *tensor, void **same);
} Api;

/* ---- launches as bytes ---- */

typedef struct { /* one launch, followed by its contents: for a kernel its parameters, then their offsets; for a call its data */
    int (*run)(const void *data, void *stream); /* NULL: a kernel */
    void *function;                             /* the kind of a call */
    uint32_t bytes; /* including this head, a multiple of 16 */
    uint32_t count; /* parameters; or bytes of data */
    uint32_t grid[3], threads, shared;
    uint16_t overlaps, cluster, by_torch;
    uint32_t addresses; /* at the start of a call's data */
} Item;

typedef struct {
    unsigned char *data;
    size_t used, capacity;
    uint32_t *at; /* where each launch begins */
    size_t count, most;
} Launches;

static Item *item_at(const Launches *launches, size_t i)
{
    return (Item *)(void *)(launches->data + launches->at[i]);
}

/* The addresses of a kernel's parameters. Descriptors must be aligned to 64 bytes in the host memory that the driver
   copies. */
static void parameters_of(Item *item, void **parameters)
{
    unsigned char *values = (unsigned char *)(item + 1);
    const uint16_t *at = (const uint16_t *)(void *)((unsigned char *)item + item->bytes) - item->count;
    for (uint32_t i = 0; i < item->count; i++)
        parameters[i] = values + at[i];
}

static int make_space(Launches *launches, size_t bytes)
{
    if (launches->used + bytes > launches->capacity) {
        size_t capacity = 2 * launches->capacity + bytes + 4096;
        unsigned char *data = aligned_alloc(64, (capacity + 63) / 64 * 64);
        if (data == NULL)
            return OUT_OF_MEMORY;
        if (launches->used > 0)
            memcpy(data, launches->data, launches->used);
        free(launches->data);
        launches->data = data;
        launches->capacity = capacity;
    }
    if (launches->count == launches->most) {
        size_t most = 2 * launches->most + 64;
        uint32_t *at = realloc(launches->at, most * sizeof *at);
        if (at == NULL)
            return OUT_OF_MEMORY;
        launches->at = at;
        launches->most = most;
    }
    return 0;
}

/* Appends a launch with this many zero bytes after its head. NULL if memory is short. */
static Item *append(Launches *launches, size_t bytes)
{
    size_t whole = (sizeof(Item) + bytes + 15) / 16 * 16;
    if (make_space(launches, whole) != 0)
        return NULL;
    launches->at[launches->count++] = (uint32_t)launches->used;
    Item *item = memset(launches->data + launches->used, 0, whole);
    item->bytes = (uint32_t)whole;
    launches->used += whole;
    return item;
}

static void forget(Launches *launches)
{
    free(launches->data);
    free(launches->at);
    *launches = (Launches){0};
}

static int copy(const Launches *from, Launches *to)
{
    *to = (Launches){0};
    to->data = aligned_alloc(64, (from->used + 63) / 64 * 64 + 64);
    to->at = malloc((from->count + 1) * sizeof *to->at);
    if (to->data == NULL || to->at == NULL) {
        forget(to);
        return OUT_OF_MEMORY;
    }
    memcpy(to->data, from->data, from->used);
    memcpy(to->at, from->at, from->count * sizeof *to->at);
    to->used = from->used;
    to->capacity = from->used;
    to->count = to->most = from->count;
    return 0;
}

static inline uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
    return hash ^ hash >> 32;
}

static uint64_t hash_of(const Launches *launches)
{
    const uint64_t *words = (const uint64_t *)(const void *)launches->data;
    uint64_t one = launches->count, other = launches->used;
    for (size_t i = 0; i < launches->used / 8; i += 2) { /* two chains at a time */
        one = mix(one, words[i]);
        other = mix(other, words[i + 1]);
    }
    return mix(one, other);
}

/* Hash of what graphs must have in common so that their nodes can exchange parameters. */
static uint64_t shape_of(const Launches *launches)
{
    uint64_t hash = launches->count;
    for (size_t i = 0; i < launches->count; i++) {
        const Item *item = item_at(launches, i);
        hash = mix(hash, (uint64_t)(uintptr_t)item->run);
        hash = mix(hash, item->run != NULL ? (uint64_t)(uintptr_t)item->function : (uint64_t)item->overlaps << 16 | item->cluster);
    }
    return hash;
}

static int same(const Item *one, const Item *other)
{
    return one->bytes == other->bytes && memcmp(one, other, one->bytes) == 0;
}
