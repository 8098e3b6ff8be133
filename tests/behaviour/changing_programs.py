"""Random modules whose guards read by any rule of Python's, with statements that change what they read.

A program is text, so that a failure can be read and run again."""

from __future__ import annotations

import itertools
import linecache
import random
import sys
import textwrap
import types
from typing import Any

from tests.behaviour.changing_lookups import LOOKUPS
from tests.behaviour.changing_parts import PARTS

numbers = itertools.count()


STIRS = (
    "self.unread = draw.random()", "unread = draw.random()", "del self.unread", "vars(self).update(vars(self))",
    "globals().update(dict(globals()))", "copy.deepcopy(self)", "gc.collect()", "self.load_state_dict(self.state_dict())",
    "self.zero_grad()", "self.train(self.training)", "[vars(each).update(unread=draw.random()) for each in self.modules()]",
    "[each.data.mul_(2) for each in self.parameters()]", "pickle.dumps(vars(self))", "list(self.state_dict())",
)  # fmt: skip
"""What changes nothing that guards read, or puts back what is there."""

MODES = (
    "torch.no_grad()", "torch.inference_mode()", "torch.autocast('cpu', torch.bfloat16)", "torch.device('meta')",
    "torch.enable_grad()", "torch.autograd.graph.save_on_cpu()",
)  # fmt: skip
"""What a call may be made under."""

ARGUMENTS = (
    "torch.ones(3, 4)", "torch.ones(5, 4)", "torch.ones(3, 4, dtype=torch.float64)", "torch.ones(4, 3).t()", "MARKED",
    "nn.Parameter(torch.ones(3, 4))", "torch.ones(3, 4, requires_grad=True)", "torch.ones(3, 4, requires_grad=True) * 1",
    "torch.ones(6, 4)[::2]", "torch.ones(40)[4:16].view(3, 4)", "torch.ones(4)", "torch.ones(3, 4).as_subclass(Sub)",
)  # fmt: skip

MORE = ("", "", "", ", 2", ", 3", ", 2.5", ", 'a'", ", times=2", ", None", ", True", ", times=[2]")
"""More arguments."""

MOST_CHANGES = 8
"""Statements by which a program is changed: few, so that it is soon again as it was."""

ABOVE = """
import abc, builtins, collections, copy, dataclasses, enum, functools, gc, pickle, types
import torch, torch.nn.functional as F
from torch import nn
import torch.nn.utils.parametrize
class Sub(torch.Tensor):
    pass
MARKED = torch.ones(3, 4)
torch._dynamo.mark_dynamic(MARKED, 0)
"""


class Program:
    """A program of some of the parts, as a module of its own."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.log = draw, list[str]()
        parts = []
        every = PARTS | LOOKUPS
        for name in draw.sample(sorted(every), draw.choice((1, 2, 2, 3))):
            part, number = every[name], f"_{next(numbers)}"
            texts = (part.above, part.init, part.forward, part.changes, part.undo)
            parts.append([textwrap.dedent(text).strip().replace("_N", number) for text in texts])
        changes = [each.strip() for part in parts for each in part[3].replace("\n", " | ").split(" | ")]
        self._changes = draw.sample(changes, min(MOST_CHANGES, len(changes)))
        self._undo = [part[4] for part in parts]
        self.text = _text([part[:3] for part in parts], draw)
        name = f"changing_{next(numbers)}"
        self.module: Any = types.ModuleType(name)
        self._names = vars(self.module)
        sys.modules[name] = self.module
        linecache.cache[f"<{name}>"] = len(self.text), None, self.text.splitlines(keepends=True), f"<{name}>"
        exec(compile(self.text, f"<{name}>", "exec"), self._names)
        self._names["draw"] = draw
        self.model = self.module.Model()
        self._run("copy.deepcopy(self)")  # which notes the names of slots on classes

    def change(self) -> None:
        """Changes something. A statement that fails may have changed something too."""
        self._run(self.draw.choice(self._changes))

    def stir(self) -> None:
        self._run(self.draw.choice(STIRS))

    def _run(self, statement: str) -> None:
        self.log.append(statement)
        self._names["self"] = self.model
        try:
            exec(statement, self._names)
        except Exception as error:
            self.log[-1] += f"  # {type(error).__name__}"
        finally:
            self._names.pop("self", None)

    def evaluate(self, expression: str) -> Any:
        return eval(expression, self._names)

    def close(self) -> None:
        for statement in self._undo:
            exec(statement, self._names)
        del sys.modules[self.module.__name__], linecache.cache[f"<{self.module.__name__}>"]


def _text(parts: list[list[str]], draw: random.Random) -> str:
    above, init, forward = ("\n".join(texts) for texts in zip(*parts, strict=True))
    times = "times" if draw.random() < 0.5 else "(2 if times == 'a' else 1)"
    lines = [ABOVE, above, "class Base(nn.Module): pass", "def make(k):", "    def forward(self, x, times=1):"]
    lines += [textwrap.indent(forward, " " * 8), f"        return x * {times} + k", "    return forward", "FORWARD = make(1)"]
    lines += ["class Model(Base):", "    forward = FORWARD", "    def __init__(self):", "        super().__init__()"]
    return "\n".join([*lines, textwrap.indent(init, " " * 8), ""])
