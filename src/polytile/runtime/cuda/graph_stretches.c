/* Part of the recorder: stretches of launches, the graphs that serve them, and calls that follow a graph. */

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

/* The background may have dropped what it was asked. */
static void ask_again(Graphs *graphs, Place *place)
{
    place->asked++;
    if (place->captured != NULL && place->asked >= ASKED_AGAIN && (place->asked & (place->asked - 1)) == 0)
        atomic_store(&graphs->wants, 1);
}

/* What to do about launches that no graph has and that have occurred several times: a graph, if they are the same or of a
   shape without one; or learning the library calls, so that another graph can be updated. */
static int wants(Graphs *graphs, Place *place, const Launches *launches, uint64_t hash, uint64_t shape)
{
    int again = times_seen(place, hash), alike = times_seen(place, ~shape), known = 0;
    for (int i = 0; i < MOST_GRAPHS; i++)
        known += place->graphs[i] != NULL && place->graphs[i]->shape == shape;
    if (place->asked) {
        ask_again(graphs, place);
        return 0;
    }
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
        if (own >= NEVER)
            continue;
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
        int what = graph_serves == REPLAYS || spare == NULL ? 0 : wants(graphs, place, &record->launches, hash, shape);
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
    if (why == FOR_DEVICE)
        record->part += record->part / 2;
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

/* A device that waits for a long stretch to be complete is idle meanwhile. So the first part of a call is short; each further one
   is longer by half, which takes the host about as long as the device is busy with the part before. */
static int is_due(void)
{
    Record *record = current;
    if (record == NULL)
        return 0;
    const Graph *graph = record->followed;
    size_t launches = graph == NULL ? record->launches.count : record->passed == 0 ? 0 : graph->steps.steps[record->passed - 1].launches;
    return launches >= record->part;
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
