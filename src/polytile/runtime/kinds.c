/* Part of the launcher: the properties of a call's arguments that Triton specialises on, as words. Calls with equal words run
   the same compiled kernel. Each argument has a letter: v a value, k a value of which floats matter too, c a compile-time
   constant. */

static struct { /* torch's stable C interface, set once by configure_functions(); NULL if it cannot be used */
    int32_t (*get_dtype)(void *tensor, int32_t *dtype);
    int32_t (*get_device_index)(void *tensor, int32_t *index);
} kind_functions;

/* The first word of an argument has its kind in the lowest byte, and says how many words follow. */
enum { KIND_TENSOR = 1, KIND_ONE, KIND_INTEGER, KIND_FLOAT, KIND_NONE, KIND_BOOL, KIND_VALUE, KIND_REAL, KIND_TEXT, KIND_OBJECT };
enum { KIND_WORDS = 4, KIND_TEXT_BYTES = 8 * (KIND_WORDS - 1) };

/* An integer: its value if it is a constant, else what Triton specialises on: whether it is 1, 16 divides it, it fits
   32 bits. */
static int64_t *kind_of_integer(PyObject *argument, int constant, int64_t *words)
{
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(argument, &overflow);
    if (overflow)
        return NULL;
    if (constant) {
        *words++ = KIND_VALUE;
        *words++ = value;
    } else {
        int form = (value % 16 == 0) | (value != (int32_t)value) << 1 | (value < 0) << 2;
        *words++ = value == 1 ? KIND_ONE : KIND_INTEGER | form << 8;
    }
    return words;
}

static int64_t *kind_of_tensor(PyObject *argument, void *pointer, int64_t *words)
{
    int32_t dtype, index;
    void *handle = (char *)argument + configured.handle_offset;
    if (kind_functions.get_dtype(handle, &dtype) != 0 || kind_functions.get_device_index(handle, &index) != 0)
        return NULL;
    *words++ = KIND_TENSOR | ((uintptr_t)pointer % 16 == 0) << 8 | (int64_t)(uint16_t)dtype << 16 | (int64_t)index << 32;
    return words;
}

static int64_t *kind_of_text(PyObject *argument, int64_t *words)
{
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(argument, &length);
    if (text == NULL)
        PyErr_Clear();
    if (text == NULL || length > KIND_TEXT_BYTES)
        return NULL;
    memset(words, 0, KIND_WORDS * sizeof *words);
    words[0] = KIND_TEXT | (int64_t)length << 8;
    memcpy(&words[1], text, (size_t)length);
    return words + KIND_WORDS;
}

/* Writes the words of an argument; returns where they end, or NULL for an unsupported argument. */
static int64_t *append_kind(PyObject *argument, char code, int device, int64_t *words)
{
    PyTypeObject *type = Py_TYPE(argument);
    void *pointer;
    if (type == &PyLong_Type)
        return kind_of_integer(argument, code == 'c', words);
    if (argument == Py_None) {
        *words++ = KIND_NONE;
    } else if (type == &PyBool_Type) {
        *words++ = KIND_BOOL | (argument == Py_True) << 8;
    } else if (type == &PyFloat_Type) {
        *words++ = code == 'v' ? KIND_FLOAT : KIND_REAL;
        if (code != 'v')
            memcpy(words++, &((PyFloatObject *)argument)->ob_fval, sizeof(double));
    } else if (fast_pointer(argument, device, &pointer)) {
        return kind_of_tensor(argument, pointer, words);
    } else if (type == &PyUnicode_Type) {
        return kind_of_text(argument, words);
    } else { /* the route keeps the object alive, so that its address is not reused */
        if (code != 'c' || PyObject_Hash(argument) == -1) { /* an unhashable object may change */
            PyErr_Clear();
            return NULL;
        }
        *words++ = KIND_OBJECT;
        *words++ = (int64_t)(intptr_t)argument;
    }
    return words;
}
