"""Checks one entry: its samples through backend="polytile" against eager, with static and with dynamic shapes.

All samples of an entry form one program, compiled once for each kind of shapes; its results, the inputs that it changed
and its gradients are compared. Where Dynamo cannot capture the program as one graph, each sample is compiled alone and
graph breaks are allowed.
"""

from __future__ import annotations

import contextlib
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._dynamo
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

import polytile
from polytile.compiler import programs as compiler
from tests.conformance.entries import Entry
from tests.conformance.judge import Wrong, judge, leaves
from tests.conformance.listed import NEVER_CAPTURED
from tests.conformance.programs import Program, cloned, program

MODES: dict[str, bool] = {"static": False, "dynamic": True}

UNDEFINED_VALUES = frozenset(
    "empty empty_like empty_permuted empty_strided new_empty new_empty_strided resize_ resize_as_".split()
)
"""Operators that leave memory as it was: shapes, dtypes and strides are compared, values cannot be."""

SEED = 1234


@dataclass
class Report:
    """What became of an entry. `verdict`: right, wrong, or absent where eager has no such operator on the device; `detail`
    says what is wrong in which mode; `operators` maps generated, template, library and view to ATen operators, `reasons`
    library operators to why."""

    entry: str
    family: str
    verdict: str = "right"
    detail: dict[str, str] = field(default_factory=dict)
    samples: int = 0
    available: int = 0
    gradients: int = 0
    graphs: int = 0
    operators: dict[str, list[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    text: str = ""


def check(entry: Entry, device: str, limit: int, modes: Sequence[str] = tuple(MODES), **options: Any) -> Report:
    """Checks at most `limit` samples (0: all) of `entry`. Never raises for what polytile or torch get wrong."""
    begin = time.perf_counter()
    report = Report(entry.name, entry.family)
    with _quiet(), _captures():
        try:
            samples, report.available = entry.samples(device, limit)
        except Exception as error:
            samples = []
            report.detail["samples"] = _said(error)
        samples = [sample for sample in samples if _runs(entry, sample, report)]
        report.samples = len(samples)
        if samples:
            for mode in modes:
                _check_mode(entry, samples, mode, report, options)
        elif not report.detail:
            report.detail["samples"] = "torch has no sample inputs"
    report.verdict = (
        "absent" if set(report.detail) == {"eager"} and not samples else "wrong" if report.detail else "right"
    )
    report.operators = {how: sorted(set(names)) for how, names in sorted(report.operators.items())}
    report.seconds = time.perf_counter() - begin
    return report


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@contextlib.contextmanager
def _captures() -> Iterator[None]:
    """Dynamo captures what it can, and passing its limit of recompiles is an error rather than eager."""
    with torch._dynamo.config.patch(
        recompile_limit=64, accumulated_recompile_limit=4096, fail_on_recompile_limit_hit=True,
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True,
    ):  # fmt: skip
        yield


def _runs(entry: Entry, sample: Any, report: Report) -> bool:
    """Whether eager itself runs the sample; one that it does not is reported."""
    one = program(entry.info.get_op(), [sample])
    try:
        arm(one.function, one, values=False)
    except Exception as error:
        report.detail["eager"] = _said(error)
        return False
    return True


# one kind of shapes ---------------------------------------------------------------------------------------------------


def _check_mode(entry: Entry, samples: Sequence[Any], mode: str, report: Report, options: dict[str, Any]) -> None:
    """All samples at once; each alone if Dynamo does not capture that, or to say which sample is wrong."""
    whole = program(entry.info.get_op(), samples)
    report.text = whole.text
    try:
        graphs = _compare(entry, whole, mode, True, report, options)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        if not _too_much_is_data(whole, mode):
            report.detail[mode] = _said(error.inner_exception)
            return
        graphs = _each_alone(entry, samples, mode, report, options, error)
    except (Wrong, IndexError, polytile.PolytileError) as error:
        report.detail[mode] = _said(error)
        return
    except Exception as whole_error:
        graphs = _each_alone(entry, samples, mode, report, options, whole_error)
    report.graphs += graphs


def _too_much_is_data(program: Program, mode: str) -> bool:
    """Whether torch's own tracer gives up on the program, whatever the backend: what it would have to know is data."""
    torch._dynamo.reset()
    traced = torch.compile(program.function, backend="aot_eager", dynamic=MODES[mode], fullgraph=True)
    try:
        arm(traced, program, values=False)
    except torch._dynamo.exc.BackendCompilerFailed as error:
        return isinstance(error.inner_exception, GuardOnDataDependentSymNode)
    except Exception:  # of another kind: polytile's own is what counts
        pass
    return False


def _each_alone(
    entry: Entry, samples: Sequence[Any], mode: str, report: Report, options: dict[str, Any], whole_error: Exception
) -> int:
    """How many graphs the samples have one by one, after `whole_error` of all at once; that there is none is reported."""
    graphs = 0
    for number, sample in enumerate(samples):
        one = program(entry.info.get_op(), [sample])
        try:
            graphs += _alone(entry, one, mode, report, options)
        except Exception as error:
            report.text = one.text
            inner = error.inner_exception if isinstance(error, torch._dynamo.exc.BackendCompilerFailed) else error
            report.detail[mode] = f"sample {number}: {_said(inner)}"
            break
    if not graphs and mode not in report.detail:
        report.detail[mode] = f"{NEVER_CAPTURED}: {_said(whole_error)}"
    return graphs


def _alone(entry: Entry, one: Program, mode: str, report: Report, options: dict[str, Any]) -> int:
    """One sample with graph breaks allowed; where Dynamo fails to capture numbers and sizes that are data, it breaks the
    graph there, as it does by default."""
    try:
        return _compare(entry, one, mode, False, report, options)
    except torch._dynamo.exc.BackendCompilerFailed:
        if not _too_much_is_data(one, mode):
            raise
    except torch._dynamo.exc.TorchDynamoException:
        pass
    with torch._dynamo.config.patch(capture_scalar_outputs=False, capture_dynamic_output_shape_ops=False):
        return _compare(entry, one, mode, False, report, options)


def _compare(
    entry: Entry, program: Program, mode: str, fullgraph: bool, report: Report, options: dict[str, Any]
) -> int:
    """Compares `program` compiled with eager; how many graphs were compiled. Raises Wrong, or whatever compiling raises."""
    torch._dynamo.reset()
    polytile.reset()
    run = torch.compile(
        program.function, backend="polytile", dynamic=MODES[mode], fullgraph=fullgraph, options=dict(options)
    )
    values = entry.info.name not in UNDEFINED_VALUES
    eager = arm(program.function, program, values)
    mine = arm(run, program, values)
    programs = compiler.compiled_programs()
    try:
        _collect(programs, report)
        _refuse_fallbacks(programs)
    finally:
        torch._dynamo.reset()

    def exact() -> Arm:
        return arm(program.function, program, values, torch.float64)

    judge(mine.results, eager.results, lambda: exact().results, "result", values=values)
    judge(mine.inputs, eager.inputs, lambda: exact().inputs, "input afterwards", values=values)
    judge(mine.gradients, eager.gradients, lambda: exact().gradients, "gradient", strides=False, values=values)
    report.gradients = max(report.gradients, len(leaves(mine.gradients)))
    return len(programs)


def _collect(programs: Sequence[compiler.CompiledProgram], report: Report) -> None:
    for compiled in programs:
        for operator in compiled.operators:
            report.operators.setdefault(operator.how, []).append(operator.operator)
            if operator.how == "library":
                report.reasons[operator.operator] = operator.reason


def _refuse_fallbacks(programs: Sequence[compiler.CompiledProgram]) -> None:
    """A kernel that does not compile, or is caught being wrong, gives way to the interpreter, which is right and slow."""
    for compiled in programs:
        for kernel in compiled.multikernels:
            if kernel.faulty:
                raise Wrong(f"kernel {kernel.spec.name}: {kernel.faulty}")
            for decision in kernel.decisions:
                if decision.candidate == "interpreted":
                    raise Wrong(f"kernel {kernel.spec.name} is interpreted: {decision}")


# one run --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Arm:
    """Results, the inputs after the run, and gradients by the inputs (None where there is none)."""

    results: Any
    inputs: list[Tensor]
    gradients: list[Tensor | None]


def arm(function: Callable[..., Any], program: Program, values: bool, widen: torch.dtype | None = None) -> Arm:
    """Runs `function` on copies of the program's inputs, floating-point ones in `widen` if given, and takes gradients
    for one random cotangent. The random state is the same in every arm."""
    inputs = [cloned(t, widen if t.is_floating_point() else None) for t in program.inputs]
    torch.manual_seed(SEED)
    results = function(*inputs)
    wanted = [t for t in inputs if t.requires_grad and t.is_leaf]
    if not values or not wanted:
        return Arm(results, [t.detach() for t in inputs], [])
    outputs = [t for t in leaves(program.finished(results)) if isinstance(t, Tensor) and t.requires_grad]
    gradients: Sequence[Tensor | None] = [None] * len(wanted)
    if outputs:
        gradients = torch.autograd.grad(outputs, wanted, [cotangent(t) for t in outputs], allow_unused=True)
    return Arm(results, [t.detach() for t in inputs], list(gradients))


def cotangent(output: Tensor) -> Tensor:
    """The same random direction in every arm, rounded to float32."""
    if output.layout is not torch.strided or output.is_nested:
        return torch.ones_like(output)
    generator = torch.Generator().manual_seed(SEED + output.numel())
    dtype = torch.complex64 if output.is_complex() else torch.float32
    return torch.randn(output.shape, generator=generator, dtype=dtype).to(output.device, output.dtype)


def _said(error: BaseException) -> str:
    """An error in one short paragraph, with the place in polytile that raised it."""
    text = " ".join(str(error).split())
    if not isinstance(error, Wrong):
        frames = [f for f in traceback.extract_tb(error.__traceback__) if "/polytile/" in f.filename]
        place = f" at {frames[-1].filename.rsplit('/polytile/')[-1]}:{frames[-1].lineno}" if frames else ""
        text = f"{type(error).__name__}{place}: {text}"
    return text[:600]
