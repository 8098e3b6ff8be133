"""The interface of a kernel's dispatch table: the callable that picks a compiled form by the arguments of the call.

    dispatch = new_dispatcher(Interface("softmax", key=[1, 1, 0], on_miss=choose))    # launcher.py
    dispatch(x, out, rows, columns, stride)     # tensors (or None) first, then integers; returns None

`key` holds one code per integer argument: 0 ignores it, 1 keys on its regime bucket, 2 on its value, 3 on whether 16
divides it (regime.py). `formulas` over the integers (formula.py) add their values to the key. `tensor_key` holds one
code per tensor: 0 ignores it; 1, 2 and 3 key on the alignment of its data: to 64 bytes, to 16 bytes, or to the largest
power of two up to 16.

The table maps a regime key to an entry: a native kernel, which is called without the GIL, or a Python callable. The
first call of an unknown key asks `on_miss(key, arguments)` for an entry, once for all threads, and stores the answer.
After `fall_back` such a call runs one of the given leaves instead, and a note of it goes to the thread that decides.

There are two implementations. `launcher.c` takes less than 0.1 us a call. `PythonDispatcher` takes about 5 us and serves
machines on which no C extension can be built. Both release the GIL around every native kernel, as torch does for every
operator: the release costs 36 ns of a hit's 76 ns, and the run time of a kernel is not known beforehand.
"""

from __future__ import annotations

import abc
import contextlib
import contextvars
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from polytile.runtime import native
from polytile.runtime.arguments import CPU
from polytile.runtime.formula import Formula

MAX_ARGUMENTS = 4096
DECLINED = -(1 << 63)
OnMiss = Callable[[int, tuple[Any, ...]], Any]
OnError = Callable[[int], Any]
OnDue = Callable[[tuple[Any, ...]], Any]


class NativeEntry(Protocol):
    """A loaded kernel: `long kernel(void* const* pointers, const long* integers, long threads)` at `address`.

    A kernel that returns DECLINED has done nothing; `otherwise` then runs the call.
    """

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
"""Kinds of LeafFact: the number divides an integer; equals it; is at most it; divides the address of a tensor's data;
equals a key field."""

LeafFact = tuple[int, int, int]
"""(kind, index of the integer, tensor or key field, number)"""

Leaf = tuple[Entry, bytes]
"""An entry for calls without a decision, and the LeafFacts under which it is correct, packed by `pack_words`."""

Orders = dict[bytes, bytes]
"""Leaf numbers in order of preference: by the packed fields of a key, by those of a cell (regime.py), and, under the
empty key, for all other calls."""

Note = tuple[int, tuple[int, ...], tuple[int, ...], list[str]]
"""A call for the deciding thread to look at: its key, its integers, the addresses of its tensors' data if they matter,
and the file names of the calling programs (programs.py)."""


def pack_words(words: Iterable[int]) -> bytes:
    """Concatenates integers as signed 64-bit little-endian words."""
    return b"".join(word.to_bytes(8, "little", signed=True) for word in words)


@dataclass(frozen=True)
class Interface:
    """The kernel behind a dispatcher: the arguments of its calls, and what they ask.

    Attributes
    ----------
    name
        Name of the kernel, for error messages.
    key
        One code per integer argument; see the module's docstring.
    on_miss
        `on_miss(key, arguments)` returns the entry for a key that the table does not hold.
    tensor_key
        One code per tensor argument; empty if no property of a tensor matters.
    on_error
        `on_error(code)` may raise the error of a failed run-time check. If it returns, or is None, the call raises
        IndexError.
    formulas
        Formulas over the integers whose values are key fields.
    device
        CPU or CUDA (arguments.py): where the data of the tensors must be.
    on_due
        `on_due(arguments)` runs before each call that `watch` asked for. With leaves, the call is noted instead.
    label
        Name in torch's profiler; `name` if empty.
    """

    name: str
    key: Sequence[int]
    on_miss: OnMiss
    tensor_key: Sequence[int] = ()
    on_error: OnError | None = None
    formulas: Sequence[Formula] = ()
    device: int = CPU
    on_due: OnDue | None = None
    label: str = ""


class Dispatcher(abc.ABC):
    """A kernel's dispatch table; `new_dispatcher` (launcher.py) creates one. See the module's docstring."""

    name: str
    key: tuple[int, ...]
    tensor_key: tuple[int, ...]

    @abc.abstractmethod
    def __call__(self, *arguments: Any) -> None:
        """Runs the kernel on tensors (or None), followed by the integers that `key` describes."""

    @abc.abstractmethod
    def insert(self, key: int, entry: Entry | None) -> None:
        """Sets the entry for `key`.

        None subdivides the regime: its calls have keys of sub-buckets from then on (regime.py). An entry for a key of
        exact sizes takes these sizes out of their regime, which must have an entry or be subdivided.
        """

    @abc.abstractmethod
    def reopen(self, key: int) -> None:
        """Removes the decision for `key`. Calls at exact sizes then run as their regime does, once that is decided."""

    @abc.abstractmethod
    def is_open(self, key: int) -> bool:
        """Whether `key` has no decision although calls have come or it was reopened."""

    @abc.abstractmethod
    def fall_back(self, leaves: tuple[Leaf, ...], orders: Orders, wake: Callable[[], Any]) -> None:
        """Makes calls without a decision run a leaf instead of asking `on_miss`: the first, in the order given for
        their key, whose facts hold. `wake()` is called when `notes` has something new."""

    @abc.abstractmethod
    def notes(self) -> list[Note]:
        """Returns and clears the notes: the first call of each undecided key, and the calls that `watch` asked for."""

    @abc.abstractmethod
    def watch(self, key: int, calls: int) -> None:
        """Calls `on_due` once, `calls` calls of the entry for `key` from now; 0 cancels."""

    @abc.abstractmethod
    def get(self, key: int) -> Entry | None:
        """The entry for `key`, or None. A subdivided or undecided regime has none."""

    @abc.abstractmethod
    def calls(self, key: int) -> int:
        """Number of calls that the entries of `key` have served, without the call that missed."""

    @abc.abstractmethod
    def begin_trial(self, key: int, entries: tuple[Entry, ...], samples: int, period: int, device: int) -> bool:
        """Starts a trial of `entries` on live calls of `key`.

        Once in `period` calls a call runs one of the contenders 1, 2, … in place of the entry; the next call is timed
        with the entry itself, as contender 0. After `samples` samples of each contender, `on_due` is called. Setting
        another entry for `key` ends the trial.

        Parameters
        ----------
        key : int
            The packed key.
        entries : tuple of Entry
            Contenders 1, 2, ….
        samples : int
            Number of samples to take of each contender.
        period : int
            Number of calls per contender call.
        device : int
            Index of the GPU.

        Returns
        -------
        bool
            Whether the trial started.
        """

    @abc.abstractmethod
    def samples(self, key: int) -> list[tuple[int, float, tuple[int, ...]]]:
        """Returns and clears the finished samples, as (contender, seconds, integers of the call). The seconds are NaN
        if a contender failed where the entry did not. Raises LookupError without a trial."""

    @abc.abstractmethod
    def go_on(self, key: int, wanted: tuple[int, ...], period: int) -> None:
        """Takes `wanted[i]` more samples of contender i. Raises LookupError without a trial."""

    @abc.abstractmethod
    def end_trial(self, key: int) -> None:
        """Ends the trial for `key`, if there is one."""

    @abc.abstractmethod
    def table(self) -> dict[int, Entry]:
        """A copy of the table: every key and its entry."""

    @abc.abstractmethod
    def clear(self) -> None:
        """Removes every entry."""

    @abc.abstractmethod
    def key_of(self, *arguments: Any) -> int:
        """The key of a call, given its integers alone (tensors then count as aligned) or its tensors and integers. It
        holds sub-buckets if the regime is subdivided, and exact sizes if these have their own entry."""


decided_here: contextvars.ContextVar[bool] = contextvars.ContextVar("polytile_decided_here", default=False)


@contextlib.contextmanager
def deciding() -> Iterator[None]:
    """Makes kernels that this thread calls within the block decide during the call, even if a leaf could run instead."""
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
    """Whether a LeafFact holds for a call with these key fields, integers and addresses."""
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
