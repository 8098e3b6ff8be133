"""From sample inputs to one Python function that applies an operator to all of them.

Tensors are arguments; everything else is written into the text as a literal, so that sizes and dimensions given as
numbers are constants of the program, as they are in programs that people write. One function for several samples costs
one trace and one compile, and its text is a program that shows a failure by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class Program:
    """`function(*inputs)` returns one result for each sample; `inputs` are the samples' tensors in order, `text` is the
    source, `finish` what torch asks to be done with each result before its gradient is taken."""

    function: Callable[..., Any]
    text: str
    inputs: tuple[Tensor, ...]
    finish: tuple[Callable[[Any], Any], ...]

    def finished(self, results: Sequence[Any]) -> list[Any]:
        return [finish(result) for finish, result in zip(self.finish, results, strict=True)]


class _Writer:
    """Collects the tensors and the objects without a literal while samples are written as text."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.objects: dict[str, Any] = {"torch": torch, "inf": math.inf, "nan": math.nan}

    def literal(self, value: Any) -> str:
        if isinstance(value, Tensor):
            self.tensors.append(value)
            return f"t{len(self.tensors) - 1}"
        if type(value) is list:
            return f"[{', '.join(map(self.literal, value))}]"
        if type(value) is tuple:
            return f"({''.join(self.literal(v) + ', ' for v in value)})"
        if type(value) is dict:
            return f"{{{', '.join(f'{key!r}: {self.literal(v)}' for key, v in value.items())}}}"
        if type(value) is slice:
            return f"slice({self.literal(value.start)}, {self.literal(value.stop)}, {self.literal(value.step)})"
        if value is None or value is Ellipsis or type(value) in (bool, int, float, complex, str):
            return repr(value)
        if isinstance(value, torch.dtype | torch.memory_format | torch.layout):
            return str(value)
        if isinstance(value, torch.device):
            return f"torch.device({str(value)!r})"
        name = f"o{len(self.objects)}"
        self.objects[name] = value
        return name


def program(operator: Callable[..., Any], samples: Sequence[Any]) -> Program:
    """One function for all of `samples` (torch's SampleInput)."""
    writer = _Writer()
    writer.objects["op"] = operator
    calls = []
    for sample in samples:
        given = [writer.literal(value) for value in (sample.input, *sample.args)]
        given += [f"{name}={writer.literal(value)}" for name, value in sample.kwargs.items()]
        calls.append(f"        op({', '.join(given)}),")
    names = ", ".join(f"t{k}" for k in range(len(writer.tensors)))
    text = "\n".join([f"def program({names}):", "    return (", *calls, "    )"])
    exec(compile(text, "<conformance>", "exec"), writer.objects)
    finish = tuple(sample.output_process_fn_grad for sample in samples)
    return Program(writer.objects["program"], text, tuple(writer.tensors), finish)


def cloned(tensor: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A copy with the same strides, storage offset and need of a gradient; in `dtype` if given."""
    if tensor.layout is not torch.strided or tensor.is_nested or tensor.is_conj() or tensor.is_neg():
        copy = tensor.detach().clone()
        return (copy if dtype is None else copy.to(dtype)).requires_grad_(tensor.requires_grad)
    plain = tensor.detach()
    span = 1 + sum((n - 1) * s for n, s in zip(plain.shape, plain.stride(), strict=True)) if plain.numel() else 0
    offset = plain.storage_offset()
    memory = torch.zeros(offset + span, dtype=dtype or plain.dtype, device=plain.device)
    memory[offset:] = plain.as_strided((span,), (1,), offset)
    return memory.as_strided(plain.shape, plain.stride(), offset).requires_grad_(tensor.requires_grad)
