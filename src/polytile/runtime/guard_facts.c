/* Part of the launcher: facts about what Dynamo's guards read, which C compares (guard_memo.c).

   A fact's object is not owned: the facts before it say that it is still where it was found. No Python code runs while facts are
   compared. A dictionary has a version that never comes back (PEP 509), so that one comparison stands for all of its items; if
   it has changed, the items are compared, unless it has got a key that compares in Python. Python 3.13 has no such versions. */

#if PY_VERSION_HEX < 0x030D0000
#define POLYTILE_HAS_MEMOS 1
#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* ma_version_tag, from Python 3.12 on */
#define VERSION_OF(dict) (((PyDictObject *)(dict))->ma_version_tag)
#else
#define POLYTILE_HAS_MEMOS 0
#define VERSION_OF(dict) ((uint64_t)0)
#endif

typedef enum {
    TYPE,      /* an object's type; with a version, it can only have changed if a dictionary has */
    VERSION,   /* a type's version; after a change, all that it and its bases have */
    POINTER,   /* a pointer in an object */
    ITEMS,     /* items of a dictionary */
    ALL_ITEMS, /* all of them, in order */
    ELEMENTS,  /* those of a list or tuple, all of them */
    ATTRIBUTE, /* an attribute that C code computes */
    KINDS
} FactKind;

typedef struct {
    FactKind kind;
    int length;         /* of a dictionary; -1: any */
    PyObject *object;   /* borrowed */
    PyObject *expected; /* a type, what the pointer points to, an attribute's value: borrowed; for others a tuple */
    union {
        PyObject **pointer; /* of a POINTER, in the object */
        PyObject *name;     /* of an attribute */
        uint64_t version;   /* of a type or dictionary; 0: items have not been compared */
    };
} Fact;

/* Whether a dictionary compares its keys in C. Keys of the interpreter's own types do; those of others if the type has taken its
   comparison from one of these. */
static int compares_in_c(PyObject *dict)
{
    PyObject *key;
    Py_ssize_t at = 0;
    while (PyDict_Next(dict, &at, &key, NULL)) {
        richcmpfunc compare = Py_TYPE(key)->tp_richcompare;
        if (PyType_HasFeature(Py_TYPE(key), Py_TPFLAGS_HEAPTYPE) && compare != PyBaseObject_Type.tp_richcompare
            && compare != PyUnicode_Type.tp_richcompare && compare != PyLong_Type.tp_richcompare)
            return 0;
    }
    return 1;
}

static int items_are(const Fact *fact)
{
    if ((fact->length >= 0 && PyDict_GET_SIZE(fact->object) != fact->length) || !compares_in_c(fact->object))
        return 0;
    for (Py_ssize_t i = 0; i + 1 < PyTuple_GET_SIZE(fact->expected); i += 2) {
        PyObject *address = PyTuple_GET_ITEM(fact->expected, i + 1); /* of the value, which is not owned; 0: none */
        if (PyDict_GetItemWithError(fact->object, PyTuple_GET_ITEM(fact->expected, i)) != PyLong_AsVoidPtr(address))
            return 0;
    }
    return 1;
}

static int all_items_are(const Fact *fact)
{
    PyObject *key, *value;
    Py_ssize_t at = 0, i = 0, count = PyTuple_GET_SIZE(fact->expected);
    if (2 * PyDict_GET_SIZE(fact->object) != count)
        return 0;
    for (; PyDict_Next(fact->object, &at, &key, &value) && i + 1 < count; i += 2)
        if (key != PyTuple_GET_ITEM(fact->expected, i) || value != PyLong_AsVoidPtr(PyTuple_GET_ITEM(fact->expected, i + 1)))
            return 0;
    return i == count;
}

static int elements_are(const Fact *fact)
{
    Py_ssize_t count = PyTuple_GET_SIZE(fact->expected);
    if (Py_SIZE(fact->object) != count)
        return 0;
    PyObject **elements = PySequence_Fast_ITEMS(fact->object);
    for (Py_ssize_t i = 0; i < count; i++)
        if (elements[i] != PyLong_AsVoidPtr(PyTuple_GET_ITEM(fact->expected, i)))
            return 0;
    return 1;
}

static int attribute_is(const Fact *fact)
{
    getattrofunc get = PyType_Check(fact->object) ? PyType_Type.tp_getattro : PyObject_GenericGetAttr;
    PyObject *value = get(fact->object, fact->name);
    int same = value == fact->expected; /* which the memo owns; NULL: there is none */
    Py_XDECREF(value);
    PyErr_Clear();
    return same;
}

/* Whether a type's attributes are as they were, by its version, or after a change one by one: whoever replaces a method for a
   while, as torch.fx does at each trace, leaves another version behind. What is expected is the type's method resolution order,
   then for each type in it that can change its attributes, (name, value, ...), which the memo owns. */
static int type_is(Fact *fact)
{
    static PyObject *any_name;
    PyTypeObject *type = (PyTypeObject *)fact->object;
    if (type->tp_version_tag != 0 && type->tp_version_tag == fact->version)
        return 1;
    PyObject *order = type->tp_mro;
    if (order != PyTuple_GET_ITEM(fact->expected, 0))
        return 0;
    for (Py_ssize_t i = 0, k = 1; i < PyTuple_GET_SIZE(order); i++) {
        PyTypeObject *base = (PyTypeObject *)PyTuple_GET_ITEM(order, i);
        if (!PyType_HasFeature(base, Py_TPFLAGS_HEAPTYPE))
            continue;
        PyObject *parts = PyTuple_GET_ITEM(fact->expected, k++), *name, *value;
        Py_ssize_t at = 0, j = 0, count = PyTuple_GET_SIZE(parts);
        for (; PyDict_Next(base->tp_dict, &at, &name, &value) && j + 1 < count; j += 2)
            if (name != PyTuple_GET_ITEM(parts, j) || value != PyTuple_GET_ITEM(parts, j + 1))
                return 0;
        if (j != count || 2 * PyDict_GET_SIZE(base->tp_dict) != count)
            return 0;
    }
    if (any_name != NULL || (any_name = PyUnicode_InternFromString("__init__")) != NULL)
        _PyType_Lookup(type, any_name); /* gives the type a version */
    if (type->tp_version_tag != 0)
        fact->version = type->tp_version_tag;
    return 1;
}

/* `changed` is set where a dictionary has changed, until all facts have been seen to hold. */
static int is_as_before(Fact *fact, char *changed)
{
    switch (fact->kind) {
    case TYPE:
        return (fact->version != 0 && !*changed) || (PyObject *)Py_TYPE(fact->object) == fact->expected;
    case VERSION:
        return type_is(fact);
    case POINTER:
        return *fact->pointer == fact->expected;
    case ITEMS:
    case ALL_ITEMS: {
        uint64_t version = VERSION_OF(fact->object);
        if (version == fact->version)
            return 1;
        *changed = 1;
        if (!(fact->kind == ITEMS ? items_are(fact) : all_items_are(fact)))
            return 0;
        fact->version = version;
        return 1;
    }
    case ELEMENTS:
        return elements_are(fact);
    case ATTRIBUTE:
        return attribute_is(fact);
    default:
        return 0;
    }
}

/* The pointer in an object that has this name in Python; NULL: it has none. */
static PyObject **pointer_in(PyObject *object, const char *name)
{
    if (strcmp(name, "__dict__") == 0)
        return _PyObject_GetDictPtr(object);
    if (PyCell_Check(object) && strcmp(name, "cell_contents") == 0)
        return &((PyCellObject *)object)->ob_ref;
    if (Py_IS_TYPE(object, &PyProperty_Type)) {
        PyObject *member = PyObject_GetAttrString((PyObject *)&PyProperty_Type, name); /* Python 3.12 has no tp_dict of it */
        int known = member != NULL && Py_IS_TYPE(member, &PyMemberDescr_Type);
        PyObject **pointer = known ? (PyObject **)((char *)object + ((PyMemberDescrObject *)member)->d_member->offset) : NULL;
        Py_XDECREF(member);
        PyErr_Clear();
        return pointer;
    }
    if (!PyFunction_Check(object))
        return NULL;
    PyFunctionObject *function = (PyFunctionObject *)object;
    if (strcmp(name, "__code__") == 0)
        return &function->func_code;
    if (strcmp(name, "__closure__") == 0)
        return &function->func_closure;
    if (strcmp(name, "__defaults__") == 0)
        return &function->func_defaults;
    return strcmp(name, "__kwdefaults__") == 0 ? &function->func_kwdefaults : NULL;
}

/* Reads a fact: (kind, object, expected, name, version, length), where what is expected is an address, or a tuple with
   addresses. 0, or -1 with an exception. */
static int read_fact(PyObject *given, Fact *fact)
{
    int kind;
    PyObject *expected, *name;
    unsigned long long version;
    if (!PyArg_ParseTuple(given, "iOOUKi", &kind, &fact->object, &expected, &name, &version, &fact->length))
        return -1;
    PyObject **pointer = kind == POINTER ? pointer_in(fact->object, PyUnicode_AsUTF8(name)) : NULL;
    int is_tuple = kind == VERSION || kind == ITEMS || kind == ALL_ITEMS || kind == ELEMENTS;
    int fits = is_tuple ? PyTuple_Check(expected) : PyLong_Check(expected);
    if (kind < 0 || kind >= KINDS || !fits || (kind == POINTER && pointer == NULL))
        return PyErr_Format(PyExc_ValueError, "Memo: %R is no fact", given), -1;
    /* after a change in between, what has been read of the type may be neither what it had nor what it has */
    if (kind == VERSION && ((PyTypeObject *)fact->object)->tp_version_tag != version)
        return PyErr_Format(PyExc_ValueError, "Memo: %R has changed", fact->object), -1;
    fact->kind = (FactKind)kind;
    if (kind == POINTER)
        fact->pointer = pointer;
    else if (kind == ATTRIBUTE)
        fact->name = name;
    else
        fact->version = version;
    fact->expected = is_tuple ? expected : PyLong_AsVoidPtr(expected);
    return 0;
}
