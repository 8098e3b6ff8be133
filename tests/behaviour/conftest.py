"""Each behaviour starts with nothing compiled and nothing counted; a recompile limit passed is an error and not eager, and
the IR is verified after each pass."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
import torch

import polytile
import polytile.multikernel


@pytest.fixture(autouse=True)
def nothing_compiled(clean_slate: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    forget()
    monkeypatch.setenv("POLYTILE_VERIFY_IR", "1")
    with torch._dynamo.config.patch(
        recompile_limit=64, accumulated_recompile_limit=512, fail_on_recompile_limit_hit=True,
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True,
    ):  # fmt: skip
        yield
    forget()
    left = [kernel.spec.name for kernel in polytile.multikernel.alive()]
    assert not left, f"kernels that no program needs any more are let go: {left}"


def forget() -> None:
    """Lets go of every compiled graph and of the kernels that only it held."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    polytile.reset()
    gc.collect()
