/* Third part of the launcher: a Keeper finds what a place in a program keeps of a weight, in some 30 ns.

   It is called with the weight and gives the copy that was made of it, or None. What it remembers of the weight is who it is
   (the tensor, its storage, the address of its data: objects whose addresses nobody else gets while `guard` holds weak
   references to them), PyTorch's count of the writes to it, and a sample of its bytes, which tells of writes that PyTorch does
   not count. Whatever is different is a matter for Python: `miss` (weights.py). A weight without a copy is watched: `wait`
   calls must find it unchanged before Python is asked again. */

enum { SAMPLED = 32 };

/* Set once by configure_weights(); without it nothing is ever kept. */
static struct {
    Py_ssize_t storage_offset;
    int64_t (*version)(const void *handle);
} weighed;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *miss;  /* (tensor) -> copy or None */
    PyObject *copy;  /* NULL while the weight is watched */
    PyObject *guard; /* keeps weak references; NULL before the first weight */
    void *tensor, *storage, *data;
    int64_t version;
    Py_ssize_t bytes; /* of the weight, all of them its own */
    uint64_t sample;
    long wait, patience; /* calls until Python is asked; what `wait` begins at after a change */
    long hits;           /* calls that found the copy */
} Keeper;

/* SAMPLED words of `bytes` bytes, one in each of as many equal parts, in a place of its own in each; all words of few. */
static uint64_t sample_of(const void *data, Py_ssize_t bytes)
{
    uint64_t hash = 0x243F6A8885A308D3u, place = 0x9E3779B97F4A7C15u, word;
    Py_ssize_t words = bytes / 8, parts = words < SAMPLED ? words : SAMPLED, part = words / SAMPLED;
    for (Py_ssize_t i = 0; i < parts; i++) {
        place = place * 0xD1342543DE82EF95u + 1;
        Py_ssize_t at = part ? i * part + (Py_ssize_t)((place >> 32) * (uint64_t)part >> 32) : i;
        memcpy(&word, (const char *)data + 8 * at, 8);
        hash = (hash ^ word) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

static PyObject *find_kept(PyObject *object, PyObject *const *arguments, size_t flagged, PyObject *keywords)
{
    Keeper *self = (Keeper *)object;
    if (PyVectorcall_NARGS(flagged) != 1 || keywords != NULL)
        return PyErr_Format(PyExc_TypeError, "a Keeper takes one tensor");
    void *data, *handle = (char *)arguments[0] + configured.handle_offset;
    if (self->guard != NULL && fast_pointer(arguments[0], TORCH_CPU, &data)) {
        void *tensor = *(void **)handle;
        if (tensor == self->tensor && *(void **)((char *)tensor + weighed.storage_offset) == self->storage
            && data == self->data) {
            int64_t version = weighed.version(handle);
            if (self->copy == NULL) {
                if (version != self->version) {
                    self->version = version;
                    self->wait = self->patience;
                    Py_RETURN_NONE;
                }
                if (--self->wait >= 0)
                    Py_RETURN_NONE;
            } else if (version == self->version && sample_of(data, self->bytes) == self->sample) {
                self->hits++;
                return Py_NewRef(self->copy);
            }
        }
    }
    return PyObject_CallOneArg(self->miss, arguments[0]);
}

/* watch(tensor, version, guard, wait, patience): the weight has no copy. */
static PyObject *keeper_watch(PyObject *object, PyObject *parsed)
{
    Keeper *self = (Keeper *)object;
    PyObject *tensor, *guard;
    long long version;
    long wait, patience;
    void *data;
    if (!PyArg_ParseTuple(parsed, "OLOll", &tensor, &version, &guard, &wait, &patience))
        return NULL;
    Py_CLEAR(self->copy);
    if (!fast_pointer(tensor, TORCH_CPU, &data)) {
        Py_CLEAR(self->guard);
        Py_RETURN_FALSE;
    }
    self->tensor = *(void **)((char *)tensor + configured.handle_offset);
    self->storage = *(void **)((char *)self->tensor + weighed.storage_offset);
    self->data = data;
    self->version = version;
    self->wait = wait;
    self->patience = patience;
    self->hits = 0;
    Py_XSETREF(self->guard, Py_NewRef(guard));
    Py_RETURN_TRUE;
}

/* hold(copy, bytes, sample): the copy of the weight that was watched last, made at the version given then. */
static PyObject *keeper_hold(PyObject *object, PyObject *parsed)
{
    Keeper *self = (Keeper *)object;
    PyObject *copy;
    Py_ssize_t bytes;
    unsigned long long sample;
    if (!PyArg_ParseTuple(parsed, "OnK", &copy, &bytes, &sample))
        return NULL;
    self->bytes = bytes;
    self->sample = sample;
    self->hits = 0;
    Py_XSETREF(self->copy, Py_NewRef(copy));
    Py_RETURN_NONE;
}

/* release(): forgets the weight and its copy. */
static PyObject *keeper_release(PyObject *object, PyObject *unused)
{
    Keeper *self = (Keeper *)object;
    Py_CLEAR(self->copy);
    Py_CLEAR(self->guard);
    Py_RETURN_NONE;
}

static PyObject *keeper_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    PyObject *miss;
    if (!PyArg_ParseTuple(arguments, "O", &miss))
        return NULL;
    Keeper *self = (Keeper *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = find_kept;
        self->miss = Py_NewRef(miss);
    }
    return (PyObject *)self;
}

static int keeper_traverse(PyObject *object, visitproc visit, void *arg)
{
    Keeper *self = (Keeper *)object;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->miss);
    Py_VISIT(self->copy);
    Py_VISIT(self->guard);
    return 0;
}

static int keeper_clear(PyObject *object)
{
    Keeper *self = (Keeper *)object;
    Py_XSETREF(self->miss, Py_NewRef(Py_None));
    Py_CLEAR(self->copy);
    Py_CLEAR(self->guard);
    return 0;
}

static void keeper_dealloc(PyObject *object)
{
    Keeper *self = (Keeper *)object;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(self->miss);
    Py_XDECREF(self->copy);
    Py_XDECREF(self->guard);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef keeper_methods[] = {
    {"watch", keeper_watch, METH_VARARGS, "watch(tensor, version, guard, wait, patience) -> whether it can be"},
    {"hold", keeper_hold, METH_VARARGS, "hold(copy, bytes, sample): a copy of the weight that is watched"},
    {"release", keeper_release, METH_NOARGS, "release() forgets the weight and its copy"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef keeper_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Keeper, vectorcall), READONLY, NULL},
    {"copy", T_OBJECT, offsetof(Keeper, copy), READONLY, "what is kept, or None"},
    {"hits", T_LONG, offsetof(Keeper, hits), READONLY, "calls that found the copy"},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot keeper_slots[] = {
    {Py_tp_new, keeper_new},
    {Py_tp_call, PyVectorcall_Call},
    {Py_tp_traverse, keeper_traverse},
    {Py_tp_clear, keeper_clear},
    {Py_tp_dealloc, keeper_dealloc},
    {Py_tp_methods, keeper_methods},
    {Py_tp_members, keeper_members},
    {0, NULL},
};

static PyType_Spec keeper_spec = {
    .name = "polytile_launcher.Keeper",
    .basicsize = sizeof(Keeper),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .slots = keeper_slots,
};

/* configure_weights(offset, version): where in a tensor its storage is, and the address of TensorBase::_version. */
static PyObject *configure_weights(PyObject *module, PyObject *parsed)
{
    Py_ssize_t offset;
    unsigned long long version;
    if (!PyArg_ParseTuple(parsed, "nK", &offset, &version))
        return NULL;
    weighed.storage_offset = offset;
    weighed.version = (int64_t(*)(const void *))(uintptr_t)version;
    Py_RETURN_NONE;
}

/* state_of(tensor) -> (storage, version) as the fast path reads them, or None where it does not take the tensor. */
static PyObject *state_of(PyObject *module, PyObject *tensor)
{
    void *data, *handle = (char *)tensor + configured.handle_offset;
    if (weighed.version == NULL || !fast_pointer(tensor, TORCH_CPU, &data))
        Py_RETURN_NONE;
    void *storage = *(void **)(*(char **)handle + weighed.storage_offset);
    return Py_BuildValue("KL", (unsigned long long)(uintptr_t)storage, (long long)weighed.version(handle));
}

/* sample(address, bytes) -> number; another one, in all likelihood, once bytes there have changed */
static PyObject *sample_method(PyObject *module, PyObject *parsed)
{
    unsigned long long address;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(parsed, "Kn", &address, &bytes))
        return NULL;
    return PyLong_FromUnsignedLongLong(sample_of((const void *)(uintptr_t)address, bytes));
}
