/* Part of the launcher: launches of Triton kernels that take their arguments as Python objects.

   launch_triton((address, plan, letters, device type), arguments, grid) -> what the launch returned, 0 if it went well;
   None if an argument is none that `letters` says. `address` and `plan` are those of a native entry (launch.py), whose
   integers are the grid's three dimensions, then the numbers among the arguments, in order. Each argument has a letter:
   p a tensor, i an integer, f a float, d a double, - anything that is not passed on. */

/* The grid's dimensions; those that are missing are 1. 0, or -1 and an exception. */
static int grid_of(PyObject *grid, long *dimensions)
{
    PyObject *sequence = PySequence_Fast(grid, "a grid is a tuple of one to three integers");
    if (sequence == NULL)
        return -1;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(sequence);
    for (Py_ssize_t i = 0; i < 3; i++) {
        dimensions[i] = i < count ? PyLong_AsLong(PySequence_Fast_GET_ITEM(sequence, i)) : 1;
        if (dimensions[i] == -1 && PyErr_Occurred())
            break;
    }
    Py_DECREF(sequence);
    return PyErr_Occurred() ? -1 : 0;
}

/* The bits of a number as a parameter of the kernel; whether it is a number of that kind. */
static int bits_of(PyObject *argument, char letter, long *bits)
{
    if (letter == 'i') {
        int overflow;
        *bits = PyLong_Check(argument) ? PyLong_AsLongAndOverflow(argument, &overflow) : (overflow = 1);
        return !overflow;
    }
    double value = PyFloat_AsDouble(argument);
    if (value == -1.0 && PyErr_Occurred()) {
        PyErr_Clear();
        return 0;
    }
    float single = (float)value;
    *bits = 0;
    memcpy(bits, letter == 'f' ? (void *)&single : (void *)&value, letter == 'f' ? sizeof single : sizeof value);
    return 1;
}

/* How to launch a kernel: what a Launcher of launching.py holds. */
typedef struct {
    long (*kernel)(void *const *, const long *, long);
    long plan, device;
    const char *letters;
    Py_ssize_t arguments;
} Launcher;

/* From a tuple of an address, a plan, letters and a type of device. -1 and an exception if it is none. */
static int launcher_of(PyObject *tuple, Launcher *launcher)
{
    char *letters;
    if (PyBytes_AsStringAndSize(PyTuple_GET_ITEM(tuple, 2), &letters, &launcher->arguments) < 0)
        return -1;
    launcher->letters = letters;
    launcher->kernel = PyLong_AsVoidPtr(PyTuple_GET_ITEM(tuple, 0));
    launcher->plan = PyLong_AsLong(PyTuple_GET_ITEM(tuple, 1));
    launcher->device = PyLong_AsLong(PyTuple_GET_ITEM(tuple, 3));
    return PyErr_Occurred() ? -1 : 0;
}

/* Launches a kernel. 1, and what the launch returned as `code`; 0 if an argument is none that the letters say; -1 and an
   exception. */
static int start_triton(const Launcher *launcher, PyObject *const *arguments, PyObject *grid, long *code)
{
    Py_ssize_t tensors = 0, integers = 3;
    void *pointers[launcher->arguments + 1];
    long numbers[launcher->arguments + 3];
    if (grid_of(grid, numbers) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < launcher->arguments; i++) {
        char letter = launcher->letters[i];
        if (letter == '-')
            continue;
        int taken = letter == 'p' ? fast_pointer(arguments[i], (int)launcher->device, &pointers[tensors++])
                                  : bits_of(arguments[i], letter, &numbers[integers++]);
        if (!taken)
            return 0;
    }
    Py_BEGIN_ALLOW_THREADS
    *code = launcher->kernel(pointers, numbers, launcher->plan);
    Py_END_ALLOW_THREADS
    return 1;
}

static PyObject *launch_triton(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Launcher launcher;
    long code;
    if (count != 3 || !PyTuple_Check(given[0]) || PyTuple_GET_SIZE(given[0]) < 4 || !PyTuple_CheckExact(given[1]))
        return PyErr_Format(PyExc_TypeError, "launch_triton takes a launcher, a tuple of arguments, and a grid");
    if (launcher_of(given[0], &launcher) < 0)
        return NULL;
    if (launcher.arguments != PyTuple_GET_SIZE(given[1]) || launcher.arguments > MAX_ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "launch_triton takes an argument for each letter");
    int taken = start_triton(&launcher, ((PyTupleObject *)given[1])->ob_item, given[2], &code);
    if (taken < 0)
        return NULL;
    if (taken == 0)
        Py_RETURN_NONE;
    return PyLong_FromLong(code);
}
