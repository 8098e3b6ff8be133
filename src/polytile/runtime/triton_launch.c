/* Part of the launcher: launches of Triton kernels that take their arguments as Python objects.

   launch_triton(address, plan, letters, arguments, grid, device type) -> what the launch returned, 0 if it went well;
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

static PyObject *launch_triton(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (count != 6 || !PyBytes_CheckExact(given[2]) || !PyTuple_CheckExact(given[3])
        || PyBytes_GET_SIZE(given[2]) != PyTuple_GET_SIZE(given[3]) || PyTuple_GET_SIZE(given[3]) > MAX_ARGUMENTS)
        return PyErr_Format(PyExc_TypeError, "launch_triton takes an address, a plan, a letter for each argument, a tuple of "
                                             "arguments, a grid and a type of device");
    long (*kernel)(void *const *, const long *, long) = PyLong_AsVoidPtr(given[0]);
    long plan = PyLong_AsLong(given[1]), device = PyLong_AsLong(given[5]), code;
    if (PyErr_Occurred())
        return NULL;
    const char *letters = PyBytes_AS_STRING(given[2]);
    Py_ssize_t arguments = PyTuple_GET_SIZE(given[3]), tensors = 0, integers = 3;
    void *pointers[arguments + 1];
    long numbers[arguments + 3];
    if (grid_of(given[4], numbers) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < arguments; i++) {
        PyObject *argument = PyTuple_GET_ITEM(given[3], i);
        if (letters[i] == '-')
            continue;
        int taken = letters[i] == 'p' ? fast_pointer(argument, (int)device, &pointers[tensors++])
                                      : bits_of(argument, letters[i], &numbers[integers++]);
        if (!taken)
            Py_RETURN_NONE;
    }
    Py_BEGIN_ALLOW_THREADS
    code = kernel(pointers, numbers, plan);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(code);
}
