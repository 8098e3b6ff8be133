"""Matmuls with an epilogue in two translation units: a core that all epilogues share, and the epilogue.

The core (the register-blocked product) takes about a second to generate and compile with its row tails. It does not depend on
the epilogue, so a machine compiles it once for each layout and config. The epilogue is a small unit of its own, which the core
calls through a pointer for every finished vector of sums. Compared with an inlined epilogue, the call costs about 5 ns per
vector, the time of some 100 multiply-adds: nothing for a long K, too much for a short one. Up to INLINE_UP_TO the epilogue is
inlined.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

from polytile.candidates.cpp import CompiledCandidate, Prediction
from polytile.candidates.entries import NativeEntry
from polytile.candidates.handles import NativeHandle
from polytile.codegen.function_names import ENTRY, renamed_with_alias, symbol_of
from polytile.codegen.writer import Writer
from polytile.matmul import cpp as gemm
from polytile.matmul.cpp import GemmConfig, GemmSpec, epilogue
from polytile.problem import Config, digest
from polytile.runtime import compile as compiler

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel

INLINE_UP_TO = 160  # K up to which the epilogue is compiled into the matmul
SLOTS = 16  # cores that one epilogue's unit can be bound to
BIND = "polytile_bind"

CALL_EPILOGUE = """\
typedef void (*Finish)(void* const*, const long*, long, long, long, VACC, long);
static inline void epilogue(void* const* ptrs, const long* sizes, long batch, long m, long n, VACC acc, long count) {
  ((Finish)ptrs[2])(ptrs, sizes, batch, m, n, acc, count);
}
"""


def core_source(spec: GemmSpec, config: GemmConfig, lanes: int) -> str:
    """The core for operands as in `spec`: its pointers are A, B (or B packed, where the form reads that), the epilogue's
    function, the scales of groups if there are any, then the epilogue's own."""
    layout = "any" if config.form == "tile_prepacked" else spec.b_layout
    shared = replace(spec, out_dtype=spec.accumulator, b_layout=layout)
    return gemm.generate(shared, config, ENTRY, CALL_EPILOGUE, lanes, panels_at=1, scales_at=3)


def epilogue_source(kernel: GemmKernel, lanes: int) -> str:
    """The epilogue's unit: `polytile_bind(slot, core)` makes `polytile_kernel_<slot>` run that core with this epilogue, and
    `polytile_kernel_kept_<slot>` a core that takes a packed weight in place of B. Products of other operands have units of their
    own, though the epilogue may be the same: equal texts are one library, whose slots can be bound to one core each."""
    element = gemm.ELEMENTS[kernel.spec.accumulator]
    out = Writer()
    out.line(f"typedef {element} VACC __attribute__((vector_size({lanes} * sizeof({element}))));")
    out.extend(epilogue.generate(kernel, lanes, leading=kernel.spec.leading_ptrs + 1, inline=False).splitlines())
    out.line(f"/* Its cores: {digest(repr(kernel.spec))}, for vectors of {lanes}. Slots count the configs of these. */")
    out.line("typedef long (*Core)(void* const*, const long*, long);")
    out.line(f"static Core cores[{SLOTS}];")
    out.line(f'extern "C" void {BIND}(long slot, void* core) {{ cores[slot] = (Core)core; }}')
    end = 2 + kernel.spec.beside_b + len(kernel.outer)
    own = ", ".join(f"ptrs[{k}]" for k in range(2, end))
    operands = {ENTRY: 1} | ({f"{ENTRY}_kept": end} if kernel.packed else {})
    for (entry, b), slot in itertools.product(operands.items(), range(SLOTS)):
        out.open(f'extern "C" long {entry}_{slot}(void* const* ptrs, const long* sizes, long threads) {{')
        out.line(f"void* all[{end + 1}] = {{ptrs[0], ptrs[{b}], (void*)epilogue, {own}}};")
        out.line(f"return cores[{slot}](all, sizes, threads);")
        out.close("}")
    return out.text()


class MatmulCandidate(CompiledCandidate):
    """A core bound to an epilogue. `slot` tells the cores of one epilogue's unit apart."""

    def __init__(
        self, name: str, config: Config, kernel_name: str, prediction: Prediction, recipe: str,
        sources: tuple[Callable[[], str], Callable[[], str]], slot: int,
    ) -> None:  # fmt: skip
        super().__init__(name, config, kernel_name, prediction, recipe)
        self.slot, self._make_sources = slot, sources

    @cached_property
    def sources(self) -> tuple[str, str]:
        """Texts of the core and of the epilogue."""
        core, finish = self._make_sources
        return core(), finish()

    @property
    def units(self) -> Sequence[tuple[str, Callable[[], str]]]:
        core = f"matmul_{self.config['form']}_{self.config['mr']}x{self.config['nv']}"
        return (core, lambda: renamed_with_alias(self.sources[0], symbol_of(core))), (self.kernel_name, lambda: self.sources[1])

    def _hash(self) -> str:
        return digest("\n".join(self.sources))

    @property
    def _symbol(self) -> str:
        return f"{ENTRY}_kept_{self.slot}" if self.config["form"] == "tile_prepacked" else f"{ENTRY}_{self.slot}"

    def entry(self) -> NativeEntry:
        core, finish = self.libraries()
        bind = ctypes.CFUNCTYPE(None, ctypes.c_long, ctypes.c_void_p)(finish.address(BIND))
        bind(self.slot, core.address(ENTRY))
        return NativeEntry(finish.address(self._symbol), self.threads, (core, finish), otherwise=self.otherwise)

    def handle(self) -> NativeHandle:
        """Where another process finds the two units, and how it binds them."""
        core, finish = (str(compiler.verified(library).path) for library in self.libraries())
        return NativeHandle(finish, self._symbol, self.threads, (BIND, self.slot, core, ENTRY))
