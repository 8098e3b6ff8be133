/* Part of the launcher: programs in C. A Program runs the function that wrapper/cpp.py wrote for its lines (program.h).

   To kernels, a tensor is an address. Its at::Tensor is created on demand: an allocation has one, while a view or part
   of another tensor has none until a library call, a Python candidate or the caller needs the object. The GIL is held
   except while a kernel runs.

   Launches on a GPU may be recorded (cuda/graphs.c). They are made before anything else can observe their effects, and
   memory that they use is kept until then. */

enum { DTYPE_UINT8 = 0, DTYPE_FLOAT32 = 6 };
enum { UNREAD = -1, NOT_PLAIN = -2, NOTHING_THERE = -3 }; /* in place of a device type */
enum { MOST_RECORDED = 32 << 20 }; /* bytes of an arena that is there only because launches are recorded */

typedef struct Tensor {
    PyObject *object;   /* owned; NULL: not created yet */
    void *handle;       /* at::Tensor *, inside the object if there is one; NULL: not created yet */
    void *memory;       /* at::Tensor * of another layout, from which the handle is created; or NULL */
    char owns_handle, owns_memory; /* whether they are released with this tensor; otherwise they belong to the object, or to the
                                      tensor that reuses the memory, which lives longer */
    char shared;        /* whether another tensor uses the handle or memory of this one */
    char *data;         /* first element; NULL if there are no elements */
    int device;         /* torch's device type if kernels may use `data` */
    Layout layout;      /* if there is no handle yet */
    struct Tensor *base;
    int64_t offset;     /* from the base's first element, in elements; in bytes in the arena */
    int bits;           /* whether the base's bits are reinterpreted as another dtype */
    int in_arena;       /* whether the base is the arena */
    int planned;        /* whether it has no memory yet: it will be allocated, on a CPU, when it is needed */
} Tensor;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name;
    PyObject *fallback;    /* (args): Python's wrapper; NULL once the collector has cleared the program */
    PyObject *kernels, *callables, *constants, *errors; /* tuples */
    PyObject *as_declared; /* (tensor, strides) -> the tensor in these strides */
    PyObject *want_graph;  /* (entries of the called kernels) requests a graph from the background; or NULL */
    PyObject *look;        /* (args) -> number of calls until the next one; or NULL */
    Function function;
    Py_ssize_t arguments, tensors, memories; /* how many */
    ArenaPlans plans;
    void *graphs;         /* of the recorder; NULL: launches are made at once */
    PyObject *weak_references;
    long long left;       /* calls until `look` is called; 0: never */
} Program;

struct Frame {
    Program *program;
    PyObject *given; /* the caller's list */
    PyObject *results;
    Tensor *tensors; /* the last one is the arena */
    int64_t *offsets; /* of memories in the arena, -1 for those outside; NULL: there is no arena */
    void *record;      /* of the recorder; NULL: launches are made at once */
    PyObject *entries; /* list of the entries whose launches are recorded; NULL: none yet */
};

/* Set once by configure_programs(). Functions of torch's stable C interface, except `wrap`: THPVariable_Wrap. */
static struct {
    int32_t (*empty)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type, int32_t device,
                     void **tensor);
    int32_t (*reinterpret)(void *tensor, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset, void **view);
    int32_t (*part)(void *tensor, int64_t offset, int32_t dtype, int64_t rank, const int64_t *sizes, const int64_t *strides,
                    void **part);
    int32_t (*view_bits)(void *tensor, int32_t dtype, void **view);
    int32_t (*new_handle)(void *tensor, void **same);
    int32_t (*delete)(void *tensor);
    int32_t (*get_rank)(void *tensor, int64_t *rank);
    int32_t (*get_sizes)(void *tensor, int64_t **sizes);
    int32_t (*get_strides)(void *tensor, int64_t **strides);
    int32_t (*get_storage_size)(void *tensor, int64_t *bytes);
    int32_t (*get_count)(void *tensor, int64_t *elements);
    int32_t (*current_device)(int32_t *device);
    PyObject *(*wrap)(void *tensor); /* leaves the handle unchanged, or empty */
    PyObject *allocate; /* (sizes, strides, dtype, type of device, device) -> tensor, or raises */
} torch_functions;

/* ---- tensors ---- */

static inline int is_plain(PyObject *object)
{
    return Py_TYPE(object) == configured.tensor || Py_TYPE(object) == configured.parameter;
}

static int64_t bytes_of_storage(void *handle)
{
    int64_t bytes = 0;
    return torch_functions.get_storage_size(handle, &bytes) == 0 ? bytes : 0;
}

/* Deletes a handle once recorded launches no longer need its memory, which others have as well if it is `shared`. */
static void delete_handle(void *handle, int shared)
{
    if (recorder != NULL && recorder->holds())
        recorder->keep(handle, shared ? 0 : bytes_of_storage(handle));
    else
        torch_functions.delete(handle);
}

static void release(Tensor *tensor)
{
    if (tensor->object == NULL && tensor->handle == NULL && tensor->memory == NULL && tensor->base == NULL && !tensor->planned)
        return; /* nothing is there */
    PyObject *object = tensor->object;
    void *handle = tensor->owns_handle ? tensor->handle : NULL, *memory = tensor->owns_memory ? tensor->memory : NULL;
    *tensor = (Tensor){.device = UNREAD};
    if (handle != NULL)
        delete_handle(handle, 0);
    if (memory != NULL)
        delete_handle(memory, 0);
    int shared = object != NULL && Py_REFCNT(object) > 1; /* weights, say, are the caller's, who keeps them */
    if (object != NULL && is_plain(object) && recorder != NULL && recorder->holds()
        && torch_functions.new_handle((char *)object + configured.handle_offset, &handle) == 0)
        delete_handle(handle, shared);
    Py_XDECREF(object);
}

/* Makes this object the tensor's; takes over a reference. */
static void hold(Tensor *tensor, PyObject *object)
{
    release(tensor);
    tensor->object = object;
    if (is_plain(object))
        tensor->handle = (char *)object + configured.handle_offset;
    else
        tensor->device = object == Py_None ? NOTHING_THERE : NOT_PLAIN;
}

static int32_t handle_of(Tensor *tensor);
static int allocate_planned(Frame *frame, Tensor *tensor);

static int32_t view_of_base(Tensor *tensor)
{
    void *bits = NULL;
    const Layout *layout = &tensor->layout;
    int32_t code = handle_of(tensor->base);
    if (code == 0 && tensor->in_arena)
        return torch_functions.part(tensor->base->handle, tensor->offset, layout->dtype, layout->rank, layout->sizes, layout->strides,
                                    &tensor->handle);
    if (code == 0 && tensor->bits)
        code = torch_functions.view_bits(tensor->base->handle, layout->dtype, &bits);
    if (code == 0)
        code = torch_functions.reinterpret(tensor->bits ? bits : tensor->base->handle, layout->rank, layout->sizes, layout->strides,
                                           tensor->offset, &tensor->handle);
    if (bits != NULL)
        torch_functions.delete(bits);
    return code;
}

/* Creates the at::Tensor if needed. Nonzero on failure, without an exception. */
static int32_t handle_of(Tensor *tensor)
{
    const Layout *layout = &tensor->layout;
    if (tensor->handle != NULL)
        return 0;
    int32_t code = -1;
    if (tensor->memory != NULL)
        code = torch_functions.reinterpret(tensor->memory, layout->rank, layout->sizes, layout->strides, 0, &tensor->handle);
    else if (tensor->base != NULL)
        code = view_of_base(tensor);
    tensor->owns_handle = code == 0;
    if (code != 0)
        tensor->handle = NULL;
    return code;
}

/* The Python object, borrowed. NULL and an exception on failure. */
static PyObject *object_of(Frame *frame, Tensor *tensor)
{
    if (tensor->object != NULL)
        return tensor->object;
    if (allocate_planned(frame, tensor) < 0)
        return NULL;
    if (handle_of(tensor) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch could not make a view of a program's own memory");
        return NULL;
    }
    int keep = !tensor->owns_handle || (tensor->shared && tensor->memory == NULL);
    void *own = tensor->handle; /* what is wrapped, and let go of */
    if (keep && torch_functions.new_handle(tensor->handle, &own) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch could not give a tensor a second handle");
        return NULL;
    }
    PyObject *object = torch_functions.wrap(own);
    if (object == NULL) {
        if (keep)
            torch_functions.delete(own);
        return NULL;
    }
    torch_functions.delete(own);
    if (keep && tensor->owns_handle) {
        tensor->memory = tensor->handle;
        tensor->owns_memory = 1;
    }
    tensor->owns_handle = 0;
    tensor->object = object;
    tensor->handle = (char *)object + configured.handle_offset;
    return object;
}

/* ---- launches that are recorded ---- */

/* Makes the recorded launches. -1 and an exception if one of them fails. */
static int make_launches(Frame *frame, int why)
{
    void *origin = NULL;
    int code;
    if (frame->record == NULL)
        return 0;
    Py_BEGIN_ALLOW_THREADS
    code = recorder->finish(frame->record, why, &origin);
    Py_END_ALLOW_THREADS
    if (code != 0)
        report(origin, code);
    return code != 0 ? RAISED : 0;
}

/* Before anything that may use the GPU by itself: makes the recorded launches, and pauses recording until go_on. */
static int pause_record(Frame *frame)
{
    if (frame->record == NULL)
        return 0;
    int status = make_launches(frame, FOR_PYTHON);
    recorder->set(NULL);
    return status;
}

static void go_on(Frame *frame)
{
    if (frame->record != NULL)
        recorder->set(frame->record);
}

/* The entry must live as long as its recorded launches. */
static int keep_entry(Frame *frame, PyObject *entry)
{
    if (frame->entries == NULL && (frame->entries = PyList_New(0)) == NULL)
        return -1;
    return PyList_Append(frame->entries, entry);
}

/* Before a native kernel. */
static int before_kernel(Frame *frame, Dispatcher *dispatcher, const Slot *slot)
{
    if (frame->record == NULL)
        return 0;
    if (dispatcher->device != TORCH_CPU)
        make_before(slot->kernel);
    recorder->tell(dispatcher);
    return keep_entry(frame, slot->entry);
}

/* Makes the recorded launches if the device should not wait for the rest of them. -1 and an exception if one fails. */
static int begin_on_device(Frame *frame)
{
    return recorder->is_due() ? make_launches(frame, FOR_DEVICE) : 0;
}

/* What tells a call of a kernel apart. */
static size_t words_of(Dispatcher *self, void *const *pointers, const long *integers, uint64_t *words)
{
    size_t tensors = (size_t)self->tensors, count = (size_t)self->integers;
    words[0] = (uintptr_t)self;
    words[1] = changes;
    memcpy(words + 2, pointers, tensors * sizeof *words);
    memcpy(words + 2 + tensors, integers, count * sizeof *words);
    return 2 + tensors + count;
}

/* Passes a call whose launches are known: returns 1; 0: they are not, or something else is due; -1 and an exception. */
static int pass_call(Frame *frame, const uint64_t *words, size_t word_count)
{
    void *const *slots;
    int count = recorder->next(words, word_count, &slots);
    for (int i = 0; i < count; i++)
        if (is_due(slots[i]))
            return 0;
    if (count <= 0)
        return 0;
    for (int i = 0; i < count; i++)
        count_call(slots[i]);
    if (keep_entry(frame, ((const Slot *)slots[0])->entry) < 0)
        return -1;
    recorder->pass();
    return begin_on_device(frame) < 0 ? -1 : 1;
}

/* Reads a tensor's address for kernels. */
static void read_tensor(Tensor *tensor)
{
    int32_t device;
    int64_t count = 1;
    void *data = NULL;
    tensor->device = NOT_PLAIN;
    if (configured.get_device_type(tensor->handle, &device) != 0 || configured.get_data_ptr(tensor->handle, &data) != 0)
        return;
    if (data == NULL && (torch_functions.get_count(tensor->handle, &count) != 0 || count != 0))
        return;
    tensor->data = data;
    tensor->device = device;
}

/* Whether a kernel for this device type may use the tensor's address. */
static inline int is_readable(Tensor *tensor, int device)
{
    if (tensor->device == UNREAD && tensor->handle != NULL)
        read_tensor(tensor);
    return tensor->device == device || tensor->device == NOTHING_THERE;
}

static PyObject *tuple_of_sizes(const int64_t *values, int64_t count)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)count);
    for (int64_t i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, (Py_ssize_t)i, PyLong_FromLongLong(values[i]));
    return tuple;
}

/* ---- arguments ---- */

static PyObject *argument_at(Frame *frame, int argument)
{
    return PyList_GET_ITEM(frame->given, argument);
}

static int take_tensor(Frame *frame, int argument, int tensor)
{
    PyObject *object = argument_at(frame, argument);
    if (!is_plain(object) && object != Py_None)
        return REFUSED;
    hold(&frame->tensors[tensor], Py_NewRef(object));
    return 0;
}

static int take_value(Frame *frame, int argument, int tensor)
{
    hold(&frame->tensors[tensor], Py_NewRef(argument_at(frame, argument)));
    return 0;
}

static int take_integer(Frame *frame, int argument, int64_t *integer)
{
    PyObject *object = argument_at(frame, argument);
    if (!PyLong_CheckExact(object))
        return REFUSED;
    int overflows;
    *integer = PyLong_AsLongLongAndOverflow(object, &overflows);
    return overflows ? REFUSED : 0;
}

static int on_device(int device)
{
    int32_t current;
    return torch_functions.current_device(&current) == 0 && current == device;
}

static void accept(Frame *frame)
{
    if (PyList_SetSlice(frame->given, 0, PyList_GET_SIZE(frame->given), NULL) < 0)
        PyErr_Clear();
}

static const int64_t *sizes_of(Frame *frame, int tensor)
{
    int64_t *sizes = NULL;
    void *handle = frame->tensors[tensor].handle;
    return handle != NULL && torch_functions.get_sizes(handle, &sizes) == 0 ? sizes : NULL;
}

static const int64_t *strides_of(Frame *frame, int tensor)
{
    int64_t *strides = NULL;
    void *handle = frame->tensors[tensor].handle;
    return handle != NULL && torch_functions.get_strides(handle, &strides) == 0 ? strides : NULL;
}

/* ---- memory ---- */

static int constant(Frame *frame, int object, int tensor)
{
    hold(&frame->tensors[tensor], Py_NewRef(PyTuple_GET_ITEM(frame->program->constants, object)));
    return 0;
}

/* After torch's C function failed, its Python equivalent reports why. */
static int allocate_in_python(Tensor *tensor, const Layout *layout, int device_type, int device)
{
    PyObject *sizes = tuple_of_sizes(layout->sizes, layout->rank), *strides = tuple_of_sizes(layout->strides, layout->rank);
    PyObject *object = NULL;
    if (sizes != NULL && strides != NULL)
        object = PyObject_CallFunction(torch_functions.allocate, "OOiii", sizes, strides, (int)layout->dtype, device_type, device);
    Py_XDECREF(sizes);
    Py_XDECREF(strides);
    if (object == NULL)
        return RAISED;
    hold(tensor, object);
    return 0;
}

static int allocate_tensor(Frame *frame, Tensor *tensor, const Layout *layout, int device_type, int device)
{
    release(tensor);
    if (torch_functions.empty(layout->rank, layout->sizes, layout->strides, layout->dtype, device_type, device, &tensor->handle) != 0) {
        tensor->handle = NULL;
        int status = pause_record(frame); /* releases memory, too */
        status = status == 0 ? allocate_in_python(tensor, layout, device_type, device) : status;
        go_on(frame);
        return status;
    }
    tensor->owns_handle = 1;
    return 0;
}

/* Memory that is allocated once something needs it: a result that a library allocates may take its place. On a GPU, where none
   does, it is allocated at once. */
static int plan_tensor(Frame *frame, int number, const Layout *layout, int device_type, int device)
{
    Tensor *tensor = &frame->tensors[number];
    if (device_type != TORCH_CPU)
        return allocate_tensor(frame, tensor, layout, device_type, device);
    release(tensor);
    *tensor = (Tensor){.device = UNREAD, .layout = *layout, .planned = 1};
    return 0;
}

static int allocate_planned(Frame *frame, Tensor *tensor)
{
    const Layout layout = tensor->layout;
    return tensor->planned ? allocate_tensor(frame, tensor, &layout, TORCH_CPU, 0) : 0;
}

static int64_t bytes_of_argument(const Tensor *tensor)
{
    return tensor->handle != NULL ? bytes_of_storage(tensor->handle) : 0;
}

/* Allocates the arena for the memories of these layouts, if there is one at these sizes. Where launches are recorded, memory is
   given back only when they are made: memories that share an arena then take less, and one allocation takes less time. */
static int arena(Frame *frame, const Life *lives, const Layout *const *layouts, int count, int device_type, int device)
{
    Program *self = frame->program;
    const int64_t step = 1, alignment = device_type == TORCH_CPU ? 64 : 256;
    int64_t bytes[count];
    for (int i = 0; i < count; i++)
        bytes[i] = lives[i].argument < 0 ? bytes_of(layouts[i], lives[i].bytes_of_element, alignment)
                                         : bytes_of_argument(&frame->tensors[lives[i].argument]);
    const ArenaPlan *plan = plan_for(&self->plans, lives, bytes, count);
    int64_t total = plan == NULL ? 0 : frame->record != NULL && plan->placed <= MOST_RECORDED ? plan->placed : plan->total;
    if (total == 0)
        return 0;
    memcpy(frame->offsets, plan->offsets, (size_t)count * sizeof(int64_t)); /* another thread may change the plan */
    Tensor *tensor = &frame->tensors[self->tensors];
    if (allocate_tensor(frame, tensor, &(Layout){1, &total, &step, DTYPE_UINT8}, device_type, device) < 0)
        return RAISED;
    read_tensor(tensor);
    return 0;
}

static int carve(Frame *frame, int number, int memory, const Layout *layout, int device_type, int device)
{
    Tensor *tensor = &frame->tensors[number], *of = &frame->tensors[frame->program->tensors];
    if (of->data == NULL)
        return plan_tensor(frame, number, layout, device_type, device);
    int64_t offset = frame->offsets[memory];
    release(tensor);
    *tensor = (Tensor){.layout = *layout, .base = of, .offset = offset, .in_arena = 1, .device = of->device, .data = of->data + offset};
    return 0;
}

static int view(Frame *frame, int number, int base, const Layout *layout, int64_t offset, int64_t bytes_of_element, int bits)
{
    Tensor *tensor = &frame->tensors[number], *of = &frame->tensors[base];
    release(tensor);
    if (allocate_planned(frame, of) < 0)
        return RAISED;
    if (of->device == UNREAD && of->handle != NULL)
        read_tensor(of);
    *tensor = (Tensor){.layout = *layout, .base = of, .offset = offset, .bits = bits, .device = of->device};
    tensor->data = of->data == NULL ? NULL : of->data + offset * bytes_of_element;
    return 0;
}

/* Gives `new` the memory of `before`, and its ownership if it had that; otherwise a copy of the handle. */
static int32_t hand_on(Tensor *before, Tensor *new, int same)
{
    void *from = before->handle != NULL ? before->handle : before->memory;
    char *owned = before->handle != NULL ? &before->owns_handle : &before->owns_memory;
    int32_t code = *owned ? 0 : torch_functions.new_handle(from, &from);
    if (code != 0)
        return code;
    *owned = 0;
    new->shared = 1;
    if (same && before->handle != NULL) {
        new->handle = from;
        new->owns_handle = 1;
    } else {
        new->memory = from;
        new->owns_memory = 1;
    }
    return 0;
}

/* The memory is reused under another name, which lives longer than the old one. */
static int reuse(Frame *frame, int number, int old, const Layout *layout)
{
    Tensor *tensor = &frame->tensors[number], *before = &frame->tensors[old];
    if (allocate_planned(frame, before) < 0)
        return RAISED;
    int known = is_readable(before, TORCH_CPU) || before->device >= 0;
    Tensor new = {.layout = layout != NULL ? *layout : before->layout, .device = known ? before->device : UNREAD,
                  .data = known ? before->data : NULL};
    int32_t code = 0;
    if (layout == NULL && before->object != NULL) {
        hold(&new, Py_NewRef(before->object));
    } else if (before->in_arena) {
        new.base = before->base;
        new.offset = before->offset;
        new.in_arena = 1;
    } else {
        code = before->handle == NULL && before->memory == NULL ? handle_of(before) : 0;
        code = code == 0 ? hand_on(before, &new, layout == NULL) : code;
    }
    if (code != 0) {
        PyErr_SetString(PyExc_RuntimeError, "torch could not hand the memory of one tensor on to another");
        return RAISED;
    }
    release(tensor);
    *tensor = new;
    return 0;
}

static void free_tensor(Frame *frame, int tensor)
{
    release(&frame->tensors[tensor]);
}

/* ---- calls ---- */

/* The objects of tensors and integers, `tensors` borrowed and the others owned. */
static int objects_of(Frame *frame, PyObject **objects, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    for (int i = 0; i < tensor_count; i++)
        if ((objects[i] = object_of(frame, &frame->tensors[tensors[i]])) == NULL)
            return RAISED;
    for (int i = 0; i < count; i++)
        if ((objects[tensor_count + i] = PyLong_FromLongLong(integers[i])) == NULL) {
            while (i-- > 0)
                Py_DECREF(objects[tensor_count + i]);
            return RAISED;
        }
    return 0;
}

/* A new reference: `pattern` with the next of `tensors` for each Ellipsis in it, and the next of `numbers` for each
   NotImplemented. */
static PyObject *filled(PyObject *pattern, PyObject ***tensors, PyObject ***numbers)
{
    if (pattern == Py_Ellipsis)
        return Py_NewRef(*(*tensors)++);
    if (pattern == Py_NotImplemented)
        return Py_NewRef(*(*numbers)++);
    if (!PyList_CheckExact(pattern))
        return Py_NewRef(pattern);
    Py_ssize_t length = PyList_GET_SIZE(pattern);
    PyObject *list = PyList_New(length);
    for (Py_ssize_t i = 0; list != NULL && i < length; i++) {
        PyObject *item = filled(PyList_GET_ITEM(pattern, i), tensors, numbers);
        PyList_SET_ITEM(list, i, item);
        if (item == NULL)
            Py_CLEAR(list);
    }
    return list;
}

/* Calls what a part says: (callable, patterns of its arguments, names of the last ones). */
static PyObject *call_filled(PyObject *part, PyObject **tensors, PyObject **numbers)
{
    PyObject *patterns = PyTuple_GET_ITEM(part, 1), *names = PyTuple_GET_ITEM(part, 2), *result = NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(patterns), made = 0, named = PyTuple_GET_SIZE(names);
    PyObject *arguments[count + 1];
    while (made < count && (arguments[made] = filled(PyTuple_GET_ITEM(patterns, made), &tensors, &numbers)) != NULL)
        made++;
    if (made == count)
        result = PyObject_Vectorcall(PyTuple_GET_ITEM(part, 0), arguments, (size_t)(count - named), named > 0 ? names : NULL);
    while (made-- > 0)
        Py_DECREF(arguments[made]);
    return result;
}

/* Calls a callable with these tensors and integers, or as a part says. */
static PyObject *call_object(Frame *frame, PyObject *callable, const int *tensors, int tensor_count, const int64_t *integers,
                             int count)
{
    PyObject *objects[tensor_count + count + 1];
    if (objects_of(frame, objects, tensors, tensor_count, integers, count) < 0)
        return NULL;
    PyObject *result = NULL;
    if (pause_record(frame) == 0)
        result = PyTuple_CheckExact(callable)
                     ? call_filled(callable, objects, objects + tensor_count)
                     : PyObject_Vectorcall(callable, objects, (size_t)(tensor_count + count), NULL);
    go_on(frame);
    for (int i = 0; i < count; i++)
        Py_DECREF(objects[tensor_count + i]);
    return result;
}

/* Runs the table's entry for a call if it is native and nothing else is due: returns 1; 0: nothing was done; -1 and an
   exception: it failed. */
static int dispatch_native(Frame *frame, Dispatcher *self, void *const *pointers, const long *integers)
{
    int64_t fields[self->field_count + 1];
    uint64_t words[2 + self->tensors + self->integers];
    int records = frame->record != NULL, passed;
    size_t word_count = records ? words_of(self, pointers, integers, words) : 0;
    if (records && (passed = pass_call(frame, words, word_count)) != 0)
        return passed;
    fields_of(self, pointers, integers, fields);
    Slot *found = slot_at(self, fields, integers);
    if (found->kernel == NULL || is_due(found))
        return 0;
    count_call(found);
    Slot slot = *found;
    long code, threads = threads_for(&slot);
    if (before_kernel(frame, self, &slot) < 0)
        return -1;
    Py_INCREF(slot.entry); /* another thread may clear the table while the kernel runs */
    void *record = is_watched() ? begin_record(self->label) : NULL;
    records = records && uses_recorder(slot.kernel);
    if (records)
        recorder->begin_call(words, word_count, found);
    Py_BEGIN_ALLOW_THREADS
    code = slot.kernel(pointers, integers, threads);
    Py_END_ALLOW_THREADS
    if (records)
        recorder->end_call(code == 0);
    end_record(record);
    int declined = code == DECLINED && slot.call != NULL; /* the callable takes the call, and counts it */
    Py_DECREF(slot.entry);
    if (code == 0 && records && begin_on_device(frame) < 0)
        return -1;
    if (code == 0 || declined)
        return code == 0;
    report(self, code);
    return -1;
}

/* Runs a kernel that needs only the addresses of its tensors: returns 1; 0: nothing was done; -1 and an exception: it failed. */
static int call_dispatcher(Frame *frame, Dispatcher *kernel, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    void *pointers[tensor_count + 1];
    if (kernel->tensors != tensor_count || kernel->integers != count)
        return 0;
    for (int i = 0; i < tensor_count; i++) {
        Tensor *tensor = &frame->tensors[tensors[i]];
        if (allocate_planned(frame, tensor) < 0)
            return -1;
        if (!is_readable(tensor, kernel->device))
            return 0;
        pointers[i] = tensor->data;
    }
    return dispatch_native(frame, kernel, pointers, (const long *)integers);
}

static int call_for_results(Frame *frame, Dispatcher *self, const int *tensors, int tensor_count, const int64_t *integers, int count);

static int call_kernel(Frame *frame, int kernel, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    PyObject *callable = PyTuple_GET_ITEM(frame->program->kernels, kernel);
    if (Py_TYPE(callable)->tp_dealloc == dispatcher_dealloc) {
        Dispatcher *dispatcher = (Dispatcher *)callable;
        int done = dispatcher->allocates ? call_for_results(frame, dispatcher, tensors, tensor_count, integers, count) : 0;
        if (done == 0)
            done = call_dispatcher(frame, dispatcher, tensors, tensor_count, integers, count);
        if (done != 0)
            return done > 0 ? 0 : RAISED;
    }
    PyObject *result = call_object(frame, callable, tensors, tensor_count, integers, count);
    Py_XDECREF(result);
    return result == NULL ? RAISED : 0;
}

/* With result -1, the callable is called for its side effects. */
static int call_python(Frame *frame, int callable, int result, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    PyObject *object = call_object(frame, PyTuple_GET_ITEM(frame->program->callables, callable), tensors, tensor_count, integers, count);
    if (object == NULL)
        return RAISED;
    if (result >= 0)
        hold(&frame->tensors[result], object);
    else
        Py_DECREF(object);
    return 0;
}

static int number(Frame *frame, int callable, int64_t *result, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    PyObject *object = call_object(frame, PyTuple_GET_ITEM(frame->program->callables, callable), tensors, tensor_count, integers, count);
    if (object == NULL)
        return RAISED;
    PyObject *integer = PyNumber_Index(object);
    Py_DECREF(object);
    if (integer == NULL)
        return RAISED;
    *result = PyLong_AsLongLong(integer);
    Py_DECREF(integer);
    return *result == -1 && PyErr_Occurred() ? RAISED : 0;
}

/* Whether the tensor has these strides and no pending negation, which only a view of another tensor may have. */
static int is_as_declared(Tensor *tensor, const Layout *layout, int is_view)
{
    int64_t *strides = NULL;
    if (tensor->handle == NULL || torch_functions.get_strides(tensor->handle, &strides) != 0)
        return 0;
    if (layout->rank > 0 && memcmp(strides, layout->strides, (size_t)layout->rank * sizeof(int64_t)) != 0)
        return 0;
    if (!is_view)
        return 1;
    static PyObject *is_neg;
    if (is_neg == NULL && (is_neg = PyUnicode_InternFromString("is_neg")) == NULL)
        PyErr_Clear();
    PyObject *negative = is_neg == NULL ? NULL : PyObject_CallMethodNoArgs(tensor->object, is_neg);
    if (negative == NULL)
        PyErr_Clear();
    Py_XDECREF(negative);
    return negative == Py_False;
}

static int pick(Frame *frame, int number, int source, int output, const Layout *layout, int is_view)
{
    Tensor *tensor = &frame->tensors[number];
    PyObject *result = frame->tensors[source].object;
    PyObject *object = output < 0 ? Py_NewRef(result) : PySequence_GetItem(result, output);
    if (object == NULL)
        return RAISED;
    hold(tensor, object);
    if (object == Py_None || is_as_declared(tensor, layout, is_view))
        return 0;
    PyObject *strides = tuple_of_sizes(layout->strides, layout->rank);
    PyObject *declared = NULL;
    if (strides != NULL && pause_record(frame) == 0)
        declared = PyObject_CallFunctionObjArgs(frame->program->as_declared, object, strides, NULL);
    go_on(frame);
    Py_XDECREF(strides);
    if (declared == NULL)
        return RAISED;
    hold(tensor, declared);
    return 0;
}

static int is_none(Frame *frame, int tensor)
{
    return frame->tensors[tensor].object == Py_None;
}

static int raise_error(Frame *frame, int error)
{
    PyObject *made = PyTuple_GET_ITEM(frame->program->errors, error); /* (kind, message) */
    PyErr_SetObject(PyTuple_GET_ITEM(made, 0), PyTuple_GET_ITEM(made, 1));
    return RAISED;
}

static int overflow(Frame *frame)
{
    PyErr_Format(PyExc_OverflowError, "program %R: a size does not fit a signed 64-bit integer, or a divisor is 0.",
                 frame->program->name);
    return RAISED;
}

/* ---- results ---- */

static int give(Frame *frame, PyObject *object)
{
    int failed = object == NULL || PyList_Append(frame->results, object) < 0;
    Py_XDECREF(object);
    return failed ? RAISED : 0;
}

static int give_tensor(Frame *frame, int tensor)
{
    return give(frame, Py_XNewRef(object_of(frame, &frame->tensors[tensor])));
}

static int give_integer(Frame *frame, int64_t integer)
{
    return give(frame, PyLong_FromLongLong(integer));
}

static int give_none(Frame *frame)
{
    return give(frame, Py_NewRef(Py_None));
}

static const Api api = {
    take_tensor, take_integer, take_value, on_device, accept, sizes_of, strides_of, constant, arena, carve, plan_tensor, reuse, view, free_tensor,
    call_kernel, call_python, number, pick, is_none, raise_error, overflow, give_tensor, give_integer, give_none,
};

/* ---- the object ---- */

static void release_all(Frame *frame)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    for (Py_ssize_t i = 0; i <= frame->program->tensors; i++)
        release(&frame->tensors[i]);
    PyErr_Restore(kind, value, trace);
}

/* Starts recording launches if graphs may serve them; not under a profiler, which shows each by name. */
static void begin_record_of_launches(Frame *frame)
{
    int32_t device;
    if (frame->program->graphs != NULL && !is_watched() && torch_functions.current_device(&device) == 0)
        frame->record = recorder->begin(frame->program->graphs, device);
}

/* Makes the remaining launches, even if the program has failed, since its other lines were run too. */
static int end_record_of_launches(Frame *frame, int status)
{
    PyObject *kind, *value, *trace;
    if (frame->record == NULL)
        return status;
    PyErr_Fetch(&kind, &value, &trace);
    int made = make_launches(frame, FOR_END);
    if (status == RAISED) {
        PyErr_Clear();
        PyErr_Restore(kind, value, trace);
        return status;
    }
    return made < 0 ? made : status;
}

/* Requests a graph from the background if one should be made. */
static int ask_for_graph(Frame *frame, int status)
{
    Program *self = frame->program;
    PyObject *none = NULL;
    if (frame->record == NULL)
        return status;
    recorder->end(frame->record);
    if (status == RETURNED && frame->entries != NULL && self->want_graph != NULL && recorder->wants_graph(self->graphs)) {
        none = PyObject_CallOneArg(self->want_graph, frame->entries);
        status = none == NULL ? RAISED : status;
        Py_XDECREF(none);
    }
    Py_XDECREF(frame->entries);
    return status;
}

/* Shows a call's arguments to `look`. Errors there do not affect the call. */
static void show(Program *self, PyObject *given)
{
    PyObject *look = Py_XNewRef(self->look), *left = look != NULL ? PyObject_CallOneArg(look, given) : NULL;
    self->left = left != NULL ? PyLong_AsLongLong(left) : 0;
    if (PyErr_Occurred()) {
        self->left = 0;
        PyErr_WriteUnraisable((PyObject *)self);
    }
    Py_XDECREF(left);
    Py_XDECREF(look);
}

static PyObject *call_program(PyObject *object, PyObject *const *arguments, size_t flagged, PyObject *keywords)
{
    Program *self = (Program *)object;
    if (PyVectorcall_NARGS(flagged) != 1 || keywords != NULL || self->fallback == NULL)
        return PyErr_Format(PyExc_TypeError, "program %R takes one list of arguments", self->name);
    PyObject *given = arguments[0];
    if (!PyList_CheckExact(given) || PyList_GET_SIZE(given) != self->arguments)
        return PyObject_CallOneArg(self->fallback, given);
    if (self->left > 0 && --self->left == 0)
        show(self, given);
    Tensor tensors[self->tensors + 1];
    for (Py_ssize_t i = 0; i <= self->tensors; i++)
        tensors[i] = (Tensor){.device = UNREAD};
    int64_t offsets[self->memories + 1];
    Frame frame = {self, given, PyList_New(0), tensors, offsets};
    if (frame.results == NULL)
        return NULL;
    begin_record_of_launches(&frame);
    int status = end_record_of_launches(&frame, self->function(&api, &frame));
    release_all(&frame);
    status = ask_for_graph(&frame, status);
    if (status == RETURNED)
        return frame.results;
    Py_DECREF(frame.results);
    return status == REFUSED ? PyObject_CallOneArg(self->fallback, given) : NULL;
}

/* Program(name, address, kernels, callables, constants, errors, number of arguments, of tensors, of memories,
   as_declared, fallback) */
static PyObject *program_new(PyTypeObject *type, PyObject *parsed, PyObject *keywords)
{
    PyObject *name, *kernels, *callables, *constants, *errors, *as_declared, *fallback;
    unsigned long long address;
    Py_ssize_t arguments, tensors, memories;
    if (!PyArg_ParseTuple(parsed, "UKO!O!O!O!nnnOO", &name, &address, &PyTuple_Type, &kernels, &PyTuple_Type, &callables,
                          &PyTuple_Type, &constants, &PyTuple_Type, &errors, &arguments, &tensors, &memories, &as_declared, &fallback))
        return NULL;
    if (torch_functions.wrap == NULL || configured.tensor == NULL || address == 0)
        return PyErr_Format(PyExc_RuntimeError, "program %R: torch's C functions are not at hand", name);
    Program *self = (Program *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_program;
    self->name = Py_NewRef(name);
    self->kernels = Py_NewRef(kernels);
    self->callables = Py_NewRef(callables);
    self->constants = Py_NewRef(constants);
    self->errors = Py_NewRef(errors);
    self->fallback = Py_NewRef(fallback);
    self->as_declared = Py_NewRef(as_declared);
    self->function = (Function)(uintptr_t)address;
    self->arguments = arguments;
    self->tensors = tensors;
    self->memories = memories;
    return (PyObject *)self;
}

OWNS(Program, program, fallback, look)

static void program_dealloc(PyObject *object)
{
    Program *self = (Program *)object;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs(object);
    program_clear(object);
    Py_XDECREF(self->name);
    free_plans(&self->plans);
    if (self->graphs != NULL && recorder != NULL) { /* who has the lock may wait for the GIL */
        Py_BEGIN_ALLOW_THREADS
        recorder->delete_graphs(self->graphs);
        Py_END_ALLOW_THREADS
    }
    type->tp_free(self);
    Py_DECREF(type);
}

/* record_launches(want_graph) -> address of the program's graphs */
static PyObject *program_record_launches(PyObject *object, PyObject *want_graph)
{
    Program *self = (Program *)object;
    if (recorder == NULL)
        return PyErr_Format(PyExc_RuntimeError, "program %R: there is no recorder of launches", self->name);
    if (self->graphs == NULL && (self->graphs = recorder->new_graphs()) == NULL)
        return PyErr_NoMemory();
    Py_XSETREF(self->want_graph, Py_NewRef(want_graph));
    return PyLong_FromVoidPtr(self->graphs);
}

/* look_at(look or None, calls): shows the call after this many to `look`, and further ones after as many as it returns */
static PyObject *program_look_at(PyObject *object, PyObject *parsed)
{
    Program *self = (Program *)object;
    PyObject *look;
    long long calls;
    if (!PyArg_ParseTuple(parsed, "OL", &look, &calls))
        return NULL;
    self->left = look == Py_None ? 0 : calls;
    Py_XSETREF(self->look, look == Py_None ? NULL : Py_NewRef(look));
    Py_RETURN_NONE;
}

static PyMethodDef program_methods[] = {
    {"look_at", program_look_at, METH_VARARGS, "look_at(look or None, calls) shows some calls' arguments"},
    {"record_launches", program_record_launches, METH_O, "record_launches(want_graph) -> address of the program's graphs"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef program_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Program, vectorcall), READONLY, NULL},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Program, weak_references), READONLY, NULL},
    {"name", T_OBJECT, offsetof(Program, name), READONLY, "name of the program"},
    {NULL, 0, 0, 0, NULL},
};

/* configure_programs(addresses of torch_functions in order, allocate); no addresses: no programs in C. */
static PyObject *configure_programs(PyObject *module, PyObject *parsed)
{
    enum { ADDRESSES = 13 };
    PyObject *addresses, *allocate;
    if (!PyArg_ParseTuple(parsed, "O!O", &PyTuple_Type, &addresses, &allocate))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(addresses);
    if (count != 0 && count != ADDRESSES)
        return PyErr_Format(PyExc_ValueError, "configure_programs takes %d addresses", ADDRESSES);
    for (Py_ssize_t i = 0; i < ADDRESSES; i++) {
        void *address = i < count ? PyLong_AsVoidPtr(PyTuple_GET_ITEM(addresses, i)) : NULL;
        if (PyErr_Occurred())
            return NULL;
        ((void **)&torch_functions)[i] = address;
    }
    Py_XSETREF(torch_functions.allocate, Py_NewRef(allocate));
    Py_RETURN_NONE;
}

/* try_programs() -> a new 2 x 3 float32 tensor on the CPU, its second row, and its memory under another name: every way
   to create one */
static PyObject *try_programs(PyObject *module, PyObject *unused)
{
    const int64_t sizes[] = {2, 3}, strides[] = {3, 1}, row = 3, step = 1;
    Tensor tensors[3] = {{.device = UNREAD}, {.device = UNREAD}, {.device = UNREAD}};
    Frame frame = {.tensors = tensors};
    PyObject *made = NULL;
    if (plan_tensor(&frame, 0, &(Layout){2, sizes, strides, DTYPE_FLOAT32}, TORCH_CPU, 0) == 0
        && view(&frame, 1, 0, &(Layout){1, &row, &step, DTYPE_FLOAT32}, 3, sizeof(float), 0) == 0 && reuse(&frame, 2, 0, NULL) == 0
        && object_of(&frame, &tensors[0]) != NULL && object_of(&frame, &tensors[1]) != NULL && object_of(&frame, &tensors[2]) != NULL)
        made = PyTuple_Pack(3, tensors[0].object, tensors[1].object, tensors[2].object);
    for (int i = 0; i < 3; i++)
        release(&tensors[i]);
    return made;
}
