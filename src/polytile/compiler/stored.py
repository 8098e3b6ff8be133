"""Compiled programs on disk: a later process with the same graph lowers nothing and generates nothing.

A program's file in the cache directory is named by a digest of the graph's canonical text (frontend/graph_text.py), polytile's
sources, the options and PyTorch's settings, and the versions of what takes part. It is JSON:

    source       the wrapper, as its backend has written it
    parts        what the wrapper refers to: what its kernels are made from, operators, packed weights (ir/serialise.py)
    operators    what became of each operator of the graph, for `explain`

What the kernels decided is in files of their own (dispatch/recorded.py), as programs share kernels. A program that holds
something without a form on disk, such as a tensor, is lowered anew by each process; the log says why, at level INFO.
"""

from __future__ import annotations

import functools
import json
import logging
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils._pytree import tree_leaves

from polytile import options
from polytile.candidates import sources
from polytile.compiler.computed_weights import kernel_call
from polytile.compiler.early import PROGRAMS
from polytile.compiler.library_targets import prepare_target
from polytile.dispatch import recorded
from polytile.dispatch.conditions import PASSING, conditions_on_disk
from polytile.dispatch.define import WORKS
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import CacheError, CompilerMissing, PolytileError
from polytile.frontend.failures import is_raised
from polytile.frontend.graph import OperatorReport
from polytile.frontend.graph_text import graph_text
from polytile.ir.serialise import MALFORMED, Reader, Unstorable, Writer
from polytile.ir.sizes import evaluate
from polytile.matmul import packed_weights
from polytile.problem import digest
from polytile.runtime import programs, toolchain
from polytile.runtime.cache import Cache, current
from polytile.runtime.chosen_convolution import ChosenConvolution, ChosenGradients, ConvolutionProblem, GradientProblem
from polytile.runtime.convolution import PackedConvolution
from polytile.version import source_digest
from polytile.wrapper import KernelCall, Wrapped, backend, load_of, tensors

log = logging.getLogger("polytile")

FORMAT = 1


@dataclass(frozen=True)
class Kernel:
    """A name of the wrapper's that stands for kernel number `index`."""

    index: int


@dataclass(frozen=True)
class Find:
    """A name of the wrapper's that looks up the packed weight of call number `call`."""

    call: int


@dataclass(frozen=True)
class Operator:
    """A name of the wrapper's that calls an operator, by number `form` of what may call it."""

    target: Any
    form: int


@dataclass(frozen=True)
class CurrentDevice:
    """A name of the wrapper's that says which device of a kind is current."""

    kind: str


CLASSES = (
    *WORKS, Kernel, Find, PackedConvolution, ChosenConvolution, ChosenGradients, ConvolutionProblem, GradientProblem, Operator,
    CurrentDevice,
)  # fmt: skip

Calls = Sequence[tuple[MultiKernel, KernelCall]]


@dataclass(frozen=True)
class Loaded:
    """A program as it is kept on disk. `targets`: what runs as a library call, once for each call."""

    name: str
    wrapped: Wrapped
    calls: Calls
    operators: tuple[OperatorReport, ...]
    targets: tuple[Any, ...]


@dataclass(frozen=True)
class Slot:
    """The place of one graph's program on disk; without a `name` it has none."""

    cache: Cache
    name: str = ""

    @staticmethod
    def of(graph: torch.fx.GraphModule, kind: str, weights: Mapping[str, str], guards: Sequence[str]) -> Slot:
        """The slot of one of AOTAutograd's graphs, before polytile has changed it; without a place if no compiler has ever
        worked."""
        try:
            toolchain.find()
            key = digest("\n".join((_conditions(graph), graph_text(graph, kind, weights, guards))), 32)
        except CompilerMissing:
            return Slot(current())
        except Exception as why:
            _tell(f"A {kind} graph", why)
            return Slot(current())
        return Slot(current(), f"{PROGRAMS}/{kind}-{key}.json")

    def refused(self, why: str) -> Slot:
        """A Slot without a place; the log gets the reason."""
        _tell(f"The program {self.name}", Unstorable(why))
        return Slot(self.cache)

    def load(self, name: str, traced: Mapping[sympy.Symbol, int]) -> Loaded | None:
        """The program under the name `name`; None if there is none, or it cannot be used here. Its kernels have their stored
        decisions, those at the `traced` sizes at once."""
        content = self.cache.read(self.name) if self.name else None
        if content is None:
            return None
        try:
            return _loaded(json.loads(content), name, traced)
        except CompilerMissing:
            raise
        except (*MALFORMED, PolytileError) as error:
            self.cache.set_aside(self.name, f"cannot be read ({type(error).__name__}: {error})")
            return None

    def write(self, program: Loaded, device_type: str) -> None:
        """Keeps a program for later processes, if everything in it has a form on disk. `device_type`: that of all its buffers."""
        if not self.name:
            return
        wrapper = str(options.get("wrapper")), device_type
        try:
            document = {
                "wrapper": wrapper,
                "source": program.wrapped.source,
                "parts": _parts(program, wrapper),
                "operators": [[report.operator, report.how, report.reason] for report in program.operators],
            }
            self.cache.write(self.name, json.dumps(document).encode())
        except CacheError:
            """Of which there was a warning."""
        except Exception as why:
            _tell(f"The program {self.name}", why)


def _tell(what: str, why: Exception) -> None:
    """Logs why something is not kept. With the option on_failure="raise", raises `why` if it is a defect of polytile."""
    if not isinstance(why, Unstorable) and is_raised(why):
        raise why
    log.log(
        logging.INFO if isinstance(why, Unstorable) else logging.WARNING, "%s is lowered again by each process: %s.", what, why
    )


def _conditions(graph: torch.fx.GraphModule) -> str:
    """Everything that a graph's program depends on, except the graph."""
    leaves = (leaf for node in graph.graph.nodes for leaf in tree_leaves(node.meta.get("val")))
    targets = {leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)}
    return f"{_versions()}\n{conditions(targets)}"


def conditions(targets: Iterable[torch.device]) -> str:
    """Everything that a program with tensors on these devices depends on within one installation, except its graph."""
    given = {name: repr(options.get(name)) for name, option in options.BY_NAME.items() if option.keys != options.NOTHING}
    about = [
        FORMAT, source_digest(), sorted((k, v) for k, v in given.items() if k not in PASSING),
        sorted(map(_device_conditions, targets)), torch.get_default_dtype(), sources.brought(),
    ]  # fmt: skip
    return "\n".join(map(str, about))


def _device_conditions(device: torch.device) -> str:
    """What programs for a device depend on of it, and of PyTorch's settings. Not the number of cores: that decides what kernels
    are chosen, not what they are."""
    here = conditions_on_disk(device)
    number = ""
    if device.type == "cuda":
        from polytile.runtime.cuda.device import fingerprint  # what a GPU needs is imported where there is one

        number = fingerprint(device.index or 0)
    return f"{device} {number} {here.environment} {here.deterministic}"


@functools.cache
def _versions() -> tuple[str, ...]:
    return platform.python_version(), torch.__version__, str(torch.version.git_version), sympy.__version__


# to disk --------------------------------------------------------------------------------------------------------------


def _parts(program: Loaded, wrapper: tuple[str, str]) -> dict[str, Any]:
    """Works, calls, names and library calls of a program as JSON. Raises Unstorable."""
    if program.wrapped.names is None or load_of(backend(*wrapper)) is None:
        raise Unstorable("its wrapper's backend loads nothing")
    kernels = list(dict.fromkeys(multikernel for multikernel, _ in program.calls))
    works = [recorded.work_of(multikernel) for multikernel in kernels]
    if None in works:
        raise Unstorable(f"kernel {kernels[works.index(None)].spec.name!r} is made from nothing that has a form on disk")
    called = [(kernels.index(multikernel), call.tensors, call.sizes) for multikernel, call in program.calls]
    known: dict[int, Any] = {id(multikernel.dispatch): Kernel(k) for k, multikernel in enumerate(kernels)}
    known |= {id(call.site.find): Find(k) for k, (_, call) in enumerate(program.calls) if call.site is not None}
    for target in program.targets:
        known.update((id(caller), Operator(target, k)) for k, caller in enumerate(tensors.callers(target)))
    known |= {id(tensors.current_device(kind)): CurrentDevice(kind) for kind in ("cuda",)}
    names = {name: known.get(id(value), value) for name, value in program.wrapped.names.items()}
    document = Writer(CLASSES).document((works, called, names, program.targets))
    if Writer(CLASSES).document(Reader(document, CLASSES).value()) != document:
        raise Unstorable("what is read back differs from what was written")
    return document


# from disk ------------------------------------------------------------------------------------------------------------


def _loaded(document: Mapping[str, Any], name: str, traced: Mapping[sympy.Symbol, int]) -> Loaded | None:
    load = load_of(backend(*document["wrapper"]))
    if load is None:
        return None
    works, called, names, targets = Reader(document["parts"], CLASSES).value()
    with recorded.collecting_multikernels() as met:
        kernels = [work.define() for work in works]
    calls = [(kernels[index], kernel_call(kernels[index], tensors, sizes)) for index, tensors, sizes in called]
    for target in targets:
        prepare_target(target)
    objects = {own: _object(value, calls, kernels) for own, value in names.items()}
    wrapped = load(name, re.sub(r"\A# polytile program \S+", f"# polytile program {name}", document["source"]), objects)
    with programs.on_behalf(programs.file_of(wrapped.call)):
        for multikernel in met:
            recorded.restore(multikernel, [ints for own, ints in calls_at(calls, traced) if own is multikernel] or None)
    operators = tuple(OperatorReport(*report) for report in document["operators"])
    return Loaded(name, wrapped, calls, operators, targets)


def calls_at(calls: Calls, given: Mapping[sympy.Symbol, int]) -> Iterator[tuple[MultiKernel, tuple[int, ...]]]:
    """The kernels with the integers of their calls where the graph's size symbols have these values, as far as they tell."""
    for multikernel, call in calls:
        values = {**given, **packed_weights.assumed_sizes(call.packed_weight)}
        if all(size.free_symbols <= values.keys() for size in call.sizes):
            yield multikernel, tuple(evaluate(size, values) for size in call.sizes)


def _object(value: Any, calls: Calls, kernels: Sequence[MultiKernel]) -> Any:
    """What a name of the wrapper's stands for."""
    if isinstance(value, Kernel):
        run: Callable[..., None] = kernels[value.index].dispatch
        return run
    if isinstance(value, Find):
        site = calls[value.call][1].site
        assert site is not None
        return site.find
    if isinstance(value, Operator):
        return tensors.callers(value.target)[value.form]
    return tensors.current_device(value.kind) if isinstance(value, CurrentDevice) else value
