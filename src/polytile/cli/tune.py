"""`polytile tune`: a function called at the sizes that will matter, before they do."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import polytile
from polytile import options, store
from polytile.cli.plain import FAILED
from polytile.errors import PolytileError
from polytile.multikernel import Decision, alive
from polytile.report import Column, Table, show
from polytile.report.tables import micros

STOPPED = 130
"""Exit status after Ctrl-C, as shells have it."""

Calls = Sequence[tuple[Any, ...]]
Tell = Callable[[str], None]


class TargetError(PolytileError):
    """What `polytile tune` was asked to tune is not there or is not what it has to be."""


@dataclass(frozen=True)
class Step:
    """What one call did: decisions made, candidates timed for them, seconds it took."""

    call: str
    decisions: tuple[Decision, ...]
    benchmarked: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.call}: {_count(len(self.decisions), 'choice')}, {_count(self.benchmarked, 'candidate')} measured, "
            f"{self.seconds:.1f} s"
        )


def calls_of(target: str, shapes: Sequence[str], dtype: str) -> tuple[Callable[..., Any], Calls]:
    """The function to tune and the arguments of each call. Raises TargetError, with what to do, for anything else."""
    function = _function(target)
    if shapes:
        return function, [_tensors(text, dtype) for text in shapes]
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TargetError(
            f"{target} cannot be called without arguments ({error}); give --shapes to call it with tensors, or name a "
            "function that returns a callable and a list of argument tuples."
        ) from None
    found = function()
    if not (isinstance(found, tuple) and len(found) == 2 and callable(found[0]) and _are_calls(found[1])):
        raise TargetError(
            f"{target} returned {type(found).__name__}; it has to return a callable and a list of argument tuples: "
            "return softmax, [(torch.randn(64, 512),), (torch.randn(300, 4096),)]."
        )
    return found[0], found[1]


def tune(function: Callable[..., Any], calls: Calls, plan: Path | None = None) -> int:
    """Calls the compiled function with each of `calls` and reports; returns the process's exit status."""
    console = Console()
    if not options.get("persist"):
        console.print("The option persist is off: what is measured now is gone when this command ends.")
    compiled = polytile.compile(function)
    steps: list[Step] = []
    status = 0
    with _progress(console, len(calls)) as tell, torch.no_grad():
        try:
            for args in calls:
                try:
                    steps.append(_step(compiled, args))
                    tell(str(steps[-1]))
                except Exception as error:
                    status = FAILED
                    tell(
                        f"{describe(args)}: {type(error).__name__}: {(str(error).strip() or 'no message').splitlines()[0]}"
                    )
        except KeyboardInterrupt:
            status = STOPPED
    show(_table(steps), console)
    kept = f" Kept in {store.current().place}." if store.current().persistent else ""
    measured = sum(step.benchmarked for step in steps)
    stopped = "Stopped: " if status == STOPPED else ""
    console.print(f"{stopped}{len(steps)} of {_count(len(calls), 'call')}, {_count(measured, 'candidate')} measured.{kept}",
                  soft_wrap=True, highlight=False)  # fmt: skip
    if plan is not None and steps:
        console.print(
            f"{_count(polytile.save_plan(plan), 'decision')} written to {plan}.", soft_wrap=True, highlight=False
        )
    return status


def _step(compiled: Callable[..., Any], args: tuple[Any, ...]) -> Step:
    before, benchmarked = _decisions(), polytile.counters["candidates_benchmarked"]
    started = time.perf_counter()
    compiled(*args)
    seconds = time.perf_counter() - started
    new = tuple(decision for key, decision in _decisions().items() if key not in before)
    return Step(describe(args), new, polytile.counters["candidates_benchmarked"] - benchmarked, seconds)


def _decisions() -> dict[tuple[int, str], Decision]:
    return {(id(kernel), d.regime): d for kernel in alive() for d in kernel.decisions}


def describe(args: tuple[Any, ...]) -> str:
    """Arguments in short: "float32[64, 512] int64[64] 3"."""
    parts = [
        f"{str(arg.dtype).removeprefix('torch.')}{list(arg.shape)}" if isinstance(arg, torch.Tensor) else repr(arg)
        for arg in args
    ]
    return " ".join(parts) or "no arguments"


@contextlib.contextmanager
def _progress(console: Console, total: int) -> Iterator[Tell]:
    """A bar on a terminal, a numbered line for each call elsewhere."""
    if not console.is_terminal:
        done = iter(range(1, total + 1))
        yield lambda text: console.print(
            f"[{next(done)}/{total}] {text}", markup=False, highlight=False, soft_wrap=True
        )
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("tuning", total=total)

        def tell(text: str) -> None:
            bar.console.print(text, markup=False, highlight=False)
            bar.advance(task)

        yield tell


def _table(steps: Sequence[Step]) -> Table:
    rows = []
    for decision in (decision for step in steps for decision in step.decisions):
        chosen = next((s.seconds for s in decision.standings if s.candidate == decision.candidate), float("nan"))
        sizes = " ".join(f"{name}={size}" for name, size in decision.sizes)
        known = None if chosen != chosen else chosen
        rows.append((decision.kernel, sizes, decision.candidate, known, decision.provenance))
    columns: list[Column | str] = ["kernel", "sizes", "candidate", Column("µs", micros), "grounds"]
    return Table.of("Decisions", columns, rows)


def _function(target: str) -> Callable[..., Any]:
    file, colon, name = target.rpartition(":")
    if not colon or not name.isidentifier():
        raise TargetError(f"{target!r} names no function; write it as FILE.py:function.")
    path = Path(file)
    if not path.is_file():
        raise TargetError(f"there is no file {file}; {target!r} should be FILE.py:function.")
    own_name = path.stem if path.stem not in sys.modules else f"polytile_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(own_name, path)
    if spec is None or spec.loader is None:
        raise TargetError(f"{file} is no Python file; {target!r} should be FILE.py:function.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[own_name] = module
    sys.path.insert(0, str(path.parent.absolute()))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise TargetError(f"{file} cannot be run: {type(error).__name__}: {error}.") from error
    found = getattr(module, name, None)
    if not callable(found):
        there = ", ".join(n for n, v in vars(module).items() if getattr(v, "__module__", "") == own_name)
        raise TargetError(f"{file} has no function {name!r}; it has {there or 'none at all'}.")
    return found


def _tensors(text: str, dtype: str) -> tuple[torch.Tensor, ...]:
    kind = getattr(torch, dtype, None)
    if not isinstance(kind, torch.dtype):
        raise TargetError(f"torch has no element type {dtype!r}; float32, bfloat16 and int64 are some that it has.")
    try:
        shapes = [[int(size) for size in shape.split("x")] for shape in text.split(",")]
        if any(size < 0 for shape in shapes for size in shape):
            raise ValueError(text)
    except ValueError:
        raise TargetError(f"{text!r} is no list of shapes; write one as 64x512, several as 64x512,512x256.") from None
    floating = kind.is_floating_point or kind.is_complex
    return tuple(torch.randn(s).to(kind) if floating else torch.zeros(s, dtype=kind) for s in shapes)


def _are_calls(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and bool(value) and all(isinstance(args, tuple) for args in value)


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


__all__ = ["STOPPED", "Step", "TargetError", "calls_of", "describe", "tune"]
