"""Kernels that users write: a signature, a reference and any number of implementations, behind one call.

`polytile.kernel` makes them; docs/kernels.md shows how. Each combination of element types, device and contiguity that is
met has a MultiKernel of its own, which chooses, measures, checks and remembers as it does for generated kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from polytile import locks
from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.candidates.handles import PythonHandle, handle_of_function, importable_name, with_keywords
from polytile.dispatch.conditions import changing
from polytile.dispatch.decision import Decision
from polytile.dispatch.links import forced
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.operators import TYPES, Gradient, Operator, Recorded
from polytile.dispatch.registry import alive, define
from polytile.dispatch.signature import Signature
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.errors import HintError, InvalidInput, SignatureError
from polytile.facts import Strided
from polytile.problem import Config, Scalar, digest, sizes_text
from polytile.runtime import noise, regime

log = logging.getLogger("polytile.dispatch")

Run = Callable[..., None]
Keywords = Mapping[str, Scalar]
Sizes = Mapping[str, int]
"""With the keyword arguments where users' functions are asked."""

UNPREDICTED = 1e-3
"""Seconds that an implementation is taken to need where none has a prediction: alike for all, so that all are measured."""


Kind = tuple[torch.dtype, torch.device, bool]
"""A tensor's element type and device, and whether it is contiguous."""


class Asked:
    """A function of the sizes that came with an implementation. Where it raises, `otherwise` is the answer, and a warning says so
    the first time."""

    def __init__(self, function: Callable[[Sizes], Any], said: str, otherwise: Any, then: str) -> None:
        self.function, self.said, self.otherwise, self.then = function, said, otherwise, then
        self._reported = False

    def __call__(self, sizes: Sizes) -> Any:
        try:
            return type(self.otherwise)(self.function(sizes))
        except Exception as error:
            if not self._reported:
                self._reported = True
                at = sizes_text(sizes.items())
                log.warning("%s raised %s: %s at %s; %s.", self.said, type(error).__name__, error, at, self.then)
            return self.otherwise


class Reference:
    """A user's reference as the gate calls it. Raises SignatureError where it returns its results: what it should have written is
    then whatever lay there, and would be taken for right."""

    def __init__(self, name: str, function: Run, signature: Signature, keywords: Keywords) -> None:
        self.name, self.function, self.keywords = name, function, keywords
        self.written = [position for position, (_, _, role) in enumerate(signature.tensors) if role != "in"]
        self.names = [signature.names[position] for position in self.written]

    def __call__(self, *args: Any) -> None:
        returned = self.function(*args, **self.keywords)
        if returned is not None and not any(returned is args[position] for position in self.written):
            raise SignatureError(
                f"the reference of kernel {self.name!r} returned {type(returned).__name__}; it has to write its results to "
                f"{', '.join(self.names)}, as in {self.names[0]}.copy_(...), and return nothing."
            )


class LikeTheBest:
    """The prediction of an implementation that has none of its own: that of the best predicted, so that no other's keeps it from
    being measured."""

    def __init__(self, predictions: Sequence[Callable[[Sizes], float]]) -> None:
        self.predictions = tuple(predictions)

    def __call__(self, sizes: Sizes) -> float:
        return min((predicted(sizes) for predicted in self.predictions), default=UNPREDICTED)


@dataclass(frozen=True, eq=False)
class Implementation(Candidate):
    """A user's function as a Candidate. It is called with the tensors of the signature, then its sizes, and `keywords`."""

    name: str
    run: Run
    when: Callable[[Sizes], bool] | None = None
    predicted: Callable[[Sizes], float] | None = None
    version: str = ""
    origin: str = "user"
    keywords: Keywords = dataclasses.field(default_factory=dict)

    config = Config()
    hard_limits = True

    @functools.cached_property
    def source_hash(self) -> str:
        """Digest of the function's text, the plain values that it captures, and its `version`, but not of the functions that it
        calls."""
        return digest(f"{self.version} {_text_of(self.run)}{_said(self.keywords)}")

    def valid(self, sizes: Sizes) -> bool:
        return self.when is None or self.when(self._asked(sizes))

    def cost(self, sizes: Sizes) -> float:
        return UNPREDICTED if self.predicted is None else self.predicted(self._asked(sizes))

    def _asked(self, sizes: Sizes) -> Any:
        return {**sizes, **self.keywords} if self.keywords else sizes

    @property
    def in_main_script(self) -> bool:
        return getattr(self.run, "__module__", "") == "__main__"

    def entry(self) -> PythonEntry:
        return PythonEntry(functools.partial(self.run, **self.keywords) if self.keywords else self.run)

    def handle(self) -> PythonHandle | None:
        """None for what a script itself defines: another process would have to run the script to find it again."""
        handle = None if self.in_main_script else handle_of_function(self.run)
        return with_keywords(handle, self.keywords) if handle is not None and self.keywords else handle


def _said(keywords: Keywords) -> str:
    """Keyword arguments as part of a digest; "" if there are none."""
    return f" {sorted(keywords.items())}" if keywords else ""


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
    """The captured values that are the same in every process."""
    return sorted((name, repr(value)) for name, value in values.items() if isinstance(value, int | float | str | tuple))


class Kernel:
    """What `polytile.kernel` makes: call it with the tensors of its signature, outputs included, in order or by name, and with
    the keyword arguments of its reference. It returns None.

    Any number of threads may call it. To torch.compile and torch.export a call is one operator, under
    `torch.ops.polytile_kernels`. Gradients flow where `Kernel.gradient` says how.
    """

    def __init__(
        self,
        signature: Signature,
        reference: Run,
        reduction: Sequence[str],
        options: Mapping[str, Any],
        hints: Sequence[Mapping[str, Any]] = (),
        make_args: Callable[..., Mapping[str, Any]] | None = None,
    ) -> None:
        self._reduction = signature.reduction(reduction)
        self._keywords = _keywords_of(reference)
        signature.check_taken(reference, "what polytile.kernel decorates", self._keywords)
        if not hasattr(reference, "__qualname__"):
            raise SignatureError(f"what polytile.kernel decorates has to have a name: write a def; it was given {reference!r}.")
        self.signature, self.reference = signature, reference
        self.name = reference.__name__
        settings.check_environment()
        self._options = settings.check(options, f"options of kernel {self.name!r}")
        self._hints = tuple(signature.hinted(self.name, hint) for hint in hints)
        self._make_args = make_args
        self._implementations: list[Implementation] = []
        self._costs: dict[str, Callable[[Sizes], float]] = {}
        self._made: dict[tuple[Any, ...], MultiKernel] = {}
        self._reported: set[tuple[str, str]] = set()
        """What was said of implementations that fail, whatever the tensors are like."""
        self._lock = locks.lock()
        self._gradient: Gradient | None = None
        functools.update_wrapper(self, reference)
        del self.__dict__["__wrapped__"]  # whose parameters are others
        parameters = [inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in signature.names]
        by_name = [inspect.Parameter(n, inspect.Parameter.KEYWORD_ONLY, default=v) for n, v in self._keywords.items()]
        self.__signature__ = inspect.Signature([*parameters, *by_name], return_annotation=None)
        self.__doc__ = f"{self.name}{self.__signature__}\n\n{signature.text}\n\n{inspect.getdoc(reference) or ''}".rstrip()
        place = f"{reference.__module__}.{reference.__qualname__}"
        self._operator = Operator(place, signature, self._keywords, self._launch)

    def __repr__(self) -> str:
        names = ", ".join(one.name for one in self._implementations) or "none"
        return f"<polytile.kernel {self.name}{self.__signature__}: {self.signature.text}; implementations: {names}>"

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
            Whether it can run at given sizes, a mapping such as {"M": 8, "N": 4096}, the keyword arguments among them. It is
            asked at both ends of a regime; later calls in the regime are not asked again.
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
        new = Implementation(name or getattr(function, "__name__", ""), function, version=version)
        self.signature.check_taken(function, f"implementation {new.name!r} of kernel {self.name!r}", self._keywords)
        for word, given in (("valid", valid), ("cost", cost)):
            if given is not None and not callable(given):
                raise SignatureError(
                    f"{word}= of implementation {new.name!r} takes a function of the sizes, as lambda sizes: ...; "
                    f"it was given {given!r}."
                )
        whose = f"of implementation {new.name!r} of kernel {self.name!r}"
        if valid is not None:
            new = replace(new, when=Asked(valid, f"valid= {whose}", False, "it is not used where that is so"))
        with self._lock:
            self._check_free(new.name)
            if cost is not None:
                self._costs[new.name] = Asked(cost, f"cost= {whose}", UNPREDICTED, f"it is taken for {UNPREDICTED:g} s there")
            self._implementations.append(new)
            self._made.clear()
        return function

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Says how gradients flow through calls; a decorator that returns the function as it is.

        Parameters
        ----------
        function
            Returns the gradients of the tensors that the kernel reads, in the order of the signature, None in the place of one
            that has none; a single one may come alone. It is called by name with what its parameters name: tensors of the
            signature (as they are after the call), sizes, keyword arguments, and `grad_y`, the gradient of a written tensor y.
            Only tensors that it names are kept for it.

        Raises
        ------
        SignatureError
            A parameter names none of these, or there is a gradient already.
        """
        if self._gradient is not None:
            raise SignatureError(f"kernel {self.name!r} has a gradient already.")
        gradient = Gradient.of(self.name, self.signature, function, self._keywords)
        self._operator.register_gradient(gradient, lambda tensors: self.signature.sizes(self.name, tensors))
        self._gradient = gradient
        return function

    def _check_free(self, name: str) -> None:
        taken = ["reference", *(other.name for other in self._implementations)]
        if not name or name in taken:
            raise SignatureError(
                f"kernel {self.name!r} cannot name an implementation {name!r}; give it a name= other than {', '.join(taken)}."
            )

    def __call__(self, *args: torch.Tensor, **kwargs: Any) -> None:
        """Runs the implementation that is best at these sizes. Raises InvalidInput if tensors do not fit the signature, are on
        several devices, or require a gradient that the kernel does not define, and for an unknown keyword argument; NoCandidate
        if nothing can run at these sizes."""
        tensors = self.signature.tensors_of(self.name, args, kwargs)
        keywords = self._bound(kwargs) if kwargs or self._keywords else kwargs
        if torch.compiler.is_compiling():
            self.signature.sizes(self.name, tensors)
            if torch.is_grad_enabled():
                self._wants_gradient(tensors)
            self._operator(tensors, keywords)
            return
        sizes = self._sizes(tensors)
        if torch.is_grad_enabled() and self._wants_gradient(tensors):
            by_name = dict(zip(self.signature.size_names, sizes, strict=True))
            Recorded.apply(self._launch, self._gradient, by_name, keywords, *tensors)
        else:
            self._launch(tensors, keywords, sizes)

    def _sizes(self, tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
        """The sizes of a call. Raises InvalidInput for tensors that do not fit."""
        by_place = self.signature.sizes_by_place
        sizes = by_place(tensors) if by_place is not None else None
        return sizes if sizes is not None else self.signature.sizes(self.name, tensors)

    def _launch(self, tensors: Sequence[torch.Tensor], keywords: Keywords, sizes: tuple[int, ...] | None = None) -> None:
        if sizes is None:
            sizes = self._sizes(tensors)
        kinds = tuple([(tensor.dtype, tensor.device, tensor.is_contiguous()) for tensor in tensors])
        now = changing()
        multikernel = self._made.get((kinds, tuple(keywords.values()), now)) or self._define(kinds, keywords, now)
        records = torch.is_grad_enabled()
        if records:
            torch._C._set_grad_enabled(False)  # torch.no_grad(), which takes over a microsecond
        try:
            multikernel.dispatch(*tensors, *sizes)
        finally:
            if records:
                torch._C._set_grad_enabled(True)

    def _bound(self, given: Mapping[str, Any]) -> Keywords:
        """The keyword arguments of a call, with their defaults. Raises InvalidInput for an unknown one, or a value of another
        type."""
        for name, value in given.items():
            wanted = type(self._keywords.get(name))
            if name not in self._keywords or not (isinstance(value, wanted) or (wanted is float and type(value) is int)):
                known = ", ".join(f"{n}: {type(v).__name__}" for n, v in self._keywords.items()) or "none"
                raise InvalidInput(
                    f"kernel {self.name!r} was given {name}={value!r}; besides {', '.join(self.signature.names)} it has the "
                    f"keyword arguments {known}."
                )
        return {name: type(default)(given.get(name, default)) for name, default in self._keywords.items()}

    def _wants_gradient(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether a gradient is to flow through a call. Raises InvalidInput where none can."""
        if not any(tensor.requires_grad for tensor in tensors):
            return False
        if self._gradient is not None:
            return True
        name = next(n for n, tensor in zip(self.signature.names, tensors, strict=True) if tensor.requires_grad)
        raise InvalidInput(
            f"argument {name!r} of kernel {self.name!r} requires a gradient, and the kernel has none. Say how it flows with "
            f"@{self.name}.gradient, or call the kernel under torch.no_grad() or with detached tensors."
        )

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The choice at each regime of sizes met so far, with its grounds."""
        return tuple(decision for multikernel in tuple(self._made.values()) for decision in multikernel.decisions)

    @property
    def hints(self) -> tuple[Mapping[str, int], ...]:
        """The sizes that are measured at the first call."""
        return self._hints

    def tensors_at(self, hint: Mapping[str, Any], dtype: torch.dtype, device: torch.device) -> tuple[torch.Tensor, ...]:
        """Tensors to call it with at the sizes that a hint names: those that `make_args` makes, else random ones of this type.
        Raises HintError where the hint does not say all sizes."""
        sizes = self.signature.hinted(self.name, hint)
        kinds = [(dtype, device, True)] * len(self.signature.names) if self._make_args is None else None
        return tuple(self._args_for(kinds, sizes)[: len(self.signature.names)])

    def _define(self, kinds: tuple[Kind, ...], keywords: Keywords, now: Any) -> MultiKernel:
        """The MultiKernel for tensors of these kinds, with these keyword arguments, under the conditions `now`."""
        devices = {device for _, device, _ in kinds}
        if len(devices) != 1:
            raise InvalidInput(
                f"kernel {self.name!r} was given tensors on {', '.join(sorted(map(str, devices)))}; all have to be on one device."
            )
        with self._lock:
            others = LikeTheBest(tuple(self._costs.values()))
            last = Implementation("reference", self.reference, predicted=others, origin="reference", keywords=keywords)
            given_by = self._costs.get
            first = [replace(one, predicted=given_by(one.name, others), keywords=keywords) for one in self._implementations]
            given = {"shortlist": max(1, len(first)), **({"stall": "tune"} if self._hints else {}), **self._options}
            with settings.restored(given):
                multikernel = define(self._spec(kinds, keywords, devices.pop()), (*first, last), id(self))
                forced.warn_of_idle(lambda: ((kernel.spec.name, kernel.names) for kernel in alive()))
            multikernel = self._made.setdefault((kinds, tuple(keywords.values()), now), multikernel)
        if self._hints:
            multikernel.warm(self._hints)
        return multikernel

    def _spec(self, kinds: Sequence[Kind], keywords: Keywords, device: torch.device) -> KernelSpec:
        signature = self.signature
        pairs = list(zip(signature.tensors, kinds, strict=True))
        return KernelSpec(
            name=self.name,
            family="user",
            kernel=digest(f"{importable_name(self.reference)} {signature.text}{_said(keywords)}"),
            args=tuple(ArgInfo(name, dtype, role) for (name, _, role), (dtype, _, _) in pairs),
            size_names=signature.size_names,
            size_codes=(regime.BUCKET,) * len(signature.size_names),
            layouts=tuple(Strided(name) for (name, _, _), (_, _, contiguous) in pairs if not contiguous),
            reduction=self._reduction,
            target=torch.device(device.type) if device.type != "cuda" else device,
            reference=Reference(self.name, self.reference, signature, keywords),
            make_args=functools.partial(self._args_for, kinds) if self._hints else None,
            reported=self._reported,
        ).on_its_gpu()

    def _args_for(self, kinds: Sequence[Kind] | None, sizes: Sizes) -> tuple[Any, ...]:
        """Flat arguments at these sizes. Raises HintError where those that the user's function makes are of other kinds, unless
        none are wanted."""
        names, ints = self.signature.names, tuple(sizes[name] for name in self.signature.size_names)
        if self._make_args is None:
            assert kinds is not None
            shapes = self.signature.shapes(sizes)
            return (*(_example(shapes[name], *kind) for name, kind in zip(names, kinds, strict=True)), *ints)
        arguments = self._make_args(**{name: size for name, size in sizes.items() if name.isidentifier()})
        tensors = tuple(arguments[name] for name in names if name in arguments)
        if len(tensors) != len(names) or self.signature.sizes(self.name, tensors) != ints:
            raise HintError(f"make_args= of kernel {self.name!r} has to make {', '.join(names)} at {sizes_text(sizes.items())}.")
        if kinds is not None and any((t.dtype, t.device) != kind[:2] for t, kind in zip(tensors, kinds, strict=True)):
            raise HintError(f"make_args= of kernel {self.name!r} makes tensors of other element types, or on another device.")
        return (*tensors, *ints)


def _keywords_of(reference: Run) -> dict[str, Scalar]:
    """The keyword arguments of a reference with their defaults. Raises SignatureError for a default that is no number or text."""
    parameters = inspect.signature(reference).parameters.values() if inspect.isfunction(reference) else ()
    defaults = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
    for name, default in defaults.items():
        if type(default) not in TYPES:
            what = "no default" if default is inspect.Parameter.empty else f"the default {default!r}"
            raise SignatureError(
                f"the keyword argument {name!r} of kernel {reference.__name__!r} has {what}; it needs one that is a "
                f"{', '.join(kind.__name__ for kind in TYPES)}."
            )
    return defaults


def _example(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device, contiguous: bool) -> torch.Tensor:
    """A tensor to measure on: random numbers, or zeros, which are indices into anything."""
    whole = shape if contiguous else ((*shape[:-1], shape[-1] + 1) if len(shape) > 1 else (2 * shape[0],))
    count = math.prod(whole)
    tensor = noise.normal(count, device).to(dtype) if dtype.is_floating_point else torch.zeros(count, dtype=dtype, device=device)
    tensor = tensor.view(whole)
    return tensor if contiguous else tensor[..., :-1] if len(shape) > 1 else tensor[::2]
