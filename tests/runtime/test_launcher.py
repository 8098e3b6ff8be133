"""Dispatchers: one behaviour, in C and in Python."""

from __future__ import annotations

import gc
import logging
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from polytile import counters, options
from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.errors import InvalidInput
from polytile.runtime import native, regime
from polytile.runtime.dispatcher import Dispatcher, Interface
from polytile.runtime.formula import power_below_16
from polytile.runtime.launcher import empty_strided_cpu, new_dispatcher, time_burst
from polytile.runtime.python_dispatcher import PythonDispatcher
from tests.runtime.helpers import entry
from tests.waiting import PATIENCE

Make = Callable[..., Dispatcher]


@pytest.fixture(params=["c", "python"])
def make(request: pytest.FixtureRequest) -> Make:
    kind = new_dispatcher if request.param == "c" else PythonDispatcher
    return lambda *given, **named: kind(Interface(*given, **named))


def board() -> torch.Tensor:
    """Where the kernel `show` writes: threads, address of this, address of the other tensor, two sizes, calls."""
    return torch.zeros(6, dtype=torch.int64)


class Asked:
    """An on_miss that always gives the same entry and remembers what it was asked."""

    def __init__(self, given: Any) -> None:
        self.given, self.calls = given, []

    def __call__(self, key: int, arguments: tuple[Any, ...]) -> Any:
        self.calls.append((key, arguments))
        return self.given


@pytest.mark.parametrize("kind", [new_dispatcher, PythonDispatcher])
def test_the_two_implementations_are_dispatchers(kind: Callable[[Interface], Dispatcher]) -> None:
    dispatch = kind(Interface("k", [1, 2], Asked(None)))
    assert isinstance(dispatch, Dispatcher)
    assert isinstance(dispatch, PythonDispatcher) == (kind is PythonDispatcher)
    assert (dispatch.name, dispatch.key, dispatch.tensor_key) == ("k", (1, 2), ())


def test_a_miss_asks_once_and_hits_go_straight_to_the_entry(make: Make) -> None:
    asked, out, other = Asked(entry("show", threads=3)), board(), torch.zeros(2)
    dispatch = make("k", [1, 0], asked)
    assert dispatch(out, other, 100, 7) is None
    assert dispatch(out, other, 101, -5) is None
    assert out.tolist() == [3, out.data_ptr(), other.data_ptr(), 101, -5, 2]
    ((key, arguments),) = asked.calls
    assert key == dispatch.key_of(100, 7) and arguments[0] is out and arguments[2:] == (100, 7)
    assert dispatch.table() == {key: asked.given} and counters["dispatch_misses"] == 1


@pytest.mark.parametrize(("code", "misses"), [(0, 1), (1, 2), (2, 3)])
def test_codes_say_what_matters(make: Make, code: int, misses: int) -> None:
    asked = Asked(PythonEntry(lambda *_: None))
    dispatch = make("k", [code], asked)
    for size in (33, 45, 4096, 33):
        dispatch(size)
    assert len(asked.calls) == misses


@pytest.mark.parametrize("code", [-1, 4])
def test_unknown_codes_are_refused(make: Make, code: int) -> None:
    with pytest.raises(ValueError, match=f"key code {code} at position 1"):
        make("k", [0, code], Asked(None))


class Plain(torch.Tensor):
    """A subclass with data of its own."""


BASE = torch.arange(24.0).reshape(4, 6)
TENSORS = {
    "contiguous": BASE,
    "storage offset": BASE[2:, 3:],
    "transposed": BASE.t(),
    "0-dim": BASE[1, 1],
    "requires grad": torch.zeros(3, requires_grad=True),
    "result of autograd": torch.zeros(3, requires_grad=True).exp(),
    "Parameter": torch.nn.Parameter(BASE[1]),
    "bool": torch.zeros(3, dtype=torch.bool),
    "subclass": BASE[1:].as_subclass(Plain),
    "from numpy": torch.from_numpy(BASE.numpy()[1:]),
}


@pytest.mark.parametrize("kind", TENSORS)
def test_the_kernel_gets_the_data_pointer_of_every_sort_of_tensor(make: Make, kind: str) -> None:
    out, tensor = board(), TENSORS[kind]
    make("k", [0, 0], Asked(entry("show")))(out, tensor, 1, 2)
    assert out[2].item() == tensor.data_ptr()


@pytest.mark.parametrize("nothing", [None, torch.empty(0, 5)])
def test_none_and_empty_tensors_are_null_pointers(make: Make, nothing: Any) -> None:
    out = board()
    make("k", [0, 0], Asked(entry("show")))(out, nothing, 1, 2)
    assert out[2].item() == 0 and out[5].item() == 1


def fake_tensor() -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(3)


def freed_tensor() -> torch.Tensor:
    tensor = torch.zeros(3)
    tensor.untyped_storage().resize_(0)
    return tensor


UNREADABLE: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "fake": (fake_tensor, "FakeTensor without data"),
    "meta": (lambda: torch.empty(3, device="meta"), "on device meta"),
    "sparse": (lambda: torch.eye(3).to_sparse(), "no memory to point to"),
    "freed": (freed_tensor, "storage was freed"),
}


@pytest.mark.parametrize("kind", UNREADABLE)
def test_tensors_without_cpu_memory_are_refused(make: Make, kind: str) -> None:
    build, message = UNREADABLE[kind]
    dispatch = make("softmax", [0, 0], Asked(entry("show")))
    with pytest.raises(InvalidInput, match=message) as caught:
        dispatch(board(), build(), 1, 2)
    assert "kernel 'softmax': argument 1" in str(caught.value)


def test_tensors_inside_vmap_are_refused(make: Make) -> None:
    dispatch = make("k", [0, 0], Asked(entry("show")))
    with pytest.raises(InvalidInput, match="no memory"):
        torch.vmap(lambda x: dispatch(x, x, 1, 2))(torch.zeros(2, 3))


WRONG: dict[str, tuple[tuple[Any, ...], type[Exception], str]] = {
    "integer for a tensor": ((board(), 4, 1, 2), TypeError, "argument 1 is a int; a tensor or None goes there"),
    "text for an integer": ((board(), None, 1, "2"), TypeError, "argument 3 is a str; an integer goes there"),
    "float for an integer": ((board(), None, 1.0, 2), TypeError, "argument 2 is a float"),
    "too large": ((board(), None, 1, 2**63), OverflowError, "argument 3 is 9223372036854775808"),
    "too few": ((1,), TypeError, "takes its tensors and then 2 integers; 1 arguments were given"),
}


@pytest.mark.parametrize("kind", WRONG)
def test_wrong_arguments_are_named(make: Make, kind: str) -> None:
    arguments, error, message = WRONG[kind]
    dispatch = make("softmax", [0, 0], Asked(entry("show")))
    with pytest.raises(error, match=message) as caught:
        dispatch(*arguments)
    assert "kernel 'softmax'" in str(caught.value)


def test_the_first_call_settles_the_number_of_tensors(make: Make) -> None:
    dispatch, out = make("k", [0, 0], Asked(entry("show"))), board()
    dispatch(out, None, 1, 2)
    with pytest.raises(TypeError, match="takes 2 tensors and then 2 integers; 3 arguments were given"):
        dispatch(out, 1, 2)
    with pytest.raises(TypeError, match="keyword"):
        dispatch(out, None, 1, 2, size=3)


def test_things_with_an_index_are_integers(make: Make) -> None:
    out = board()
    make("k", [1, 1], Asked(entry("show")))(out, None, torch.tensor(12), True)
    assert out[3:5].tolist() == [12, 1]


def test_a_failed_check_raises_index_error(make: Make) -> None:
    dispatch = make("gather", [0], Asked(entry("fail")))
    dispatch(0)
    with pytest.raises(IndexError, match="kernel 'gather': run-time check 3 failed"):
        dispatch(3)


def test_on_error_may_raise_its_own_error_or_leave_it(make: Make) -> None:
    codes: list[int] = []

    def on_error(code: int) -> None:
        codes.append(code)
        if code == 1:
            raise InvalidInput("row 7 is out of range")

    dispatch = make("gather", [0], Asked(entry("fail")), on_error=on_error)
    with pytest.raises(InvalidInput, match="row 7"):
        dispatch(1)
    with pytest.raises(IndexError, match="check 2"):
        dispatch(2)
    assert codes == [1, 2]


def test_python_entries_get_the_arguments_and_their_errors_pass(make: Make) -> None:
    seen: list[Any] = []

    def call(*arguments: Any) -> None:
        seen.append(arguments)
        if arguments[1] == 9:
            raise RuntimeError("from the library")

    out = board()
    dispatch = make("k", [0], Asked(PythonEntry(call)))
    assert dispatch(out, 8) is None
    with pytest.raises(RuntimeError, match="from the library"):
        dispatch(out, 9)
    assert seen[0][0] is out and [arguments[1] for arguments in seen] == [8, 9]


def test_a_failed_miss_is_passed_on_and_asked_again(make: Make) -> None:
    answers: list[Any] = [RuntimeError("not now"), PythonEntry(lambda *_: None)]

    def on_miss(key: int, arguments: tuple[Any, ...]) -> Any:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    dispatch = make("k", [0], on_miss)
    with pytest.raises(RuntimeError, match="not now"):
        dispatch(1)
    dispatch(1)
    dispatch(1)
    assert answers == []


def test_the_table_can_be_filled_read_replaced_and_cleared(make: Make) -> None:
    dispatch, hits = make("k", [2], Asked(None)), []
    entries = [PythonEntry(lambda n, i=i: hits.append((i, n))) for i in range(1000)]
    for i, one in enumerate(entries):
        dispatch.insert(dispatch.key_of(i * 8), one)
    assert dispatch.table() == {dispatch.key_of(i * 8): one for i, one in enumerate(entries)}
    dispatch(8 * 999)
    dispatch.insert(dispatch.key_of(8 * 999), entries[0])
    dispatch(8 * 999)
    assert hits == [(999, 7992), (0, 7992)]
    assert dispatch.get(dispatch.key_of(16)) is entries[2] and dispatch.get(dispatch.key_of(17)) is None
    dispatch.clear()
    assert dispatch.table() == {}


def test_a_subdivided_regime_has_a_key_and_an_entry_for_each_sub_bucket(make: Make) -> None:
    hits: list[tuple[str, int]] = []
    one, other, asked = (PythonEntry(lambda m, n, name=name: hits.append((name, m))) for name in ("one", "other", "asked"))
    dispatch = make("k", [1, 2], Asked(asked))
    buckets = dispatch.key_of(96, 7)
    assert dispatch.key_of(128, 7) == buckets != dispatch.key_of(128, 8)
    dispatch.insert(buckets, one)
    dispatch(128, 7)
    dispatch.insert(buckets, None)
    assert dispatch.get(buckets) is None and dispatch.table() == {}
    sub_buckets = dispatch.key_of(96, 7), dispatch.key_of(128, 7)
    assert len({buckets, *sub_buckets}) == 3
    dispatch.insert(sub_buckets[0], one)
    dispatch.insert(sub_buckets[1], other)
    for m in (96, 128, 112):
        dispatch(m, 7)
    assert hits == [("one", 128), ("one", 96), ("other", 128), ("asked", 112)]
    assert len(dispatch.table()) == 3 and dispatch.get(dispatch.key_of(112, 7)) is asked
    dispatch.clear()
    assert dispatch.key_of(96, 7) == buckets


@pytest.mark.parametrize("subdivided", [False, True])
def test_exact_sizes_may_be_taken_out_of_a_regime(make: Make, subdivided: bool) -> None:
    calls: list[str] = []
    entries = {name: PythonEntry(lambda *args, name=name: calls.append(f"{name} {args}")) for name in ("all", "own")}
    dispatch = make("k", [1, 0, 2], Asked(entries["all"]))
    buckets = dispatch.key_of(100, 7, 3)
    dispatch.insert(buckets, None if subdivided else entries["all"])
    own = regime.pack([regime.exact_size(100), 3])
    dispatch.insert(own, entries["own"])
    assert dispatch.key_of(100, 9, 3) == own != dispatch.key_of(101, 7, 3) and dispatch.get(own) is entries["own"]
    assert (dispatch.key_of(101, 7, 3) == buckets) is not subdivided
    for size in (100, 101, 100):
        dispatch(size, 7, 3)
    assert calls == ["own (100, 7, 3)", "all (101, 7, 3)", "own (100, 7, 3)"]
    assert dispatch.key_of(100, 7, 4) != own, "in another regime they are not"
    dispatch.clear()
    assert dispatch.key_of(100, 7, 3) == buckets


def test_a_table_that_grows_keeps_what_is_counted_and_what_was_taken_out(make: Make) -> None:
    calls: list[Any] = []
    entries = {name: PythonEntry(lambda *args, name=name: calls.append(name)) for name in ("all", "own")}
    dispatch = make("k", [1, 2], Asked(entries["all"]), on_due=lambda args: calls.append(("due", *args)))
    dispatch(100, 0)
    dispatch.insert(regime.pack([regime.exact_size(100), 0]), entries["own"])
    dispatch.watch(dispatch.key_of(101, 0), 3)
    dispatch(101, 0)
    for other in range(1, 500):
        dispatch.insert(dispatch.key_of(101, other), entries["all"])
    for size in (100, 101, 101):
        dispatch(size, 0)
    assert calls == ["all", "all", "own", "all", ("due", 101, 0), "all"]


def test_it_tells_of_the_call_that_was_waited_for_before_it_runs(make: Make) -> None:
    calls: list[Any] = []
    entry = PythonEntry(lambda *args: calls.append(args[0]))
    other = PythonEntry(lambda *args: calls.append(-args[0]))

    def told(args: tuple[Any, ...]) -> None:
        calls.append(("due", *args))
        dispatch.insert(dispatch.key_of(*args), other)

    dispatch = make("k", [1], Asked(entry), on_due=told)
    dispatch.watch(dispatch.key_of(100), 2)
    dispatch(100)
    dispatch.watch(dispatch.key_of(100), 3)
    dispatch.insert(dispatch.key_of(100), entry)
    for size in (101, 102, 103, 104):
        dispatch(size)
    assert calls == [100, 101, 102, ("due", 103), -103, -104]


def test_what_is_raised_where_a_call_was_waited_for_is_the_calls(make: Make) -> None:
    def told(args: tuple[Any, ...]) -> None:
        raise ValueError("not now")

    dispatch = make("k", [1], Asked(PythonEntry(lambda *args: None)), on_due=told)
    dispatch(100)
    dispatch.watch(dispatch.key_of(100), 1)
    with pytest.raises(ValueError, match="not now"):
        dispatch(100)
    dispatch(100)


def test_a_decision_may_subdivide_its_own_regime(make: Make) -> None:
    def choose(key: int, arguments: tuple[Any, ...]) -> PythonEntry:
        dispatch.insert(key, None)
        return PythonEntry(lambda n: None)

    dispatch = make("k", [1], choose)
    buckets = dispatch.key_of(96)
    dispatch(96)
    assert dispatch.get(buckets) is None and list(dispatch.table()) == [dispatch.key_of(96)]


@pytest.mark.parametrize("key", [-1, 1 << 64])
def test_a_key_of_another_table_is_refused(make: Make, key: int) -> None:
    with pytest.raises(OverflowError):
        make("k", [2], Asked(None)).insert(key, PythonEntry(print))


def test_an_entry_without_address_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match="address of a native entry is 0"):
        make("k", [2], Asked(None)).insert(0, NativeEntry(0))


def test_alignment_of_tensors_can_be_part_of_the_key(make: Make) -> None:
    memory = torch.zeros(1024, dtype=torch.uint8)
    start = -memory.data_ptr() % 64
    asked = Asked(PythonEntry(lambda *_: None))
    dispatch = make("k", [2], asked, tensor_key=[0, 1, 2])
    at = {offset: memory[start + offset :] for offset in (0, 16, 64, 1)}
    for first, second, third in ((0, 0, 0), (1, 64, 16), (0, 16, 0), (0, 16, 64), (0, 16, 1), (16, 1, 1)):
        dispatch(at[first], at[second], at[third], 5)
    assert len(asked.calls) == 3
    assert dispatch.key_of(5) == dispatch.key_of(at[1], at[0], at[16], 5) == asked.calls[0][0]
    with pytest.raises(TypeError, match="takes 3 tensors"):
        dispatch(at[0], 5)


def test_the_power_of_two_in_an_address_and_in_an_integer_can_be_part_of_the_key(make: Make) -> None:
    memory = torch.zeros(1024, dtype=torch.uint8)
    start = -memory.data_ptr() % 64
    asked = Asked(PythonEntry(lambda *_: None))
    dispatch = make("k", [0], asked, tensor_key=[3], formulas=[power_below_16(0, 4)])
    for offset, integer in ((0, 3), (48, -5), (4, 3), (12, 3), (0, 6), (0, -10), (0, 4), (0, 8), (0, -24), (0, 0), (0, 32)):
        dispatch(memory[start + offset :], integer)
    fields = [regime.unpack(key, 2) for key, _ in asked.calls]
    assert fields == [(16, 0), (4, 0), (16, 2), (16, 4)]


def test_many_threads_miss_one_key_and_on_miss_is_asked_once(make: Make) -> None:
    asked: list[int] = []
    everybody, hits = threading.Event(), []

    def on_miss(key: int, arguments: tuple[Any, ...]) -> PythonEntry:
        asked.append(key)
        everybody.wait(PATIENCE)
        return PythonEntry(lambda n: hits.append(n))

    dispatch = make("k", [2], on_miss)
    threads = [threading.Thread(target=dispatch, args=(i % 2,)) for i in range(12)]
    for thread in threads:
        thread.start()
    everybody.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(asked) == 2 and sorted(hits) == [0] * 6 + [1] * 6


def test_other_threads_run_while_a_kernel_runs(make: Make) -> None:
    """The kernel ends well once another thread has set the flag, and fails after five minutes without."""
    flag = torch.zeros(1, dtype=torch.int64)
    timer = threading.Timer(0.05, lambda: flag.fill_(1))
    timer.start()
    make("k", [0], Asked(entry("wait")))(flag, 0)
    timer.join()


def test_a_dispatcher_and_what_refers_to_it_can_be_collected(make: Make) -> None:
    class Owner:
        def __init__(self) -> None:
            self.dispatch = make("k", [0], self.on_miss)
            self.dispatch(1)

        def on_miss(self, key: int, arguments: tuple[Any, ...]) -> PythonEntry:
            return PythonEntry(lambda n: self)

    gone = weakref.ref(Owner())
    gc.collect()
    assert gone() is None


@pytest.fixture(params=["c", "python"])
def either_timer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "python":
        monkeypatch.setattr(native, "module", lambda: None)


@pytest.mark.usefixtures("either_timer")
def test_a_burst_runs_the_kernel_as_often_as_asked() -> None:
    out = board()
    show, begin = entry("show", threads=2), time.perf_counter()
    assert 0 < time_burst(show, (out, None, 3, 4), 1000) <= time.perf_counter() - begin
    assert out.tolist() == [2, out.data_ptr(), 0, 3, 4, 1000]
    calls: list[Any] = []
    assert time_burst(PythonEntry(lambda *given: calls.append(given)), [out, 5], 7) > 0
    assert [given[1] for given in calls] == [5] * 7


@pytest.mark.usefixtures("either_timer")
def test_a_burst_reports_failures() -> None:
    with pytest.raises(IndexError, match="check 4"):
        time_burst(entry("fail"), (4,), 10)
    with pytest.raises(ValueError, match="at least 1"):
        time_burst(entry("fail"), (0,), 0)
    with pytest.raises(ZeroDivisionError):
        time_burst(PythonEntry(lambda n: 1 // n), (0,), 3)


def test_the_allocator_makes_what_was_asked() -> None:
    made = empty_strided_cpu((2, 3), (1, 4), torch.bfloat16)
    assert (tuple(made.shape), made.stride(), made.dtype, made.device.type) == ((2, 3), (1, 4), torch.bfloat16, "cpu")


def test_without_the_fast_path_tensors_are_still_read(
    launcher_module: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def lost() -> int:
        raise LookupError("a tensor's Python object does not hold the tensor where it used to")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(native, "_handle_offset", lost)
            native._configure(launcher_module)
        assert launcher_module.probe(BASE) is None and "data_ptr()" in caplog.text
        out = board()
        new_dispatcher(Interface("k", [0, 0], Asked(entry("show"))))(out, BASE[1:], 1, 2)
        assert out[2].item() == BASE[1:].data_ptr()
    finally:
        native._configure(launcher_module)
    assert launcher_module.probe(BASE) == BASE.data_ptr()


def test_a_fast_path_that_misreads_is_not_trusted(
    launcher_module: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Misreading:
        """A module that answers with the start of the storage, whatever the offset."""

        configured: tuple[Any, ...] = ()

        def configure(self, *values: Any) -> None:
            self.configured = values

        def probe(self, tensor: Any) -> int | None:
            fast = type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.device.type == "cpu" and tensor.numel()
            return tensor.untyped_storage().data_ptr() if fast else None

    module = Misreading()
    native._configure(module)
    assert module.configured[3:] == (None, None, 0, 0, 0)
    assert "misreads a view with a storage offset" in caplog.text


def test_without_python_headers_the_warning_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    native.reset()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(native.sysconfig, "get_path", lambda name: str(tmp_path))
            assert isinstance(new_dispatcher(Interface("k", [], Asked(None))), PythonDispatcher)
        assert "apt install python3-dev" in caplog.text
    finally:
        native.reset()
        assert native.module() is not None


def test_without_compiler_dispatch_goes_through_ctypes_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    show = entry("show")
    native.reset()
    try:
        with caplog.at_level(logging.WARNING), options.override(cxx="no-such-compiler"):
            dispatch = new_dispatcher(Interface("k", [0, 0], Asked(show)))
            new_dispatcher(Interface("another", [], Asked(show)))
        assert isinstance(dispatch, PythonDispatcher)
        assert len([r for r in caplog.records if "C launcher cannot be used" in r.getMessage()]) == 1
        out = board()
        dispatch(out, None, 1, 2)
        assert out[5].item() == 1
    finally:
        native.reset()
        assert native.module() is not None
