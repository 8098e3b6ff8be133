"""The heuristics by family: each built once, when first asked for, and shared by all threads.

A package adds a family with `register("hopper", make, serves)`, `make` returning a Heuristic and `serves(device)` saying whether
it is for a GPU with these facts, or replaces one table with `override("cuda", "mm", rows)`. Both count for whatever is compiled
after. What an installed package names as an entry point of the group GROUP is called before a family is first looked for, in
`polytile configs` too.
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from polytile import locks
from polytile.errors import ConfigTableError
from polytile.matmul.configs.families import cpu, cuda, rocm, xpu
from polytile.matmul.configs.heuristic import Heuristic
from polytile.matmul.configs.records import Record

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

    Serves = Callable[[DeviceFacts], bool]

GROUP = "polytile.families"

log = logging.getLogger("polytile.candidates")

_lock = locks.rlock()
_makers: dict[str, Callable[[], Heuristic]] = {"cpu": cpu, "cuda": cuda, "rocm": rocm, "xpu": xpu}
_built: dict[str, Heuristic] = {}
_serving: dict[str, Serves] = {}


@functools.cache
def _entries() -> Iterator[importlib.metadata.EntryPoint]:
    """Those that have not been called: one iterator for the process, which nobody goes through twice."""
    return iter(importlib.metadata.entry_points(group=GROUP))


def _plugged() -> None:
    """Calls what installed packages have to say, each once, though it may ask for families itself; one that fails is told and
    left out."""
    for entry in _entries():
        try:
            entry.load()()
        except Exception as error:
            log.warning("The device families of %s (%s) are left out: %s.", entry.name, entry.value, error)


def families() -> tuple[str, ...]:
    """The names of all families."""
    with _lock:
        _plugged()
        return tuple(_makers)


def heuristic(family: str) -> Heuristic:
    """The heuristic of a family. Raises ConfigTableError for one that is not registered."""
    with _lock:
        if family not in _makers:
            _plugged()
        if family not in _makers:
            raise ConfigTableError(f"there is no device family {family!r}; there are {', '.join(_makers)}.")
        if family not in _built:
            _built[family] = _makers[family]()
        return _built[family]


def heuristic_of(device: DeviceFacts) -> Heuristic:
    """The heuristic that products on a GPU with these facts follow: of the registered families that serve it the last, else its
    maker's, whose tables stand in for those that a registered one lacks."""
    with _lock:
        _plugged()
        return heuristic(next((name for name in reversed(_serving) if _serving[name](device)), device.family))


def register(family: str, make: Callable[[], Heuristic], serves: Serves | None = None) -> None:
    """Adds a family of devices with tables of its own.

    Parameters
    ----------
    family
        Its name, for `polytile configs`.
    make
        Makes its Heuristic; called once, when the family is first asked for.
    serves
        Whether the family serves a GPU, given its DeviceFacts, in place of the maker's family. None means no GPU.

    Raises
    ------
    ConfigTableError
        The name is taken, or `make` or `serves` cannot be called.
    """
    if not callable(make) or not (serves is None or callable(serves)):
        raise ConfigTableError(f"family {family!r} takes functions as make and serves; it was given {make!r} and {serves!r}.")
    with _lock:
        if family in _makers:
            raise ConfigTableError(f"the device family {family!r} exists; override its tables or choose another name.")
        _makers[family] = make
        if serves is not None:
            _serving[family] = serves


def unregister(family: str) -> None:
    """Removes a registered family. Raises ConfigTableError for one that comes with polytile, and for one that is not there."""
    with _lock:
        if family not in _makers or _makers[family] in (cpu, cuda, rocm, xpu):
            raise ConfigTableError(f"the device family {family!r} was not registered from outside and stays as it is.")
        del _makers[family]
        _serving.pop(family, None)
        _built.pop(family, None)


@contextmanager
def _restored(family_heuristic: Heuristic, name: str, before: tuple[Record, ...]) -> Iterator[None]:
    try:
        yield
    finally:
        family_heuristic.replace(name, before)


def override(family: str, name: str, rows: Iterable[Record]) -> AbstractContextManager[None]:
    """Replaces the rows of a family's table, at once: for good, or until the end of a `with` block. Raises ConfigTableError for a
    family or table that is not there, and for rows of another kind."""
    family_heuristic = heuristic(family)
    return _restored(family_heuristic, name, family_heuristic.replace(name, rows))
