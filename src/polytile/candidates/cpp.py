"""Generated C++ kernels as Candidates: the source is made when first asked for, compiled in the pool, and loaded when needed."""

from __future__ import annotations

import functools
import json
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from polytile import locks
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import NativeEntry
from polytile.candidates.handles import NativeHandle
from polytile.codegen.function_names import ENTRY, renamed_with_alias, symbol_of
from polytile.errors import CandidateRejected
from polytile.problem import Config, digest
from polytile.runtime import compile as compiler
from polytile.runtime import toolchain
from polytile.runtime.cache import current, remembered
from polytile.version import source_digest

MOST_COSTS = 64
"""For how many sizes a candidate remembers its cost."""


@dataclass(frozen=True)
class SourceRecord:
    """What is known of a candidate's sources without generating them: their digest, and the keys of their objects."""

    source_hash: str
    keys: tuple[str, ...]

    @staticmethod
    def of(recipe: str, write: Callable[[], Sequence[str]]) -> SourceRecord:
        """The cache directory remembers it by the recipe and all that turns recipes to sources and objects, as generating a
        source takes milliseconds. `write` generates, and returns digest and keys; what it raises is not remembered."""
        return SourceRecord._read(remembered(SourceRecord._name(recipe), lambda: " ".join(write())))

    @staticmethod
    def _read(text: str) -> SourceRecord:
        source_hash, *keys = text.split()
        return SourceRecord(source_hash, tuple(keys))

    @staticmethod
    def known(recipe: str) -> SourceRecord | None:
        """The same, if the cache directory has it."""
        text = current().read(SourceRecord._name(recipe))
        return None if text is None else SourceRecord._read(text.decode())

    @staticmethod
    def _name(recipe: str) -> str:
        made_from = [source_digest(), toolchain.find().identity, *compiler.openmp_flags(), recipe]
        return f"texts/{digest(json.dumps(made_from), 24)}"


@dataclass(frozen=True)
class Prediction:
    """What is known of a candidate ahead of any measurement: whether it can run, its seconds, and the terms that these are the
    sum of, each a function of the concrete sizes."""

    valid: Callable[[Mapping[str, int]], bool]
    cost: Callable[[Mapping[str, int]], float]
    terms: Callable[[Mapping[str, int]], dict[str, float]] = lambda sizes: {}


class CompiledCandidate(Candidate):
    """A kernel of one or more translation units. `recipe` names what the source is made from: it is equal for equal sources, and
    cheaper to make."""

    origin = "cpp"

    def __init__(self, name: str, config: Config, kernel_name: str, prediction: Prediction, recipe: str) -> None:
        self.name, self.config, self.recipe, self.kernel_name = name, config, recipe, kernel_name
        self._prediction = prediction
        self._lock = locks.lock()
        self._compilations: tuple[compiler.Compilation, ...] = ()
        self._cost = functools.lru_cache(MOST_COSTS)(lambda sizes: prediction.cost(dict(sizes)))
        self._cached_in: Path | None = None
        """The cache directory in which its objects were found."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.kernel_name}: {self.name})"

    @property
    @abstractmethod
    def units(self) -> Sequence[tuple[str, Callable[[], str]]]:
        """A name for each translation unit, and what makes its text."""

    @abstractmethod
    def _hash(self) -> str:
        """The source hash, of the generated text before its functions are renamed."""

    @property
    def _full_recipe(self) -> str:
        return f"{type(self).__name__} {self.recipe}"

    @cached_property
    def _source_record(self) -> SourceRecord:
        return SourceRecord.of(self._full_recipe, self._write)

    def is_cached(self) -> bool:
        """Whether the cache directory has its objects, so that nothing is to be generated or compiled."""
        place = current().root
        if self._cached_in != place:
            record = SourceRecord.known(self._full_recipe)
            if record is None or not all(compiler.has_key(key) for key in record.keys):
                return False
            self._cached_in = place
        return True

    def _write(self) -> Sequence[str]:
        texts = [text() for _, text in self.units]
        return self._hash(), *map(compiler.key_of_cpp, texts)

    @cached_property
    def source_hash(self) -> str:
        return self._source_record.source_hash

    def _compile(self) -> tuple[compiler.Compilation, ...]:
        """Has the translation units compiled in the background."""
        pairs = zip(self.units, self._source_record.keys, strict=True)
        return tuple(compiler.compile_cpp(name, text, key=key) for (name, text), key in pairs)

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return self._prediction.valid(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        """Each link of the selector asks, at the same sizes, and so do the library's candidates beside it."""
        return self._cost(tuple(sizes.items()))

    def terms(self, sizes: Mapping[str, int]) -> dict[str, float]:
        return self._prediction.terms(sizes)

    def prepare(self) -> None:
        with self._lock:
            if not self._compilations:
                self._compilations = self._compile()

    def ready(self) -> bool:
        promises = self._compilations
        return bool(promises) and all(promise.done() and promise.exception() is None for promise in promises)

    def failed(self) -> bool:
        return any(promise.done() and promise.exception() is not None for promise in self._compilations)

    @property
    def source_path(self) -> str:
        """Where the sources can be read once compilation was asked for."""
        return " ".join(str(promise.result().source) for promise in self._compilations)

    @property
    def compile_seconds(self) -> float | None:
        """Seconds in the compiler; None before it is done, and where an earlier process did it."""
        return sum(promise.result().seconds for promise in self._compilations) or None if self.ready() else None

    @abstractmethod
    def handle(self) -> NativeHandle: ...

    @property
    def is_portable(self) -> bool:
        return True

    def portable(self) -> NativeHandle:
        return self.handle()

    @property
    def threads(self) -> int:
        """The number of threads that the kernel runs on."""
        return int(self.config.get("threads", 1) or 1)

    @property
    def otherwise(self) -> Callable[..., None] | None:
        """What calls that the kernel declines come to: CandidateRejected."""
        return self._decline if self.declines else None

    def _decline(self, *args: object) -> None:
        raise CandidateRejected(f"kernel {self.kernel_name!r}: {self.name} {self.declines}")

    def libraries(self) -> list[compiler.Library]:
        """The loaded translation units, in order; waits until they are compiled. Raises CompileFailed or CompilerMissing."""
        self.prepare()
        return [promise.result() for promise in self._compilations]


class CppCandidate(CompiledCandidate):
    """A kernel whose `make_source()` gives the translation unit with the entry point `polytile_kernel`. Candidates that differ
    only in threads share one source and one library."""

    def __init__(
        self, name: str, config: Config, kernel_name: str, prediction: Prediction, recipe: str, make_source: Callable[[], str]
    ) -> None:
        super().__init__(name, config, kernel_name, prediction, recipe)
        self._make_source = make_source

    @cached_property
    def source(self) -> str:
        return self._make_source()

    @property
    def units(self) -> Sequence[tuple[str, Callable[[], str]]]:
        symbol = symbol_of(self.kernel_name, self.name.removesuffix(f" t{self.threads}"))
        return ((self.kernel_name, lambda: renamed_with_alias(self.source, symbol)),)

    def _hash(self) -> str:
        """Comments left out: the same kernel from another operator is the same."""
        return digest("\n".join(line for line in self.source.splitlines() if not line.startswith("//")))

    def entry(self) -> NativeEntry:
        (library,) = self.libraries()
        return NativeEntry(library.address(ENTRY), self.threads, library, otherwise=self.otherwise)

    def handle(self) -> NativeHandle:
        """Where another process finds the kernel; the file is compiled and whole."""
        (library,) = self.libraries()
        return NativeHandle(str(compiler.verified(library).path), ENTRY, self.threads)
