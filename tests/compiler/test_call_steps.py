"""The steps of a call, from events as torch's profiler has them of a program on a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from torch.autograd import DeviceType

from polytile.compiler.call_steps import as_it_runs, kernel_by_kernel
from polytile.report.call import CALL, HOST

PRODUCT = "mm_01 (aten.mm)"


def event(name: str, start: float, end: float, parent: Any = None, number: int = 0, thread: int = 1) -> Any:
    """What the host does, in microseconds; `number` is what CUDA gives a launch."""
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), cpu_parent=parent, id=number, thread=thread,
        device_type=DeviceType.CPU, is_user_annotation=name == CALL,
    )  # fmt: skip


def kernel(name: str, start: float, end: float, number: int, stream: int = 7, annotation: bool = False) -> Any:
    """What a device does, of the launch that has this number."""
    return SimpleNamespace(
        name=name, time_range=SimpleNamespace(start=start, end=end), cpu_parent=None, id=number, thread=0, device_index=0,
        device_resource_id=stream, device_type=DeviceType.CUDA, is_user_annotation=annotation,
    )  # fmt: skip


def one_call(at: float, takes: float = 100.0) -> list[Any]:
    """A call that runs a product and a library's sort, which is of two operators; the device works until the call is over."""
    call = event(CALL, at, at + 50)
    product, sort = event(PRODUCT, at + 10, at + 20, call), event("aten::sort", at + 30, at + 45, call)
    first, second = int(at) + 1, int(at) + 2
    return [
        call, product, sort, event("aten::copy_", at + 31, at + 32, sort),
        event("cuLaunchKernel", at + 12, at + 14, product, first), event("cudaLaunchKernel", at + 33, at + 35, sort, second),
        kernel("polytile_mm_01", at + 15, at + 40, first), kernel("radix", at + 40, at + takes, second),
        kernel(CALL, at + 15, at + takes, 0, annotation=True),
    ]  # fmt: skip


def test_the_call_of_median_length_is_shown_with_what_each_step_launched() -> None:
    view = kernel_by_kernel([*one_call(0, 900), *one_call(1000, 100), *one_call(2000, 120)], {PRODUCT})
    found = [(step.lane, step.name, step.of, round(step.began * 1e6), round(step.seconds * 1e6)) for step in view.steps]
    assert found == [
        (CALL, CALL, "", 0, 50),
        (HOST, PRODUCT, "", 10, 10),
        (HOST, "aten::sort", "", 30, 15),
        ("device 0, stream 7", "polytile_mm_01", PRODUCT, 15, 25),
        ("device 0, stream 7", "radix", "aten::sort", 40, 80),
    ]
    assert not any(step.graph for step in view.steps)


def test_what_another_thread_does_has_a_lane_of_its_own() -> None:
    call = event(CALL, 0, 50)
    backward = event("aten::mm", 10, 20, thread=2)
    launch = event("cuLaunchKernel", 12, 13, backward, 1, thread=2)
    view = kernel_by_kernel([call, event("aten::sum", 5, 30, call), backward, launch, kernel("gemm", 14, 40, 1)], set())
    assert [(step.lane, step.of) for step in view.steps][1:] == [
        (HOST, ""), ("device 0, stream 7", "aten::mm"), (f"{HOST}, thread 2", ""),
    ]  # fmt: skip


def test_kernels_that_share_a_launch_are_a_graphs() -> None:
    def call(at: float, takes: float) -> list[Any]:
        number = int(at)
        return [
            event("cuLaunchKernel", at, at + 2, None, number + 1), event("cudaGraphLaunch", at + 3, at + 9, None, number + 2),
            event("cudaDeviceSynchronize", at + 10, at + takes + 1), kernel("first", at + 4, at + 6, number + 1),
            kernel("second", at + 11, at + 20, number + 2), kernel("third", at + 20, at + takes, number + 2),
        ]  # fmt: skip

    view = as_it_runs([*call(0, 500), *call(1000, 30), *call(2000, 40)])
    assert [step.name for step in view.steps] == ["cuLaunchKernel", "cudaGraphLaunch", "first", "second", "third"]
    assert [step.name for step in view.steps if step.graph] == ["second", "third"] and view.steps[1].lane == HOST
    assert round(view.seconds * 1e6) == 40 and view.steps[0].began == 0.0


def test_a_device_that_tells_of_kernels_only_shows_those() -> None:
    view = as_it_runs([kernel("second", 10, 20, 3), kernel("third", 20, 30, 3), event("cudaDeviceSynchronize", 5, 31)])
    assert [(step.name, step.graph) for step in view.steps] == [("second", True), ("third", True)]


def test_without_calls_nothing_is_shown() -> None:
    assert kernel_by_kernel([], set()).steps == () and as_it_runs([]).steps == ()
