/* The launch of a generated GPU kernel as data. launch.py makes it for live programs, packages contain it, and launch.c
   reads it. */

#include <stdatomic.h>
#include <stdint.h>

enum { KEPT = 8, MOST_AXES = 4 };

typedef struct {
    int32_t kind, index;
} Parameter;

typedef struct { /* a tensor whose blocks the hardware copies: its `rank` axes, innermost first. `strides` are those of all
                    axes but the innermost, in elements */
    const int64_t *sizes[MOST_AXES], *strides[MOST_AXES - 1];
    int32_t tensor, type, bytes, swizzle, rank;
    uint32_t block[MOST_AXES];
} Descriptor;

typedef struct {
    void *function;
    const int64_t *grid[3];
    const Parameter *parameters;
    const Descriptor *descriptors;
    int32_t count;
    uint32_t threads, shared;
    int32_t overlaps; /* the kernel itself waits for the preceding one */
    int32_t cluster;  /* number of consecutive blocks that run concurrently */
} Launch;

typedef struct {
    const int64_t *bytes;
    int32_t zeroed;
} Scratch;

typedef struct { /* zeroed memory kept for one stream, or for one recording of a graph; kernels leave it zero */
    void *stream, *tensor, *pointer;
    uint64_t recording;
    int64_t bytes;
    int32_t buffer;
} Kept;

typedef struct {
    void *context;
    const Launch *launches;
    const Scratch *scratch;
    volatile int32_t *error; /* in host memory that the device can write to; or NULL */
    int32_t device, launch_count, scratch_count;
    atomic_flag busy;
    int32_t next;
    Kept kept[KEPT];
} LaunchPlan;
