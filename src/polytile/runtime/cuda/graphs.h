/* The interface between the launcher, native GPU kernels and the recorder (graphs.c).

   While a thread runs a program, its launches may be recorded instead of made. They are made together, as a CUDA graph
   or one by one, before anything else is put on the stream. Until then, memory that they use must not return to the
   allocator. */

#include <stddef.h>
#include <stdint.h>

typedef struct { /* CUlaunchAttribute */
    int32_t id, unused, value, rest[15];
} Attribute;

typedef struct { /* CUlaunchConfig */
    unsigned grid[3], block[3], shared;
    void *stream;
    Attribute *attributes;
    unsigned count;
} How;

enum { OF_LAUNCHES, OF_LIBRARY, OF_PAIR, USERS }; /* users of workspaces; one kernel may be several of them */
enum { FOR_END, FOR_PYTHON, FOR_LIBRARY, FOR_MEMORY, FOR_DEVICE, REASONS }; /* why launches are made before the program has ended */

typedef struct {
    /* Whether launches of this thread on this device, context and stream are recorded. If others are recorded, they are
       made now. */
    int (*records)(int32_t device, void *context, void *stream);
    int (*records_here)(int32_t device); /* the same for the current context and stream */
    /* Adds the launch of a kernel; `bytes` of each parameter. Returns the driver's error. */
    int (*kernel)(const How *how, void *function, void *const *parameters, const uint32_t *bytes, unsigned count);
    /* Adds a call of run(data, stream), which makes only launches: the same ones for the same bytes, and the same
       kernels for the same `kind`. The data starts with this many addresses. `by_torch`: it uses torch's current stream,
       and may take memory from torch. Returns the driver's error. */
    int (*call)(int (*run)(const void *data, void *stream), uint64_t kind, const void *data, size_t bytes, unsigned addresses,
                int by_torch);
    int (*holds)(void);          /* whether there are recorded launches that have not been made */
    void (*keep)(void *tensor, int64_t bytes); /* deletes the tensor once the recorded launches are made: now, if there are none or
                                                  if too many bytes wait. `bytes` of its memory are free then */
    void (*share)(void *tensor);               /* keeps its memory alive until then, and as long as a graph writes to it */
    /* Memory that the launches of one kernel may write to, shared by all kernels of the program. Each of USERS has its own.
       Returns nonzero if there is none. */
    int (*workspace)(int user, int64_t bytes, void **pointer);
    void (*make)(int why);                     /* makes the recorded launches; `finish` reports errors */

    /* Calls of kernels, which `words` tell apart (graph_steps.c). `next`: if the launches of this very call are known, and
       come next, the number of the slots that count its calls; else -1. `pass` takes them for recorded. Another call that
       records launches is begun, by a slot, and ended, with whether it was successful; meanwhile it tells of further slots,
       and of words that are not 0 once a check is violated. */
    int (*next)(const uint64_t *words, size_t count, void *const **slots);
    void (*pass)(void);
    void (*begin_call)(const uint64_t *words, size_t count, void *slot);
    void (*end_call)(int successful);
    void (*counts)(void *slot);
    void (*watch)(volatile int32_t *error);
    int (*is_due)(void); /* whether the device should begin with what is recorded (FOR_DEVICE), rather than wait for the rest */

    /* for the launcher */
    void *(*new_graphs)(void); /* of one program */
    void (*delete_graphs)(void *graphs);
    void *(*begin)(void *graphs, int32_t device); /* NULL: launches of this thread are not recorded */
    void (*end)(void *record);                    /* ends the recording */
    void (*set)(void *record);                    /* makes the record this thread's current one; NULL: none */
    void (*tell)(void *origin);                   /* sets the origin of the launches that follow */
    int (*finish)(void *record, int why, void **origin); /* makes the recorded launches; returns minus the error of the first launch
                                                            that failed, and its origin */
    int (*wants_graph)(void *graphs);             /* whether a graph should be made; true only once per request */
} Recorder;
