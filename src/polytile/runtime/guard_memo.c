/* Part of the launcher: answers of Dynamo's guards, kept for as long as nothing that they read has changed.

   A model's guards read thousands of attributes, which takes longer than many a kernel. A Memo knows what the guards of
   one compiled code read besides the arguments of a call (compiler/guard_reads.py): its facts. It also keeps signatures,
   the arguments of calls for which all guards held. If every fact is as it was, and the arguments are like those of a
   signature, then the guards would read the same again, and so they hold.

   Facts (guard_facts.c) come in the order in which guards reach them. No Python code runs from the first fact to the last:
   other threads do not either. Facts that make objects come last, and own what they are about, as the collector may run then.
   Python 3.13 has no versions of dictionaries, and no memos. */

enum { MAX_GIVEN = 128, SIGNATURES = 8, CREDIT = 64, PRICE = 8, AHEAD = 16, SPENT = 32, TOGETHER = 16 };

static int32_t (*offset_in_storage)(void *tensor, int64_t *offset); /* set by configure_entries() */

typedef struct { /* arguments for which all guards held */
    PyObject *values;  /* a tuple: a number of the like, or a tensor's storage offset in a list */
    PyObject *names;   /* of the last ones, or NULL */
    PyObject *tensors; /* (*tensors) -> whether their metadata are the same, and each is another one */
} Signature;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    Py_ssize_t facts_count, static_count, credit, used;
    Fact *facts;
    PyObject **statics;   /* the tensors that guards read besides the arguments, borrowed */
    PyObject *owned;      /* tuples of facts, and constants among what they expect, so that no other object gets their addresses */
    PyObject *modes;      /* ((callable, result), ...): torch's modes */
    PyObject *make_check; /* (*tensors, dynamic_dims_sizes=None, dynamic_dims_strides=None) -> checker of tensors */
    PyObject *checks;     /* those of the statics, TOGETHER in each: a checker of many is slow, as it looks for tensors given twice */
    Py_ssize_t stopped;   /* what differed in the last comparison: a fact's number, the next ones for tensors and modes; -1: nothing */
    int refuted;          /* calls in a row for which guards held and facts did not: the type of something has changed for good */
    char changed;         /* whether a dictionary has changed since all facts held */
    Signature signatures[SIGNATURES];
} Memo;

/* ---- facts ---- */

static int modes_are(Memo *self)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->modes); i++) {
        PyObject *mode = PyTuple_GET_ITEM(self->modes, i), *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(mode, 0));
        Py_XDECREF(answer); /* only its address is compared */
        if (answer != PyTuple_GET_ITEM(mode, 1))
            return 0;
    }
    return 1;
}

/* Calls a check with `tuple`, whose items it sets. It takes over the tuple, which is made early: that may run the collector. */
static int call_check(PyObject *check, PyObject *tuple, PyObject *const *tensors, Py_ssize_t count)
{
    if (tuple == NULL)
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(tensors[i]));
    PyObject *answer = PyObject_Call(check, tuple, NULL);
    Py_DECREF(tuple);
    Py_XDECREF(answer);
    return answer == Py_True;
}

/* Loads what facts and checks of tensors are about to read: other work has driven it out of the caches. */
static void load_ahead(Memo *self, Py_ssize_t i)
{
    if (i < self->facts_count)
        __builtin_prefetch(self->facts[i].kind == POINTER ? (void *)self->facts[i].pointer : (void *)self->facts[i].object);
}

/* How many of the statics their check number `i` is about. */
static Py_ssize_t count_of(Memo *self, Py_ssize_t i)
{
    Py_ssize_t left = self->static_count - i * TOGETHER;
    return left < TOGETHER ? left : TOGETHER;
}

/* Tuples for checks of the statics; NULL and an exception on failure. */
static PyObject *tuples_for_checks(Memo *self)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->checks);
    PyObject *tuples = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuples != NULL && i < count; i++) {
        PyObject *tuple = PyTuple_New(count_of(self, i));
        if (tuple == NULL)
            Py_CLEAR(tuples);
        else
            PyTuple_SET_ITEM(tuples, i, tuple);
    }
    return tuples;
}

static int statics_are(Memo *self, PyObject *tuples)
{
    for (Py_ssize_t i = 0; i < self->static_count; i++) {
        char *tensor = *(char **)((char *)self->statics[i] + configured.handle_offset);
        __builtin_prefetch(tensor);
        __builtin_prefetch(tensor + 64);
        __builtin_prefetch(tensor + 128);
    }
    int same = tuples != NULL;
    for (Py_ssize_t i = 0; same && i < PyTuple_GET_SIZE(self->checks); i++)
        same = call_check(PyTuple_GET_ITEM(self->checks, i), Py_NewRef(PyTuple_GET_ITEM(tuples, i)), self->statics + i * TOGETHER,
                          count_of(self, i));
    return same;
}

/* The number of the first fact that does not hold, or that makes an object. */
static Py_ssize_t pass_facts(Memo *self)
{
    Py_ssize_t i = 0;
    for (Py_ssize_t k = 0; k < AHEAD; k++)
        load_ahead(self, k);
    for (; i < self->facts_count && self->facts[i].kind != ATTRIBUTE && is_as_before(&self->facts[i], &self->changed); i++)
        load_ahead(self, i + AHEAD);
    return i;
}

/* Whether guards would read of everything but the arguments what they read before. Leaves no exception. */
static int all_facts_hold(Memo *self)
{
    char before = self->changed;
    PyObject *tuples = tuples_for_checks(self);
    Py_ssize_t i = pass_facts(self);
    if (self->changed != before)
        i = pass_facts(self); /* with the types that precede what has changed */
    int as_before = i == self->facts_count || self->facts[i].kind == ATTRIBUTE;
    if (as_before)
        self->changed = 0;
    self->stopped = i;
    if (as_before && !(as_before = statics_are(self, tuples)))
        self->stopped = self->facts_count;
    Py_XDECREF(tuples);
    for (; as_before && i < self->facts_count; i++) {
        self->stopped = i;
        as_before = is_as_before(&self->facts[i], &self->changed);
    }
    if (as_before)
        self->stopped = (as_before = modes_are(self)) ? -1 : self->facts_count + 1;
    PyErr_Clear();
    return as_before;
}

/* ---- arguments ---- */

/* The offset of a tensor of torch's own classes whose Python object has no attributes; -1: it is something else. */
static int64_t offset_of(PyObject *object)
{
    int64_t offset = -1;
    if (!is_plain(object) || offset_in_storage((char *)object + configured.handle_offset, &offset) != 0)
        return -1;
    PyObject **dict = _PyObject_GetDictPtr(object);
    return dict != NULL && (*dict == NULL || PyDict_GET_SIZE(*dict) == 0) ? offset : -1;
}

static int is_constant(PyObject *object)
{
    return object == Py_None || PyBool_Check(object) || PyLong_CheckExact(object) || PyUnicode_CheckExact(object);
}

static int is_static(Memo *self, PyObject *tensor)
{
    for (Py_ssize_t i = 0; i < self->static_count; i++)
        if (self->statics[i] == tensor)
            return 1;
    return 0;
}

/* What a signature keeps of arguments, and which of them are tensors; NULL: guards may read more of them than that. */
static PyObject *values_of(Memo *self, PyObject *const *given, Py_ssize_t all, PyObject **tensors, Py_ssize_t *count)
{
    PyObject *values = PyTuple_New(all);
    *count = 0;
    for (Py_ssize_t i = 0; values != NULL && i < all; i++) {
        int64_t offset = is_constant(given[i]) ? 0 : offset_of(given[i]);
        PyObject *value = NULL;
        if (is_constant(given[i]))
            value = Py_NewRef(given[i]);
        else if (offset >= 0 && !is_static(self, given[i])) {
            tensors[(*count)++] = given[i];
            value = PyFloat_FromDouble((double)offset); /* a type that no constant has */
        }
        if (value == NULL)
            Py_CLEAR(values);
        else
            PyTuple_SET_ITEM(values, i, value);
    }
    return values;
}

static int same_names(PyObject *names, PyObject *others)
{
    Py_ssize_t count = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count != (others == NULL ? 0 : PyTuple_GET_SIZE(others)))
        return 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyTuple_GET_ITEM(names, i) != PyTuple_GET_ITEM(others, i))
            return 0;
    return 1;
}

static int same_value(PyObject *value, PyObject *other)
{
    return value == other || (Py_TYPE(value) == Py_TYPE(other) && PyObject_RichCompareBool(value, other, Py_EQ) == 1);
}

static int is_like(const Signature *signature, PyObject *values, PyObject *names, PyObject *const *tensors, Py_ssize_t count)
{
    if (signature->values == NULL || PyTuple_GET_SIZE(signature->values) != PyTuple_GET_SIZE(values)
        || !same_names(signature->names, names))
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(values); i++)
        if (!same_value(PyTuple_GET_ITEM(signature->values, i), PyTuple_GET_ITEM(values, i)))
            return 0;
    return count == 0 || call_check(signature->tensors, PyTuple_New(count), tensors, count);
}

/* Whether guards hold for a call, as they held for one like it: 1 or 0. Leaves no exception. */
static int memo_answers(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    Memo *self = (Memo *)object;
    PyObject *tensors[MAX_GIVEN], *values;
    Py_ssize_t all = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names)), tensor_count;
    if (self->used == 0 || all > MAX_GIVEN || (values = values_of(self, given, all, tensors, &tensor_count)) == NULL) {
        PyErr_Clear();
        return 0;
    }
    int found = 0;
    for (Py_ssize_t i = 0; !found && i < SIGNATURES; i++)
        found = is_like(&self->signatures[i], values, names, tensors, tensor_count);
    Py_DECREF(values);
    PyErr_Clear();
    found = found && all_facts_hold(self);
    self->credit += found && self->credit < CREDIT;
    return found;
}

static void clear_signature(Signature *signature)
{
    Signature before = *signature;
    memset(signature, 0, sizeof *signature);
    Py_XDECREF(before.values);
    Py_XDECREF(before.names);
    Py_XDECREF(before.tensors);
}

/* A checker of tensors' metadata: its method; NULL and an exception on failure. */
static PyObject *checker_of(Memo *self, PyObject *const *tensors, Py_ssize_t count)
{
    PyObject *tuple = PyTuple_New(count), *checker = NULL, *check = NULL;
    PyObject *any = Py_BuildValue("{sOsO}", "dynamic_dims_sizes", Py_None, "dynamic_dims_strides", Py_None);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(tensors[i]));
    if (tuple != NULL && any != NULL)
        checker = PyObject_Call(self->make_check, tuple, any);
    if (checker != NULL)
        check = PyObject_GetAttrString(checker, "check");
    Py_XDECREF(tuple);
    Py_XDECREF(any);
    Py_XDECREF(checker);
    return check;
}

/* Makes the checks of the statics. 0, or -1 with an exception. */
static int make_checks(Memo *self)
{
    Py_ssize_t count = (self->static_count + TOGETHER - 1) / TOGETHER;
    self->checks = PyTuple_New(count);
    for (Py_ssize_t i = 0; self->checks != NULL && i < count; i++) {
        PyObject *check = checker_of(self, self->statics + i * TOGETHER, count_of(self, i));
        if (check == NULL)
            Py_CLEAR(self->checks);
        else
            PyTuple_SET_ITEM(self->checks, i, check);
    }
    return self->checks == NULL ? -1 : 0;
}

/* Keeps the arguments of a call for which all guards have just held. Calls that are never alike are soon kept no more. Returns
   whether the memo is of no use any more: guards hold time and again, and its facts do not. */
static int memo_learns(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    Memo *self = (Memo *)object;
    PyObject *tensors[MAX_GIVEN], *values = NULL, *check = NULL;
    Py_ssize_t all = count + (names == NULL ? 0 : PyTuple_GET_SIZE(names)), tensor_count = 0;
    int hold = all_facts_hold(self);
    self->refuted = hold ? 0 : self->refuted + (self->refuted < SPENT);
    if (hold && self->credit >= PRICE && all <= MAX_GIVEN)
        values = values_of(self, given, all, tensors, &tensor_count);
    if (values != NULL)
        check = tensor_count == 0 ? Py_NewRef(Py_None) : checker_of(self, tensors, tensor_count);
    if (check != NULL && (tensor_count == 0 || call_check(check, PyTuple_New(tensor_count), tensors, tensor_count))) {
        Signature *place = &self->signatures[self->used++ % SIGNATURES];
        self->credit -= PRICE;
        clear_signature(place);
        *place = (Signature){.values = Py_NewRef(values), .names = Py_XNewRef(names), .tensors = Py_NewRef(check)};
    }
    Py_XDECREF(values);
    Py_XDECREF(check);
    PyErr_Clear();
    return self->refuted == SPENT;
}

/* ---- the object ---- */

static PyObject *call_memo(PyObject *object, PyObject *const *given, size_t flagged, PyObject *names)
{
    return PyBool_FromLong(memo_answers(object, given, PyVectorcall_NARGS(flagged), names));
}

/* Memo(facts, what it owns, tensors, modes, make_check). Raises ValueError if a fact is not so any more. Called with arguments,
   it says whether the guards hold for them, as they held for arguments like them. */
static PyObject *memo_new(PyTypeObject *type, PyObject *parsed, PyObject *keywords)
{
    PyObject *facts, *owned, *tensors, *modes, *make_check;
    if (!PyArg_ParseTuple(parsed, "O!OO!O!O", &PyTuple_Type, &facts, &owned, &PyTuple_Type, &tensors, &PyTuple_Type, &modes, &make_check))
        return NULL;
    if (!POLYTILE_HAS_MEMOS)
        return PyErr_Format(PyExc_ValueError, "Memo: this Python's dictionaries have no versions");
    Memo *self = (Memo *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_memo;
    self->credit = CREDIT;
    self->changed = 1;
    self->owned = Py_NewRef(owned);
    self->modes = Py_NewRef(modes);
    self->make_check = Py_NewRef(make_check);
    self->facts_count = PyTuple_GET_SIZE(facts);
    self->static_count = PyTuple_GET_SIZE(tensors);
    self->facts = PyMem_Calloc((size_t)self->facts_count + 1, sizeof *self->facts);
    self->statics = PyMem_Calloc((size_t)self->static_count + 1, sizeof *self->statics);
    int failed = self->facts == NULL || self->statics == NULL;
    for (Py_ssize_t i = 0; !failed && i < self->facts_count; i++)
        failed = read_fact(PyTuple_GET_ITEM(facts, i), &self->facts[i]) < 0;
    for (Py_ssize_t i = 0; !failed && i < self->static_count; i++)
        self->statics[i] = PyTuple_GET_ITEM(tensors, i);
    failed = failed || make_checks(self) < 0;
    if (!failed && !all_facts_hold(self))
        PyErr_SetString(PyExc_ValueError, "Memo: a fact has changed");
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int memo_traverse(PyObject *object, visitproc visit, void *arg)
{
    Memo *self = (Memo *)object;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->owned);
    Py_VISIT(self->modes);
    return 0;
}

static int memo_clear(PyObject *object)
{
    Memo *self = (Memo *)object;
    self->facts_count = self->static_count = self->used = 0; /* no fact is looked at whose tuple may be gone */
    self->credit = 0;
    for (int i = 0; i < SIGNATURES; i++)
        clear_signature(&self->signatures[i]);
    Py_CLEAR(self->owned);
    return 0;
}

static void memo_dealloc(PyObject *object)
{
    Memo *self = (Memo *)object;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    memo_clear(object);
    Py_XDECREF(self->modes);
    Py_XDECREF(self->make_check);
    Py_XDECREF(self->checks);
    PyMem_Free(self->facts);
    PyMem_Free(self->statics);
    type->tp_free(self);
    Py_DECREF(type);
}

/* type_version(type) -> the version of a type; 0: it has none. */
static PyObject *type_version(PyObject *module, PyObject *type)
{
    return PyLong_FromUnsignedLong(PyType_Check(type) ? ((PyTypeObject *)type)->tp_version_tag : 0);
}

static PyMemberDef memo_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Memo, vectorcall), READONLY, NULL},
    {"used", T_PYSSIZET, offsetof(Memo, used), READONLY, "how many calls' arguments it has kept"},
    {"stopped", T_PYSSIZET, offsetof(Memo, stopped), READONLY,
     "the number of what differed when facts were compared last, tensors and modes after all facts; -1: nothing"},
    {NULL, 0, 0, 0, NULL},
};

static PyObject *memo_spent(PyObject *object, void *unused)
{
    return PyBool_FromLong(((Memo *)object)->refuted == SPENT);
}

static PyGetSetDef memo_properties[] = {
    {"spent", memo_spent, NULL, "whether guards hold in call after call, and facts do not", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
