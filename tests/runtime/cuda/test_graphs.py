"""Recorded launches are made as graphs that are replayed or updated, or one by one: on a driver that keeps what it is asked.

The programs are in C, and their tensors and kernels' tensors are on the CPU, where the stub's device has its memory.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch import Tensor

from polytile.errors import LaunchFailed
from polytile.ir.buffer import Buffer
from polytile.runtime import background, program, symbols
from polytile.runtime import compile as compiling
from polytile.runtime.cuda import capturing, driver, graphs, launch
from polytile.runtime.dispatcher import Dispatcher, Interface
from polytile.runtime.formula import encode
from polytile.runtime.launcher import new_dispatcher
from polytile.runtime.regime import BUCKET
from polytile.wrapper import compiled, cpp, lines, python
from tests.runtime.cuda.conftest import Stub
from tests.runtime.cuda.test_launch import M, entry, grid

N = sympy.Symbol("s0", integer=True, positive=True)
CPU = torch.device("cpu")
LAUNCHES = 6
"""Of the programs here."""


@pytest.fixture
def recorder(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    """The recorder on the stub's driver, and device 0 current for programs in C."""
    monkeypatch.setattr(launch, "new_handle", lambda: symbols.addresses(stub.library, [launch._NEW_HANDLE]))
    loaded = program.module()
    assert loaded is not None
    addresses = list(program._addresses())
    device = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.POINTER(ctypes.c_int32))(_device_0)
    addresses[program.STABLE.index("get_current_device_index")] = ctypes.cast(device, ctypes.c_void_p).value or 0
    loaded.configure_programs(tuple(addresses), program._allocate)
    graphs.reset()
    stub.delay = 40  # a graph's launch takes the host less than its kernels' launches
    with driver.current(0):
        yield stub
    gc.collect()
    loaded.configure_graphs(0, 0, 0, 0)
    loaded.configure_programs(program._addresses(), program._allocate)
    graphs.reset()


def _device_0(device: Any) -> int:
    device[0] = 0
    return 0


def kernel(
    scratch: tuple[launch.Scratch, ...] = (),
    overlaps: bool = False,
    checks: bool = False,
    on_due: Callable[[Any], None] | None = None,
) -> Dispatcher:
    """out, x, n: a launch of as many blocks as n."""
    function = driver.load(0, b"cubin", "kernel", 128, 0)
    last = (launch.ERROR_WORD if checks else launch.SCRATCH if scratch else launch.NOTHING, 0)
    parameters = ((launch.TENSOR, 0), (launch.TENSOR, 1), (launch.INT32, 0), last)
    made = launch.Plan("kernel", 0, [launch.Launch(function, 128, 0, parameters, grid(M), overlaps)], scratch)

    def on_error(code: int) -> None:
        launch.failed("kernel", code)

    return new_dispatcher(Interface("kernel", (BUCKET,), lambda key, arguments: entry(made), (0, 0), on_error, on_due=on_due))


def chain(run: Dispatcher, between: Callable[..., Any] | None = None) -> tuple[lines.Line, ...]:
    """x → LAUNCHES kernels one after the other; `between` is called in the middle."""
    made: list[lines.Line] = [
        lines.OnDevice(torch.device("cuda", 0)), lines.DefineKernel("k", run), lines.TakeArguments(("x",)),
        lines.ReadSize(N, "x", 0),
    ]  # fmt: skip
    before = "x"
    for step in range(LAUNCHES):
        buffer = Buffer(f"b{step}", torch.float32, (N,), (sympy.Integer(1),))
        made += [lines.Allocate(buffer), lines.CallKernel("k", (buffer.name, before), (N,))]
        if before != "x":
            made.append(lines.Free(before))
        if between is not None and step == LAUNCHES // 2 - 1:
            made.append(lines.CallLibrary(None, between, (lines.Argument(buffer.name),), ()))
        before = buffer.name
    return (*made, lines.Return((before,)))


class Made:
    """A program in C with graphs."""

    def __init__(self, given: tuple[lines.Line, ...]) -> None:
        text = python.write("program", given)
        plain = python.load("program", f"{text.source()}\n{cpp.write(given, text)}", text.scope)
        unit = compiled.unit_of(plain)
        assert unit is not None and unit.device == 0
        library = compiling.compile_c(compiled.FILE, unit.source, compiled.FLAGS).result()
        self.program = compiled.in_c("program", unit, library, plain.call)
        self.graphs = graphs.ProgramGraphs(self.program, unit.device)

    def __call__(self, x: Tensor) -> Tensor:
        (result,) = self.program([x])
        return result

    @property
    def numbers(self) -> graphs.Numbers:
        found = self.graphs.numbers()
        assert found is not None
        return found


def called(stub: Stub, run: Made, x: Tensor) -> list[Any]:
    """The launches of a call, which are checked: a chain from x to the result, of the right size."""
    before = stub.count = 0
    result = run(x)
    calls = stub.calls()[before:]
    assert [call.grid[0] for call in calls] == [len(x)] * LAUNCHES
    assert [call.values[2] & 0xFFFFFFFF for call in calls] == [len(x)] * LAUNCHES
    assert calls[0].values[1] == x.data_ptr() and calls[-1].values[0] == result.data_ptr()
    assert all(one.values[0] == other.values[1] for one, other in itertools.pairwise(calls))
    assert all(call.stream == 0x77 for call in calls)
    return calls


def with_graph(stub: Stub, run: Made, x: Tensor) -> None:
    for _ in range(8):
        called(stub, run, x)
        background.wait(30)
    assert run.numbers.graphs >= 1


def test_what_comes_again_is_launched_as_a_graph_at_any_size(recorder: Stub) -> None:
    run, x = Made(chain(kernel())), torch.randn(24)
    with_graph(recorder, run, x)
    before = run.numbers
    held = [run(x) for _ in range(6)]
    for size in (24, 25, 30, 27, 24, 24):
        called(recorder, run, torch.randn(size))
    after = run.numbers
    assert after.replayed + after.updated == before.replayed + before.updated + 12
    assert after.direct == before.direct and after.updated > before.updated and after.refused == 0
    assert recorder.launched_graphs == after.replayed + after.updated
    assert len({result.data_ptr() for result in held}) == 6, "results belong to the caller"
    assert 1 <= after.graphs <= 6 and after.nodes == LAUNCHES * after.graphs


def test_a_launcher_loaded_from_another_cache_directory_is_recorded(recorder: Stub, empty_cache: Path) -> None:
    launch._launcher()
    compiling.reset()  # what is asked for next is looked up anew, in the directory that is in force then
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYTILE_CACHE_DIR", str(empty_cache.parent))
        with_graph(recorder, Made(chain(kernel())), torch.randn(24))


def test_memories_of_a_recorded_call_share_an_arena(recorder: Stub) -> None:
    run, x = Made(chain(kernel())), torch.randn(24)
    wrote = [call.values[0] for call in called(recorder, run, x)]
    assert len(set(wrote)) == 3 and wrote[:2] == wrote[2:4], "two in turns, and the result"


class Calls(ctypes.Structure):
    """graphs.h's Recorder, as far as these tests use it."""

    _fields_ = [(name, ctypes.c_void_p) for name in (
        "records", "records_here", "kernel", "call", "holds", "keep", "share", "workspace", "make", "next", "pass",
        "begin_call", "end_call", "counts", "watch", "is_due", "new_graphs", "delete_graphs", "begin", "end",
        "set", "tell", "finish", "wants_graph")]  # fmt: skip

    def do(self, name: str, result: Any, *arguments: Any) -> Any:
        return ctypes.CFUNCTYPE(result, *[type(argument) for argument in arguments])(getattr(self, name))(*arguments)


def of_library(recorder: Stub, run: Made, first: int, second: int, by_torch: bool = False) -> None:
    """A stretch of four calls of the library."""
    made, library = Calls.from_address(graphs._recorder()), ctypes.cast(recorder.library.stub_library, ctypes.c_void_p)
    origin = ctypes.c_void_p()
    record = made.do("begin", ctypes.c_void_p, ctypes.c_void_p(run.graphs._address), ctypes.c_int32(0))
    recorder.count = 0
    for k in range(4):
        data = (ctypes.c_uint64 * 3)(first + 256 * k, second + 256 * k, 7)
        given = ctypes.c_uint64(3), ctypes.c_void_p(ctypes.addressof(data)), ctypes.c_size_t(24), ctypes.c_uint(2)
        assert made.do("call", ctypes.c_int, library, *given, ctypes.c_int(by_torch)) == 0
    told = ctypes.c_void_p(record), ctypes.c_int(0), ctypes.c_void_p(ctypes.addressof(origin))
    assert made.do("finish", ctypes.c_int, *told) == 0
    made.do("end", None, ctypes.c_void_p(record))


@pytest.mark.parametrize("odd", [0, 1])
def test_of_a_librarys_calls_what_they_launch_is_learned(recorder: Stub, odd: int) -> None:
    recorder.odd = odd
    recorder.lossy = 1
    run = Made(chain(kernel()))

    def stretch(first: int, second: int) -> None:
        of_library(recorder, run, first, second)
        wanted = [(first + 256 * k, 7, second + 256 * k, second + 256 * k + 8 if odd else 5) for k in range(4)]
        calls = recorder.calls()
        assert [call.function for call in calls] == [0x5000, 0x5001] * 4
        found = [(*one.values[:2], *other.values[:2]) for one, other in zip(calls[::2], calls[1::2], strict=True)]
        assert found == wanted
        run.graphs.make()

    for k in range(12):
        stretch(0x10000, 0x20000 + 0x1000 * (k % 2))
    made_by_library = recorder.library_calls
    for k in range(5):
        stretch(0x30000 + 0x1000 * k, 0x50000)
    assert run.numbers.replayed + run.numbers.updated >= 5  # of 17; times decide when graphs are given up for a while
    assert (run.numbers.proved, run.numbers.hopeless) == ((0, 1) if odd else (1, 0))
    assert odd or recorder.library_calls == made_by_library, "no call is asked what it launches"


def test_calls_of_a_library_that_cannot_be_updated_have_a_graph_for_each_address(recorder: Stub) -> None:
    recorder.node_type = 2  # of memory that is set
    recorder.odd = 1
    run = Made(chain(kernel()))
    for k in range(24):
        of_library(recorder, run, 0x10000, 0x20000 + 0x1000 * (k // 6 % 2))
        run.graphs.make()
    assert run.numbers.refused == 1 and run.numbers.graphs == 2 and run.numbers.replayed >= 6


@pytest.mark.parametrize("refused", [0, 801])
def test_torch_hears_of_captures_of_its_calls(recorder: Stub, monkeypatch: pytest.MonkeyPatch, refused: int) -> None:
    heard: list[Any] = []
    enter = capturing._ENTER(lambda *given: heard.append(given) or refused)
    leave = capturing._LEAVE(lambda: heard.append("end"))
    addresses = tuple(ctypes.cast(function, ctypes.c_void_p).value or 0 for function in (enter, leave))
    monkeypatch.setattr(capturing, "callbacks", lambda: addresses)
    graphs.reset()
    run = Made(chain(kernel()))
    for _ in range(5):
        of_library(recorder, run, 0x10000, 0x20000, by_torch=True)
        assert [call.function for call in recorder.calls()] == [0x5000, 0x5001] * 4
        run.graphs.make()
    begun, numbers = (0, 0x88, 0x77), run.numbers
    assert heard == ([begun] * 3 if refused else [begun, "end"])
    assert (numbers.graphs, numbers.refused, numbers.error) == ((0, 3, refused) if refused else (1, 0, 0))


def in_place(run: Dispatcher, launches: int = LAUNCHES) -> tuple[lines.Line, ...]:
    """Kernels in memory that is given: x → y, y → x, and so on; the last one → z."""
    made: list[lines.Line] = [
        lines.OnDevice(torch.device("cuda", 0)), lines.DefineKernel("k", run), lines.TakeArguments(("x", "y", "z")),
        lines.ReadSize(N, "x", 0),
    ]  # fmt: skip
    names = [*("yx" * launches)[: launches - 1], "z"]
    made += [lines.CallKernel("k", (name, before), (N,)) for name, before in zip(names, ["x", *names], strict=False)]
    return (*made, lines.Return(()))


class InPlace(Made):
    """The program `in_place`, of a kernel that `kernel` makes of these arguments, once its calls follow a graph."""

    def __init__(self, stub: Stub, **given: Any) -> None:
        self.stub, self.dispatcher = stub, kernel(**given)
        super().__init__(in_place(self.dispatcher))
        self.x, self.y, self.z = (torch.randn(24) for _ in range(3))
        self.key = self.dispatcher.key_of(24)
        for _ in range(30):
            self.call(self.z)
            background.wait(30)
        assert self.numbers.followed > 0

    def call(self, z: Tensor) -> int:
        """Makes a call, checks its launches, and returns how many of its stretches were not recorded."""
        before, self.stub.count = self.numbers.followed, 0
        assert self.program([self.x, self.y, z]) == []
        wrote = [call.values[0] for call in self.stub.calls()]
        assert wrote == [each.data_ptr() for each in (*[self.y, self.x] * LAUNCHES,)[: LAUNCHES - 1]] + [z.data_ptr()]
        return self.numbers.followed - before


def test_a_call_that_goes_a_graphs_way_is_not_recorded(recorder: Stub) -> None:
    run = InPlace(recorder)
    calls = run.dispatcher.calls(run.key)
    assert [run.call(run.z) for _ in range(10)] == [1] * 10
    assert run.dispatcher.calls(run.key) == calls + 10 * LAUNCHES, "each call counts"


def test_a_call_that_leaves_a_graphs_way_is_recorded_from_there(recorder: Stub) -> None:
    run, other = InPlace(recorder), torch.randn(24)
    assert run.call(other) == 0
    for z in (run.z, other) * 10:
        run.call(z)
        background.wait(30)
    assert [run.call(z) for z in (run.z, other, other, run.z)] == [1] * 4, "each has a graph"


def test_a_graph_whose_launch_fails_after_an_update_is_not_followed(recorder: Stub) -> None:
    run, other = InPlace(recorder), torch.randn(24)
    updated = run.numbers.updated
    recorder.launch_error = 701
    with pytest.raises(LaunchFailed):
        run.program([run.x, run.y, other])
    recorder.launch_error = 0
    assert run.numbers.nodes_updated >= 1 and run.numbers.updated == updated
    run.call(run.z)


def test_a_graph_that_the_background_has_dropped_is_asked_for_again(recorder: Stub) -> None:
    run, arguments = Made(in_place(kernel())), [torch.randn(24) for _ in range(3)]
    with background.background.held():
        for _ in range(6):
            run.program(list(arguments))
        background.drop()
    for _ in range(64):
        recorder.count = 0
        run.program(list(arguments))
        background.wait(30)
    assert run.numbers.graphs == 1


def test_the_device_begins_before_a_long_stretch_is_complete(recorder: Stub) -> None:
    """Parts of 6, 9 and 13 launches, and the rest."""
    run, arguments = Made(in_place(kernel(), 32)), [torch.randn(24) for _ in range(3)]
    for _ in range(30):
        recorder.count = 0
        run.program(list(arguments))
        background.wait(30)
    before = run.numbers
    run.program(list(arguments))
    after = run.numbers
    assert (after.followed - before.followed, after.to_device - before.to_device, after.to_end - before.to_end) == (4, 3, 1)
    assert after.nodes == 32


@pytest.mark.parametrize("kept", [True, False])
def test_weights_that_the_caller_keeps_end_no_stretch(recorder: Stub, kept: bool) -> None:
    """Memory that waits for launches does: here more than may wait."""
    given = in_place(kernel())
    read = [lines.CallKernel("k", ("y", "w"), (N,)), lines.Free("w")]
    run = Made((*given[:2], lines.TakeArguments(("x", "y", "z", "w")), given[3], *read, *given[4:]))
    arguments, size = [torch.randn(24) for _ in range(3)], 9 << 20
    weight = torch.empty(size)
    for _ in range(4):  # of which the first one, which decides, does not record the kernel that reads it
        run.program([*arguments, weight if kept else torch.empty(size)])
    assert run.numbers.to_memory == (0 if kept else 3)


def test_what_is_decided_anew_is_not_followed(recorder: Stub) -> None:
    run = InPlace(recorder)
    run.dispatcher.insert(run.key, run.dispatcher.get(run.key))
    assert [run.call(run.z) for _ in range(3)] == [0, 1, 1]


def test_calls_that_were_waited_for_are_told_of_though_they_are_not_recorded(recorder: Stub) -> None:
    told: list[Any] = []
    run = InPlace(recorder, on_due=told.append)
    run.dispatcher.watch(run.key, 2 * LAUNCHES + 1)
    for _ in range(2):
        run.call(run.z)
    assert not told
    run.call(run.z)
    assert len(told) == 1


def test_a_check_that_a_graphs_kernel_finds_violated_is_raised(recorder: Stub) -> None:
    run = InPlace(recorder, checks=True)
    run.dispatcher.get(run.key).keep._error[0] = 7
    with pytest.raises(LaunchFailed):
        run.call(run.z)
    assert run.call(run.z) == 1


def test_what_kernels_keep_zeroed_lives_as_long_as_a_graph_that_uses_it(recorder: Stub) -> None:
    run = InPlace(recorder, scratch=(launch.Scratch(encode(4 * M, {M: 0}), zeroed=True),))
    before = recorder.tensors
    assert run.call(run.z) == 1
    assert recorder.tensors == before
    del run
    gc.collect()
    assert recorder.tensors < before


def test_the_same_launches_are_replayed_without_an_update(recorder: Stub) -> None:
    run, x = Made(chain(kernel())), torch.randn(24)
    with_graph(recorder, run, x)
    seen = {}
    for _ in range(40):
        calls = called(recorder, run, x)
        background.wait(30)
        addresses = tuple(tuple(call.values) for call in calls)
        seen[addresses] = seen.get(addresses, 0) + 1
    assert run.numbers.replayed >= 40 - 4 * len(seen)


def test_library_calls_come_between_the_launches_around_them(recorder: Stub) -> None:
    counts: list[int] = []
    run, x = Made(chain(kernel(), lambda tensor: counts.append(recorder.count))), torch.randn(9)
    run.graphs  # noqa: B018
    for _ in range(8):
        called(recorder, run, x)
        background.wait(30)
    assert counts == [LAUNCHES // 2] * 8
    assert run.numbers.short == 16, "too few launches on either side"


def test_a_program_that_the_user_captures_launches_its_kernels(recorder: Stub) -> None:
    run, x = Made(chain(kernel())), torch.randn(24)
    with_graph(recorder, run, x)
    launched, recorder.capturing = recorder.launched_graphs, 5
    called(recorder, run, x)
    assert recorder.launched_graphs == launched and run.numbers.replayed + run.numbers.updated == launched


def test_where_graphs_do_not_pay_nothing_is_recorded_any_more(recorder: Stub) -> None:
    run, x = Made(chain(kernel())), torch.randn(24)
    recorder.instantiate_error = 801
    for _ in range(120):
        called(recorder, run, x)
        background.wait(30)
    numbers = run.numbers
    assert numbers.graphs == 0 and numbers.refused >= 1 and numbers.error == 801 and numbers.rested > 0
    assert "CUDA_ERROR" in str(numbers)


def test_an_update_that_the_driver_refuses_is_launched_one_by_one(recorder: Stub) -> None:
    run, x = Made(chain(kernel())), torch.randn(24)
    with_graph(recorder, run, x)
    recorder.update_error = 910
    for size in (30, 31, 32):
        called(recorder, run, torch.randn(size))
    assert run.numbers.refused >= 1 and run.numbers.error == 910
    recorder.update_error = 0
    called(recorder, run, x)


def test_scratch_and_freed_memory_stay_until_the_launches_are_made(recorder: Stub) -> None:
    scratch = (launch.Scratch(encode(4 * M, {M: 0})), launch.Scratch(encode(4 * M, {M: 0}), zeroed=True))
    run, x = Made(chain(kernel(scratch))), torch.randn(24)
    recorder.delay = 2000
    for _ in range(6):
        called(recorder, run, x)
        background.wait(30)
    assert recorder.deleted_early == 0


def test_a_launch_that_fails_is_told_of_with_its_kernel(recorder: Stub) -> None:
    run, x = Made(chain(kernel())), torch.randn(24)
    called(recorder, run, x)
    recorder.launch_error = 701
    with pytest.raises(LaunchFailed, match="kernel 'kernel' could not be launched"):
        run(x)
    recorder.launch_error = 0
    called(recorder, run, x)


def test_graphs_go_with_their_program_and_when_there_are_too_many(recorder: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "MOST_NODES", 2 * LAUNCHES)
    graphs.reset()
    programs = [Made(chain(kernel())) for _ in range(4)]
    for run in programs:
        with_graph(recorder, run, torch.randn(24))
    assert recorder.graphs <= 2 and programs[-1].numbers.all_nodes <= 2 * LAUNCHES
    assert sum(run.numbers.evicted for run in programs) >= 2
    del run, programs
    gc.collect()
    assert recorder.graphs == 0
