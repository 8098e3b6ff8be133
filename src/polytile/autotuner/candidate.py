"""A config of a Triton kernel as a Candidate, and its launches."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from polytile.autotuner import isolated
from polytile.autotuner.call import Call, this_thread
from polytile.autotuner.losers import Timed
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.candidates.handles import Handle
from polytile.dispatch import trials
from polytile.problem import Config, Scalar, digest

if TYPE_CHECKING:
    from polytile.autotuner.tuner import Autotuner

EXPECTED, SLOWER = 1e-3, 2.0
"""Predicted time of every config in seconds: equal, so that all are measured. A config that was clearly slower at nearby sizes is
predicted to take SLOWER times as long, so that it is not measured (dispatch/links/prior.py)."""

SHORT = {"num_warps": "w", "num_stages": "s", "num_ctas": "c", "maxnreg": "r"}
USUAL = {"num_ctas": 1, "maxnreg": None, "ir_override": None}


def settings_of(config: Any) -> dict[str, Any]:
    """The settings that distinguish one triton.Config from another, except hooks."""
    launch = {name: getattr(config, name, None) for name in (*SHORT, "ir_override")}
    return {**config.kwargs, **{name: value for name, value in launch.items() if value != USUAL.get(name, "")}}


def name_of(config: Any) -> str:
    """A short name: "BLOCK=128 w4 s3"."""
    return " ".join(f"{SHORT[k]}{v}" if k in SHORT else f"{k}={v}" for k, v in settings_of(config).items())


def numbers_of(config: Any) -> Config:
    """A config as stored. Values that are neither numbers nor strings are converted to strings."""
    values = settings_of(config).items()
    plain: dict[str, Scalar] = {name: v if isinstance(v, int | float | str) else str(v) for name, v in values}
    return Config(tuple(sorted(plain.items())))


def named(configs: Sequence[Any]) -> dict[str, Any]:
    """Distinct configs by name. Configs that differ only in their hooks are numbered."""
    by_name: dict[str, Any] = {}
    for config in configs:
        name, number = name_of(config), 2
        while name in by_name and by_name[name] != config:
            name, number = f"{name_of(config)} #{number}", number + 1
        by_name.setdefault(name, config)
    return by_name


@dataclass(frozen=True, eq=False)
class TritonConfig(Candidate):
    """One config of an autotuned kernel."""

    tuner: Autotuner
    name: str
    config: Config
    given: Any
    timed: Timed
    origin: str = "user"

    hard_limits, foreseen = True, False

    @property
    def source_hash(self) -> str:
        """Digest of the config with its hook, and of the kernel's source with the functions that it calls: configs of one kernel
        fail independently."""
        hook = self.given.pre_hook
        return digest(f"{self.tuner.source} {self.name} {inspect.getsource(hook) if inspect.isfunction(hook) else hook}")

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return self.name in self.tuner.allowed(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        """What is left out at a call's sizes has no measurement there, so that the difference never enters a comparison of sizes
        (dispatch/subdivision.py)."""
        call = this_thread.launch.call
        if call is None:
            return EXPECTED * (SLOWER if self.timed.is_loser(self.name, sizes) else 1.0)
        return EXPECTED * (SLOWER if self.name in call.losers and sizes == call.sizes_by_name else 1.0)

    @property
    def in_main_script(self) -> bool:
        """Whether another process cannot import the kernel, which is necessary under the interpreter. Machine code needs no
        module."""
        return self.tuner.interpreted and isolated.place_of(self.tuner) is None

    def handle_for(self, args: Sequence[Any]) -> Handle:
        call = self.tuner.call_of(args)
        return isolated.handle(self.tuner, self.given, call, *call.with_flat(args))

    def prepare(self) -> None:
        """Compile the kernel for this thread's launch in another thread."""
        call = this_thread.launch.call
        if call is not None and not self.interpreted:
            self.tuner.begin_compiling(self.given, call)

    def entry(self) -> PythonEntry:
        """Compile the kernel for this thread's launch."""
        call = this_thread.launch.call
        if call is not None and not self.interpreted and self.given.pre_hook is None:
            self.tuner.compiled(self.given, call.args, call.kwargs)
        launch = Launch(self.tuner, self.given)
        return PythonEntry(launch, recordable=not self.tuner.has_hooks(self.given), timer=self.tuner.timer())


class Launch:
    """Launches a kernel with one config, on the given tensors and sizes; everything else is as in this thread's launch."""

    def __init__(self, tuner: Autotuner, config: Any) -> None:
        self.tuner, self.config = tuner, config
        self.keywords = config.all_kwargs()

    def __call__(self, *flat: Any) -> None:
        here = this_thread.launch
        call = here.call
        assert call is not None, "an autotuned kernel is launched through its own call"
        form = here.route.forms.get(self) if here.route is not None and not trials.within() else None
        if form is not None:
            self.tuner.best_config = self.config
            call.returned = form.launch(call.kwargs["grid"], self.tuner.values_of(call))
            return
        if trials.within():
            call = self.tuner.call_of(flat)
            call.tried = True
            self.tuner.try_out(self.config, *call.with_flat(flat))
        else:
            self._launch(call, flat)

    def _launch(self, call: Call, flat: Sequence[Any]) -> None:
        tuner, config = self.tuner, self.config
        args, kwargs = call.args, call.kwargs
        if call.tried or config.pre_hook is not None:
            everything = {**dict(zip(tuner.arg_names, args, strict=False)), **kwargs, **self.keywords}
            if call.tried:
                call.tried = False
                tuner.after_trials(everything)
            if config.pre_hook is not None:
                config.pre_hook(everything)
        tuner.best_config = config
        call.returned = tuner.launch(args, kwargs, config)
        route = this_thread.launch.route
        if route is not None and config.pre_hook is None and tuner.quick is not None:
            tuner.quick.prepare(route, self, config, call.returned)
