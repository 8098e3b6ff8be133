"""Entries: C callables (entry.c) that run a compiled function without evaluating its Python frame.

    module()      the launcher, ready for entries; None where it cannot be had
    in_c(graph)   a compiled graph's C callable, even if the graph was compiled before the launcher was built
    DECLINED      returned by an Entry instead of a result if the call must go through torch.compile
    OWN           returned instead of a result if the original function must be called, because it is faster
"""

from __future__ import annotations

import ctypes
import functools
import logging
from typing import Any

import torch

from polytile.runtime import native
from polytile.runtime.symbols import address_of

log = logging.getLogger("polytile")


class _Answer:
    """The type of DECLINED and OWN."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return self.name


DECLINED, OWN = _Answer("DECLINED"), _Answer("OWN")

IN_C = "polytile_in_c"
"""Attribute of a graph's Python callable: a function that returns an equivalent C callable."""

ABSENT = ("forward", "_call_impl", "_compiled_call_impl")
"""Instance attributes that change what calling a Module does."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip

GRAD_MODE = ("_ZN3c108GradMode10is_enabledEv", "_ZN3c108GradMode11set_enabledEb")
"""`c10::GradMode::is_enabled()` and `set_enabled(bool)`."""


TRACING = "_ZN5torch3jit6tracer15getTracingStateEv"
"""`torch::jit::tracer::getTracingState()`. It returns a reference to a `std::shared_ptr`, which begins with the pointer."""

LAYOUT = ("dim", "sizes", "storage_offset")
"""Suffixes of the names of functions of torch's stable C interface."""


@functools.cache
def module() -> Any:
    """The launcher, able to make entries; None if there is no launcher, or if torch lacks what entries inspect."""
    loaded = native.module(quietly=True)  # entries only save time; kernels warn if there is no launcher
    if loaded is None:
        return None
    try:
        loaded.configure_entries(
            DECLINED, OWN, _facts(), _questions(), *_collectives(), ABSENT, HOOKS, _global_hooks(), *_addresses()
        )
    except (ImportError, OSError, AttributeError, KeyError) as error:
        log.warning("torch %s: calls go through Dynamo's frames, because this has moved: %s", torch.__version__, error)
        return None
    return loaded


def in_c(graph: Any) -> Any:
    """The C callable of a graph that can make one; else the graph itself."""
    make = getattr(graph, IN_C, None)
    return graph if make is None else make()


def _facts() -> tuple[tuple[dict[str, Any], str, Any], ...]:
    """The variables that torch.compile's own wrapper checks in each call: (namespace, name, value in the normal state)."""
    import torch._dynamo.eval_frame
    import torch.autograd.profiler
    import torch.fx._symbolic_trace

    expected = [
        (torch.compiler, "_is_exporting_flag", False),
        (torch.autograd.profiler, "_is_profiler_enabled", False),  # profiles show Dynamo's ranges
    ]
    if not _fx_tracing():
        expected.append((torch.fx._symbolic_trace, "_is_fx_tracing_flag", False))
    plain = torch._dynamo.eval_frame.DynamoStance()
    stance = torch._dynamo.eval_frame._stance
    facts = [(vars(owner), name, value) for owner, name, value in expected]
    for names, name, _ in facts:
        names[name]
    return (*facts, (vars(torch._dynamo.eval_frame), "_stance", stance if stance == plain else plain))


def _questions() -> tuple[tuple[Any, Any], ...]:
    """The functions that it calls for the same purpose: (function, result in the normal state)."""
    return (torch._C._dynamo.eval_frame.get_eval_frame_callback, None), *_fx_tracing()


def _fx_tracing() -> tuple[tuple[Any, Any], ...]:
    """FX's tracing state as a function. Before torch 2.15 it is a flag of the module."""
    import torch.fx._symbolic_trace

    function = getattr(torch.fx._symbolic_trace, "_get_is_fx_tracing", None)
    return () if function is None else ((function, False),)


def _collectives() -> tuple[dict[Any, Any], Any]:
    """torch's process groups, and the setter of the hook by which ranks agree on whether guards hold."""
    groups: dict[Any, Any] = torch.distributed.distributed_c10d._pg_map if torch.distributed.is_available() else {}
    return groups, torch._C._dynamo.eval_frame.set_guard_complete_hook


def _global_hooks() -> tuple[dict[int, Any], ...]:
    return tuple(getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS)


def _addresses() -> tuple[int, ...]:
    library, stable = ctypes.CDLL(native.library_path("c10")), native.torch_library()
    modes = [getattr(library, name) for name in GRAD_MODE]
    functions = [*modes, getattr(stable, TRACING), *(getattr(stable, f"aoti_torch_get_{name}") for name in LAYOUT)]
    return tuple(map(address_of, functions))
