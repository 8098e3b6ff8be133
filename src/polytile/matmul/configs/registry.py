"""The heuristics by family. Each is built once, when first asked for, and shared by all threads.

A package adds a family with `register("hopper", make, serves)`, where `make` returns a Heuristic and `serves(device)` says
whether it serves a GPU with these facts, or replaces one table with `override("cuda", "mm", rows)`. Both affect whatever is
compiled afterwards. Entry points in the group GROUP are called before a family is first looked up, also in `polytile configs`.
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
from polytile.matmul.configs.families import BUILT_IN, built_in
from polytile.matmul.configs.heuristic import Heuristic
from polytile.matmul.configs.records import Record

if TYPE_CHECKING:
    from polytile.runtime.cuda.device import DeviceFacts

    Serves = Callable[[DeviceFacts], bool]

GROUP = "polytile.families"

log = logging.getLogger("polytile.candidates")

_lock = locks.rlock()
_makers: dict[str, Callable[[], Heuristic]] = {family: functools.partial(built_in, family) for family in BUILT_IN}
_built: dict[str, Heuristic] = {}
_serving: dict[str, Serves] = {}


@functools.cache
def _entries() -> Iterator[importlib.metadata.EntryPoint]:
    """The entry points that have not been called yet: one iterator per process, which is consumed once."""
    return iter(importlib.metadata.entry_points(group=GROUP))


def _plugged() -> None:
    """Call the entry points of installed packages, each once, even if they look up families themselves. One that fails is logged
    and skipped."""
    for entry in _entries():
        try:
            entry.load()()
        except Exception as error:
            log.warning("The device families of %s (%s) are left out: %s.", entry.name, entry.value, error)


def families() -> tuple[str, ...]:
    """The names of all families of configs, those of packages among them."""
    with _lock:
        _plugged()
        return tuple(_makers)


def heuristic(family: str) -> Heuristic:
    """The heuristic of a family. Raises ConfigTableError for an unregistered one."""
    with _lock:
        if family not in _makers:
            _plugged()
        if family not in _makers:
            raise ConfigTableError(f"there is no device family {family!r}; there are {', '.join(_makers)}.")
        if family not in _built:
            _built[family] = _makers[family]()
        return _built[family]


def heuristic_of(device: DeviceFacts) -> Heuristic:
    """The heuristic for products on a GPU with these facts: the last registered family that serves it, or the vendor's, whose
    tables also replace those that a registered family lacks."""
    with _lock:
        _plugged()
        return heuristic(next((name for name in reversed(_serving) if _serving[name](device)), device.family))


def register(family: str, make: Callable[[], Heuristic], serves: Serves | None = None) -> None:
    """Register a device family with tables of its own.

    Parameters
    ----------
    family
        Its name, for `polytile configs`.
    make
        Returns its Heuristic; called once, when the family is first asked for.
    serves
        Whether the family serves a GPU, given its DeviceFacts, in place of the vendor's family. None means no GPU.

    Raises
    ------
    ConfigTableError
        If the name is taken, or `make` or `serves` is not callable.
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
    """Remove a registered family. Raises ConfigTableError for a built-in or unknown family."""
    with _lock:
        if family not in _makers or family in BUILT_IN:
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
    """Replace the rows of a family's table immediately, either for good or until the end of a `with` block.

    Raises
    ------
    ConfigTableError
        If there is no such family or table, or the rows are of another kind.
    """
    family_heuristic = heuristic(family)
    return _restored(family_heuristic, name, family_heuristic.replace(name, rows))
