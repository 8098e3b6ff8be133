/* Last part of the launcher: the Python module. */

/* configure(slow_pointer, bad_integer, bad_count, tensor, parameter, offset, get_data_ptr, get_device_type): the last
   five describe the fast path, and are None, None, 0, 0, 0 without one. */
static PyObject *configure(PyObject *module, PyObject *arguments)
{
    PyObject *slow, *integer, *count, *tensor, *parameter;
    Py_ssize_t offset;
    unsigned long long get_data_ptr, get_device_type;
    if (!PyArg_ParseTuple(arguments, "OOOOOnKK", &slow, &integer, &count, &tensor, &parameter, &offset, &get_data_ptr,
                          &get_device_type))
        return NULL;
    int fast = tensor != Py_None;
    if (fast && (!PyType_Check(tensor) || !PyType_Check(parameter) || !get_data_ptr || !get_device_type))
        return PyErr_Format(PyExc_TypeError, "configure takes two types, an offset and two addresses");
    Py_XSETREF(configured.slow_pointer, Py_NewRef(slow));
    Py_XSETREF(configured.bad_integer, Py_NewRef(integer));
    Py_XSETREF(configured.bad_count, Py_NewRef(count));
    configured.handle_offset = offset;
    configured.get_data_ptr = (int32_t(*)(void *, void **))(uintptr_t)get_data_ptr;
    configured.get_device_type = (int32_t(*)(void *, int32_t *))(uintptr_t)get_device_type;
    configured.tensor = fast ? (PyTypeObject *)Py_NewRef(tensor) : NULL;
    configured.parameter = fast ? (PyTypeObject *)Py_NewRef(parameter) : NULL;
    Py_RETURN_NONE;
}

/* probe(argument) -> its data pointer by the fast path, or None if that path declines it. */
static PyObject *probe(PyObject *module, PyObject *argument)
{
    void *pointer;
    if (!fast_pointer(argument, TORCH_CPU, &pointer) && !fast_pointer(argument, TORCH_CUDA, &pointer))
        Py_RETURN_NONE;
    return PyLong_FromVoidPtr(pointer);
}

static PyObject *bucket_method(PyObject *module, PyObject *size)
{
    long long value = PyLong_AsLongLong(size);
    return value == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(bucket(value));
}

static PyObject *sub_bucket_method(PyObject *module, PyObject *size)
{
    long long value = PyLong_AsLongLong(size);
    return value == -1 && PyErr_Occurred() ? NULL : PyLong_FromLongLong(sub_bucket(value));
}

/* time_burst(name, entry, arguments, tensors, repeats, device type) -> (seconds, code of the first call that failed, or 0) */
static PyObject *time_burst(PyObject *module, PyObject *parsed)
{
    PyObject *name, *entry, *tuple;
    Py_ssize_t tensors, repeats;
    int device;
    if (!PyArg_ParseTuple(parsed, "UOO!nni", &name, &entry, &PyTuple_Type, &tuple, &tensors, &repeats, &device))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    if (tensors < 0 || tensors > count || count > MAX_ARGUMENTS)
        return PyErr_Format(PyExc_ValueError, "time_burst: %zd of %zd arguments cannot be tensors", tensors, count);
    PyObject *const *arguments = ((PyTupleObject *)tuple)->ob_item;
    void *pointers[tensors + 1];
    long integers[count - tensors + 1], code = 0;
    for (Py_ssize_t i = 0; i < tensors; i++)
        if (pointer_of(name, i, arguments[i], device, &pointers[i]) < 0)
            return NULL;
    for (Py_ssize_t i = tensors; i < count; i++)
        if (integer_of(name, i, arguments[i], &integers[i - tensors]) < 0)
            return NULL;
    Slot slot;
    if (slot_of(entry, &slot) < 0)
        return NULL;
    double begin = now(), end;
    int raised = 0;
    if (slot.kernel != NULL) {
        Py_BEGIN_ALLOW_THREADS
        begin = now();
        for (Py_ssize_t i = 0; i < repeats && code == 0; i++)
            code = slot.kernel(pointers, integers, slot.threads);
        Py_END_ALLOW_THREADS
    }
    if (slot.kernel == NULL || (code == DECLINED && slot.call != NULL)) {
        code = 0;
        for (Py_ssize_t i = 0; i < repeats && !raised; i++) {
            PyObject *result = PyObject_Vectorcall(slot.call, arguments, (size_t)count, NULL);
            raised = result == NULL;
            Py_XDECREF(result);
        }
    }
    end = now();
    Py_DECREF(slot.entry);
    Py_XDECREF(slot.call);
    return raised ? NULL : Py_BuildValue("dl", end - begin, code);
}

/* From the OpenMP runtime that torch loads; NULL without one. */
extern void GOMP_parallel(void (*work)(void *), void *data, unsigned threads, unsigned flags) __attribute__((weak));

static void nothing(void *data)
{
    (void)data;
}

/* region_seconds(threads) -> seconds of an empty parallel region, the minimum over some groups of them, since the
   threads are asleep in the first; None without OpenMP, or while another program occupies a core. Takes 0.1 ms. */
static PyObject *region_seconds(PyObject *module, PyObject *parsed)
{
    enum { GROUPS = 12, REGIONS = 8 };
    unsigned threads;
    if (!PyArg_ParseTuple(parsed, "I", &threads))
        return NULL;
    if (GOMP_parallel == NULL)
        Py_RETURN_NONE;
    double least = 0.0, begin = now(), end = begin, limit = begin + 3e-3;
    Py_BEGIN_ALLOW_THREADS
    for (int group = 0; group < GROUPS && end < limit; group++) {
        begin = end;
        int i = 0;
        for (; i < REGIONS && end < limit; i++) {
            GOMP_parallel(nothing, NULL, threads, 0);
            end = now();
        }
        double seconds = (end - begin) / REGIONS;
        if (group > 0 && i == REGIONS && (least == 0.0 || seconds < least))
            least = seconds;
    }
    Py_END_ALLOW_THREADS
    if (least == 0.0)
        Py_RETURN_NONE;
    return PyFloat_FromDouble(least);
}

/* configure_functions(group, *addresses): the functions of torch and of the driver that a part of the launcher calls, in the order
   of its members */
static PyObject *configure_functions(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    static const struct {
        const char *name;
        void *functions;
        size_t bytes;
    } groups[] = {
        {"events", &events, sizeof events},
        {"kinds", &kind_functions, sizeof kind_functions},
        {"pairs", &memory, sizeof memory},
        {"records", &records, sizeof records},
    };
    const char *name = count == 0 ? NULL : PyUnicode_AsUTF8(given[0]);
    for (size_t i = 0; name != NULL && i < sizeof groups / sizeof *groups; i++) {
        if (strcmp(name, groups[i].name) != 0 || (size_t)(count - 1) * sizeof(void *) != groups[i].bytes)
            continue;
        for (Py_ssize_t k = 1; k < count; k++)
            ((void **)groups[i].functions)[k - 1] = PyLong_AsVoidPtr(given[k]);
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    }
    return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "configure_functions takes a group and the address of each member");
}

/* decide_here(whether): makes kernels that this thread calls decide during the call. Returns the previous setting. */
static PyObject *decide_here(PyObject *module, PyObject *whether)
{
    int before = decides_here;
    decides_here = PyObject_IsTrue(whether);
    return PyBool_FromLong(before);
}

/* leave_core(threads): kernels on at least this many threads leave one core to others from now on; 0: never. */
static PyObject *leave_core(PyObject *module, PyObject *threads)
{
    long from = PyLong_AsLong(threads);
    if (from == -1 && PyErr_Occurred())
        return NULL;
    crowded = from;
    Py_RETURN_NONE;
}

/* place_memories([(first, last, inside, bytes), ...]): where the memories of a program would lie in its arena, as (its bytes, 0
   for none; the offset of each, -1 for those outside). */
static PyObject *place_memories(PyObject *module, PyObject *memories)
{
    Py_ssize_t count = PyObject_Size(memories);
    if (count < 0 || !PyList_Check(memories))
        return PyErr_Format(PyExc_TypeError, "place_memories takes a list");
    Life *lives = calloc((size_t)count + 1, sizeof(Life));
    int64_t *bytes = calloc(2 * (size_t)count + 1, sizeof(int64_t));
    PyObject *offsets = PyList_New(count), *result = NULL;
    if (lives == NULL || bytes == NULL || offsets == NULL)
        goto done;
    for (Py_ssize_t i = 0; i < count; i++) {
        long long size;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(memories, i), "iipL", &lives[i].first, &lives[i].last, &lives[i].inside, &size))
            goto done;
        bytes[i] = size;
    }
    ArenaPlan plan = {.bytes = bytes, .offsets = bytes + count};
    place_all(&plan, lives, (int)count);
    for (Py_ssize_t i = 0; i < count; i++)
        PyList_SET_ITEM(offsets, i, PyLong_FromLongLong(plan.offsets[i]));
    result = Py_BuildValue("(LO)", (long long)plan.total, offsets);
done:
    free(lives);
    free(bytes);
    Py_XDECREF(offsets);
    return result != NULL || PyErr_Occurred() ? result : PyErr_NoMemory();
}

static PyMethodDef module_methods[] = {
    {"place_memories", place_memories, METH_O, NULL},
    {"leave_core", leave_core, METH_O, NULL},
    {"decide_here", decide_here, METH_O, NULL},
    {"configure_functions", (PyCFunction)(void (*)(void))configure_functions, METH_FASTCALL, NULL},
    {"configure", configure, METH_VARARGS, NULL},
    {"launch_triton", (PyCFunction)(void (*)(void))launch_triton, METH_FASTCALL, NULL},
    {"launch_tuned", (PyCFunction)(void (*)(void))launch_tuned, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"configure_graphs", configure_graphs, METH_VARARGS, NULL},
    {"new_pair", new_pair, METH_VARARGS, NULL},
    {"probe", probe, METH_O, NULL},
    {"bucket", bucket_method, METH_O, NULL},
    {"sub_bucket", sub_bucket_method, METH_O, NULL},
    {"time_burst", time_burst, METH_VARARGS, NULL},
    {"region_seconds", region_seconds, METH_VARARGS, NULL},
    {"configure_weights", configure_weights, METH_VARARGS, NULL},
    {"configure_programs", configure_programs, METH_VARARGS, NULL},
    {"try_programs", try_programs, METH_NOARGS, NULL},
    {"shorten", shorten, METH_O, NULL},
    {"size_of", (PyCFunction)(void (*)(void))size_of, METH_FASTCALL, NULL},
    {"do_nothing", (PyCFunction)(void (*)(void))do_nothing, METH_FASTCALL, NULL},
    {"type_version", type_version, METH_O, NULL},
    {"configure_entries", configure_entries, METH_VARARGS, NULL},
    {"weighs", weighs, METH_NOARGS, NULL},
    {"state_of", state_of, METH_O, NULL},
    {"sample", sample_method, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT, .m_name = "polytile_launcher", .m_size = -1, .m_methods = module_methods,
};

/* Adds a vectorcall type that takes part in garbage collection; it may have no methods and no properties. */
static int add_type(PyObject *module, const char *name, size_t size, newfunc make, traverseproc traverse, inquiry clear,
                    destructor dealloc, PyMemberDef *members, PyMethodDef *methods, PyGetSetDef *properties)
{
    PyType_Slot slots[9] = {
        {Py_tp_new, make}, {Py_tp_call, PyVectorcall_Call}, {Py_tp_traverse, traverse}, {Py_tp_clear, clear},
        {Py_tp_dealloc, dealloc}, {Py_tp_members, members},
    };
    PyType_Slot *slot = slots + 6;
    if (methods != NULL)
        *slot++ = (PyType_Slot){Py_tp_methods, methods};
    if (properties != NULL)
        *slot++ = (PyType_Slot){Py_tp_getset, properties};
    unsigned flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL;
    PyObject *type = PyType_FromSpec(&(PyType_Spec){name, (int)size, 0, flags, slots});
    if (type != NULL && PyModule_AddObject(module, strrchr(name, '.') + 1, type) == 0)
        return 0;
    Py_XDECREF(type);
    return -1;
}

#define ADD_TYPE(Type, prefix, methods, properties) \
    add_type(module, "polytile_launcher." #Type, sizeof(Type), prefix##_new, prefix##_traverse, prefix##_clear, prefix##_dealloc, \
             prefix##_members, methods, properties)

PyMODINIT_FUNC PyInit_polytile_launcher(void)
{
    PyObject *module = PyModule_Create(&module_definition);
    if (module != NULL
        && (ADD_TYPE(Dispatcher, dispatcher, dispatcher_methods, NULL) < 0 || ADD_TYPE(Keeper, keeper, keeper_methods, NULL) < 0
            || ADD_TYPE(Program, program, program_methods, NULL) < 0 || ADD_TYPE(Entry, entry, entry_methods, entry_properties) < 0
            || ADD_TYPE(Graph, graph, NULL, NULL) < 0 || ADD_TYPE(Memo, memo, NULL, memo_properties) < 0))
        Py_CLEAR(module);
    return module;
}
