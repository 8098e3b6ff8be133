"""Programs that another process makes (runtime/builder.py): a lowered graph goes there as JSON, and its program comes back on
disk.

Both sides are here: `build` sends the request, and `make_program` serves it. The requesting process itself makes programs
without a form as JSON, such as those of graphs that hold a tensor, and programs that depend on more than the graph and the
options, such as another package's wrapper.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
import torch.fx

from polytile import options
from polytile.candidates.cpp import CompiledCandidate
from polytile.compiler.programs import compile_program
from polytile.compiler.stored import Loaded, Slot, conditions
from polytile.counters import counters
from polytile.dispatch import learning
from polytile.dispatch.define import WORKS
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import CompileFailed, LoweringError, PolytileError
from polytile.frontend.graph import Lowered, OperatorReport
from polytile.ir.attention import Attention, Gradients, Sequences
from polytile.ir.program import Assert, Extern, Input, Operator, Program, Trace
from polytile.ir.serialise import Reader, Unstorable, Writer
from polytile.ir.template import Grouping, Scales, Template
from polytile.matmul import linear_tiles
from polytile.problem import digest
from polytile.runtime import background, builder, collector, compile
from polytile.runtime.cache import current
from polytile.runtime.chosen_convolution import ChosenConvolution, ChosenGradients, ConvolutionProblem, GradientProblem
from polytile.runtime.compile import Compilation
from polytile.runtime.convolution import PackedConvolution
from polytile.runtime.cuda import products
from polytile.runtime.lease import alone
from polytile.runtime.neutral import neutral
from polytile.tuning import budget

log = logging.getLogger("polytile")

CLASSES = (
    Lowered, OperatorReport, PackedConvolution, Program, Input, Template, Scales, Grouping, Attention, Gradients, Sequences,
    Extern, Assert, Operator, Trace, ChosenConvolution, ChosenGradients, ConvolutionProblem, GradientProblem,
)  # fmt: skip

CPU = (torch.device("cpu"),)

Values = Mapping[sympy.Symbol, int]

QUIET = {"debug": 0, "progress": "off", "metrics": "", "collect": "", "on_failure": "raise"}
"""Options of the process that makes a program: the asking one says and writes all that is to be said."""

SETTLE_SECONDS = 120.0
"""How long compilers may take after the program is written, which serves without what they make."""


MOST_KERNELS = 64

_kernels: OrderedDict[str, MultiKernel] = OrderedDict()
"""The kernels whose candidates were asked for last, by what they are made from and the conditions."""


class Refused(PolytileError):
    """A program cannot be made in another process; says why."""


def build(lowered: Lowered, traced: Values, ahead: Sequence[Values], slot: Slot) -> Loaded | None:
    """The program of a lowered graph, with kernels for the sizes `traced` and `ahead`, made in another process; None if that is
    not wanted or not possible; the log says why."""
    if not builder.wanted():
        return None
    try:
        request = _request(lowered, traced, ahead, slot)
        with alone(slot.cache, slot.name, builder.SECONDS):
            if not slot.cache.holds(slot.name):
                builder.ask("program", request, meanwhile=learning.go_on)
    except (Unstorable, Refused, builder.BuilderFailed) as why:
        log.info("The program %s is made in this process: %s", lowered.program.name, why)
        return None
    background.background.turn()
    stage, limits = counters.stage("loading"), budget.program(options.get("program_seconds"))
    with neutral(), collector.at_rest_uncounted(), stage, limits:
        return slot.load(lowered.program.name, traced)


def _request(lowered: Lowered, traced: Values, ahead: Sequence[Values], slot: Slot) -> dict[str, Any]:
    """What `make` needs. Raises Unstorable and Refused."""
    devices = {buffer.device for buffer in lowered.program.buffers.values()}
    if not slot.name or lowered.failures:
        raise Refused("it has no place on disk.")
    if not devices <= set(CPU):
        raise Refused(f"it has tensors on {', '.join(sorted(map(str, devices)))}.")
    if slot.cache.in_force is not slot.cache:
        raise Refused("the cache directory cannot be used.")
    given = lowered, dict(traced), [dict(values) for values in ahead]
    return {
        "given": Writer(CLASSES).document(given),
        "slot": slot.name,
        "conditions": conditions(CPU),
    }


# in the process that makes them ---------------------------------------------------------------------------------------


def needed_by_many(linear: bool) -> Iterator[Compilation]:
    """What is compiled while the first graph is traced, the most likely needed first: C code that no program has of its own, and,
    if `linear`, the register tiles of products with a transposed matrix of float32. Raises CompilerMissing."""
    with options.override(compile_workers=1):
        prepared = products.prepare()
    yield prepared
    for text in linear_tiles.texts() if linear else ():
        yield from compile.compile_parts(text)


def make_program(request: Mapping[str, Any]) -> None:
    """Makes the program that a request describes, and leaves it on disk. Raises Refused."""
    document = request["given"]
    lowered, traced, ahead = Reader(document, CLASSES).value()
    if Writer(CLASSES).document((lowered, traced, ahead)) != document:
        raise Refused("what is read differs from what was written.")
    with _as_asked(request):
        slot = Slot(current(), request["slot"])
        if conditions(CPU) != request["conditions"]:
            raise Refused("this process works under other conditions.")
        compile_program(lowered, traced, ahead=ahead, ready=True, slot=slot)
        compile.settle(SETTLE_SECONDS)
        if not slot.cache.holds(slot.name):
            raise Refused("it has no form on disk.")


def make_kernels(request: Mapping[str, Any]) -> None:
    """Compiles candidates of one kernel (dispatch/ahead.py)."""
    with _as_asked(request):
        multikernel = _multikernel(request["work"], [request["options"], request["threads"]])
        named = (multikernel.named(name) for name in request["candidates"])
        asked = [candidate for candidate in named if isinstance(candidate, CompiledCandidate)]
        for act in (CompiledCandidate.prepare, CompiledCandidate.libraries):
            for candidate in asked:
                with contextlib.suppress(CompileFailed, LoweringError):  # whoever loads it meets the error again
                    act(candidate)


def _multikernel(document: Mapping[str, Any], under: Any) -> MultiKernel:
    key = digest(json.dumps([document, under]))
    if key not in _kernels:
        _kernels[key] = Reader(document, WORKS).value().define()
    _kernels.move_to_end(key)
    if len(_kernels) > MOST_KERNELS:
        _kernels.popitem(last=False)
    return _kernels[key]


@contextlib.contextmanager
def _as_asked(request: Mapping[str, Any]) -> Iterator[None]:
    """Within the block, options and threads are those of the process that asks. Raises Refused where the cache is not."""
    torch.set_num_threads(request["threads"])
    with options.restored({**request["options"], **QUIET}):
        if str(current().root) != request["root"]:
            raise Refused("the cache directory is another one.")
        yield
