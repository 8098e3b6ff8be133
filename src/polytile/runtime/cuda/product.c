/* Products by libraries, called like any native kernel: D = A · B + C + bias by cuBLASLt, D = A · B by ATen.

   A plan, made by products.py, locates operands, sizes and strides among a call's arguments. cuBLASLt's heuristic is
   asked once for each combination of a call's integers and its tensors' alignment. The plan caches the answer and the
   descriptors in a hash table. Nothing here touches a Python object or needs the GIL.

   Results: 0; DECLINED if nothing was done, because the library does not support the operands; minus the driver's
   error; or minus (LIBRARY_STATUS + cuBLASLt's status). */

#include <limits.h>
#include <sched.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static const long DECLINED = LONG_MIN; /* as in launcher.c */
enum { LIBRARY_STATUS = 100000, OUT_OF_MEMORY = 2, INVALID_VALUE = 1, NOT_SUPPORTED = 801 };
enum { TORCH_UINT8 = 0, TORCH_INT8 = 1, TORCH_CPU = 0, TORCH_CUDA = 1 };
enum { PROPOSALS = 6, MOST_SHAPES = 1024, WIDEST = 16 };
enum { TRANSPOSE_A = 3, TRANSPOSE_B = 4, EPILOGUE = 7, BIAS = 8, WITH_BIAS = 4 }; /* cublasLtMatmulDescAttributes_t, _Epilogue_t */
enum { BATCH = 5, BATCH_STRIDE = 6 };                                             /* cublasLtMatrixLayoutAttribute_t */
enum { WORKSPACE = 1, REDUCTIONS = 3, ALIGNMENTS = 5 };                           /* cublasLtMatmulPreferenceAttributes_t */
enum { IN_TYPE_OF_SUMS = 2, INT32 = 10 }; /* partial sums of a split K are added in the accumulator type, in order; cudaDataType */

typedef struct { /* cublasLtMatmulHeuristicResult_t */
    uint64_t algorithm[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
} Proposal;

struct ProductApi {
    int (*get_context)(void **context);
    int (*push_context)(void *context);
    int (*pop_context)(void **context);
    int32_t (*current_stream)(int32_t device, void **stream);
    int32_t (*new_tensor)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type,
                          int32_t device, void **tensor);
    int32_t (*delete_tensor)(void *tensor);
    int32_t (*data_pointer)(void *tensor, void **pointer);
    int32_t (*look_at)(void *data, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, int32_t dtype,
                       int32_t type, int32_t device, void **tensor);
    int32_t (*mm)(void *out, void *a, void *b);
    int32_t (*bmm)(void *out, void *a, void *b);
    int32_t (*int_mm)(void *out, void *a, void *b);
    int (*new_operation)(void **operation, int compute, int scale);
    int (*set_operation)(void *operation, int attribute, const void *value, size_t bytes);
    int (*delete_operation)(void *operation);
    int (*new_layout)(void **layout, int type, uint64_t rows, uint64_t columns, int64_t stride);
    int (*set_layout)(void *layout, int attribute, const void *value, size_t bytes);
    int (*delete_layout)(void *layout);
    int (*new_preference)(void **preference);
    int (*set_preference)(void *preference, int attribute, const void *value, size_t bytes);
    int (*delete_preference)(void *preference);
    int (*ask)(void *handle, void *operation, void *a, void *b, void *c, void *d, void *preference, int most, Proposal *found,
               int *count);
    int (*multiply)(void *handle, void *operation, const void *one, const void *a, void *layout_a, const void *b, void *layout_b,
                    const void *share, const void *c, void *layout_c, void *d, void *layout_d, const uint64_t *algorithm,
                    void *workspace, size_t bytes, void *stream);
}; /* those of the driver are NULL without a device, cuBLASLt's for ATen alone */

typedef struct { /* sizes and strides of one call; `alignment`: alignment of the addresses in bytes, the bias's last */
    int64_t batch, m, n, k, strides[ALL][3];
    uint32_t alignment[ALL + 1];
} Shape;

struct Known { /* a shape's descriptors and the library's proposals, best first */
    void *operation, *layouts[ALL];
    Proposal proposals[PROPOSALS];
    int count;
    unsigned refused, ran; /* one bit per proposal */
};

static const Recorder *recorder; /* NULL: every call is made at once */

void polytile_record_products(const Recorder *functions)
{
    recorder = functions;
}

/* ---- shapes ---- */

static uint32_t alignment(const void *pointer)
{
    uintptr_t address = (uintptr_t)pointer | WIDEST;
    return (uint32_t)(address & -address);
}

static void *pointer_to(void *const *pointers, int32_t tensor)
{
    return tensor < 0 ? NULL : pointers[tensor];
}

static void shape_of(const ProductPlan *plan, void *const *pointers, const long *integers, Shape *shape)
{
    *shape = (Shape){.batch = integers[0], .m = integers[1], .n = integers[2], .k = integers[3]};
    for (int i = 0; i < ALL; i++) {
        const Operand *operand = &plan->operands[i];
        shape->alignment[i] = alignment(pointer_to(pointers, operand->tensor));
        for (int d = 0; d < 3 && operand->tensor >= 0; d++)
            shape->strides[i][d] = formula(operand->strides[d], integers);
    }
    shape->alignment[ALL] = alignment(pointer_to(pointers, plan->bias));
}

/* The transpose of each matrix of (batch, rows, columns), as column-major memory. */
typedef struct {
    uint64_t rows, columns;
    int64_t stride;
    int32_t transposed; /* the product takes its transpose */
} Matrix;

/* Whether cuBLASLt can describe it: some axis has stride 1, and columns do not overlap. The stride of an axis of one
   element is irrelevant. */
static int matrix_of(const int64_t *strides, int64_t rows, int64_t columns, Matrix *matrix)
{
    int64_t row = columns > 1 ? columns : 1, column = rows > 1 ? rows : 1;
    int64_t apart = rows > 1 ? strides[1] : row;
    if ((strides[2] == 1 || columns == 1) && apart >= columns) {
        *matrix = (Matrix){(uint64_t)columns, (uint64_t)rows, apart, 0};
        return 1;
    }
    apart = columns > 1 ? strides[2] : column;
    *matrix = (Matrix){(uint64_t)rows, (uint64_t)columns, apart, 1};
    return (strides[1] == 1 || rows == 1) && apart >= rows;
}

/* ---- cuBLASLt's view: C = A · B in row-major order is Cᵀ = Bᵀ · Aᵀ in column-major order ---- */

static void forget(const ProductApi *api, Known *known)
{
    if (known == NULL)
        return;
    if (known->operation != NULL)
        api->delete_operation(known->operation);
    for (int i = 0; i < ALL; i++)
        if (known->layouts[i] != NULL)
            api->delete_layout(known->layouts[i]);
    free(known);
}

static int describe_layout(const ProductPlan *plan, const Shape *shape, int which, const Matrix *matrix, Known *known)
{
    const ProductApi *api = plan->api;
    const Operand *operand = &plan->operands[which];
    int32_t batch = (int32_t)shape->batch;
    int code = api->new_layout(&known->layouts[which], operand->type, matrix->rows, matrix->columns, matrix->stride);
    if (code != 0 || shape->batch == 1)
        return code;
    code = api->set_layout(known->layouts[which], BATCH, &batch, sizeof batch);
    return code != 0 ? code : api->set_layout(known->layouts[which], BATCH_STRIDE, &shape->strides[which][0], sizeof(int64_t));
}

static int describe_operation(const ProductPlan *plan, const Matrix *matrices, Known *known)
{
    static const uint32_t with_bias = WITH_BIAS;
    static void *const some_bias = (void *)(uintptr_t)(1 << 20); /* the heuristic only looks at its alignment */
    const ProductApi *api = plan->api;
    int code = api->new_operation(&known->operation, plan->compute, plan->scale);
    if (code == 0)
        code = api->set_operation(known->operation, TRANSPOSE_A, &matrices[B].transposed, sizeof(int32_t));
    if (code == 0)
        code = api->set_operation(known->operation, TRANSPOSE_B, &matrices[A].transposed, sizeof(int32_t));
    if (code == 0 && plan->bias >= 0)
        code = api->set_operation(known->operation, EPILOGUE, &with_bias, sizeof with_bias);
    if (code == 0 && plan->bias >= 0)
        code = api->set_operation(known->operation, BIAS, &some_bias, sizeof some_bias);
    return code;
}

static int ask(const ProductPlan *plan, const Shape *shape, Known *known)
{
    static const uint32_t reductions = IN_TYPE_OF_SUMS;
    static const int order[ALL] = {B, A, C, D};
    const ProductApi *api = plan->api;
    void *preference = NULL, *c = known->layouts[C] != NULL ? known->layouts[C] : known->layouts[D];
    int code = api->new_preference(&preference), count = 0;
    if (code == 0)
        code = api->set_preference(preference, WORKSPACE, &plan->most_workspace, sizeof plan->most_workspace);
    if (code == 0)
        code = api->set_preference(preference, REDUCTIONS, &reductions, sizeof reductions);
    for (int i = 0; i < ALL && code == 0; i++) {
        int which = order[i] == C && plan->operands[C].tensor < 0 ? D : order[i];
        code = api->set_preference(preference, ALIGNMENTS + i, &shape->alignment[which], sizeof(uint32_t));
    }
    if (code == 0)
        code = api->ask(plan->handle, known->operation, known->layouts[B], known->layouts[A], c, known->layouts[D], preference,
                        PROPOSALS, known->proposals, &count);
    if (preference != NULL)
        api->delete_preference(preference);
    for (int i = 0; i < count && code == 0; i++)
        if (known->proposals[i].state == 0)
            known->proposals[known->count++] = known->proposals[i];
    return code;
}

/* The library's proposals for a shape; none if it cannot describe an operand or has no kernel. NULL if memory is short. */
static Known *asked(const ProductPlan *plan, const Shape *shape)
{
    Known *known = calloc(1, sizeof(Known));
    Matrix matrices[ALL];
    int64_t rows[ALL] = {shape->m, shape->k, shape->m, shape->m}, columns[ALL] = {shape->k, shape->n, shape->n, shape->n};
    if (known == NULL || shape->batch < 1 || shape->batch > INT32_MAX || shape->m < 1 || shape->n < 1 || shape->k < 1
        || (plan->bias >= 0 && shape->alignment[ALL] != WIDEST))
        return known;
    for (int i = 0; i < ALL; i++)
        if (plan->operands[i].tensor >= 0
            && (!matrix_of(shape->strides[i], rows[i], columns[i], &matrices[i]) || (i >= C && matrices[i].transposed)))
            return known;
    int code = describe_operation(plan, matrices, known);
    for (int i = 0; i < ALL && code == 0; i++)
        if (plan->operands[i].tensor >= 0)
            code = describe_layout(plan, shape, i, &matrices[i], known);
    if (code != 0 || ask(plan, shape, known) != 0)
        known->count = 0;
    return known;
}

/* ---- the table: open addressing, a power of two of slots, at most half full ---- */

static void clear(ProductPlan *plan)
{
    for (size_t i = 0; i < plan->capacity; i++)
        forget(plan->api, plan->slots[i]);
    free(plan->keys);
    free(plan->slots);
    plan->keys = NULL;
    plan->slots = NULL;
    plan->capacity = plan->used = 0;
}

static size_t place_of(const ProductPlan *plan, const int64_t *key)
{
    size_t words = (size_t)plan->integers + 1, mask = plan->capacity - 1;
    uint64_t hash = 0x243F6A8885A308D3u;
    for (size_t i = 0; i < words; i++) {
        hash = (hash ^ (uint64_t)key[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    for (size_t i = hash & mask;; i = (i + 1) & mask)
        if (plan->slots[i] == NULL || memcmp(&plan->keys[i * words], key, words * sizeof(int64_t)) == 0)
            return i;
}

static int grow(ProductPlan *plan)
{
    ProductPlan old = {.capacity = plan->capacity, .keys = plan->keys, .slots = plan->slots};
    size_t words = (size_t)plan->integers + 1, capacity = old.capacity > 0 ? 2 * old.capacity : 8;
    int64_t *keys = malloc(capacity * words * sizeof(int64_t));
    Known **slots = calloc(capacity, sizeof(Known *));
    if (keys == NULL || slots == NULL) {
        free(keys);
        free(slots);
        return -1;
    }
    plan->capacity = capacity;
    plan->keys = keys;
    plan->slots = slots;
    for (size_t i = 0; i < old.capacity; i++)
        if (old.slots[i] != NULL) {
            size_t place = place_of(plan, &old.keys[i * words]);
            memcpy(&keys[place * words], &old.keys[i * words], words * sizeof(int64_t));
            slots[place] = old.slots[i];
        }
    free(old.keys);
    free(old.slots);
    return 0;
}

/* The entry of a call's shape. The library is asked at its first call. NULL if memory is short. */
static Known *known_of(ProductPlan *plan, void *const *pointers, const long *integers)
{
    size_t words = (size_t)plan->integers + 1;
    int64_t key[words];
    uint64_t alignments = 0;
    for (size_t i = 0; i + 1 < words; i++)
        key[i] = integers[i];
    for (int i = 0; i < ALL; i++)
        alignments = alignments << 5 | alignment(pointer_to(pointers, plan->operands[i].tensor));
    key[words - 1] = (int64_t)(alignments << 5 | alignment(pointer_to(pointers, plan->bias)));
    size_t place = plan->capacity > 0 ? place_of(plan, key) : 0;
    if (plan->capacity > 0 && plan->slots[place] != NULL)
        return plan->slots[place];
    if (plan->used >= MOST_SHAPES)
        clear(plan);
    if (2 * (plan->used + 1) > plan->capacity && grow(plan) < 0)
        return NULL;
    Shape shape;
    shape_of(plan, pointers, integers, &shape);
    Known *known = asked(plan, &shape);
    if (known != NULL) {
        place = place_of(plan, key);
        memcpy(&plan->keys[place * words], key, sizeof key);
        plan->slots[place] = known;
        plan->used++;
    }
    return known;
}

/* The number of the proposal to run: `rank`, else the next one that was not refused, else an earlier one. -1: there is
   none. */
static int chosen(const ProductPlan *plan, const Known *known, const long *integers)
{
    int first = plan->rank < known->count ? plan->rank : known->count - 1;
    for (int i = 0; i < 4; i++)
        if (plan->fastest_at[i] >= 0 && plan->fastest_at[i] != integers[i])
            first = 0;
    for (int i = 0; i < known->count; i++) {
        int at = (first + i) % known->count;
        if (!(known->refused >> at & 1))
            return at;
    }
    return -1;
}

/* ---- calls ---- */

static int32_t type_of_device(const ProductPlan *plan)
{
    return plan->device < 0 ? TORCH_CPU : TORCH_CUDA;
}

static int run(const ProductPlan *plan, const Known *known, const Proposal *proposal, void *const *pointers, void *workspace, void *stream)
{
    static const float one = 1.0f, zero = 0.0f;
    static const int32_t whole_one = 1, whole_zero = 0;
    const ProductApi *api = plan->api;
    int whole = plan->scale == INT32, adds = plan->operands[C].tensor >= 0;
    void *bias = pointer_to(pointers, plan->bias);
    if (bias != NULL && api->set_operation(known->operation, BIAS, &bias, sizeof bias) != 0)
        return -INVALID_VALUE;
    const void *all = whole ? (const void *)&whole_one : &one, *none = whole ? (const void *)&whole_zero : &zero;
    void *d = pointers[plan->operands[D].tensor], *c = adds ? pointers[plan->operands[C].tensor] : d;
    int status = api->multiply(plan->handle, known->operation, all, pointers[plan->operands[B].tensor], known->layouts[B],
                               pointers[plan->operands[A].tensor], known->layouts[A], adds ? all : none, c,
                               known->layouts[adds ? C : D], d, known->layouts[D], proposal->algorithm, workspace,
                               proposal->workspace, stream);
    return status == 0 ? 0 : -(LIBRARY_STATUS + status);
}

/* ---- calls that are recorded and made later ---- */

enum { ADDRESSES = ALL + 2 };

typedef struct { /* followed by the integers */
    void *operands[ALL], *bias, *workspace; /* ADDRESSES of them */
    ProductPlan *plan;
    uint64_t number, algorithm; /* the plan's, and the proposal's */
    int64_t proposal;
} Later;

static void lock(ProductPlan *plan)
{
    while (atomic_flag_test_and_set_explicit(&plan->busy, memory_order_acquire))
        sched_yield();
}

static void unlock(ProductPlan *plan)
{
    atomic_flag_clear_explicit(&plan->busy, memory_order_release);
}

/* Number of a call's tensors, up to the last one used. */
static int tensors_of(const ProductPlan *plan)
{
    int count = plan->bias + 1;
    for (int i = 0; i < ALL; i++)
        count = plan->operands[i].tensor >= count ? plan->operands[i].tensor + 1 : count;
    return count;
}

static int make_later(const void *data, void *stream)
{
    const Later *later = data;
    ProductPlan *plan = later->plan;
    void *pointers[tensors_of(plan)];
    memset(pointers, 0, sizeof pointers);
    for (int i = 0; i < ALL; i++)
        if (plan->operands[i].tensor >= 0)
            pointers[plan->operands[i].tensor] = later->operands[i];
    if (plan->bias >= 0)
        pointers[plan->bias] = later->bias;
    lock(plan);
    const Known *known = known_of(plan, pointers, (const long *)(later + 1));
    int code = known == NULL ? -OUT_OF_MEMORY
                             : run(plan, known, &known->proposals[later->proposal], pointers, later->workspace, stream);
    unlock(plan);
    return code;
}

/* The plan's own number, since another plan may get its address. */
static uint64_t number_of(ProductPlan *plan)
{
    static atomic_ullong numbers;
    if (plan->number == 0)
        plan->number = atomic_fetch_add(&numbers, 1) + 1;
    return plan->number;
}

static int record(ProductPlan *plan, const Known *known, int at, void *const *pointers, const long *integers, void *workspace)
{
    size_t bytes = sizeof(Later) + (size_t)plan->integers * sizeof(long);
    _Alignas(Later) unsigned char data[bytes];
    Later *later = memset(data, 0, bytes);
    uint64_t kind = (uint64_t)known->proposals[at].workspace;
    for (int i = 0; i < 8; i++)
        kind = (kind ^ known->proposals[at].algorithm[i]) * 0x9E3779B97F4A7C15u;
    *later = (Later){.plan = plan, .workspace = workspace, .bias = pointer_to(pointers, plan->bias), .proposal = at,
                     .number = number_of(plan), .algorithm = kind};
    for (int i = 0; i < ALL; i++)
        later->operands[i] = pointer_to(pointers, plan->operands[i].tensor);
    memcpy(later + 1, integers, (size_t)plan->integers * sizeof(long));
    return -recorder->call(make_later, kind, data, bytes, ADDRESSES, 0);
}

/* Makes the call now or records it. Only a proposal that has run before is recorded, since a refusal could not be
   reported later. */
static int run_or_record(ProductPlan *plan, Known *known, int at, void *const *pointers, const long *integers)
{
    const ProductApi *api = plan->api;
    const Proposal *proposal = &known->proposals[at];
    void *stream = NULL, *tensor = NULL, *workspace = NULL;
    int64_t bytes = (int64_t)proposal->workspace, stride = 1;
    if (api->current_stream != NULL && api->current_stream(plan->device, &stream) != 0)
        return -INVALID_VALUE;
    int records = recorder != NULL && plan->device >= 0 && recorder->records(plan->device, plan->context, stream);
    if (records && !(known->ran >> at & 1)) {
        recorder->make(FOR_LIBRARY);
        records = 0;
    }
    if (records) {
        if (bytes > 0 && recorder->workspace(OF_LIBRARY, bytes, &workspace) != 0)
            return -OUT_OF_MEMORY;
        return record(plan, known, at, pointers, integers, workspace);
    }
    int device = plan->device < 0 ? 0 : plan->device;
    if (bytes > 0 && (api->new_tensor(1, &bytes, &stride, TORCH_UINT8, type_of_device(plan), device, &tensor) != 0
                      || api->data_pointer(tensor, &workspace) != 0))
        return -OUT_OF_MEMORY;
    int code = run(plan, known, proposal, pointers, workspace, stream);
    if (code == 0)
        known->ran |= 1u << at;
    if (tensor != NULL)
        api->delete_tensor(tensor);
    return code;
}

/* A proposal that the library refuses gives way to the next one, unless none has run yet: then the plan fails. The
   first time, the call is declined, so that the caller can report it. */
static long multiply(ProductPlan *plan, void *const *pointers, const long *integers)
{
    Known *known = known_of(plan, pointers, integers);
    if (known == NULL)
        return -OUT_OF_MEMORY;
    for (;;) {
        int at = chosen(plan, known, integers);
        if (at < 0)
            return DECLINED;
        int code = run_or_record(plan, known, at, pointers, integers);
        if (code == 0)
            plan->has_run = 1;
        if (code > -LIBRARY_STATUS || !plan->has_run)
            return code;
        known->refused |= 1u << at;
        if (plan->refusals++ == 0)
            return DECLINED;
    }
}

static long multiply_by_aten(const ProductPlan *plan, void *const *pointers, const long *integers)
{
    static const int order[3] = {D, A, B};
    const ProductApi *api = plan->api;
    void *tensors[3] = {NULL, NULL, NULL};
    Shape shape;
    shape_of(plan, pointers, integers, &shape);
    int flat = shape.batch == 1, device = plan->device < 0 ? 0 : plan->device, code = 0;
    for (int i = 0; i < 3 && code == 0; i++) {
        const Operand *operand = &plan->operands[order[i]];
        int64_t sizes[3] = {shape.batch, order[i] == B ? shape.k : shape.m, order[i] == A ? shape.k : shape.n};
        code = api->look_at(pointers[operand->tensor], 3 - flat, sizes + flat, shape.strides[order[i]] + flat, 0,
                            operand->torch_type, type_of_device(plan), device, &tensors[i]);
    }
    int whole = plan->operands[A].torch_type == TORCH_INT8;
    if (code == 0)
        code = whole && !flat ? 1 : (whole ? api->int_mm : flat ? api->mm : api->bmm)(tensors[0], tensors[1], tensors[2]);
    for (int i = 0; i < 3; i++)
        if (tensors[i] != NULL)
            api->delete_tensor(tensors[i]);
    return code == 0 ? 0 : DECLINED; /* the Python form reports what is wrong */
}

typedef struct { /* followed by the integers */
    void *operands[3]; /* D, A, B */
    const ProductPlan *plan;
    uint64_t number;
    void *stream; /* ATen's workspace is that of the stream */
} LaterByAten;

static int make_later_by_aten(const void *data, void *stream)
{
    const LaterByAten *later = data;
    void *pointers[tensors_of(later->plan)];
    memset(pointers, 0, sizeof pointers);
    pointers[later->plan->operands[D].tensor] = later->operands[0];
    pointers[later->plan->operands[A].tensor] = later->operands[1];
    pointers[later->plan->operands[B].tensor] = later->operands[2];
    return multiply_by_aten(later->plan, pointers, (const long *)(later + 1)) == 0 ? 0 : -NOT_SUPPORTED;
}

static int record_aten(ProductPlan *plan, void *const *pointers, const long *integers, void *stream)
{
    size_t bytes = sizeof(LaterByAten) + (size_t)plan->integers * sizeof(long);
    _Alignas(LaterByAten) unsigned char data[bytes];
    LaterByAten *later = memset(data, 0, bytes);
    *later = (LaterByAten){.plan = plan, .number = number_of(plan), .stream = stream};
    later->operands[0] = pointers[plan->operands[D].tensor];
    later->operands[1] = pointers[plan->operands[A].tensor];
    later->operands[2] = pointers[plan->operands[B].tensor];
    memcpy(later + 1, integers, (size_t)plan->integers * sizeof(long));
    uint64_t kind = later->number ^ (uint64_t)(uintptr_t)stream;
    for (int i = 0; i < plan->integers; i++)
        kind = (kind ^ (uint64_t)integers[i]) * 0x9E3779B97F4A7C15u;
    return -recorder->call(make_later_by_aten, kind, data, bytes, 3, 1);
}

/* Makes the call now or records it, once it is known that ATen takes such operands. */
static long run_or_record_aten(ProductPlan *plan, void *const *pointers, const long *integers)
{
    void *stream = NULL;
    if (recorder != NULL && plan->device >= 0 && plan->api->current_stream(plan->device, &stream) != 0)
        return -INVALID_VALUE;
    if (recorder != NULL && plan->device >= 0 && recorder->records(plan->device, plan->context, stream)) {
        if (plan->has_run) {
            lock(plan); /* which gets its number */
            int code = record_aten(plan, pointers, integers, stream);
            unlock(plan);
            return code;
        }
        recorder->make(FOR_LIBRARY);
    }
    long code = multiply_by_aten(plan, pointers, integers);
    if (code == 0)
        plan->has_run = 1;
    return code;
}

/* Makes the plan's device current if another one is; `pushed` reports that. Returns the driver's error. */
static int enter(const ProductPlan *plan, int *pushed)
{
    void *context = NULL;
    *pushed = 0;
    if (plan->context == NULL)
        return 0;
    int code = plan->api->get_context(&context);
    if (code == 0 && context != plan->context) {
        code = plan->api->push_context(plan->context);
        *pushed = code == 0;
    }
    return code;
}

static void leave(const ProductPlan *plan, int pushed)
{
    void *popped;
    if (pushed)
        plan->api->pop_context(&popped);
}

long polytile_product_cublaslt(void *const *pointers, const long *integers, long address)
{
    ProductPlan *plan = (ProductPlan *)address;
    int pushed;
    long code = -enter(plan, &pushed);
    if (code == 0) {
        lock(plan); /* a descriptor holds the call's bias */
        code = multiply(plan, pointers, integers);
        unlock(plan);
    }
    leave(plan, pushed);
    return code;
}

long polytile_product_aten(void *const *pointers, const long *integers, long address)
{
    ProductPlan *plan = (ProductPlan *)address;
    int pushed;
    long code = -enter(plan, &pushed);
    if (code == 0)
        code = run_or_record_aten(plan, pointers, integers);
    leave(plan, pushed);
    return code;
}

/* The proposals for a shape, without caching them: returns their number, at most PROPOSALS. */
int polytile_product_proposals(ProductPlan *plan, const Shape *shape, Proposal *proposals)
{
    int pushed, count = 0;
    if (enter(plan, &pushed) == 0) {
        Known *known = asked(plan, shape);
        if (known != NULL) {
            count = known->count;
            memcpy(proposals, known->proposals, sizeof known->proposals);
        }
        forget(plan->api, known);
    }
    leave(plan, pushed);
    return count;
}

void polytile_product_release(ProductPlan *plan)
{
    clear(plan);
}

size_t polytile_product_bytes(void)
{
    return sizeof(ProductPlan);
}
