"""Memos of guards against the guards themselves, on random programs of which anything may change at any time."""

from __future__ import annotations

import contextlib
import functools
import inspect
import itertools
import random
import sys
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from polytile.compiler.front_door import FrontDoor, door_of, install
from polytile.counters import counters
from polytile.errors import FrontDoorError
from polytile.runtime import native
from tests.behaviour.changing_programs import ARGUMENTS, MODES, MORE, Program

pytestmark = pytest.mark.skipif(sys.version_info >= (3, 13), reason="dictionaries have no versions")


Given = tuple[tuple[Any, ...], dict[str, Any]]

MOST_FAILED = 4
"""Steps that a program may fail in a row."""


def as_traced(graph: torch.fx.GraphModule, inputs: Any) -> Callable[..., Any]:
    counters.add("graphs_compiled")
    return graph.forward


class Trial:
    """A random program behind a front door, which is called, changed, and asked what memos and guards say."""

    def __init__(self, seed: int) -> None:
        torch._dynamo.reset()
        self._draw = draw = random.Random(seed)
        self._program = Program(draw)
        model, dynamic, mode = self._program.model, draw.choice((True, False, None)), draw.choice(("on", "on", "check"))
        self._call = install(torch.compile(model, backend=as_traced, dynamic=dynamic), model, as_traced, dynamic, mode)
        door = door_of(self._call)
        assert door is not None
        self._door: FrontDoor = door
        self._given = [*itertools.product((ARGUMENTS[0], draw.choice(ARGUMENTS)), (MORE[0], draw.choice(MORE)))]
        """What the program is called with: the first argument, and more."""
        self._wrong: list[str] = []
        self.seen = Counter[str]()

    def run(self, steps: int) -> Counter[str]:
        """Takes so many steps; fewer if a change has left a program that only raises errors."""
        failed = 0
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                for _ in range(steps):
                    failed = 0 if self._step() else failed + 1
                    if failed == MOST_FAILED:
                        break
            finally:
                self._program.close()
        return self.seen

    def _step(self) -> bool:
        """Calls the program and changes it. Returns whether it can be called."""
        draw, log = self._draw, self._program.log
        if draw.random() < 0.01:
            torch._dynamo.reset()
        under = draw.choice(MODES) if draw.random() < 0.2 else "contextlib.nullcontext()"
        chosen = draw.choice(self._given)
        log.append(f"call({''.join(chosen)}) under {under}")
        passed: list[bool] = []
        act = functools.partial(self._ask_and_call, under, chosen, passed)
        if draw.random() < 0.1:
            log[-1] += " in another thread"
            thread = threading.Thread(target=act)
            thread.start(), thread.join()
        else:
            act()
        for change in draw.sample([*6 * [self._program.stir], *2 * [self._program.change]], 8):
            change()
            self._ask_all()
        if self._wrong:
            raise AssertionError("\n".join([*self._wrong, self._program.text, "# changes", *log]))
        return any(passed)

    def _arguments(self, first: str, more: str) -> Given:
        try:
            x = self._program.evaluate(first)
        except Exception:  # under a default device or dtype, or a program that has replaced what makes it
            x = torch.ones(3, 4)
        name, _, value = more.strip(", ").rpartition("=")
        values = [eval(value)] if value else []
        return ((x,), {name: values[0]}) if name else ((x, *values), {})

    def _ask_and_call(self, under: str, chosen: tuple[str, str], passed: list[bool]) -> None:
        with eval(under, {"torch": torch, "contextlib": contextlib}):
            draw = self._draw
            self._ask_all()
            for each in 3 * (self._given if draw.random() < 0.5 else [chosen]):
                given, named = self._arguments(*each)
                try:
                    self._call(*given, **named)
                    passed.append(True)
                except FrontDoorError as error:
                    self._wrong.append(f"{error}")
                except Exception:  # the program's own
                    self.seen["errors"] += 1
                self._ask(given, named)

    def _ask_all(self) -> None:
        for each in self._given:
            self._ask(*self._arguments(*each))

    def _ask(self, given: tuple[Any, ...], named: dict[str, Any]) -> None:
        """Compares what memos and guards say of a call."""
        for memo, root, variables in self._memos(given, named):
            says = memo(*given, **named)
            self.seen["yes" if says else "no"] += 1
            if says and not root.check(variables):
                self._wrong.append(f"A memo says that guards hold: {root.check_verbose(variables)}")

    def _memos(self, given: tuple[Any, ...], named: dict[str, Any]) -> Iterator[tuple[Any, Any, dict[str, Any]]]:
        function = self._door.called_function()
        if function is None:
            return
        try:
            bound = inspect.signature(function).bind(self._program.model, *given, **named)
        except TypeError:
            return
        bound.apply_defaults()
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        variables = dict(bound.arguments) | {name: cell.cell_contents for name, cell in cells}
        for entry in self._door.entries():
            made = self._door._memos.get(entry.guard_manager)
            memo = made[-1].memo if made and made[-1].function is function else None  # else the entry asks no memo
            if memo is not None:
                yield memo, entry.guard_manager.root, variables
            else:
                self.seen["no memo"] += 1


def yes_of(seeds: range, steps: int) -> Counter[str]:
    native.module()
    total = Counter[str]()
    with torch._dynamo.config.patch(recompile_limit=32, accumulated_recompile_limit=512):
        for seed in seeds:
            total += Trial(seed).run(steps)
    return total


def test_no_memo_says_yes_where_guards_say_no() -> None:
    assert yes_of(range(8), 8)["yes"] > 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(8))
def test_no_memo_of_hundreds_of_programs_says_yes_where_guards_say_no(part: int) -> None:
    assert yes_of(range(1000 + 50 * part, 1050 + 50 * part), 30)["yes"] > 2500
