"""The function that `polytile.compile` returns. It bypasses Dynamo's frame evaluation where that changes nothing.

A call of the function that torch.compile returns switches on Dynamo's frame evaluation, lets Python evaluate the function's
frame, finds the compiled code whose guards hold, runs it, and switches frame evaluation off. The front door evaluates the same
guards, which are the objects that Dynamo made and keeps, and runs the same code (runtime/entry.c). It adds no guard and leaves
none out; where nothing that they read has changed, it does not evaluate them again (guard_reads.py). So it detects every change
that Dynamo would detect: another type, dtype, size, gradient mode, global, closure, attribute or parameter. All other calls go
through torch.compile:

- a call for which no guard holds, or whose arguments do not fit the function;
- a function with graph breaks, or none of whose frame Dynamo compiles: its parts need frame evaluation;
- a call under a stance, while exporting, tracing or profiling, or from code that Dynamo is evaluating;
- a module with hooks or a `forward` of its own instance, or whose class has changed;
- anything after `torch._dynamo.reset()`, or once a guarded object is gone, until it is compiled again.

With the option front_door="check" every call goes through torch.compile, and FrontDoorError is raised where the front door would
have run code whose guards do not hold.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import time
import types
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch

from polytile.compiler import frames, guard_reads, once, tiers
from polytile.compiler.helpers import with_helpers
from polytile.compiler.races import Races
from polytile.counters import counters
from polytile.errors import FrontDoorError
from polytile.runtime import background, entry, native
from polytile.runtime.entry import DECLINED, OWN

Expect = Callable[[Iterable[Any]], None]
Open = Callable[[Any, Callable[..., Any]], None]
"""Takes the entry that calls go through from now on, and the function itself."""

MOST_UNTRACED = 3
"""The background pauses during a call that the entry declines, since Dynamo is about to trace it. After this many such calls in a
row for which Dynamo compiled nothing, it pauses no more: Dynamo then runs code that it has, or, at its limit of recompilations,
the function itself."""

MOST_MEMOS = 4
"""How often what guards read is noted anew, where the types of what they read change."""

BROKEN = ("__resume_at", "torch_dynamo_resume_in")
"""What names of the functions begin with that go on after a graph break."""
COMPILED = "__compiled_fn"
"""What names of compiled graphs begin with, among a function's globals."""
INSTALLED = (COMPILED, "__import_")
"""What names begin with that Dynamo adds to them and never changes."""

GENERATORS = 0x20 | 0x80 | 0x200
"""Flags of code objects of generators and coroutines."""


def door_of(compiled: Any) -> FrontDoor | None:
    """The front door of a result of `install`; None if it has none."""
    call = compiled.forward if isinstance(compiled, torch._dynamo.OptimizedModule) else compiled
    return getattr(call, "polytile_front_door", None)


def install(
    compiled: Any,
    function: Any,
    backend: Any,
    dynamic: bool | None,
    mode: str,
    may_race: bool = False,
    expect: Expect = lambda values: None,
) -> Any:
    """Puts a front door before `compiled`, which torch.compile made of `function`, where there can be one.

    `mode` is the value of the option `front_door`. With `may_race`, the function itself serves calls that it answers faster than
    compiled code (races.py). `expect` is called with the arguments of each call that Dynamo is about to trace."""
    if mode == "off" or torch._dynamo.config.caching_precompile or torch._dynamo.config.compiled_autograd:
        return compiled
    if isinstance(compiled, torch._dynamo.OptimizedModule):
        from polytile.compiler import direct_module  # which imports the tracer

        if "_forward" not in vars(compiled):  # which lazy modules have until they know their sizes
            door = FrontDoor(compiled.forward, compiled._orig_mod, backend, dynamic, mode == "check", may_race, expect)
            compiled.forward = door.function()
            direct_module.direct(compiled)
        return compiled
    traced = getattr(compiled, "_torchdynamo_orig_callable", None)
    if isinstance(traced, types.FunctionType) and frames.inside(traced) is torch._dynamo.eval_frame.innermost_fn(function):
        return FrontDoor(compiled, traced, backend, dynamic, mode == "check", may_race, expect).function()
    return compiled


class FrontDoor:
    """The front door of `compiled`, which torch.compile made of a function, or as the forward of a module."""

    def __init__(
        self,
        compiled: Callable[..., Any],
        owner: Any,
        backend: Any,
        dynamic: bool | None,
        checks: bool,
        may_race: bool = False,
        expect: Expect = lambda values: None,
    ) -> None:
        self.compiled, self.backend, self.dynamic, self.checks = compiled, backend, dynamic, checks
        self._expect = expect
        self._function = owner if isinstance(owner, types.FunctionType) else None
        self._module = None if self._function is owner else owner
        self.entry: Any = None
        self._own: Callable[..., Any] = self.compiled
        """The function itself, called as `compiled` is."""
        self.races: Races | None = None
        self._may_race = may_race and not checks
        self.refusals: tuple[str, ...] = ()
        """Why compiled code runs through Dynamo alone."""
        self._graphs = -1
        """The number of compiled graphs when `learn` last ran."""
        self._untraced = 0
        """The number of calls in a row that the entry declined and for which nothing was compiled."""
        self._memos: weakref.WeakKeyDictionary[Any, list[guard_reads.Making]] = weakref.WeakKeyDictionary()
        """What answered for guards, by Dynamo's guard managers (guard_reads.py)."""
        once.install(compiled, self)

    def function(self) -> Callable[..., Any]:
        """The function in place of `compiled`."""
        call: Any = _calls(self._through_dynamo if not self.checks else self._checked)
        functools.update_wrapper(call, self.compiled)
        vars(call).update(polytile_front_door=self, _torchdynamo_wrapper_id=id(call))
        torch._dynamo.eval_frame.skip_code(call.__code__)
        return call

    def _through_dynamo(self, open_: Open, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Makes a call that no entry exists for, or that the entry has declined."""
        if self.races is not None and (key := self.entry.take_wanted()):
            result = self.races.run(key, args, kwargs)
            if result is not DECLINED:
                return result
        if self.entry is None and not self.refusals and self._untraced < MOST_UNTRACED:
            self._expect((*args, *kwargs.values(), *self._parameters()))
        before = counters["graphs_compiled"]
        is_traced = self.entry is not None and not self.refusals and self._untraced < MOST_UNTRACED
        with background.background.held() if is_traced else contextlib.nullcontext():
            result = self._call_compiled(*args, **kwargs)
        graphs = counters["graphs_compiled"]
        self._untraced = self._untraced + 1 if graphs == before else 0
        known = self.entry
        if graphs != before or graphs != self._graphs or (known is not None and (known.stale or known.full)):
            if not native.is_ready():  # with an empty cache the launcher is compiled first; no call waits for that
                return result
            self._graphs = graphs
            self.learn(at_once=graphs != before)
            if self.entry is not None and not self.checks:
                open_(self.entry, self._own)
        return result

    def _call_compiled(self, *args: Any, **kwargs: Any) -> Any:
        while True:
            with contextlib.suppress(once.CompiledMeanwhile):
                return self.compiled(*args, **kwargs)
            time.sleep(once.PAUSE)

    def _checked(self, open_: Open, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Makes the call by Dynamo. Raises FrontDoorError if the front door would have run code whose guards do not hold. Which
        code Dynamo runs tells less: guards of several may hold, and beyond its limit of recompilations it runs none."""
        if self.entry is not None and self.entry.find(*args, **kwargs):
            guards = self.entry.managers[0]()
            if guards is not None and not guards.root.check(self.entry.variables(*args, **kwargs)):
                name, parts = getattr(self.compiled, "__name__", "a function"), guards.code_parts or guards.verbose_code_parts
                raise FrontDoorError(
                    f"polytile's front door would run code for a call of {name} whose guards do not hold: {parts}. The option "
                    "front_door='off' has every call go through Dynamo. Please report this."
                )
        return self._through_dynamo(open_, args, kwargs)

    def __str__(self) -> str:
        known = 0 if self.entry is None else len(self.entry.managers)
        direct = [f"{known} compiled code(s) run without Dynamo's frames"] if known else []
        if self.races is not None and self.races.won:
            direct.append(f"calls of {self.races.won} size(s) are eager's own, which measured faster")
        others = [f"{self.refusals.count(why)} through Dynamo, as {why}" for why in dict.fromkeys(self.refusals)]
        return "; ".join(direct + others) or "nothing is compiled yet"

    # what Dynamo has compiled ----------------------------------------------------------------------------------------

    def learn(self, at_once: bool = True) -> None:
        """Finds the compiled code that Dynamo has for the function, and its guards. `at_once`: new memos for these are made in
        this call, which has compiled something, and not in parts by later ones."""
        loaded, function = entry.module(), self.called_function()
        if loaded is None or function is None:
            self.refusals = ("there is no C launcher" if loaded is None else "a call of the module is not that of nn.Module",)
            if self.entry is not None:
                self.entry.replace(_closed, ())
            return
        refusals, ways = [], []
        for cached in self.entries():
            why = _refusal(cached, function)
            if why:
                refusals.append(why)
            else:
                guards = cached.guard_manager
                instead = None if self.checks else _instead(cached.code, function)
                run = as_function(cached.code, function)
                ways.append((self._kept(guards), guards.root.check, self.memo(guards, function, at_once), run, instead))
        self.refusals = tuple(refusals)
        if self.entry is None:
            self.entry = loaded.Entry(self._module, self._may_race)
        has_no_ways = not ways and not function.__code__.co_flags & GENERATORS
        self.entry.replace(function, tuple(ways), has_no_ways)
        if self._may_race:
            self._own = frames.inside(function) if self._module is None else types.MethodType(function, self._module)
            self.races = Races(self.entry, self._own, self._call_compiled if has_no_ways else self.entry.compiled)

    def memo(self, guards: Any, function: types.FunctionType, at_once: bool = True) -> Any:
        """What answers for the guards of a code of `function` while nothing that they read has changed, or makes such a memo in
        parts; None if nothing does."""
        made = self._memos.setdefault(guards, [])
        if made and made[-1].function is not function:  # another forward with the same code has other cells, defaults and globals
            made.clear()
        spent = bool(made) and made[-1].memo is not None and made[-1].memo.spent
        if spent:
            made[-1].report()
        if not made or (spent and len(made) < MOST_MEMOS):
            made.append(guard_reads.Making(entry.module(), guards.root, function, self._module))
        while at_once and not made[-1].done:
            made[-1]()
        return made[-1].memo if made[-1].done else made[-1]

    def _parameters(self) -> Iterable[Any]:
        return self._module.parameters() if self._module is not None else ()

    def called_function(self) -> types.FunctionType | None:
        """The function whose frame Dynamo evaluates."""
        function = self._function if self._module is None else _forward_of(type(self._module))
        return function if isinstance(function, types.FunctionType) else None

    def entries(self) -> list[Any]:
        """Dynamo's cache entries for the function under this backend, in the order in which it asks their guards."""
        function = self.called_function()
        if function is None:
            return []
        every = torch._dynamo.eval_frame._debug_get_cache_entry_list(function.__code__)
        return [one for one in every if self._is_own(one)]

    def _is_own(self, cached: Any) -> bool:
        backend = cached.backend
        return (
            cached.guard_manager.cache_entry is not None
            and getattr(backend, "compiler_fn", None) == self.backend
            and getattr(backend, "dynamic", None) == self.dynamic
        )

    def _kept(self, manager: Any) -> weakref.ref[Any]:
        """A reference to a guard manager, with which what the entry has goes too: Dynamo drops it, and must not be asked now."""
        own = weakref.ref(self)

        def gone(_: Any) -> None:
            door = own()
            if door is not None:
                door._graphs = -1
                door.entry.replace(_closed, ())

        return weakref.ref(manager, gone)


def _forward_of(kind: type) -> Any:
    """The function that a call of a module of this class comes to by nn.Module's own call; None where it does not."""
    own = vars(torch.nn.Module)
    as_ever = all(
        getattr(kind, name) is own[name] and own[name].__code__.co_filename == torch.nn.modules.module.__file__
        for name in ("__call__", "_call_impl")
    )
    if not as_ever or getattr(kind, "_compiled_call_impl", None) is not None:
        return None
    reads_plainly = getattr(kind, "__getattribute__", None) is object.__getattribute__
    return getattr(kind, "forward", None) if reads_plainly else None


def _closed(*args: Any, **kwargs: Any) -> Any:
    return DECLINED


ABSENT: Any = object()


def _calls(through_dynamo: Callable[[Open, Sequence[Any], Mapping[str, Any]], Any]) -> Callable[..., Any]:
    """What stands in place of a compiled function. Once there is an entry, C does the same without evaluating this frame
    (runtime/door.c), but where Python 3.11 evaluates it for a caller in Python. Up to four positional arguments are passed on one
    by one, which takes a quarter of the time of *args, **kwargs: where eager takes a microsecond that is felt."""
    enter: Callable[..., Any] = _closed
    function: Callable[..., Any] = _closed

    def call(a: Any = ABSENT, b: Any = ABSENT, c: Any = ABSENT, d: Any = ABSENT, /, *rest: Any, **named: Any) -> Any:
        if rest or named or a is ABSENT:
            given = _given(a, b, c, d, *rest)
            result = enter(*given, **named)
            if result is OWN:
                return function(*given, **named)
        elif b is ABSENT:
            result = enter(a)
            if result is OWN:
                return function(a)
        elif c is ABSENT:
            result = enter(a, b)
            if result is OWN:
                return function(a, b)
        elif d is ABSENT:
            result = enter(a, b, c)
            if result is OWN:
                return function(a, b, c)
        else:
            result = enter(a, b, c, d)
            if result is OWN:
                return function(a, b, c, d)
        return through_dynamo(opened, _given(a, b, c, d, *rest), named) if result is DECLINED else result

    def opened(entry_: Any, own: Callable[..., Any]) -> None:
        nonlocal enter, function
        enter, function = entry_, own
        entry.module().shorten(call)

    return call


def _given(*arguments: Any) -> tuple[Any, ...]:
    """The arguments that are not ABSENT, which come first."""
    count = len(arguments)
    while count > 0 and arguments[count - 1] is ABSENT:
        count -= 1
    return arguments[:count]


def _refusal(entry: Any, function: types.FunctionType) -> str:
    """Why a cache entry's code runs through Dynamo alone; "" where it need not."""
    code, original = entry.code, function.__code__
    if any(name.startswith(BROKEN) for name in _names(code)):
        return "it has graph breaks"
    if code.co_flags & GENERATORS:
        return "it is a generator"
    for part in ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_freevars"):
        if getattr(code, part) != getattr(original, part):
            return "Dynamo has given it other parameters"
    if any(name.startswith(INSTALLED) and name not in function.__globals__ for name in code.co_names):
        return "it was compiled for a function with other globals"
    return ""


def _names(code: types.CodeType) -> list[str]:
    """Names of the globals and attributes that code uses, and of functions that it makes."""
    return [*code.co_names, *(part.co_name for part in code.co_consts if isinstance(part, types.CodeType))]


def as_function(code: types.CodeType, function: types.FunctionType) -> types.FunctionType:
    """Compiled code as a function like the one that it was compiled from. Its graphs, which torch._dynamo.disable keeps from
    being traced in Python, need no such thing where the front door calls them; in the function's own globals C keeps them from
    it."""
    scope, disabled = function.__globals__, _disabled_graphs(code, function)
    code = with_helpers(code, scope)
    names, graphs = _globals_of(code), {name: entry.in_c(graph._torchdynamo_orig_callable) for name, graph in disabled.items()}
    if all(name.startswith(INSTALLED) for name in names):
        scope = {name: scope[name] for name in names} | graphs
    else:
        scope |= {name: entry.module().Graph(graph, disabled[name]) for name, graph in graphs.items()}
    compiled = types.FunctionType(code, scope, function.__name__, function.__defaults__, function.__closure__)
    compiled.__kwdefaults__ = function.__kwdefaults__
    return compiled


def _globals_of(code: types.CodeType) -> set[str]:
    return {step.argval for step in dis.get_instructions(code) if step.opname in ("LOAD_GLOBAL", "STORE_GLOBAL", "LOAD_NAME")}


def _disabled_graphs(code: types.CodeType, function: types.FunctionType) -> dict[str, Any]:
    """The graphs that compiled code calls, as torch._dynamo.disable made them, by the names of the globals."""
    scope = function.__globals__
    return {name: scope[name] for name in _globals_of(code) if name.startswith(COMPILED) and _is_disabled(scope.get(name))}


def _instead(code: types.CodeType, function: types.FunctionType) -> Callable[..., Any] | None:
    """What serves calls in place of compiled code while its one graph waits for a program; None if nothing does."""
    graphs = [graph._torchdynamo_orig_callable for graph in _disabled_graphs(code, function).values()]
    return tiers.instead(graphs[0], function) if len(graphs) == 1 else None


def _is_disabled(value: Any) -> bool:
    return isinstance(value, types.FunctionType) and getattr(value, "_torchdynamo_disable", False)
