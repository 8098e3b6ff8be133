"""The callable of an inference graph, without the parts of AOTAutograd's runtime wrapper that only other graphs need.

AOTAutograd wraps a graph in functions of Python, 2 to 4 us a call: they apply mutations, restore aliases, and switch gradients
off during the call. A graph that changes no argument and returns no alias needs only the last of these, which C does
(runtime/entry.c).
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch._functorch._aot_autograd import runtime_wrappers

from polytile.runtime import entry, native

WRAPPER = "runtime_wrapper"
"""The function of AOTAutograd that is left out."""

IDLE = frozenset(
    code
    for wrapper in (runtime_wrappers.FunctionalizedRngRuntimeWrapper, runtime_wrappers.EffectTokensWrapper)
    for code in wrapper.post_compile.__code__.co_consts
    if isinstance(code, types.CodeType)
)
"""Functions inside of it that pass a plain graph's arguments and results on. torch 2.13 leaves them out itself."""

NOTED = (
    "_dynamo_propagated_dynamic_indices"
    if hasattr(runtime_wrappers, "mark_dynamo_propagated_dynamic_indices")
    else "_dynamo_weak_dynamic_indices"
)
"""The attribute by which AOTAutograd notes on a result which of its dimensions may change."""


@dataclass
class Inference:
    """The result of compiling an inference graph: its callable, and AOTAutograd's metadata of the graph."""

    call: Callable[[list[Any]], list[Any]] | None = None
    metadata: Any = None

    def keep(self, call: Callable[[list[Any]], list[Any]]) -> Callable[[list[Any]], list[Any]]:
        context = torch._guards.TracingContext.try_get()
        self.call, self.metadata = call, context.fw_metadata if context is not None else None
        return call

    def unwrapped(self, wrapped: Callable[..., Any]) -> Callable[..., Any]:
        """`wrapped`, AOTAutograd's callable of the graph, or one in C that gives the same; where the launcher is being compiled,
        `wrapped`, of which `entry.in_c` gives the other later."""
        if self.metadata is None or not self._is_plain() or not self._is_wrapped_once(wrapped):
            return wrapped
        dynamic = tuple(info.dynamic_dims for info in self.metadata.output_info) if self.metadata.dynamic_outputs else ()
        in_c = functools.partial(_in_c, self.call, wrapped, tuple(d or None for d in dynamic))
        if native.is_ready():
            return in_c()
        setattr(wrapped, entry.IN_C, in_c)
        return wrapped

    def _is_plain(self) -> bool:
        """Whether the runtime wrapper does nothing but to switch the gradient mode off."""
        known = self.metadata
        return (
            not any(info.mutates_data or info.mutates_metadata for info in known.input_info)
            and known.num_outputs_aliased == 0
            and known.num_intermediate_bases == 0
            and known.grad_enabled_mutation is None
            and not known.tokens
            and not known.is_rng_op_functionalized
            and not torch._C._is_any_autocast_enabled()
        )

    def _is_wrapped_once(self, wrapped: Any) -> bool:
        """Whether `wrapped` passes its arguments as they are to the runtime wrapper, and that to the callable."""
        wrapper = getattr(wrapped, "__wrapped__", None)
        inner: Any = getattr(wrapper, "__wrapped__", None)
        while getattr(inner, "__code__", None) in IDLE:
            inner = inner.__wrapped__
        lists = [cell.cell_contents for cell in wrapped.__closure__ or () if isinstance(cell.cell_contents, list | tuple)]
        return (
            not any(lists)
            and getattr(getattr(wrapper, "__code__", None), "co_name", "") == WRAPPER
            and inner is self.call
        )


def _in_c(call: Any, wrapped: Callable[..., Any], dynamic: tuple[Any, ...]) -> Callable[..., Any]:
    loaded = entry.module()
    graph: Callable[..., Any] = wrapped if loaded is None else loaded.Graph(call, wrapped, dynamic, NOTED)
    return graph
