/* Part of the launcher: a library product and its epilogue kernel as one native kernel, which touches no tensor's
   Python object.

   The product goes to scratch memory from torch's allocator, and the epilogue's dispatcher is asked for an entry. If
   that is not a native kernel, or if more than a call of it is due, the pair declines the call before doing anything,
   and its Python form runs it. */

enum { TORCH_UINT8 = 0, SIZES = 3 }; /* a product's integers start with batch, M and N */

/* Set by configure_graphs(): the recorder of a program's launches (cuda/graphs.c), and the native kernels that use it. */
static const Recorder *recorder;
static Kernel recording_kernels[4];

static inline int uses_recorder(Kernel kernel)
{
    for (size_t i = 0; i < sizeof recording_kernels / sizeof *recording_kernels; i++)
        if (kernel == recording_kernels[i])
            return 1;
    return 0;
}

/* Flushes the recorded launches, unless the kernel uses the recorder. */
static inline void make_before(Kernel kernel)
{
    if (recorder != NULL && !uses_recorder(kernel))
        recorder->make(FOR_LIBRARY);
}

/* Set once by configure_functions(). */
static struct {
    int32_t (*new_tensor)(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type,
                          int32_t device, void **tensor);
    int32_t (*delete_tensor)(void *tensor);
} memory;

typedef struct {
    Kernel product;
    long plan;
    Dispatcher *epilogue;
    int leading;      /* number of integers of the product; the epilogue's follow */
    int element_size; /* bytes per element of the product */
    int index;        /* of the device */
} Pair;

/* The epilogue's slot for a call, with a new reference to its entry; no entry if it is not native, or if something else
   is due. Takes the GIL. */
static Slot epilogue_of(Dispatcher *self, void *const *pointers, const long *integers)
{
    int64_t fields[self->field_count + 1];
    PyGILState_STATE state = PyGILState_Ensure();
    fields_of(self, pointers, integers, fields);
    Slot *found = slot_at(self, fields, integers), slot = {0};
    if (found->kernel != NULL && found->call == NULL && !is_due(found)) {
        count_call(found);
        slot = *found;
        Py_INCREF(slot.entry);
        if (recorder != NULL)
            recorder->counts(found);
    }
    PyGILState_Release(state);
    return slot;
}

static void forget_entry(PyObject *entry)
{
    PyGILState_STATE state = PyGILState_Ensure();
    Py_DECREF(entry);
    PyGILState_Release(state);
}

/* Scratch memory for the product: of the recorded launches, or a tensor of its own. Nonzero on failure. */
static int product_memory(const Pair *self, int64_t bytes, void **tensor, void **scratch)
{
    int64_t stride = 1;
    int type = self->epilogue->device;
    *tensor = NULL;
    if (recorder != NULL && type == TORCH_CUDA && recorder->records_here(self->index))
        return recorder->workspace(OF_PAIR, bytes, scratch);
    if (memory.new_tensor(1, &bytes, &stride, TORCH_UINT8, type, self->index, tensor) != 0)
        return -1;
    return configured.get_data_ptr(*tensor, scratch);
}

static long run_pair(void *const *pointers, const long *integers, long address)
{
    const Pair *self = (const Pair *)address;
    Dispatcher *epilogue = self->epilogue;
    int64_t bytes = self->element_size;
    for (int i = 0; i < SIZES; i++)
        bytes *= integers[i];
    void *tensor = NULL, *scratch = NULL;
    if (bytes <= 0 || epilogue->tensors < 1)
        return DECLINED;
    long code = product_memory(self, bytes, &tensor, &scratch) == 0 ? 0 : DECLINED;
    void *given[epilogue->tensors];
    given[0] = scratch;
    memcpy(&given[1], &pointers[2], (size_t)(epilogue->tensors - 1) * sizeof *given);
    Slot slot = {0};
    if (code == 0)
        slot = epilogue_of(epilogue, given, &integers[self->leading]);
    if (slot.entry == NULL) {
        code = DECLINED;
    } else {
        void *const operands[] = {pointers[0], pointers[1], scratch};
        code = self->product(operands, integers, self->plan);
        if (code == 0) {
            make_before(slot.kernel);
            code = slot.kernel(given, &integers[self->leading], slot.threads);
        }
        forget_entry(slot.entry);
    }
    if (tensor != NULL)
        memory.delete_tensor(tensor);
    return code;
}

static void delete_pair(PyObject *capsule)
{
    Pair *self = PyCapsule_GetPointer(capsule, NULL);
    Py_DECREF(self->epilogue);
    PyMem_Free(self);
}

/* new_pair(address of the product, its plan, the epilogue's dispatcher, integers of the product, bytes of its elements,
   device) -> (owner, address of its kernel, its own address); None if the epilogue has no dispatcher of this module, or
   if tensors are read by data_ptr() */
static PyObject *new_pair(PyObject *module, PyObject *parsed)
{
    unsigned long long product;
    PyObject *epilogue;
    Pair given;
    if (!PyArg_ParseTuple(parsed, "KlOiii", &product, &given.plan, &epilogue, &given.leading, &given.element_size, &given.index))
        return NULL;
    if (memory.new_tensor == NULL || configured.tensor == NULL || Py_TYPE(epilogue)->tp_dealloc != dispatcher_dealloc)
        Py_RETURN_NONE;
    Pair *self = PyMem_Malloc(sizeof(Pair));
    if (self == NULL)
        return PyErr_NoMemory();
    given.product = (Kernel)(uintptr_t)product;
    given.epilogue = (Dispatcher *)Py_NewRef(epilogue);
    *self = given;
    PyObject *owner = PyCapsule_New(self, NULL, delete_pair);
    if (owner == NULL) {
        Py_DECREF(epilogue);
        PyMem_Free(self);
        return NULL;
    }
    return Py_BuildValue("NKK", owner, (unsigned long long)(uintptr_t)run_pair, (unsigned long long)(uintptr_t)self);
}

/* configure_graphs(address of the recorder, addresses of the native kernels that use it) */
static PyObject *configure_graphs(PyObject *module, PyObject *parsed)
{
    unsigned long long address[4];
    if (!PyArg_ParseTuple(parsed, "KKKK", &address[0], &address[1], &address[2], &address[3]))
        return NULL;
    recorder = (const Recorder *)(uintptr_t)address[0];
    for (size_t i = 0; i < 3; i++)
        recording_kernels[i] = (Kernel)(uintptr_t)address[i + 1];
    recording_kernels[3] = run_pair;
    Py_RETURN_NONE;
}
