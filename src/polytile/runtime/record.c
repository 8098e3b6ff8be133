/* Part of the launcher: shows kernels to torch's profiler, in `torch.profiler`, NVTX ranges and execution traces alike.

   torch's operators report each call to observers (RecordFunction), and so does a Dispatcher. Without observers, that
   takes a single check of a few nanoseconds. */

/* Set once by configure_functions(); without these, nothing is reported. */
static struct {
    _Bool (*watched)(void); /* at::hasCallbacks */
    int32_t (*start)(const char *name, void *keywords, void *const *inputs, uint64_t count, void **record);
    int32_t (*end)(void *record);
} records;

static inline int is_watched(void)
{
    return records.watched != NULL && records.watched();
}

/* Reports the start of a labelled range. The result goes to end_record. */
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

/* Preserves a pending exception. */
static void end_record(void *record)
{
    if (record != NULL)
        records.end(record);
}
