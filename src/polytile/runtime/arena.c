/* Part of the launcher, and of packages: places the memories of a program in its arena, for the sizes of a call.

   One memory after another is placed at the lowest offset that no concurrently live memory occupies, in several orders,
   of which the one with the smallest arena counts: the largest first takes up to half more than needed. An arena is live
   for the whole call. If it would raise peak memory above that of separate allocations that are given back as soon as they
   can be, there is none, except where nothing is given back before the call ends. */

enum { PLANS = 8 };
enum { LARGEST, EARLIEST, LONGEST, LARGEST_FOR_LONGEST, ORDERS };

typedef struct {
    int64_t *bytes;   /* of each memory; NULL: there is no plan */
    int64_t *offsets; /* of each memory; -1: outside */
    int64_t total;    /* 0: there is no arena at these sizes */
    int64_t placed;   /* bytes of the arena, though it may raise the peak */
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

/* Peak bytes of the memories: of those that may lie in the arena (1), of the others (0), or of all (-1). */
static int64_t peak_of(const Life *lives, const int64_t *bytes, int count, int inside)
{
    int64_t peak = 0;
    for (int i = 0; i < count; i++) {
        int64_t alive = 0;
        for (int k = 0; k < count; k++)
            if (lives[k].first <= lives[i].first && lives[i].first < lives[k].last && (inside < 0 || lives[k].inside == inside))
                alive += bytes[k];
        peak = alive > peak ? alive : peak;
    }
    return peak;
}

/* Whether memory `one` is placed before `other`. */
static int comes_first(const Life *lives, const int64_t *bytes, int order, int one, int other)
{
    int64_t length = lives[one].last - lives[one].first, others = lives[other].last - lives[other].first;
    switch (order) {
    case LARGEST: return bytes[one] > bytes[other];
    case EARLIEST: return lives[one].first < lives[other].first;
    case LONGEST: return length > others;
    default: return bytes[one] * length > bytes[other] * others;
    }
}

/* Places the memories in this order; returns the bytes of the arena. */
static int64_t place_in(ArenaPlan *plan, const Life *lives, int count, int order)
{
    int64_t total = 0;
    for (int i = 0; i < count; i++)
        plan->offsets[i] = -1;
    for (;;) {
        int next = -1;
        for (int i = 0; i < count; i++)
            if (lives[i].inside && plan->offsets[i] < 0 && (next < 0 || comes_first(lives, plan->bytes, order, i, next)))
                next = i;
        if (next < 0)
            return total;
        plan->offsets[next] = lowest_place(lives, plan->bytes, plan->offsets, count, next);
        int64_t end = plan->offsets[next] + plan->bytes[next];
        total = end > total ? end : total;
    }
}

static void place_all(ArenaPlan *plan, const Life *lives, int count)
{
    int best = 0, order = 0;
    int64_t least = peak_of(lives, plan->bytes, count, 1), total = INT64_MAX;
    plan->total = INT64_MAX;
    for (; order < ORDERS && plan->total > least; order++) {
        total = place_in(plan, lives, count, order);
        if (total < plan->total) {
            plan->total = total;
            best = order;
        }
    }
    if (total > plan->total)
        place_in(plan, lives, count, best);
    plan->placed = plan->total;
    if (plan->total + peak_of(lives, plan->bytes, count, 0) > peak_of(lives, plan->bytes, count, -1))
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
