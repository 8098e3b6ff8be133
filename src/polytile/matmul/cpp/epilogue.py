"""The epilogue of a matmul as the C++ function that generated matmuls call for every finished vector of sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

from polytile.codegen.cpp.body import Body, Scope, always
from polytile.codegen.cpp.unit import arguments, preamble
from polytile.codegen.writer import Writer
from polytile.ir import expr
from polytile.matmul.cpp import ELEMENTS
from polytile.schedule.canonical import LoopKernel
from polytile.schedule.nest import Form, Nest

if TYPE_CHECKING:
    from polytile.matmul.gemm_kernel import GemmKernel


def generate(kernel: GemmKernel, lanes: int, leading: int | None = None, inline: bool = True) -> str:
    """Text that defines `epilogue(ptrs, sizes, batch, m, n, acc, count)`: the kernel's own pointers start at `leading` (after
    those of the matmul unless given), its integers after the matmul's; `acc` holds the sums of columns n .. n + count - 1 of
    row m."""
    leading = kernel.spec.leading_ptrs if leading is None else leading
    loop = kernel.epilogue
    assert loop is not None and len(loop.axes) == 3
    own = kernel.outer
    body_kernel = LoopKernel(loop, own, kernel.symbols)
    vec = loop.axes[2]
    nest = Nest(loop, Form.POINTWISE, vec, loop.axes[:2], ())
    body = Body(body_kernel, nest, str(lanes))
    body.overrides = {id(node): always("acc") for node in nest.nodes if isinstance(node, expr.Accumulator)}
    scope = Scope()
    body.stores(loop.stores, scope)
    out = Writer()
    element = ELEMENTS[kernel.spec.accumulator]
    batch, m, n = (a.symbol for a in loop.axes)
    out.line("namespace pt {")
    out.line("namespace {")
    out.open(
        f"template <class Tail> PT_FN void finish(Tail tail, void* const* ptrs, const long* sizes, const long {batch}, "
        f"const long {m}, const long {n}, const V<{element}, {lanes}> acc, const long n) {{"
    )
    out.extend(arguments(body_kernel, leading, kernel.spec.leading_sizes))
    out.extend(scope.lines)
    out.close("}")
    out.line("}  // namespace")
    out.line("}  // namespace pt")
    kind = "static inline" if inline else "static"
    out.open(f"{kind} void epilogue(void* const* ptrs, const long* sizes, long batch, long m, long n, VACC acc, long count) {{")
    out.line(f"const pt::V<{element}, {lanes}> sums(acc);")
    out.line(f"if (__builtin_expect(count == {lanes}, 1)) pt::finish(pt::Full{{}}, ptrs, sizes, batch, m, n, sums, {lanes});")
    out.line("else pt::finish(pt::Part{}, ptrs, sizes, batch, m, n, sums, count);")
    out.close("}")
    source = out.text()
    return preamble(source) + source
