/* Part of the launcher: launches of autotuned Triton kernels that resemble earlier ones (autotuner/quick.py), without Python
   code except for the grid's function.

   launch_tuned(shared, grid, *arguments, **keywords) -> the compiled kernel. All that is unusual goes to `otherwise`. */

/* The items of quick.py's Shared, Route and Form. */
enum {
    NAMES, DEFAULTS, LETTERS, DEVICE_TYPE, TRACING, QUESTIONS, HOOKS, RUN_HOOKS, ROUTES, TUNER, OTHERWISE
};
enum { ROUTE_TABLE, ROUTE_TENSORS, ROUTE_SIZES, ROUTE_FORMS, ROUTE_VARIABLES };
enum { FORM_KERNEL, FORM_CONFIG, FORM_SETTINGS, FORM_LAUNCHER };

static Py_ssize_t position_of(PyObject *names, PyObject *name)
{
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; i < count; i++)
        if (PyTuple_GET_ITEM(names, i) == name)
            return i;
    for (Py_ssize_t i = 0; i < count; i++) /* names that are made while a program runs are other objects */
        if (PyUnicode_Compare(PyTuple_GET_ITEM(names, i), name) == 0)
            return i;
    return -1;
}

/* The arguments in the order of the parameters, as borrowed references; whether the call has no others. */
static int bind_launch(PyObject *shared, PyObject *const *given, Py_ssize_t count, PyObject *keywords, PyObject **values)
{
    PyObject *names = PyTuple_GET_ITEM(shared, NAMES), *defaults = PyTuple_GET_ITEM(shared, DEFAULTS);
    Py_ssize_t all = PyTuple_GET_SIZE(names), named = keywords == NULL ? 0 : PyTuple_GET_SIZE(keywords);
    if (count > all)
        return 0;
    for (Py_ssize_t i = 0; i < all; i++)
        values[i] = i < count ? given[i] : NULL;
    for (Py_ssize_t i = 0; i < named; i++) {
        Py_ssize_t position = position_of(names, PyTuple_GET_ITEM(keywords, i));
        if (position < 0 || values[position] != NULL)
            return 0;
        values[position] = given[count + i];
    }
    for (Py_ssize_t i = count; i < all; i++)
        if (values[i] == NULL)
            values[i] = PyTuple_GET_ITEM(defaults, i);
    return 1;
}

/* What launches that share a route have in common, as bytes. NULL without an exception for unusual arguments. */
static PyObject *key_of_launch(PyObject *shared, PyObject *const *values)
{
    PyObject *letters = PyTuple_GET_ITEM(shared, LETTERS), *questions = PyTuple_GET_ITEM(shared, QUESTIONS), *answer;
    Py_ssize_t count = PyBytes_GET_SIZE(letters), asked = PyTuple_GET_SIZE(questions);
    int device = (int)PyLong_AsLong(PyTuple_GET_ITEM(shared, DEVICE_TYPE));
    int64_t words[KIND_WORDS * count + asked], *next = words;
    for (Py_ssize_t i = 0; i < count; i++)
        if ((next = append_kind(values[i], PyBytes_AS_STRING(letters)[i], device, next)) == NULL)
            return NULL;
    for (Py_ssize_t i = 0; i < asked; i++) {
        if ((answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(questions, i))) == NULL)
            return NULL;
        *next++ = PyLong_CheckExact(answer) ? PyLong_AsLong(answer) : (intptr_t)answer;
        Py_DECREF(answer);
    }
    return PyBytes_FromStringAndSize((const char *)words, (char *)next - (char *)words);
}

/* Whether Triton's launch hooks, which are a function or a list of functions each, are none. -1 and an exception. */
static int has_no_hooks(PyObject *hooks)
{
    PyObject *names = PyTuple_GET_ITEM(hooks, 1);
    int none = 1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names) && none == 1; i++) {
        PyObject *hook = PyObject_GetAttr(PyTuple_GET_ITEM(hooks, 0), PyTuple_GET_ITEM(names, i));
        PyObject *calls = hook == NULL || hook == Py_None ? NULL : PyObject_GetAttr(hook, PyTuple_GET_ITEM(hooks, 2));
        none = hook == NULL ? -1 : calls != NULL && PyList_CheckExact(calls) ? PyList_GET_SIZE(calls) == 0 : hook == Py_None;
        if (hook != NULL && calls == NULL)
            PyErr_Clear();
        Py_XDECREF(calls);
        Py_XDECREF(hook);
    }
    return none;
}

/* Whether nobody traces the call or looks at its arguments, and the global variables that a route's kernels were compiled with are
   as they were. -1 and an exception. */
static int is_usual_launch(PyObject *shared, PyObject *route)
{
    PyObject *tracer = PyObject_CallNoArgs(PyTuple_GET_ITEM(shared, TRACING));
    Py_XDECREF(tracer);
    if (tracer != Py_None || PyObject_Length(PyTuple_GET_ITEM(shared, RUN_HOOKS)) != 0)
        return PyErr_Occurred() ? -1 : 0;
    PyObject *variables = PyTuple_GET_ITEM(route, ROUTE_VARIABLES);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(variables); i++) {
        PyObject *variable = PyTuple_GET_ITEM(variables, i), *value = PyTuple_GET_ITEM(variable, 2);
        PyObject *now = PyDict_GetItemWithError(PyTuple_GET_ITEM(variable, 0), PyTuple_GET_ITEM(variable, 1));
        int same = now == NULL ? 0 : PyObject_RichCompareBool(now, value, Py_EQ);
        if (same != 1)
            return PyErr_Occurred() ? -1 : 0;
    }
    return 1;
}

/* The form that a route runs at a call's sizes, as a borrowed reference. NULL if nothing is decided there, if the table wants to be
   asked, or if the form is not known yet. */
static PyObject *form_of(PyObject *route, PyObject *const *values, int device)
{
    PyObject *forms = PyTuple_GET_ITEM(route, ROUTE_FORMS), *form;
    Dispatcher *table = (Dispatcher *)PyTuple_GET_ITEM(route, ROUTE_TABLE);
    if ((PyObject *)table == Py_None)
        return PyDict_GetItemWithError(forms, Py_None);
    PyObject *tensors = PyTuple_GET_ITEM(route, ROUTE_TENSORS), *sizes = PyTuple_GET_ITEM(route, ROUTE_SIZES);
    void *pointers[PyBytes_GET_SIZE(tensors) + 1];
    long integers[table->integers + 1];
    int64_t fields[table->field_count + 1];
    for (Py_ssize_t i = 0; i < PyBytes_GET_SIZE(tensors); i++)
        if (!fast_pointer(values[(unsigned char)PyBytes_AS_STRING(tensors)[i]], device, &pointers[i]))
            return NULL;
    for (Py_ssize_t i = 0; i < table->integers; i++)
        integers[i] = PyLong_AsLong(values[(unsigned char)PyBytes_AS_STRING(sizes)[i]]);
    if (PyErr_Occurred())
        return NULL;
    fields_of(table, pointers, integers, fields);
    Slot *slot = slot_at(table, fields, integers);
    if (!is_decided(slot) || is_due(slot) || slot->call == NULL)
        return NULL;
    if ((form = PyDict_GetItemWithError(forms, slot->call)) == NULL)
        return NULL;
    count_call(slot);
    return form;
}

/* The grid's dimensions: the grid itself, or what its function returns for the arguments by name. */
static PyObject *dimensions_of(PyObject *grid, PyObject *names, PyObject *const *arguments)
{
    if (PyTuple_CheckExact(grid) || !PyCallable_Check(grid))
        return Py_NewRef(grid);
    PyObject *by_name = PyDict_New(), *dimensions = NULL;
    int failed = by_name == NULL;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names) && !failed; i++)
        failed = PyDict_SetItem(by_name, PyTuple_GET_ITEM(names, i), arguments[i]) < 0;
    if (!failed)
        dimensions = PyObject_CallOneArg(grid, by_name);
    Py_XDECREF(by_name);
    return dimensions;
}

/* By Form.launch, in Python: by Triton, which calls hooks. */
static PyObject *launch_by_triton(PyObject *shared, PyObject *form, PyObject *grid, PyObject *const *values)
{
    Py_ssize_t count = PyTuple_GET_SIZE(PyTuple_GET_ITEM(shared, NAMES));
    PyObject *tuple = PyTuple_New(count);
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[i]));
    PyObject *result = tuple == NULL ? NULL : PyObject_CallMethod(form, "launch", "OO", grid, tuple);
    Py_XDECREF(tuple);
    return result;
}

/* Launches a form. NULL without an exception if the launch fails: Triton raises its own error for it. */
static PyObject *launch_form(PyObject *shared, PyObject *form, PyObject *grid, PyObject *const *values)
{
    PyObject *names = PyTuple_GET_ITEM(shared, NAMES), *settings = PyTuple_GET_ITEM(form, FORM_SETTINGS);
    Py_ssize_t count = PyTuple_GET_SIZE(names);
    PyObject *arguments[count + 1];
    Launcher launcher;
    memcpy(arguments, values, (size_t)count * sizeof *arguments);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(settings); i++) {
        PyObject *setting = PyTuple_GET_ITEM(settings, i);
        arguments[PyLong_AsLong(PyTuple_GET_ITEM(setting, 0))] = PyTuple_GET_ITEM(setting, 1);
    }
    if (launcher_of(PyTuple_GET_ITEM(form, FORM_LAUNCHER), &launcher) < 0)
        return NULL;
    PyObject *dimensions = dimensions_of(grid, names, arguments);
    if (dimensions == NULL)
        return NULL;
    long code = 0;
    int taken = start_triton(&launcher, arguments, dimensions, &code);
    Py_DECREF(dimensions);
    return taken == 1 && code == 0 ? Py_NewRef(PyTuple_GET_ITEM(form, FORM_KERNEL)) : NULL;
}

/* Launches a form, and publishes its config. */
static PyObject *launch(PyObject *shared, PyObject *form, PyObject *grid, PyObject *const *values)
{
    static PyObject *name;
    int plain = PyTuple_GET_ITEM(form, FORM_LAUNCHER) == Py_None ? 0 : has_no_hooks(PyTuple_GET_ITEM(shared, HOOKS));
    if (plain < 0 || (name == NULL && (name = PyUnicode_InternFromString("best_config")) == NULL)
        || PyObject_SetAttr(PyTuple_GET_ITEM(shared, TUNER), name, PyTuple_GET_ITEM(form, FORM_CONFIG)) < 0)
        return NULL;
    return (plain ? launch_form : launch_by_triton)(shared, form, grid, values);
}

/* A launch by the route of its key. NULL without an exception if it is unusual. */
static PyObject *launch_by_route(PyObject *shared, PyObject *key, PyObject *grid, PyObject *const *values)
{
    PyObject *route = PyDict_GetItemWithError(PyTuple_GET_ITEM(shared, ROUTES), key), *form, *result = NULL;
    if (route == NULL)
        return NULL;
    Py_INCREF(route); /* another thread may drop it */
    if (is_usual_launch(shared, route) == 1
        && (form = form_of(route, values, (int)PyLong_AsLong(PyTuple_GET_ITEM(shared, DEVICE_TYPE)))) != NULL) {
        PyObject *table = PyTuple_GET_ITEM(route, ROUTE_TABLE);
        void *record = table != Py_None && is_watched() ? begin_record(((Dispatcher *)table)->label) : NULL;
        Py_INCREF(form);
        result = launch(shared, form, grid, values);
        Py_DECREF(form);
        end_record(record);
    }
    Py_DECREF(route);
    return result;
}

/* otherwise(grid, arguments, keywords, key or None) */
static PyObject *launch_otherwise(PyObject *shared, PyObject *const *given, Py_ssize_t count, PyObject *keywords, PyObject *key)
{
    PyObject *arguments = PyTuple_New(count - 2), *named = PyDict_New(), *result = NULL;
    int failed = arguments == NULL || named == NULL;
    for (Py_ssize_t i = 2; i < count && !failed; i++)
        PyTuple_SET_ITEM(arguments, i - 2, Py_NewRef(given[i]));
    for (Py_ssize_t i = 0; keywords != NULL && i < PyTuple_GET_SIZE(keywords) && !failed; i++)
        failed = PyDict_SetItem(named, PyTuple_GET_ITEM(keywords, i), given[count + i]) < 0;
    if (!failed)
        result = PyObject_CallFunctionObjArgs(PyTuple_GET_ITEM(shared, OTHERWISE), given[1], arguments, named,
                                              key == NULL ? Py_None : key, NULL);
    Py_XDECREF(arguments);
    Py_XDECREF(named);
    return result;
}

static PyObject *launch_tuned(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *keywords)
{
    if (count < 2 || !PyTuple_Check(given[0]) || PyTuple_GET_SIZE(given[0]) != OTHERWISE + 1)
        return PyErr_Format(PyExc_TypeError, "launch_tuned takes what launches share, a grid, and the kernel's arguments");
    PyObject *shared = given[0], *key = NULL, *result = NULL;
    PyObject *values[PyTuple_GET_SIZE(PyTuple_GET_ITEM(shared, NAMES)) + 1];
    int fast = kind_functions.get_dtype != NULL && configured.tensor != NULL;
    if (fast && bind_launch(shared, given + 2, count - 2, keywords, values))
        key = key_of_launch(shared, values);
    if (key != NULL)
        result = launch_by_route(shared, key, given[1], values);
    if (result == NULL && !PyErr_Occurred())
        result = launch_otherwise(shared, given, count, keywords, key);
    Py_XDECREF(key);
    return result;
}
