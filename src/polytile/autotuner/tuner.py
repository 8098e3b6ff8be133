"""Triton kernels with many configs behind one call; `polytile.autotune` makes them, docs/autotune.md shows how.

An Autotuner is one of Triton's too, so that whatever looks for these (Dynamo, other libraries) finds it.
Each combination of element types, device and key values that are no sizes has a MultiKernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import logging
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from triton.compiler.errors import CompileTimeAssertionFailure
from triton.runtime._async_compile import FutureKernel
from triton.runtime.autotuner import Autotuner as TritonsAutotuner
from triton.runtime.errors import OutOfResources

from polytile import locks
from polytile import options as settings
from polytile.autotuner import search as searching
from polytile.autotuner import tunings
from polytile.autotuner.call import Call, current, plain, tensor_in
from polytile.autotuner.candidate import Launch, TritonConfig, named, numbers_of
from polytile.autotuner.compiling import side_by_side
from polytile.autotuner.consensus import Consensus, Given
from polytile.autotuner.effects import effects_of, python_function
from polytile.autotuner.losers import Timed
from polytile.autotuner.quick import Quick, Route, tracing
from polytile.candidates.handles import importable_name
from polytile.dispatch.conditions import changing
from polytile.dispatch.decision import Decision
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import define
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.errors import HintError, InvalidInput, SignatureError, StoreError
from polytile.problem import digest, sizes_text
from polytile.runtime import regime

log = logging.getLogger("polytile.dispatch")

TERMS = 4096
"""Terms that an output element is taken to sum where nobody says: configs that differ in the order of sums agree within that."""

INTERPRETING = locks.rlock()
"""Held by the thread whose kernel Triton's interpreter runs: it keeps the place in the grid in one variable of the process."""

MOST_SAMPLES = 8
"""Calls whose arguments are kept to measure behind calls."""


@dataclasses.dataclass(frozen=True)
class Extras:
    """What `polytile.autotune` takes beyond `triton.autotune`; its docstring says what each is."""

    exact: Sequence[str] | bool = ()
    hints: Sequence[Mapping[str, int]] = ()
    reference: Callable[..., None] | None = None
    reduction: Sequence[str | int] = ()
    search: Mapping[str, Sequence[Any]] | None = None
    make_args: Callable[..., Mapping[str, Any]] | None = None
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)


class UsersTimer:
    """Times launches by a function like `triton.testing.do_bench`, in milliseconds, once for each race."""

    def __init__(self, bench: Callable[..., Any]) -> None:
        self.bench = bench
        self._known: tuple[Any, float] | None = None

    def __call__(self, entry: Any, args: Any, repeats: int) -> float:
        """Seconds that `repeats` launches take; infinite where the GPU lacks what the kernel needs."""
        if self._known is None or self._known[0] is not args:
            try:
                times = self.bench(lambda: entry.call(*args), quantiles=(0.5, 0.2, 0.8))
            except (OutOfResources, CompileTimeAssertionFailure):
                times = float("inf")
            self._known = args, 1e-3 * float(times[0] if isinstance(times, Sequence) else times)
        return self._known[1] * repeats

    def release(self) -> None:
        """The race is over."""
        self._known = None


class Autotuner(TritonsAutotuner):
    """What `polytile.autotune` makes: `kernel[grid](...)` launches the config that is best at these sizes.

    Any number of threads may call. `best_config` is that of the last launch, `cache` has one for each regime met, by the key of
    the call that decided it.
    """

    def __init__(self, fn: Any, given: Mapping[str, Any], extras: Extras) -> None:
        _check_given(fn, given, extras)
        key = _key_of_parameters(fn, given["key"] or ())
        space = searching.Space.of(extras.search) if extras.search is not None else None
        configs = [*(given["configs"] or ()), *map(searching.config_of, space.sample() if space is not None else ())]
        super().__init__(fn, fn.arg_names, **{**given, "configs": configs, "key": key})
        self.configs: list[Any] = list(self.configs)  # Triton has one of its own where none is given
        self.space, self.extras = space, extras
        self.name = self.base_fn.__name__
        settings.check_environment()
        self._options = settings.check(extras.options, f"options of kernel {self.name!r}")
        self._named = named(self.configs)
        self.effects = effects_of(self.base_fn)
        self.interpreted = type(_innermost(fn)).__name__ == "InterpretedFunction"
        self.quick = Quick.of(fn, self.keys)
        self._made: dict[tuple[Any, ...], MultiKernel] = {}
        self._timed: dict[tuple[Any, ...], Timed] = {}
        self._samples: dict[tuple[Any, ...], Call] = {}
        self._tunings: list[tunings.Tuning] = []
        self._timings: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
        self.configs_top_k: Any = self.configs_top_k
        self._lock = locks.rlock()
        self.best_config: Any = None
        self.configs_timings: dict[Any, list[float]] = {}
        functools.update_wrapper(self, self.base_fn, updated=())

    def __repr__(self) -> str:
        return f"<polytile.autotune {self.name}: {len(self._named)} configs by {', '.join(self.keys) or 'no key'}>"

    # Calls.

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launches the config for these arguments; returns what Triton's launch does. Raises NoCandidate where no config runs."""
        quick = self.quick
        if quick is None or torch.compiler.is_dynamo_compiling() or tracing() is not None:
            return self._run(args, kwargs)
        try:
            given = quick.bind(*args, **kwargs)
        except TypeError:  # Triton says what is wrong
            given = None
        key = None if given is None else quick.key_of(given[1])
        route = quick.routes.get(key) if key is not None else None
        if route is None or given is None or not quick.usual():
            return self._run(args, kwargs)
        made = route.made
        if made is None:
            return self._launch_only(route, *given, args, kwargs)
        flat = route.pick(given[1])
        if flat[route.tensors :] not in route.sizes and not route.is_decided(flat[route.tensors :]):
            return self._run(args, kwargs)
        before = current.made, current.quick
        current.made, current.quick = None, (self, args, kwargs, *given, route)
        try:
            made(*flat)
            return current.returned
        finally:
            current.made, current.quick = before
            current.returned = None

    def _launch_only(self, route: Route, grid: Any, values: tuple[Any, ...], args: Any, kwargs: Any) -> Any:
        """Launches the only config."""
        prepared = route.kernels.get(None)
        if prepared is None:
            return self._run(args, kwargs)
        self.best_config = self.configs[0]
        return prepared.launch(grid, values)

    def _remember(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], names: tuple[str, ...], tensors: int, made: MultiKernel | None
    ) -> Route | None:
        """Has later launches like this one be quick; returns their route, None where they cannot be."""
        quick = self.quick
        given = quick.bind(*args, **kwargs) if quick is not None else None
        key = quick.key_of(given[1]) if quick is not None and given is not None else None
        if quick is None or given is None or key is None:
            return None
        return quick.remember(key, made, names, tensors, given[1])

    @torch.compiler.disable
    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if kwargs.get("warmup") or (len(self.configs) == 1 and self.space is None):
            return self._run_only(args, kwargs)
        call = Call(self.arg_names, self.keys, args, kwargs, self.effects.constants)
        before = current.made, current.quick
        current.made, current.quick = call, None
        try:
            made = self._made.get((call.kind, changing())) or self._define(call)
            new = made.dispatcher.get(made.dispatcher.key_of(*call.flat)) is None
            if new:
                made = self._before_choosing(call, made)
            made(*call.flat)
            if new:
                self._after_choosing(call, made)
            self._remember(args, kwargs, (*call.tensors, *call.sizes), len(call.tensors), made)
            return call.returned
        finally:
            current.made, current.quick = before
            call.withdraw()

    def _run_only(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Launches the first config."""
        self.best_config = config = self.configs[0]
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
        kernel = self.launch(args, kwargs, config)
        route = self._remember(args, kwargs, (), 0, None) if config.pre_hook is None else None
        if self.quick is not None and route is not None:
            self.quick.prepare(route, None, config, kernel)
        return kernel

    def _before_choosing(self, call: Call, made: MultiKernel) -> MultiKernel:
        """Prunes configs, zeroes what has to be zero, and searches, if that is asked for."""
        if not self.extras.exact:
            self._timed[call.kind, changing()].read(made.decisions)
        for config in self._pruned(call):
            if config not in self._named.values():
                self._add([config])
        self._reset(call.given())
        call.tried = bool(self.reset_to_zero) or call.tried
        if made.learning is not None and self.extras.make_args is None:
            self._keep_sample(call)
        made = self._made.get((call.kind, changing())) or self._define(call)
        return made if self.space is None else self._searched(call, made)

    def _reset(self, given: Mapping[str, Any]) -> None:
        for name in self.reset_to_zero:
            if (tensor := tensor_in(given.get(name))) is not None:
                tensor.zero_()

    def after_trials(self, everything: dict[str, Any]) -> None:
        """Prepares the arguments of a launch for real on which configs were tried."""
        if self.user_defined_pre_hook:
            self.pre_hook(everything, reset_only=True)
        else:
            self._reset(everything)

    def _after_choosing(self, call: Call, made: MultiKernel) -> None:
        """Says what was chosen as Triton does."""
        decision = made.decision_at(*call.flat)
        if decision is None or self.best_config is None:
            return
        seconds = {one.candidate: one.seconds for one in decision.standings if one.seconds is not None and one.seconds > 0}
        self.configs_timings = {self._named[name]: [1e3 * each] * 3 for name, each in seconds.items()}
        values, dtypes = self._key_of(call)
        key = (*values.values(), *dtypes)
        self.cache[key], self._timings[key] = self._named[decision.candidate], self.configs_timings

    def _key_of(self, call: Call) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What Triton tells calls apart by: the values that `key` names, and element types."""
        given = call.given()
        dtypes = tuple(str(value.dtype) for value in given.values() if hasattr(value, "dtype"))
        return {name: plain(given[name]) for name in self.keys if name in given}, dtypes

    def _searched(self, call: Call, made: MultiKernel) -> MultiKernel:
        """Decides for the regime of a call, and has what lies beside the best measured until nothing there is better."""
        assert self.space is not None
        for _ in range(searching.ROUNDS):
            made.dispatcher.insert(made.dispatcher.key_of(*call.flat), made.choose_entry(call.flat))
            decision = made.decision_at(*call.flat)
            if decision is None:
                break
            beside = self.space.beside(searching.point_of(self._named[decision.candidate]))
            fresh = [config for config in map(searching.config_of, beside) if config not in self._named.values()]
            if not fresh:
                break
            self._add(fresh)
            made = self._define(call)
        return made

    def _add(self, configs: Sequence[Any]) -> None:
        """Takes further configs, after those that there are."""
        with self._lock:
            self.configs = [*self.configs, *configs]
            self._named = named(self.configs)
            self._made.clear()
            if self.quick is not None:
                self.quick.routes.clear()

    # Tunings of others.

    def load_tunings(self, place: str | Path, size: str = "") -> int:
        """Has calls run what a file of another tuner says, without measuring. docs/autotune.md says which calls.

        Parameters
        ----------
        place
            A file, or a folder with such files: Triton's `cache_results`, triton-dejavu's, vLLM's of fused mixtures of experts.
        size
            The parameter of the kernel that a batch size in vLLM's files stands for.

        Returns
        -------
        How many choices there are.

        Raises
        ------
        StoreError
            It cannot be read, holds nothing for this kernel, or is of no known form.
        """
        read = tunings.read(Path(place), self.name, self.keys, size)
        for tuning in read:
            lost = [name for name in (*tuning.config.kwargs, *(n for n, _ in tuning.values)) if name not in self.arg_names]
            if lost:
                raise StoreError(f"{place} says {lost[0]!r}, and kernel {self.name!r} has {', '.join(self.arg_names)}.")
        with self._lock:
            self._add([one for one in dict.fromkeys(tuning.config for tuning in read) if one not in self._named.values()])
            self._tunings = [*self._tunings, *read]
        return len(read)

    def save_tunings(self, place: str | Path, form: str = "triton", size: str = "") -> list[Path]:
        """Writes what was chosen at the sizes that calls came with, for other tuners to read.

        Parameters
        ----------
        place
            A folder for the form "triton", such as Triton's cache directory; else a file.
        form
            "triton", "dejavu" (triton-dejavu's cache.json) or "vllm" (configs by batch size).
        size
            For "vllm", the name in `key` that is the batch size.

        Returns
        -------
        The files.

        Raises
        ------
        StoreError
            Nothing was chosen yet, or the form or size is none.
        """
        if form not in tunings.FORMATS or (form == "vllm" and size not in self.keys):
            raise StoreError(
                f"save_tunings of kernel {self.name!r} takes a form of {', '.join(tunings.FORMATS)}, and for vllm a size= of "
                f"{', '.join(self.keys) or 'no names'}; it was given {form!r} and {size!r}."
            )
        if not self.cache:
            raise StoreError(f"kernel {self.name!r} has chosen nothing yet that could be saved; call it first.")

        def folder(key: tunings.Key) -> str:
            return "interpreted" if self.interpreted else tunings.triton_folder(_innermost(self.fn), key, self.configs)

        batch = self.keys.index(size) if form == "vllm" else 0
        return tunings.write(Path(place), form, self.name, self.cache, self._timings, batch, folder)

    def _imported(self, call: Call) -> str | None:
        """The name of the config that another tuner has chosen for calls like this one."""
        values, dtypes = self._key_of(call)
        sizes = {**call.given(), **values}
        exact = self.keys if self.extras.exact is True else tuple(self.extras.exact or ())
        near = min(self._tunings, key=lambda one: one.distance(sizes, dtypes, exact))
        if near.distance(sizes, dtypes, exact) == math.inf:
            return None
        return next(name for name, config in self._named.items() if config == near.config)

    # What may run.

    def allowed(self, sizes: Mapping[str, int]) -> Collection[str]:
        """Names of the configs that pruning leaves at these sizes, the other arguments being those of the launch under way. Where
        a regime's end leaves none, no call is there, and it does not count."""
        call = current.call
        if call is not None and self._tunings and (imported := self._imported(call)) is not None:
            return [imported]
        if call is None or (self.early_config_prune is None and self.perf_model is None):
            return self._named
        values = tuple(sizes[name] for name in call.sizes)
        if values == tuple(call.flat[len(call.tensors) :]):
            left = self._pruned(call)
        else:
            args, kwargs = call.with_flat((*call.flat[: len(call.tensors)], *values))
            left = self._pruned_early(args, kwargs)
        return [name for name, config in self._named.items() if config in left]

    def _pruned(self, call: Call) -> Sequence[Any]:
        """What is left at the sizes of a call. Raises what the functions of `prune_configs_by` raise, and AutotunerError for
        nothing left."""
        with self._lock:
            self.nargs = dict(zip(self.arg_names, call.args, strict=False))
            left = self.prune_configs(dict(call.kwargs))
            if left:
                return list(left)
            share, self.configs_top_k = self.configs_top_k, 1  # a share of few configs rounds to none
            try:
                return list(self.prune_configs(dict(call.kwargs)))
            finally:
                self.configs_top_k = share

    def _pruned_early(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        if self.early_config_prune is None:
            return self.configs
        try:
            left = self.early_config_prune(self.configs, dict(zip(self.arg_names, args, strict=False)), **kwargs)
        except Exception:  # no call is there, and so none of the function's own
            return self.configs
        return left or self.configs

    # What candidates need.

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """Of the kernel's parameters, by name."""
        parameters = inspect.signature(self.base_fn).parameters
        return {name: one.default for name, one in parameters.items() if one.default is not one.empty}

    @functools.cached_property
    def source(self) -> str:
        """Digest of the kernel's text and that of the functions that it calls."""
        innermost = _innermost(self.fn)
        if not self.interpreted:
            return str(innermost.cache_key)
        return digest(inspect.getsource(self.base_fn))

    def has_hooks(self, config: Any) -> bool:
        """Whether something of the user's runs before or after a launch with this config."""
        return self.user_defined_pre_hook or self.user_defined_post_hook or config.pre_hook is not None

    def launch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], config: Any) -> Any:
        """One launch by Triton; returns what that does."""
        self._wait_for(config)
        with INTERPRETING if self.interpreted else contextlib.nullcontext():
            return self.fn.run(*args, **kwargs, **config.all_kwargs())

    def try_out(self, config: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """One launch on trial, with the user's hooks around it."""
        keywords = config.all_kwargs()
        if not self.has_hooks(config):
            self.launch(args, kwargs, config)
            return
        everything = {**dict(zip(self.arg_names, args, strict=False)), **kwargs, **keywords}
        if config.pre_hook is not None:
            config.pre_hook(everything)
        if self.user_defined_pre_hook:
            self.pre_hook(everything)
        try:
            self.launch(args, kwargs, config)
        except Exception as error:
            if self.user_defined_post_hook:
                self.post_hook(everything, exception=error)
            raise
        if self.user_defined_post_hook:
            self.post_hook(everything, exception=None)

    def begin_compiling(self, config: Any, call: Call) -> None:
        """Has a thread compile a config for a call, unless a hook of the config's has to run first. What Triton has against the
        launch `compiled` raises, where it counts against the config."""
        if config.pre_hook is None and id(config) not in call.begun:
            with side_by_side(), contextlib.suppress(Exception):
                call.begun[id(config)] = self.fn.run(*call.args, **{**call.kwargs, "warmup": True}, **config.all_kwargs())

    def compiled(self, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The kernel of a config for a launch with these arguments; waits until it is compiled. Raises what Triton raises."""
        self._wait_for(config)
        return self.fn.run(*args, **{**kwargs, "warmup": True}, **config.all_kwargs())

    def _wait_for(self, config: Any) -> None:
        """Waits until a config that was begun for the launch of this thread is compiled. Raises what Triton raises."""
        begun = current.made.begun.pop(id(config), None) if current.made is not None else None
        if isinstance(begun, FutureKernel):
            begun.result()

    def timer(self) -> UsersTimer | None:
        """What times launches where the user says so, by `do_bench`, once each; None: polytile's own timer."""
        bench = self._do_bench
        if bench is None or self.num_warmups is not None or self.num_reps is not None or self.use_cuda_graph:
            return None
        return UsersTimer(bench)

    def call_of(self, flat: Sequence[Any]) -> Call:
        """The launch that flat arguments belong to: that which this thread is in, or one whose arguments were made up."""
        call = current.call
        assert call is not None, "an autotuned kernel is launched through its own call"
        ints = tuple(flat[len(call.tensors) :])
        if ints == tuple(call.flat[len(call.tensors) :]):
            return call
        return self._samples.get((call.kind, ints), call)

    # MultiKernels.

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The choice at each regime of sizes met so far, with its grounds."""
        return tuple(decision for made in tuple(self._made.values()) for decision in made.decisions)

    def _check_launch(self, call: Call) -> None:
        """Raises InvalidInput where a parameter has no value, whatever config is chosen, or an argument is one too many."""
        if len(call.args) > len(self.arg_names):
            raise InvalidInput(
                f"kernel {self.name!r} was given {len(call.args)} arguments; it has {', '.join(self.arg_names)}, of which "
                f"configs set {', '.join(sorted(self._set_by_configs())) or 'none'}."
            )
        by_heuristics, below = set[str](), self.fn
        while below is not None and below is not self.base_fn:
            by_heuristics |= set(getattr(below, "values", None) or ())
            below = getattr(below, "fn", None)
        known = {*call.given(), *self.defaults, *by_heuristics, *self._set_by_configs()}
        if missing := [name for name in self.arg_names if name not in known]:
            others = sorted(self._set_by_configs() - set(self.arg_names))
            also = f" They set {', '.join(map(repr, others))}, which is no parameter." if others else ""
            raise InvalidInput(
                f"kernel {self.name!r} is launched without {', '.join(map(repr, missing))}: neither the call nor a config gives "
                f"a value.{also} The kernel has {', '.join(self.arg_names)}."
            )

    def _set_by_configs(self) -> set[str]:
        return {name for config in self.configs for name in config.kwargs}

    def _define(self, call: Call) -> MultiKernel:
        kind = (call.kind, changing())
        with self._lock:
            if kind in self._made:
                return self._made[kind]
            self._check_launch(call)
            conflicts = sorted(call.kwargs.keys() & {name for config in self.configs for name in config.kwargs})
            if conflicts:
                raise ValueError(
                    f"Conflicting meta-parameters: {', '.join(conflicts)}. Configs of kernel {self.name!r} set them; "
                    "leave them out of the call."
                )
            count = searching.SAMPLE if self.space is not None else len(self._named)
            given = {"shortlist": count, "stall": "tune", **self._options}
            timed = self._timed.setdefault(kind, Timed())
            candidates = [TritonConfig(self, name, numbers_of(config), config, timed) for name, config in self._named.items()]
            with settings.restored(given):
                made = self._made[kind] = define(self._spec(call), candidates, id(self))
        if hints := self._hints_for(call):
            made.warm(hints)
        return made

    def _spec(self, call: Call) -> KernelSpec:
        hooked = any(map(self.has_hooks, self.configs))
        changed = {*self.reset_to_zero, *self.restore_value}
        roles = ["inout" if hooked or name in changed else self.effects.role(name) for name in call.tensors]
        exact = self.extras.exact
        codes = [regime.EXACT if exact is True or (exact and name in exact) else regime.BUCKET for name in call.sizes]
        others = call.kind[-1]
        spec = KernelSpec(
            name=self.name,
            family="user",
            kernel=digest(f"{importable_name(self.base_fn)} {call.tensors} {others}"),
            args=tuple(ArgInfo(n, t.dtype, role) for n, t, role in zip(call.tensors, call.flat, roles, strict=False)),
            size_names=call.sizes,
            size_codes=tuple(codes),
            reduction=tuple(self.extras.reduction) or (TERMS,),
            target=torch.device(call.device.type) if call.device.type != "cuda" else call.device,
            reference=self._reference(roles),
            wide=self.extras.reference is not None,
            make_args=functools.partial(self._args_for, call) if self._can_make_args else None,
        )
        if call.device.type != "cuda":
            return spec
        from polytile.runtime.cuda.device import fingerprint

        return dataclasses.replace(spec, device=fingerprint(call.device.index or 0))

    def _reference(self, roles: Sequence[str]) -> Callable[..., None]:
        function = self.extras.reference
        if function is None:
            return Consensus(self.name, self._launches, roles, TERMS)
        parameters = inspect.signature(function).parameters
        takes_all = any(one.kind is one.VAR_KEYWORD for one in parameters.values())

        def values(flat: Sequence[Any]) -> Mapping[str, Any]:
            args, kwargs = self.call_of(flat).with_flat(flat)
            return {**dict(zip(self.arg_names, args, strict=False)), **{n: kwargs[n] for n in self.arg_names if n in kwargs}}

        return Given(function, None if takes_all else tuple(parameters), roles, values)

    def _launches(self) -> Sequence[tuple[str, Callable[..., None]]]:
        call = current.call
        assert call is not None
        sizes = dict(zip(call.sizes, call.flat[len(call.tensors) :], strict=True))
        allowed = self.allowed(sizes)
        return [(name, Launch(self, config)) for name, config in self._named.items() if name in allowed]

    # Arguments that no call brings.

    def arguments_at(self, sizes: Mapping[str, int]) -> dict[str, Any]:
        """What a launch at these sizes is given by name, its "grid" too, as make_args= makes it. Raises HintError where that is
        not there, or makes none of it."""
        make, name = self.extras.make_args, self.name
        made = None if make is None else make(**sizes)
        if not isinstance(made, Mapping) or "grid" not in made:
            said = "there is none" if make is None else f"it returns {sorted(made) if isinstance(made, Mapping) else made!r}"
            raise HintError(
                f"a launch of kernel {name!r} at {sizes_text(sizes.items())} needs make_args= to return the kernel's arguments "
                f'by name, and its "grid"; {said}.'
            )
        return {**{name: size for name, size in sizes.items() if name in self.arg_names}, **made}

    @property
    def _can_make_args(self) -> bool:
        stall = {**settings.overridden(), **self._options}.get("stall", "tune")
        return self.extras.make_args is not None or stall == "never"

    def _args_for(self, like: Call, sizes: Mapping[str, int]) -> tuple[Any, ...]:
        """Flat arguments at these sizes, for a launch like `like` otherwise. Raises HintError where there are none."""
        ints = tuple(sizes.get(name) for name in like.sizes)
        sample = self._samples.get((like.kind, ints))
        if sample is None and self.extras.make_args is not None:
            sample = self._made_up(like, sizes)
            if sample.kind != like.kind:
                raise HintError(
                    f"make_args= of kernel {self.name!r} makes arguments of other types, on another device, or with other key "
                    f"values than the kernel is called with: {sample.kind} in place of {like.kind}."
                )
            self._samples[like.kind, ints] = sample
        if sample is None:
            raise HintError(f"kernel {self.name!r} has no arguments for {dict(sizes)}; make_args= makes some.")
        if current.call is None:
            current.call = sample
        return sample.flat

    def _made_up(self, like: Call, sizes: Mapping[str, int]) -> Call:
        """A launch with what make_args= makes at these sizes, otherwise like `like`."""
        assert self.extras.make_args is not None
        others = {name: value for name, value in like.given().items() if name not in like.tensors}
        launch = {name: value for name, value in like.kwargs.items() if name not in self.arg_names}
        made = {**others, **launch, **sizes, **self.extras.make_args(**sizes)}
        return Call(self.arg_names, self.keys, (), made, self.effects.constants)

    def _hints_for(self, call: Call) -> list[Mapping[str, int]]:
        """The hints whose constants are those of a call: others come with the first call of theirs."""
        return [hint for hint in self.extras.hints if self._made_up(call, hint).kind[-1] == call.kind[-1]]

    def _keep_sample(self, call: Call) -> None:
        with self._lock:
            while len(self._samples) >= MOST_SAMPLES:
                self._samples.pop(next(iter(self._samples)))
            self._samples[call.kind, tuple(call.flat[len(call.tensors) :])] = call.copied()


def _check_given(fn: Any, given: Mapping[str, Any], extras: Extras) -> None:
    """Raises SignatureError for what is no Triton kernel, for configs that are none, and for names that are no parameters of the
    kernel. This comes before Triton's own checks, which not all of its releases make."""
    function = python_function(fn)
    if not hasattr(fn, "arg_names") or function is None:
        name = getattr(fn, "__name__", repr(fn))
        raise SignatureError(f"polytile.autotune decorates Triton kernels, and {name} is none: put @triton.jit between the two.")
    kernel, known = repr(function.__name__), ", ".join(fn.arg_names)
    for config in given["configs"] or ():
        if not hasattr(config, "all_kwargs"):
            raise SignatureError(
                f"configs= of kernel {kernel} takes a list of triton.Config, and has {config!r}; write "
                'triton.Config({"BLOCK": 64}, num_warps=4).'
            )
    if extras.reference is not None and (lost := [name for name in _needed(extras.reference) if name not in fn.arg_names]):
        raise SignatureError(
            f"reference= of kernel {kernel} is called with those of the kernel's arguments that its parameters name, "
            f"and names {', '.join(map(repr, lost))}; the kernel has {known}."
        )
    exact = () if isinstance(extras.exact, bool) else extras.exact
    for word, names in {"reset_to_zero": given["reset_to_zero"], "restore_value": given["restore_value"], "exact": exact}.items():
        if isinstance(names, str) or (lost := [name for name in names or () if name not in fn.arg_names]):
            raise SignatureError(
                f"{word}= of kernel {kernel} takes a list of its parameters' names, and has "
                f"{names if isinstance(names, str) else ', '.join(lost)!r}; the kernel has {known}."
            )
    if extras.hints and extras.make_args is None:
        raise SignatureError(
            f"hints= of kernel {kernel} needs make_args=, a function that makes the kernel's arguments for the sizes "
            "that it is given by name."
        )


def _key_of_parameters(fn: Any, key: Sequence[str]) -> list[str]:
    """The names in `key` that are parameters of the kernel; the log is told the others, at which releases of Triton differ."""
    lost = [name for name in key if name not in fn.arg_names]
    if lost:
        log.warning(
            "key= of kernel %r names %s, which is no parameter and is passed over; the kernel has %s.",
            _innermost(fn).__name__, ", ".join(map(repr, lost)), ", ".join(fn.arg_names),
        )  # fmt: skip
    return [name for name in key if name not in lost]


def _needed(function: Callable[..., Any]) -> list[str]:
    """The parameters that a function has to be given."""
    kinds = inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD
    return [n for n, one in inspect.signature(function).parameters.items() if one.default is one.empty and one.kind not in kinds]


def _innermost(kernel: Any) -> Any:
    """The JITFunction below heuristics and autotuners."""
    while python_function(getattr(kernel, "fn", None)) is not None and not inspect.isfunction(kernel.fn):
        kernel = kernel.fn
    return kernel
