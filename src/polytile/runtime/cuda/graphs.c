/* Records the launches of a program and makes them together: as a CUDA graph, or one by one.

   A program runs as usual: it computes sizes, allocates and selects kernels. Its launches go into a record: a kernel
   with its grid and parameter bytes, or a library call with everything it depends on. Anything else that touches the
   stream flushes the record first, and a long record is flushed early for the device to begin. So a call of a program
   consists of one or more stretches of launches. The point of the program where a stretch starts is its place.

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
        Workspace larger = {.bytes = bytes};
        if (api.new_tensor(1, &bytes, &stride, TORCH_UINT8, TORCH_CUDA, current->device, &larger.tensor) != 0)
            return OUT_OF_MEMORY;
        if (api.data_pointer(larger.tensor, &larger.memory) != 0) {
            api.delete_tensor(larger.tensor);
            return OUT_OF_MEMORY;
        }
        if (own->tensor != NULL)
            keep_until_made(current, own->tensor);
        *own = larger;
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
    record->part = FIRST_PART;
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
    records, records_here, add_kernel, add_call, holds, keep, share, workspace, make, next, pass, begin_call, end_call, counts, watch, is_due,
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
