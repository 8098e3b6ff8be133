"""A generated C++ kernel as a Candidate: source made when first asked for, compiled in the pool, loaded when needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property

from polytile import locks
from polytile.candidates.candidate import NativeEntry, NativeHandle
from polytile.errors import PolytileError
from polytile.problem import Config, digest
from polytile.runtime import compile as compiler

ENTRY = "polytile_kernel"


class CppCandidate:
    """`make_source()` gives the translation unit whose entry point is `polytile_kernel`; `valid` and `cost` are functions of
    the concrete sizes. Candidates that differ in threads alone share one source and one library. `recipe` names what the
    source is made from, equal for equal sources and cheaper than they are."""

    origin = "cpp"

    def __init__(
        self,
        name: str,
        config: Config,
        kernel_name: str,
        make_source: Callable[[], str],
        valid: Callable[[Mapping[str, int]], bool],
        cost: Callable[[Mapping[str, int]], float],
        recipe: str,
    ) -> None:
        self.recipe = recipe
        self._name, self._config, self._kernel_name = name, config, kernel_name
        self._make_source, self._valid, self._cost = make_source, valid, cost
        self._lock = locks.lock()
        self._compilation: compiler.Compilation | None = None

    def __repr__(self) -> str:
        return f"CppCandidate({self._kernel_name}: {self.name})"

    @property
    def name(self) -> str:
        return self._name

    @property
    def config(self) -> Config:
        return self._config

    @cached_property
    def source(self) -> str:
        return self._make_source()

    @cached_property
    def source_hash(self) -> str:
        """Comments left out: the same kernel from another operator is the same."""
        return digest("\n".join(line for line in self.source.splitlines() if not line.startswith("//")))

    @property
    def source_path(self) -> str:
        """Where the source can be read once compilation was asked for."""
        return str(self._compilation.result().source) if self._compilation is not None else ""

    @property
    def compile_seconds(self) -> float | None:
        """Seconds in the compiler; None before it was done, and where an earlier process had done it."""
        if self._compilation is None or not self._compilation.done():
            return None
        try:
            return self._compilation.result().seconds or None
        except PolytileError:
            return None

    def valid(self, sizes: Mapping[str, int]) -> bool:
        return self._valid(sizes)

    def cost(self, sizes: Mapping[str, int]) -> float:
        return self._cost(sizes)

    def prepare(self) -> None:
        with self._lock:
            if self._compilation is None:
                self._compilation = compiler.compile_cpp(self._kernel_name, self.source)

    def ready(self) -> bool:
        """Whether it is compiled; asks for nothing."""
        promise = self._compilation
        return promise is not None and promise.done() and promise.exception() is None

    def failed(self) -> bool:
        promise = self._compilation
        return promise is not None and promise.done() and promise.exception() is not None

    def entry(self) -> NativeEntry:
        library = self._library()
        return NativeEntry(library.address(ENTRY), self._threads, library)

    def handle(self) -> NativeHandle:
        """Where another process finds the kernel; the file is compiled and whole."""
        return NativeHandle(str(compiler.verified(self._library()).path), ENTRY, self._threads)

    @property
    def _threads(self) -> int:
        return int(self.config.get("threads", 1) or 1)

    def _library(self) -> compiler.Library:
        self.prepare()
        assert self._compilation is not None
        return self._compilation.result()
