"""Launches that are ordinary loops over what earlier launches have left in scratch memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polytile.codegen.triton.kernel import Argument, Kind, Launch
from polytile.codegen.triton.schedules import emit
from polytile.codegen.triton.unit import Unit
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.facts import Facts
from polytile.schedule.gpu.schedule import GpuSchedule
from polytile.schedule.nest import nest_of


def on_scratch(kernel: LoopKernel, schedule: GpuSchedule, facts: Facts, overlaps: bool, numbers: Mapping[str, int]) -> Launch:
    """The launch of `kernel`, some of whose tensors are scratch memory, by their numbers."""
    known = replace(facts, aligned=facts.aligned | set(numbers))
    unit = Unit(kernel, replace(nest_of(kernel.loop), cutting=False), schedule, known, overlaps)
    emit(unit)
    launch = unit.launch()
    return replace(launch, arguments=tuple(_argument(argument, numbers) for argument in launch.arguments))


def _argument(argument: Argument, numbers: Mapping[str, int]) -> Argument:
    if argument.name not in numbers:
        return argument
    return Argument(Kind.SCRATCH, argument.name, argument.type, numbers[argument.name])
