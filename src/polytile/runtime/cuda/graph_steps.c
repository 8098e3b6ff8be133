/* Part of the recorder: the calls of kernels in a stretch, and which launches each recorded.

   A call is known by its words: the kernel's table and the state of all tables, the addresses of its tensors, and its
   integers. A call with the same words makes the same launches. So a call of a program that goes the way of a graph
   needs to be recorded no more: its words are compared, and the graph is launched (graphs.c). */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_COUNTERS = 4, MOST_ERRORS = 4 };

typedef struct {
    size_t at, count;                       /* its words */
    size_t launches;                        /* of the stretch, this call's included */
    void *origin;
    void *counters[MOST_COUNTERS];          /* slots of tables, which count calls */
    volatile int32_t *errors[MOST_ERRORS];  /* words that report violated checks */
    int counter_count, error_count;
} Step;

typedef struct {
    uint64_t *words;
    Step *steps;
    size_t used, capacity, count, most;
} Steps;

/* Nonzero if memory is short. */
static int reserve_steps(Steps *steps, size_t words, size_t count)
{
    if (words > steps->capacity) {
        uint64_t *larger = realloc(steps->words, 2 * words * sizeof *larger);
        if (larger == NULL)
            return -1;
        steps->words = larger;
        steps->capacity = 2 * words;
    }
    if (count > steps->most) {
        Step *larger = realloc(steps->steps, 2 * count * sizeof *larger);
        if (larger == NULL)
            return -1;
        steps->steps = larger;
        steps->most = 2 * count;
    }
    return 0;
}

static void clear_steps(Steps *steps)
{
    steps->used = steps->count = 0;
}

static void forget_steps(Steps *steps)
{
    free(steps->words);
    free(steps->steps);
    *steps = (Steps){0};
}

/* Makes `to` the first `count` steps of `from`. Nonzero if memory is short: there are none then. */
static int copy_steps(const Steps *from, size_t count, Steps *to)
{
    size_t words = count == 0 ? 0 : from->steps[count - 1].at + from->steps[count - 1].count;
    clear_steps(to);
    if (count == 0)
        return 0;
    if (reserve_steps(to, words, count) != 0)
        return -1;
    memcpy(to->words, from->words, words * sizeof *to->words);
    memcpy(to->steps, from->steps, count * sizeof *to->steps);
    to->used = words;
    to->count = count;
    return 0;
}

/* Appends a call that has recorded nothing yet. Nonzero if memory is short. */
static int add_step(Steps *steps, const uint64_t *words, size_t count, void *origin, void *counter)
{
    if (reserve_steps(steps, steps->used + count, steps->count + 1) != 0)
        return -1;
    Step *step = &steps->steps[steps->count++];
    *step = (Step){.at = steps->used, .count = count, .origin = origin, .counters = {counter}, .counter_count = 1};
    memcpy(steps->words + steps->used, words, count * sizeof *words);
    steps->used += count;
    return 0;
}

/* Whether step number `i` is this call, and no check that it reports has been violated. */
static int is_step(const Steps *steps, size_t i, const uint64_t *words, size_t count)
{
    if (i >= steps->count || steps->steps[i].count != count
        || memcmp(steps->words + steps->steps[i].at, words, count * sizeof *words) != 0)
        return 0;
    int violated = 0;
    for (int k = 0; k < steps->steps[i].error_count; k++)
        violated |= *steps->steps[i].errors[k] != 0;
    return !violated;
}

/* Whether both begin with the same `count` calls. */
static int begin_alike(const Steps *one, const Steps *other, size_t count)
{
    if (count == 0)
        return 1;
    if (count > one->count || count > other->count)
        return 0;
    const Step *last = &one->steps[count - 1];
    size_t words = last->at + last->count;
    return other->steps[count - 1].at == last->at && other->steps[count - 1].count == last->count
           && memcmp(one->words, other->words, words * sizeof *one->words) == 0;
}
