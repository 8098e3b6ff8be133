/* The dispatch table in C: from a Python call to a compiled kernel in about a tenth of a microsecond.

   A Dispatcher is called with tensors first and integers after them. It extracts the data pointers and the integers
   from their Python objects, packs what matters of them into a key of 64-bit fields (see regime.py), looks the key up
   in a hash table and calls the entry: a native kernel, without the GIL, or a Python callable. Misses, arguments that
   are not plain tensors on the right device, and all errors go to Python functions passed in by launcher.py.

   No torch header is used. The at::Tensor inside a tensor's Python object is at an offset that native.py finds and
   tests when it loads this module; its address is the handle that torch's stable C functions (aoti_torch_*) take. */

enum { MAX_ARGUMENTS = 4096, TORCH_CPU = 0, TORCH_CUDA = 1 };

/* Set once by configure(). Without a fast path `tensor` is NULL, which no type equals. */
static struct {
    PyTypeObject *tensor, *parameter;
    Py_ssize_t handle_offset;
    int32_t (*get_data_ptr)(void *handle, void **pointer);
    int32_t (*get_device_type)(void *handle, int32_t *type);
    PyObject *slow_pointer; /* (kernel name, position, argument, device type) -> address, or raises */
    PyObject *bad_integer;  /* (kernel name, position, argument) raises */
    PyObject *bad_count;    /* (kernel name, tensors or -1, integers, given) raises */
} configured;

/* ---- arguments ---- */

static int fast_pointer(PyObject *argument, int wanted, void **pointer)
{
    PyTypeObject *type = Py_TYPE(argument);
    if (type != configured.tensor && type != configured.parameter)
        return 0;
    void *handle = (char *)argument + configured.handle_offset;
    int32_t device;
    return configured.get_device_type(handle, &device) == 0 && device == wanted
           && configured.get_data_ptr(handle, pointer) == 0 && *pointer != NULL;
}

static int slow_pointer(PyObject *name, Py_ssize_t position, PyObject *argument, int wanted, void **pointer)
{
    PyObject *address = PyObject_CallFunction(configured.slow_pointer, "OnOi", name, position, argument, wanted);
    if (address == NULL)
        return -1;
    *pointer = PyLong_AsVoidPtr(address);
    Py_DECREF(address);
    return *pointer == NULL && PyErr_Occurred() ? -1 : 0;
}

/* Data pointer of a tensor; NULL for None and for an empty tensor. -1 and an exception on failure. */
static inline int pointer_of(PyObject *name, Py_ssize_t position, PyObject *argument, int wanted, void **pointer)
{
    if (fast_pointer(argument, wanted, pointer))
        return 0;
    if (argument == Py_None) {
        *pointer = NULL;
        return 0;
    }
    return slow_pointer(name, position, argument, wanted, pointer);
}

static inline int integer_of(PyObject *name, Py_ssize_t position, PyObject *argument, long *integer)
{
    *integer = PyLong_AsLong(argument);
    if (*integer != -1 || !PyErr_Occurred())
        return 0;
    if (PyErr_ExceptionMatches(PyExc_TypeError) || PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyObject *none = PyObject_CallFunction(configured.bad_integer, "OnO", name, position, argument);
        Py_XDECREF(none);
        if (none != NULL)
            PyErr_SetString(PyExc_TypeError, "not an integer");
    }
    return -1;
}

/* ---- the call ---- */

static PyObject *report(Dispatcher *self, long code)
{
    PyObject *none = PyObject_CallFunction(self->on_error, "l", code);
    if (none != NULL) {
        Py_DECREF(none);
        PyErr_Format(PyExc_IndexError, "kernel %R: run-time check %ld failed", self->name, code);
    }
    return NULL;
}

/* A kernel's `threads` argument. A kernel with a plan gets the plan's address instead. */
static inline long threads_for(const Slot *slot)
{
    enum { MOST_THREADS = 4096 };
    return slot->threads - (crowded > 1 && slot->threads >= crowded && slot->threads <= MOST_THREADS);
}

/* Runs an entry: its native kernel, or its Python callable if it has no kernel or the kernel declines the call. */
static PyObject *run(Dispatcher *self, Slot slot, PyObject *const *arguments, Py_ssize_t count, void *const *pointers,
                     const long *integers)
{
    if (slot.kernel != NULL) {
        long code, threads = threads_for(&slot);
        Py_BEGIN_ALLOW_THREADS
        code = slot.kernel(pointers, integers, threads);
        Py_END_ALLOW_THREADS
        if (code == 0)
            Py_RETURN_NONE;
        if (code != DECLINED || slot.call == NULL)
            return report(self, code);
    }
    PyObject *result = PyObject_Vectorcall(slot.call, arguments, (size_t)count, NULL);
    if (result == NULL)
        return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *miss(Dispatcher *self, const int64_t *fields, PyObject *const *arguments, Py_ssize_t count,
                      void *const *pointers, const long *integers)
{
    PyObject *key = packed(fields, self->field_count), *tuple = PyTuple_New(count), *entry = NULL, *result = NULL;
    if (key != NULL && tuple != NULL) {
        for (Py_ssize_t i = 0; i < count; i++)
            PyTuple_SET_ITEM(tuple, i, Py_NewRef(arguments[i]));
        entry = PyObject_CallFunctionObjArgs(self->on_miss, self, key, tuple, NULL);
    }
    Py_XDECREF(key);
    Py_XDECREF(tuple);
    Slot slot;
    if (entry != NULL && slot_of(entry, &slot) == 0) {
        result = run(self, slot, arguments, count, pointers, integers);
        Py_DECREF(slot.entry);
        Py_XDECREF(slot.call);
    }
    Py_XDECREF(entry);
    return result;
}

static PyObject *bad_count(Dispatcher *self, Py_ssize_t given)
{
    PyObject *none =
        PyObject_CallFunction(configured.bad_count, "Onnn", self->name, self->tensors, self->integers, given);
    if (none != NULL) {
        Py_DECREF(none);
        PyErr_SetString(PyExc_TypeError, "wrong number of arguments");
    }
    return NULL;
}

/* The number of tensors is that of the tensor key, or else that of the first successful call. */
static inline int accepts(Dispatcher *self, Py_ssize_t tensors)
{
    if (self->tensors >= 0)
        return tensors == self->tensors;
    return tensors >= 0 && tensors + self->integers <= MAX_ARGUMENTS;
}

static inline int64_t *append_tensor_fields(Dispatcher *self, void *const *pointers, int64_t *fields)
{
    for (Py_ssize_t i = 0; self->tensor_codes != NULL && i < self->tensors; i++)
        if (self->tensor_codes[i] != ANY)
            *fields++ = tensor_field(self->tensor_codes[i], (uintptr_t)pointers[i]);
    return fields;
}

static inline void append_formula_fields(Dispatcher *self, const long *integers, int64_t *fields)
{
    for (Py_ssize_t i = 0; i < self->formula_count; i++)
        *fields++ = formula((const int64_t *)PyBytes_AS_STRING(PyTuple_GET_ITEM(self->formulas, i)), integers);
}

/* The regime fields of a call. */
static inline void fields_of(Dispatcher *self, void *const *pointers, const long *integers, int64_t *fields)
{
    int64_t *next = fields;
    for (Py_ssize_t i = 0; i < self->integers; i++)
        next = append_integer_field(next, self->codes[i], integers[i]);
    append_formula_fields(self, integers, append_tensor_fields(self, pointers, next));
}

/* The slot of a call's exact sizes, whose fields are then written to `fields`; NULL if they have none. */
static Slot *exact_slot(Dispatcher *self, int64_t *fields, const long *integers)
{
    int64_t own[self->field_count + 1];
    memcpy(own, fields, (size_t)self->field_count * sizeof(int64_t));
    for (Py_ssize_t i = 0, field = 0; i < self->integers; field += self->codes[i++] != IGNORE)
        if (self->codes[i] == BUCKET)
            own[field] = exact_size(integers[i]);
    Slot *slot = find(self, own);
    if (slot->entry == NULL)
        return NULL;
    memcpy(fields, own, (size_t)self->field_count * sizeof(int64_t));
    return slot;
}

static inline Slot *sub_bucket_slot(Dispatcher *self, int64_t *fields, const long *integers)
{
    for (Py_ssize_t i = 0, field = 0; i < self->integers; field += self->codes[i++] != IGNORE)
        if (self->codes[i] == BUCKET)
            fields[field] = sub_bucket(integers[i]);
    return find(self, fields);
}

/* The slot of a call. Writes the fields of its exact sizes to `fields` if these have a slot, else those of its
   sub-buckets if the regime is subdivided. */
static inline Slot *slot_at(Dispatcher *self, int64_t *fields, const long *integers)
{
    Slot *slot = find(self, fields), *own;
    if (slot->has_exact_sizes && (own = exact_slot(self, fields, integers)) != NULL)
        return own;
    return slot->entry == Py_None ? sub_bucket_slot(self, fields, integers) : slot;
}

/* If `fields` are those of exact sizes, makes calls of their regime look for them. */
static void mark_exact_sizes(Dispatcher *self, const int64_t *fields)
{
    int64_t buckets[self->field_count + 1];
    int found = 0;
    memcpy(buckets, fields, (size_t)self->field_count * sizeof(int64_t));
    for (Py_ssize_t i = 0, field = 0; i < self->integers; field += self->codes[i++] != IGNORE)
        if (self->codes[i] == BUCKET && fields[field] >= EXACT_SIZE) {
            buckets[field] = bucket(fields[field] & ~EXACT_SIZE);
            found = 1;
        }
    Slot *slot = found ? find(self, buckets) : NULL;
    if (slot != NULL && slot->entry != NULL)
        slot->has_exact_sizes = 1;
}

/* Runs a call whose `fields` have no decision: by the decision for the surrounding regime, else by a leaf, else as
   `on_miss` decides. */
static PyObject *run_undecided(Dispatcher *self, const int64_t *fields, PyObject *const *arguments, Py_ssize_t count,
                               void *const *pointers, const long *integers)
{
    if (self->leaves == NULL || decides_here)
        return miss(self, fields, arguments, count, pointers, integers);
    int64_t around[self->field_count + 1];
    fields_of(self, pointers, integers, around);
    const Slot *found = find(self, around);
    if (found->entry == Py_None)
        found = sub_bucket_slot(self, around, integers);
    if (!is_decided(found) && (found = leaf_of(self, fields, integers, pointers)) == NULL)
        return miss(self, fields, arguments, count, pointers, integers);
    Slot slot = *found;
    Py_INCREF(slot.entry);
    Py_XINCREF(slot.call);
    PyObject *result = NULL;
    if (!is_news(self, fields) || note(self, fields, integers, pointers) == 0)
        result = run(self, slot, arguments, count, pointers, integers);
    Py_DECREF(slot.entry);
    Py_XDECREF(slot.call);
    return result;
}

/* Reports a call that was waited for. -1 and an exception if that raises. */
static int due(Dispatcher *self, const int64_t *fields, PyObject *const *arguments, Py_ssize_t count, void *const *pointers,
               const long *integers)
{
    if (self->leaves != NULL)
        return note(self, fields, integers, pointers);
    PyObject *tuple = PyTuple_New(count), *none = NULL;
    for (Py_ssize_t i = 0; tuple != NULL && i < count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(arguments[i]));
    if (tuple != NULL)
        none = PyObject_CallFunctionObjArgs(self->on_due, tuple, NULL);
    Py_XDECREF(tuple);
    Py_XDECREF(none);
    return none == NULL ? -1 : 0;
}

/* Starts the clock of a sample. -1 if a GPU cannot be timed now. */
static int start_clock(Dispatcher *self, Trial *trial, Sample *sample, void **stream)
{
    int status = 0;
    sample->seconds = now();
    if (self->device != TORCH_CUDA)
        return 0;
    if (events.create == NULL || events.current_stream(trial->device, stream) != 0
        || events.capturing(*stream, &status) != 0 || status != 0 || events.create(&sample->begin, 0) != 0)
        return -1;
    if (events.create(&sample->end, 0) == 0 && events.record(sample->begin, *stream) == 0)
        return 0;
    drop_events(sample);
    return -1;
}

static void stop_clock(Dispatcher *self, Sample *sample, void *stream)
{
    sample->seconds = now() - sample->seconds;
    if (self->device == TORCH_CUDA)
        events.record(sample->end, stream);
}

/* Runs and times a contender or the serving entry. If a contender fails, the serving entry runs the call; if that
   succeeds, the sample's seconds are NaN. */
static PyObject *run_on_trial(Dispatcher *self, const int64_t *fields, int contender, PyObject *const *arguments,
                              Py_ssize_t count, void *const *pointers, const long *integers)
{
    Slot *found = find(self, fields), serving = *found;
    Trial *trial = found->trial;
    long number = trial->number;
    Slot slot = contender > 0 ? trial->contenders[contender] : serving;
    Sample sample = {.contender = contender};
    void *stream = NULL;
    PyObject *keep[] = {slot.entry, slot.call, serving.entry, serving.call};
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
        Py_XINCREF(keep[i]);

    int timed = start_clock(self, trial, &sample, &stream) == 0;
    PyObject *result = run(self, timed ? slot : serving, arguments, count, pointers, integers);
    if (timed && result != NULL)
        stop_clock(self, &sample, stream);
    found = find(self, fields); /* another thread may have changed the table meanwhile */
    int same = found->trial == trial && trial->number == number;
    int kept = timed && result != NULL && same;
    if (timed && !kept)
        drop_events(&sample);
    if (timed && result == NULL && contender > 0) {
        PyErr_Clear();
        result = run(self, serving, arguments, count, pointers, integers);
        found = find(self, fields);
        kept = result != NULL && found->trial == trial && trial->number == number;
        sample = (Sample){.contender = contender, .seconds = __builtin_nan("")};
        if (kept)
            trial->open[contender] = 1; /* no further sample is wanted after this one */
    }
    if (kept && take(trial, sample, integers, self->integers) && due(self, fields, arguments, count, pointers, integers) < 0)
        Py_CLEAR(result);
    for (size_t i = 0; i < sizeof keep / sizeof *keep; i++)
        Py_XDECREF(keep[i]);
    return result;
}

static PyObject *dispatch_call(Dispatcher *self, PyObject *const *arguments, size_t flagged, PyObject *keywords)
{
    Py_ssize_t count = PyVectorcall_NARGS(flagged), tensors = count - self->integers;
    if (keywords != NULL && PyTuple_GET_SIZE(keywords) > 0)
        return PyErr_Format(PyExc_TypeError, "kernel %R takes no keyword arguments", self->name);
    if (!accepts(self, tensors))
        return bad_count(self, count);

    void *pointers[tensors + 1];
    long integers[self->integers + 1];
    int64_t fields[self->field_count + 1], *next = fields;
    for (Py_ssize_t i = 0; i < tensors; i++)
        if (pointer_of(self->name, i, arguments[i], self->device, &pointers[i]) < 0)
            return NULL;
    for (Py_ssize_t i = 0; i < self->integers; i++) {
        if (integer_of(self->name, tensors + i, arguments[tensors + i], &integers[i]) < 0)
            return NULL;
        next = append_integer_field(next, self->codes[i], integers[i]);
    }
    append_formula_fields(self, integers, append_tensor_fields(self, pointers, next));

    PyObject *result;
    int contender;
    Slot *found = slot_at(self, fields, integers);
    if (found->left > 0 && --found->left == 0) {
        if (due(self, fields, arguments, count, pointers, integers) < 0)
            return NULL;
        fields_of(self, pointers, integers, fields);
        found = slot_at(self, fields, integers);
    }
    found->calls += found->entry != NULL;
    Slot slot = *found;
    if (!is_decided(&slot)) {
        result = run_undecided(self, fields, arguments, count, pointers, integers);
    } else if (slot.trial != NULL && crowded == 0 && (contender = turn_of(slot.trial)) >= 0) {
        result = run_on_trial(self, fields, contender, arguments, count, pointers, integers);
    } else { /* own references: another thread may clear the table while the kernel runs */
        Py_INCREF(slot.entry);
        Py_XINCREF(slot.call);
        result = run(self, slot, arguments, count, pointers, integers);
        Py_DECREF(slot.entry);
        Py_XDECREF(slot.call);
    }
    if (self->tensors < 0 && result != NULL)
        self->tensors = tensors;
    return result;
}

static PyObject *dispatch(PyObject *object, PyObject *const *arguments, size_t flagged, PyObject *keywords)
{
    Dispatcher *self = (Dispatcher *)object;
    if (!is_watched())
        return dispatch_call(self, arguments, flagged, keywords);
    void *record = begin_record(self->label);
    PyObject *result = dispatch_call(self, arguments, flagged, keywords);
    end_record(record);
    return result;
}

/* ---- methods ---- */

/* watch(key, calls) */
static PyObject *dispatcher_watch(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Dispatcher *self = (Dispatcher *)object;
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "watch takes a key and a number of calls, not %zd arguments", count);
    long calls = PyLong_AsLong(arguments[1]);
    Slot *slot = calls == -1 && PyErr_Occurred() ? NULL : slot_of_key(self, arguments[0]);
    if (slot == NULL)
        return NULL;
    if (is_decided(slot) && self->on_due != Py_None)
        slot->left = calls < 0 ? 0 : calls > INT_MAX ? INT_MAX : (int)calls;
    Py_RETURN_NONE;
}

/* Puts `content` into the slot of a key and takes over its references. -1 and an exception on failure. */
static int put(Dispatcher *self, PyObject *key, Slot content)
{
    Slot old = content;
    PyObject *bytes = unpacked(self, key);
    int done = bytes != NULL && (3 * (self->used + 1) <= 2 * self->capacity || grow(self) == 0);
    if (done) {
        const int64_t *fields = (const int64_t *)PyBytes_AS_STRING(bytes);
        Slot *slot = find(self, fields);
        old = *slot;
        self->used += old.entry == NULL;
        self->allocates |= content.allocates;
        content.calls = old.calls;
        content.left = old.left;
        content.has_exact_sizes = old.has_exact_sizes;
        place(self, slot, fields, content);
        mark_exact_sizes(self, fields);
    }
    Py_XDECREF(bytes);
    Py_XDECREF(old.entry);
    Py_XDECREF(old.call);
    end_trial(old.trial);
    return done ? 0 : -1;
}

/* insert(key, entry); insert(key, None) subdivides the regime */
static PyObject *dispatcher_insert(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "insert takes a key and an entry, not %zd arguments", count);
    Slot content = {.entry = Py_None};
    if (arguments[1] == Py_None)
        Py_INCREF(Py_None);
    else if (slot_of(arguments[1], &content) < 0)
        return NULL;
    if (put((Dispatcher *)object, arguments[0], content) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *dispatcher_reopen(PyObject *object, PyObject *key)
{
    if (put((Dispatcher *)object, key, (Slot){.entry = Py_NewRef(Py_Ellipsis)}) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *dispatcher_is_open(PyObject *object, PyObject *key)
{
    const Slot *slot = slot_of_key((Dispatcher *)object, key);
    return slot == NULL ? NULL : PyBool_FromLong(slot->entry == Py_Ellipsis);
}

/* fall_back(leaves, orders, wake): leaves are (entry, facts as bytes) */
static PyObject *dispatcher_fall_back(PyObject *object, PyObject *parsed)
{
    Dispatcher *self = (Dispatcher *)object;
    PyObject *given, *orders, *wake;
    if (!PyArg_ParseTuple(parsed, "O!O!O", &PyTuple_Type, &given, &PyDict_Type, &orders, &wake))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(given), made = 0;
    Leaf *leaves = PyMem_Calloc((size_t)count + 1, sizeof(Leaf));
    if (leaves == NULL)
        return PyErr_NoMemory();
    for (; made < count; made++) {
        PyObject *entry, *facts;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, made), "OS", &entry, &facts) || slot_of(entry, &leaves[made].slot) < 0)
            break;
        leaves[made].facts = Py_NewRef(facts);
    }
    if (made < count) {
        free_leaves(leaves, made);
        return NULL;
    }
    Leaf *before = self->leaves;
    Py_ssize_t old = self->leaf_count;
    self->leaves = leaves;
    self->leaf_count = count;
    Py_XSETREF(self->orders, Py_NewRef(orders));
    Py_XSETREF(self->wake, Py_NewRef(wake));
    free_leaves(before, old);
    Py_RETURN_NONE;
}

/* notes() -> [(key, integers, addresses, files of the calling programs)]; clears the list */
static PyObject *dispatcher_notes(PyObject *object, PyObject *unused)
{
    Dispatcher *self = (Dispatcher *)object;
    PyObject *empty_list = PyList_New(0), *notes = self->notes;
    if (empty_list == NULL)
        return NULL;
    self->notes = empty_list;
    return notes;
}

static PyObject *dispatcher_get(PyObject *object, PyObject *key)
{
    const Slot *slot = slot_of_key((Dispatcher *)object, key);
    return slot == NULL ? NULL : Py_NewRef(is_decided(slot) ? slot->entry : Py_None);
}

/* begin_trial(key, entries, samples of each, period, device): entries are contenders 1, 2, ... for `key` */
static PyObject *dispatcher_begin_trial(PyObject *object, PyObject *parsed)
{
    static long number;
    Dispatcher *self = (Dispatcher *)object;
    PyObject *key, *entries;
    int wanted, device;
    long period;
    if (!PyArg_ParseTuple(parsed, "OO!ili", &key, &PyTuple_Type, &entries, &wanted, &period, &device))
        return NULL;
    Py_ssize_t count = PyTuple_GET_SIZE(entries);
    if (count < 1 || count >= MOST_CONTENDERS || wanted < 1 || period < 2)
        return PyErr_Format(PyExc_ValueError, "a trial takes 1 to %d entries, 1 sample of each or more, and a period of 2 or more",
                            MOST_CONTENDERS - 1);
    Trial *trial = new_trial((size_t)self->integers);
    if (trial == NULL)
        return PyErr_NoMemory();
    trial->period = period;
    trial->number = ++number;
    trial->device = device;
    for (Py_ssize_t i = 0; i <= count; i++)
        trial->open[i] = wanted;
    for (trial->count = 1; trial->count <= count; trial->count++)
        if (slot_of(PyTuple_GET_ITEM(entries, trial->count - 1), &trial->contenders[trial->count]) < 0)
            break;
    Slot *slot = trial->count > count ? slot_of_key(self, key) : NULL;
    int possible = slot != NULL && is_decided(slot);
    Trial *unused = possible ? slot->trial : trial;
    if (possible)
        slot->trial = trial;
    end_trial(unused);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(possible);
}

static Trial *trial_of(Dispatcher *self, PyObject *key)
{
    const Slot *slot = slot_of_key(self, key);
    if (slot != NULL && slot->trial == NULL)
        PyErr_Format(PyExc_LookupError, "kernel %R has no trial for this key", self->name);
    return slot == NULL ? NULL : slot->trial;
}

/* samples(key) -> [(contender, seconds, integers)] of the finished samples; clears them */
static PyObject *dispatcher_samples(PyObject *object, PyObject *key)
{
    Dispatcher *self = (Dispatcher *)object;
    Trial *trial = trial_of(self, key);
    PyObject *list = trial == NULL ? NULL : PyList_New(0);
    size_t size = (size_t)self->integers;
    int left = 0;
    for (int i = 0; list != NULL && i < trial->samples; i++) {
        Sample sample = trial->sample[i];
        long *integers = &trial->integers[(size_t)i * size];
        if (!read_events(&sample)) {
            trial->sample[left] = sample;
            memmove(&trial->integers[(size_t)left++ * size], integers, size * sizeof(long));
            continue;
        }
        PyObject *item = Py_BuildValue("idN", sample.contender, sample.seconds, tuple_of(integers, self->integers));
        if (item == NULL || PyList_Append(list, item) < 0)
            Py_CLEAR(list);
        Py_XDECREF(item);
    }
    if (list != NULL)
        trial->samples = left;
    return list;
}

/* go_on(key, samples still wanted of each contender, period) */
static PyObject *dispatcher_go_on(PyObject *object, PyObject *parsed)
{
    PyObject *key, *wanted;
    long period;
    if (!PyArg_ParseTuple(parsed, "OO!l", &key, &PyTuple_Type, &wanted, &period))
        return NULL;
    Trial *trial = trial_of((Dispatcher *)object, key);
    if (trial == NULL)
        return NULL;
    for (int i = 0; i < trial->count && i < PyTuple_GET_SIZE(wanted); i++)
        trial->open[i] = (int)PyLong_AsLong(PyTuple_GET_ITEM(wanted, i));
    if (PyErr_Occurred())
        return NULL;
    trial->period = period < 2 ? 2 : period;
    Py_RETURN_NONE;
}

static PyObject *dispatcher_end_trial(PyObject *object, PyObject *key)
{
    Slot *slot = slot_of_key((Dispatcher *)object, key);
    if (slot == NULL)
        return NULL;
    Trial *trial = slot->trial;
    slot->trial = NULL;
    end_trial(trial);
    Py_RETURN_NONE;
}

static PyObject *dispatcher_calls(PyObject *object, PyObject *key)
{
    const Slot *slot = slot_of_key((Dispatcher *)object, key);
    return slot == NULL ? NULL : PyLong_FromUnsignedLongLong(slot->calls);
}

static PyObject *dispatcher_table(PyObject *object, PyObject *unused)
{
    Dispatcher *self = (Dispatcher *)object;
    PyObject *table = PyDict_New();
    for (size_t i = 0; table != NULL && i < self->capacity; i++) {
        if (!is_decided(&self->slots[i]))
            continue;
        PyObject *key = packed(&self->fields[i * (size_t)self->field_count], self->field_count);
        if (key == NULL || PyDict_SetItem(table, key, self->slots[i].entry) < 0)
            Py_CLEAR(table);
        Py_XDECREF(key);
    }
    return table;
}

static PyObject *dispatcher_empty(PyObject *object, PyObject *unused)
{
    if (empty((Dispatcher *)object) < 0)
        return NULL;
    Py_RETURN_NONE;
}

/* key_of(*integers) counts every tensor as aligned; key_of(*tensors, *integers) checks them. */
static PyObject *dispatcher_key_of(PyObject *object, PyObject *const *arguments, Py_ssize_t count)
{
    Dispatcher *self = (Dispatcher *)object;
    Py_ssize_t tensors = count - self->integers;
    if (tensors != 0 && !accepts(self, tensors))
        return bad_count(self, count);
    Py_ssize_t known = self->tensors > tensors ? self->tensors : tensors;
    void *pointers[known + 1];
    int64_t fields[self->field_count + 1];
    memset(pointers, 0, sizeof pointers);
    for (Py_ssize_t i = 0; i < tensors; i++)
        if (pointer_of(self->name, i, arguments[i], self->device, &pointers[i]) < 0)
            return NULL;
    long integers[self->integers + 1];
    for (Py_ssize_t i = 0; i < self->integers; i++)
        if (integer_of(self->name, tensors + i, arguments[tensors + i], &integers[i]) < 0)
            return NULL;
    fields_of(self, pointers, integers, fields);
    slot_at(self, fields, integers);
    return packed(fields, self->field_count);
}

/* Copies a tuple of codes 0..most into a new array; counts those that are not 0. */
static unsigned char *codes_of(PyObject *tuple, long most, Py_ssize_t *fields)
{
    Py_ssize_t count = PyTuple_GET_SIZE(tuple);
    unsigned char *codes = PyMem_Calloc((size_t)count + 1, 1);
    if (codes == NULL)
        PyErr_NoMemory();
    for (Py_ssize_t i = 0; codes != NULL && i < count; i++) {
        long code = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (code < 0 || code > most) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "key code %ld at position %zd is not in 0..%ld", code, i, most);
            PyMem_Free(codes);
            return NULL;
        }
        codes[i] = (unsigned char)code;
        *fields += code != 0;
    }
    return codes;
}

static PyObject *dispatcher_new(PyTypeObject *type, PyObject *arguments, PyObject *keywords)
{
    static char *names[] = {"name", "key", "tensor_key", "on_miss", "on_error", "formulas", "device", "on_due", "label", NULL};
    PyObject *name, *key, *tensor_key, *on_miss, *on_error, *formulas, *on_due, *label;
    int device;
    if (!PyArg_ParseTupleAndKeywords(arguments, keywords, "UO!O!OOO!iOU", names, &name, &PyTuple_Type, &key,
                                     &PyTuple_Type, &tensor_key, &on_miss, &on_error, &PyTuple_Type, &formulas,
                                     &device, &on_due, &label))
        return NULL;
    Py_ssize_t integers = PyTuple_GET_SIZE(key), tensors = PyTuple_GET_SIZE(tensor_key);
    if (integers + tensors > MAX_ARGUMENTS)
        return PyErr_Format(PyExc_ValueError, "kernel %R has more than %d arguments", name, MAX_ARGUMENTS);
    Dispatcher *self = (Dispatcher *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = dispatch;
    self->name = Py_NewRef(name);
    self->key = Py_NewRef(key);
    self->tensor_key = Py_NewRef(tensor_key);
    self->on_miss = Py_NewRef(on_miss);
    self->on_error = Py_NewRef(on_error);
    self->on_due = Py_NewRef(on_due);
    self->label = Py_NewRef(label);
    self->formulas = Py_NewRef(formulas);
    self->formula_count = self->field_count = PyTuple_GET_SIZE(formulas);
    self->device = device;
    self->integers = integers;
    self->tensors = tensors > 0 ? tensors : -1;
    self->codes = codes_of(key, DIVISIBLE, &self->field_count);
    if (self->codes != NULL && tensors > 0)
        self->tensor_codes = codes_of(tensor_key, ALIGNMENT, &self->field_count);
    if (PyErr_Occurred() || allocate(self, 8) < 0 || (self->notes = PyList_New(0)) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int dispatcher_traverse(PyObject *object, visitproc visit, void *arg)
{
    Dispatcher *self = (Dispatcher *)object;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->on_miss);
    Py_VISIT(self->on_error);
    Py_VISIT(self->on_due);
    Py_VISIT(self->orders);
    Py_VISIT(self->notes);
    Py_VISIT(self->wake);
    for (Py_ssize_t i = 0; i < self->leaf_count; i++) {
        Py_VISIT(self->leaves[i].slot.entry);
        Py_VISIT(self->leaves[i].slot.call);
    }
    for (size_t i = 0; self->slots != NULL && i < self->capacity; i++) {
        Py_VISIT(self->slots[i].entry);
        Py_VISIT(self->slots[i].call);
        Trial *trial = self->slots[i].trial;
        for (int k = 1; trial != NULL && k < trial->count; k++) {
            Py_VISIT(trial->contenders[k].entry);
            Py_VISIT(trial->contenders[k].call);
        }
    }
    return 0;
}

static int dispatcher_clear(PyObject *object)
{
    Dispatcher *self = (Dispatcher *)object;
    if (self->slots != NULL && self->used > 0 && empty(self) < 0)
        PyErr_Clear();
    Leaf *leaves = self->leaves;
    Py_ssize_t count = self->leaf_count;
    self->leaves = NULL;
    self->leaf_count = 0;
    free_leaves(leaves, count);
    Py_CLEAR(self->orders);
    Py_CLEAR(self->wake);
    Py_XSETREF(self->on_miss, Py_NewRef(Py_None));
    Py_XSETREF(self->on_error, Py_NewRef(Py_None));
    Py_XSETREF(self->on_due, Py_NewRef(Py_None));
    return 0;
}

static void dispatcher_dealloc(PyObject *object)
{
    Dispatcher *self = (Dispatcher *)object;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    for (size_t i = 0; self->slots != NULL && i < self->capacity; i++) {
        Py_XDECREF(self->slots[i].entry);
        Py_XDECREF(self->slots[i].call);
        end_trial(self->slots[i].trial);
    }
    free_leaves(self->leaves, self->leaf_count);
    Py_XDECREF(self->orders);
    Py_XDECREF(self->notes);
    Py_XDECREF(self->wake);
    PyMem_Free(self->slots);
    PyMem_Free(self->fields);
    PyMem_Free(self->codes);
    PyMem_Free(self->tensor_codes);
    Py_XDECREF(self->name);
    Py_XDECREF(self->label);
    Py_XDECREF(self->key);
    Py_XDECREF(self->tensor_key);
    Py_XDECREF(self->formulas);
    Py_XDECREF(self->on_miss);
    Py_XDECREF(self->on_error);
    Py_XDECREF(self->on_due);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMethodDef dispatcher_methods[] = {
    {"insert", (PyCFunction)(void (*)(void))dispatcher_insert, METH_FASTCALL, "insert(key, entry); no entry: the regime is subdivided"},
    {"reopen", dispatcher_reopen, METH_O, "reopen(key): nothing is decided for it"},
    {"is_open", dispatcher_is_open, METH_O, "is_open(key) -> whether calls have come for which nothing is decided"},
    {"fall_back", dispatcher_fall_back, METH_VARARGS, "fall_back(leaves, orders, wake): what runs where nothing is decided"},
    {"notes", dispatcher_notes, METH_NOARGS, "notes() -> calls to look at, which are forgotten"},
    {"watch", (PyCFunction)(void (*)(void))dispatcher_watch, METH_FASTCALL, "watch(key, calls) asks on_due after so many"},
    {"get", dispatcher_get, METH_O, "get(key) -> entry or None"},
    {"begin_trial", dispatcher_begin_trial, METH_VARARGS, "begin_trial(key, entries, samples, period, device) -> whether it began"},
    {"samples", dispatcher_samples, METH_O, "samples(key) -> [(contender, seconds, integers)], which are forgotten"},
    {"go_on", dispatcher_go_on, METH_VARARGS, "go_on(key, wanted, period)"},
    {"end_trial", dispatcher_end_trial, METH_O, "end_trial(key)"},
    {"calls", dispatcher_calls, METH_O, "calls(key) -> how many calls its entries have served"},
    {"table", dispatcher_table, METH_NOARGS, "table() -> dict of key to entry"},
    {"clear", dispatcher_empty, METH_NOARGS, "clear() forgets every entry"},
    {"key_of", (PyCFunction)(void (*)(void))dispatcher_key_of, METH_FASTCALL, "key_of(*integers) -> key"},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef dispatcher_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Dispatcher, vectorcall), READONLY, NULL},
    {"name", T_OBJECT, offsetof(Dispatcher, name), READONLY, "name of the kernel, for errors"},
    {"key", T_OBJECT, offsetof(Dispatcher, key), READONLY, "codes of the integer arguments"},
    {"tensor_key", T_OBJECT, offsetof(Dispatcher, tensor_key), READONLY, "codes of the tensor arguments"},
    {NULL, 0, 0, 0, NULL},
};
