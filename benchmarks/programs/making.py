"""How rows of the tables make a function and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from benchmarks.programs.program import Draw, Function

BF16, F16, F64 = torch.bfloat16, torch.float16, torch.float64
I8, I32, U8 = torch.int8, torch.int32, torch.uint8

Made = tuple[Function, tuple[Any, ...]]


def on(function: Function, *shapes: tuple[int, ...], **settings: Any) -> Callable[[Draw], Made]:
    """`function` of normal inputs of these shapes."""
    return lambda d: (function, tuple(d.x(*shape, **settings) for shape in shapes))


def scaled(
    function: Function, small: tuple[int, ...], large: tuple[int, ...], **settings: Any
) -> Callable[[Draw], Made]:
    """`function` of one normal input, small on a CPU and large on a GPU."""
    return lambda d: (function, (d.x(*(large if d.device == "cuda" else small), **settings),))


def of(function: Function, draw: Callable[[Draw], tuple[Any, ...]]) -> Callable[[Draw], Made]:
    """`function` of the inputs that `draw` makes."""
    return lambda d: (function, draw(d))


__all__ = ["BF16", "F16", "F64", "I8", "I32", "U8", "Made", "of", "on", "scaled"]
