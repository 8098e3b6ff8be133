"""Dispatcher: one callable for a kernel and all the compiled forms of it, chosen by what the arguments are like.

    dispatch = Dispatcher("softmax", key=[1, 1, 0], on_miss=choose)
    dispatch(x, out, rows, columns, stride)     # tensors (or None) first, then integers; returns None

Each integer has a code in `key`: 0 it does not matter, 1 its regime bucket matters, 2 its value, 3 whether 16 divides it
(regime.py). `formulas` of the integers (formula.py) add their values to the key.
Each tensor may have one in `tensor_key`: 0 nothing matters, 1 whether its data is aligned to 64 bytes, 2 to 16 bytes, 3 to
which power of two up to 16.
The regime key found leads to an entry: a native kernel, called without the GIL, or a Python callable. A key with no
entry asks `on_miss(key, arguments)` once, whatever the number of threads, and keeps the entry it returns. Where `fall_back` has
given leaves, such a call runs one of these instead, and is noted for the thread that decides.

Two implementations behave alike: `launcher.c`, under 0.1 us a call, and `PythonDispatcher`, about 5 us a call, for
machines where a C extension cannot be built. The GIL is released for every native kernel, as torch does for every
operator: it costs 36 ns of the 76 ns of a hit, and a kernel's length is not known beforehand.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import ctypes
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NoReturn, Protocol

import torch

from polytile import locks
from polytile.counters import counters
from polytile.runtime import forks, native, programs, regime
from polytile.runtime.arguments import CPU, CUDA, bad_count, integer, slow_pointer
from polytile.runtime.cuda import launch
from polytile.runtime.formula import Formula

MAX_ARGUMENTS = 4096
DECLINED = -(1 << 63)
OnMiss = Callable[[int, tuple[Any, ...]], Any]
OnError = Callable[[int], Any]
OnDue = Callable[[tuple[Any, ...]], Any]


class NativeEntry(Protocol):
    """A loaded kernel: `long kernel(void* const* pointers, const long* integers, long threads)` at `address`. Where it answers
    DECLINED it has done nothing, and `otherwise` takes the call."""

    @property
    def address(self) -> int: ...

    @property
    def threads(self) -> int: ...

    @property
    def otherwise(self) -> Callable[..., None] | None: ...


class PythonEntry(Protocol):
    """A Python callable with the kernel's own arguments."""

    @property
    def call(self) -> Callable[..., None]: ...


Entry = NativeEntry | PythonEntry


SIZE_DIVIDED, SIZE_IS, SIZE_REACHES, ADDRESS_DIVIDED, FIELD_IS = range(5)
"""Kinds of LeafFact: the number divides an integer, is its value, is at most its value; divides the address of a tensor's data;
is the value of a key field."""

LeafFact = tuple[int, int, int]
"""Kind, index of the integer, tensor or key field, number."""

Leaf = tuple[Entry, bytes]
"""What runs a call for which nothing is decided, and the LeafFacts under which it is right, packed by `pack_words`."""

Orders = dict[bytes, bytes]
"""Numbers of leaves, the first to look at first, by the packed fields of a key, by those of a cell (regime.py), and for all
others by those of none."""

Note = tuple[int, tuple[int, ...], tuple[int, ...], list[str]]
"""A call to look at: its key, its integers, the addresses of its tensors' data if they matter, and the file names of the
programs that called (programs.py)."""


def pack_words(words: Iterable[int]) -> bytes:
    """Signed 64-bit words, one after the other."""
    return b"".join(word.to_bytes(8, "little", signed=True) for word in words)


class Dispatcher(abc.ABC):
    """Makes the C dispatcher, or a PythonDispatcher where that cannot be had. See the module's docstring.

    `on_error(code)` may raise the error of a failed run-time check itself; if it returns, or is not given, IndexError
    is raised. Calls raise TypeError for wrong arguments and InvalidInput for tensors that the kernel cannot read.
    `on_due(arguments)` is told of calls that `watch` asked for, before they run; where there are leaves, such calls are noted.
    `label` is what torch's profiler calls it, the name if it is empty.
    """

    name: str
    key: tuple[int, ...]
    tensor_key: tuple[int, ...]

    def __new__(
        cls,
        name: str,
        key: Sequence[int],
        on_miss: OnMiss,
        tensor_key: Sequence[int] = (),
        on_error: OnError | None = None,
        formulas: Sequence[Formula] = (),
        device: int = CPU,
        on_due: OnDue | None = None,
        label: str = "",
    ) -> Dispatcher:
        module = native.module() if cls is Dispatcher else None
        if module is None:
            return object.__new__(PythonDispatcher)
        if not issubclass(module.Dispatcher, Dispatcher):
            Dispatcher.register(module.Dispatcher)
        made: Dispatcher = module.Dispatcher(
            name,
            tuple(key),
            tuple(tensor_key),
            _OncePerKey(on_miss),
            _Reporter(name, on_error),
            tuple(struct.pack(f"{len(code)}q", *code) for code in formulas),
            device,
            on_due,
            label or name,
        )
        return made

    @abc.abstractmethod
    def __call__(self, *arguments: Any) -> None:
        """Runs the kernel on tensors (or None) followed by the integers that `key` describes."""

    @abc.abstractmethod
    def insert(self, key: int, entry: Entry | None) -> None:
        """Makes `entry` the one that runs for `key`, in place of an earlier one. None subdivides the regime: calls in it
        have keys of sub-buckets from then on (regime.py). An entry for a key of exact sizes takes them out of their regime, which
        must have an entry or be subdivided."""

    @abc.abstractmethod
    def reopen(self, key: int) -> None:
        """Leaves `key` open: nothing is decided for it. Where these are exact sizes, calls run as their regime does, once that
        is decided."""

    @abc.abstractmethod
    def is_open(self, key: int) -> bool:
        """Whether nothing is decided for `key`, though calls have come or it was left open."""

    @abc.abstractmethod
    def fall_back(self, leaves: tuple[Leaf, ...], orders: Orders, wake: Callable[[], Any]) -> None:
        """Has calls for which nothing is decided run the first of the `leaves`, in the order for them, whose facts hold, in place
        of asking `on_miss`. `wake()` is called when there is something to look at in `notes`."""

    @abc.abstractmethod
    def notes(self) -> list[Note]:
        """The calls to look at, which are forgotten: the first of each key for which nothing is decided, and those that `watch`
        asked for."""

    @abc.abstractmethod
    def watch(self, key: int, calls: int) -> None:
        """Has `on_due` told of the call of the entry for `key` that comes after so many, once; 0: of none."""

    @abc.abstractmethod
    def get(self, key: int) -> Entry | None:
        """The entry for `key`, if there is one; a regime that is subdivided, or left open, has none."""

    @abc.abstractmethod
    def calls(self, key: int) -> int:
        """How many calls the entries of `key` have served, the one that missed it not among them."""

    @abc.abstractmethod
    def begin_trial(self, key: int, entries: tuple[Entry, ...], samples: int, period: int, device: int) -> bool:
        """Has calls of the entry for `key` run one of `entries`, contenders 1, 2, ..., once in `period` calls, and the next call
        timed as it is, as contender 0, until there are so many samples of each contender; then `on_due` is told of the call.
        `device` is the number of the GPU. Another entry for `key` ends it. Returns whether it began."""

    @abc.abstractmethod
    def samples(self, key: int) -> list[tuple[int, float, tuple[int, ...]]]:
        """(contender, seconds, integers of the call) of the samples that are known by now, which are forgotten; NaN seconds of a
        contender that failed where the entry did not. Raises LookupError where there is no trial."""

    @abc.abstractmethod
    def go_on(self, key: int, wanted: tuple[int, ...], period: int) -> None:
        """Has so many more samples taken of each contender. Raises LookupError where there is no trial."""

    @abc.abstractmethod
    def end_trial(self, key: int) -> None:
        """Tries nothing any more for `key`."""

    @abc.abstractmethod
    def table(self) -> dict[int, Entry]:
        """A copy of the table: every key and its entry."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Forgets every entry."""

    @abc.abstractmethod
    def key_of(self, *arguments: Any) -> int:
        """The key of a call: of its integers alone (tensors count as aligned), or of tensors and integers. It has
        sub-buckets where the regime is subdivided, and exact sizes where these have an entry of their own."""


decided_here: contextvars.ContextVar[bool] = contextvars.ContextVar("polytile_decided_here", default=False)


@contextlib.contextmanager
def deciding() -> Iterator[None]:
    """Within the block, kernels that this thread calls are decided in the call, whatever could run in the place of a decision."""
    module = native.module()
    before = module.decide_here(True) if module is not None else False
    token = decided_here.set(True)
    try:
        yield
    finally:
        decided_here.reset(token)
        if module is not None:
            module.decide_here(before)


def holds(fact: tuple[Any, ...], fields: Sequence[int], integers: Sequence[int], pointers: Sequence[int]) -> bool:
    """Whether a LeafFact is so in a call with these key fields, integers and addresses."""
    kind, index, number = fact
    match kind:
        case 0:
            return integers[index] % number == 0
        case 1:
            return integers[index] == number
        case 2:
            return integers[index] >= number
        case 3:
            return pointers[index] % number == 0
        case _:
            return fields[index] == number


class _OncePerKey:
    """Asks `on_miss` once for each key, also when several threads miss it at the same time."""

    def __init__(self, on_miss: OnMiss) -> None:
        self.on_miss = on_miss
        self.lock = locks.lock()
        self.pending: dict[int, threading.RLock] = {}

    def __call__(self, dispatcher: Dispatcher, key: int, arguments: tuple[Any, ...]) -> Entry:
        with self.lock:
            pending = self.pending.setdefault(key, locks.rlock())
        with pending:
            try:
                now = dispatcher.key_of(*arguments)  # the regime may have been subdivided while this thread waited
                entry = dispatcher.get(now)
                if entry is None:
                    counters.add("dispatch_misses")
                    entry = self.on_miss(now, arguments)
                    dispatcher.insert(dispatcher.key_of(*arguments), entry)  # this very decision may subdivide it
                return entry
            finally:
                with self.lock:
                    self.pending.pop(key, None)


class _Reporter:
    """Raises the error of a kernel that returned a code other than 0: a failed check, or minus a GPU driver's error."""

    def __init__(self, name: str, on_error: OnError | None) -> None:
        self.name, self.on_error = name, on_error

    def __call__(self, code: int) -> NoReturn:
        if code < 0:
            launch.failed(self.name, code)
        if self.on_error is not None:
            self.on_error(code)
        raise IndexError(f"kernel {self.name!r}: run-time check {code} failed: an index is out of range.")


_KERNEL = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_long), ctypes.c_long)


def _native_call(entry: Any, pointers: Sequence[int], integers: Sequence[int]) -> Callable[[], int]:
    """The kernel of a native entry with its arguments bound, as ctypes calls it (without the GIL)."""
    if not entry.address:
        raise ValueError("the address of a native entry is 0; it must be that of a loaded kernel")
    function = _KERNEL(entry.address)
    bound = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_long * len(integers))(*integers), entry.threads
    return lambda: int(function(*bound))


class PythonDispatcher(Dispatcher):
    """Dispatcher in Python and ctypes: the same behaviour, about 5 us a call."""

    def __new__(cls, *arguments: Any, **keywords: Any) -> PythonDispatcher:
        return object.__new__(cls)

    def __init__(
        self,
        name: str,
        key: Sequence[int],
        on_miss: OnMiss,
        tensor_key: Sequence[int] = (),
        on_error: OnError | None = None,
        formulas: Sequence[Formula] = (),
        device: int = CPU,
        on_due: OnDue | None = None,
        label: str = "",
    ) -> None:
        self.name, self.key, self.tensor_key = name, tuple(key), tuple(tensor_key)
        self._formulas, self._device = tuple(formulas), device
        for codes, most in ((self.key, regime.DIVISIBLE), (self.tensor_key, regime.ALIGNMENT)):
            for position, code in enumerate(codes):
                if code not in range(most + 1):
                    raise ValueError(f"key code {code} at position {position} is not in 0..{most}")
        self._tensors = len(self.tensor_key) or -1
        self._field_count = regime.count(self.key, self.tensor_key, self._formulas)
        self._resolve = _OncePerKey(on_miss)
        self._report = _Reporter(name, on_error)
        self._table: dict[tuple[int, ...], Any] = {}
        """Entries; None where a regime is subdivided, Ellipsis where nothing is decided."""
        self._on_due = on_due
        self._label = label or name
        self._leaves: tuple[Leaf, ...] | None = None
        self._orders: Orders = {}
        self._notes: list[Note] = []
        self._noted: set[tuple[int, ...]] = set()
        self._left: dict[tuple[int, ...], int] = {}
        self._calls: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._has_exact_sizes: set[tuple[int, ...]] = set()
        """Regimes in which some exact sizes have entries of their own."""

    def __call__(self, *arguments: Any) -> None:
        watched = torch.autograd.profiler.record_function(self._label) if torch.autograd._profiler_enabled() else None
        with watched or contextlib.nullcontext():
            self._call(arguments)

    def _call(self, arguments: tuple[Any, ...]) -> None:
        tensors = len(arguments) - len(self.key)
        if not self._accepts(tensors):
            bad_count(self.name, self._tensors, len(self.key), len(arguments))
        pointers, integers = self._parse(arguments, tensors)
        fields = self._fields_of_call(integers, pointers)
        if self._left and self._waited_for(fields) and self._on_due is not None:
            if self._leaves is None:
                self._on_due(arguments)
            else:
                self._note(fields, integers, pointers)
            fields = self._fields_of_call(integers, pointers)
        self._calls[fields] += fields in self._table
        entry = self._decided(fields) or self._fallback(fields, integers, pointers)
        if entry is None:
            entry = self._resolve(self, regime.pack(fields), arguments)
        if hasattr(entry, "call"):
            entry.call(*arguments)
        else:
            code = _native_call(entry, pointers, integers)()
            if code == DECLINED and entry.otherwise is not None:
                entry.otherwise(*arguments)
            elif code:
                self._report(code)
        self._tensors = tensors

    def _decided(self, fields: tuple[int, ...]) -> Any:
        entry = self._table.get(fields)
        return None if entry is Ellipsis else entry

    def _fallback(self, fields: tuple[int, ...], integers: Sequence[int], pointers: Sequence[int]) -> Any:
        """What runs a call for which nothing is decided; None where `on_miss` is to be asked."""
        if self._leaves is None or decided_here.get():
            return None
        around = regime.fields_of(self.key, integers, self.tensor_key, pointers, self._formulas)
        if around in self._table and self._table[around] is None:
            around = self._within(around, integers, regime.sub_bucket)
        entry = self._decided(around) or self._leaf(fields, integers, pointers)
        if entry is not None and fields not in self._noted:
            self._table.setdefault(fields, Ellipsis)
            self._noted.add(fields)
            self._note(fields, integers, pointers)
        return entry

    def _leaf(self, fields: tuple[int, ...], integers: Sequence[int], pointers: Sequence[int]) -> Any:
        keys = fields, regime.cell_of(fields, self.key), ()
        order = next((self._orders[key] for key in map(pack_words, keys) if key in self._orders), b"")
        for number in order:
            entry, packed = self._leaves[number]  # type: ignore[index]
            if all(holds(fact, fields, integers, pointers) for fact in struct.iter_unpack("3q", packed)):
                return entry
        return None

    def _note(self, fields: tuple[int, ...], integers: Sequence[int], pointers: Sequence[int]) -> None:
        addresses = tuple(pointers) if self.tensor_key else ()
        self._notes.append((regime.pack(fields), tuple(integers), addresses, [*programs.running()]))
        self._wake()

    def reopen(self, key: int) -> None:
        self._put(regime.unpack(key, self._field_count), Ellipsis)

    def is_open(self, key: int) -> bool:
        return self._table.get(regime.unpack(key, self._field_count)) is Ellipsis

    def fall_back(self, leaves: tuple[Leaf, ...], orders: Orders, wake: Callable[[], Any]) -> None:
        self._leaves, self._orders, self._wake = leaves, orders, wake

    def notes(self) -> list[Note]:
        found, self._notes = self._notes, []
        return found

    def insert(self, key: int, entry: Entry | None) -> None:
        if entry is not None and not hasattr(entry, "call") and not entry.address:
            raise ValueError("the address of a native entry is 0; it must be that of a loaded kernel")
        self._put(regime.unpack(key, self._field_count), entry)

    def _put(self, fields: tuple[int, ...], entry: Any) -> None:
        self._table[fields] = entry
        self._noted.discard(fields)
        buckets = regime.buckets_of(fields, self.key)
        if buckets in self._table and regime.has_exact_size(fields, self.key):
            self._has_exact_sizes.add(buckets)

    def watch(self, key: int, calls: int) -> None:
        fields = regime.unpack(key, self._field_count)
        if self._decided(fields) is not None:
            self._left[fields] = calls

    def _waited_for(self, fields: tuple[int, ...]) -> bool:
        left = self._left.get(fields, 0)
        if left:
            self._left[fields] = left - 1
        return left == 1

    def get(self, key: int) -> Entry | None:
        found: Entry | None = self._decided(regime.unpack(key, self._field_count))
        return found

    def calls(self, key: int) -> int:
        return self._calls[regime.unpack(key, self._field_count)]

    def begin_trial(self, key: int, entries: tuple[Entry, ...], samples: int, period: int, device: int) -> bool:
        return False  # calls take as long as small kernels here

    def samples(self, key: int) -> list[tuple[int, float, tuple[int, ...]]]:
        raise LookupError(f"kernel {self.name!r} tries nothing for this key")

    def go_on(self, key: int, wanted: tuple[int, ...], period: int) -> None:
        raise LookupError(f"kernel {self.name!r} tries nothing for this key")

    def end_trial(self, key: int) -> None:
        """There is none."""

    def table(self) -> dict[int, Entry]:
        return {regime.pack(fields): entry for fields, entry in self._table.items() if entry not in (None, Ellipsis)}

    def clear(self) -> None:
        self._table.clear()
        self._calls.clear()
        self._left.clear()
        self._noted.clear()
        self._has_exact_sizes.clear()

    def key_of(self, *arguments: Any) -> int:
        tensors = len(arguments) - len(self.key)
        if tensors != 0 and not self._accepts(tensors):
            bad_count(self.name, self._tensors, len(self.key), len(arguments))
        pointers, integers = self._parse(arguments, tensors)
        pointers = pointers or [0] * len(self.tensor_key)
        return regime.pack(self._fields_of_call(integers, pointers))

    def _fields_of_call(self, integers: Sequence[int], pointers: Sequence[int]) -> tuple[int, ...]:
        """The key of a call: with exact sizes where these have an entry of their own, else with sub-buckets where its regime is
        subdivided, else with buckets."""
        fields = regime.fields_of(self.key, integers, self.tensor_key, pointers, self._formulas)
        subdivided = fields in self._table and self._table[fields] is None
        if not subdivided and fields not in self._has_exact_sizes:
            return fields
        exact = self._within(fields, integers, regime.exact_size)
        if fields in self._has_exact_sizes and exact in self._table:
            return exact
        return self._within(fields, integers, regime.sub_bucket) if subdivided else fields

    def _within(self, fields: tuple[int, ...], integers: Sequence[int], field: Callable[[int], int]) -> tuple[int, ...]:
        bucketed = [n for n, code in zip(integers, self.key, strict=True) if code == regime.BUCKET]
        return regime.within(fields, self.key, bucketed, field)

    def _accepts(self, tensors: int) -> bool:
        if self._tensors >= 0:
            return tensors == self._tensors
        return tensors >= 0 and tensors + len(self.key) <= MAX_ARGUMENTS

    def _parse(self, arguments: Sequence[Any], tensors: int) -> tuple[list[int], list[int]]:
        return _parse(self.name, arguments, tensors, self._device)


def _parse(name: str, arguments: Sequence[Any], tensors: int, device: int) -> tuple[list[int], list[int]]:
    pointers = [slow_pointer(name, i, argument, device) for i, argument in enumerate(arguments[:tensors])]
    integers = [integer(name, tensors + i, argument) for i, argument in enumerate(arguments[tensors:])]
    return pointers, integers


def time_burst(entry: Entry, arguments: Sequence[Any], repeats: int) -> float:
    """Seconds that `repeats` (>= 1) calls of `entry` take, one right after the other, by a monotonic clock.

    `arguments` are the kernel's own: tensors (or None), then integers. Nothing but the kernel is timed: the arguments
    are read before the clock starts and the GIL is released once. Raises IndexError if a call's run-time check fails,
    LaunchFailed where a GPU's driver refuses a launch. Of a GPU kernel it is the time of launching.
    """
    if repeats < 1:
        raise ValueError(f"time_burst was asked for {repeats} repeats; it needs at least 1.")
    given = tuple(arguments)
    tensors = sum(1 for argument in given if argument is None or isinstance(argument, torch.Tensor))
    module = native.module()
    timer = _time_burst_in_python if module is None else module.time_burst
    on_cuda = any(isinstance(argument, torch.Tensor) and argument.is_cuda for argument in given)
    seconds, code = timer("time_burst", entry, given, tensors, repeats, CUDA if on_cuda else CPU)
    if code:
        _Reporter("time_burst", None)(code)
    return float(seconds)


def product_with_epilogue(
    product: NativeEntry, epilogue: Callable[..., None], leading: int, element_size: int, device: int
) -> tuple[Any, int, int] | None:
    """A product that goes to scratch memory on device number `device`, and the kernel that reads it, as one native kernel: what
    keeps it alive, and the address and `threads` of its entry. It declines calls for which the dispatcher `epilogue` has nothing
    native. The product's integers are the first `leading`; its elements have so many bytes. None where calls are not dispatched
    in C."""
    module = native.module()
    if module is None:
        return None
    found: tuple[Any, int, int] | None = module.new_pair(
        product.address, product.threads, epilogue, leading, element_size, device
    )
    return found


def region_seconds(threads: int) -> float:
    """Seconds that an empty parallel region of so many threads takes now; NaN where there is no C extension to time it with, no
    OpenMP runtime, or no core to spare at the moment. About 0.1 ms."""
    module = native.module()
    found = None if module is None else module.region_seconds(threads)
    return math.nan if found is None else float(found)


def _time_burst_in_python(
    name: str, entry: Any, arguments: tuple[Any, ...], tensors: int, repeats: int, device: int
) -> tuple[float, int]:
    pointers, integers = _parse(name, arguments, tensors, device)
    in_python = hasattr(entry, "call")
    call = (lambda: entry.call(*arguments)) if in_python else _native_call(entry, pointers, integers)
    begin = time.perf_counter()
    for _ in range(repeats):
        code = call()
        if code == DECLINED and not in_python and entry.otherwise is not None:
            entry.otherwise(*arguments)
        elif code and not in_python:
            return time.perf_counter() - begin, code
    return time.perf_counter() - begin, 0


def _allocator(device: str) -> Callable[[Sequence[int], Sequence[int], torch.dtype], torch.Tensor]:
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    fast = getattr(guards, f"_empty_strided_{device}", None)
    if fast is not None:
        return fast
    return lambda sizes, strides, dtype: torch.empty_strided(sizes, strides, dtype=dtype, device=device)


empty_strided_cpu = _allocator("cpu")
"""(sizes, strides, dtype) -> new CPU tensor, in half the time of torch.empty_strided where torch has such a helper."""

empty_strided_cuda = _allocator("cuda")
"""The same on the current CUDA device."""

os.register_at_fork(after_in_child=forks.go_on_alone)
