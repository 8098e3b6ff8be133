"""Kernels for y = 2 x over n float32 with what may be wrong with a kernel, and candidates made of them."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry, NativeEntry, PythonEntry
from polytile.candidates.handles import Handle, NativeHandle, handle_of_function
from polytile.problem import Config, Problem, digest
from polytile.runtime import compile as compiler
from polytile.tuning.limits import Limits
from polytile.tuning.task import Task

FEW = Limits(rounds=3, seconds=0.001)

BODIES = {
    "right": "for (long i = 0; i < n; ++i) y[i] = 2 * x[i];",
    "also right": "for (long i = n; i-- > 0;) y[i] = x[i] + x[i];",
    "segfault": "*(volatile int*)8 = 1;",
    "abort": "abort();",
    "exit": "exit(3);",
    "endless": "for (volatile long i = 0;;) i = i + 1;",
    "asleep": "for (;;) pause();",
    "divides by zero": "volatile long none = 0; y[0] = n / none;",
    "eats memory": "for (;;) { char* more = (char*)malloc(1 << 24); if (!more) abort_for_memory();\n"
    "  for (long i = 0; i < 1 << 24; i += 4096) more[i] = 1; }",
    "wrong tail": "for (long i = 0; i < n / 16 * 16; ++i) y[i] = 2 * x[i];",
    "beyond the tail": "for (long i = 0; i < (n + 15) / 16 * 16; ++i) y[i] = 2 * x[i];",
    "writes its input": "for (long i = 0; i < n; ++i) { y[i] = 2 * x[i]; ((float*)x)[i] = 0; }",
    "two threads": "#pragma omp parallel for num_threads(threads)\nfor (long i = 0; i < n; ++i) y[i] = 2 * x[i];",
}
HEAD = """
extern "C" { void abort(); void exit(int); int pause();
             void* malloc(unsigned long); long write(int, const void*, unsigned long); }
static void abort_for_memory() { write(2, "std::bad_alloc\\n", 15); abort(); }
extern "C" long polytile_kernel(void* const* p, const long* sizes, long threads) {
    const float* x = (const float*)p[0]; float* y = (float*)p[1]; const long n = sizes[0];
"""


@dataclass
class Native(Candidate):
    """A candidate from a body in C; `compile_seconds` and the like are of no interest here."""

    name: str
    body: str = ""
    origin: str = "user"
    threads: int = 1
    head: str = HEAD
    config: Config = field(default_factory=Config)

    @property
    def source(self) -> str:
        return f"{self.head}\n{self.body or BODIES[self.name]}\nreturn 0; }}\n"

    @property
    def source_hash(self) -> str:
        return digest(self.source)

    def cost(self, sizes: Mapping[str, int]) -> float:
        return 1e-5

    def prepare(self) -> None:
        self._compilation()

    def entry(self) -> Entry:
        library = self._compilation().result()
        return NativeEntry(library.address("polytile_kernel"), self.threads, library)

    def handle(self) -> Handle:
        return NativeHandle(str(self._compilation().result().path), "polytile_kernel", self.threads)

    def _compilation(self) -> compiler.Compilation:
        return compiler.compile_cpp("planted", self.source, ("-fopenmp",))


@dataclass
class Function(Candidate):
    """A candidate from a Python function."""

    name: str
    call: Any
    origin: str = "user"
    config: Config = field(default_factory=Config)

    @property
    def source_hash(self) -> str:
        return digest(self.name)

    def cost(self, sizes: Mapping[str, int]) -> float:
        return 1e-5

    def entry(self) -> Entry:
        return PythonEntry(self.call)

    def handle(self) -> Handle | None:
        return handle_of_function(self.call)


def double(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    y.copy_(x * 2)


def raises(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    raise RuntimeError("no kernel for such strides")


def dies(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def takes_too_much(x: torch.Tensor, y: torch.Tensor, n: int) -> None:
    torch.ones(1 << 36)


def task(*candidates: Any, n: int = 1003, trial_seconds: float = 30.0, **more: Any) -> Task:
    """Doubling `n` numbers; all candidates are to be isolated. On a busy machine a right one must not be out of time."""
    x, y = torch.randn(n), torch.full((n,), 5.0)
    problem = Problem("loop", "k", (("n", n),), ("float32",))
    names = frozenset(candidate.name for candidate in candidates)
    made = Task(problem, candidates, (x, y, n), ("x", "y"), ("in", "out"), double, limits=FEW, isolated=names)
    return dataclasses.replace(made, trial_seconds=trial_seconds, **more)
