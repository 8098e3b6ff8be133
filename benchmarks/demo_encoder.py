"""Demo, part one: an encoder over paragraphs of many lengths, a dynamic compile for inference and one for training."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import polytile
from benchmarks.compilers import Account, compiled, decision_summary, decisions, forget, operator_summary
from benchmarks.corpus import by_length
from benchmarks.encoder import Encoder, encoder
from benchmarks.environment import DEVICE
from benchmarks.timing import Comparison, compare, disturbance, geomean
from polytile.report import Column, Table
from polytile.report.tables import count, error, micros, ratio

# Error of a float32 result against float64, relative to the largest value: a sum over 3072 terms in another order.
TOLERANCE = 5e-5

DROPOUT = 0.1 if DEVICE == "cpu" else 0.0
"""CUDA draws other numbers for float64 than for float32, so nothing can be dropped where both are compared."""


@dataclass(frozen=True)
class Case:
    """One length: the two compared in turns, and the errors against float64 of eager and of the compiled function."""

    length: int
    comparison: Comparison
    eager_error: float
    error: float

    @property
    def speedup(self) -> float:
        return self.comparison.ratio("compiled", "eager")


@dataclass(frozen=True)
class Mode:
    """All lengths of one mode with what compiling took: seconds of the first call and of first calls at new lengths."""

    name: str
    cases: tuple[Case, ...]
    first_call: float
    new_lengths: float
    account: Account
    operators: Table | None
    decisions: list[dict[str, Any]]

    def as_json(self) -> dict[str, Any]:
        return {
            "first_call_seconds": self.first_call,
            "new_length_seconds": self.new_lengths,
            "counters": self.account.as_json(),
            "geomean_speedup": geomean(case.speedup for case in self.cases),
            "decisions": self.decisions,
            "lengths": {
                case.length: {
                    "speedup": case.speedup,
                    "eager_error": case.eager_error,
                    "error": case.error,
                    **case.comparison.as_json(),
                }
                for case in self.cases
            },
        }


def relative_error(found: list[Tensor], reference: list[Tensor]) -> float:
    """Largest difference over all tensors, each relative to the largest magnitude of its float64 reference."""
    worst = 0.0
    for one, exact in zip(found, reference, strict=True):
        scale = exact.abs().max().clamp_min(1e-30)
        worst = max(worst, float((one.double() - exact).abs().max() / scale))
    return worst


def training_step(model: Encoder, loss: Callable[[Tensor], Tensor], tokens: Tensor) -> list[Tensor]:
    """Loss and backward of one paragraph; returns the loss and every gradient."""
    model.zero_grad(set_to_none=True)
    value = loss(tokens)
    value.backward()
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [value.detach(), *gradients]


def runner(mode: str, model: Encoder, function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], list[Tensor]]:
    """Calls `function` in the given mode; the same seed before each checked call makes dropout drop the same."""
    if mode == "training":
        return lambda tokens: training_step(model, function, tokens)

    def infer(tokens: Tensor) -> list[Tensor]:
        with torch.no_grad():
            return [function(tokens)]

    return infer


def checked(length: int, eager: list[Tensor], found: list[Tensor], exact: list[Tensor]) -> tuple[float, float]:
    """Errors of eager and of the compiled function; raises AssertionError where the latter is wrong."""
    ours, theirs = relative_error(found, exact), relative_error(eager, exact)
    limit = max(TOLERANCE, 4 * theirs)
    assert ours <= limit, (
        f"at length {length} the compiled result is {ours:.1e} off float64 (relative); eager is {theirs:.1e} off and "
        f"{limit:.1e} is allowed."
    )
    return theirs, ours


def run_mode(mode: str, backend: str, texts: dict[int, Tensor], seconds: float) -> Mode:
    """Checks every length against float64, then times every length against eager."""
    forget()
    model = encoder(device=DEVICE, dropout=DROPOUT).train(mode == "training")
    exact_model = copy.deepcopy(model).double()
    entry, exact_entry = (model.loss, exact_model.loss) if mode == "training" else (model, exact_model)
    account = Account(backend)
    function = compiled(entry, backend)
    eager, ours = runner(mode, model, entry), runner(mode, model, function)
    exact = runner(mode, exact_model, exact_entry)

    errors, first_calls = {}, []
    for length, tokens in texts.items():
        outputs = []
        for call in (exact, eager):
            torch.manual_seed(length)
            outputs.append(call(tokens))
        torch.manual_seed(length)
        started = time.perf_counter()
        found = ours(tokens)
        first_calls.append(time.perf_counter() - started)
        errors[length] = checked(length, outputs[1], found, outputs[0])
    del exact_model, exact_entry, exact

    cases = []
    for length, tokens in texts.items():
        calls = {"eager": functools.partial(eager, tokens), "compiled": functools.partial(ours, tokens)}
        cases.append(Case(length, compare(calls, seconds=seconds, warmups=1), *errors[length]))
    operators, chosen = explained(mode, backend, function, next(iter(texts.values())))
    return Mode(mode, tuple(cases), first_calls[0], sum(first_calls[1:]), account.closed(), operators, chosen)


def explained(
    mode: str, backend: str, function: Callable[..., Any], tokens: Tensor
) -> tuple[Table | None, list[dict[str, Any]]]:
    """What polytile says of the compiled function: a table of operators, and its decisions."""
    if backend != "polytile":
        return None, []
    with torch.set_grad_enabled(mode == "training"):
        explanation = polytile.explain(function, tokens)
    return operator_summary(f"Encoder, {mode}: how each operator runs", explanation), decisions(explanation)


def speed_table(backend: str, modes: list[Mode]) -> Table:
    """One row a length: eager, compiled and the ratio, for inference and for training."""
    columns = [Column("bytes", count)]
    for mode in modes:
        columns += [Column(f"{mode.name}: eager µs", micros), Column(f"{backend} µs", micros), Column("ratio", ratio)]
    rows: list[tuple[Any, ...]] = []
    for cases in zip(*(mode.cases for mode in modes), strict=True):
        cells = [(c.comparison["eager"].low, c.comparison["compiled"].low, c.speedup) for c in cases]
        rows.append((cases[0].length, *(value for part in cells for value in part)))
    means = [(None, None, geomean(case.speedup for case in mode.cases)) for mode in modes]
    rows.append(("geomean", *(value for part in means for value in part)))
    comparisons = [case.comparison for mode in modes for case in mode.cases]
    note = f"Ratio: eager's time over {backend}'s. {disturbance(comparisons)}"
    return Table.from_rows("Encoder (4 layers, 768 wide, 12 heads, float32), one paragraph a call", columns, rows, [note])


def compile_table(backend: str, modes: list[Mode]) -> Table:
    """What compiling took and what it gave, one row a mode."""
    columns: list[Column | str] = [
        "mode",
        Column("graphs", count),
        Column("kernels generated", count),
        Column("first call s", ratio),
        Column("first calls at all other lengths s", ratio),
        Column("candidates timed", count),
        Column("ATen call sites", count),
        Column("error eager", error),
        Column(f"error {backend}", error),
        Column("slower than eager by over 2 %", text_of_slower),
    ]
    rows = []
    for mode in modes:
        slower = sum(case.speedup < 1 / 1.02 for case in mode.cases)
        library = mode.account.library_calls
        rows.append(
            (
                mode.name,
                mode.account["graphs_compiled"],
                mode.account["kernels_generated"],
                mode.first_call,
                mode.new_lengths,
                mode.account["candidates_benchmarked"],
                sum(library.values()) if library or backend == "polytile" else None,
                max(case.eager_error for case in mode.cases),
                max(case.error for case in mode.cases),
                (slower, len(mode.cases)),
            )
        )
    notes = [
        "Errors: the largest over all lengths and outputs (training: the loss and every gradient), against float64."
    ]
    for mode in modes:
        if mode.account.library_calls:
            names = ", ".join(f"{name} ×{number}" for name, number in mode.account.library_calls.items())
            notes.append(f"ATen in {mode.name}: {names}.")
    return Table.from_rows("Encoder: one dynamic compile for each mode", columns, rows, notes)


def text_of_slower(value: tuple[int, int]) -> str:
    return f"{value[0]} of {value[1]} lengths"


def run(backend: str, quick: bool = False) -> tuple[list[Table], dict[str, Any]]:
    """Tables to show and results to keep."""
    texts = {length: tokens.to(DEVICE) for length, tokens in by_length(limit=20 if quick else 24).items()}
    budgets = {"inference": 0.1, "training": 0.2} if quick else {"inference": 0.8, "training": 2.0}
    modes = [run_mode(mode, backend, texts, seconds) for mode, seconds in budgets.items()]
    tables = [speed_table(backend, modes), compile_table(backend, modes)]
    for mode in modes:
        if mode.decisions:
            tables.append(decision_summary(f"Encoder, {mode.name}: which candidates ran, and why", mode.decisions))
        if mode.operators:
            tables.append(mode.operators)
    return tables, {mode.name: mode.as_json() for mode in modes}
