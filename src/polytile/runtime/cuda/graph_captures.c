/* Part of the recorder: its state, captures, and graphs that are made of them. */

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
    int asked;     /* stretches since `captured` was asked to become a graph; 0: it was not, or is one */
    Graph *captured;
};

enum { LEARN = 1, GRAPH = 2 };
enum { REPLAYED, FOLLOWED, UPDATED, DIRECT, MADE, EVICTED, REFUSED, NODES_UPDATED, BUSY, SHORT, CALLS, RESTED, ENDED, NUMBERS = ENDED + REASONS };

typedef struct {
    Place places[MOST_PLACES];
    atomic_long numbers[NUMBERS];
    atomic_int error; /* the driver's last failure to make or update a graph */
    atomic_int wants;
    atomic_int fruitless, rest; /* calls since a graph ran; calls for which nothing is recorded any more */
    atomic_int ran, wanted;     /* in this call */
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
    size_t part;        /* launches after which the stretch is made though nothing ends it */
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
    else
        graph->executable = NULL;
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
