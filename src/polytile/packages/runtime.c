/* Calls of packages: the functions of the Api (runtime/program.h) on plain memory, without Python or torch.

   A tensor is an address, a layout and the memory that it keeps alive. What was given to a call and what the package holds is
   borrowed, and copied where it is a result. All state of a call is in its Frame and, of a GPU, in
   `here`, so that calls may run side by side. */

/* ---- tensors ---- */

typedef struct {
    char *data;
    Memory *memory; /* NULL: borrowed, or nothing is there */
    Layout layout;
    int input; /* which one was given */
} Tensor;

struct Frame {
    PolytilePackage *package;
    OnGpu *on; /* the GPU that it runs on; NULL: the processor */
    const DLTensor *const *given;
    DLManagedTensor **results;
    int result_count;
    Tensor *tensors;  /* the last one is the arena */
    int64_t *offsets; /* of memories in the arena */
    int64_t *strides; /* of inputs that came without any, one after the other */
    Why why;
};

enum { TYPES = 16, BYTES = 0, INT64 = 4 };

static const DLDataType types[TYPES] = { /* by torch's numbers; no bits: packages have none */
    {1, 8, 1}, {0, 8, 1}, {0, 16, 1}, {0, 32, 1}, {0, 64, 1}, {2, 16, 1}, {2, 32, 1}, {2, 64, 1},
    {5, 32, 1}, {5, 64, 1}, {5, 128, 1}, {6, 8, 1}, {0, 0, 0}, {0, 0, 0}, {0, 0, 0}, {4, 16, 1},
};

static int64_t element_bytes(const Layout *layout)
{
    return types[layout->dtype].bits / 8;
}

/* `tensor` becomes `new`, whose memory it takes over. */
static void become(Tensor *tensor, Tensor new)
{
    Memory *before = tensor->memory;
    *tensor = new;
    drop(before);
}

static const Gpu *gpu_of_call(const Frame *frame)
{
    return frame->on == NULL ? NULL : frame->on->gpu;
}

static int allocate_tensor(Frame *frame, int number, const Layout *layout, int device_type, int device)
{
    int64_t bytes = bytes_of(layout, element_bytes(layout), 1);
    Memory *memory = new_memory(gpu_of_call(frame), bytes);
    (void)device_type, (void)device; /* those of the example */
    if (memory == NULL)
        return fail(&frame->why, POLYTILE_MEMORY, "package %s: there is no memory for %ld bytes.", frame->package->path, (long)bytes);
    become(&frame->tensors[number], (Tensor){bytes == 0 ? NULL : memory->data, memory, *layout, -1});
    return 0;
}

/* Copies elements from one layout of `rank` sizes to another of the same sizes. */
static void copy_elements(char *to, const char *from, int64_t rank, const int64_t *sizes, const int64_t *to_strides,
                          const int64_t *from_strides, int64_t bytes)
{
    if (rank == 0) {
        memcpy(to, from, (size_t)bytes);
        return;
    }
    for (int64_t i = 0; i < sizes[0]; i++)
        copy_elements(to + i * to_strides[0] * bytes, from + i * from_strides[0] * bytes, rank - 1, sizes + 1, to_strides + 1,
                      from_strides + 1, bytes);
}

/* ---- the Api: arguments ---- */

static int take_tensor(Frame *frame, int argument, int number)
{
    const PackagedInput *input = &frame->package->program->input[argument];
    const DLTensor *given = frame->given[argument];
    DLDataType type = types[input->dtype];
    Why *why = &frame->why;
    const Gpu *gpu = gpu_of_call(frame);
    if (gpu == NULL && given->device.device_type != CPU_DEVICE)
        return fail(why, POLYTILE_REFUSED, "input '%s' is not in the processor's memory, as this package needs it.", input->name);
    if (gpu != NULL && (given->device.device_type != GPU_DEVICE || given->device.device_id != gpu->index))
        return fail(why, POLYTILE_REFUSED, "input '%s' is not in the memory of GPU %d, as this call needs it.", input->name, gpu->index);
    if (given->dtype.code != type.code || given->dtype.bits != type.bits || given->dtype.lanes != 1)
        return fail(why, POLYTILE_REFUSED, "input '%s' has another element type (DLPack's code %d, %d bits) than the package takes (%d, %d).",
                    input->name, given->dtype.code, given->dtype.bits, type.code, type.bits);
    if (given->ndim != input->rank)
        return fail(why, POLYTILE_REFUSED, "input '%s' has %d dimensions; the package takes %d.", input->name, given->ndim, input->rank);
    const int64_t *strides = given->strides;
    if (strides == NULL) {
        int64_t step = 1;
        for (int i = given->ndim - 1; i >= 0; i--) {
            frame->strides[i] = step;
            step *= given->shape[i];
        }
        strides = frame->strides;
        frame->strides += given->ndim;
    }
    Layout layout = {given->ndim, given->shape, strides, input->dtype};
    become(&frame->tensors[number], (Tensor){(char *)given->data + given->byte_offset, NULL, layout, argument});
    return 0;
}

static int take_integer(Frame *frame, int argument, int64_t *integer)
{
    const PackagedInput *input = &frame->package->program->input[argument];
    const DLTensor *given = frame->given[argument];
    if (given->ndim != 0 || given->dtype.code != 0 || given->dtype.bits != 64 || given->device.device_type != CPU_DEVICE)
        return fail(&frame->why, POLYTILE_REFUSED, "input '%s' has to be an integer: a tensor of rank 0 and type int64.", input->name);
    memcpy(integer, (const char *)given->data + given->byte_offset, sizeof *integer);
    return 0;
}

static int on_device(int device)
{
    (void)device; /* that of the example */
    return 1;
}

static void accept(Frame *frame)
{
    (void)frame;
}

static const int64_t *sizes_of(Frame *frame, int number)
{
    return frame->tensors[number].layout.sizes;
}

static const int64_t *strides_of(Frame *frame, int number)
{
    return frame->tensors[number].layout.strides;
}

static int expect(Frame *frame, int number, const Layout *want)
{
    Tensor *tensor = &frame->tensors[number];
    const Layout *own = &tensor->layout;
    const char *name = frame->package->program->input[tensor->input].name;
    int same = 1, empty = 0;
    for (int64_t i = 0; i < want->rank; i++) {
        if (own->sizes[i] != want->sizes[i])
            return fail(&frame->why, POLYTILE_REFUSED, "input '%s' has size %ld in dimension %ld; with the other sizes given, it has to be %ld.",
                        name, (long)own->sizes[i], (long)i, (long)want->sizes[i]);
        same &= own->sizes[i] <= 1 || own->strides[i] == want->strides[i];
        empty |= own->sizes[i] == 0;
    }
    if (same || empty)
        return 0;
    if (frame->on != NULL)
        return fail(&frame->why, POLYTILE_REFUSED, "input '%s' has other strides than the package takes; copy it to those of the example.",
                    name);
    Tensor before = *tensor;
    *tensor = (Tensor){.input = before.input};
    if (allocate_tensor(frame, number, want, 0, 0) < 0)
        return RAISED;
    tensor->input = before.input;
    copy_elements(tensor->data, before.data, want->rank, want->sizes, want->strides, before.layout.strides, element_bytes(want));
    return 0;
}

/* ---- the Api: memory ---- */

static int constant(Frame *frame, int object, int number)
{
    const PackagedConstant *held = &frame->package->program->constant[object];
    char *weights = frame->on != NULL ? (char *)frame->on->weights : (char *)frame->package->weights.data, *data = weights + held->offset;
    become(&frame->tensors[number], (Tensor){held->bytes == 0 ? NULL : data, NULL, held->layout, -1});
    return 0;
}

static int arena(Frame *frame, const Life *lives, const Layout *const *layouts, int count, int device_type, int device)
{
    PolytilePackage *package = frame->package;
    const int64_t step = 1;
    int64_t bytes[count], total = 0;
    for (int i = 0; i < count; i++) {
        const Tensor *given = lives[i].argument < 0 ? NULL : &frame->tensors[lives[i].argument];
        bytes[i] = given == NULL ? bytes_of(layouts[i], lives[i].bytes_of_element, 64)
                                 : bytes_of(&given->layout, element_bytes(&given->layout), 64);
    }
    pthread_mutex_lock(&package->lock);
    const ArenaPlan *plan = plan_for(&package->plans, lives, bytes, count);
    if (plan != NULL) {
        memcpy(frame->offsets, plan->offsets, (size_t)count * sizeof(int64_t));
        total = plan->total;
    }
    pthread_mutex_unlock(&package->lock);
    if (total == 0)
        return 0;
    return allocate_tensor(frame, package->program->tensors, &(Layout){1, &total, &step, BYTES}, device_type, device);
}

static int carve(Frame *frame, int number, int memory, const Layout *layout, int device_type, int device)
{
    const Tensor *of = &frame->tensors[frame->package->program->tensors];
    if (of->data == NULL)
        return allocate_tensor(frame, number, layout, device_type, device);
    become(&frame->tensors[number], (Tensor){of->data + frame->offsets[memory], shared(of->memory), *layout, -1});
    return 0;
}

static int reuse(Frame *frame, int number, int old, const Layout *layout)
{
    const Tensor *before = &frame->tensors[old];
    become(&frame->tensors[number], (Tensor){before->data, shared(before->memory), layout != NULL ? *layout : before->layout, -1});
    return 0;
}

static int view(Frame *frame, int number, int base, const Layout *layout, int64_t offset, int64_t bytes_of_element, int bits)
{
    const Tensor *of = &frame->tensors[base];
    char *data = of->data == NULL ? NULL : of->data + offset * bytes_of_element;
    (void)bits;
    become(&frame->tensors[number], (Tensor){data, shared(of->memory), *layout, -1});
    return 0;
}

static void free_tensor(Frame *frame, int number)
{
    become(&frame->tensors[number], (Tensor){.input = -1});
}

/* ---- the Api: kernels ---- */

static const long DECLINED = LONG_MIN, RAISED_HERE = LONG_MIN + 1; /* the first as in launcher.c */

static int order_of(const int64_t *one, const int64_t *other, int32_t fields)
{
    for (int32_t i = 0; i < fields; i++)
        if (one[i] != other[i])
            return one[i] < other[i] ? -1 : 1;
    return 0;
}

static const PackagedRow *find_row(const PackagedTable *table, const int64_t *key, int32_t fields)
{
    int32_t low = 0, high = table->count;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        int order = order_of(table->rows[middle].key, key, fields);
        if (order == 0)
            return &table->rows[middle];
        *(order < 0 ? &low : &high) = order < 0 ? middle + 1 : middle;
    }
    return NULL;
}

/* The fields of a call's key with `field` of each size whose bucket matters. */
static void finer_fields(const PackagedKernel *kernel, const int64_t *fields, const int64_t *integers, int64_t (*field)(int64_t),
                         int64_t *finer)
{
    memcpy(finer, fields, (size_t)kernel->fields * sizeof *finer);
    for (int32_t i = 0, at = 0; i < kernel->integers; at += kernel->codes[i++] != IGNORE)
        if (kernel->codes[i] == BUCKET)
            finer[at] = field(integers[i]);
}

static int64_t cell_of(int64_t size)
{
    int64_t field = bucket(size);
    return size <= 8 ? field : field & ~(int64_t)1;
}

/* What is known of calls like this one: decided for these sizes or their regime, else predicted for the cell around them. `fields`
   gets the fields of the key. */
static PackagedRow row_of(const PackagedKernel *kernel, void *const *pointers, const int64_t *integers, int64_t *fields)
{
    int64_t finer[kernel->fields + 1], *next = fields;
    for (int32_t i = 0; i < kernel->integers; i++)
        next = append_integer_field(next, kernel->codes[i], integers[i]);
    int64_t *sizes_end = next;
    for (int i = 0; kernel->tensor_codes != NULL && i < kernel->tensors; i++)
        if (kernel->tensor_codes[i] != ANY)
            *next++ = tensor_field(kernel->tensor_codes[i], (uintptr_t)pointers[i]);
    for (int32_t i = 0; i < kernel->formula_count; i++)
        *next++ = formula(kernel->formulas[i], (const long *)integers);

    const PackagedRow *row = NULL;
    if (kernel->has_exact_sizes) {
        finer_fields(kernel, fields, integers, exact_size, finer);
        row = find_row(&kernel->decided, finer, kernel->fields);
    }
    if (row == NULL && (row = find_row(&kernel->decided, fields, kernel->fields)) != NULL && row->count == 0) {
        finer_fields(kernel, fields, integers, sub_bucket, finer);
        row = find_row(&kernel->decided, finer, kernel->fields);
    }
    if (row == NULL) {
        finer_fields(kernel, fields, integers, cell_of, finer);
        for (int32_t i = 0, at = 0; i < kernel->integers; at += kernel->codes[i++] != IGNORE)
            if (kernel->codes[i] == DIVISIBLE)
                finer[at] = 0;
        memset(finer + (sizes_end - fields), 0, (size_t)(next - sizes_end) * sizeof *finer);
        row = find_row(&kernel->cells, finer, kernel->fields);
    }
    return row != NULL ? *row : (PackagedRow){NULL, kernel->anywhere_count, kernel->anywhere};
}

typedef struct { /* of a kernel */
    int number;
    void *const *pointers;
    const int64_t *integers, *fields;
} Call;

static int is_right(const PackagedLeaf *leaf, const Call *call)
{
    for (int32_t i = 0; i < leaf->fact_count; i++)
        if (!fact_holds((const LeafFact *)leaf->facts + i, call->fields, (const long *)call->integers, call->pointers))
            return 0;
    return 1;
}

static long dispatch(Frame *frame, int number, void *const *pointers, const int64_t *integers);

/* A product, and the kernel that reads it from memory (pair.c does the same in live programs). */
static long multiply_then(Frame *frame, const PackagedLeaf *leaf, void *plan, const Call *call)
{
    const PackagedKernel *then = &frame->package->program->kernel[leaf->then];
    int64_t bytes = leaf->element_bytes * call->integers[0] * call->integers[1] * call->integers[2];
    Memory *memory = bytes > 0 ? new_memory(frame->on->gpu, bytes) : NULL;
    if (memory == NULL)
        return DECLINED;
    void *operands[] = {call->pointers[0], call->pointers[1], memory->data}, *given[then->tensors];
    memcpy(&given[1], &call->pointers[2], (size_t)(then->tensors - 1) * sizeof *given);
    given[0] = memory->data;
    long code = frame->package->multiply(operands, (const long *)call->integers, (long)(intptr_t)plan);
    if (code == 0)
        code = dispatch(frame, leaf->then, given, call->integers + leaf->product->integers);
    drop(memory);
    return code;
}

/* What a leaf returns; DECLINED where it makes no such call, or none on this device. RAISED_HERE with a sentence. */
static long call_leaf(Frame *frame, int number, const Call *call)
{
    PolytilePackage *package = frame->package;
    const PackagedProgram *program = package->program;
    const PackagedLeaf *leaf = &program->kernel[call->number].leaves[number];
    const long *integers = (const long *)call->integers;
    if (frame->on == NULL)
        return package->entries[call->number][number](call->pointers, integers, leaf->threads);
    void *plan = plan_of(package, frame->on, call->number, number, &frame->why);
    if (plan == NULL)
        return RAISED_HERE;
    if (plan == &absent)
        return DECLINED;
    if (leaf->then != NO_KERNEL)
        return multiply_then(frame, leaf, plan, call);
    Kernel run = leaf->product != NULL ? package->multiply : package->launch;
    return run(call->pointers, integers, (long)(intptr_t)plan);
}

/* Has the first of some leaves make the call that is right for it and does not decline. */
static long call_first(Frame *frame, const unsigned short *leaves, int32_t count, const Call *call)
{
    const PackagedKernel *kernel = &frame->package->program->kernel[call->number];
    long code = DECLINED;
    for (int32_t i = 0; i < count && code == DECLINED; i++)
        if (is_right(&kernel->leaves[leaves[i]], call))
            code = call_leaf(frame, leaves[i], call);
    return code;
}

/* 0; DECLINED where there is no form for these sizes; or RAISED_HERE with a sentence. */
static long dispatch(Frame *frame, int number, void *const *pointers, const int64_t *integers)
{
    const PackagedKernel *kernel = &frame->package->program->kernel[number];
    int64_t fields[kernel->fields + 1];
    const Call call = {number, pointers, integers, fields};
    PackagedRow row = row_of(kernel, pointers, integers, fields);
    long code = call_first(frame, row.leaves, row.count, &call);
    if (code == DECLINED)
        code = call_first(frame, kernel->anywhere, kernel->anywhere_count, &call);
    if (code == 0 || code == DECLINED || code == RAISED_HERE)
        return code;
    if (code < 0)
        failed_on_gpu(frame->package, kernel, code, &frame->why);
    else
        fail(&frame->why, POLYTILE_INDEX, "kernel '%s': %s", kernel->name,
             code <= kernel->check_count ? kernel->checks[code - 1] : "a run-time check failed.");
    return RAISED_HERE;
}

static int call_kernel(Frame *frame, int number, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    void *pointers[tensor_count + 1];
    for (int i = 0; i < tensor_count; i++)
        pointers[i] = frame->tensors[tensors[i]].data;
    (void)count;
    long code = dispatch(frame, number, pointers, integers);
    if (code == DECLINED)
        return fail(&frame->why, POLYTILE_REFUSED, "package %s has no form of kernel '%s' for these sizes%s. Write it with %s that have them.",
                    frame->package->path, frame->package->program->kernel[number].name, frame->on == NULL ? "" : " on this GPU",
                    frame->on == NULL ? "sizes" : "sizes or architectures=");
    return code == 0 ? 0 : RAISED;
}

/* What packages never hold: packages/text.py refuses lines that need it. */
static int no_python(Frame *frame, int callable, int result, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    (void)callable, (void)result, (void)tensors, (void)tensor_count, (void)integers, (void)count;
    return fail(&frame->why, POLYTILE_REFUSED, "package %s wants a call of Python.", frame->package->path);
}

static int no_number(Frame *frame, int callable, int64_t *result, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    (void)result;
    return no_python(frame, callable, 0, tensors, tensor_count, integers, count);
}

static int no_output(Frame *frame, int tensor, int source, int output, const Layout *layout, int is_view)
{
    (void)tensor, (void)source, (void)layout, (void)is_view;
    return no_python(frame, output, 0, NULL, 0, NULL, 0);
}

static int is_none(Frame *frame, int number)
{
    (void)frame, (void)number;
    return 0;
}

static int raise_error(Frame *frame, int error)
{
    const PackagedError *raised = &frame->package->program->errors[error];
    return fail(&frame->why, raised->status, "%s", raised->sentence);
}

static int overflow(Frame *frame)
{
    return fail(&frame->why, POLYTILE_REFUSED, "package %s: a size does not fit a signed 64-bit integer, or a divisor is 0.",
                frame->package->path);
}

/* ---- the Api: results ---- */

typedef struct {
    DLManagedTensor managed;
    Memory *memory;
    int64_t numbers[]; /* sizes, then strides */
} Output;

static void delete_output(DLManagedTensor *managed)
{
    Output *output = (Output *)managed;
    drop(output->memory);
    free(output);
}

static int no_memory(Frame *frame)
{
    return fail(&frame->why, POLYTILE_MEMORY, "package %s: there is no memory for a result.", frame->package->path);
}

static DLDevice device_of(const Memory *memory)
{
    const Gpu *gpu = memory == NULL ? NULL : memory->gpu;
    return gpu == NULL ? (DLDevice){CPU_DEVICE, 0} : (DLDevice){GPU_DEVICE, gpu->index};
}

/* A result of this layout in `memory`, which it takes over. */
static int give(Frame *frame, char *data, Memory *memory, const Layout *layout)
{
    size_t rank = (size_t)layout->rank;
    Output *output = malloc(sizeof *output + 2 * rank * sizeof(int64_t));
    if (output == NULL) {
        drop(memory);
        return no_memory(frame);
    }
    memcpy(output->numbers, layout->sizes, rank * sizeof(int64_t));
    memcpy(output->numbers + rank, layout->strides, rank * sizeof(int64_t));
    output->memory = memory;
    output->managed.manager_ctx = NULL;
    output->managed.deleter = delete_output;
    output->managed.dl_tensor = (DLTensor){
        .data = data, .device = device_of(memory), .ndim = (int32_t)rank, .dtype = types[layout->dtype], .shape = output->numbers,
        .strides = output->numbers + rank, .byte_offset = 0,
    };
    frame->results[frame->result_count++] = &output->managed;
    return 0;
}

static int give_tensor(Frame *frame, int number)
{
    const Tensor *tensor = &frame->tensors[number];
    if (tensor->memory != NULL)
        return give(frame, tensor->data, shared(tensor->memory), &tensor->layout);
    int64_t bytes = bytes_of(&tensor->layout, element_bytes(&tensor->layout), 1);
    Memory *memory = new_memory(gpu_of_call(frame), bytes);
    if (memory == NULL)
        return no_memory(frame);
    int code = 0;
    if (frame->on == NULL && bytes > 0)
        memcpy(memory->data, tensor->data, (size_t)bytes);
    else if (bytes > 0)
        code = cu.copy((uintptr_t)memory->data, (uintptr_t)tensor->data, (size_t)bytes, here.stream);
    if (code != 0) {
        drop(memory);
        return refused_by_driver(frame->package, &frame->why, "copy a result", code);
    }
    return give(frame, memory->data, memory, &tensor->layout);
}

static int give_integer(Frame *frame, int64_t integer)
{
    Memory *memory = new_memory(NULL, sizeof integer);
    if (memory == NULL)
        return no_memory(frame);
    memcpy(memory->data, &integer, sizeof integer);
    return give(frame, memory->data, memory, &(Layout){0, &integer, &integer, INT64});
}

static int give_none(Frame *frame)
{
    frame->results[frame->result_count++] = NULL;
    return 0;
}

static const Api api = {
    take_tensor, take_integer, take_tensor, on_device, accept, sizes_of, strides_of, constant, arena, carve, allocate_tensor, reuse, view,
    free_tensor, call_kernel, no_python, no_number, no_output, is_none, raise_error, overflow, give_tensor, give_integer, give_none, expect,
};

/* ---- calls ---- */

static int run(PolytilePackage *self, Frame *frame)
{
    const PackagedProgram *program = self->program;
    int64_t offsets[program->memories + 1], ranks = 1;
    for (int i = 0; i < program->inputs; i++)
        ranks += program->input[i].rank;
    int64_t strides[ranks];
    frame->offsets = offsets;
    frame->strides = strides;
    frame->tensors = calloc((size_t)program->tensors + 1, sizeof(Tensor));
    if (frame->tensors == NULL)
        return no_memory(frame);
    int status = program->run(&api, frame);
    for (int i = 0; i <= program->tensors; i++)
        drop(frame->tensors[i].memory);
    free(frame->tensors);
    return status;
}

static int make_call(PolytilePackage *self, Frame *frame, DLManagedTensor **outputs)
{
    if (run(self, frame) == RETURNED)
        return POLYTILE_OK;
    while (frame->result_count-- > 0)
        if (outputs[frame->result_count] != NULL)
            delete_output(outputs[frame->result_count]);
    if (frame->why.status == 0)
        overflow(frame);
    return frame->why.status;
}

/* The number of the GPU that a call is for: where its first tensor is, or the current one. */
static int device_of_call(const DLTensor *const *inputs, int count)
{
    int index = 0;
    for (int i = 0; i < count; i++)
        if (inputs[i]->device.device_type == GPU_DEVICE)
            return inputs[i]->device.device_id;
    return cu.current_device(&index) == 0 ? index : 0;
}

static int make_call_on_gpu(PolytilePackage *self, Frame *frame, DLManagedTensor **outputs, int index, void *stream)
{
    int code = 0, recording = 0;
    Gpu *gpu = gpu_of(index, &code);
    if (gpu == NULL || (code = enter(gpu)) != 0) {
        refused_by_driver(self, &frame->why, "use the GPU of the inputs", code);
        return POLYTILE_DEVICE;
    }
    here.gpu = gpu;
    here.stream = stream;
    int status = POLYTILE_REFUSED;
    if (cu.is_capturing(stream, &recording) == 0 && recording)
        fail(&frame->why, status, "package %s: the stream is recorded for a CUDA graph, which calls of packages cannot be part of.", self->path);
    else if ((frame->on = on_gpu(self, gpu, &frame->why)) == NULL)
        status = frame->why.status;
    else
        status = make_call(self, frame, outputs);
    leave();
    return status;
}

int polytile_call_on(PolytilePackage *self, void *stream, const DLTensor *const *inputs, int input_count, DLManagedTensor **outputs,
                     int output_count, char *text, size_t room)
{
    Frame frame = {.package = self, .given = inputs, .results = outputs, .why = {text, room, 0}};
    const PackagedProgram *program = self->program;
    if (input_count != program->inputs || output_count != program->outputs) {
        fail(&frame.why, POLYTILE_REFUSED, "package %s takes %d inputs and gives %d outputs; the call has %d and %d.", self->path,
             program->inputs, program->outputs, input_count, output_count);
        return POLYTILE_REFUSED;
    }
    if (program->device_type != GPU_DEVICE)
        return make_call(self, &frame, outputs);
    return make_call_on_gpu(self, &frame, outputs, device_of_call(inputs, input_count), stream);
}

int polytile_call(PolytilePackage *self, const DLTensor *const *inputs, int input_count, DLManagedTensor **outputs, int output_count,
                  char *text, size_t room)
{
    return polytile_call_on(self, NULL, inputs, input_count, outputs, output_count, text, room);
}
