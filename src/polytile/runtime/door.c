/* Part of the launcher: calls of the function that polytile.compile returns (front_door.py), without evaluating its frame.

   C calls a Python function by its `vectorcall`, and so does the interpreter from Python 3.12 on; 3.11 evaluates the frame of
   a function that Python code calls. shorten() gives the front door's function a `vectorcall` that does what its body does. A
   call that eager's own function serves then takes 40 ns more than the function itself; by the body it takes 180 ns more. */

enum { ENTER, FUNCTION, OPENED, THROUGH_DYNAMO, VARIABLES };

static const char *const variable_names[VARIABLES] = {"enter", "function", "opened", "through_dynamo"};
static Py_ssize_t variable_at[VARIABLES]; /* in the closure: all such functions share their code */

/* The value of a variable of the closure, owned. */
static PyObject *variable_of(PyObject *function, int which)
{
    return Py_NewRef(PyCell_GET(PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(function), variable_at[which])));
}

/* through_dynamo(opened, args, kwargs) */
static PyObject *go_through_dynamo(PyObject *function, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    PyObject *args = PyTuple_New(count), *kwargs = PyDict_New(), *result = NULL;
    int failed = args == NULL || kwargs == NULL;
    for (Py_ssize_t i = 0; !failed && i < count; i++)
        PyTuple_SET_ITEM(args, i, Py_NewRef(given[i]));
    for (Py_ssize_t i = 0; !failed && names != NULL && i < PyTuple_GET_SIZE(names); i++)
        failed = PyDict_SetItem(kwargs, PyTuple_GET_ITEM(names, i), given[count + i]) < 0;
    if (!failed) {
        PyObject *call = variable_of(function, THROUGH_DYNAMO), *opened = variable_of(function, OPENED);
        result = PyObject_CallFunctionObjArgs(call, opened, args, kwargs, NULL);
        Py_DECREF(call);
        Py_DECREF(opened);
    }
    Py_XDECREF(args);
    Py_XDECREF(kwargs);
    return result;
}

static PyObject *call_shortened(PyObject *function, PyObject *const *given, size_t flagged, PyObject *names)
{
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    PyObject *enter = variable_of(function, ENTER), *own = variable_of(function, FUNCTION);
    PyObject *result = PyObject_Vectorcall(enter, given, (size_t)count, names);
    Py_DECREF(enter);
    if (result == entering.own) {
        Py_DECREF(result);
        result = PyObject_Vectorcall(own, given, (size_t)count, names);
    } else if (result == entering.declined) {
        Py_DECREF(result);
        result = go_through_dynamo(function, given, count, names);
    }
    Py_DECREF(own);
    return result;
}

/* shorten(function): see above. */
static PyObject *shorten(PyObject *module, PyObject *function)
{
    if (!PyFunction_Check(function))
        return PyErr_Format(PyExc_TypeError, "shorten takes a function");
    PyObject *names = PyObject_GetAttrString(PyFunction_GET_CODE(function), "co_freevars");
    if (names == NULL)
        return NULL;
    int found = 0;
    for (int which = 0; which < VARIABLES; which++)
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++)
            if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(names, i), variable_names[which]) == 0) {
                variable_at[which] = i;
                found++;
            }
    Py_DECREF(names);
    if (found != VARIABLES)
        return PyErr_Format(PyExc_TypeError, "shorten takes the function of a front door");
#if PY_VERSION_HEX >= 0x030C0000
    PyFunction_SetVectorcall((PyFunctionObject *)function, call_shortened);
#else
    ((PyFunctionObject *)function)->vectorcall = call_shortened;
#endif
    Py_RETURN_NONE;
}
