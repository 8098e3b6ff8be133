"""Each behaviour starts with nothing compiled and nothing counted; a recompile limit passed is an error and not eager, and
the IR is verified after each pass."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

import polytile
from polytile.dispatch import registry
from polytile.dispatch.registry import alive


@pytest.fixture(autouse=True)
def nothing_compiled(
    clean_slate: None, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[None]:
    forget()
    monkeypatch.setenv("POLYTILE_VERIFY_IR", "1")
    with torch._dynamo.config.patch(
        recompile_limit=64, accumulated_recompile_limit=512, fail_on_recompile_limit_hit=True,
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True,
    ):  # fmt: skip
        yield
    rejected = {kernel.spec.name: kernel.faulty for kernel in alive() if kernel.faulty}
    forget()
    assert not rejected or "broken_candidates" in request.fixturenames, f"wrong or not compiled: {rejected}"


@pytest.fixture
def broken_candidates() -> None:
    """For tests in which candidates fail on purpose: elsewhere a candidate that is wrong or does not compile is an error,
    though the results are right."""


def forget() -> None:
    """Lets go of every compiled graph and of the kernels that only it held; those that a traceback kept by pytest still
    holds are not found again. What the tracer remembers of fake tensors goes too: after some hundred tests its symbols are
    hundreds of thousands of objects, which every later collection would search. What is left then is not searched again."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    FakeTensorMode.cache_clear()
    polytile.reset()
    gc.collect()
    gc.freeze()
    registry._defined.clear()
