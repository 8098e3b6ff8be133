/* Part of the launcher: results that the library allocates, in place of memory that a program planned for them.

   Many of the library's operators return new tensors. A Python entry that calls such an operator copies them to its outputs, or,
   by its `results`, returns them. While nothing has touched the memory planned for an output (program.c), the returned tensor
   takes its place: nothing is allocated or copied for it. Entries of other kinds, and all other calls, write to their outputs. */

enum { MOST_OUTPUTS = 8 };

/* Whether nothing has used the memory planned for a tensor: it is not allocated yet, or a part of the arena without a view. A tensor
   that reuses another's memory may be that of an argument of the same call. */
static inline int is_untouched(const Tensor *tensor)
{
    return tensor->object == NULL && tensor->handle == NULL && (tensor->planned || tensor->in_arena);
}

/* Whether this object may take the place of an untouched tensor: one of the same dtype, with as many elements, on a CPU, whose
   memory no argument has. The entry answers for the layout, and for storage that nobody else has. */
static int can_take_place(Dispatcher *self, const Tensor *tensor, PyObject *object, void *const *pointers)
{
    const Layout *layout = &tensor->layout;
    int64_t wanted = 1, count;
    int32_t dtype;
    void *data;
    for (int64_t i = 0; i < layout->rank; i++)
        wanted *= layout->sizes[i];
    if (!fast_pointer(object, self->device, &data))
        return 0;
    void *handle = (char *)object + configured.handle_offset;
    if (torch_functions.get_count(handle, &count) != 0 || count != wanted || kind_functions.get_dtype(handle, &dtype) != 0
        || dtype != layout->dtype)
        return 0;
    for (Py_ssize_t i = 0; i < self->tensors; i++)
        if (pointers[i] == data)
            return 0;
    return 1;
}

/* Gives a tensor the object's memory, in the tensor's own sizes and strides. */
static int take_place(Tensor *tensor, PyObject *object)
{
    const Layout layout = tensor->layout;
    int64_t *sizes = NULL, *strides = NULL, rank = 0;
    size_t bytes = (size_t)layout.rank * sizeof(int64_t);
    void *handle = (char *)object + configured.handle_offset, *view = NULL;
    if (torch_functions.get_rank(handle, &rank) != 0 || torch_functions.get_sizes(handle, &sizes) != 0
        || torch_functions.get_strides(handle, &strides) != 0)
        return -1;
    if (rank == layout.rank && (rank == 0 || (memcmp(sizes, layout.sizes, bytes) == 0 && memcmp(strides, layout.strides, bytes) == 0))) {
        hold(tensor, Py_NewRef(object));
        return 0;
    }
    if (torch_functions.reinterpret(handle, layout.rank, layout.sizes, layout.strides, 0, &view) != 0)
        return -1;
    release(tensor);
    *tensor = (Tensor){.handle = view, .owns_handle = 1, .device = UNREAD, .layout = layout};
    return 0;
}

/* The slot of a call whose untouched outputs have addresses of new memory; NULL if its entry returns no results, or something else
   is due. */
static Slot *slot_with_results(Dispatcher *self, void *const *pointers, const long *integers, int64_t *fields)
{
    fields_of(self, pointers, integers, fields);
    Slot *found = slot_at(self, fields, integers);
    return is_decided(found) && found->allocates && !is_due(found) ? found : NULL;
}

/* The tensors of these arguments' numbers. -1: some are not untouched. */
static int untouched(Frame *frame, PyObject *outputs, const int *tensors, int tensor_count, Tensor **places)
{
    Py_ssize_t count = PyTuple_GET_SIZE(outputs);
    if (count > MOST_OUTPUTS)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        long output = PyLong_AsLong(PyTuple_GET_ITEM(outputs, i));
        if (output < 0 || output >= tensor_count || !is_untouched(places[i] = &frame->tensors[tensors[output]]))
            return -1;
    }
    return (int)count;
}

/* Has the results take the places of the outputs. 0: one of them cannot, and nothing was done; -1 and an exception: it failed. */
static int take_places(Dispatcher *self, PyObject *results, Tensor **places, int count, void *const *pointers)
{
    PyObject *list = PySequence_Fast(results, "the results of an entry are a sequence of tensors");
    if (list == NULL)
        return -1;
    int taken = PySequence_Fast_GET_SIZE(list) == count;
    for (int i = 0; taken && i < count; i++)
        taken = can_take_place(self, places[i], PySequence_Fast_GET_ITEM(list, i), pointers);
    for (int i = 0; taken > 0 && i < count; i++)
        if (take_place(places[i], PySequence_Fast_GET_ITEM(list, i)) < 0) {
            PyErr_SetString(PyExc_RuntimeError, "torch could not lay out a result as the program does");
            taken = -1;
        }
    Py_DECREF(list);
    return taken;
}

/* Calls `results` with the arguments of a call, None in place of the outputs. */
static PyObject *results_of(Frame *frame, PyObject *results, const int *tensors, int tensor_count, Tensor **places, int outputs,
                            const int64_t *integers, int count)
{
    PyObject *objects[tensor_count + count + 1], *made = NULL;
    int given = 0, failed = 0;
    for (int i = 0; !failed && i < tensor_count; i++) {
        Tensor *tensor = &frame->tensors[tensors[i]];
        PyObject *object = Py_None;
        int is_output = 0;
        for (int k = 0; k < outputs; k++)
            is_output |= places[k] == tensor;
        if (!is_output)
            object = object_of(frame, tensor);
        objects[i] = object; /* borrowed */
        failed = object == NULL;
    }
    for (; !failed && given < count; given++)
        if ((objects[tensor_count + given] = PyLong_FromLongLong(integers[given])) == NULL) {
            failed = 1;
            break;
        }
    if (!failed && pause_record(frame) == 0)
        made = PyObject_Vectorcall(results, objects, (size_t)(tensor_count + count), NULL);
    go_on(frame);
    for (int i = 0; i < given; i++)
        Py_DECREF(objects[tensor_count + i]);
    return made;
}

/* Runs a kernel whose entry returns its results, where these can take the places of all outputs: returns 1; 0: nothing was done;
   -1 and an exception: it failed. An entry whose results cannot take them once is not asked again. */
static int call_for_results(Frame *frame, Dispatcher *self, const int *tensors, int tensor_count, const int64_t *integers, int count)
{
    void *pointers[tensor_count + 1];
    int64_t fields[self->field_count + 1];
    Tensor *places[MOST_OUTPUTS];
    if (self->device != TORCH_CPU || self->tensors != tensor_count || self->integers != count || kind_functions.get_dtype == NULL)
        return 0;
    for (int i = 0; i < tensor_count; i++) {
        Tensor *tensor = &frame->tensors[tensors[i]];
        if (!tensor->planned && !is_readable(tensor, self->device))
            return 0;
        pointers[i] = tensor->planned ? NULL : tensor->data;
    }
    Slot *found = slot_with_results(self, pointers, (const long *)integers, fields);
    if (found == NULL)
        return 0;
    PyObject *entry = Py_NewRef(found->entry);
    PyObject *outputs = PyObject_GetAttrString(entry, "outputs"), *results = PyObject_GetAttrString(entry, "results"), *made = NULL;
    int wanted = outputs == NULL || results == NULL ? -1 : untouched(frame, outputs, tensors, tensor_count, places), done = 0;
    if (wanted > 0) {
        count_call(found);
        void *record = is_watched() ? begin_record(self->label) : NULL;
        made = results_of(frame, results, tensors, tensor_count, places, wanted, integers, count);
        end_record(record);
        done = made == NULL ? -1 : take_places(self, made, places, wanted, pointers);
        found = find(self, fields); /* another thread may have changed the table meanwhile */
        if (done == 0 && found->entry == entry)
            found->allocates = 0;
    }
    Py_XDECREF(made);
    Py_XDECREF(results);
    Py_XDECREF(outputs);
    Py_DECREF(entry);
    return PyErr_Occurred() ? -1 : done;
}
