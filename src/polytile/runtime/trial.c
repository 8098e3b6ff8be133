/* Part of the launcher: tries candidates for an entry on the program's own calls.

   Once in `period` calls of the entry, a call runs a contender instead of the serving entry. The next call is timed
   with the serving entry, so that both times are from about the same moment. A sample is (contender, seconds, the
   call's integers); contender 0 is the serving entry. On a GPU, two events mark the start and end; they are read later
   without waiting.

   The GIL protects all of this. */

enum { MOST_CONTENDERS = 8, MOST_SAMPLES = 128 };

/* Set once by configure_functions(); without them, there are no trials on a GPU. */
static struct {
    int (*create)(void **event, unsigned flags);
    int (*destroy)(void *event);
    int (*record)(void *event, void *stream);
    int (*query)(void *event);
    int (*elapsed)(float *milliseconds, void *begin, void *end);
    int (*capturing)(void *stream, int *status);
    int32_t (*current_stream)(int32_t device, void **stream);
} events;

typedef struct {
    int contender;
    double seconds;    /* NaN: it failed */
    void *begin, *end; /* if set, they determine the seconds */
} Sample;

struct Trial {
    int count;                        /* of contenders, including the serving entry */
    Slot contenders[MOST_CONTENDERS]; /* the first is empty */
    int open[MOST_CONTENDERS];        /* samples still wanted of each */
    long period, turn, number; /* the number is unique */
    int device;
    int next, samples;
    Sample sample[MOST_SAMPLES];
    long *integers; /* of each sample */
};

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void drop_events(Sample *sample)
{
    if (sample->begin != NULL)
        events.destroy(sample->begin);
    if (sample->end != NULL)
        events.destroy(sample->end);
    sample->begin = sample->end = NULL;
}

static void end_trial(Trial *trial)
{
    if (trial == NULL)
        return;
    for (int i = 0; i < trial->samples; i++)
        drop_events(&trial->sample[i]);
    for (int i = 1; i < trial->count; i++) {
        Py_XDECREF(trial->contenders[i].entry);
        Py_XDECREF(trial->contenders[i].call);
    }
    PyMem_Free(trial->integers);
    PyMem_Free(trial);
}

static Trial *new_trial(size_t integers)
{
    Trial *trial = PyMem_Calloc(1, sizeof(Trial));
    if (trial != NULL && (trial->integers = PyMem_Calloc(MOST_SAMPLES * integers + 1, sizeof(long))) == NULL) {
        PyMem_Free(trial);
        return NULL;
    }
    return trial;
}

/* A generated kernel on at least this many threads leaves one core to others (spare_core.py); 0: never. Protected by
   the GIL. Meanwhile nothing is tried: times would be of fewer threads. */
static long crowded;

/* The contender that the next call runs and times; -1: the serving entry, untimed. */
static int contender_of(const Trial *trial)
{
    long turn = trial->turn % trial->period;
    if (turn > 1 || trial->samples == MOST_SAMPLES)
        return -1;
    if (turn == 1)
        return trial->open[0] > 0 ? 0 : -1;
    for (int i = 0; i < trial->count - 1; i++) {
        int contender = 1 + (trial->next + i) % (trial->count - 1);
        if (trial->open[contender] > 0)
            return contender;
    }
    return -1;
}

/* The same for this call, after which the next one's turn comes. */
static int turn_of(Trial *trial)
{
    int contender = contender_of(trial);
    trial->turn++;
    if (contender > 0)
        trial->next = contender;
    return contender;
}

/* Whether a call that runs the slot's kernel has more to do than that, which only the dispatcher does: to say that the
   slot's calls are over, or to try a contender. */
static int is_due(const Slot *slot)
{
    return slot->left == 1 || (slot->trial != NULL && crowded == 0 && contender_of(slot->trial) >= 0);
}

/* Counts a call of the slot's kernel for which nothing is due. */
static void count_call(Slot *slot)
{
    slot->left -= slot->left > 0;
    slot->calls++;
    if (slot->trial != NULL && crowded == 0)
        turn_of(slot->trial);
}

/* Stores a sample. Returns whether it was the last one wanted, so that the trial needs attention. */
static int take(Trial *trial, Sample sample, const long *integers, Py_ssize_t count)
{
    memcpy(&trial->integers[trial->samples * count], integers, (size_t)count * sizeof(long));
    trial->sample[trial->samples++] = sample;
    trial->open[sample.contender]--;
    for (int i = 1; i < trial->count; i++)
        if (trial->open[i] > 0)
            return 0;
    return 1;
}

/* Reads and releases the events of a sample. Returns whether they were complete. */
static int read_events(Sample *sample)
{
    float milliseconds;
    if (sample->begin == NULL)
        return 1;
    if (events.query(sample->end) != 0 || events.elapsed(&milliseconds, sample->begin, sample->end) != 0)
        return 0;
    drop_events(sample);
    sample->seconds = 1e-3 * (double)milliseconds;
    return 1;
}
