/* Part of the launcher: the properties of a call's arguments that Triton specialises on, as bytes.

   kinds_of(arguments, codes, device type) -> bytes, equal for calls that run the same compiled kernel; None for
   unsupported arguments. Each argument has a letter in `codes`: v a value, k a value of which floats matter too, c a
   compile-time constant. */

static struct { /* torch's stable C interface; NULL if it cannot be used */
    int32_t (*get_dtype)(void *tensor, int32_t *dtype);
    int32_t (*get_device_index)(void *tensor, int32_t *index);
} kind_functions;

enum { KIND_TENSOR = 1, KIND_ONE, KIND_INTEGER, KIND_FLOAT, KIND_NONE, KIND_BOOL, KIND_VALUE, KIND_REAL, KIND_TEXT, KIND_OBJECT };
enum { KIND_WORDS = 4, KIND_TEXT_BYTES = 8 * (KIND_WORDS - 1) };

/* configure_kinds(get_dtype, get_device_index): addresses */
static PyObject *configure_kinds(PyObject *module, PyObject *parsed)
{
    unsigned long long dtype, index;
    if (!PyArg_ParseTuple(parsed, "KK", &dtype, &index))
        return NULL;
    kind_functions.get_dtype = (int32_t(*)(void *, int32_t *))(uintptr_t)dtype;
    kind_functions.get_device_index = (int32_t(*)(void *, int32_t *))(uintptr_t)index;
    Py_RETURN_NONE;
}

/* An integer: its value if it is a constant, else what Triton specialises on: whether it is 1, 16 divides it, it fits
   32 bits. */
static int kind_of_integer(PyObject *argument, int constant, int64_t *words)
{
    int overflow;
    long long value = PyLong_AsLongLongAndOverflow(argument, &overflow);
    if (overflow)
        return 0;
    words[0] = constant ? KIND_VALUE : value == 1 ? KIND_ONE : KIND_INTEGER;
    words[1] = constant ? value : (value % 16 == 0) | (value != (int32_t)value) << 1 | (value < 0) << 2;
    return 1;
}

static int kind_of(PyObject *argument, char code, int device, int64_t *words)
{
    PyTypeObject *type = Py_TYPE(argument);
    void *pointer;
    memset(words, 0, KIND_WORDS * sizeof *words);
    if (type == &PyLong_Type)
        return kind_of_integer(argument, code == 'c', words);
    if (argument == Py_None) {
        words[0] = KIND_NONE;
    } else if (type == &PyBool_Type) {
        words[0] = KIND_BOOL;
        words[1] = argument == Py_True;
    } else if (type == &PyFloat_Type) {
        words[0] = code == 'v' ? KIND_FLOAT : KIND_REAL;
        if (code != 'v')
            memcpy(&words[1], &((PyFloatObject *)argument)->ob_fval, sizeof(double));
    } else if (fast_pointer(argument, device, &pointer)) {
        int32_t dtype, index;
        void *handle = (char *)argument + configured.handle_offset;
        if (kind_functions.get_dtype(handle, &dtype) != 0 || kind_functions.get_device_index(handle, &index) != 0)
            return 0;
        words[0] = KIND_TENSOR;
        words[1] = (uintptr_t)pointer % 16 == 0;
        words[2] = dtype;
        words[3] = index;
    } else if (type == &PyUnicode_Type) {
        Py_ssize_t length;
        const char *text = PyUnicode_AsUTF8AndSize(argument, &length);
        if (text == NULL)
            PyErr_Clear();
        if (text == NULL || length > KIND_TEXT_BYTES)
            return 0;
        words[0] = KIND_TEXT | (int64_t)length << 8;
        memcpy(&words[1], text, (size_t)length);
    } else { /* the bytes' owner keeps the object alive, so that its address is not reused */
        if (code != 'c' || PyObject_Hash(argument) == -1) { /* an unhashable object may change */
            PyErr_Clear();
            return 0;
        }
        words[0] = KIND_OBJECT;
        words[1] = (int64_t)(intptr_t)argument;
    }
    return 1;
}

static PyObject *kinds_of(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (count != 3 || !PyTuple_CheckExact(given[0]) || !PyBytes_CheckExact(given[1])
        || PyBytes_GET_SIZE(given[1]) != PyTuple_GET_SIZE(given[0]))
        return PyErr_Format(PyExc_TypeError, "kinds_of takes a tuple, a code for each of its items, and a type of device");
    long device = PyLong_AsLong(given[2]);
    if (device == -1 && PyErr_Occurred())
        return NULL;
    Py_ssize_t arguments = PyTuple_GET_SIZE(given[0]);
    if (kind_functions.get_dtype == NULL || configured.tensor == NULL || arguments > MAX_ARGUMENTS)
        Py_RETURN_NONE;
    PyObject *found = PyBytes_FromStringAndSize(NULL, arguments * KIND_WORDS * (Py_ssize_t)sizeof(int64_t));
    if (found == NULL)
        return NULL;
    int64_t words[KIND_WORDS];
    for (Py_ssize_t i = 0; i < arguments; i++) {
        if (!kind_of(PyTuple_GET_ITEM(given[0], i), PyBytes_AS_STRING(given[1])[i], (int)device, words)) {
            Py_DECREF(found);
            Py_RETURN_NONE;
        }
        memcpy(PyBytes_AS_STRING(found) + i * (Py_ssize_t)sizeof words, words, sizeof words);
    }
    return found;
}
