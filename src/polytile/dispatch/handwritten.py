"""Kernels that users write: a signature, a reference and any number of implementations, behind one call.

`polytile.kernel` makes them; docs/kernels.md shows how. Each combination of element types, device and contiguity that is
met has a MultiKernel of its own, which chooses, measures, checks and remembers as it does for generated kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from polytile import locks
from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.candidates.handles import PythonHandle, handle_of_function
from polytile.dispatch.conditions import changing
from polytile.dispatch.decision import Decision
from polytile.dispatch.links import forced
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.registry import alive, define
from polytile.dispatch.signature import Signature
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.errors import InvalidInput, SignatureError
from polytile.facts import Strided
from polytile.problem import Config, digest, sizes_text
from polytile.runtime import regime

log = logging.getLogger("polytile.dispatch")

Run = Callable[..., None]
Sizes = Mapping[str, int]

UNPREDICTED = 1e-3
"""Seconds that an implementation is taken to need where none has a prediction: alike for all, so that all are measured."""


class Asked:
    """A function of the sizes that came with an implementation. Where it raises, `otherwise` is the answer, and a warning says so
    the first time."""

    def __init__(self, function: Callable[[Sizes], Any], said: str, otherwise: Any, then: str) -> None:
        self.function, self.said, self.otherwise, self.then = function, said, otherwise, then
        self._told = False

    def __call__(self, sizes: Sizes) -> Any:
        try:
            return type(self.otherwise)(self.function(sizes))
        except Exception as error:
            if not self._told:
                self._told = True
                at = sizes_text(sizes.items())
                log.warning("%s raised %s: %s at %s; %s.", self.said, type(error).__name__, error, at, self.then)
            return self.otherwise


class LikeTheBest:
    """The prediction of an implementation that has none of its own: that of the best predicted, so that no other's keeps it from
    being measured."""

    def __init__(self, predictions: Sequence[Callable[[Sizes], float]]) -> None:
        self.predictions = tuple(predictions)

    def __call__(self, sizes: Sizes) -> float:
        return min((predicted(sizes) for predicted in self.predictions), default=UNPREDICTED)


@dataclass(frozen=True, eq=False)
class Implementation(Candidate):
    """A user's function as a Candidate. It is called with the tensors of the signature, then its sizes."""

    name: str
    run: Run
    when: Callable[[Sizes], bool] | None = None
    predicted: Callable[[Sizes], float] | None = None
    version: str = ""
    origin: str = "user"

    config = Config()
    hard_limits = True

    @functools.cached_property
    def source_hash(self) -> str:
        """Of the function's own text, the plain values that it captures, and its `version`; what it calls is not seen."""
        return digest(f"{self.version} {_text_of(self.run)}")

    def valid(self, sizes: Sizes) -> bool:
        return self.when is None or self.when(sizes)

    def cost(self, sizes: Sizes) -> float:
        return UNPREDICTED if self.predicted is None else self.predicted(sizes)

    @property
    def in_main_script(self) -> bool:
        return getattr(self.run, "__module__", "") == "__main__"

    def entry(self) -> PythonEntry:
        return PythonEntry(self.run)

    def handle(self) -> PythonHandle | None:
        """None for what a script itself defines: another process would have to run the script to find it again."""
        return None if self.in_main_script else handle_of_function(self.run)


def _text_of(run: Run) -> str:
    """What tells a function from an edited one, in this process and in others; of a partial, a method or a callable object, the
    function behind it."""
    if isinstance(run, functools.partial):
        return f"{_text_of(run.func)} {_plain(run.keywords)} {_plain({str(k): value for k, value in enumerate(run.args)})}"
    if inspect.ismethod(run):
        return _text_of(run.__func__)
    if not inspect.isfunction(run):
        called = type(run).__call__
        return f"{type(run).__module__}.{type(run).__qualname__} {_text_of(called) if inspect.isfunction(called) else ''}"
    plain = _plain(inspect.getclosurevars(run).nonlocals)
    try:
        return f"{inspect.getsource(run)} {plain}"
    except OSError:  # typed at a prompt
        code = run.__code__
        return f"{code.co_code!r} {code.co_consts!r} {code.co_names!r} {plain}"


def _plain(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Those of the values that are the same in every process."""
    return sorted((name, repr(value)) for name, value in values.items() if isinstance(value, int | float | str | tuple))


class Kernel:
    """What `polytile.kernel` makes: call it with the tensors of its signature, outputs included. It returns None.

    Any number of threads may call it. No gradient flows through a call, and `torch.compile` does not look into it;
    docs/kernels.md says how to have both.
    """

    def __init__(
        self, signature: Signature, reference: Run, reduction: Sequence[str], options: Mapping[str, Any]
    ) -> None:
        self._reduction = signature.reduction(reduction)
        signature.check_taken(reference, "what polytile.kernel decorates")
        if not hasattr(reference, "__qualname__"):
            raise SignatureError(f"what polytile.kernel decorates has to have a name: write a def; it was given {reference!r}.")
        self.signature, self.reference = signature, reference
        self.name = reference.__name__
        settings.check_environment()
        self._options = settings.check(options, f"options of kernel {self.name!r}")
        self._implementations: list[Implementation] = []
        self._costs: dict[str, Callable[[Sizes], float]] = {}
        self._made: dict[tuple[Any, ...], MultiKernel] = {}
        self._lock = locks.lock()
        functools.update_wrapper(self, reference)

    def implementation(
        self,
        function: Run | None = None,
        *,
        name: str = "",
        valid: Callable[[Sizes], bool] | None = None,
        cost: Callable[[Sizes], float] | None = None,
        version: str = "",
    ) -> Any:
        """Adds an implementation; a decorator that returns the function as it is.

        If two implementations are equally fast and none has a `cost`, the one that was added first runs.

        Parameters
        ----------
        function
            Called with the tensors of the signature, then with the sizes. It writes the outputs.
        name
            Its name in decisions and in the option `force`; the function's name by default.
        valid
            Whether it can run at given sizes, a mapping such as {"M": 8, "N": 4096}. It is asked at both ends of a regime; later
            calls in the regime are not asked again.
        cost
            Predicted seconds at given sizes: for ties, and where nothing may be measured.
        version
            Change it when something changes that the function calls. Measurements of another version do not count.

        Raises
        ------
        SignatureError
            The name is taken, `valid` or `cost` is not a function, or the function cannot be called so.
        """
        if function is None:
            return functools.partial(self.implementation, name=name, valid=valid, cost=cost, version=version)
        made = Implementation(name or getattr(function, "__name__", ""), function, version=version)
        self.signature.check_taken(function, f"implementation {made.name!r} of kernel {self.name!r}")
        for word, given in (("valid", valid), ("cost", cost)):
            if given is not None and not callable(given):
                raise SignatureError(
                    f"{word}= of implementation {made.name!r} takes a function of the sizes, as lambda sizes: ...; "
                    f"it was given {given!r}."
                )
        of = f"of implementation {made.name!r} of kernel {self.name!r}"
        if valid is not None:
            made = dataclasses.replace(made, when=Asked(valid, f"valid= {of}", False, "it is not used where that is so"))
        with self._lock:
            self._check_free(made.name)
            if cost is not None:
                self._costs[made.name] = Asked(cost, f"cost= {of}", UNPREDICTED, f"it is taken for {UNPREDICTED:g} s there")
            self._implementations.append(made)
            self._made.clear()
        return function

    def _check_free(self, name: str) -> None:
        taken = ["reference", *(other.name for other in self._implementations)]
        if not name or name in taken:
            raise SignatureError(
                f"kernel {self.name!r} cannot name an implementation {name!r}; give it a name= other than {', '.join(taken)}."
            )

    @torch.compiler.disable
    def __call__(self, *tensors: torch.Tensor) -> None:
        """Runs the implementation that is best at these sizes. Raises InvalidInput if tensors do not fit the signature, are on
        several devices, or require a gradient; NoCandidate if nothing can run at these sizes."""
        sizes = self.signature.sizes(self.name, tensors)
        if torch.is_grad_enabled():
            self._check_gradients(tensors)
        kinds = tuple((tensor.dtype, tensor.device, tensor.is_contiguous()) for tensor in tensors)
        now = changing()
        made = self._made.get((kinds, now)) or self._define(kinds, now)
        with torch.no_grad():
            made(*tensors, *sizes)

    def _check_gradients(self, tensors: Sequence[torch.Tensor]) -> None:
        for (name, _, _), tensor in zip(self.signature.tensors, tensors, strict=True):
            if tensor.requires_grad:
                raise InvalidInput(
                    f"argument {name!r} of kernel {self.name!r} requires a gradient, and none flows through this call. Call it "
                    "under torch.no_grad() or with detached tensors, or make it an operator with a gradient of its own, as "
                    "docs/kernels.md shows."
                )

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The choice at each regime of sizes met so far, with its grounds."""
        return tuple(decision for made in tuple(self._made.values()) for decision in made.decisions)

    def _define(self, kinds: tuple[tuple[torch.dtype, torch.device, bool], ...], now: Any) -> MultiKernel:
        """The MultiKernel for tensors of these element types, devices and contiguities, under the conditions `now`."""
        devices = {device for _, device, _ in kinds}
        if len(devices) != 1:
            raise InvalidInput(
                f"kernel {self.name!r} was given tensors on {', '.join(sorted(map(str, devices)))}; all have to be on one device."
            )
        with self._lock:
            others = LikeTheBest(tuple(self._costs.values()))
            last = Implementation("reference", self.reference, predicted=others, origin="reference")
            given_by = self._costs.get
            first = [dataclasses.replace(one, predicted=given_by(one.name, others)) for one in self._implementations]
            most = len(first)
            given = {"shortlist": max(1, most), **self._options}
            with settings.restored(given):
                made = define(self._spec(kinds, devices.pop()), (*first, last), id(self))
                forced.warn_of_idle(lambda: ((kernel.spec.name, kernel.names) for kernel in alive()))
            return self._made.setdefault((kinds, now), made)

    def _spec(self, kinds: Sequence[tuple[torch.dtype, torch.device, bool]], device: torch.device) -> KernelSpec:
        signature = self.signature
        pairs = list(zip(signature.tensors, kinds, strict=True))
        spec = KernelSpec(
            name=self.name,
            family="user",
            kernel=digest(f"{self.reference.__module__}.{self.reference.__qualname__} {signature.text}"),
            args=tuple(ArgInfo(name, dtype, role) for (name, _, role), (dtype, _, _) in pairs),
            size_names=signature.size_names,
            size_codes=(regime.BUCKET,) * len(signature.size_names),
            layouts=tuple(Strided(name) for (name, _, _), (_, _, contiguous) in pairs if not contiguous),
            reduction=self._reduction,
            target=torch.device(device.type) if device.type != "cuda" else device,
            reference=self.reference,
        )
        if device.type != "cuda":
            return spec
        from polytile.runtime.cuda.device import fingerprint

        return dataclasses.replace(spec, device=fingerprint(device.index or 0))
