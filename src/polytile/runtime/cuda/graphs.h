/* What the launcher and native kernels on a GPU know of the recorder (graphs.c).

   While a thread runs a program, its launches may be recorded in place of being made. They are made together, as a CUDA graph or one
   by one, before anything else is put on the stream. Until then the memory that they use must not go back to the allocator. */

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

typedef struct {
    /* Whether launches of this thread on this device, context and stream are recorded. Where others are, they are made now. */
    int (*records)(int32_t device, void *context, void *stream);
    /* Adds the launch of a kernel; `bytes` of each parameter. Returns the driver's error. */
    int (*kernel)(const How *how, void *function, void *const *parameters, const uint32_t *bytes, unsigned count);
    /* Adds a call of run(data, stream), which makes launches alone, the same ones for the same bytes, and the same kernels for the
       same `kind`. The data begins with so many addresses. Returns the driver's error. */
    int (*call)(int (*run)(const void *data, void *stream), uint64_t kind, const void *data, size_t bytes, unsigned addresses);
    int (*holds)(void);          /* whether launches are recorded that have not been made */
    void (*keep)(void *tensor, int64_t bytes); /* deletes the tensor once what is recorded has been launched: now, if nothing is or
                                                  more bytes wait than should */
    void (*share)(void *tensor);               /* keeps its memory until then */
    int (*workspace)(int64_t bytes, void **pointer); /* memory that each recorded launch may write to; not 0 if there is none */
    void (*make)(void);                        /* launches what is recorded; `finish` tells of errors */

    /* for the launcher */
    void *(*new_graphs)(void); /* of one program */
    void (*delete_graphs)(void *graphs);
    void *(*begin)(void *graphs, int32_t device); /* NULL: launches of this thread are not recorded */
    void (*end)(void *record);                    /* ends the recording */
    void (*set)(void *record);                    /* this thread goes on with the record; NULL: with none */
    void (*tell)(void *origin);                   /* who makes the launches that follow */
    int (*finish)(void *record, void **origin);   /* launches what is recorded; returns minus the error of the first launch that
                                                     failed, whose origin it tells */
    int (*wants_graph)(void *graphs);             /* whether a graph is to be made; says so once */
} Recorder;
