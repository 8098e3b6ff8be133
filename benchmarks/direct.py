"""Compiled functions without Dynamo: the callable that a backend made of the graph, with the arguments of a call.

What a call costs beyond the kernels is mostly Dynamo's (guards, frame, rewritten bytecode: 20 to 30 µs), whichever backend
compiled the graph. To compare backends by what they made, their own innermost callables are called here: polytile's compiled
program, and the peer's generated wrapper. Inference alone: AOTAutograd then passes on its arguments as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from benchmarks.compilers import TUNED, copied, tuned_options
from polytile.compiler import backend as frontend
from polytile.compiler.programs import compiled_programs

Boxed = Callable[[list[Any]], Any]
"""Takes a list of arguments, which it may empty, and returns the list of results."""

Maker = Callable[[torch.fx.GraphModule, Sequence[Any], Mapping[str, Any]], tuple[Callable[..., Any], Callable[[], Boxed]]]
"""A backend: of a graph, its example inputs and options, the compiled function and the way to its innermost callable."""


class Recorded:
    """`function`, or a module, under one dynamic compile of `backend` ("polytile", "inductor" or "max-autotune"), with the
    callable and the arguments of its last call kept for `direct`."""

    def __init__(
        self,
        function: Callable[..., Any] | torch.nn.Module,
        backend: str,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        makers: dict[str, Maker] = {"polytile": _polytile, "inductor": _inductor, TUNED: _inductor}
        self.made = makers[backend]
        self.options = dict(options or (tuned_options() if backend == TUNED else {}))
        self.last: tuple[Boxed, tuple[Any, ...]] | None = None
        self.graphs: list[int] = []
        """How many arguments each graph has that was compiled."""
        if not isinstance(function, torch.nn.Module):
            function = copied(function, f"{function.__name__}_{backend.replace('-', '_')}")
        self.compiled = torch.compile(function, backend=self._backend, dynamic=True)

    def _backend(self, graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        outer, inner = self.made(graph, example_inputs, self.options)
        self.graphs.append(len(example_inputs))

        def call(*arguments: Any) -> Any:
            self.last = (inner(), arguments)
            return outer(*arguments)

        return call

    def __call__(self, *arguments: Any) -> Any:
        return self.compiled(*arguments)

    def direct(self, *arguments: Any) -> Callable[[], Any]:
        """A call of the innermost callable on `arguments`, with the first of its results. Raises AssertionError where the
        function was not compiled to one graph."""
        self.last = None
        self.compiled(*arguments)
        assert self.last is not None, "the function's graph was not called; it needs to be one graph without breaks."
        call, given = self.last
        return lambda: call([*given])[0]


def _polytile(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Callable[..., Any], Callable[[], Boxed]]:
    outer = frontend.polytile(graph, example_inputs, options=options)
    program = compiled_programs()[-1]
    return outer, lambda: program.call


def _inductor(
    graph: torch.fx.GraphModule, example_inputs: Sequence[Any], options: Mapping[str, Any]
) -> tuple[Callable[..., Any], Callable[[], Boxed]]:
    from torch._inductor.compile_fx import compile_fx, compile_fx_inner  # noqa: TID251 (the peer's own callable is what is timed)

    kept: list[Any] = []

    def inner_compile(*args: Any, **kwargs: Any) -> Any:
        kept.append(compile_fx_inner(*args, **kwargs))
        return kept[-1]

    with torch._functorch.config.patch(enable_autograd_cache=False):  # an entry of it would come without inner_compile
        outer: Any = compile_fx(graph, list(example_inputs), inner_compile=inner_compile, config_patches=dict(options) or None)
    def innermost() -> Boxed:
        found: Boxed = kept[-1].current_callable
        return found

    return outer, innermost


__all__ = ["Recorded"]
