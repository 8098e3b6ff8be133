"""Work that starts before there is a graph, so that it ends sooner: the C launcher's compiler, and the process that generates
and compiles (runtime/builder.py). Importing this module imports neither the tracer nor the compiler, which takes a second.

    begin(module, ...)    a module is to be compiled on a CPU; the tracer is imported next
    prepare(values)       a graph with these inputs is to be traced next
    expect(values)        a graph with these inputs has been traced, and its program is not on disk
    waits_for()           what calls wait for
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from polytile import options as settings
from polytile.runtime import builder, native
from polytile.runtime.cache import current

PROGRAMS = "programs"
"""The folder of the cache that programs are in."""

CPU = torch.device("cpu")


def waits_for() -> str:
    """What calls wait for under the options and torch's settings in force: "never", "compile" or "tune" (option `stall`).

    Whoever wants the same kernels in each run of a program, by deterministic algorithms or by a plan, or names them by `force`,
    gets them from the first call on. So does who has changed the default type, as that is the whole process's.
    """
    stall = str(settings.get("stall"))
    fixed = torch.are_deterministic_algorithms_enabled() or settings.get("plan") or settings.get("force")
    asks = settings.get("interpret") or settings.get("check_inputs") or torch.get_default_dtype() != torch.float32
    return "compile" if stall == "never" and (fixed or asks) else stall


def begin(function: Any, mode: str | None, options: Mapping[str, Any] | None) -> None:
    """Prepares for the first graph of a module: it is there to be called soon. What is wrong with the options is said by who
    takes them."""
    if isinstance(function, torch.nn.Module):
        with contextlib.suppress(Exception), settings.override(**{**settings.of_mode(mode), **(options or {})}):
            prepare(function.parameters())


def prepare(values: Iterable[Any], hinted: bool = False) -> None:
    """Starts the launcher's compiler, and the other process if no program is on disk: where some are, this one may be among them.
    Tracing takes seconds of one core; the process imports what it needs on another. `hinted`: calls wait for measured kernels."""
    waits_for_nothing = waits_for() == "never" and not hinted
    native.prepare(beside_calls=waits_for_nothing)
    if waits_for_nothing and not current().holds(PROGRAMS):
        expect(values)


def expect(values: Iterable[Any]) -> None:
    """Has the other process start, if the program of a graph with these inputs may be made there."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if builder.wanted() and all(tensor.device == CPU for tensor in tensors):
        builder.begin(linear=any(tensor.dtype == torch.float32 and tensor.dim() == 2 for tensor in tensors))
