"""Random modules behind `polytile.compile`, called with changing arguments while what they read changes between calls.

Two equal modules live side by side: one runs in eager, one compiled. Each call may come after a change of both, which guards, or
a memo of what they read, have to notice. Results, gradients, parameters, buffers and counters are compared after each call.

`python -m tests.fuzz.run --doors --seeds 0:100` runs many.
"""

from __future__ import annotations

import contextlib
import random
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

import polytile
from tests.conformance.judge import steps

WIDTH = 6

HEAD = f'''
import torch
from torch import nn
import torch.nn.functional as F

GLOBAL, FACTORS = 2, {{"x": 1.5, "y": [1, 2]}}

class Inner(nn.Module):
    bonus = 1

    def __init__(self, gain):
        super().__init__()
        self.gain, self.act = gain, torch.tanh

    def forward(self, x):
        return self.act(x) * self.gain + self.bonus

class Settings:
    def __init__(self):
        self.shift, self.names, self.pair = 3, {{"plus", "minus"}}, (1, 2.5)

class Door(nn.Module):
    kind = "plain"

    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.scale, self.number, self.on, self.items, self.table = 0.5, 3, True, [1, 2], {{"a": 1.0}}
        self.weight, self.bias, self.count, self.settings = nn.Parameter(torch.randn({WIDTH}, {WIDTH})), None, 0, Settings()
        self.inner, self.layers = Inner(2.0), nn.ModuleList([nn.Linear({WIDTH}, {WIDTH}), Inner(0.5)])
        self.register_buffer("memory", torch.zeros(()))

    @property
    def doubled(self):
        return self.number * 2

    def forward(self, x, y=None, flag=False, k=2, *extra, mode="a", **named):
'''

LINES = """
x = x * self.scale
x = x + self.number
x = x.relu() if self.on else x - 1
x = x + 1 if flag else x.abs()
x = x if y is None else x + y
x = x * k
x = x - k / 3
x = F.linear(x, self.weight.to(x.dtype))
x = x if self.bias is None else x + self.bias
x = x + sum(self.items)
x = x * self.table["a"]
x = x * self.table.get("b", 1)
x = x.sin() if mode == "a" else x.cos()
x = self.inner(x)
x = self.layers[1](x)
x = self.layers[0](x) if x.dtype == self.weight.dtype else x
x = x * 2 if x.shape[0] > 4 else x
x = x + 3 if x.dtype == torch.float64 else x
x = x * 2 if torch.is_grad_enabled() else x
x = x * 3 if torch.is_inference_mode_enabled() else x
x = F.dropout(x, 0.5) if self.training else x
x = x + 5 if x.requires_grad else x
x = x + GLOBAL
x = x * FACTORS["x"] + len(FACTORS["y"])
x = x + self.settings.shift
x = x + len(self.settings.names)
x = x * self.settings.pair[1]
x = x + 1 if "plus" in self.settings.names else x
x = x + len(extra)
x = x + sum(named.values())
x = x + self.doubled
x = x * 2 if self.kind == "plain" else x
x = x + len(self.layers)
x = x + self.memory
self.memory.add_(x.detach().sum().to(self.memory.dtype).clamp(-1, 1).round())
self.count += 1
x = x.t().contiguous().t()
x = x.softmax(-1)
x = x @ x.mT @ x
x = x * (x.shape[0] - 4)
x = x * 2 if x.is_contiguous() else x + 7
x = x * 2 if hasattr(self, "late") else x
x = x * getattr(self, "late", 4)
x = x * 2 if isinstance(k, float) else x
x = x * (2 if k > 2 else 3)
x = x + (k if k else 9)
x = x * 2 if torch.is_autocast_enabled("cpu") else x
x = x + F.linear(x.float(), self.weight.float()).to(x.dtype)
x = torch.where(x > 0, x, self.scale)
x = x * len(self.items)
x = x * self.items[-1]
x = x + (1 if y is self.bias else 2)
x = x * x.new_ones(x.shape[0], 1)
x = x + torch.get_default_dtype().itemsize
""".strip().splitlines()

CHANGES = """
door.scale = 0.25
door.scale = 1
door.scale = float("nan") if door.count % 2 else 2.0
door.number = 4
door.number = -door.number
door.number = 2.5
door.on = not door.on
door.items.append(2)
door.items[0] = 5
door.items = (1,)
door.items.pop() if len(door.items) > 1 and isinstance(door.items, list) else None
door.table["a"] = 3.0
door.table["b"] = 2
door.table.clear() or door.table.update(a=0.5)
door.table = {"a": 2.0, "c": 1}
door.weight = nn.Parameter(torch.ones_like(door.weight))
door.weight.data = door.weight.data * 2
door.weight.data.mul_(0.5)
door.weight.requires_grad_(not door.weight.requires_grad)
door.bias = torch.ones(WIDTH)
door.bias = None
door.inner.gain = 3.0
door.inner.act = torch.sigmoid
door.inner = Inner(1.5)
door.layers[1].gain = -1.0
door.layers[0].weight.data.add_(0.1)
door.layers.append(Inner(1.0))
door.eval()
door.train()
door.inner.bonus = 4
Inner.bonus = Inner.bonus + 1
Door.kind = "fancy"
Door.kind = "plain"
names["GLOBAL"] = 7
names["GLOBAL"] = 2.5
names["FACTORS"]["x"] = 0.5
names["FACTORS"]["y"].append(1)
door.settings.shift = 4
door.settings.names.discard("plus")
door.settings.names.add("times")
door.settings.pair = (1, 0.5)
door.settings = Settings()
door.memory.zero_()
door.memory = torch.ones(())
door.late = 3
door.__dict__.pop("late", None)
torch.set_default_dtype(torch.float64)
torch.set_default_dtype(torch.float32)
door.count = 0
door.double() if door.weight.dtype == torch.float32 else door.float()
""".strip().splitlines()

OTHERS = (
    "", "", "y", "y, True", "None, True", "y, flag=True, k=3", "k=2.5", "k=5", "k=0", "y, True, 2, 1, 2", "mode='b'",
    "y=y, b=2", "y, b=1.5, c=2", "1.5", "k=True",
)  # fmt: skip
"""What follows the first argument."""
MODES = (
    "torch.enable_grad()", "torch.enable_grad()", "torch.no_grad()", "torch.inference_mode()",
    "torch.autocast('cpu', torch.bfloat16)",
)  # fmt: skip


@dataclass(frozen=True)
class Call:
    """One call: what is changed before, how x looks, and the text of the other arguments."""

    change: str
    rows: int
    dtype: torch.dtype
    layout: str
    gradient: bool
    others: str
    mode: str


@dataclass(frozen=True)
class Door:
    seed: int
    lines: tuple[str, ...]
    calls: tuple[Call, ...]

    @property
    def text(self) -> str:
        return HEAD + "".join(f"        {line}\n" for line in (*self.lines, "return x"))

    def module(self) -> tuple[Any, dict[str, Any]]:
        """A module of its own class, and the globals that it reads."""
        names: dict[str, Any] = {"WIDTH": WIDTH}
        exec(compile(self.text, f"<door {self.seed}>", "exec"), names)
        door = names["Door"]()
        names |= {"door": door, "names": names}
        return door, names


def make(seed: int) -> Door:
    draw = random.Random(seed)
    lines = tuple(draw.choice(LINES) for _ in range(draw.choice((3, 5, 8, 12))))
    seen: list[Call] = []
    for _ in range(draw.choice((6, 10, 16))):
        old = draw.choice(seen) if seen and draw.random() < 0.6 else None
        change = draw.choice(CHANGES) if seen and draw.random() < 0.5 else ""
        rows, layout = draw.choice((1, 2, 3, 5, 8, 0)), draw.choice(("plain", "plain", "transposed", "sliced"))
        dtype = draw.choice((*3 * [torch.float32], torch.float64, torch.bfloat16))
        call = Call(change, rows, dtype, layout, draw.random() < 0.4, draw.choice(OTHERS), draw.choice(MODES))
        if old is not None:  # memos serve calls that come again
            call = replace(old, change=change, rows=draw.choice((old.rows, rows)))
        seen.append(call)
    return Door(seed, lines, tuple(seen))


def _given(call: Call, number: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(number)
    plain = torch.randn(call.rows, WIDTH, generator=generator, dtype=torch.float64)
    x = plain.to(call.dtype)
    if call.layout == "transposed":
        x = x.t().contiguous().t()
    elif call.layout == "sliced":
        x = torch.stack([x, x], -1)[..., 0]
    return x.detach().requires_grad_(call.gradient), torch.randn(WIDTH, generator=generator, dtype=torch.float64).to(call.dtype)


def _answer(function: Callable[..., Any], door: Any, call: Call, number: int) -> list[Any]:
    x, y = _given(call, number)
    torch.manual_seed(number)
    with eval(call.mode, {"torch": torch}):
        result = eval(f"run(x, {call.others})", {"run": function, "x": x, "y": y})
    answer: list[Any] = [result, result.requires_grad, result.is_inference(), door.count]
    wanted = [t for t in (x, door.weight) if t.requires_grad]
    if result.requires_grad and wanted:
        answer += torch.autograd.grad(result.float().sum(), wanted, allow_unused=True)
    return [*answer, *(t.detach().clone() for t in (*door.parameters(), *door.buffers())), torch.get_rng_state()]


def wrong_with_door(made: Door) -> str:
    """The first difference between eager and the compiled module; empty if there is none."""
    torch._dynamo.reset()
    (plain, theirs), (door, mine) = made.module(), made.module()
    given = {"tune": "off", "stall": "compile", "isolation": "never", "force": "interpreted"}
    run = polytile.compile(door, dynamic=True if made.seed % 3 else None, options=given)
    try:
        for number, call in enumerate(made.calls):
            for names in (theirs, mine):
                with contextlib.suppress(AttributeError):  # a list has become a tuple
                    exec(call.change, names)
            try:
                right = _answer(plain, plain, call, number)
            except Exception:
                return ""  # what a change broke
            try:
                got = _answer(run, door, call, number)
            except Exception as error:
                return f"call {number}: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
            if wrong := _apart(got, right, "autocast" in call.mode):
                return f"call {number}: {wrong}"
    finally:
        torch.set_default_dtype(torch.float32)
    return ""


def _apart(got: list[Any], right: list[Any], short: bool) -> str:
    for k, (one, other) in enumerate(zip(got, right, strict=True)):
        if not isinstance(one, Tensor) or not isinstance(other, Tensor):
            wrong = f"{one} and not {other}" if one is not other and one != other else ""
        elif (one.dtype, one.shape, steps(one)) != (other.dtype, other.shape, steps(other)):
            wrong = f"{one.dtype} {one.shape} {one.stride()} and not {other.dtype} {other.shape} {other.stride()}"
        else:
            wrong = _values(one.detach().double(), other.detach().double(), short or got[0].dtype == torch.bfloat16)
        if wrong:
            return f"answer {k}: {wrong}"
    return ""


def _values(mine: Tensor, eager: Tensor, short: bool) -> str:
    finite = eager[eager.isfinite()].abs()
    share = 0.1 if short else 1e-4
    if torch.allclose(mine, eager, share, share * max([1.0, *finite.tolist()]), equal_nan=True):
        return ""
    return f"{mine.flatten()[:4].tolist()} and not {eager.flatten()[:4].tolist()}"


def told(made: Door, wrong: str) -> str:
    calls = "\n".join(f"#   {k}: {call}" for k, call in enumerate(made.calls))
    lines = "\n".join(f"#   {line}" for line in made.lines)
    return f"# door {made.seed}: {wrong}\n{lines}\n{calls}"


def run(first: int, last: int) -> None:
    warnings.simplefilter("ignore")
    for seed in range(first, last):
        print(f"seed {seed}", flush=True)
        if wrong := wrong_with_door(make(seed)):
            print(told(make(seed), wrong), flush=True)
