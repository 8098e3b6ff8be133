/* Part of the launcher: calls of a compiled function without evaluating its Python frame.

   torch.compile finds a call's compiled code by having Python evaluate the function's frame with Dynamo's hook
   installed; switching the hook on and off takes about 10 us. An Entry needs no frame. It binds the arguments to the
   function's parameters, evaluates Dynamo's own guards on them, and runs the guarded code. If a guard fails, or any
   state is in force that torch.compile would check, it returns `declined`, and the caller takes the usual way.

   A Graph is what polytile's backend gives to Dynamo for an inference graph. It does the work of AOTAutograd's runtime
   wrapper for a graph that changes no argument and returns no alias. An Undisturbed replaces the result of
   torch._dynamo.disable on a Graph.

   While the program of a graph is being made, a Way has a callable that serves calls in its place (tiers.py).

   An Entry also counts calls by the sizes of their tensors, rounded to powers of two. After many calls it declines one,
   so that its owner can race the compiled code against the function itself (races.py). If the function won, an Entry
   returns `own` instead of a result, and the caller calls the function, which from Python costs no more than calling it
   directly. Calls that must go through torch.compile, such as those of a function with graph breaks, race too. */

enum { MAX_WAYS = 12, GUARDS_DECLINED = -1, NOT_ASKED = -2 };
enum { RACES = 256, RACED_AFTER = 256, ASKED_AGAIN_AFTER = 32 };
enum { COUNTING, RACING, COMPILED_IS_FASTER, FUNCTION_IS_FASTER };

/* Set once by configure_entries(). */
static struct {
    PyObject *declined;     /* returned by an Entry instead of a result */
    PyObject *own;          /* the same, if the function itself must be called */
    PyObject *facts;        /* ((dict, key, value), ...): dict[key] has this value in the normal state */
    PyObject *questions;    /* ((callable, result), ...): likewise */
    PyObject *groups;       /* the dict of torch's process groups */
    PyObject *set_hook;     /* (hook that checks whether guards hold, or None) -> the previous hook */
    PyObject *absent;       /* names of methods that an instance of Module may not replace */
    PyObject *hooks;        /* names of a module's dicts of hooks */
    PyObject *global_hooks; /* dicts of hooks that all modules have in common */
    PyObject *cache_entry;  /* "cache_entry" */
    int (*grad_enabled)(void);
    void (*set_grad_enabled)(int);
    void *const *(*tracing_state)(void); /* -> torch.jit.trace's state, in a C++ pointer; NULL there: no tracing */
    int32_t (*get_rank)(void *tensor, int64_t *rank);
    int32_t (*get_sizes)(void *tensor, int64_t **sizes);
} entering;

typedef struct { /* compiled code with its guards */
    PyObject *manager; /* weak reference to Dynamo's guard manager */
    PyObject *check;   /* (locals) -> whether the guards hold */
    PyObject *memo;    /* answers for the guards while nothing that they read has changed (guard_memo.c), or makes a part of what
                          will and returns itself until it is made; or None */
    PyObject *run;     /* the code as a function */
    PyObject *instead; /* serves calls in place of the code, until it returns `declined`; or None */
} Way;

typedef struct { /* statistics of calls at similar sizes */
    uint64_t key;
    uint32_t calls;
    char state;
} AtSizes;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function;  /* whose frame it is */
    PyObject *owner;     /* the module whose forward the function is, or NULL */
    PyObject *code;      /* of the function, when the ways were found */
    PyObject *names;     /* of parameters, then *args, then **kwargs */
    PyObject *free_names; /* of the variables of the closure */
    PyTypeObject *type;  /* of the owner */
    unsigned version;    /* of the type; 0: not known */
    PyObject *witness;   /* on Python 3.10 a class whose version tells that no type's version has come back; else NULL */
    unsigned witnessed;  /* its version */
    int positional, keyword_only, positional_only, flags;
    Py_ssize_t count;
    Way ways[MAX_WAYS];
    char full;
    char stale;          /* whether the state at the time the ways were found has changed */
    char races;
    char has_no_ways;    /* whether calls of the function always go through torch.compile */
    unsigned long long wanted; /* the key of the call that was declined for a race; 0: none */
    AtSizes at_sizes[RACES];
} Entry;

/* ---- conditions ---- */

/* Whether ranks must agree that guards hold before they continue (torch.compiler.set_enable_guard_collectives). Only
   the setter reveals this. */
static int ranks_agree(void)
{
    if (PyDict_GET_SIZE(entering.groups) == 0)
        return 0;
    PyObject *hook = PyObject_CallOneArg(entering.set_hook, Py_None), *none = NULL;
    if (hook != NULL && hook != Py_None)
        none = PyObject_CallOneArg(entering.set_hook, hook);
    int agree = hook != Py_None;
    Py_XDECREF(hook);
    Py_XDECREF(none);
    PyErr_Clear();
    return agree;
}

static int all_hold(void)
{
    if (*entering.tracing_state() != NULL)
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entering.facts); i++) {
        PyObject *fact = PyTuple_GET_ITEM(entering.facts, i);
        PyObject *wanted = PyTuple_GET_ITEM(fact, 2), *value = PyDict_GetItemWithError(PyTuple_GET_ITEM(fact, 0), PyTuple_GET_ITEM(fact, 1));
        if (value != wanted && (value == NULL || PyObject_RichCompareBool(value, wanted, Py_EQ) != 1)) {
            PyErr_Clear();
            return 0;
        }
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entering.questions); i++) {
        PyObject *question = PyTuple_GET_ITEM(entering.questions, i);
        PyObject *answer = PyObject_CallNoArgs(PyTuple_GET_ITEM(question, 0));
        if (answer == NULL)
            PyErr_Clear();
        Py_XDECREF(answer); /* the compared object is immortal or held by the question */
        if (answer != PyTuple_GET_ITEM(question, 1))
            return 0;
    }
    return !ranks_agree();
}

static int all_empty(PyObject *dicts)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(dicts); i++)
        if (PyDict_GET_SIZE(PyTuple_GET_ITEM(dicts, i)) != 0)
            return 0;
    return 1;
}

/* Whether a call of the owner is just a call of its class's forward, with nothing before or after. */
static int is_called_plainly(Entry *self)
{
    if (Py_TYPE(self->owner) != self->type || self->version == 0 || self->type->tp_version_tag != self->version
        || (self->witness != NULL && ((PyTypeObject *)self->witness)->tp_version_tag != self->witnessed)) {
        self->stale = 1;
        return 0;
    }
    PyObject *dict = PyObject_GenericGetDict(self->owner, NULL);
    if (dict == NULL) {
        PyErr_Clear();
        return 0;
    }
    int plain = all_empty(entering.global_hooks);
    for (Py_ssize_t i = 0; plain && i < PyTuple_GET_SIZE(entering.hooks); i++) {
        PyObject *hooks = PyDict_GetItem(dict, PyTuple_GET_ITEM(entering.hooks, i));
        plain = hooks != NULL && PyDict_Check(hooks) && PyDict_GET_SIZE(hooks) == 0;
    }
    for (Py_ssize_t i = 0; plain && i < PyTuple_GET_SIZE(entering.absent); i++) {
        PyObject *own = PyDict_GetItem(dict, PyTuple_GET_ITEM(entering.absent, i));
        plain = own == NULL || own == Py_None;
    }
    Py_DECREF(dict);
    return plain;
}

static int is_as_found(Entry *self)
{
    PyFunctionObject *function = (PyFunctionObject *)self->function;
    PyFunctionObject *run = self->count == 0 ? function : (PyFunctionObject *)self->ways[0].run;
    if (function->func_code == self->code && function->func_defaults == run->func_defaults
        && function->func_kwdefaults == run->func_kwdefaults)
        return 1;
    self->stale = 1;
    return 0;
}

/* ---- arguments ---- */

/* The default value of a parameter, borrowed; NULL: it has none. */
static PyObject *default_of(Entry *self, int parameter)
{
    PyFunctionObject *function = (PyFunctionObject *)self->function;
    if (parameter >= self->positional)
        return function->func_kwdefaults == NULL ? NULL
                                                 : PyDict_GetItem(function->func_kwdefaults, PyTuple_GET_ITEM(self->names, parameter));
    Py_ssize_t count = function->func_defaults == NULL ? 0 : PyTuple_GET_SIZE(function->func_defaults);
    Py_ssize_t at = parameter - (self->positional - count);
    return at < 0 ? NULL : PyTuple_GET_ITEM(function->func_defaults, at);
}

/* The number of the parameter with this name; -1: there is none; -2 and an exception on failure. */
static int parameter_of(Entry *self, PyObject *name)
{
    int count = self->positional + self->keyword_only;
    for (int i = 0; i < count; i++)
        if (PyTuple_GET_ITEM(self->names, i) == name)
            return i;
    for (int i = 0; i < count; i++) {
        int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(self->names, i), name, Py_EQ);
        if (same != 0)
            return same < 0 ? -2 : i;
    }
    return -1;
}

/* Binds the arguments after the positional parameters to *args. 0, or -1. */
static int bind_rest(Entry *self, PyObject *locals, PyObject *const *given, Py_ssize_t count)
{
    int at = self->positional + self->keyword_only;
    Py_ssize_t left = count > self->positional ? count - self->positional : 0;
    if (!(self->flags & CO_VARARGS))
        return left == 0 ? 0 : -1;
    PyObject *rest = PyTuple_New(left);
    if (rest == NULL)
        return -1;
    for (Py_ssize_t i = 0; i < left; i++)
        PyTuple_SET_ITEM(rest, i, Py_NewRef(given[self->positional + i]));
    int failed = PyDict_SetItem(locals, PyTuple_GET_ITEM(self->names, at), rest);
    Py_DECREF(rest);
    return failed;
}

/* Binds named arguments to parameters or to **kwargs. 0, or -1. */
static int bind_named(Entry *self, PyObject *locals, PyObject *const *values, PyObject *names)
{
    PyObject *rest = NULL;
    int failed = 0, at = self->positional + self->keyword_only + ((self->flags & CO_VARARGS) != 0);
    if (self->flags & CO_VARKEYWORDS) {
        rest = PyDict_New();
        failed = rest == NULL || PyDict_SetItem(locals, PyTuple_GET_ITEM(self->names, at), rest) < 0;
    }
    Py_ssize_t count = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int parameter = parameter_of(self, name);
        if (parameter >= self->positional_only)
            failed = PyDict_Contains(locals, name) != 0 || PyDict_SetItem(locals, name, values[i]) < 0;
        else
            failed = parameter != -1 || rest == NULL || PyDict_SetItem(rest, name, values[i]) < 0;
    }
    Py_XDECREF(rest);
    return failed ? -1 : 0;
}

/* The function's local variables at the start of a call, closure included; NULL: the arguments do not fit, or memory is
   short. */
static PyObject *bind(Entry *self, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    PyObject *locals = PyDict_New();
    if (locals == NULL)
        return NULL;
    int failed = 0;
    for (int i = 0; !failed && i < self->positional && i < count; i++)
        failed = PyDict_SetItem(locals, PyTuple_GET_ITEM(self->names, i), given[i]);
    failed = failed || bind_rest(self, locals, given, count) < 0 || bind_named(self, locals, given + count, names) < 0;
    for (int i = count < self->positional ? (int)count : self->positional; !failed && i < self->positional + self->keyword_only; i++) {
        PyObject *name = PyTuple_GET_ITEM(self->names, i);
        if (PyDict_GetItem(locals, name) != NULL)
            continue;
        PyObject *value = default_of(self, i);
        failed = value == NULL || PyDict_SetItem(locals, name, value) < 0;
    }
    PyObject *closure = ((PyFunctionObject *)self->function)->func_closure;
    for (Py_ssize_t i = 0; !failed && i < PyTuple_GET_SIZE(self->free_names); i++) {
        PyObject *value = PyCell_GET(PyTuple_GET_ITEM(closure, i));
        failed = value != NULL && PyDict_SetItem(locals, PyTuple_GET_ITEM(self->free_names, i), value) < 0;
    }
    if (failed)
        Py_CLEAR(locals);
    return locals;
}

/* ---- calls ---- */

/* Whether Dynamo still has the code. */
static int is_kept(Entry *self, const Way *way)
{
    PyObject *manager = PyObject_CallNoArgs(way->manager);
    PyObject *kept = manager == NULL || manager == Py_None ? NULL : PyObject_GetAttr(manager, entering.cache_entry);
    if (kept == NULL || kept == Py_None)
        self->stale = 1;
    PyErr_Clear();
    Py_XDECREF(kept);
    Py_XDECREF(manager);
    return !self->stale;
}

static int is_memo(PyObject *object)
{
    return Py_TYPE(object)->tp_dealloc == memo_dealloc;
}

/* Has a part of a way's memo made. */
static void make_memo(Entry *self, const Way *way)
{
    PyObject *made = PyObject_CallNoArgs(way->memo);
    if (made == NULL)
        made = Py_NewRef(Py_None);
    PyErr_Clear();
    for (Py_ssize_t i = 0; made != way->memo && i < self->count; i++)
        if (self->ways[i].memo == way->memo)
            Py_SETREF(self->ways[i].memo, Py_NewRef(made));
    Py_DECREF(made);
}

/* Whether a way's guards hold. `locals` is bound by the first way that has to be asked. Errors in a guard, and arguments that
   do not fit the function, are left to the usual way to raise. */
static int guards_hold(Entry *self, const Way *way, PyObject *const *given, Py_ssize_t count, PyObject *names, PyObject **locals)
{
    if (!is_kept(self, way))
        return 0;
    int owners = self->owner != NULL; /* which is the first argument, and which facts are about */
    if (is_memo(way->memo) && memo_answers(way->memo, given + owners, count - owners, names))
        return 1;
    if (*locals == NULL)
        *locals = bind(self, given, count, names);
    PyObject *answer = *locals == NULL ? NULL : PyObject_CallOneArg(way->check, *locals);
    PyErr_Clear();
    Py_XDECREF(answer);
    if (answer == Py_True && !is_memo(way->memo) && way->memo != Py_None)
        make_memo(self, way);
    else if (answer == Py_True && is_memo(way->memo) && memo_learns(way->memo, given + owners, count - owners, names))
        self->stale = 1;
    return answer == Py_True;
}

static void own_way(const Way *way)
{
    Py_INCREF(way->manager);
    Py_INCREF(way->check);
    Py_INCREF(way->memo);
    Py_INCREF(way->run);
    Py_INCREF(way->instead);
}

static void release_way(const Way *way)
{
    Py_DECREF(way->manager);
    Py_DECREF(way->check);
    Py_DECREF(way->memo);
    Py_DECREF(way->run);
    Py_DECREF(way->instead);
}

/* Finds the first way whose guards hold, and moves it to the front. Returns its code as a function, owned, and in
   `instead`, unless that is NULL, what serves in its place, owned; NULL and `why` if there is no way. Guards may let
   other threads run, which may change the ways. */
static PyObject *find_way(Entry *self, PyObject *const *given, Py_ssize_t count, PyObject *names, int *why, PyObject **instead)
{
    *why = NOT_ASKED;
    if (self->count == 0 || !is_as_found(self) || (self->owner != NULL && !is_called_plainly(self)) || !all_hold())
        return NULL;
    PyObject *found = NULL, *locals = NULL;
    for (Py_ssize_t at = 0; found == NULL && at < self->count && !self->stale; at++) {
        Way way = self->ways[at];
        own_way(&way);
        if (guards_hold(self, &way, given, count, names, &locals)) {
            found = Py_NewRef(way.run);
            if (instead != NULL)
                *instead = Py_NewRef(way.instead);
        }
        release_way(&way);
        if (found != NULL && at > 0 && at < self->count && self->ways[at].run == found) {
            Way moved = self->ways[at];
            memmove(&self->ways[1], &self->ways[0], (size_t)at * sizeof(Way));
            self->ways[0] = moved;
        }
    }
    if (found != NULL || locals != NULL || self->stale)
        *why = GUARDS_DECLINED;
    Py_XDECREF(locals);
    return found;
}

/* The arguments, preceded by the owner; NULL: there are too many. `all` has room for MAX_GIVEN. */
static PyObject *const *with_owner(Entry *self, PyObject **all, PyObject *const *given, Py_ssize_t *count, PyObject *names)
{
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (self->owner == NULL)
        return given;
    if (*count + named + 1 > MAX_GIVEN)
        return NULL;
    all[0] = self->owner;
    memcpy(all + 1, given, (size_t)(*count + named) * sizeof *given);
    *count += 1;
    return all;
}

/* A hash of the devices, ranks and sizes of tensors, sizes rounded down to powers of two; 0: there is none, or one is
   neither on a CPU nor on a CUDA device. */
static uint64_t key_of_sizes(PyObject *const *given, Py_ssize_t count)
{
    uint64_t key = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!is_plain(given[i]))
            continue;
        void *handle = (char *)given[i] + configured.handle_offset;
        int64_t *sizes = NULL, rank = 0;
        int32_t device;
        if (configured.get_device_type(handle, &device) != 0 || (device != TORCH_CPU && device != TORCH_CUDA)
            || entering.get_rank(handle, &rank) != 0 || entering.get_sizes(handle, &sizes) != 0)
            return 0;
        key = (key ^ (uint64_t)(2 * rank + 1 + (device == TORCH_CUDA))) * 0x9E3779B97F4A7C15u;
        for (int64_t axis = 0; axis < rank; axis++)
            key = ((key >> 29) ^ key ^ (uint64_t)(sizes[axis] > 0 ? 64 - __builtin_clzll((uint64_t)sizes[axis]) : 0))
                  * 0xBF58476D1CE4E5B9u;
    }
    return key;
}

/* The statistics of calls like this one; NULL: none are kept. If two keys share a slot, the first one keeps it. */
static AtSizes *at_sizes_of(Entry *self, PyObject *const *given, Py_ssize_t count)
{
    uint64_t key = key_of_sizes(given, count);
    AtSizes *found = &self->at_sizes[(key >> 40) % RACES];
    if (key == 0 || (found->key != 0 && found->key != key))
        return NULL;
    found->key = key;
    return found;
}

static int is_usual(Entry *self)
{
    return (self->count > 0 || self->has_no_ways) && is_as_found(self) && (self->owner == NULL || is_called_plainly(self)) && all_hold();
}

/* From now on the code serves itself, which is `run` of a way. */
static void has_program(Entry *self, PyObject *run)
{
    for (Py_ssize_t i = 0; i < self->count; i++)
        if (self->ways[i].run == run)
            Py_SETREF(self->ways[i].instead, Py_NewRef(Py_None));
}

static PyObject *call_compiled(Entry *self, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    int why;
    PyObject *instead = NULL, *run = find_way(self, given, count, names, &why, &instead), *result = NULL;
    if (run == NULL)
        return Py_NewRef(entering.declined);
    if (instead != Py_None) {
        result = PyObject_Vectorcall(instead, given, (size_t)count, names);
        if (result == entering.declined) {
            Py_CLEAR(result);
            has_program(self, run);
            Py_SETREF(instead, Py_NewRef(Py_None));
        }
    }
    if (instead == Py_None)
        result = PyObject_Vectorcall(run, given, (size_t)count, names);
    Py_DECREF(instead);
    Py_DECREF(run);
    return result;
}

static PyObject *call_entry(PyObject *object, PyObject *const *given, size_t flagged, PyObject *names)
{
    Entry *self = (Entry *)object;
    PyObject *all[MAX_GIVEN];
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    given = with_owner(self, all, given, &count, names);
    if (given == NULL)
        return Py_NewRef(entering.declined);
    AtSizes *known = self->races ? at_sizes_of(self, given, count + (names == NULL ? 0 : PyTuple_GET_SIZE(names))) : NULL;
    if (known != NULL && known->state != COMPILED_IS_FASTER) {
        if (known->state == FUNCTION_IS_FASTER && is_usual(self))
            return Py_NewRef(entering.own);
        if (known->state == RACING || (known->state == COUNTING && ++known->calls >= RACED_AFTER)) {
            known->state = RACING;
            self->wanted = known->key;
            return Py_NewRef(entering.declined);
        }
    }
    return call_compiled(self, given, count, names);
}

/* compiled(*args, **kwargs) -> the compiled code's result; `declined` as for a call, but never for a race. */
static PyObject *entry_compiled(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    PyObject *all[MAX_GIVEN];
    given = with_owner((Entry *)object, all, given, &count, names);
    return given == NULL ? Py_NewRef(entering.declined) : call_compiled((Entry *)object, given, count, names);
}

/* settle(key, whether the function is faster): the end of a race. */
static PyObject *entry_settle(PyObject *object, PyObject *parsed)
{
    unsigned long long key;
    int faster;
    if (!PyArg_ParseTuple(parsed, "Kp", &key, &faster))
        return NULL;
    AtSizes *found = &((Entry *)object)->at_sizes[(key >> 40) % RACES];
    if (found->key == key)
        found->state = faster ? FUNCTION_IS_FASTER : COMPILED_IS_FASTER;
    Py_RETURN_NONE;
}

/* postpone(key): no race yet; a later call asks again. */
static PyObject *entry_postpone(PyObject *object, PyObject *given)
{
    unsigned long long key = PyLong_AsUnsignedLongLong(given);
    if (key == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    AtSizes *found = &((Entry *)object)->at_sizes[(key >> 40) % RACES];
    if (found->key == key) {
        found->state = COUNTING;
        found->calls = RACED_AFTER - ASKED_AGAIN_AFTER;
    }
    Py_RETURN_NONE;
}

/* take_wanted() -> the key of the race that the last call was declined for, once; 0: none. */
static PyObject *entry_take_wanted(PyObject *object, PyObject *unused)
{
    Entry *self = (Entry *)object;
    unsigned long long wanted = self->wanted;
    self->wanted = 0;
    return PyLong_FromUnsignedLongLong(wanted);
}

/* find(*args, **kwargs) -> whether the guards of a way hold, which is then moved to the front, or whether the function
   may serve a call that no way can; None: neither was evaluated. */
static PyObject *entry_find(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    Entry *self = (Entry *)object;
    PyObject *all[MAX_GIVEN], *run = NULL;
    int why = NOT_ASKED;
    given = with_owner(self, all, given, &count, names);
    if (given != NULL && self->has_no_ways)
        return PyBool_FromLong(is_usual(self));
    if (given != NULL)
        run = find_way(self, given, count, names, &why, NULL);
    if (run == NULL && why == NOT_ASKED)
        Py_RETURN_NONE;
    Py_XDECREF(run);
    return PyBool_FromLong(run != NULL);
}

/* variables(*args, **kwargs) -> the function's local variables at the start of a call, as guards are given them; None: the arguments
   do not fit. */
static PyObject *entry_variables(PyObject *object, PyObject *const *given, Py_ssize_t count, PyObject *names)
{
    PyObject *all[MAX_GIVEN];
    given = with_owner((Entry *)object, all, given, &count, names);
    PyObject *locals = given == NULL ? NULL : bind((Entry *)object, given, count, names);
    PyErr_Clear();
    return locals == NULL ? Py_NewRef(Py_None) : locals;
}

/* ---- the object ---- */

/* Sets the entry's ways; the old ones are released last, since that may run arbitrary code. Takes over references. */
static void set_ways(Entry *self, const Way *ways, Py_ssize_t count)
{
    Way before[MAX_WAYS];
    Py_ssize_t before_count = self->count;
    memcpy(before, self->ways, sizeof before);
    if (count > 0)
        memcpy(self->ways, ways, (size_t)count * sizeof *ways);
    self->count = count;
    for (Py_ssize_t i = 0; i < before_count; i++)
        release_way(&before[i]);
}

/* On Python 3.10 sys._clear_type_cache() has all types count their versions anew, so that one may come back. A class that nobody
   else knows loses its version then, and gets no other. 0, or -1 with an exception. */
static int call_witness(Entry *self)
{
    if (PY_VERSION_HEX >= 0x030B0000 || self->owner == NULL)
        return 0;
    PyObject *witness = PyObject_CallFunction((PyObject *)&PyType_Type, "s(){}", "Witness");
    if (witness == NULL)
        return -1;
    PyObject *found = PyObject_GetAttrString(witness, "__init__"); /* which gives it a version */
    Py_XDECREF(found);
    self->witnessed = ((PyTypeObject *)witness)->tp_version_tag;
    Py_XSETREF(self->witness, witness);
    return found == NULL ? -1 : 0;
}

/* Reads the properties of the function and its owner. 0, or -1 with an exception. */
static int read_function(Entry *self, PyObject *function)
{
    PyCodeObject *code = (PyCodeObject *)((PyFunctionObject *)function)->func_code;
    PyObject *names = PyObject_GetAttrString((PyObject *)code, "co_varnames");
    PyObject *free_names = PyObject_GetAttrString((PyObject *)code, "co_freevars");
    if (names == NULL || free_names == NULL || call_witness(self) < 0) {
        Py_XDECREF(names);
        Py_XDECREF(free_names);
        return -1;
    }
    PyObject *before[] = {self->function, self->code, self->names, self->free_names};
    self->function = Py_NewRef(function);
    self->code = Py_NewRef((PyObject *)code);
    self->names = names;
    self->free_names = free_names;
    self->positional = code->co_argcount;
    self->positional_only = code->co_posonlyargcount;
    self->keyword_only = code->co_kwonlyargcount;
    self->flags = code->co_flags;
    self->type = self->owner == NULL ? NULL : Py_TYPE(self->owner);
    self->version = self->owner == NULL ? 0 : self->type->tp_version_tag;
    for (size_t i = 0; i < sizeof before / sizeof *before; i++)
        Py_XDECREF(before[i]);
    return 0;
}

/* replace(function, ((manager, check, memo, run, instead), ...), whether calls always go through torch.compile): sets the ways,
   in the order in which they are tried. */
static PyObject *entry_replace(PyObject *object, PyObject *parsed)
{
    Entry *self = (Entry *)object;
    PyObject *function, *given;
    int has_no_ways = 0;
    if (!PyArg_ParseTuple(parsed, "O!O!|p", &PyFunction_Type, &function, &PyTuple_Type, &given, &has_no_ways))
        return NULL;
    Way ways[MAX_WAYS];
    Py_ssize_t count = PyTuple_GET_SIZE(given) < MAX_WAYS ? PyTuple_GET_SIZE(given) : MAX_WAYS;
    for (Py_ssize_t i = 0; i < count; i++)
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(given, i), "OOOO!O", &ways[i].manager, &ways[i].check, &ways[i].memo,
                              &PyFunction_Type, &ways[i].run, &ways[i].instead))
            return NULL;
    set_ways(self, NULL, 0); /* no ways while the function changes */
    if (read_function(self, function) < 0)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        own_way(&ways[i]);
    set_ways(self, ways, count);
    self->full = PyTuple_GET_SIZE(given) > count;
    self->has_no_ways = (char)has_no_ways;
    self->stale = 0;
    self->wanted = 0;
    memset(self->at_sizes, 0, sizeof self->at_sizes);
    Py_RETURN_NONE;
}

static PyObject *entry_managers(PyObject *object, void *unused)
{
    Entry *self = (Entry *)object;
    PyObject *managers = PyTuple_New(self->count);
    for (Py_ssize_t i = 0; managers != NULL && i < self->count; i++)
        PyTuple_SET_ITEM(managers, i, Py_NewRef(self->ways[i].manager));
    return managers;
}

/* Entry(owner or None, whether to race) */
static PyObject *entry_new(PyTypeObject *type, PyObject *parsed, PyObject *keywords)
{
    PyObject *owner;
    int races;
    if (!PyArg_ParseTuple(parsed, "Op", &owner, &races))
        return NULL;
    if (entering.declined == NULL)
        return PyErr_Format(PyExc_RuntimeError, "Entry: configure_entries() comes first");
    Entry *self = (Entry *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_entry;
    self->owner = owner == Py_None ? NULL : Py_NewRef(owner);
    self->races = (char)races;
    return (PyObject *)self;
}

static int entry_traverse(PyObject *object, visitproc visit, void *arg)
{
    Entry *self = (Entry *)object;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->function);
    Py_VISIT(self->owner);
    Py_VISIT(self->witness);
    for (Py_ssize_t i = 0; i < self->count; i++) {
        Py_VISIT(self->ways[i].manager);
        Py_VISIT(self->ways[i].check);
        Py_VISIT(self->ways[i].memo);
        Py_VISIT(self->ways[i].run);
        Py_VISIT(self->ways[i].instead);
    }
    return 0;
}

static int entry_clear(PyObject *object)
{
    Entry *self = (Entry *)object;
    set_ways(self, NULL, 0);
    Py_CLEAR(self->function);
    Py_CLEAR(self->owner);
    Py_CLEAR(self->witness);
    return 0;
}

static void entry_dealloc(PyObject *object)
{
    Entry *self = (Entry *)object;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    entry_clear(object);
    Py_XDECREF(self->code);
    Py_XDECREF(self->names);
    Py_XDECREF(self->free_names);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef entry_members[] = {
    {"full", T_BOOL, offsetof(Entry, full), READONLY, "whether there are more ways than it takes"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Entry, vectorcall), READONLY, NULL},
    {"stale", T_BOOL, offsetof(Entry, stale), READONLY, "whether the ways have to be found anew"},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef entry_properties[] = {
    {"managers", entry_managers, NULL, "weak references to the guard managers of the ways, in the order in which they are tried", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef entry_methods[] = {
    {"replace", entry_replace, METH_VARARGS, NULL},
    {"settle", entry_settle, METH_VARARGS, NULL},
    {"postpone", entry_postpone, METH_O, NULL},
    {"take_wanted", entry_take_wanted, METH_NOARGS, NULL},
    {"compiled", (PyCFunction)(void (*)(void))entry_compiled, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"variables", (PyCFunction)(void (*)(void))entry_variables, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"find", (PyCFunction)(void (*)(void))entry_find, METH_FASTCALL | METH_KEYWORDS, NULL},
    {NULL, NULL, 0, NULL},
};

/* ---- graphs ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *call;    /* (list of arguments) -> list of results */
    PyObject *usual;   /* the same with AOTAutograd's wrapper, (*arguments); for an Undisturbed, the result of disable() on `call` */
    PyObject *dynamic; /* a set of dimensions or None for each result, as AOTAutograd notes it on results of dynamic sizes */
    PyObject *note;    /* the name of that note */
    char called;       /* whether AOTAutograd's wrapper has seen a call: in the first one it checks what operators alias */
} Graph;

/* Notes on each result which dimensions are dynamic. 0, or -1 with an exception. */
static int note_dynamic(Graph *self, PyObject *results)
{
    Py_ssize_t count = PyTuple_GET_SIZE(self->dynamic);
    for (Py_ssize_t i = 0; i < count && i < PyList_GET_SIZE(results); i++) {
        PyObject *dimensions = PyTuple_GET_ITEM(self->dynamic, i);
        if (dimensions == Py_None)
            continue;
        PyObject *noted = PySet_New(dimensions);
        int failed = noted == NULL || PyObject_SetAttr(PyList_GET_ITEM(results, i), self->note, noted) < 0;
        Py_XDECREF(noted);
        if (failed)
            return -1;
    }
    return 0;
}

static PyObject *call_graph(PyObject *object, PyObject *const *given, size_t flagged, PyObject *names)
{
    Graph *self = (Graph *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    if (!self->called || names != NULL) {
        PyObject *result = PyObject_Vectorcall(self->usual, given, flagged, names);
        self->called = self->called || result != NULL;
        return result;
    }
    PyObject *list = PyList_New(count);
    if (list == NULL)
        return NULL;
    for (Py_ssize_t i = 0; i < count; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(given[i]));
    int enabled = entering.grad_enabled();
    if (enabled)
        entering.set_grad_enabled(0);
    PyObject *results = PyObject_CallOneArg(self->call, list);
    if (enabled)
        entering.set_grad_enabled(1);
    Py_DECREF(list);
    if (results != NULL && PyList_CheckExact(results) && note_dynamic(self, results) < 0)
        Py_CLEAR(results);
    return results;
}

static PyObject *call_undisturbed(PyObject *object, PyObject *const *given, size_t flagged, PyObject *names)
{
    Graph *self = (Graph *)object;
    return PyObject_Vectorcall(all_hold() ? self->call : self->usual, given, flagged, names);
}

/* Graph(call, usual, dynamic, note); Graph(call, usual): an Undisturbed. */
static PyObject *graph_new(PyTypeObject *type, PyObject *parsed, PyObject *keywords)
{
    PyObject *call, *usual, *dynamic = NULL, *note = NULL;
    if (!PyArg_ParseTuple(parsed, "OO|O!U", &call, &usual, &PyTuple_Type, &dynamic, &note))
        return NULL;
    if (entering.declined == NULL || (dynamic != NULL) != (note != NULL))
        return PyErr_Format(PyExc_RuntimeError, "Graph: configure_entries() comes first, and results are noted under a name");
    Graph *self = (Graph *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = dynamic == NULL ? call_undisturbed : call_graph;
    self->call = Py_NewRef(call);
    self->usual = Py_NewRef(usual);
    self->dynamic = Py_XNewRef(dynamic);
    self->note = Py_XNewRef(note);
    return (PyObject *)self;
}

static int graph_traverse(PyObject *object, visitproc visit, void *arg)
{
    Graph *self = (Graph *)object;
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(self->call);
    Py_VISIT(self->usual);
    return 0;
}

static int graph_clear(PyObject *object)
{
    Graph *self = (Graph *)object;
    Py_CLEAR(self->call);
    Py_CLEAR(self->usual);
    return 0;
}

static void graph_dealloc(PyObject *object)
{
    Graph *self = (Graph *)object;
    PyTypeObject *type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    graph_clear(object);
    Py_XDECREF(self->dynamic);
    Py_XDECREF(self->note);
    type->tp_free(self);
    Py_DECREF(type);
}

static PyMemberDef graph_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Graph, vectorcall), READONLY, NULL},
    {"__wrapped__", T_OBJECT, offsetof(Graph, usual), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

/* size_of(tensor, dimension) -> tensor.size(dimension) */
static PyObject *size_of(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    if (count != 2)
        return PyErr_Format(PyExc_TypeError, "size_of takes a tensor and a dimension");
    int64_t *sizes = NULL, rank = 0;
    void *handle = (char *)given[0] + configured.handle_offset;
    Py_ssize_t dimension = is_plain(given[0]) && PyLong_CheckExact(given[1]) ? PyLong_AsSsize_t(given[1]) : -1;
    if (dimension >= 0 && entering.get_rank(handle, &rank) == 0 && dimension < rank && entering.get_sizes(handle, &sizes) == 0)
        return PyLong_FromLongLong(sizes[dimension]);
    PyErr_Clear();
    return PyObject_CallMethod(given[0], "size", "O", given[1]);
}

/* nothing(...) -> None */
static PyObject *do_nothing(PyObject *module, PyObject *const *given, Py_ssize_t count)
{
    Py_RETURN_NONE;
}

/* configure_entries(declined, own, facts, questions, groups, set_hook, absent, hooks, global hooks, grad_enabled, set_grad_enabled,
   tracing_state, get_rank, get_sizes, get_storage_offset): the last six are addresses. */
static PyObject *configure_entries(PyObject *module, PyObject *parsed)
{
    PyObject *declined, *own, *facts, *questions, *groups, *set_hook, *absent, *hooks, *global_hooks;
    unsigned long long grad_enabled, set_grad_enabled, tracing_state, get_rank, get_sizes, get_offset;
    if (!PyArg_ParseTuple(parsed, "OOO!O!O!OO!O!O!KKKKKK", &declined, &own, &PyTuple_Type, &facts, &PyTuple_Type, &questions,
                          &PyDict_Type, &groups, &set_hook, &PyTuple_Type, &absent, &PyTuple_Type, &hooks, &PyTuple_Type, &global_hooks,
                          &grad_enabled, &set_grad_enabled, &tracing_state, &get_rank, &get_sizes, &get_offset))
        return NULL;
    PyObject *name = PyUnicode_InternFromString("cache_entry");
    if (name == NULL)
        return NULL;
    Py_XSETREF(entering.cache_entry, name);
    Py_XSETREF(entering.facts, Py_NewRef(facts));
    Py_XSETREF(entering.questions, Py_NewRef(questions));
    Py_XSETREF(entering.groups, Py_NewRef(groups));
    Py_XSETREF(entering.set_hook, Py_NewRef(set_hook));
    Py_XSETREF(entering.absent, Py_NewRef(absent));
    Py_XSETREF(entering.hooks, Py_NewRef(hooks));
    Py_XSETREF(entering.global_hooks, Py_NewRef(global_hooks));
    entering.grad_enabled = (int (*)(void))(uintptr_t)grad_enabled;
    entering.set_grad_enabled = (void (*)(int))(uintptr_t)set_grad_enabled;
    entering.tracing_state = (void *const *(*)(void))(uintptr_t)tracing_state;
    entering.get_rank = (int32_t(*)(void *, int64_t *))(uintptr_t)get_rank;
    offset_in_storage = (int32_t(*)(void *, int64_t *))(uintptr_t)get_offset;
    entering.get_sizes = (int32_t(*)(void *, int64_t **))(uintptr_t)get_sizes;
    Py_XSETREF(entering.own, Py_NewRef(own));
    Py_XSETREF(entering.declined, Py_NewRef(declined));
    Py_RETURN_NONE;
}
