"""Random programs of tensor operators, as text, with inputs of any type and layout (hypothesis strategies)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

DTYPES = (
    torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8, torch.bool,
)  # fmt: skip
EXTENTS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 33, 65)
LAYOUTS = ("contiguous", "transposed", "sliced", "expanded", "offset")

# What may jump at some value is done to inputs alone, so that rounding never decides which way.
OF_INPUTS = ("{0}", "{0}", "{0}", "({0} > 0)", "{0}.to(torch.int32)", "{0}.to(torch.float32)", "{0}.argmax(-1, True)")
OF_ONE = (
    "torch.sin({0})", "torch.tanh({0})", "torch.sigmoid({0})", "F.gelu({0}.float())", "torch.relu({0})", "{0}.abs()", "-{0}",
    "({0} * 2 - 1)", "torch.exp(-{0}.abs())", "({0}.abs() + 1).log()", "{0}.square()", "{0}.clamp(-1, 1)",
)  # fmt: skip
OF_TWO = (
    "({0} + {1})", "({0} * {1})", "({0} - {1})", "torch.maximum({0}, {1})", "torch.minimum({0}, {1})",
    "({0} / ({1}.abs() + 1))", "torch.where(x0 > 0, {0}, {1})", "torch.hypot({0}.float(), {1}.float())",
)  # fmt: skip
OF_ROWS = (
    "{0}.sum(-1, keepdim=True)", "{0}.amax(-1, keepdim=True)", "{0}.float().mean(0, keepdim=True)", "{0}.sum(0)",
    "torch.softmax({0}.float(), -1)", "{0}.cumsum(-1)", "{0}.float().logsumexp(-1, True)", "{0}.amin(0, keepdim=True)",
)  # fmt: skip
OF_SHAPES = (
    "{0}.transpose(0, -1)", "{0}.flip(-1)", "{0}[..., 1:]", "{0}[..., ::2]", "{0}.reshape(-1)", "torch.cat([{0}, {0}], -1)",
    "{0}.unsqueeze(0)", "{0}.roll(1, -1)", "F.pad({0}, (1, 2))", "{0}.contiguous()",
)  # fmt: skip


@dataclass(frozen=True)
class Example:
    """A program's text, and one (type, shape, layout) for each of its inputs."""

    text: str
    inputs: tuple[tuple[torch.dtype, tuple[int, ...], str], ...]

    @property
    def function(self) -> Callable[..., Any]:
        return _defined(self.text)

    @property
    def in_float64(self) -> Callable[..., Any]:
        """The program where what is computed in float32 is computed in float64."""
        return _defined(self.text.replace("torch.float32", "torch.float64").replace(".float()", ".double()"))

    def tensors(self) -> list[Tensor]:
        """The inputs, the same each time."""
        generator = torch.Generator().manual_seed(len(self.text))
        return [laid_out(dtype, shape, layout, generator) for dtype, shape, layout in self.inputs]

    def __repr__(self) -> str:
        return f"{self.text}\n{self.inputs}"


def _defined(text: str) -> Callable[..., Any]:
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(text, "<expression>", "exec"), names)
    return names["program"]


def laid_out(dtype: torch.dtype, shape: Sequence[int], layout: str, generator: torch.Generator) -> Tensor:
    """Random values of this type and shape: all of a buffer in order, or in reversed order of dimensions, every other
    element of each dimension, one element along the first, or from an odd place on."""

    def filled(*extents: int) -> Tensor:
        values = torch.randn(extents, generator=generator) * 3
        return (
            values > 0 if dtype == torch.bool else values.abs().to(dtype) if dtype == torch.uint8 else values.to(dtype)
        )

    match layout:
        case "transposed":
            return filled(*reversed(shape)).permute(*reversed(range(len(shape))))
        case "sliced":
            return filled(*(2 * n for n in shape))[tuple(slice(None, None, 2) for _ in shape)]
        case "expanded" if shape:
            return filled(1, *shape[1:]).expand(*shape)
        case "offset":
            count = torch.Size(shape).numel()
            return filled(count + 3)[3:].view(*shape)
    return filled(*shape)


@st.composite
def examples(draw: st.DrawFn) -> Example:
    """A program of one to three inputs that broadcast against each other, and up to eight operators; every value is
    returned that no other reads."""
    shape = tuple(draw(st.lists(st.sampled_from(EXTENTS), min_size=1, max_size=3)))
    count = draw(st.integers(1, 3))
    inputs = []
    for k in range(count):
        kept = shape if k == 0 else tuple(draw(st.sampled_from((n, n, 1))) for n in shape)
        kept = kept if k == 0 else kept[draw(st.integers(0, len(kept) - 1)) :]
        inputs.append((draw(st.sampled_from(DTYPES)), kept, draw(st.sampled_from(LAYOUTS))))
    lines = [f"    v{k} = {draw(st.sampled_from(OF_INPUTS)).format(f'x{k}')}" for k in range(count)]
    unread = list(range(count))
    for k in range(count, count + draw(st.integers(1, 8))):
        form = draw(st.sampled_from(OF_ONE + OF_TWO + OF_TWO + OF_ROWS + OF_SHAPES))
        operands = [draw(st.integers(0, k - 1)) for _ in range(1 + form.count("{1}"))]
        unread = [v for v in unread if v not in operands] + [k]
        lines.append(f"    v{k} = {form.format(*(f'v{v}' for v in operands))}")
    arguments, results = (
        ", ".join(f"{letter}{k}" for k in numbers) for letter, numbers in (("x", range(count)), ("v", unread))
    )
    return Example("\n".join([f"def program({arguments}):", *lines, f"    return {results},"]), tuple(inputs))
