/* Part of the launcher: runs calls without a decision, and lists them.

   A leaf is a loaded kernel or a Python callable, with the facts under which it is correct. An order lists leaves, best
   predicted first: the order of the key itself if there is one, else of its cell (the key without divisibility,
   alignment and formulas), else the one for all cells. Leaves and orders are made ahead of calls
   (dispatch/fallbacks.py). A call runs the first leaf of its order whose facts hold.

   Each key is noted once, for the thread that decides. The GIL protects all of this. */

struct Leaf {
    Slot slot;
    PyObject *facts; /* bytes: LeafFacts */
};

/* Whether kernels that this thread calls decide during the call: it is the deciding thread, or works for it. */
static _Thread_local int decides_here;

static void free_leaves(Leaf *leaves, Py_ssize_t count)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        Py_XDECREF(leaves[i].slot.entry);
        Py_XDECREF(leaves[i].slot.call);
        Py_XDECREF(leaves[i].facts);
    }
    PyMem_Free(leaves);
}

static int holds(const Leaf *leaf, const int64_t *fields, const long *integers, void *const *pointers)
{
    const LeafFact *facts = (const LeafFact *)PyBytes_AS_STRING(leaf->facts);
    size_t count = (size_t)PyBytes_GET_SIZE(leaf->facts) / sizeof(LeafFact);
    for (size_t i = 0; i < count; i++)
        if (!fact_holds(&facts[i], fields, integers, pointers))
            return 0;
    return 1;
}

/* The order for these fields; NULL if there is none. */
static PyObject *order_at(Dispatcher *self, const int64_t *fields, Py_ssize_t count)
{
    PyObject *key = PyBytes_FromStringAndSize((const char *)fields, count * (Py_ssize_t)sizeof(int64_t));
    PyObject *order = key == NULL ? NULL : PyDict_GetItem(self->orders, key);
    Py_XDECREF(key);
    return order;
}

static PyObject *order_of(Dispatcher *self, const int64_t *fields)
{
    PyObject *order = order_at(self, fields, self->field_count);
    if (order != NULL)
        return order;
    int64_t cell[self->field_count + 1], *next = cell;
    memset(cell, 0, sizeof cell);
    for (Py_ssize_t i = 0; i < self->integers; i++)
        if (self->codes[i] != IGNORE) {
            int64_t field = fields[next - cell];
            if (self->codes[i] == BUCKET)
                field = field >= EXACT_SIZE ? bucket(field & ~EXACT_SIZE) : field % SUB_BUCKET;
            *next++ = self->codes[i] == DIVISIBLE ? 0 : self->codes[i] == BUCKET && field > 8 ? field & ~(int64_t)1 : field;
        }
    order = order_at(self, cell, self->field_count);
    return order != NULL ? order : order_at(self, cell, 0);
}

static const Slot *leaf_of(Dispatcher *self, const int64_t *fields, const long *integers, void *const *pointers)
{
    PyObject *order = order_of(self, fields);
    for (Py_ssize_t i = 0; order != NULL && i < PyBytes_GET_SIZE(order); i++) {
        unsigned char number = (unsigned char)PyBytes_AS_STRING(order)[i];
        if (number < self->leaf_count && holds(&self->leaves[number], fields, integers, pointers))
            return &self->leaves[number].slot;
    }
    return NULL;
}

/* A new list of the file names of the nearest calling programs (programs.py). */
static PyObject *calling_programs(void)
{
    enum { NEAREST = 8 };
    PyFrameObject *frame = PyEval_GetFrame();
    PyObject *found = PyList_New(0), *beginning = PyUnicode_FromString("<polytile ");
    Py_XINCREF(frame);
    for (int i = 0; frame != NULL && found != NULL && beginning != NULL && i < NEAREST; i++) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        if (PyUnicode_Tailmatch(code->co_filename, beginning, 0, PY_SSIZE_T_MAX, -1) == 1
            && PyList_Append(found, code->co_filename) < 0)
            Py_CLEAR(found);
        Py_DECREF(code);
        PyFrameObject *caller = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = caller;
    }
    Py_XDECREF(frame);
    Py_XDECREF(beginning);
    return found;
}

/* Notes a call. Errors are ignored, since they do not concern the call, except an interrupt: -1. */
static int note(Dispatcher *self, const int64_t *fields, const long *integers, void *const *pointers)
{
    Py_ssize_t tensors = self->tensor_codes == NULL ? 0 : self->tensors;
    PyObject *addresses = PyTuple_New(tensors);
    for (Py_ssize_t i = 0; addresses != NULL && i < tensors; i++)
        PyTuple_SET_ITEM(addresses, i, PyLong_FromVoidPtr(pointers[i]));
    PyObject *item = addresses == NULL ? NULL
                                       : Py_BuildValue("(NNNN)", packed(fields, self->field_count),
                                                       tuple_of(integers, self->integers), addresses, calling_programs());
    PyObject *none = NULL, *wake = Py_NewRef(self->wake);
    if (item != NULL && PyList_Append(self->notes, item) == 0)
        none = PyObject_CallNoArgs(wake);
    int interrupted = none == NULL && PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception);
    if (!interrupted)
        PyErr_Clear();
    Py_XDECREF(item);
    Py_XDECREF(none);
    Py_DECREF(wake);
    return interrupted ? -1 : 0;
}

/* Records that these fields have no decision. Returns whether that is new. */
static int is_news(Dispatcher *self, const int64_t *fields)
{
    if (3 * (self->used + 1) > 2 * self->capacity && grow(self) < 0) {
        PyErr_Clear();
        return 1;
    }
    Slot *slot = find(self, fields);
    if (slot->entry == NULL) {
        place(self, slot, fields, (Slot){.entry = Py_NewRef(Py_Ellipsis)});
        self->used++;
    }
    int news = !slot->noted;
    slot->noted = 1;
    return news;
}
