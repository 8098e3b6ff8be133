"""The dispatcher in Python and ctypes, for machines on which `launcher.c` cannot be built; about 5 us a call."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import struct
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from polytile import locks
from polytile.counters import counters
from polytile.errors import IndexOutOfRange
from polytile.runtime import programs, regime
from polytile.runtime.arguments import bad_count, integer, slow_pointer
from polytile.runtime.cuda import launch
from polytile.runtime.dispatcher import (
    DECLINED,
    MAX_ARGUMENTS,
    Dispatcher,
    Entry,
    Interface,
    Leaf,
    Note,
    OnError,
    OnMiss,
    Orders,
    decided_here,
    holds,
    pack_words,
)


class OncePerKey:
    """Asks `on_miss` once for each key, even if several threads miss it at the same time."""

    def __init__(self, on_miss: OnMiss) -> None:
        self.on_miss = on_miss
        self.lock = locks.lock()
        self.pending: dict[int, threading.RLock] = {}

    def __call__(self, dispatcher: Dispatcher, key: int, arguments: tuple[Any, ...]) -> Entry:
        with self.lock:
            pending = self.pending.setdefault(key, locks.rlock())
        with pending:
            try:
                now = dispatcher.key_of(*arguments)  # another thread may have subdivided the regime meanwhile
                entry = dispatcher.get(now)
                if entry is None:
                    counters.add("dispatch_misses")
                    entry = self.on_miss(now, arguments)
                    dispatcher.insert(dispatcher.key_of(*arguments), entry)  # `on_miss` itself may have subdivided it
                return entry
            finally:
                with self.lock:
                    self.pending.pop(key, None)


class Reporter:
    """Raises the error of a kernel that returned a code other than 0: a failed check, or a GPU driver's error, negated."""

    def __init__(self, name: str, on_error: OnError | None) -> None:
        self.name, self.on_error = name, on_error

    def __call__(self, code: int) -> NoReturn:
        if code < 0:
            launch.failed(self.name, code)
        if self.on_error is not None:
            self.on_error(code)
        raise IndexOutOfRange(f"kernel {self.name!r}: run-time check {code} failed: an index is out of range.")


_KERNEL = ctypes.CFUNCTYPE(ctypes.c_long, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_long), ctypes.c_long)


def native_call(entry: Any, pointers: Sequence[int], integers: Sequence[int]) -> Callable[[], int]:
    """Binds the arguments of a native kernel to a ctypes call, which releases the GIL. Raises ValueError for an entry
    whose address is 0."""
    if not entry.address:
        raise ValueError("the address of a native entry is 0; it must be that of a loaded kernel")
    function = _KERNEL(entry.address)
    bound = (ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_long * len(integers))(*integers), entry.threads
    return lambda: int(function(*bound))


class PythonDispatcher(Dispatcher):
    """A Dispatcher in Python and ctypes. Behaves like the C one, at about 5 us a call."""

    def __init__(self, interface: Interface) -> None:
        self.name, self.key, self.tensor_key = interface.name, tuple(interface.key), tuple(interface.tensor_key)
        self._formulas, self._device = tuple(interface.formulas), interface.device
        for codes, most in ((self.key, regime.DIVISIBLE), (self.tensor_key, regime.ALIGNMENT)):
            for position, code in enumerate(codes):
                if code not in range(most + 1):
                    raise ValueError(f"key code {code} at position {position} is not in 0..{most}")
        self._tensors = len(self.tensor_key) or -1
        self._field_count = regime.count(self.key, self.tensor_key, self._formulas)
        self._resolve = OncePerKey(interface.on_miss)
        self._report = Reporter(self.name, interface.on_error)
        self._table: dict[tuple[int, ...], Any] = {}
        """Maps fields to an entry, to None for a subdivided regime, or to Ellipsis for an undecided one."""
        self._on_due, self._label = interface.on_due, interface.label or self.name
        self._leaves: tuple[Leaf, ...] | None = None
        self._orders: Orders = {}
        self._notes: list[Note] = []
        self._noted: set[tuple[int, ...]] = set()
        self._calls_left: dict[tuple[int, ...], int] = {}
        self._calls: collections.Counter[tuple[int, ...]] = collections.Counter()
        self._has_exact_sizes: set[tuple[int, ...]] = set()
        """Regimes that contain exact sizes with their own entries."""

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
        if self._calls_left and self._is_due(fields) and self._on_due is not None:
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
            code = native_call(entry, pointers, integers)()
            if code == DECLINED and entry.otherwise is not None:
                entry.otherwise(*arguments)
            elif code:
                self._report(code)
        self._tensors = tensors

    def _decided(self, fields: tuple[int, ...]) -> Any:
        entry = self._table.get(fields)
        return None if entry is Ellipsis else entry

    def _fallback(self, fields: tuple[int, ...], integers: Sequence[int], pointers: Sequence[int]) -> Any:
        """The entry for a call without a decision; None if `on_miss` must be asked."""
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
        taken, self._notes = self._notes, []
        return taken

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
            self._calls_left[fields] = calls

    def _is_due(self, fields: tuple[int, ...]) -> bool:
        left = self._calls_left.get(fields, 0)
        if left:
            self._calls_left[fields] = left - 1
        return left == 1

    def get(self, key: int) -> Entry | None:
        entry: Entry | None = self._decided(regime.unpack(key, self._field_count))
        return entry

    def calls(self, key: int) -> int:
        return self._calls[regime.unpack(key, self._field_count)]

    def begin_trial(self, key: int, entries: tuple[Entry, ...], samples: int, period: int, device: int) -> bool:
        return False  # calls are too slow to compare small kernels

    def samples(self, key: int) -> list[tuple[int, float, tuple[int, ...]]]:
        raise LookupError(f"kernel {self.name!r} has no trial for this key")

    def go_on(self, key: int, wanted: tuple[int, ...], period: int) -> None:
        raise LookupError(f"kernel {self.name!r} has no trial for this key")

    def end_trial(self, key: int) -> None:
        """There is no trial to end."""

    def table(self) -> dict[int, Entry]:
        return {regime.pack(fields): entry for fields, entry in self._table.items() if entry not in (None, Ellipsis)}

    def clear(self) -> None:
        self._table.clear()
        self._calls.clear()
        self._calls_left.clear()
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
        """Key fields of a call: exact sizes if these have their own entry, else sub-buckets if the regime is
        subdivided, else buckets."""
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
        return parse_arguments(self.name, arguments, tensors, self._device)


def parse_arguments(name: str, arguments: Sequence[Any], tensors: int, device: int) -> tuple[list[int], list[int]]:
    """The addresses of the first `tensors` arguments, and the integers after them. Raises what `slow_pointer` and `integer`
    raise."""
    pointers = [slow_pointer(name, i, argument, device) for i, argument in enumerate(arguments[:tensors])]
    integers = [integer(name, tensors + i, argument) for i, argument in enumerate(arguments[tensors:])]
    return pointers, integers
