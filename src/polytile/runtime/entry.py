"""Entries: calls of a compiled function without the evaluation of its frame, in C (entry.c).

    module()      the launcher, ready for entries; None where there can be none
    in_c(graph)   a compiled graph as C calls it, where it was compiled before the launcher was there
    DECLINED      what an Entry returns in place of a result where the call has to go through torch.compile
    OWN           the same where the function itself is to be called, as it is faster than what was compiled
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
"""The attribute of a graph's callable, a function of Python, that makes one in C which gives the same."""

ABSENT = ("forward", "_call_impl", "_compiled_call_impl")
"""Attributes by which an instance of Module changes what its call does."""

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
GLOBAL_HOOKS = (
    "_global_forward_hooks", "_global_forward_pre_hooks", "_global_backward_hooks", "_global_backward_pre_hooks",
)  # fmt: skip

GRAD_MODE = ("_ZN3c108GradMode10is_enabledEv", "_ZN3c108GradMode11set_enabledEb")
"""`c10::GradMode::is_enabled()` and `set_enabled(bool)`."""


TRACING = "_ZN5torch3jit6tracer15getTracingStateEv"
"""`torch::jit::tracer::getTracingState()`, which returns a reference to a `std::shared_ptr`; it begins with the pointer."""

LAYOUT = ("dim", "sizes")
"""Ends of the names of functions of torch's stable C interface."""


@functools.cache
def module() -> Any:
    """The launcher, able to make entries; None where there is none, or torch does not have what entries look at."""
    loaded = native.module(quietly=True)  # entries only save time: kernels that go without the launcher warn of it
    if loaded is None:
        return None
    try:
        loaded.configure_entries(
            DECLINED, OWN, _facts(), _questions(), *_collectives(), ABSENT, HOOKS, _global_hooks(), *_addresses()
        )
    except (ImportError, OSError, AttributeError, KeyError) as error:
        log.warning("torch %s: each call goes through Dynamo's frames, as this is not where it was: %s", torch.__version__, error)
        return None
    return loaded


def in_c(graph: Any) -> Any:
    """The callable in C of a graph that knows how to make one; else the graph's own."""
    make = getattr(graph, IN_C, None)
    return graph if make is None else make()


def _facts() -> tuple[tuple[dict[str, Any], str, Any], ...]:
    """What torch.compile's own wrapper looks at in each call: (namespace, name, value while nothing special is in force)."""
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
    found = [(vars(owner), name, value) for owner, name, value in expected]
    for names, name, _ in found:
        names[name]
    return (*found, (vars(torch._dynamo.eval_frame), "_stance", stance if stance == plain else plain))


def _questions() -> tuple[tuple[Any, Any], ...]:
    """The same by functions: (function, what it gives then)."""
    return (torch._C._dynamo.eval_frame.get_eval_frame_callback, None), *_fx_tracing()


def _fx_tracing() -> tuple[tuple[Any, Any], ...]:
    """Whether FX traces, asked of a function: before torch 2.15 a flag of its module says so."""
    import torch.fx._symbolic_trace

    function = getattr(torch.fx._symbolic_trace, "_get_is_fx_tracing", None)
    return () if function is None else ((function, False),)


def _collectives() -> tuple[dict[Any, Any], Any]:
    """torch's process groups, and what sets that ranks agree on whether guards hold."""
    groups: dict[Any, Any] = torch.distributed.distributed_c10d._pg_map if torch.distributed.is_available() else {}
    return groups, torch._C._dynamo.eval_frame.set_guard_complete_hook


def _global_hooks() -> tuple[dict[int, Any], ...]:
    return tuple(getattr(torch.nn.modules.module, name) for name in GLOBAL_HOOKS)


def _addresses() -> tuple[int, ...]:
    library, stable = ctypes.CDLL(native.library_path("c10")), native.torch_library()
    modes = [getattr(library, name) for name in GRAD_MODE]
    functions = [*modes, getattr(stable, TRACING), *(getattr(stable, f"aoti_torch_get_{name}") for name in LAYOUT)]
    return tuple(map(address_of, functions))


__all__ = ["DECLINED", "IN_C", "OWN", "in_c", "module"]
