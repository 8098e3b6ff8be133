"""The candidates of a loop kernel on this machine's processor."""

from __future__ import annotations

import functools
import re
from functools import partial

from polytile.candidates.candidate import Candidate
from polytile.candidates.cpp import CppCandidate, Prediction
from polytile.candidates.interpreted_loop import InterpretedLoop
from polytile.candidates.library.loops import Speed, library_of
from polytile.codegen.cpp import loops
from polytile.codegen.function_names import ENTRY
from polytile.cost.cpp_loops import LoopPrior, bandwidth
from polytile.errors import LoweringError
from polytile.problem import digest
from polytile.runtime import cpu, toolchain
from polytile.schedule import checks
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.cpu.lanes import lane_bytes
from polytile.schedule.cpu.schedule import CpuSchedule
from polytile.schedule.cpu.scheduled import apply_rewrites
from polytile.schedule.cpu.space import Usefulness, schedules
from polytile.schedule.nest import nest_of
from polytile.schedule.rewrite import plain_reductions

FLOAT_BYTES = 4
LIBRARY_CALL = 3e-6
"""Seconds of a call from the dispatcher to an operator through Python."""


def kernel_name(kernel: LoopKernel, origins: tuple[str, ...]) -> str:
    """A readable name: the loop's first four distinct operators and its digest."""
    words = [o.split(".")[1] if o.count(".") > 1 else o.split(".")[0] for o in dict.fromkeys(origins)]
    label = "_".join(re.sub(r"\W", "", w).strip("_") for w in words[:4]) or "loop"
    return f"{label[:48]}_{kernel.digest[:8]}"


def loop_candidates(kernel: LoopKernel, origins: tuple[str, ...], most_threads: int) -> tuple[Candidate, ...]:
    """Every schedule with each number of threads, in canonical order, then the interpreter as the last resort. Equal work gets
    the same objects. Raises LoweringError if the loop has no C++ form, CompilerMissing if there is no compiler."""
    tool = toolchain.find()
    key = (kernel.text, most_threads, tool.identity)
    if key not in _made:
        _made[key] = _candidates(kernel, origins, most_threads, tool)
    return _made[key]


_made: dict[tuple[str, int, str], tuple[Candidate, ...]] = {}


def _candidates(
    kernel: LoopKernel, origins: tuple[str, ...], most_threads: int, tool: toolchain.Toolchain
) -> tuple[Candidate, ...]:
    if any(store.is_segment_sum for store in kernel.loop.stores):
        raise LoweringError(f"kernel {kernel_name(kernel, origins)!r} adds up points down columns, which has no C++ form.")
    expanded = apply_rewrites(kernel)
    nest = nest_of(expanded.loop)
    vector_bytes = tool.lanes * FLOAT_BYTES
    name = kernel_name(kernel, origins)
    lanes = vector_bytes // lane_bytes(nest)
    made_from = digest(f"{tool.identity} {kernel.text}")
    usefulness = Usefulness(expanded, nest, cpu.last_level())

    @functools.cache
    def source(schedule: CpuSchedule) -> str:
        return loops.generate(expanded, schedule, ENTRY, vector_bytes)

    @functools.cache
    def prior(schedule: CpuSchedule) -> LoopPrior:
        return LoopPrior(expanded, nest, schedule, lanes)

    def candidate(schedule: CpuSchedule, threads: int) -> CppCandidate:
        known = Prediction(
            valid=partial(usefulness.is_worth_trying, schedule, threads),
            cost=lambda size: prior(schedule).seconds(threads, size),
            terms=lambda size: prior(schedule).terms(threads, size),
        )
        label, recipe = f"{schedule.name} t{threads}", f"{made_from} {schedule.name}"
        return CppCandidate(label, schedule.config(threads), name, known, recipe, partial(source, schedule))

    generated = tuple(candidate(schedule, threads) for schedule, threads in schedules(nest, most_threads))
    _ = generated[0].source_hash  # whatever has no C++ form shows now, while a library call can still take its place
    return (*generated, *library_of(kernel, generated, library_speed(most_threads)), InterpretedLoop(kernel))


def library_speed(threads: int) -> Speed:
    """Predicted time of ATen's operators on this many threads. The next operator finds in the cache what one leaves there."""
    return Speed(LIBRARY_CALL, lambda moved: bandwidth(moved) * threads)


def check_messages(kernel: LoopKernel) -> tuple[str, ...]:
    """The sentences for the kernel's run-time checks, in the order of their numbers."""
    return checks.check_messages(plain_reductions(kernel.loop))
