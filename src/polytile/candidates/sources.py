"""Where candidates come from: the interface of a source, and the registry of all sources.

polytile's own sources (own_sources.py) are registered like those of other packages. A package registers its source by
`polytile.register_source`, or names it as an entry point of the group GROUP under the source's own name: it is loaded when
candidates are first gathered. The registry's order is the canonical one; the option `sources` gives another, or leaves some
out.

Problems are defined in their own rooms (`GemmKernel`, `AttentionProblem`). A candidate itself defines its config, its predicted
time, and how it is compiled and launched (candidate.py).
"""

from __future__ import annotations

import functools
import importlib.metadata
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polytile import locks, options
from polytile.errors import SourceError

if TYPE_CHECKING:
    import torch

    from polytile.attention.problem import AttentionProblem
    from polytile.candidates.candidate import Candidate
    from polytile.candidates.inner_kernel import InnerKernel
    from polytile.matmul.gemm_kernel import GemmKernel

log = logging.getLogger("polytile.candidates")

OWN_ORIGINS = dict.fromkeys(("sdpa", "unfused", "padding", "split_k"), "library")
"""The source of each origin that polytile's own candidates have, where it is not the source's name. They are known before
own_sources.py is imported: records are read without it."""

GROUP = "polytile.sources"
"""The entry-point group of packages with sources."""


@dataclass(frozen=True)
class ProductRequest:
    """A product that candidates are asked for.

    kernel   the product with its epilogue: dtypes, layouts, arguments in the order of a call
    name     readable, and a file name
    target   the device. `native`: kernels run on the processor as machine code; otherwise on a GPU, or under Triton's interpreter
    unfused  the epilogue as a kernel of its own, for candidates that only multiply; None without an epilogue
    threads  numbers of threads that kernels of a processor are tried with
    materialised  for a product with prologues: the candidate that stores the operands first, then multiplies by all sources
    """

    kernel: GemmKernel
    name: str
    target: torch.device
    native: bool
    unfused: InnerKernel | None = None
    threads: Sequence[int] = (1,)
    materialised: Candidate | None = None


@dataclass(frozen=True)
class AttentionRequest:
    """An attention that candidates are asked for; see ProductRequest."""

    problem: AttentionProblem
    target: torch.device
    native: bool
    threads: Sequence[int] = (1,)

    @property
    def name(self) -> str:
        return f"{self.problem.family}_{self.problem.digest[:8]}"


class Source:
    """One source of candidates. A subclass sets `name` and overrides the methods for the problems it has candidates for.

    Candidates come in the source's own canonical order, with names that are unique among all candidates of the problem. A
    source without candidates for a problem takes no part in it. If a method raises, the error is logged and the source takes no
    part.
    """

    name: str
    """What the option `sources` calls it."""

    origins: tuple[str, ...] = ()
    """Further origins that its candidates may have."""

    everywhere: bool = False
    """Whether its candidates run at all sizes, aligned or not. If no such source has candidates, the library's take part."""

    def products(self, asked: ProductRequest) -> Sequence[Candidate]:
        """Candidates for a product. Default: none."""
        return ()

    def attentions(self, asked: AttentionRequest) -> Sequence[Candidate]:
        """Candidates for an attention. Default: none."""
        return ()


Gather = Callable[[Source], "Sequence[Candidate]"]

_lock = locks.rlock()
_sources: dict[str, Source] = {}


def register_source(source: Source) -> None:
    """Adds a source of candidates for products and attention, after polytile's own.

    Programs that are compiled from now on ask it. The option `sources` then takes its name. docs/extending.md has an example.

    Parameters
    ----------
    source
        An instance of a subclass of `polytile.candidates.sources.Source`. One of the same class again takes its place.

    Raises
    ------
    SourceError
        For anything else, and for a name that another source has, or that is no word.
    """
    if not isinstance(source, Source):
        raise SourceError(f"polytile.register_source takes a Source (docs/extending.md); it was given {source!r}.")
    name = getattr(source, "name", "")
    if not (isinstance(name, str) and name and name.replace("_", "").isalnum()):
        raise SourceError(f"the source {type(source).__name__} is named {name!r}; choose a name of letters, digits and _.")
    with _lock:
        known = _sources.get(name)
        if known is not None and type(known) is not type(source):
            raise SourceError(f"there is a source {name!r} already, {type(known).__qualname__}; choose another name.")
        _sources[name] = source
        options.allow("sources", name)


def unregister(name: str) -> None:
    """Removes a source; programs that have its candidates keep them. Raises SourceError for one that is not registered."""
    with _lock:
        if _sources.pop(name, None) is None:
            raise SourceError(f"there is no source {name!r}; there are {', '.join(_sources)}.")
        options.disallow("sources", name)


@functools.cache
def _entries() -> dict[str, importlib.metadata.EntryPoint]:
    """The entry points that have not been loaded, by name."""
    return {entry.name: entry for entry in importlib.metadata.entry_points(group=GROUP)}


def _load_entries() -> None:
    """Registers the sources of installed packages, each once. One that fails is logged and left out."""
    waiting = _entries()
    while waiting:
        name, entry = waiting.popitem()
        try:
            source = entry.load()
            register_source(source() if isinstance(source, type) else source)
        except Exception as error:
            log.warning("The source %s (%s) is left out: %s.", name, entry.value, error)


def registered() -> tuple[Source, ...]:
    """All sources in canonical order: polytile's own, then those of packages."""
    with _lock:
        _load_entries()
        return tuple(sorted(_sources.values(), key=lambda source: not _own(source)))


def in_order(names: Sequence[str] = ()) -> tuple[Source, ...]:
    """The sources of these names, in their order, or all in canonical order without names. Names of sources that no longer
    exist are skipped."""
    everything = registered()
    by_name = {source.name: source for source in everything}
    return tuple(by_name[name] for name in names if name in by_name) if names else everything


def chosen() -> tuple[str, ...]:
    """The names of the sources that the option `sources` selects, in the order in which they win ties."""
    return tuple(source.name for source in in_order(options.parts(options.get("sources"))))


def brought() -> tuple[str, ...]:
    """The names of other packages' sources in use. They are part of the key of stored programs."""
    return tuple(source.name for source in in_order(options.parts(options.get("sources"))) if not _own(source))


def source_of(origin: str) -> str:
    """The name of the source whose candidates have this origin; the origin itself if no source declares it."""
    if (own := OWN_ORIGINS.get(origin)) is not None:
        return own
    with _lock:
        return next((source.name for source in _sources.values() if origin in source.origins), origin)


def gather(sources: Sequence[Source], gathered: Gather, fallback: Source, always: bool = False) -> tuple[Candidate, ...]:
    """The candidates of all sources in their order. Those of `fallback` come last if it was left out and no source has any that
    run everywhere, or `always`."""
    answers = [(source, _asked(source, gathered)) for source in sources]
    if fallback not in sources and (always or not any(own and source.everywhere for source, own in answers)):
        answers.append((fallback, gathered(fallback)))
    return tuple(candidate for _, own in answers for candidate in own)


def _own(source: Source) -> bool:
    return type(source).__module__.startswith("polytile.")


def _asked(source: Source, gathered: Gather) -> Sequence[Candidate]:
    """The source's answer. An error of one of polytile's own sources is raised; one of another package's source is logged."""
    if _own(source):
        return gathered(source)
    try:
        return tuple(gathered(source))
    except Exception as error:
        log.warning("The source %r takes no part: %s: %s", source.name, type(error).__name__, error)
        return ()
