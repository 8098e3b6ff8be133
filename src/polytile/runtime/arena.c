/* Part of the launcher, and of packages: places the memories of a program in its arena, for the sizes of a call.

   The largest memory is placed first, each at the lowest offset that no concurrently live memory occupies. An arena is
   live for the whole call. If it would raise peak memory above that of separate allocations, there is none. */

enum { PLANS = 8 };

typedef struct {
    int64_t *bytes;   /* of each memory; NULL: there is no plan */
    int64_t *offsets; /* of each memory; -1: outside */
    int64_t total;    /* 0: there is no arena at these sizes */
} ArenaPlan;

typedef struct {
    ArenaPlan plans[PLANS];
    int next;
} ArenaPlans;

static int64_t bytes_of(const Layout *layout, int64_t bytes_of_element, int64_t alignment)
{
    int64_t elements = 1;
    for (int64_t i = 0; i < layout->rank; i++) {
        if (layout->sizes[i] == 0)
            return 0;
        elements += (layout->sizes[i] - 1) * layout->strides[i];
    }
    return (elements * bytes_of_element + alignment - 1) / alignment * alignment;
}

static inline int needed_together(const Life *one, const Life *other)
{
    return one->first < other->last && other->first < one->last;
}

/* The lowest offset for memory `number` given those already placed: the end of one of them, or 0. */
static int64_t lowest_place(const Life *lives, const int64_t *bytes, const int64_t *offsets, int count, int number)
{
    int64_t place = 0;
    for (int i = 0; i < count; i++) {
        int clashes = offsets[i] >= 0 && needed_together(&lives[i], &lives[number]) && offsets[i] < place + bytes[number]
                      && place < offsets[i] + bytes[i];
        if (clashes) {
            place = offsets[i] + bytes[i];
            i = -1; /* start over, since the offset has moved */
        }
    }
    return place;
}

/* Peak bytes of the memories: of all, or only of those outside the arena. */
static int64_t peak_of(const Life *lives, const int64_t *bytes, int count, int outside_alone)
{
    int64_t peak = 0;
    for (int i = 0; i < count; i++) {
        int64_t alive = 0;
        for (int k = 0; k < count; k++)
            if (lives[k].first <= lives[i].first && lives[i].first < lives[k].last && !(outside_alone && lives[k].inside))
                alive += bytes[k];
        peak = alive > peak ? alive : peak;
    }
    return peak;
}

static void place_all(ArenaPlan *plan, const Life *lives, int count)
{
    for (int i = 0; i < count; i++)
        plan->offsets[i] = -1;
    plan->total = 0;
    for (;;) {
        int largest = -1;
        for (int i = 0; i < count; i++)
            if (lives[i].inside && plan->offsets[i] < 0 && (largest < 0 || plan->bytes[i] > plan->bytes[largest]))
                largest = i;
        if (largest < 0)
            break;
        plan->offsets[largest] = lowest_place(lives, plan->bytes, plan->offsets, count, largest);
        int64_t end = plan->offsets[largest] + plan->bytes[largest];
        plan->total = end > plan->total ? end : plan->total;
    }
    if (plan->total + peak_of(lives, plan->bytes, count, 1) > peak_of(lives, plan->bytes, count, 0))
        plan->total = 0;
}

/* The plan for memories of these sizes in bytes; NULL if memory is short. */
static const ArenaPlan *plan_for(ArenaPlans *plans, const Life *lives, const int64_t *bytes, int count)
{
    for (int i = 0; i < PLANS; i++)
        if (plans->plans[i].bytes != NULL && memcmp(plans->plans[i].bytes, bytes, (size_t)count * sizeof(int64_t)) == 0)
            return &plans->plans[i];
    ArenaPlan *plan = &plans->plans[plans->next++ % PLANS];
    if (plan->bytes == NULL && (plan->bytes = calloc(2 * (size_t)count, sizeof(int64_t))) == NULL)
        return NULL;
    plan->offsets = plan->bytes + count;
    memcpy(plan->bytes, bytes, (size_t)count * sizeof(int64_t));
    place_all(plan, lives, count);
    return plan;
}

static void free_plans(ArenaPlans *plans)
{
    for (int i = 0; i < PLANS; i++)
        free(plans->plans[i].bytes);
}
