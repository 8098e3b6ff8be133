/* Third part of the launcher: a Keeper finds the packed copy of a weight for one place in a program, in about 70 ns.

   It is called with the weight and returns its copy, or None. It remembers the weight's identity (the tensor; its
   storage, whose address is not reused while `guard` holds a weak reference to it; the address of its data; its write
   counter), the number of counted writes, and a sample of its bytes, which reveals uncounted writes. Any difference is
   left to Python: `miss` (weights.py). A weight without a copy is watched: `wait` calls must find it unchanged before
   Python is asked again. */

enum { SAMPLED = 32 };

/* Set once by configure_weights(); without it, nothing is packed. */
static struct {
    Py_ssize_t storage_offset, counter_offset;
    int64_t (*version)(const void *handle); /* of a tensor with a counter; a C++ exception for one without */
} weighed;

/* Identity of a weight. */
typedef struct {
    void *tensor, *storage, *counter, *data;
} Identity;

/* Whether the fast path accepts the tensor and it counts writes. */
static int identify(PyObject *argument, Identity *found)
{
    if (weighed.version == NULL || !fast_pointer(argument, TORCH_CPU, &found->data))
        return 0;
    found->tensor = *(void **)((char *)argument + configured.handle_offset);
    found->storage = *(void **)((char *)found->tensor + weighed.storage_offset);
    found->counter = *(void **)((char *)found->tensor + weighed.counter_offset);
    return found->counter != NULL;
}

static int64_t version_of(PyObject *argument)
{
    return weighed.version((char *)argument + configured.handle_offset);
}

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *miss;  /* (tensor) -> copy or None; NULL once the collector has cleared it */
    PyObject *copy;  /* NULL while the weight is watched */
    PyObject *guard; /* keeps a weak reference to the storage; NULL before the first weight */
    Identity weight;
    int64_t version;
    Py_ssize_t bytes; /* of the weight, which is dense */
    uint64_t sample;
    long wait, patience; /* calls until Python is asked; initial value of `wait` after a change */
    long hits;           /* calls that found the copy */
} Keeper;

/* Hash of SAMPLED words out of `bytes` bytes: one from each of as many equal parts, at a different offset in each; of
   all words if there are few. */
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

static PyObject *find_packed(PyObject *object, PyObject *const *arguments, size_t flagged, PyObject *keywords)
{
    Keeper *self = (Keeper *)object;
    if (PyVectorcall_NARGS(flagged) != 1 || keywords != NULL || self->miss == NULL)
        return PyErr_Format(PyExc_TypeError, "a Keeper takes one tensor");
    Identity weight;
    if (self->guard != NULL && identify(arguments[0], &weight) && memcmp(&weight, &self->weight, sizeof weight) == 0) {
        int64_t version = version_of(arguments[0]);
        if (self->copy == NULL) {
            if (version != self->version) {
                self->version = version;
                self->wait = self->patience;
                Py_RETURN_NONE;
            }
            if (--self->wait >= 0)
                Py_RETURN_NONE;
        } else if (version == self->version && sample_of(weight.data, self->bytes) == self->sample) {
            self->hits++;
            return Py_NewRef(self->copy);
        }
    }
    return PyObject_CallOneArg(self->miss, arguments[0]);
}

/* watch(tensor, version, guard, wait, patience): the weight has no copy. A weight that counts no writes is not
   remembered. */
static PyObject *keeper_watch(PyObject *object, PyObject *parsed)
{
    Keeper *self = (Keeper *)object;
    PyObject *tensor, *guard;
    long long version;
    long wait, patience;
    if (!PyArg_ParseTuple(parsed, "OLOll", &tensor, &version, &guard, &wait, &patience))
        return NULL;
    Py_CLEAR(self->copy);
    self->version = version;
    self->wait = wait;
    self->patience = patience;
    self->hits = 0;
    Py_XSETREF(self->guard, identify(tensor, &self->weight) ? Py_NewRef(guard) : NULL);
    Py_RETURN_NONE;
}

/* hold(copy, bytes, sample): the copy of the last watched weight, made at the version given then. */
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
        self->vectorcall = find_packed;
        self->miss = Py_NewRef(miss);
    }
    return (PyObject *)self;
}

OWNS(Keeper, keeper, miss, guard)

static void keeper_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    keeper_clear(object);
    type->tp_free(object);
    Py_DECREF(type);
}

static PyMethodDef keeper_methods[] = {
    {"watch", keeper_watch, METH_VARARGS, "watch(tensor, version, guard, wait, patience): a weight without a copy"},
    {"hold", keeper_hold, METH_VARARGS, "hold(copy, bytes, sample): a copy of the weight that is watched"},
    {"release", keeper_release, METH_NOARGS, "release() forgets the weight and its copy"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef keeper_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Keeper, vectorcall), READONLY, NULL},
    {"copy", T_OBJECT, offsetof(Keeper, copy), READONLY, "the packed copy, or None"},
    {"hits", T_LONG, offsetof(Keeper, hits), READONLY, "calls that found the copy"},
    {NULL, 0, 0, 0, NULL},
};

/* configure_weights(storage offset, counter offset, version): offsets in a tensor of its storage and write counter, and
   the address of TensorBase::_version. */
static PyObject *configure_weights(PyObject *module, PyObject *parsed)
{
    Py_ssize_t storage, counter;
    unsigned long long version;
    if (!PyArg_ParseTuple(parsed, "nnK", &storage, &counter, &version))
        return NULL;
    weighed.storage_offset = storage;
    weighed.counter_offset = counter;
    weighed.version = (int64_t(*)(const void *))(uintptr_t)version;
    Py_RETURN_NONE;
}

/* weighs() -> whether storages and versions can be read. */
static PyObject *weighs(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(weighed.version != NULL && configured.tensor != NULL);
}

/* state_of(tensor) -> (storage, version) as the fast path reads them, or None if such a tensor is never packed. */
static PyObject *state_of(PyObject *module, PyObject *tensor)
{
    Identity found;
    if (!identify(tensor, &found))
        Py_RETURN_NONE;
    return Py_BuildValue("KL", (unsigned long long)(uintptr_t)found.storage, (long long)version_of(tensor));
}

/* sample(address, bytes) -> hash, which almost certainly changes with the bytes */
static PyObject *sample_method(PyObject *module, PyObject *parsed)
{
    unsigned long long address;
    Py_ssize_t bytes;
    if (!PyArg_ParseTuple(parsed, "Kn", &address, &bytes))
        return NULL;
    return PyLong_FromUnsignedLongLong(sample_of((const void *)(uintptr_t)address, bytes));
}
