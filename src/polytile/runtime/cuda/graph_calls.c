/* Part of the recorder: what calls of libraries launch, and graphs that are given other parameters. */

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
    int hopeless, fixed; /* its launches cannot be known; nor can nodes be given those of another call */
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

/* Makes a template that of a call, of which nothing else is known yet. Returns 0 if memory is short. */
static int begin_template(Template *known, const Item *item)
{
    forget_template(known);
    known->data = malloc(item->count);
    if (known->data == NULL)
        return 0;
    memcpy(known->data, item + 1, item->count);
    known->run = item->run;
    known->bytes = item->count;
    known->addresses = item->addresses;
    known->alignment = alignment_of(item);
    return 1;
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
    if (!begin_template(known, item))
        return;
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

/* Remembers that a graph with this call cannot be updated to other addresses of it. */
static void fix(const Item *item)
{
    Template *known = template_of(item);
    if (is_of(known, item) || begin_template(known, item))
        known->hopeless = known->fixed = 1;
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
    if (code != 0)
        fix(item);
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
    clear_steps(&graph->steps); /* which record other launches */
    graph->launches = own;
    graph->hash = hash;
    return 0;
}

static const double NEVER = 1e9;

/* Estimated seconds to update the differing nodes; the launches have the same shape. */
static double seconds_of_update(const Graph *graph, const Launches *launches)
{
    double seconds = 0;
    for (size_t i = 0; i < launches->count; i++) {
        const Item *item = item_at(launches, i);
        const Template *known = item->run == NULL ? NULL : template_of(item);
        if (!same(item, item_at(&graph->launches, i)))
            seconds += known == NULL                        ? seconds_of_node
                       : can_write(known, item)             ? seconds_of_written_call
                       : is_of(known, item) && known->fixed ? NEVER
                                                            : seconds_of_call;
    }
    return seconds;
}
