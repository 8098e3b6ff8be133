"""Triton kernels with many configs behind one call. `polytile.autotune` creates them; docs/autotune.md shows how.

An Autotuner is a subclass of Triton's, so that whatever checks for that (Dynamo, other libraries) recognises it. It has one
MultiKernel for each combination of dtypes, device and key values that are not sizes.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from triton.runtime._async_compile import FutureKernel
from triton.runtime.autotuner import Autotuner as TritonsAutotuner

from polytile import locks
from polytile import options as settings
from polytile.autotuner import declaration, tunings
from polytile.autotuner import search as searching
from polytile.autotuner.call import Call, plain, tensor_in, this_thread
from polytile.autotuner.candidate import TritonConfig, named, numbers_of
from polytile.autotuner.compiling import side_by_side
from polytile.autotuner.declaration import Extras
from polytile.autotuner.effects import effects_of, innermost
from polytile.autotuner.kernel_spec import spec_of
from polytile.autotuner.losers import Timed, processors
from polytile.autotuner.quick import Quick, Route
from polytile.autotuner.samples import Samples
from polytile.autotuner.source import digest_of, layers_above_kernel
from polytile.autotuner.user_timer import UserTimer
from polytile.dispatch.conditions import changing
from polytile.dispatch.decision import Decision
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import define
from polytile.errors import InvalidInput, StoreError

INTERPRETING = locks.rlock()
"""Held while Triton's interpreter runs a kernel: it keeps the current program's position in the grid in a global variable."""


class Autotuner(TritonsAutotuner):
    """The result of `polytile.autotune`: `kernel[grid](...)` launches the best config for the sizes of the call.

    Any number of threads may call it. `best_config` is the config of the last launch. `cache` has one config per regime, under
    the key of the call that decided it.
    """

    def __init__(self, fn: Any, given: Mapping[str, Any], extras: Extras) -> None:
        declaration.check(fn, given, extras)
        key = declaration.known_keys(fn, given["key"] or ())
        space = searching.Space.of(extras.search) if extras.search is not None else None
        configs = [*(given["configs"] or ()), *map(searching.config_of, space.sample() if space is not None else ())]
        super().__init__(fn, fn.arg_names, **{**given, "configs": configs, "key": key})
        self.configs: list[Any] = list(self.configs)  # Triton adds a default config if none is given
        self.space, self.extras = space, extras
        self.name = self.base_fn.__name__
        settings.check_environment()
        self.options = settings.check(extras.options, f"options of kernel {self.name!r}")
        self.named = named(self.configs)
        self.effects = effects_of(self.base_fn)
        self.interpreted = type(innermost(fn)).__name__ == "InterpretedFunction"
        self.quick = Quick.of(fn, self.keys, self, self._otherwise)
        self._made: dict[tuple[Any, ...], MultiKernel] = {}
        self._timed: dict[tuple[Any, ...], Timed] = {}
        self.samples = Samples(self)
        self._tunings: list[tunings.Tuning] = []
        self._timings: dict[tuple[Any, ...], dict[Any, list[float]]] = {}
        self.configs_top_k: Any = self.configs_top_k
        self._lock = locks.rlock()
        self.best_config: Any = None
        self.configs_timings: dict[Any, list[float]] = {}
        functools.update_wrapper(self, self.base_fn, updated=())

    def __repr__(self) -> str:
        return f"<polytile.autotune {self.name}: {len(self.named)} configs by {', '.join(self.keys) or 'no key'}>"

    # Calls.

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Launch the best config for these arguments, and return what Triton's launch returns.

        Raises
        ------
        NoCandidate
            If no config can run.
        """
        given = {name: value for name, value in kwargs.items() if name not in ("grid", "warmup")}
        if self.quick is None or torch.compiler.is_dynamo_compiling() or kwargs.get("warmup") or "grid" not in kwargs:
            return self._run(args, kwargs, None)
        return self.quick.launcher(kwargs["grid"])(*args, **given)

    def __getitem__(self, grid: Any) -> Any:
        """The function that launches the kernel with this grid, as in `kernel[grid](...)`."""
        return super().__getitem__(grid) if self.quick is None else self.quick.launcher(grid)

    @torch.compiler.disable
    def _otherwise(self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], key: bytes | None) -> Any:
        """Launch without the fast path."""
        return self._run(args, {**kwargs, "grid": grid, "warmup": False}, key)

    @torch.compiler.disable
    def _run(self, args: tuple[Any, ...], kwargs: dict[str, Any], key: bytes | None) -> Any:
        """`key` is that of a route for calls of this kind; None if there cannot be one."""
        if kwargs.get("warmup") or (len(self.configs) == 1 and self.space is None):
            return self._run_only(args, kwargs, key)
        call = Call(self.arg_names, self.keys, args, kwargs, self.effects.constants)
        here = this_thread.launch
        before = here.call, here.route
        here.call, here.route = call, self.quick.route(key) if self.quick is not None else None
        try:
            made = self._made.get((call.kind, changing())) or self._define(call)
            new = made.dispatcher.get(made.dispatcher.key_of(*call.flat)) is None
            if new:
                made = self._before_choosing(call, made)
            made(*call.flat)
            if new:
                self._after_choosing(call, made)
            if self.quick is not None and key is not None and self.quick.can_call(made):
                self._remember(key, call, made)
            return call.returned
        finally:
            here.call, here.route = before
            call.withdraw()

    def _remember(self, key: bytes, call: Call, made: MultiKernel | None) -> Route:
        """Make later launches of this kind take the fast path."""
        assert self.quick is not None
        tensors, sizes = (call.tensors, call.sizes) if made is not None else ((), ())
        return self.quick.remember(key, made, tensors, sizes, self.values_of(call))

    def values_of(self, call: Call) -> tuple[Any, ...]:
        """The arguments of a launch in the order of the parameters. Arguments that configs set may be missing, and are then
        None."""
        given = {**self.defaults, **call.given()}
        return tuple(given.get(name) for name in self.arg_names)

    def _run_only(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], key: bytes | None) -> Any:
        """Launch the first config."""
        self.best_config = config = self.configs[0]
        if config.pre_hook is not None:
            config.pre_hook({**dict(zip(self.arg_names, args, strict=False)), **kwargs, **config.all_kwargs()})
        kernel = self.launch(args, kwargs, config)
        if self.quick is not None and key is not None and config.pre_hook is None:
            call = Call(self.arg_names, self.keys, args, kwargs, self.effects.constants)
            self.quick.prepare(self._remember(key, call, None), None, config, kernel)
        return kernel

    def _before_choosing(self, call: Call, made: MultiKernel) -> MultiKernel:
        """Prune configs, reset tensors and run the search, as far as requested."""
        if not self.extras.exact:
            self._leave_out_losers(call, made)
        for config in self._left_at(call, call.sizes_given):
            if config not in self.named.values():
                self._add([config])
        self._reset(call.given())
        call.tried = bool(self.reset_to_zero) or call.tried
        if made.learning is not None and self.extras.make_args is None:
            self.samples.keep(call)
        made = self._made.get((call.kind, changing())) or self._define(call)
        return made if self.space is None else self._searched(call, made)

    def _leave_out_losers(self, call: Call, made: MultiKernel) -> None:
        timed, sizes = self._timed[call.kind, changing()], call.sizes_by_name
        timed.read(made.decisions)
        timed.launched(sizes, self.programs(call))
        call.losers = frozenset(name for name in self.named if timed.is_loser(name, sizes))

    def programs(self, call: Call) -> dict[str, int]:
        """How many programs each config launches; what a grid's function cannot say for a config is missing."""
        grid, values = call.kwargs.get("grid"), dict(zip(self.arg_names, self.values_of(call), strict=True))
        made = {}
        for name, config in self.named.items():
            with contextlib.suppress(Exception):  # the launch raises it too, where it counts against the config
                sides = grid({**values, **config.all_kwargs()}) if callable(grid) else grid or ()
                made[name] = math.prod(map(int, sides))
        return made

    def _reset(self, given: Mapping[str, Any]) -> None:
        for name in self.reset_to_zero:
            if (tensor := tensor_in(given.get(name))) is not None:
                tensor.zero_()

    def after_trials(self, everything: dict[str, Any]) -> None:
        """Prepare the arguments on which configs were tried for the actual launch."""
        if self.user_defined_pre_hook:
            self.pre_hook(everything, reset_only=True)
        else:
            self._reset(everything)

    def _after_choosing(self, call: Call, made: MultiKernel) -> None:
        """Publish the choice where Triton's autotuner would."""
        decision = made.decision_at(*call.flat)
        if decision is None or self.best_config is None:
            return
        seconds = {one.candidate: one.seconds for one in decision.standings if one.seconds is not None and one.seconds > 0}
        self.configs_timings = {self.named[name]: [1e3 * each] * 3 for name, each in seconds.items()}
        values, dtypes = self._key_of(call)
        key = (*values.values(), *dtypes)
        self.cache[key], self._timings[key] = self.named[decision.candidate], self.configs_timings

    def _key_of(self, call: Call) -> tuple[dict[str, Any], tuple[str, ...]]:
        """What distinguishes calls for Triton: the values that `key` names, and the dtypes."""
        given = call.given()
        dtypes = tuple(str(value.dtype) for value in given.values() if hasattr(value, "dtype"))
        return {name: plain(given[name]) for name in self.keys if name in given}, dtypes

    def _searched(self, call: Call, made: MultiKernel) -> MultiKernel:
        """Decide for the regime of a call, and measure the neighbours of the best config until none is better."""
        assert self.space is not None
        for _ in range(searching.ROUNDS):
            made.dispatcher.insert(made.dispatcher.key_of(*call.flat), made.choose_entry(call.flat))
            decision = made.decision_at(*call.flat)
            if decision is None:
                break
            beside = self.space.beside(searching.point_of(self.named[decision.candidate]))
            fresh = [config for config in map(searching.config_of, beside) if config not in self.named.values()]
            if not fresh:
                break
            self._add(fresh)
            made = self._define(call)
        return made

    def _add(self, configs: Sequence[Any]) -> None:
        """Append further configs."""
        with self._lock:
            self.configs = [*self.configs, *configs]
            self.named = named(self.configs)
            self._made.clear()
            if self.quick is not None:
                self.quick.routes.clear()

    # Other tuners' choices.

    def load_tunings(self, place: str | Path, size: str = "") -> int:
        """Make calls run the choices in a file of another tuner, without measuring. docs/autotune.md says which calls.

        Parameters
        ----------
        place
            A file, or a folder of such files: Triton's `cache_results`, triton-dejavu's, or vLLM's for fused mixtures of experts.
        size
            The kernel's parameter that corresponds to the batch size in vLLM's files.

        Returns
        -------
        The number of choices.

        Raises
        ------
        StoreError
            If the file cannot be read, has an unknown format, or holds nothing for this kernel.
        """
        read = tunings.read(Path(place), self.name, self.keys, size)
        for tuning in read:
            lost = [name for name in (*tuning.config.kwargs, *(n for n, _ in tuning.values)) if name not in self.arg_names]
            if lost:
                raise StoreError(f"{place} says {lost[0]!r}, and kernel {self.name!r} has {', '.join(self.arg_names)}.")
        with self._lock:
            self._add([one for one in dict.fromkeys(tuning.config for tuning in read) if one not in self.named.values()])
            self._tunings = [*self._tunings, *read]
        return len(read)

    def save_tunings(self, place: str | Path, form: str = "triton", size: str = "") -> list[Path]:
        """Write the choices at the sizes of calls so far, in a format that other tuners read.

        Parameters
        ----------
        place
            A folder for the form "triton", such as Triton's cache directory; otherwise a file.
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
            If nothing has been chosen yet, or the form or size is unknown.
        """
        if form not in tunings.FORMATS or (form == "vllm" and size not in self.keys):
            raise StoreError(
                f"save_tunings of kernel {self.name!r} takes a form of {', '.join(tunings.FORMATS)}, and for vllm a size= of "
                f"{', '.join(self.keys) or 'no names'}; it was given {form!r} and {size!r}."
            )
        if not self.cache:
            raise StoreError(f"kernel {self.name!r} has chosen nothing yet that could be saved; call it first.")

        def folder(key: tunings.Key) -> str:
            return "interpreted" if self.interpreted else tunings.triton_folder(innermost(self.fn), key, self.configs)

        batch = self.keys.index(size) if form == "vllm" else 0
        return tunings.write(Path(place), form, self.name, self.cache, self._timings, batch, folder)

    def _imported(self, call: Call) -> str | None:
        """The name of the config that another tuner chose for calls like this one; None if there is none."""
        values, dtypes = self._key_of(call)
        sizes = {**call.given(), **values}
        exact = self.keys if self.extras.exact is True else tuple(self.extras.exact or ())
        near = min(self._tunings, key=lambda one: one.distance(sizes, dtypes, exact))
        if near.distance(sizes, dtypes, exact) == math.inf:
            return None
        return next(name for name, config in self.named.items() if config == near.config)

    # Pruning.

    def allowed(self, sizes: Mapping[str, int]) -> Collection[str]:
        """Names of the configs that remain after pruning at these sizes, with the other arguments of the current launch.

        If pruning at the end of a regime leaves no config, all are allowed, as no call has these sizes.
        """
        call = this_thread.launch.call
        if call is not None and self._tunings and (imported := self._imported(call)) is not None:
            return [imported]
        if call is None or (self.early_config_prune is None and self.perf_model is None):
            return self.named
        left = self._left_at(call, tuple(sizes[name] for name in call.sizes))
        return [name for name, config in self.named.items() if config in left]

    def _left_at(self, call: Call, values: tuple[int, ...]) -> Sequence[Any]:
        """The configs that remain at these sizes. The functions in `prune_configs_by` are asked once for each, as every config
        asks."""
        key = values, len(self.configs)
        if key not in call.left:
            if values == call.sizes_given:
                call.left[key] = self._pruned(call)
            else:
                call.left[key] = self._pruned_early(*call.with_flat((*call.flat[: len(call.tensors)], *values)))
        return call.left[key]

    def _pruned(self, call: Call) -> Sequence[Any]:
        """The configs that remain at the sizes of a call. Raises whatever the functions in `prune_configs_by` raise, and
        AutotunerError if none remains."""
        with self._lock:
            self.nargs: dict[str, Any] | None = dict(zip(self.arg_names, call.args, strict=False))
            share = self.configs_top_k
            try:
                left = self.prune_configs(dict(call.kwargs))
                if not left:
                    self.configs_top_k = 1  # a fraction of few configs may round to none
                    left = self.prune_configs(dict(call.kwargs))
                return list(left)
            finally:
                self.configs_top_k, self.nargs = share, None  # the call's tensors may go

    def _pruned_early(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        if self.early_config_prune is None:
            return self.configs
        try:
            left = self.early_config_prune(self.configs, dict(zip(self.arg_names, args, strict=False)), **kwargs)
        except Exception:  # no call has these sizes, so the function may not expect them
            return self.configs
        return left or self.configs

    # The interface to candidates.

    @functools.cached_property
    def defaults(self) -> dict[str, Any]:
        """Default values of the kernel's parameters, by name."""
        parameters = inspect.signature(self.base_fn).parameters
        return {name: one.default for name, one in parameters.items() if one.default is not one.empty}

    @functools.cached_property
    def source(self) -> str:
        """Digest of the source of the kernel, of the functions that it calls, and of heuristics between tuner and kernel."""
        return digest_of(self.fn, self.base_fn, self.interpreted)

    def has_hooks(self, config: Any) -> bool:
        """Whether a user's hook runs before or after a launch with this config."""
        return self.user_defined_pre_hook or self.user_defined_post_hook or config.pre_hook is not None

    def launch(self, args: tuple[Any, ...], kwargs: Mapping[str, Any], config: Any) -> Any:
        """Launch the kernel by Triton, and return its result."""
        self._wait_for(config)
        with INTERPRETING if self.interpreted else contextlib.nullcontext():
            return self.fn.run(*args, **kwargs, **config.all_kwargs())

    def try_out(self, config: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Launch the kernel on trial, with the user's hooks around it."""
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
        """Compile a config for a call in a thread, unless a hook of the config must run first. Errors are raised by `compiled`,
        where they count against the config."""
        if config.pre_hook is None and id(config) not in call.begun:
            with side_by_side(), contextlib.suppress(Exception):
                call.begun[id(config)] = self.fn.run(*call.args, **{**call.kwargs, "warmup": True}, **config.all_kwargs())

    def compiled(self, config: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """The kernel of a config for a launch with these arguments. Waits until it is compiled; raises what Triton raises."""
        self._wait_for(config)
        return self.fn.run(*args, **{**kwargs, "warmup": True}, **config.all_kwargs())

    def _wait_for(self, config: Any) -> None:
        """Wait until a config whose compilation was begun for this thread's launch is compiled. Raises what Triton raises."""
        call = this_thread.launch.call
        begun = call.begun.pop(id(config), None) if call is not None else None
        if isinstance(begun, FutureKernel):
            begun.result()

    def timer(self) -> UserTimer | None:
        """A timer that uses the user's `do_bench`, once per race; None means polytile's own timer."""
        bench = self._do_bench
        if bench is None or self.num_warmups is not None or self.num_reps is not None or self.use_cuda_graph:
            return None
        return UserTimer(bench)

    def call_of(self, flat: Sequence[Any]) -> Call:
        """The launch to which flat arguments belong: this thread's, or one with arguments made for measuring."""
        call = this_thread.launch.call
        assert call is not None, "an autotuned kernel is launched through its own call"
        return self.samples.call_of(call, flat)

    # MultiKernels.

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The choice at each regime so far, with its grounds."""
        return tuple(decision for made in tuple(self._made.values()) for decision in made.decisions)

    def _check_launch(self, call: Call) -> None:
        """Raise InvalidInput if a parameter has no value under any config, or if there are too many arguments."""
        if len(call.args) > len(self.arg_names):
            raise InvalidInput(
                f"kernel {self.name!r} was given {len(call.args)} arguments; it has {', '.join(self.arg_names)}, of which "
                f"configs set {', '.join(sorted(self._set_by_configs())) or 'none'}."
            )
        by_heuristics = {name for layer in layers_above_kernel(self.fn) for name in getattr(layer, "values", None) or ()}
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
            count = searching.SAMPLE if self.space is not None else len(self.named)
            given = {"shortlist": count, "stall": "tune", **self.options}
            timed = self._timed.setdefault(kind, Timed(processors(call.device)))
            candidates = [TritonConfig(self, name, numbers_of(config), config, timed) for name, config in self.named.items()]
            with settings.restored(given):
                made = self._made[kind] = define(spec_of(self, call), candidates, id(self))
        if hints := self.samples.hints_for(call):
            made.warm(hints)
        return made
