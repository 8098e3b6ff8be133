/* Launches generated GPU kernels according to a plan, which launch.py makes.

   polytile_launch has the ABI of every native kernel, with the plan's address in place of the number of threads, so
   dispatch tables, timers and wrappers call it like any kernel. It touches no Python object and needs no GIL.

   It runs on torch's current stream of the plan's device, and makes that device's context current meanwhile if another
   one is. Results: 0; the number of a run-time check that an earlier launch of the plan failed (a GPU reports late); or
   minus the driver's error. */

#include <sched.h>
#include <stddef.h>
#include <string.h>

enum { TENSOR, INT32, INT64, SCRATCH, ERROR_WORD, NOTHING, DESCRIPTOR };
enum { OUT_OF_MEMORY = 2, INVALID_VALUE = 1, LARGEST_GRID = 65535, TORCH_UINT8 = 0, TORCH_CUDA = 1 };
enum { MOST_DESCRIBED = 6, NOT_SUPPORTED = 801, FETCH_128_BYTES = 2 }; /* CU_TENSOR_MAP_L2_PROMOTION_L2_128B */
enum { CLUSTER = 4, MAY_OVERLAP = 6 }; /* CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION, _PROGRAMMATIC_STREAM_SERIALIZATION */

typedef struct {
    int (*launch_kernel)(const How *how, void *function, void **parameters, void **extra);
    int (*get_context)(void **context);
    int (*push_context)(void *context);
    int (*pop_context)(void **context);
    int (*capture_info)(void *stream, int *status, uint64_t *recording, void **graph, void **nodes, size_t *count);
    int (*set_bytes)(uintptr_t destination, unsigned char value, size_t count, void *stream);
    int32_t (*current_stream)(int32_t device, void **stream);
    int32_t (*new_tensor)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type,
                          int32_t device, void **tensor);
    int32_t (*delete_tensor)(void *tensor);
    int32_t (*data_pointer)(void *tensor, void **pointer);
    int (*describe)(void *map, int type, uint32_t rank, uintptr_t address, const uint64_t *sizes, const uint64_t *strides,
                    const uint32_t *block, const uint32_t *steps, int interleave, int swizzle, int fetch, int fill);
} Api; /* the last is NULL if the driver lacks it */

typedef struct { /* CUtensorMap */
    _Alignas(64) uint64_t words[16];
} Map;

static Api api;
static const Recorder *recorder; /* NULL: every launch is made at once */

void polytile_configure(const Api *functions)
{
    api = *functions;
}

void polytile_record_launches(const Recorder *functions)
{
    recorder = functions;
}

static int allocate(int32_t device, int64_t bytes, void **tensor, void **pointer)
{
    int64_t stride = 1;
    if (api.new_tensor(1, &bytes, &stride, TORCH_UINT8, TORCH_CUDA, device, tensor) != 0)
        return -OUT_OF_MEMORY;
    return api.data_pointer(*tensor, pointer) == 0 ? 0 : -OUT_OF_MEMORY;
}

/* Zeroed memory of at least `bytes` that stays with this plan and stream, for the thread that has locked the plan. A
   recorded graph zeroes its own memory once per replay. */
static int keep(LaunchPlan *plan, void *stream, int32_t buffer, int64_t bytes, void **pointer)
{
    int code = 0, status = 0;
    uint64_t recording = 0;
    if (api.capture_info(stream, &status, &recording, NULL, NULL, NULL) != 0 || status == 0)
        recording = 0;
    Kept *found = NULL;
    for (int i = 0; i < KEPT && found == NULL; i++) {
        Kept *kept = &plan->kept[i];
        if (kept->tensor != NULL && kept->stream == stream && kept->recording == recording && kept->buffer == buffer)
            found = kept;
    }
    if (found == NULL || found->bytes < bytes) {
        if (found == NULL)
            found = &plan->kept[plan->next++ % KEPT];
        if (found->tensor != NULL)
            api.delete_tensor(found->tensor);
        *found = (Kept){stream, NULL, NULL, recording, bytes, buffer};
        code = allocate(plan->device, bytes, &found->tensor, &found->pointer);
        if (code == 0)
            code = -api.set_bytes((uintptr_t)found->pointer, 0, (size_t)bytes, stream);
        if (code != 0)
            found->bytes = -1;
    }
    if (code == 0 && recorder != NULL)
        recorder->share(found->tensor); /* another thread may release it before a recorded launch is made */
    *pointer = found->pointer;
    return code;
}

/* A plan's memory may be replaced by a larger one as soon as another thread has the lock: by then the kernels that use
   it have been launched, or are recorded and share it. Returns whether there is anything to lock. */
static int lock(LaunchPlan *plan)
{
    int keeps = 0;
    for (int i = 0; i < plan->scratch_count; i++)
        keeps |= plan->scratch[i].zeroed;
    while (keeps && atomic_flag_test_and_set_explicit(&plan->busy, memory_order_acquire))
        sched_yield();
    return keeps;
}

/* Memory for the plan's scratch buffers; `owned` gets the tensors to delete after the launches. */
static int provide(LaunchPlan *plan, const long *integers, void *stream, void **memory, void **owned)
{
    int code = 0;
    for (int i = 0; i < plan->scratch_count && code == 0; i++) {
        int64_t bytes = formula(plan->scratch[i].bytes, integers);
        bytes = bytes > 16 ? bytes : 16;
        code = plan->scratch[i].zeroed ? keep(plan, stream, i, bytes, &memory[i])
                                       : allocate(plan->device, bytes, &owned[i], &memory[i]);
    }
    return code;
}

/* Kernels access nothing of an empty tensor, but the driver requires at least one element along each axis. The stride
   along an axis of a single element is irrelevant, and might be one that the driver rejects. */
static int describe(const Descriptor *what, void *const *pointers, const long *integers, Map *map)
{
    uint64_t sizes[MOST_AXES], strides[MOST_AXES - 1];
    for (int i = 0; i < what->rank; i++) {
        int64_t size = formula(what->sizes[i], integers);
        sizes[i] = size > 0 ? (uint64_t)size : 1;
    }
    uint64_t row = (sizes[0] * (uint64_t)what->bytes + 15) / 16 * 16;
    for (int i = 0; i < what->rank - 1; i++)
        strides[i] = sizes[i + 1] > 1 ? (uint64_t)(formula(what->strides[i], integers) * what->bytes) : row;
    static const uint32_t steps[MOST_AXES] = {1, 1, 1, 1};
    if (api.describe == NULL)
        return -NOT_SUPPORTED;
    return -api.describe(map, what->type, (uint32_t)what->rank, (uintptr_t)pointers[what->tensor], sizes, strides, what->block,
                         steps, 0, what->swizzle, FETCH_128_BYTES, 0);
}

/* Records a launch. If it cannot be recorded, it must be made now, after everything recorded. */
static int record(const Launch *launch, const How *how, void **addresses)
{
    uint32_t bytes[launch->count + 1];
    for (int i = 0; i < launch->count; i++)
        bytes[i] = launch->parameters[i].kind == DESCRIPTOR ? sizeof(Map) : sizeof(uint64_t);
    int code = recorder->kernel(how, launch->function, addresses, bytes, (unsigned)launch->count);
    if (code == NOT_SUPPORTED)
        recorder->make();
    return code;
}

static int start(const Launch *launch, void *const *pointers, const long *integers, void **memory,
                 volatile int32_t *error, void *stream, int records)
{
    int64_t grid[3];
    for (int i = 0; i < 3; i++) {
        grid[i] = formula(launch->grid[i], integers);
        if (grid[i] <= 0)
            return 0;
        if (grid[i] > (i == 0 ? INT32_MAX : LARGEST_GRID))
            return -INVALID_VALUE;
    }
    void *addresses[launch->count + 1];
    uint64_t values[launch->count + 1];
    Map maps[MOST_DESCRIBED];
    for (int i = 0; i < launch->count; i++) {
        int32_t index = launch->parameters[i].index;
        addresses[i] = &values[i];
        switch (launch->parameters[i].kind) {
        case TENSOR: values[i] = (uintptr_t)pointers[index]; break;
        case INT32: values[i] = (uint32_t)(int32_t)integers[index]; break;
        case INT64: values[i] = (uint64_t)integers[index]; break;
        case SCRATCH: values[i] = (uintptr_t)memory[index]; break;
        case ERROR_WORD: values[i] = (uintptr_t)error; break;
        case DESCRIPTOR: {
            int code = describe(&launch->descriptors[index], pointers, integers, &maps[index]);
            if (code != 0)
                return code;
            addresses[i] = &maps[index];
            break;
        }
        default: values[i] = 0;
        }
    }
    Attribute attributes[2];
    unsigned count = 0;
    if (launch->overlaps)
        attributes[count++] = (Attribute){.id = MAY_OVERLAP, .value = 1};
    if (launch->cluster > 1)
        attributes[count++] = (Attribute){.id = CLUSTER, .value = launch->cluster, .rest = {1, 1}};
    How how = {{(unsigned)grid[0], (unsigned)grid[1], (unsigned)grid[2]}, {launch->threads, 1, 1}, launch->shared, stream,
               attributes, count};
    int code = records ? record(launch, &how, addresses) : NOT_SUPPORTED;
    return code != NOT_SUPPORTED ? -code : -api.launch_kernel(&how, launch->function, addresses, NULL);
}

static int run(LaunchPlan *plan, void *const *pointers, const long *integers)
{
    void *stream = NULL, *memory[plan->scratch_count + 1], *owned[plan->scratch_count + 1];
    if (api.current_stream(plan->device, &stream) != 0)
        return -INVALID_VALUE;
    memset(owned, 0, sizeof owned);
    int locked = lock(plan), records = recorder != NULL && recorder->records(plan->device, plan->context, stream);
    if (records && locked && plan->launch_count > 1) { /* keeps other threads' launches from coming between these */
        recorder->make();
        records = 0;
    }
    int code = plan->scratch_count > 0 ? provide(plan, integers, stream, memory, owned) : 0;
    for (int i = 0; i < plan->launch_count && code == 0; i++)
        code = start(&plan->launches[i], pointers, integers, memory, plan->error, stream, records);
    if (locked)
        atomic_flag_clear_explicit(&plan->busy, memory_order_release);
    for (int i = 0; i < plan->scratch_count; i++)
        if (owned[i] != NULL && records)
            recorder->keep(owned[i], formula(plan->scratch[i].bytes, integers));
        else if (owned[i] != NULL)
            api.delete_tensor(owned[i]);
    return code;
}

long polytile_launch(void *const *pointers, const long *integers, long address)
{
    LaunchPlan *plan = (LaunchPlan *)address;
    if (plan->error != NULL && *plan->error != 0) {
        long violated = *plan->error;
        *plan->error = 0;
        return violated;
    }
    void *context = NULL, *popped;
    int code = -api.get_context(&context);
    if (code != 0)
        return code;
    if (context == plan->context)
        return run(plan, pointers, integers);
    code = -api.push_context(plan->context);
    if (code != 0)
        return code;
    code = run(plan, pointers, integers);
    api.pop_context(&popped);
    return code;
}

/* Releases the memory that a plan keeps. The plan may be used again. */
void polytile_release(LaunchPlan *plan)
{
    for (int i = 0; i < KEPT; i++) {
        if (plan->kept[i].tensor != NULL)
            api.delete_tensor(plan->kept[i].tensor);
        plan->kept[i] = (Kept){0};
    }
}

size_t polytile_plan_bytes(void)
{
    return sizeof(LaunchPlan);
}
