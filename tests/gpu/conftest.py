"""Each test compiles for itself, in a program that has used some of the device's memory before: measuring may use it again.

The processes of a run share one GPU. A test marked `alone` fills it or says what it is filled with: it waits for the
others and they wait for it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import polytile

USED = 64 << 20
"""Bytes that the program has had in use."""


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    polytile.reset()


@pytest.fixture(autouse=True)
def a_share_of_the_device(request: pytest.FixtureRequest, cache_of_this_run: Path) -> Iterator[None]:
    alone = request.node.get_closest_marker("alone") is not None
    with open(cache_of_this_run.parent / "gpu.lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        torch.empty(USED, dtype=torch.uint8, device="cuda")
        yield
        torch.cuda.empty_cache()
