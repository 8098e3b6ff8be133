"""A library's product and its epilogue's kernel as one native kernel (runtime/pair.c), while candidates of the epilogue are on
trial."""

from __future__ import annotations

from typing import Any

import torch

from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.runtime.dispatcher import Interface
from polytile.runtime.launcher import new_dispatcher, product_with_epilogue
from tests.runtime.helpers import entry

CALLS = 6  # where the kernel `show` counts its calls


def test_while_candidates_of_the_epilogue_are_on_trial_only_their_calls_go_through_python() -> None:
    shown = entry("show")
    epilogue = new_dispatcher(Interface("epilogue", (1, 0), lambda key, args: shown, on_due=lambda *args: None))
    given, out = torch.zeros(64, dtype=torch.int64), torch.zeros(CALLS, dtype=torch.int64)
    epilogue(given, out, 5, 6)  # it knows from now on how many tensors it takes
    pair = product_with_epilogue(shown, epilogue, 3, 8, 0)
    assert pair is not None
    owner, address, threads = pair
    in_python: list[tuple[Any, ...]] = []
    both = NativeEntry(address, threads, (owner, shown), otherwise=lambda *args: _by_python(in_python, epilogue, args))
    call = new_dispatcher(Interface("pair", (0,) * 5, lambda key, args: both))
    tried: list[int] = []
    contender = PythonEntry(lambda *args: tried.append(args[-2]))
    assert epilogue.begin_trial(epilogue.key_of(5, 6), (contender,), 3, 10, 0)
    a, b = torch.zeros(CALLS, dtype=torch.int64), torch.zeros(2)
    for _ in range(30):
        call(a, b, out, 1, 8, 8, 5, 6)
    assert tried == [5, 5, 5]  # one call in ten; the one after it is timed with the entry itself
    assert len(in_python) == 6
    assert a[CALLS - 1] == 30 - len(in_python)  # products that C ran
    assert epilogue.calls(epilogue.key_of(5, 6)) == 30


def _by_python(seen: list[tuple[Any, ...]], epilogue: Any, args: tuple[Any, ...]) -> None:
    seen.append(args)
    epilogue(torch.zeros(64, dtype=torch.int64), *args[2:3], *args[-2:])
