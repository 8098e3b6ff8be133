"""`polytile.wait` waits for everything that the background makes, programs in C included."""

from __future__ import annotations

import threading

import torch

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.runtime import compile as compiling
from polytile.wrapper.compiled import CALLS


def test_after_waiting_a_program_is_in_c() -> None:
    x = torch.randn(5, 7)
    compiled = torch.compile(lambda x: torch.softmax(x, -1), backend="polytile", dynamic=True, options={"stall": "tune"})
    for _ in range(CALLS):
        compiled(x)
    assert polytile.wait(timeout=300)
    serving = compiled_programs()[-1].call.__globals__["serve"]
    assert type(serving).__name__ == "Program"
    torch.testing.assert_close(compiled(x), torch.softmax(x, -1))


def test_a_wait_that_is_too_short_says_so() -> None:
    go = threading.Event()
    compiling.in_background(go.wait)
    try:
        assert not polytile.wait(timeout=0.01)
    finally:
        go.set()
    assert polytile.wait(timeout=300)
