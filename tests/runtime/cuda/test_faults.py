"""Kernels whose driver refuses them, and devices that fail: on a driver that answers what a test asks it to."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

from polytile import options, store
from polytile.candidates.entries import Entry
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.spec import KernelSpec
from polytile.errors import DeviceLost, LaunchFailed
from polytile.problem import Outcome
from polytile.runtime.arguments import CPU
from polytile.runtime.cuda import driver, launch
from tests.dispatch.helpers import SPEC, Fake, arguments, double, spec
from tests.runtime.cuda.conftest import Stub
from tests.runtime.cuda.test_launch import entry, plan

OUT_OF_RESOURCES, ILLEGAL_ADDRESS, UNSUPPORTED_PTX, NO_BINARY, ECC, NO_DEVICE = 701, 700, 222, 209, 214, 100


ON_GPU = spec(target=torch.device("cuda", 0))


class Native(Fake):
    """A candidate that is loaded and launched through the stub, predicted to be the best."""

    def __init__(self, stub: Stub) -> None:
        super().__init__("native", predicted=1e-9, origin="triton")
        self.stub = stub

    def entry(self) -> Entry:
        return entry(plan(self.stub, (launch.TENSOR, 0)))


def outcomes() -> set[Outcome]:
    return {measurement.outcome for measurement in store.current().measurements()}


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ({"launch_error": OUT_OF_RESOURCES}, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"),
        ({"max_threads": 64}, "needs 128 threads a block and 32 registers"),
        ({"shared_limit": 100}, "1024 bytes of shared memory"),
        ({"load_error": NO_BINARY}, "update the driver"),
        ({"load_error": UNSUPPORTED_PTX}, "The driver is .*CUDA 13000"),
    ],
)
def test_a_kernel_that_the_driver_refuses_gives_way_to_the_library(
    stub: Stub, empty_cache: object, monkeypatch: pytest.MonkeyPatch, fault: dict[str, int], told: str
) -> None:
    monkeypatch.setattr(KernelSpec, "device_type", property(lambda _: CPU))  # where the stub's memory is
    for name, value in fault.items():
        setattr(stub, name, value)
    kernel = MultiKernel(ON_GPU, [Native(stub), Fake("library", origin="library", call=double)])
    args = arguments(32)
    with options.override(tune="off"):
        kernel(*args)
    assert torch.equal(args[1], args[0] * 2)
    assert [decision.candidate for decision in kernel.decisions] == ["library"]
    (failed,) = [m for m in store.current().measurements() if m.outcome is not Outcome.OK]
    assert failed.candidate == "native" and re.search(told, failed.detail)


@pytest.mark.parametrize("code", [ILLEGAL_ADDRESS, ECC, NO_DEVICE])
@pytest.mark.parametrize("fault", ["launch_error", "load_error"])
@pytest.mark.parametrize("tune", ["off", "auto"])
def test_a_device_that_is_lost_is_told_and_no_kernel_is_blamed(
    stub: Stub, empty_cache: object, fault: str, code: int, tune: str
) -> None:
    setattr(stub, fault, code)
    kernel = MultiKernel(SPEC, [Native(stub), Fake("library", origin="library", call=double)])
    with options.override(tune=tune), pytest.raises(DeviceLost, match="lost to this process; start a new one"):
        kernel(*arguments(32))
    assert not kernel.faulty and not outcomes() - {Outcome.OK}


def test_a_device_lost_in_the_middle_of_measuring_ends_the_measuring(stub: Stub, empty_cache: object) -> None:
    calls = 0

    def until_lost(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise DeviceLost("gone")
        double(*args)

    kernel = MultiKernel(SPEC, [Fake("first", call=until_lost), Fake("second")])
    with options.override(tune="auto"), pytest.raises(DeviceLost, match="gone"):
        kernel(*arguments(32))
    assert not outcomes() - {Outcome.OK}


def test_a_refusal_is_described_although_the_driver_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.9")
    driver.reset()
    for code, kind in ((ILLEGAL_ADDRESS, DeviceLost), (NO_BINARY, LaunchFailed), (OUT_OF_RESOURCES, LaunchFailed)):
        said = driver.refusal(code, "kernel 'k' could not be launched")
        assert type(said) is kind and f"could not be launched: error {code}." in str(said)
    driver.reset()
