"""Random programs as text, with inputs whose sizes may change, that run in eager.

A program is made statement by statement: each is run at once, and one that raises is drawn anew. So that programs can be
judged, rounding never decides anything: every value has a level, and statements that jump take no rounded operand.
"""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.fuzz.statements import DECIDES, TABLES, Template

DTYPES = (
    *4 * [torch.float32], torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
)  # fmt: skip
SHAPES = (*3 * [("n", "m")], ("m", "n"), ("n", 4, "m"), (2, "n", "m"), ("n",), ("n", "n"), ("n", 3), (),
          (2, "n", 3, "m"))
LAYOUTS = ("contiguous", "contiguous", "transposed", "sliced", "expanded", "offset", "view", "repeated", "channels last")
SIZES = ((1, 6), (0, 5), (6, 1), (2, 3), (2, 2), (3, 0), (17, 8), (13, 37), (40, 33), (7, 7), (64, 3), (130, 5))
MODES = ("torch.enable_grad()", "torch.enable_grad()", "torch.no_grad()", "torch.no_grad()", "torch.inference_mode()")
NUMBERS = ("2", "-1", "0.5", "3", "True", "0", "-2.0")
VIEWS = ("x0", "x0[1:]", "x0.transpose(0, -1)", "x0[..., ::2]")
MOST_ELEMENTS = 2000
WHOLE, GIVEN, ROUNDED = range(3)
"""Levels: small integers, of any type; what is exactly what eager has; what arithmetic has rounded."""


@dataclass(frozen=True)
class Input:
    """A random tensor. `view`: how it is a view of the first input, if it is one. `whole`: it holds small integers."""

    shape: tuple[int | str, ...]
    dtype: torch.dtype
    layout: str
    whole: bool
    gradient: bool = False
    special: bool = False
    view: str = ""


@dataclass(frozen=True)
class Fuzzed:
    """A program: its lines, inputs, results, the mode of autograd it runs in, and the (n, m) of each call."""

    seed: int
    lines: tuple[str, ...]
    results: tuple[str, ...]
    inputs: tuple[Input, ...]
    mode: str
    sizes: tuple[tuple[int, int], ...]
    exact: frozenset[str] = frozenset()
    """Values that nothing has rounded."""

    @property
    def text(self) -> str:
        arguments = ", ".join(f"x{k}" for k in range(len(self.inputs)))
        return "\n    ".join([f"def program({arguments}):", *self.lines, f"return ({', '.join(self.results)},)"])

    @property
    def shortest(self) -> int:
        """Bytes of the shortest floats that it computes in."""
        floats = [given.dtype.itemsize for given in self.inputs if given.dtype.is_floating_point]
        return 2 if re.search(r"float16|\.half\(", self.text) else min(floats, default=4)

    def function(self, wide: bool = False) -> Any:
        names = namespace()
        exec(compile(widened(self.text) if wide else self.text, f"<fuzzed {self.seed}>", "exec"), names)
        return names["program"]

    def tensors(self, sizes: tuple[int, int], wide: bool = False) -> list[Tensor]:
        return tensors(self.inputs, sizes, self.seed, wide)


def namespace() -> dict[str, Any]:
    return {"torch": torch, "F": F}


def widened(text: str) -> str:
    """The text of a program that computes in float64 what it computed in shorter floats."""
    text = re.sub(r"torch\.(float32|float16|bfloat16)\b", "torch.float64", text)
    return text.replace("torch.complex64", "torch.complex128").replace(".float()", ".double()")


def tensors(inputs: Sequence[Input], sizes: tuple[int, int], seed: int, wide: bool = False) -> list[Tensor]:
    """The inputs of a call; the same each time, whatever other inputs there are."""
    made: list[Tensor] = []
    for given in inputs:
        if given.view:
            made.append(eval(given.view, {"x0": made[0], "torch": torch}))
            continue
        generator = torch.Generator().manual_seed(seed + 1000 * len(made))
        shape = [{"n": sizes[0], "m": sizes[1]}.get(n, n) if isinstance(n, str) else n for n in given.shape]
        made.append(_laid_out(given, shape, generator, WIDE if wide else {}).requires_grad_(given.gradient))
    return made


WIDE = dict.fromkeys((torch.float32, torch.float16, torch.bfloat16), torch.float64) | {torch.complex64: torch.complex128}


def _laid_out(
    given: Input, shape: Sequence[int], generator: torch.Generator, wider: dict[torch.dtype, torch.dtype]
) -> Tensor:
    dtype = given.dtype

    def filled(*extents: int) -> Tensor:
        values = torch.randn(extents, generator=generator, dtype=torch.float32) * 1.5
        values = values.round() if given.whole else values
        if given.special and values.numel():
            values.view(-1)[:: 3] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])[values.numel() % 4]
        if dtype == torch.complex64:
            values = torch.complex(values, values.flip(0) if extents else values)
        values = values > 0 if dtype == torch.bool else values.abs() if dtype == torch.uint8 else values
        return values.to(dtype).to(wider.get(dtype, dtype))

    match given.layout:
        case "transposed":
            return filled(*reversed(shape)).permute([*reversed(range(len(shape)))])
        case "sliced":
            return filled(*(2 * n for n in shape))[tuple(slice(None, None, 2) for _ in shape)]
        case "expanded" if shape:
            return filled(1, *shape[1:]).expand(tuple(shape))
        case "repeated" if shape:
            return filled(*shape[:-1], 1).expand(tuple(shape))
        case "channels last" if len(shape) > 2:
            return filled(shape[0], *shape[2:], shape[1]).movedim(-1, 1)
        case "offset":
            return filled(torch.Size(shape).numel() + 3)[3:].view(tuple(shape))
    return filled(*shape)


class _Maker:
    """Makes one program, running each statement as it is drawn."""

    def __init__(self, seed: int) -> None:
        self.seed, self.draw = seed, random.Random(seed)
        draw = self.draw
        self.mode = draw.choice(MODES)
        self.base = draw.choice(((5, 6), (4, 7), (6, 3), (8, 5)))
        inputs: list[Input] = []
        for k in range(draw.choice((1, 2, 2, 3))):
            if k and draw.random() < 0.15 and inputs[0].shape and not inputs[0].gradient:
                inputs.append(replace(inputs[0], view=draw.choice(VIEWS)))
                continue
            dtype, shape = draw.choice(DTYPES), draw.choice(SHAPES)
            if k and draw.random() < 0.6:
                shape = tuple(draw.choice((n, n, n, 1)) for n in inputs[0].shape)
                dtype = draw.choice((dtype, inputs[0].dtype))
            floats = dtype.is_floating_point or dtype.is_complex
            layout = draw.choice(LAYOUTS)
            inputs.append(Input(
                shape, dtype, layout, not floats or draw.random() < 0.5,
                floats and layout not in ("expanded", "repeated") and draw.random() < 0.5 and "enable" in self.mode,
                dtype.is_floating_point and draw.random() < 0.08,
            ))  # fmt: skip
        self.inputs = tuple(inputs)
        self.names: dict[str, Any] = namespace()
        self.values: dict[str, Tensor] = {}
        self.levels: dict[int, int] = {}
        """Level of each storage."""
        for k, tensor in enumerate(tensors(inputs, self.base, seed)):
            given = inputs[k]
            self._keep(f"x{k}", tensor, WHOLE if given.whole and not given.special else GIVEN)
        self.lines: list[str] = []
        self.unread: list[str] = []
        self.drawn: list[str] = []
        """Values made of random numbers. They are returned: numbers that nobody reads are not drawn when compiled."""

    def _keep(self, name: str, tensor: Tensor, level: int) -> None:
        self.names[name] = self.values[name] = tensor
        place = tensor.untyped_storage().data_ptr()
        self.levels[place] = max(level, self.levels.get(place, WHOLE)) if place else level

    def level(self, name: str) -> int:
        return self.levels.get(self.values[name].untyped_storage().data_ptr(), WHOLE)

    def statement(self, template: Template) -> bool:
        """Whether a statement of this form was added."""
        draw, used, text = self.draw, dict[str, str](), template.text
        for letter in dict.fromkeys(re.findall(r"{([abfgimc])}", text)):
            fits = [name for name, value in self.values.items() if _fits(letter, value)]
            if not fits:
                return False
            late = fits[-4:]
            used[letter] = draw.choice(late if draw.random() < 0.6 else fits)
        if not used and not re.search(r"{n}", text):
            used["a"] = draw.choice(list(self.values))
        first = next(iter(used.values()), None) or draw.choice(list(self.values))
        dims = max(self.values[first].dim(), 1)
        other = {letter: str(draw.randrange(-dims, dims)) for letter in "de"}
        sized = f"{first}.shape[{draw.randrange(-dims, dims)}]"
        other |= {"s": draw.choice(NUMBERS), "t": str(draw.choice(DTYPES[:-1])), "n": sized}
        if template.writes and (first in self.drawn or not _may_write(first, self.values[first], text)):
            return False
        levels = [self.level(name) for name in used.values()] or [WHOLE]
        if template.kind == "decides" and max(levels) == ROUNDED:
            return False
        line = text.format(**used, **other)
        level = self._level_after(template, max(levels), line)
        return self._add(line, first if template.writes else "", list(used.values()), level)

    def repetition(self) -> bool:
        """Whether an expression was added that stands in the program already; passes may make one of both."""
        made = [line for line in self.lines if re.match(r"v\d+ = ", line)]
        if not made:
            return False
        old, _, line = self.draw.choice(made).partition(" = ")
        operands = list(dict.fromkeys(re.findall(r"\b[vx]\d+\b", line)))
        return self._add(line, "", operands, max(self.level(name) for name in (old, *operands)))

    def _add(self, line: str, target: str, operands: list[str], level: int) -> bool:
        """Runs an expression, or a statement that writes into `target`, and keeps it if it runs and is small."""
        name = target or f"v{len(self.lines)}"
        line = line if target else f"{name} = {line}"
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                exec(line, self.names)
        except Exception:
            return False
        value = self.names[name]
        if not isinstance(value, Tensor) or value.numel() > MOST_ELEMENTS or value.dim() > 5:
            if not target:
                del self.names[name]
            return False
        if level == WHOLE and value.dtype.is_floating_point and value.numel():
            largest = float(value.detach().abs().max())
            level = level if largest <= (32 if value.dtype.itemsize == 2 else 10000) else ROUNDED
        self._keep(name, value, level)
        self.lines.append(line)
        self.unread = [one for one in self.unread if one not in operands or one == target]
        if not target:
            self.unread.append(name)
        if re.search(r"rand|dropout|bernoulli", line):
            self.drawn.append(name)
        return True

    def _level_after(self, template: Template, level: int, line: str) -> int:
        shorter = re.search(r"bfloat16|float16", line) and level > WHOLE
        match template.kind:
            case "decides":
                return WHOLE if template in DECIDES and not re.search(r"values|isnan|\[.*> 0\]", line) else level
            case "moves":
                return ROUNDED if shorter or (level > WHOLE and "0.5" in line) else level
            case "sums":
                return WHOLE if level == WHOLE and "0.5" not in line else ROUNDED
        return ROUNDED

    def make(self) -> Fuzzed:
        draw = self.draw
        wanted = draw.choice((4, 6, 8, 10, 12))
        tables, weights = zip(*TABLES, strict=True)
        with mode(self.mode):
            torch.manual_seed(self.seed)
            tries = 0
            while len(self.lines) < wanted and tries < 400:
                tries += 1
                if draw.random() > 0.1 or not self.repetition():
                    self.statement(draw.choice(draw.choices(tables, weights)[0]))
        every = list(self.values)
        more = draw.sample(every, min(len(every), draw.choice((0, 0, 1, 2))))
        results = tuple(dict.fromkeys([*self.unread, *self.drawn, *more])) or (every[-1],)
        sizes = [self.base, *draw.sample([s for s in SIZES if min(s) > 1], 2)]
        if draw.random() < 0.3:
            sizes.insert(draw.choice((0, 1, 3)), draw.choice([s for s in SIZES if min(s) < 2]))
        exact = frozenset(name for name in every if self.level(name) < ROUNDED)
        return Fuzzed(self.seed, tuple(self.lines), results, self.inputs, self.mode, tuple(sizes), exact)


def _may_write(name: str, value: Tensor, text: str) -> bool:
    """Whether no elements share a place, which eager leaves undefined, and no input changes shape, which Dynamo refuses."""
    places = torch.arange(value.untyped_storage().nbytes()).as_strided(value.shape, value.stride())
    return len(places.unique()) == value.numel() and not (name[0] == "x" and re.search(r"(queeze|spose|{a}.t)_", text))


def _fits(letter: str, value: Tensor) -> bool:
    dtype = value.dtype
    match letter:
        case "f" | "g":
            return dtype.is_floating_point
        case "i":
            return dtype == torch.int64
        case "m":
            return dtype == torch.bool
        case "c":
            return dtype.is_complex
    return True


def mode(text: str) -> contextlib.AbstractContextManager[Any]:
    made: contextlib.AbstractContextManager[Any] = eval(text)
    return made


def make(seed: int) -> Fuzzed:
    """The program of this seed."""
    return _Maker(seed).make()
