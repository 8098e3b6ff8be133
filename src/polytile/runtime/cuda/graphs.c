/* Records the launches of a program and makes them together: as a CUDA graph, or one by one.

   A program runs as usual: it computes sizes, allocates and selects kernels. Its launches go into a record: a kernel
   with its grid and parameter bytes, or a library call with everything it depends on. Anything else that touches the
   stream flushes the record first, so a call of a program consists of one or more stretches of launches. The point of
   the program where a stretch starts is its place.

   A stretch is served in one of these ways:
     replay    by a graph whose launches are byte-identical
     update    by a graph of the same shape, after the differing nodes were given the record's parameters
     direct    by the driver's launches, one by one
   The one with the least host time is chosen; all three are timed on the program's own calls. Launches that occurred
   several times are captured in a call, and the background thread makes a graph of the capture. A capture in another
   thread would make the program fail where it waits for its device. The least recently used graphs are evicted, by count
   and by memory.

   A program whose calls of kernels are those of a graph, one after the other, is not recorded: the graph is followed, and
   launched at the end of the stretch. Where the program leaves the graph's way, the launches so far are taken over from
   the graph, and recording goes on.

   A graph owns no memory but what kernels keep zeroed. Each address in it comes from the current record, so arguments
   are not copied, results belong to the caller, and random seeds, changed sizes and changed arguments are ordinary
   parameters. Nothing here touches a Python object. */

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OUT_OF_MEMORY = 2, NOT_SUPPORTED = 801, INVALID_VALUE = 1 };
enum { RELAXED = 2, NON_BLOCKING = 1, KERNEL_NODE = 0 }; /* CU_STREAM_CAPTURE_MODE_RELAXED, CU_STREAM_NON_BLOCKING, CU_GRAPH_NODE_TYPE_KERNEL */
enum { COOPERATIVE = 2, CLUSTER = 4, MAY_OVERLAP = 6 };  /* CUlaunchAttributeID */
enum { LEAST_LAUNCHES = 4, MOST_PLACES = 64, MOST_GRAPHS = 6, SEEN = 32, COMES_BACK = 3 };
enum { FIRST_LAUNCHES = 3, FIRST_GRAPHS = 8, CALLS_A_GRAPH = 128, FRUITLESS = 64, REST = 1024, MOST_NODES_OF_CALL = 8, MOST_PARAMETERS = 256 };
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

/* ---- graphs ---- */

typedef struct Graph Graph;
typedef struct Place Place;

struct Graph {
    Launches launches; /* the current contents of its nodes */
    void *graph, *executable;
    void **nodes; /* the last node of each launch */
    int *counts;  /* nodes of each launch */
    uint64_t hash, shape, used;
    double seconds; /* host time of a launch; 0: not known yet, since the first launches take longer */
    int launched;
    size_t total;   /* nodes */
    Steps steps;    /* the calls that record these launches; none: not known */
    void *stream;   /* on which they do; */
    void *workspaces[USERS]; /* with these workspaces, */
    void **held;    /* and tensors */
    size_t held_count;
    atomic_int followers; /* programs that follow it now: it is neither changed nor deleted. Only the lock's holder adds one */
    Place *place;
    Graph *next; /* of all */
};

typedef struct {
    uint64_t hash;
    int times;
} Seen;

struct Place {
    Graph *graphs[MOST_GRAPHS];
    Seen seen[SEEN];
    int next;
    uint64_t stretches;
    double direct; /* host time of a stretch's launches one by one; 0: not known */
    uint64_t direct_shape;
    int made;
    int asked;     /* whether `captured` is to become a graph, or is becoming one */
    Graph *captured;
};

enum { LEARN = 1, GRAPH = 2 };
enum { REPLAYED, FOLLOWED, UPDATED, DIRECT, MADE, EVICTED, REFUSED, NODES_UPDATED, BUSY, SHORT, CALLS, RESTED, ENDED, NUMBERS = ENDED + REASONS };

typedef struct {
    Place places[MOST_PLACES];
    atomic_long numbers[NUMBERS];
    atomic_int error; /* the driver's last failure to make or update a graph */
    atomic_int wants;
    int fruitless, rest; /* calls since a graph ran; calls for which nothing is recorded any more */
    int ran, wanted;     /* in this call */
    atomic_llong workspace_bytes[USERS]; /* the most that calls have used; each takes it at once, so that addresses come again */
} Graphs;

typedef struct { /* the stream on which launches for another one are captured. torch's workspaces, of which each stream has its own,
                    are then never used by two streams at a time */
    void *of, *stream;
    int32_t device;
} Spare;

typedef struct { /* until the program has ended */
    void *tensor, *memory;
    int64_t bytes;
} Workspace;

typedef struct Record Record;

struct Record {
    Graphs *graphs;
    Launches launches;
    void **origins; /* of each launch */
    size_t most_origins;
    void **kept; /* tensors */
    size_t kept_count, most_kept;
    Steps steps;        /* the calls whose launches are recorded */
    int in_call, whole; /* within a call; whether the steps say it all */
    void *shared[MOST_SHARED]; /* of the kept tensors */
    size_t shared_count;
    Graph *followed;    /* whose first `passed` calls are those of the stretch; NULL: none */
    size_t passed;
    int64_t kept_bytes;
    Workspace workspaces[USERS];
    void *stream, *context, *origin, *failed;
    int32_t device;
    int place, code;
    Record *next; /* in the list of unused records */
};

static Api api;
static _Thread_local Record *current;

/* Everything below belongs to the holder of the lock. No call waits for it. */
static atomic_flag busy = ATOMIC_FLAG_INIT;
static Graph *all;
static uint64_t clock_of_use;
static size_t most_nodes = 8192;
static double seconds_of_node = 0.8e-6, seconds_of_written_call = 1.2e-6, seconds_of_call = 12e-6;
static Spare spares[64];

static Record *unused;
static atomic_flag taking = ATOMIC_FLAG_INIT;

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A low estimate that rises slowly: a launch that waits for room in the device's queue says nothing about the host. */
static double followed(double estimate, double seconds)
{
    return estimate == 0 || seconds < estimate ? seconds : estimate + (seconds - estimate) / 16;
}

static int try_lock(void)
{
    return !atomic_flag_test_and_set_explicit(&busy, memory_order_acquire);
}

static void unlock(void)
{
    atomic_flag_clear_explicit(&busy, memory_order_release);
}

static void wait_for_lock(void)
{
    while (!try_lock()) {
        struct timespec pause = {0, 20000};
        nanosleep(&pause, NULL);
    }
}

static void count(Graphs *graphs, int what, long by)
{
    atomic_fetch_add_explicit(&graphs->numbers[what], by, memory_order_relaxed);
}

static int launch_one(Item *item, void *stream)
{
    if (item->run != NULL)
        return item->run(item + 1, stream);
    void *parameters[MOST_PARAMETERS];
    parameters_of(item, parameters);
    Attribute attributes[2];
    unsigned count = 0;
    if (item->overlaps)
        attributes[count++] = (Attribute){.id = MAY_OVERLAP, .value = 1};
    if (item->cluster > 1)
        attributes[count++] = (Attribute){.id = CLUSTER, .value = item->cluster, .rest = {1, 1}};
    How how = {{item->grid[0], item->grid[1], item->grid[2]}, {item->threads, 1, 1}, item->shared, stream, attributes, count};
    return -api.launch_kernel(&how, item->function, parameters, NULL);
}

static void release_held(Graph *graph)
{
    while (graph->held_count > 0)
        api.delete_tensor(graph->held[--graph->held_count]);
    free(graph->held);
    graph->held = NULL;
}

static void delete_graph(Graph *graph)
{
    if (graph == NULL)
        return;
    for (Graph **at = &all; *at != NULL; at = &(*at)->next)
        if (*at == graph) {
            *at = graph->next;
            break;
        }
    if (graph->place != NULL)
        for (int i = 0; i < MOST_GRAPHS; i++)
            if (graph->place->graphs[i] == graph)
                graph->place->graphs[i] = NULL;
    if (graph->executable != NULL)
        api.delete_executable(graph->executable); /* the driver waits for running launches */
    if (graph->graph != NULL)
        api.delete_graph(graph->graph);
    forget(&graph->launches);
    forget_steps(&graph->steps);
    release_held(graph);
    free(graph->nodes);
    free(graph->counts);
    free(graph);
}

/* The only node that a node follows. */
static int node_before(void *node, void **before)
{
    size_t count = 0;
    Edge edge;
    int code = api.dependencies_with_edges != NULL ? api.dependencies_with_edges(node, NULL, NULL, &count)
                                                   : api.dependencies(node, NULL, &count);
    if (code != 0 || count != 1)
        return code != 0 ? code : NOT_SUPPORTED;
    return api.dependencies_with_edges != NULL ? api.dependencies_with_edges(node, before, &edge, &count)
                                               : api.dependencies(node, before, &count);
}

/* The last `count` nodes of a chain, in order. */
static int chain(void *last, int count, void **nodes)
{
    int code = 0;
    for (int i = count - 1; i >= 0 && code == 0; i--) {
        nodes[i] = last;
        if (i > 0)
            code = node_before(last, &last);
    }
    return code;
}

/* The node that the next node of a capture would follow, and the number of nodes. */
static int last_node(void *stream, void **node, size_t *total)
{
    int status;
    uint64_t recording;
    void *graph = NULL, **nodes = NULL;
    const Edge *edges = NULL;
    size_t count = 0;
    int code = api.capture_info_with_edges != NULL
                   ? api.capture_info_with_edges(stream, &status, &recording, &graph, &nodes, &edges, &count)
                   : api.capture_info(stream, &status, &recording, &graph, &nodes, &count);
    if (code == 0)
        code = api.nodes(graph, NULL, total);
    if (code != 0)
        return code;
    if (count != 1)
        return NOT_SUPPORTED;
    *node = nodes[0];
    return 0;
}

/* torch must know of a capture in which its functions take memory. */
static int begin_capture(const Spare *spare, int by_torch)
{
    int code = by_torch ? api.enter_capture(spare->device, spare->stream, spare->of) : 0;
    if (code != 0)
        return code;
    code = api.begin_capture(spare->stream, RELAXED);
    if (code != 0 && by_torch)
        api.leave_capture();
    return code;
}

static int end_capture(const Spare *spare, int by_torch, void **graph)
{
    int code = api.end_capture(spare->stream, graph);
    if (by_torch)
        api.leave_capture();
    return code;
}

static int has_calls_by_torch(const Launches *launches)
{
    int found = 0;
    for (size_t i = 0; i < launches->count; i++)
        found |= item_at(launches, i)->by_torch;
    return found;
}

static int capture(Graph *made, void *stream)
{
    size_t total = 0;
    int code = 0;
    for (size_t i = 0; i < made->launches.count && code == 0; i++) {
        size_t before = total;
        code = launch_one(item_at(&made->launches, i), stream);
        code = code < 0 ? -code : code;
        if (code == 0)
            code = last_node(stream, &made->nodes[i], &total);
        made->counts[i] = (int)(total - before);
        if (code == 0 && made->counts[i] < 1)
            code = NOT_SUPPORTED;
    }
    made->total = total;
    return code;
}

/* A graph of launches that cannot run yet, captured on a stream that nothing else uses. */
static int new_graph(const Launches *launches, const Spare *spare, Graph **result)
{
    Graph *made = calloc(1, sizeof(Graph));
    int code = made == NULL ? OUT_OF_MEMORY : copy(launches, &made->launches), by_torch = has_calls_by_torch(launches);
    if (code == 0) {
        made->nodes = calloc(launches->count, sizeof *made->nodes);
        made->counts = calloc(launches->count, sizeof *made->counts);
        code = made->nodes == NULL || made->counts == NULL ? OUT_OF_MEMORY : begin_capture(spare, by_torch);
    }
    if (code == 0) {
        code = capture(made, spare->stream);
        int ended = end_capture(spare, by_torch, &made->graph);
        code = code != 0 ? code : ended;
    }
    if (code != 0) {
        delete_graph(made);
        return code;
    }
    made->hash = hash_of(&made->launches);
    made->shape = shape_of(&made->launches);
    *result = made;
    return 0;
}

/* Lets a captured graph run. */
static int make_executable(Graph *graph, void *stream)
{
    int code = api.instantiate(&graph->executable, graph->graph, 0);
    if (code == 0)
        api.upload(graph->executable, stream);
    return code;
}

/* ---- updates ---- */

static int update_kernel(Graph *graph, size_t i, Item *item)
{
    void *parameters[MOST_PARAMETERS];
    parameters_of(item, parameters);
    NodeParameters given = {.function = item->function, .block = {item->threads, 1, 1}, .shared = item->shared};
    memcpy(given.grid, item->grid, sizeof given.grid);
    given.parameters = parameters;
    return api.set_parameters(graph->executable, graph->nodes[i], &given);
}

/* ---- the launches of library calls ----

   Learning them takes a capture, several µs. The result is stored: the parameters of each kernel, and the positions of
   the call's addresses among them. Another capture of the same call with other addresses shows whether nothing else
   changes. From then on, parameters for new addresses are written rather than captured. */

typedef struct {
    NodeParameters node;
    uint64_t attributes;
    uint32_t count, bytes;
    uint32_t at[MOST_PARAMETERS_OF_CALL];
    unsigned char *values;
} Learned;

typedef struct { /* an address of the call at an offset of the parameters */
    uint32_t kernel, at, address;
} Patch;

typedef struct { /* a call without its addresses */
    unsigned char *data; /* the call's data with the addresses it was learned with; NULL: nothing is known */
    int (*run)(const void *data, void *stream);
    uint32_t bytes, addresses;
    uint64_t alignment;
    uint32_t proved; /* one bit per address for which other values were seen, and were all that changed */
    int hopeless;
    int kernels, patches;
    Learned kernel[MOST_NODES_OF_CALL];
    Patch patch[MOST_PATCHES];
} Template;

static Template templates[TEMPLATES];

static uint64_t attributes_of(void *node)
{
    static const int attributes[] = {COOPERATIVE, CLUSTER, MAY_OVERLAP};
    uint64_t hash = 1;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        uint64_t value[8] = {0};
        int code = api.get_attribute(node, attributes[i], value);
        for (int k = 0; k < 8; k++)
            hash = mix(hash, code == 0 ? value[k] : (uint64_t)code);
    }
    return hash;
}

static void *const *addresses_of(const Item *item)
{
    return (void *const *)(const void *)(item + 1);
}

/* The alignment of each address, up to 256 bytes, since a library may depend on it. */
static uint64_t alignment_of(const Item *item)
{
    uint64_t all_of_them = 0;
    for (uint32_t i = 0; i < item->addresses; i++) {
        uintptr_t address = (uintptr_t)addresses_of(item)[i];
        all_of_them = all_of_them << 4 | (address == 0 ? 15 : (uint64_t)__builtin_ctzll(address | 256));
    }
    return all_of_them;
}

/* The slot of a call's template. */
static Template *template_of(const Item *item)
{
    size_t head = item->addresses * sizeof(void *);
    const unsigned char *data = (const unsigned char *)(item + 1);
    uint64_t alignment = alignment_of(item), hash = mix((uint64_t)(uintptr_t)item->run, alignment);
    for (size_t i = head; i + 8 <= item->count; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        hash = mix(hash, word);
    }
    Template *first = &templates[hash % TEMPLATES];
    for (size_t i = 0; i < 4; i++) {
        Template *found = &templates[(hash + i) % TEMPLATES];
        if (found->data == NULL)
            return found;
        if (found->run == item->run && found->bytes == item->count && found->alignment == alignment
            && memcmp(found->data + head, data + head, item->count - head) == 0)
            return found;
    }
    return first;
}

static void forget_template(Template *known)
{
    free(known->data);
    for (int i = 0; i < known->kernels; i++)
        free(known->kernel[i].values);
    memset(known, 0, sizeof *known);
}

static int is_of(const Template *known, const Item *item)
{
    size_t head = item->addresses * sizeof(void *);
    return known->data != NULL && known->run == item->run && known->bytes == item->count && known->alignment == alignment_of(item)
           && memcmp(known->data + head, (const unsigned char *)(item + 1) + head, item->count - head) == 0;
}

/* One bit per address that differs from the learned one. */
static uint32_t changed_addresses(const Template *known, const Item *item)
{
    uint32_t changed = 0;
    for (uint32_t i = 0; i < item->addresses; i++)
        changed |= (uint32_t)(addresses_of(item)[i] != ((void *const *)(void *)known->data)[i]) << i;
    return changed;
}

static int can_write(const Template *known, const Item *item)
{
    return is_of(known, item) && !known->hopeless && (changed_addresses(known, item) & ~known->proved) == 0;
}

/* Copies a kernel's parameters out of a node. */
static int learn_kernel(void *node, Learned *kernel)
{
    NodeParameters *given = &kernel->node;
    *kernel = (Learned){0};
    int code = api.get_parameters(node, given);
    if (code != 0 || given->function == NULL || given->parameters == NULL)
        return code != 0 ? code : NOT_SUPPORTED;
    size_t at, bytes, end = 0, count = 0;
    while (count < MOST_PARAMETERS_OF_CALL && api.parameter(given->function, count, &at, &bytes) == 0) {
        kernel->at[count++] = (uint32_t)at;
        end = at + bytes > end ? at + bytes : end;
    }
    if (count == MOST_PARAMETERS_OF_CALL || end > MOST_BYTES_OF_CALL || (kernel->values = calloc(1, end + 8)) == NULL)
        return NOT_SUPPORTED;
    for (size_t i = 0; i < count; i++)
        if (api.parameter(given->function, i, &at, &bytes) == 0)
            memcpy(kernel->values + at, given->parameters[i], bytes);
    kernel->count = (uint32_t)count;
    kernel->bytes = (uint32_t)end;
    kernel->attributes = attributes_of(node);
    given->parameters = given->extra = NULL;
    return 0;
}

static void write_addresses(const Template *known, const Item *item, uint32_t kernel, unsigned char *values)
{
    for (int i = 0; i < known->patches; i++)
        if (known->patch[i].kernel == kernel)
            memcpy(values + known->patch[i].at, &addresses_of(item)[known->patch[i].address], sizeof(void *));
}

static int find_addresses(Template *known, const Item *item)
{
    for (int k = 0; k < known->kernels; k++)
        for (uint32_t at = 0; at + 8 <= known->kernel[k].bytes; at += 8)
            for (uint32_t i = 0; i < item->addresses; i++) {
                void *address = addresses_of(item)[i];
                if (address == NULL || memcmp(known->kernel[k].values + at, &address, sizeof address) != 0)
                    continue;
                if (known->patches == MOST_PATCHES)
                    return NOT_SUPPORTED;
                known->patch[known->patches++] = (Patch){(uint32_t)k, at, i};
                break;
            }
    return 0;
}

static int equal_nodes(const NodeParameters *one, const NodeParameters *other)
{
    return one->function == other->function && one->shared == other->shared && one->kernel == other->kernel
           && memcmp(one->grid, other->grid, sizeof one->grid) == 0 && memcmp(one->block, other->block, sizeof one->block) == 0;
}

/* Compares a call's actual launches with what would have been written for it. */
static void prove(Template *known, const Item *item, void *const *nodes, int count)
{
    int equal = count == known->kernels;
    for (int k = 0; k < count && equal; k++) {
        const Learned *kernel = &known->kernel[k];
        Learned other;
        unsigned char values[MOST_BYTES_OF_CALL];
        equal = learn_kernel(nodes[k], &other) == 0 && equal_nodes(&kernel->node, &other.node) && kernel->bytes == other.bytes;
        if (equal) {
            memcpy(values, kernel->values, kernel->bytes);
            write_addresses(known, item, (uint32_t)k, values);
            equal = memcmp(values, other.values, kernel->bytes) == 0;
        }
        free(other.values);
    }
    if (equal)
        known->proved |= changed_addresses(known, item);
    else
        known->hopeless = 1;
}

/* Learns the launches of a call from its nodes. */
static void learn(const Item *item, void *const *nodes, int count)
{
    Template *known = template_of(item);
    if (api.parameter == NULL || count > MOST_NODES_OF_CALL || item->addresses > 8)
        return;
    if (is_of(known, item)) {
        if (!known->hopeless && !can_write(known, item))
            prove(known, item, nodes, count);
        return;
    }
    forget_template(known);
    known->data = malloc(item->count);
    if (known->data == NULL)
        return;
    memcpy(known->data, item + 1, item->count);
    known->run = item->run;
    known->bytes = item->count;
    known->addresses = item->addresses;
    known->alignment = alignment_of(item);
    for (; known->kernels < count; known->kernels++)
        if (learn_kernel(nodes[known->kernels], &known->kernel[known->kernels]) != 0) {
            free(known->kernel[known->kernels].values);
            known->hopeless = 1;
            return;
        }
    known->hopeless = find_addresses(known, item) != 0;
}

/* Gives the nodes of a library call the parameters known for it. */
static int write_call(Graph *graph, size_t i, const Item *item, const Template *known)
{
    void *nodes[MOST_NODES_OF_CALL];
    int code = graph->counts[i] == known->kernels ? chain(graph->nodes[i], known->kernels, nodes) : NOT_SUPPORTED;
    for (int k = 0; k < known->kernels && code == 0; k++) {
        const Learned *kernel = &known->kernel[k];
        unsigned char values[MOST_BYTES_OF_CALL];
        void *parameters[MOST_PARAMETERS_OF_CALL];
        NodeParameters given = kernel->node;
        memcpy(values, kernel->values, kernel->bytes);
        write_addresses(known, item, (uint32_t)k, values);
        for (uint32_t p = 0; p < kernel->count; p++)
            parameters[p] = values + kernel->at[p];
        given.parameters = parameters;
        code = kernel->attributes == attributes_of(nodes[k]) ? api.set_parameters(graph->executable, nodes[k], &given) : NOT_SUPPORTED;
    }
    return code;
}

/* Gives the nodes of a library call the parameters of the new call's nodes, of which there are equally many. */
static int replace_nodes(Graph *graph, size_t i, const Item *item, void *last, size_t total)
{
    void *nodes[MOST_NODES_OF_CALL], *old[MOST_NODES_OF_CALL];
    int count = graph->counts[i], code = 0, type = KERNEL_NODE;
    if ((size_t)count != total || count > MOST_NODES_OF_CALL)
        return NOT_SUPPORTED;
    code = chain(last, count, nodes);
    if (code == 0)
        code = chain(graph->nodes[i], count, old);
    for (int k = 0; k < count && code == 0; k++) {
        NodeParameters given = {0};
        code = api.type(nodes[k], &type);
        if (code == 0 && (type != KERNEL_NODE || attributes_of(nodes[k]) != attributes_of(old[k])))
            code = NOT_SUPPORTED;
        if (code == 0)
            code = api.get_parameters(nodes[k], &given);
        if (code == 0)
            code = api.set_parameters(graph->executable, old[k], &given);
    }
    if (code == 0)
        learn(item, nodes, count);
    return code;
}

/* Captures a single call. Returns its last node and number of nodes. The graph belongs to the caller. */
static int capture_call(Item *item, const Spare *spare, void **graph, void **last, size_t *total)
{
    int code = begin_capture(spare, item->by_torch);
    if (code != 0)
        return code;
    code = item->run(item + 1, spare->stream);
    code = code < 0 ? -code : code;
    if (code == 0)
        code = last_node(spare->stream, last, total);
    int ended = end_capture(spare, item->by_torch, graph);
    return code != 0 ? code : ended;
}

static int update_call(Graph *graph, size_t i, Item *item, const Spare *spare)
{
    void *captured = NULL, *last = NULL;
    size_t total = 0;
    int code = capture_call(item, spare, &captured, &last, &total);
    if (code == 0)
        code = replace_nodes(graph, i, item, last, total);
    if (captured != NULL)
        api.delete_graph(captured);
    return code;
}

/* Gives a graph the parameters of all launches that differ. If that fails, the graph is unusable. */
static int update(Graphs *graphs, Graph *graph, const Launches *launches, uint64_t hash, const Spare *spare)
{
    Launches own;
    long updated = 0;
    int code = copy(launches, &own);
    for (size_t i = 0; i < launches->count && code == 0; i++) {
        Item *item = item_at(launches, i);
        if (same(item, item_at(&graph->launches, i)))
            continue;
        updated++;
        double began = now(), *seconds = &seconds_of_node;
        const Template *known = item->run == NULL ? NULL : template_of(item);
        if (item->run == NULL) {
            code = update_kernel(graph, i, item);
        } else if (can_write(known, item)) {
            code = write_call(graph, i, item, known);
            seconds = &seconds_of_written_call;
        } else {
            code = update_call(graph, i, item, spare);
            seconds = &seconds_of_call;
        }
        *seconds = followed(*seconds, now() - began);
    }
    if (code != 0) {
        forget(&own);
        return code;
    }
    count(graphs, NODES_UPDATED, updated);
    forget(&graph->launches);
    graph->launches = own;
    graph->hash = hash;
    return 0;
}

/* Estimated seconds to update the differing nodes; the launches have the same shape. */
static double seconds_of_update(const Graph *graph, const Launches *launches)
{
    double seconds = 0;
    for (size_t i = 0; i < launches->count; i++) {
        const Item *item = item_at(launches, i);
        if (!same(item, item_at(&graph->launches, i)))
            seconds += item->run == NULL                         ? seconds_of_node
                       : can_write(template_of(item), item) ? seconds_of_written_call
                                                            : seconds_of_call;
    }
    return seconds;
}

/* ---- stretches ---- */

static int launch_each(Record *record)
{
    for (size_t i = 0; i < record->launches.count; i++) {
        int code = launch_one(item_at(&record->launches, i), record->stream);
        if (code != 0) {
            record->failed = record->origins[i];
            return code;
        }
    }
    return 0;
}

/* How often a hash has occurred recently, this time included. */
static int times_seen(Place *place, uint64_t hash)
{
    for (int i = 0; i < SEEN; i++)
        if (place->seen[i].hash == hash)
            return ++place->seen[i].times;
    place->seen[place->next++ % SEEN] = (Seen){hash, 1};
    return 1;
}

static int is_known(const Launches *launches)
{
    for (size_t i = 0; i < launches->count; i++) {
        const Item *item = item_at(launches, i);
        const Template *known = item->run == NULL ? NULL : template_of(item);
        if (known != NULL && !(is_of(known, item) && known->hopeless) && !can_write(known, item))
            return 0;
    }
    return 1;
}

/* What to do about launches that no graph has and that have occurred several times: a graph, if they are the same or of a
   shape without one; or learning the library calls, so that another graph can be updated. */
static int wants(Place *place, const Launches *launches, uint64_t hash, uint64_t shape)
{
    int again = times_seen(place, hash), alike = times_seen(place, ~shape), known = 0;
    for (int i = 0; i < MOST_GRAPHS; i++)
        known += place->graphs[i] != NULL && place->graphs[i]->shape == shape;
    if (place->asked)
        return 0;
    if ((again >= COMES_BACK || (known == 0 && alike >= COMES_BACK))
        && (uint64_t)place->made < FIRST_GRAPHS + place->stretches / CALLS_A_GRAPH)
        return GRAPH;
    return known > 0 && again > 1 && api.parameter != NULL && !is_known(launches) ? LEARN : 0;
}

/* A graph that the driver refuses to make counts among those made: it is not asked for again and again. */
static void refused(Graphs *graphs, Place *place, int code)
{
    place->made++;
    atomic_store(&graphs->error, code);
    count(graphs, REFUSED, 1);
}

static void ask_for_graph(Graphs *graphs, Place *place, const Launches *launches, const Spare *spare)
{
    int code = new_graph(launches, spare, &place->captured);
    if (code != 0) {
        refused(graphs, place, code);
        return;
    }
    place->asked = graphs->wanted = 1;
    atomic_store(&graphs->wants, 1);
}

/* Learns the launches of library calls that are not known yet. */
static void learn_calls(const Launches *launches, const Spare *spare)
{
    for (size_t i = 0; i < launches->count; i++) {
        Item *item = item_at(launches, i);
        void *captured = NULL, *last = NULL, *nodes[MOST_NODES_OF_CALL];
        size_t total = 0;
        const Template *known = item->run == NULL ? NULL : template_of(item);
        if (known != NULL && !(is_of(known, item) && known->hopeless) && !can_write(known, item)
            && capture_call(item, spare, &captured, &last, &total) == 0 && total <= MOST_NODES_OF_CALL
            && chain(last, (int)total, nodes) == 0)
            learn(item, nodes, (int)total);
        if (captured != NULL)
            api.delete_graph(captured);
    }
}

static Graph *exact(Place *place, const Launches *launches, uint64_t hash)
{
    for (int i = 0; i < MOST_GRAPHS; i++) {
        Graph *graph = place->graphs[i];
        if (graph != NULL && graph->hash == hash && graph->launches.used == launches->used
            && memcmp(graph->launches.data, launches->data, launches->used) == 0)
            return graph;
    }
    return NULL;
}

/* The graph of the same shape with the cheapest update, the least recently used among equals; `seconds` is its cost. */
static Graph *nearest(Place *place, const Launches *launches, uint64_t shape, double *seconds)
{
    Graph *found = NULL;
    for (int i = 0; i < MOST_GRAPHS; i++) {
        Graph *graph = place->graphs[i];
        if (graph == NULL || graph->shape != shape || graph->launches.count != launches->count || graph->followers > 0)
            continue;
        double own = seconds_of_update(graph, launches);
        if (found == NULL || own < *seconds || (own == *seconds && graph->used < found->used)) {
            found = graph;
            *seconds = own;
        }
    }
    return found;
}

static int launch_graph(Graphs *graphs, Graph *graph, void *stream)
{
    double began = now();
    int code = api.launch(graph->executable, stream);
    double seconds = now() - began;
    if (graph->launched++ >= FIRST_LAUNCHES)
        graph->seconds = followed(graph->seconds, seconds);
    graph->used = ++clock_of_use;
    graphs->ran = 1;
    return code;
}

/* Whether launches one by one would take the host longer than this. */
static int pays(const Place *place, uint64_t shape, double seconds)
{
    return place->direct == 0 || place->direct_shape != shape || seconds < place->direct;
}

/* Where launches of a record are captured; NULL if there is no further stream for captures. */
static const Spare *spare_of(const Record *record)
{
    for (size_t i = 0; i < sizeof spares / sizeof *spares; i++) {
        Spare *spare = &spares[i];
        if (spare->stream != NULL && spare->of == record->stream && spare->device == record->device)
            return spare;
        if (spare->stream == NULL) {
            *spare = (Spare){.of = record->stream, .device = record->device};
            return api.new_stream(&spare->stream, NON_BLOCKING) == 0 ? spare : NULL;
        }
    }
    return NULL;
}

/* Lets later calls that are those of the record follow the graph, which has its launches. */
static void learn_way(const Record *record, Graph *graph)
{
    if (graph->followers > 0)
        return;
    clear_steps(&graph->steps);
    release_held(graph);
    if (!record->whole || record->shared_count > MOST_SHARED || record->steps.count == 0)
        return;
    graph->held = malloc((record->shared_count + 1) * sizeof *graph->held);
    if (graph->held == NULL)
        return;
    for (size_t i = 0; i < record->shared_count; i++, graph->held_count++)
        if (api.new_handle(record->shared[i], &graph->held[i]) != 0)
            return;
    graph->stream = record->stream;
    for (int user = 0; user < USERS; user++)
        graph->workspaces[user] = record->workspaces[user].memory;
    copy_steps(&record->steps, record->steps.count, &graph->steps);
}

enum { REPLAYS = 1, UPDATES };

/* Runs the record as a graph, and returns how. Returns 0 if nothing was done and it must be launched one by one. The
   caller holds the lock. */
static int run_graph(Record *record, Place *place, uint64_t hash, uint64_t shape)
{
    Graphs *graphs = record->graphs;
    Graph *graph = exact(place, &record->launches, hash);
    int what = REPLAYED, code;
    if (graph != NULL && !pays(place, shape, graph->seconds))
        return 0;
    if (graph == NULL) {
        double seconds = 0;
        graph = nearest(place, &record->launches, shape, &seconds);
        const Spare *spare = spare_of(record);
        if (graph == NULL || spare == NULL || !pays(place, shape, graph->seconds + seconds))
            return 0;
        code = update(graphs, graph, &record->launches, hash, spare);
        if (code != 0) {
            atomic_store(&graphs->error, code);
            count(graphs, REFUSED, 1);
            delete_graph(graph);
            return 0;
        }
        what = UPDATED;
    }
    code = launch_graph(graphs, graph, record->stream);
    if (code != 0) {
        record->code = -code;
        record->failed = record->origins[0];
        return REPLAYS;
    }
    count(graphs, what, 1);
    learn_way(record, graph);
    return what == REPLAYED ? REPLAYS : UPDATES;
}

static void make_stretch(Record *record)
{
    Graphs *graphs = record->graphs;
    Place *place = record->place < MOST_PLACES ? &graphs->places[record->place] : NULL;
    record->place++;
    int graph_serves = 0, has_lock = 0;
    uint64_t hash = 0, shape = 0;
    if (place == NULL || record->launches.count < LEAST_LAUNCHES)
        count(graphs, SHORT, 1);
    else if ((has_lock = try_lock()) == 0)
        count(graphs, BUSY, 1);
    if (has_lock) {
        hash = hash_of(&record->launches);
        shape = shape_of(&record->launches);
        place->stretches++;
        graph_serves = run_graph(record, place, hash, shape);
        const Spare *spare = spare_of(record);
        int what = graph_serves == REPLAYS || spare == NULL ? 0 : wants(place, &record->launches, hash, shape);
        what = graph_serves && what == LEARN ? 0 : what;
        if (what == GRAPH)
            ask_for_graph(graphs, place, &record->launches, spare);
        else if (what == LEARN)
            learn_calls(&record->launches, spare);
        unlock();
    }
    if (graph_serves)
        return;
    double began = now();
    record->code = launch_each(record);
    double seconds = now() - began;
    count(graphs, DIRECT, has_lock);
    if (has_lock && record->code == 0 && try_lock()) {
        place->direct = place->direct_shape == shape ? followed(place->direct, seconds) : seconds;
        place->direct_shape = shape;
        unlock();
    }
}

static void release_kept(Record *record)
{
    while (record->kept_count > 0)
        api.delete_tensor(record->kept[--record->kept_count]);
    record->kept_bytes = 0;
    record->shared_count = 0;
}

static void make_pending(Record *record, int why);

/* Deletes the tensor after the next launches are made. */
static void keep_until_made(Record *record, void *tensor)
{
    if (record->kept_count == record->most_kept) {
        size_t most = 2 * record->most_kept + 64;
        void **kept = realloc(record->kept, most * sizeof *kept);
        if (kept == NULL) {
            make_pending(record, FOR_MEMORY);
            api.delete_tensor(tensor);
            return;
        }
        record->kept = kept;
        record->most_kept = most;
    }
    record->kept[record->kept_count++] = tensor;
}

static void keep_shared(Record *record, void *handle)
{
    if (record->shared_count < MOST_SHARED)
        record->shared[record->shared_count] = handle;
    record->shared_count++;
    keep_until_made(record, handle);
}

/* ---- following a graph ---- */

/* Appends a launch to the thread's record. NULL if memory is short. */
static Item *add(size_t bytes)
{
    Launches *launches = &current->launches;
    if (launches->count == current->most_origins) {
        size_t most = 2 * launches->count + 64;
        void **origins = realloc(current->origins, most * sizeof *origins);
        if (origins == NULL)
            return NULL;
        current->origins = origins;
        current->most_origins = most;
    }
    Item *item = append(launches, bytes);
    if (item != NULL)
        current->origins[launches->count - 1] = current->origin;
    return item;
}


/* Whether the next call of a record that has come the way of `count` of its calls may be step number `count` of the
   graph. */
static int leads_on(const Record *record, const Graph *graph, const uint64_t *words, size_t count)
{
    int alike = graph->stream == record->stream && is_step(&graph->steps, record->passed, words, count);
    for (int user = 0; user < USERS; user++)
        alike = alike && graph->workspaces[user] == record->workspaces[user].memory;
    return alike && (record->followed == NULL || begin_alike(&graph->steps, &record->followed->steps, record->passed));
}

/* Follows a graph of the place that this call leads on, in place of another one or at the start of a stretch. Returns 0
   if there is none. */
static int find_way(Record *record, const uint64_t *words, size_t count)
{
    Graph *found = NULL;
    if (record->place >= MOST_PLACES || record->launches.count > 0 || record->steps.count > 0 || record->code != 0 || !try_lock())
        return 0;
    Place *place = &record->graphs->places[record->place];
    for (int i = 0; i < MOST_GRAPHS && found == NULL; i++)
        if (place->graphs[i] != NULL && leads_on(record, place->graphs[i], words, count))
            found = place->graphs[i];
    if (found != NULL) {
        atomic_fetch_add(&found->followers, 1);
        if (record->followed != NULL)
            atomic_fetch_sub(&record->followed->followers, 1);
        record->followed = found;
    }
    unlock();
    return found != NULL;
}

/* Appends the first launches of the other. Nonzero if memory is short. */
static int take_over_launches(Record *record, const Launches *from, const Steps *steps, size_t passed)
{
    size_t next = 0;
    for (size_t i = 0; i < passed; i++) {
        record->origin = steps->steps[i].origin;
        for (; next < steps->steps[i].launches; next++) {
            const Item *given = item_at(from, next);
            Item *item = add(given->bytes - sizeof *given);
            if (item == NULL)
                return OUT_OF_MEMORY;
            memcpy(item, given, given->bytes);
        }
    }
    return 0;
}

/* Goes on as if the calls that went a graph's way had been recorded. */
static void leave_way(Record *record)
{
    Graph *graph = record->followed;
    record->followed = NULL;
    if (graph == NULL)
        return;
    void *origin = record->origin, *handle;
    int code = take_over_launches(record, &graph->launches, &graph->steps, record->passed);
    record->whole = copy_steps(&graph->steps, record->passed, &record->steps) == 0;
    for (size_t i = 0; i < graph->held_count && code == 0; i++)
        if ((code = api.new_handle(graph->held[i], &handle)) == 0)
            keep_shared(record, handle);
    record->code = code != 0 ? -OUT_OF_MEMORY : record->code;
    record->origin = origin;
    record->passed = 0;
    atomic_fetch_sub(&graph->followers, 1);
}

/* Launches the followed graph if the stretch ends where it does. */
static void make_followed(Record *record)
{
    Graph *graph = record->followed;
    if (record->passed != graph->steps.count || !try_lock()) {
        leave_way(record);
        return;
    }
    int code = launch_graph(record->graphs, graph, record->stream);
    graph->place->stretches++;
    unlock();
    record->code = -code;
    record->failed = code != 0 ? graph->steps.steps[0].origin : NULL;
    record->followed = NULL;
    record->passed = 0;
    record->place++;
    count(record->graphs, REPLAYED, 1);
    count(record->graphs, FOLLOWED, 1);
    atomic_fetch_sub(&graph->followers, 1);
}

/* Launches what is recorded, unless an earlier launch of the record failed. */
static void make_pending(Record *record, int why)
{
    if (record->followed != NULL || record->launches.count > 0)
        count(record->graphs, ENDED + why, 1);
    if (record->followed != NULL)
        make_followed(record);
    record->whole &= !record->in_call;
    if (record->launches.count > 0) {
        if (record->code == 0)
            make_stretch(record);
        record->launches.count = record->launches.used = 0;
    }
    release_kept(record);
    clear_steps(&record->steps);
    record->whole = !record->in_call;
}

/* ---- calls of kernels ---- */

static int next(const uint64_t *words, size_t count, void *const **slots)
{
    Record *record = current;
    if (record == NULL)
        return -1;
    int known = record->followed != NULL && is_step(&record->followed->steps, record->passed, words, count);
    if (!known && !find_way(record, words, count))
        return -1;
    const Step *step = &record->followed->steps.steps[record->passed];
    *slots = step->counters;
    return step->counter_count;
}

static void pass(void)
{
    current->passed++;
}

static void begin_call(const uint64_t *words, size_t count, void *slot)
{
    Record *record = current;
    if (record == NULL)
        return;
    leave_way(record);
    record->in_call = 1;
    record->whole &= add_step(&record->steps, words, count, record->origin, slot) == 0;
}

/* A call that has recorded nothing may have launched by itself. */
static void end_call(int successful)
{
    Record *record = current;
    if (record == NULL)
        return;
    record->in_call = 0;
    size_t count = record->steps.count;
    if (count == 0)
        return;
    Step *step = &record->steps.steps[count - 1];
    step->launches = record->launches.count;
    record->whole &= successful && step->launches > (count > 1 ? step[-1].launches : 0);
}

static Step *step_of_call(void)
{
    return current != NULL && current->in_call && current->steps.count > 0 ? &current->steps.steps[current->steps.count - 1] : NULL;
}

static void counts(void *slot)
{
    Step *step = step_of_call();
    if (step != NULL && step->counter_count < MOST_COUNTERS)
        step->counters[step->counter_count++] = slot;
    else if (step != NULL)
        current->whole = 0;
}

static void watch(volatile int32_t *error)
{
    Step *step = step_of_call();
    if (step != NULL && step->error_count < MOST_ERRORS)
        step->errors[step->error_count++] = error;
    else if (step != NULL)
        current->whole = 0;
}

/* ---- the recorder ---- */

static void make(int why)
{
    if (current != NULL)
        make_pending(current, why);
}

static int holds(void)
{
    return current != NULL && (current->launches.count > 0 || current->followed != NULL);
}

static int records(int32_t device, void *context, void *stream)
{
    if (current == NULL)
        return 0;
    if (current->device == device && current->context == context && current->stream == stream)
        return 1;
    make_pending(current, FOR_LIBRARY);
    return 0;
}

static int records_here(int32_t device)
{
    void *context = NULL, *stream = NULL;
    return current != NULL && api.get_context(&context) == 0 && api.current_stream(device, &stream) == 0
           && records(device, context, stream);
}

static int add_kernel(const How *how, void *function, void *const *parameters, const uint32_t *bytes, unsigned count)
{
    size_t all_bytes = 0;
    for (unsigned i = 0; i < count; i++)
        all_bytes += (bytes[i] + 7) / 8 * 8;
    if (count > MOST_PARAMETERS || all_bytes > UINT16_MAX)
        return NOT_SUPPORTED;
    Item *item = add(all_bytes + count * sizeof(uint16_t));
    if (item == NULL)
        return OUT_OF_MEMORY;
    item->function = function;
    item->count = count;
    memcpy(item->grid, how->grid, sizeof item->grid);
    item->threads = how->block[0];
    item->shared = how->shared;
    for (unsigned i = 0; i < how->count; i++)
        *(how->attributes[i].id == CLUSTER ? &item->cluster : &item->overlaps) = (uint16_t)how->attributes[i].value;
    unsigned char *values = (unsigned char *)(item + 1);
    uint16_t *at = (uint16_t *)(void *)((unsigned char *)item + item->bytes) - count;
    for (size_t i = 0, next = 0; i < count; next += (bytes[i] + 7) / 8 * 8, i++) {
        memcpy(values + next, parameters[i], bytes[i]);
        at[i] = (uint16_t)next;
    }
    return 0;
}

static int add_call(int (*run)(const void *data, void *stream), uint64_t kind, const void *data, size_t bytes, unsigned addresses,
                    int by_torch)
{
    Item *item = add(bytes);
    if (item == NULL)
        return OUT_OF_MEMORY;
    item->run = run;
    item->function = (void *)(uintptr_t)kind;
    item->count = (uint32_t)bytes;
    item->addresses = addresses;
    item->by_torch = (uint16_t)by_torch;
    memcpy(item + 1, data, bytes);
    return 0;
}

static void keep(void *tensor, int64_t bytes)
{
    if (!holds()) {
        api.delete_tensor(tensor);
        return;
    }
    keep_until_made(current, tensor);
    current->kept_bytes += bytes;
    if (current->kept_bytes > MOST_KEPT_BYTES)
        make_pending(current, FOR_MEMORY);
}

static void share(void *tensor)
{
    void *handle = NULL;
    if (current != NULL && api.new_handle(tensor, &handle) == 0)
        keep_shared(current, handle);
}

static int workspace(int user, int64_t bytes, void **pointer)
{
    Workspace *own = &current->workspaces[user];
    if (bytes > atomic_load_explicit(&current->graphs->workspace_bytes[user], memory_order_relaxed))
        atomic_store_explicit(&current->graphs->workspace_bytes[user], bytes, memory_order_relaxed);
    if (bytes > own->bytes) {
        int64_t stride = 1;
        void *tensor = NULL;
        if (api.new_tensor(1, &bytes, &stride, TORCH_UINT8, TORCH_CUDA, current->device, &tensor) != 0)
            return OUT_OF_MEMORY;
        if (own->tensor != NULL)
            keep_until_made(current, own->tensor);
        *own = (Workspace){.tensor = tensor, .bytes = bytes};
        if (api.data_pointer(tensor, &own->memory) != 0)
            return OUT_OF_MEMORY;
    }
    *pointer = own->memory;
    return 0;
}

static void release_workspaces(Record *record)
{
    for (int user = 0; user < USERS; user++)
        if (record->workspaces[user].tensor != NULL)
            api.delete_tensor(record->workspaces[user].tensor);
    memset(record->workspaces, 0, sizeof record->workspaces);
}

static void *new_graphs(void)
{
    return calloc(1, sizeof(Graphs));
}

static void delete_graphs(void *given)
{
    Graphs *graphs = given;
    if (graphs == NULL)
        return;
    wait_for_lock();
    for (int i = 0; i < MOST_PLACES; i++) {
        for (int k = 0; k < MOST_GRAPHS; k++)
            delete_graph(graphs->places[i].graphs[k]);
        delete_graph(graphs->places[i].captured);
    }
    unlock();
    free(graphs);
}

/* Whether this call's launches are recorded. Recording pauses when graphs have served none of many calls. */
static int is_awake(Graphs *graphs)
{
    count(graphs, CALLS, 1);
    if (graphs->rest > 0) {
        graphs->rest--;
        count(graphs, RESTED, 1);
        return 0;
    }
    graphs->fruitless = graphs->ran || graphs->wanted ? 0 : graphs->fruitless + 1;
    graphs->ran = graphs->wanted = 0;
    if (graphs->fruitless > FRUITLESS) {
        graphs->fruitless = 0;
        graphs->rest = REST;
    }
    return 1;
}

/* Takes what calls have used before. Calls that take the same memory in the same order often get the same addresses. */
static void take_workspaces(Record *record)
{
    for (int user = 0; user < USERS; user++) {
        int64_t bytes = atomic_load_explicit(&record->graphs->workspace_bytes[user], memory_order_relaxed);
        void *pointer;
        if (bytes > 0)
            workspace(user, bytes, &pointer);
    }
}

static void *begin(void *given, int32_t device)
{
    Graphs *graphs = given;
    void *stream = NULL, *context = NULL;
    int status = 0;
    uint64_t recording;
    if (current != NULL || !is_awake(graphs) || api.current_stream(device, &stream) != 0 || device < 0 || device >= 64
        || api.get_context(&context) != 0 || context == NULL
        || api.capture_info(stream, &status, &recording, NULL, NULL, NULL) != 0 || status != 0)
        return NULL;
    Record *record = NULL;
    if (!atomic_flag_test_and_set_explicit(&taking, memory_order_acquire)) {
        record = unused;
        if (record != NULL)
            unused = record->next;
        atomic_flag_clear_explicit(&taking, memory_order_release);
    }
    if (record == NULL && (record = calloc(1, sizeof(Record))) == NULL)
        return NULL;
    record->graphs = graphs;
    record->stream = stream;
    record->context = context;
    record->device = device;
    record->place = record->code = record->in_call = 0;
    record->whole = 1;
    record->failed = record->origin = NULL;
    current = record;
    take_workspaces(record);
    return record;
}

static void end(void *given)
{
    Record *record = given;
    make_pending(record, FOR_END);
    release_workspaces(record);
    current = NULL;
    while (atomic_flag_test_and_set_explicit(&taking, memory_order_acquire))
        ;
    record->next = unused;
    unused = record;
    atomic_flag_clear_explicit(&taking, memory_order_release);
}

static void set(void *record)
{
    current = record;
}

static void tell(void *origin)
{
    if (current != NULL)
        current->origin = origin;
}

static int finish(void *given, int why, void **origin)
{
    Record *record = given;
    make_pending(record, why);
    int code = record->code;
    *origin = record->failed;
    record->code = 0;
    record->failed = NULL;
    return code;
}

static int wants_graph(void *graphs)
{
    return atomic_load_explicit(&((Graphs *)graphs)->wants, memory_order_relaxed)
           && atomic_exchange(&((Graphs *)graphs)->wants, 0);
}

static const Recorder recorder = {
    records, records_here, add_kernel, add_call, holds, keep, share, workspace, make, next, pass, begin_call, end_call, counts, watch,
     new_graphs, delete_graphs, begin, end, set, tell, finish, wants_graph,
};

/* ---- for Python ---- */

const Recorder *polytile_graphs_recorder(const Api *functions, size_t nodes)
{
    api = *functions;
    most_nodes = nodes;
    return &recorder;
}

/* Evicts graphs, least recently used first, until `more` nodes fit. */
static void evict(Graphs *graphs, size_t more)
{
    for (;;) {
        size_t total = more;
        Graph *oldest = NULL;
        for (Graph *graph = all; graph != NULL; graph = graph->next) {
            total += graph->total;
            if (graph->followers == 0 && (oldest == NULL || graph->used < oldest->used))
                oldest = graph;
        }
        if (oldest == NULL || total <= most_nodes)
            return;
        delete_graph(oldest);
        count(graphs, EVICTED, 1);
    }
}

/* Learns the launches of the library calls of a new graph. */
static void learn_graph(const Graph *graph)
{
    void *nodes[MOST_NODES_OF_CALL];
    for (size_t i = 0; i < graph->launches.count; i++) {
        const Item *item = item_at(&graph->launches, i);
        int count = graph->counts[i];
        if (item->run != NULL && count <= MOST_NODES_OF_CALL && chain(graph->nodes[i], count, nodes) == 0)
            learn(item, nodes, count);
    }
}

/* The place for a further graph: an unused one, or else the least recently used. -1: all are being followed. */
static int place_for_graph(const Place *place)
{
    int at = -1;
    for (int i = 0; i < MOST_GRAPHS; i++) {
        const Graph *graph = place->graphs[i];
        if (graph == NULL)
            return i;
        if (graph->followers == 0 && (at < 0 || graph->used < place->graphs[at]->used))
            at = i;
    }
    return at;
}

static void put(Graphs *graphs, Place *place, Graph *graph)
{
    evict(graphs, graph->total);
    int at = place_for_graph(place);
    if (at < 0) {
        delete_graph(graph);
        return;
    }
    if (place->graphs[at] != NULL) {
        delete_graph(place->graphs[at]);
        count(graphs, EVICTED, 1);
    }
    graph->place = place;
    graph->used = ++clock_of_use;
    graph->next = all;
    all = graph;
    place->graphs[at] = graph;
    place->made++;
    learn_graph(graph);
    count(graphs, MADE, 1);
}

/* Makes the captured graphs runnable, with uploads on the caller's stream. What their launches depend on must stay
   alive. */
void polytile_graphs_make(Graphs *graphs, void *stream)
{
    for (int i = 0; i < MOST_PLACES; i++) {
        Place *place = &graphs->places[i];
        wait_for_lock();
        Graph *graph = place->captured;
        place->captured = NULL;
        unlock();
        if (graph == NULL)
            continue;
        int code = make_executable(graph, stream);
        wait_for_lock();
        if (code == 0) {
            put(graphs, place, graph);
        } else {
            refused(graphs, place, code);
            delete_graph(graph);
        }
        place->asked = 0;
        unlock();
    }
}

/* In a forked child, which lacks its parent's other threads. */
void polytile_graphs_forked(void)
{
    unlock();
    atomic_flag_clear(&taking);
    current = NULL;
}

/* Statistics of a program's graphs, then: the driver's last failure, the number of graphs and their nodes, of this and
   of all programs; host ns of all stretches of a call launched one by one, if known, of launching graphs, and of
   updating a node and a library call. */
void polytile_graphs_numbers(Graphs *graphs, int64_t *numbers)
{
    for (int i = 0; i < NUMBERS; i++)
        numbers[i] = atomic_load(&graphs->numbers[i]);
    int64_t *own = numbers + NUMBERS;
    memset(own, 0, 13 * sizeof *own);
    own[0] = atomic_load(&graphs->error);
    wait_for_lock();
    for (Graph *graph = all; graph != NULL; graph = graph->next) {
        int mine = graph->place >= graphs->places && graph->place < graphs->places + MOST_PLACES;
        own[1] += mine;
        own[2] += mine ? (int64_t)graph->total : 0;
        own[3]++;
        own[4] += (int64_t)graph->total;
    }
    for (int i = 0; i < MOST_PLACES; i++) {
        const Graph *last = NULL;
        own[5] += (int64_t)(1e9 * graphs->places[i].direct);
        for (int k = 0; k < MOST_GRAPHS; k++) {
            const Graph *graph = graphs->places[i].graphs[k];
            last = graph != NULL && (last == NULL || graph->used > last->used) ? graph : last;
        }
        own[6] += last == NULL ? 0 : (int64_t)(1e9 * last->seconds);
    }
    own[7] = (int64_t)(1e9 * seconds_of_node);
    own[8] = (int64_t)(1e9 * seconds_of_call);
    own[9] = (int64_t)(1e9 * seconds_of_written_call);
    for (int i = 0; i < TEMPLATES; i++) {
        own[10] += templates[i].data != NULL;
        own[11] += templates[i].proved != 0 && !templates[i].hopeless;
        own[12] += templates[i].hopeless;
    }
    unlock();
}
