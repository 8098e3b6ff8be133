"""Measurements by kernel, under names for people.

A store knows a kernel by its digest alone. Names come from the source files beside the store, which are named after the
kernel's operators. Without them a kernel is called family_digest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from polytile import options
from polytile.errors import StoreError
from polytile.problem import Problem
from polytile.runtime import cache
from polytile.store.place import Place, Server
from polytile.store.reading import Record, grouped, records

SOURCE = re.compile(r"(?P<name>.+_(?P<digest>[0-9a-f]{8}))-[0-9a-f]{24}\.(cpp|py)")
SOURCES = ("kernels/*.cpp", "cubins/*.py")
"""Generated sources in a cache directory: for processors, and for GPUs."""


@dataclass(frozen=True)
class Kernel:
    """All measurements of one kernel, oldest first, and its names."""

    digest: str
    names: tuple[str, ...]
    records: tuple[Record, ...]

    @property
    def name(self) -> str:
        return self.names[0]

    @property
    def size_names(self) -> tuple[str, ...]:
        return tuple(name for name, _ in self.records[0].measurement.problem.sizes)

    def matches(self, word: str) -> bool:
        return any(word in name for name in self.names) or self.digest.startswith(word)


def kernels(store: Place) -> list[Kernel]:
    """Every kernel of the store, by name. Raises StoreError where the store cannot be read."""
    by_digest = grouped(records(store), lambda one: one.problem.kernel)
    known = names_beside(store)
    made = [Kernel(digest, names_of(rows[0].measurement.problem, known), tuple(rows)) for digest, rows in by_digest.items()]
    return sorted(made, key=lambda kernel: kernel.name)


def matching(store: Place, word: str) -> list[Kernel]:
    """The kernels whose name has `word` in it or whose digest begins with it. Raises StoreError where there is none."""
    everything = kernels(store)
    matches = [kernel for kernel in everything if kernel.matches(word)]
    if not matches:
        there = ", ".join(kernel.name for kernel in everything) or "none at all"
        raise StoreError(f"the store {store} has no measurement of a kernel called {word!r}; it has {there}.")
    return matches


def meant_by(word: str, matches: Sequence[Kernel]) -> Sequence[Kernel]:
    """Those of the kernels matching `word` that it may mean: the one of that very name, else those whose name or digest begins
    with it, else all."""
    exactly = [kernel for kernel in matches if word in (*kernel.names, kernel.digest)]
    beginning = [kernel for kernel in matches if any(name.startswith(word) for name in (*kernel.names, kernel.digest))]
    return exactly or beginning or matches


def shortest(kernel: Kernel, others: Sequence[Kernel]) -> str:
    """The shortest beginning of its digest, of four digits or more, that means this one of the kernels alone."""
    beginnings = (kernel.digest[:length] for length in range(4, len(kernel.digest)))
    return next((word for word in beginnings if [k for k in others if k.matches(word)] == [kernel]), kernel.digest)


def names_beside(store: Place) -> Mapping[str, Sequence[str]]:
    """First digits of a kernel's digest → names, from the generated sources beside the store, or, of a server, in
    this machine's cache directory."""
    names: dict[str, list[str]] = {}
    beside = cache.within(options.cache_dir()) if isinstance(store, Server) else store.parent
    for source in sorted(path for pattern in SOURCES for path in beside.glob(pattern)):
        match = SOURCE.fullmatch(source.name)
        if match and match["name"] not in names.setdefault(match["digest"], []):
            names[match["digest"]].append(match["name"])
    return names


def names_of(problem: Problem, known: Mapping[str, Sequence[str]]) -> tuple[str, ...]:
    """What the kernel of a problem is called, as `names_beside` knows it."""
    digest = problem.kernel[:8]
    return tuple(known.get(digest, ())) or (f"{problem.family}_{digest}",)
