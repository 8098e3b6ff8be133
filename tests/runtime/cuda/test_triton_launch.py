"""Compiled Triton kernels are launched by polytile's launcher with the arguments that Triton's would pass."""

from __future__ import annotations

import importlib.util
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from polytile.runtime import native
from polytile.runtime.arguments import CPU
from tests.runtime.cuda.conftest import Stub

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("triton") is None or native.module(quietly=True) is None, reason="needs Triton and the launcher in C"
)

SIGNATURE = {"src": "*fp32", "N": "i32", "factor": "fp32", "scale": "fp64", "even": "u1", "BLOCK": "constexpr"}
PLAIN: dict[str, Any] = {"name": "scale", "num_warps": 8, "shared": 512, "num_ctas": 1, "global_scratch_size": 0}
X = torch.arange(8.0)
VALUES = (X, -5, 1.5, 0.1, True, 64)


def launcher(signature: dict[str, Any] = SIGNATURE, **metadata: Any) -> Any:
    from polytile.autotuner.launching import launcher_of

    compiled = SimpleNamespace(
        src=SimpleNamespace(signature=signature), metadata=SimpleNamespace(**{**PLAIN, **metadata}), function=0x3000
    )
    return launcher_of(compiled, tuple(signature), 0, CPU)


def test_a_launch_has_the_arguments_of_the_call(stub: Stub) -> None:
    stub.parameters = 7
    assert launcher().launch(VALUES, (3, 2)) == 0
    [call] = stub.calls()
    assert (tuple(call.grid), call.block, call.shared, call.stream) == ((3, 2, 1), 256, 512, 0x77)
    numbers = [*struct.unpack("<Q", struct.pack("<i4x", -5)), *struct.unpack("<QQ", struct.pack("<f4xd", 1.5, 0.1))]
    got = [call.values[0], call.values[1] & 0xFFFFFFFF, *call.values[2:7]]
    assert got == [X.data_ptr(), *numbers, 1, 0, 0]


@pytest.mark.parametrize("grid", [(7,), [7, 1], (7, 1, 1)])
def test_a_grid_has_one_to_three_dimensions(stub: Stub, grid: Any) -> None:
    assert launcher().launch(VALUES, grid) == 0
    assert tuple(stub.calls()[0].grid) == (7, 1, 1)


def test_an_empty_grid_launches_nothing(stub: Stub) -> None:
    assert launcher().launch(VALUES, (0, 3)) == 0 and stub.count == 0


def test_what_is_no_number_is_no_grid(stub: Stub) -> None:
    with pytest.raises(TypeError):
        launcher().launch(VALUES, (1.5,))


@pytest.mark.parametrize("position,other", [(0, torch.empty(0)), (0, X.to("meta")), (1, 2**64), (1, 1.5), (2, "1.5")])
def test_other_arguments_are_left_to_triton(stub: Stub, position: int, other: Any) -> None:
    values = (*VALUES[:position], other, *VALUES[position + 1 :])
    assert launcher().launch(values, (1,)) is None and stub.count == 0


def test_a_launch_that_fails_is_left_to_triton(stub: Stub) -> None:
    stub.launch_error = 701
    assert launcher().launch(VALUES, (1,)) == -701


@pytest.mark.parametrize(
    "unusual", [{"num_ctas": 2}, {"global_scratch_size": 64}, {"launch_pdl": True}, {"launch_cooperative_grid": True}]
)
def test_unusual_kernels_are_left_to_triton(stub: Stub, unusual: dict[str, Any]) -> None:
    assert launcher(**unusual) is None


@pytest.mark.parametrize("kind", ["nvTmaDesc", "tensordesc<fp32>", ("*fp32", "i32"), "bf16"])
def test_kernels_with_unusual_parameters_are_left_to_triton(stub: Stub, kind: Any) -> None:
    assert launcher({"src": kind}) is None
    assert launcher() is not None


def test_without_a_driver_there_is_no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    from polytile.runtime.cuda import driver

    monkeypatch.setattr(driver, "LIBRARY", "libcuda of nobody")
    driver.reset()
    assert launcher() is None
    driver.reset()
