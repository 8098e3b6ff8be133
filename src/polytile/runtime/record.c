/* Part of the launcher: kernels as torch's profiler sees them, in `torch.profiler`, NVTX ranges and execution traces alike.

   torch's operators tell those that watch (RecordFunction) of each call. A Dispatcher does so too. Where nobody watches, that takes
   one look, a few nanoseconds. */

/* Set once by configure_records(); without these nothing is told. */
static struct {
    _Bool (*watched)(void); /* at::hasCallbacks */
    int32_t (*start)(const char *name, void *keywords, void *const *inputs, uint64_t count, void **record);
    int32_t (*end)(void *record);
} records;

static inline int is_watched(void)
{
    return records.watched != NULL && records.watched();
}

/* Tells that what bears the label begins. What is returned goes to end_record. */
static void *begin_record(PyObject *label)
{
    const char *text = PyUnicode_AsUTF8(label);
    void *record = NULL;
    if (text == NULL)
        PyErr_Clear();
    else if (records.start(text, NULL, NULL, 0, &record) != 0)
        record = NULL;
    return record;
}

/* Leaves a pending exception as it is. */
static void end_record(void *record)
{
    if (record != NULL)
        records.end(record);
}

/* configure_records(addresses of at::hasCallbacks and of torch's functions that start a record and end it) */
static PyObject *configure_records(PyObject *module, PyObject *parsed)
{
    unsigned long long address[3];
    if (!PyArg_ParseTuple(parsed, "KKK", &address[0], &address[1], &address[2]))
        return NULL;
    memcpy(&records, address, sizeof records);
    Py_RETURN_NONE;
}
