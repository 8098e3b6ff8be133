"""Plans launch what they say, where they should, with the right arguments: on a driver that keeps what it is asked."""

from __future__ import annotations

import gc
import threading
import time

import pytest
import sympy
import torch

from polytile.candidates.entries import NativeEntry
from polytile.errors import DeviceError, LaunchFailed
from polytile.runtime.cuda import driver, launch
from polytile.runtime.dispatcher import Interface
from polytile.runtime.formula import encode
from polytile.runtime.launcher import new_dispatcher, time_burst
from tests.runtime.cuda.conftest import Stub

M, N = sympy.symbols("m n", integer=True, positive=True)
PLACES = {M: 0, N: 1}
ONE = encode(sympy.Integer(1), PLACES)
X = torch.arange(8.0)


def grid(*parts: object) -> tuple[tuple[int, ...], ...]:
    return tuple(encode(sympy.sympify(part), PLACES) for part in (*parts, 1, 1, 1)[:3])


def plan(
    stub: Stub, *parameters: tuple[int, int], x: object = 1, scratch: tuple[launch.Scratch, ...] = (), index: int = 0
):
    function = driver.load(index, b"cubin", "kernel", 128, 1024)
    stub.parameters = len(parameters)
    return launch.Plan("kernel", index, [launch.Launch(function, 128, 1024, parameters, grid(x))], scratch)


def entry(made: launch.Plan) -> NativeEntry:
    return NativeEntry.of_plan(made)


def test_a_launch_has_its_arguments_grid_block_and_stream(stub: Stub) -> None:
    made = plan(stub, (launch.TENSOR, 0), (launch.INT32, 1), (launch.INT64, 0), (launch.NOTHING, 0), x=7)
    time_burst(entry(made), (X, -3, 5), 1)
    [call] = stub.calls()
    assert call.values[0] == X.data_ptr()
    assert call.values[1] & 0xFFFFFFFF == 5
    assert call.values[2] == 2**64 - 3
    assert call.values[3] == 0
    assert (call.block, call.shared, call.stream) == (128, 1024, 0x77)


def test_grids_are_computed_for_each_call(stub: Stub) -> None:
    made = plan(stub, (launch.TENSOR, 0), x=(M + 7) // 8 * N)
    for m, n in ((1, 1), (8, 3), (9, 3), (1000, 2)):
        time_burst(entry(made), (X, m, n), 1)
    assert [call.grid[0] for call in stub.calls()] == [1, 3, 6, 250]


def test_descriptors_are_made_for_each_call_and_passed_by_value(stub: Stub) -> None:
    what = launch.Descriptor(1, 9, 2, 3, (128, 64), (encode(M, PLACES), encode(N, PLACES)), (encode(N * 8, PLACES),))
    parameters = ((launch.TENSOR, 0), (launch.DESCRIPTOR, 0), *[(launch.NOTHING, 0)] * 4, (launch.INT32, 1))
    stub.parameters, stub.described = len(parameters), 1
    function = driver.load(0, b"cubin", "kernel", 128, 1024)
    made = launch.Plan("kernel", 0, [launch.Launch(function, 128, 1024, parameters, grid(1), False, (what,))])
    y = torch.arange(4.0)
    for m, n in ((300, 64), (1, 8), (5, 0)):
        time_burst(entry(made), (X, y, m, n), 1)
    calls = stub.calls()
    assert list(calls[0].map[:14]) == [y.data_ptr(), 64, 300, 64 * 8 * 2, 64, 128, 1, 1, 9, 2, 0, 3, 2, 0]
    assert [tuple(call.map[1:3]) for call in calls] == [(64, 300), (8, 1), (1, 5)]
    assert calls[1].map[3] == 16, "how far the rows of a single one are apart does not matter"
    assert calls[0].values[0] == X.data_ptr() and calls[0].values[6] & 0xFFFFFFFF == 64


def test_a_driver_without_descriptors_refuses_the_launch(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "DESCRIBE", "cuOfLaterDrivers")
    what = launch.Descriptor(0, 9, 2, 3, (128, 64), (ONE, ONE), (ONE,))
    function = driver.load(0, b"cubin", "kernel", 128, 1024)
    made = launch.Plan("kernel", 0, [launch.Launch(function, 128, 1024, ((launch.DESCRIPTOR, 0),), grid(1), False, (what,))])
    with pytest.raises(LaunchFailed, match="could not be launched"):
        time_burst(entry(made), (X, 1, 1), 1)


@pytest.mark.parametrize("overlaps,version,early", [(True, 13000, 1), (False, 13000, 0), (True, 12020, 0)])
def test_a_kernel_that_waits_by_itself_may_start_early(stub: Stub, overlaps: bool, version: int, early: int) -> None:
    stub.parameters, stub.version = 1, version
    function = driver.load(0, b"cubin", "kernel", 128, 1024)
    made = launch.Plan("kernel", 0, [launch.Launch(function, 128, 1024, ((launch.TENSOR, 0),), grid(1), overlaps)])
    time_burst(entry(made), (X, 1, 1), 1)
    assert (stub.count, stub.overlaps) == (1, early)


@pytest.mark.parametrize("cluster,large", [(1, 0), (8, 0), (16, 1)])
def test_programs_that_wait_for_each_other_are_a_cluster(stub: Stub, cluster: int, large: int) -> None:
    stub.parameters, stub.large = 1, 0
    function = driver.load(0, b"cubin", "kernel", 128, 1024, cluster)
    made = launch.Launch(function, 128, 1024, ((launch.TENSOR, 0),), grid(32), True, cluster=cluster)
    plan = launch.Plan("kernel", 0, [made])
    time_burst(entry(plan), (X, 1, 1), 1)
    assert (stub.overlaps, stub.cluster, stub.large) == (1, cluster if cluster > 1 else 0, large)


def test_an_empty_grid_launches_nothing(stub: Stub) -> None:
    time_burst(entry(plan(stub, (launch.TENSOR, 0), x=M)), (X, 0, 1), 1)
    assert stub.count == 0


def test_a_launch_makes_its_own_device_current_and_puts_the_other_back(stub: Stub) -> None:
    first, second = plan(stub, (launch.TENSOR, 0)), plan(stub, (launch.TENSOR, 0), index=1)
    time_burst(entry(first), (X, 1, 1), 1)
    with driver.current(0):
        time_burst(entry(second), (X, 1, 1), 1)
        time_burst(entry(first), (X, 1, 1), 1)
    assert [call.context for call in stub.calls()] == [0x1000, 0x1001, 0x1000]


def test_scratch_lives_for_one_call(stub: Stub) -> None:
    made = plan(stub, (launch.SCRATCH, 0), scratch=(launch.Scratch(encode(4 * N, PLACES)),))
    time_burst(entry(made), (X, 1, 100), 3)
    assert stub.tensors == 0 and stub.memsets == 0 and all(call.values[0] for call in stub.calls())


def test_zeroed_scratch_is_kept_for_each_stream_and_grows(stub: Stub) -> None:
    made = plan(stub, (launch.SCRATCH, 0), scratch=(launch.Scratch(encode(4 * N, PLACES), zeroed=True),))
    for n in (100, 100, 50, 200):
        time_burst(entry(made), (X, 1, n), 1)
    first = [call.values[0] for call in stub.calls()]
    assert first[0] == first[1] == first[2] and (stub.memsets, stub.tensors) == (2, 1)
    stub.capturing = 5  # a recording has memory of its own, which each replay zeroes
    time_burst(entry(made), (X, 1, 100), 2)
    second = [call.values[0] for call in stub.calls()[4:]]
    assert second[0] == second[1] != first[-1] and (stub.memsets, stub.tensors) == (3, 2)
    del made
    gc.collect()
    assert stub.tensors == 0


def test_kept_scratch_stays_until_another_threads_kernel_is_launched(stub: Stub) -> None:
    made = plan(stub, (launch.SCRATCH, 0), scratch=(launch.Scratch(encode(4 * N, PLACES), zeroed=True),))
    stub.delay = 300_000
    slow = threading.Thread(target=time_burst, args=(entry(made), (X, 1, 100), 1))
    slow.start()
    while not stub.launching:
        time.sleep(0.001)
    stub.delay = 0
    time_burst(entry(made), (X, 1, 200), 1)  # needs more, so that the other's memory goes
    slow.join()
    assert stub.deleted_early == 0 and stub.tensors == 1 and stub.memsets == 2


def test_no_memory_for_scratch_is_out_of_memory(stub: Stub) -> None:
    made = plan(stub, (launch.SCRATCH, 0), scratch=(launch.Scratch(encode(N, PLACES)),))
    with pytest.raises(torch.OutOfMemoryError, match="no memory left"):
        time_burst(entry(made), (X, 1, 1 << 21), 1)


def test_a_refused_launch_names_kernel_and_driver_error(stub: Stub) -> None:
    stub.launch_error = 701
    dispatch = new_dispatcher(Interface("softmax", [0, 0], lambda key, args: entry(plan(stub, (launch.TENSOR, 0)))))
    with pytest.raises(
        LaunchFailed, match=r"kernel 'softmax' could not be launched: CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES"
    ):
        dispatch(X, 1, 1)


def test_a_grid_beyond_the_devices_limits_is_refused(stub: Stub) -> None:
    with pytest.raises(LaunchFailed, match="INVALID_VALUE"):
        time_burst(entry(plan(stub, (launch.TENSOR, 0), x=M)), (X, 1 << 31, 1), 1)


def test_a_violated_check_is_reported_by_the_next_launch_and_by_synchronising(stub: Stub) -> None:
    made = plan(stub, (launch.ERROR_WORD, 0))
    time_burst(entry(made), (X, 1, 1), 1)
    assert made._error is not None and stub.calls()[0].values[0] == made._error.data_ptr()
    made._error[0] = 2
    with pytest.raises(IndexError, match="run-time check 2"):
        time_burst(entry(made), (X, 1, 1), 1)
    time_burst(entry(made), (X, 1, 1), 1)
    made.synchronise = lambda: 1  # type: ignore[method-assign]
    with pytest.raises(IndexError):
        entry(made).synchronise()


def test_loading_refuses_what_a_block_cannot_have(stub: Stub) -> None:
    stub.max_threads = 64
    with pytest.raises(LaunchFailed, match="needs 128 threads a block and 32 registers"):
        driver.load(0, b"cubin", "kernel", 128, 0)
    stub.max_threads = 1024
    with pytest.raises(LaunchFailed, match="give kernel kernel 300000 bytes of shared memory"):
        driver.load(0, b"cubin", "kernel", 128, 300000)
    stub.load_error = 209
    with pytest.raises(LaunchFailed, match="refused to load kernel"):
        driver.load(0, b"cubin", "kernel", 128, 0)


def test_no_driver_and_no_device_are_told(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DeviceError, match="CUDA device 2 cannot be used"):
        driver.context(2)
    monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.9")
    driver.reset()
    with pytest.raises(DeviceError, match="install NVIDIA's driver"):
        driver.version()
