/* Part of the launcher (native.py compiles its parts as one unit): the hash table. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <frameobject.h>
#include <structmember.h>
#include <limits.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

static const long DECLINED = LONG_MIN; /* returned by a native kernel that has done nothing; the entry's callable then runs */

/* ---- the table: open addressing, a power of two of slots, at most two thirds full ---- */

typedef struct Trial Trial;

static void end_trial(Trial *trial);

typedef struct {
    PyObject *entry; /* NULL: the slot is empty; None: the regime is subdivided, its sub-buckets have slots; Ellipsis: undecided */
    PyObject *call;  /* Python callable that runs the calls, or those that the kernel declines; or NULL */
    Kernel kernel;   /* or NULL */
    long threads;
    uint64_t calls;     /* of this key, since it first had an entry */
    Trial *trial;       /* candidates on trial against it, or NULL */
    int left;           /* calls of this entry until on_due is called; 0: never */
    unsigned char has_exact_sizes; /* of a regime: whether exact sizes in it have their own slots */
    unsigned char noted;           /* undecided, and a call has been noted */
    unsigned char allocates;       /* whether the entry can return its results (results.c) */
} Slot;

typedef struct Leaf Leaf;

/* Changes of all tables so far: as long as there is none, slots stay where they are, and have their entries. Protected by
   the GIL. */
static uint64_t changes;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name, *key, *tensor_key;
    PyObject *label;    /* what profilers show (record.c) */
    PyObject *formulas; /* tuple of bytes objects */
    PyObject *on_miss;  /* (dispatcher, key, arguments) -> entry, which is already inserted */
    PyObject *on_error; /* (code) raises */
    PyObject *on_due;   /* (arguments), after the number of calls given to watch() */
    Leaf *leaves;       /* entries of undecided calls (fallback.c); NULL: such calls go to on_miss */
    Py_ssize_t leaf_count;
    PyObject *orders;   /* dict: the order in which to try leaves */
    PyObject *notes;    /* list of calls for the deciding thread */
    PyObject *wake;     /* () wakes that thread */
    unsigned char *codes, *tensor_codes;
    Py_ssize_t integers, tensors; /* numbers of arguments; tensors is -1 until the first call */
    Py_ssize_t formula_count, field_count;
    int device; /* torch's number of the tensors' device type */
    int allocates; /* whether an entry of the table can or could return its results */
    Slot *slots;
    int64_t *fields; /* field_count of them for each slot */
    size_t capacity, used;
} Dispatcher;

static inline int is_decided(const Slot *slot)
{
    return slot->entry != NULL && slot->entry != Py_None && slot->entry != Py_Ellipsis;
}

static Slot *find(Dispatcher *self, const int64_t *fields)
{
    size_t bytes = (size_t)self->field_count * sizeof(int64_t), mask = self->capacity - 1;
    for (size_t i = hash_of(fields, self->field_count) & mask;; i = (i + 1) & mask) {
        Slot *slot = &self->slots[i];
        if (slot->entry == NULL || memcmp(&self->fields[i * (size_t)self->field_count], fields, bytes) == 0)
            return slot;
    }
}

static void place(Dispatcher *self, Slot *slot, const int64_t *fields, Slot content)
{
    size_t position = (size_t)(slot - self->slots) * (size_t)self->field_count;
    changes++;
    memcpy(&self->fields[position], fields, (size_t)self->field_count * sizeof(int64_t));
    *slot = content;
}

static int allocate(Dispatcher *self, size_t capacity)
{
    Slot *slots = PyMem_Calloc(capacity, sizeof(Slot));
    int64_t *fields = PyMem_Calloc(capacity * (size_t)self->field_count + 1, sizeof(int64_t));
    if (slots == NULL || fields == NULL) {
        PyMem_Free(slots);
        PyMem_Free(fields);
        PyErr_NoMemory();
        return -1;
    }
    self->slots = slots;
    self->fields = fields;
    self->capacity = capacity;
    self->used = 0;
    changes++;
    return 0;
}

static int grow(Dispatcher *self)
{
    Slot *slots = self->slots;
    int64_t *fields = self->fields;
    size_t capacity = self->capacity, used = self->used;
    if (allocate(self, 2 * capacity) < 0)
        return -1;
    for (size_t i = 0; i < capacity; i++)
        if (slots[i].entry != NULL) {
            const int64_t *key = &fields[i * (size_t)self->field_count];
            place(self, find(self, key), key, slots[i]);
        }
    self->used = used;
    PyMem_Free(slots);
    PyMem_Free(fields);
    return 0;
}

/* Removes every entry; runs Python code only once the table is consistent again. */
static int empty(Dispatcher *self)
{
    Slot *slots = self->slots;
    int64_t *fields = self->fields;
    size_t capacity = self->capacity;
    if (allocate(self, 8) < 0)
        return -1;
    for (size_t i = 0; i < capacity; i++) {
        Py_XDECREF(slots[i].entry);
        Py_XDECREF(slots[i].call);
        end_trial(slots[i].trial);
    }
    PyMem_Free(slots);
    PyMem_Free(fields);
    return 0;
}

/* The Slot of an entry object, with new references: a PythonEntry has `call`; a NativeEntry has `address` and
   `threads`, and `otherwise`, which is None or runs the calls that it declines. `results` of a PythonEntry, if any, returns what
   `call` writes. */
static int slot_of(PyObject *entry, Slot *slot)
{
    *slot = (Slot){0};
    int native = !PyObject_HasAttrString(entry, "call");
    if (!native || PyObject_HasAttrString(entry, "otherwise")) {
        slot->call = PyObject_GetAttrString(entry, native ? "otherwise" : "call");
        if (native && slot->call == Py_None)
            Py_CLEAR(slot->call);
    }
    if (native && !PyErr_Occurred()) {
        PyObject *address = PyObject_GetAttrString(entry, "address");
        PyObject *threads = address ? PyObject_GetAttrString(entry, "threads") : NULL;
        if (threads != NULL) {
            slot->kernel = (Kernel)PyLong_AsVoidPtr(address);
            slot->threads = PyLong_AsLong(threads);
        }
        Py_XDECREF(address);
        Py_XDECREF(threads);
        if (!PyErr_Occurred() && slot->kernel == NULL)
            PyErr_SetString(PyExc_ValueError, "the address of a native entry is 0; it must be that of a loaded kernel");
    }
    if (PyErr_Occurred()) {
        Py_CLEAR(slot->call);
        return -1;
    }
    PyObject *results = native ? NULL : PyObject_GetAttrString(entry, "results");
    slot->allocates = results != NULL && results != Py_None;
    PyErr_Clear();
    Py_XDECREF(results);
    Py_INCREF(entry);
    slot->entry = entry;
    return 0;
}

/* ---- objects that others own, as Python's garbage collector sees them ---- */

static int visit_owned(PyObject *object, PyObject *const *first, PyObject *const *last, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    for (; first <= last; first++)
        Py_VISIT(*first);
    return 0;
}

static int clear_owned(PyObject **first, PyObject **last)
{
    for (; first <= last; first++)
        Py_CLEAR(*first);
    return 0;
}

/* What the collector asks of a type that owns the objects in its members from `first` to `last`, which stand one after the other. */
#define OWNS(Type, prefix, first, last)                                                              \
    static int prefix##_traverse(PyObject *object, visitproc visit, void *arg)                       \
    {                                                                                                \
        return visit_owned(object, &((Type *)object)->first, &((Type *)object)->last, visit, arg);   \
    }                                                                                                \
    static int prefix##_clear(PyObject *object)                                                      \
    {                                                                                                \
        return clear_owned(&((Type *)object)->first, &((Type *)object)->last);                       \
    }

/* ---- keys as Python ints ---- */

static PyObject *packed(const int64_t *fields, Py_ssize_t count)
{
    return PyObject_CallMethod((PyObject *)&PyLong_Type, "from_bytes", "y#s", (const char *)fields,
                               count * (Py_ssize_t)sizeof(int64_t), "little");
}

/* The fields of a packed key, as a new bytes object. OverflowError for an int that is no key of this table. */
static PyObject *unpacked(Dispatcher *self, PyObject *key)
{
    return PyObject_CallMethod(key, "to_bytes", "ns", self->field_count * (Py_ssize_t)sizeof(int64_t), "little");
}

/* The slot of a packed key. NULL and an exception for an int that is no key of this table. */
static Slot *slot_of_key(Dispatcher *self, PyObject *key)
{
    PyObject *bytes = unpacked(self, key);
    Slot *slot = bytes == NULL ? NULL : find(self, (const int64_t *)PyBytes_AS_STRING(bytes));
    Py_XDECREF(bytes);
    return slot;
}

static PyObject *tuple_of(const long *integers, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, PyLong_FromLong(integers[i]));
    return tuple;
}
