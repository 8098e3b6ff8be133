"""ATen's products called from C, on the CPU in place of a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import sympy
import torch

from polytile.candidates import products as templates
from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.candidates.library.native import AtenProduct
from polytile.errors import DeviceError
from polytile.runtime import compile as compiler
from polytile.runtime import launcher
from polytile.runtime.cuda import products
from polytile.runtime.dispatcher import Dispatcher, Interface
from polytile.runtime.python_dispatcher import PythonDispatcher
from polytile.schedule.canonical import TensorArg
from tests.codegen.test_triton_gemm_prologue import lowered
from tests.codegen.test_triton_gemm_rows import flat
from tests.codegen.triton_gemm import integers, operands, product
from tests.runtime.cuda.inner import Inner
from tests.runtime.cuda.test_cublaslt import CPU, run

T = torch.Tensor
N0 = sympy.Symbol("n0", integer=True)


@pytest.mark.parametrize(("a", "b"), [("k", "n"), ("m", "k")])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_layout_goes_straight_into_the_result(a: str, b: str, batched: bool, dtype: torch.dtype) -> None:
    kernel = product(dtype, a, b, batched=batched)
    candidate = AtenProduct(kernel, None, CPU)
    assert isinstance(candidate.entry(), NativeEntry)
    most = 3 if batched else 1
    for batch, m, n, k, pad in ((most, 5, 7, 9, 2), (most, 1, 4, 1, 0), (1, 4, 3, 0, 0), (1, 0, 3, 2, 0)):
        x, y, c = operands(kernel, batch, m, n, k, pad)
        run(candidate, x, y, c, *integers(x, y, c))
        tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
        torch.testing.assert_close(c.double(), x.double() @ y.double(), rtol=tolerance, atol=tolerance)


def test_products_on_a_cpu_are_called_from_c() -> None:
    """Integers too, into the result or for an epilogue of its own."""
    for dtype, out in ((torch.float32, None), (torch.int8, torch.int32)):
        kernel = product(dtype, out=out) if out is not None else product(dtype)
        (candidate,) = templates.candidates(kernel, "product", (1,), None, ("library",))
        assert isinstance(candidate.entry(), NativeEntry)
        x, y, c = operands(kernel, 1, 5, 7, 9, 2)
        run(candidate, x, y, c, *integers(x, y, c))
        torch.testing.assert_close(c.double(), x.double() @ y.double(), rtol=1e-5, atol=1e-5)


def test_an_operand_whose_rows_overlap() -> None:
    kernel = product(torch.float32)
    _x, y, c = operands(kernel, 1, 5, 7, 9)
    overlapping = torch.randn(9).expand(1, 5, 9)
    run(AtenProduct(kernel, None, CPU), overlapping, y, c, *integers(overlapping, y, c))
    torch.testing.assert_close(c, overlapping @ y)


def test_an_epilogue_of_its_own_reads_scratch_memory() -> None:
    def gelu(x: T, w: T, b: T, r: T) -> T:
        return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)) * r

    args = tuple(torch.randn(*shape) for shape in ((5, 9), (8, 9), (8,), (5, 8)))
    program, template = lowered(gelu, args)
    kernel, passed, _ = flat(program, template, args)
    seen: list[T] = []
    candidate = AtenProduct(kernel, Inner(lambda made, *_: seen.append(made)), CPU)
    assert isinstance(candidate.entry(), PythonEntry)
    run(candidate, *passed)
    torch.testing.assert_close(seen[0].view(5, 8), args[0] @ args[1].t())


class Doubled:
    """An epilogue's kernel: out[i] = 2 · product[i]."""

    def __init__(self) -> None:
        source = """
            long doubled(void *const *p, const long *n, long threads)
            {
                for (long i = 0; i < n[0]; i++) ((float *)p[1])[i] = 2 * ((const float *)p[0])[i];
                return 0;
            }"""
        library = compiler.compile_c("test_doubled", source).result()
        entry = NativeEntry(library.address("doubled"), keep=library)
        self.dispatch = launcher.new_dispatcher(Interface("doubled", (0,), lambda key, args: entry))

    def __call__(self, *args: Any) -> None:
        self.dispatch(*args)


def test_a_product_and_the_kernel_of_its_epilogue_are_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first goes through Python, as the epilogue has decided nothing."""
    kernel = product(torch.float32)
    tensors = (*kernel.tensors[:2], TensorArg("e0", torch.float32, "out"))
    fused = replace(kernel, spec=replace(kernel.spec, has_epilogue=True), tensors=tensors, symbols=(N0,))
    through_python: list[int] = []
    apart = AtenProduct._apart

    def counted(self: AtenProduct, *args: Any) -> None:
        through_python.append(len(args))
        apart(self, *args)

    monkeypatch.setattr(AtenProduct, "_apart", counted)
    entry = AtenProduct(fused, Doubled(), CPU).entry()  # type: ignore[arg-type]
    call = launcher.new_dispatcher(Interface("both", (0,) * 11, lambda key, args: entry))
    for m in (5, 5, 3, 0, 64):
        x, y, _ = operands(kernel, 1, m, 7, 9)
        out = torch.full((m, 7), float("nan"))
        call(x, y, out, 1, m, 7, 9, *x.stride(), *y.stride(), m * 7)
        torch.testing.assert_close(out, 2 * (x @ y)[0])
    assert len(through_python) == 2, "of nothing no product is made in C"


def test_what_c_cannot_call_is_called_through_python(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(device: int) -> list[int]:
        raise DeviceError("torch lacks what products called from C need.")

    monkeypatch.setattr(products, "_of_torch", missing)
    kernel = product(torch.float32)
    x, y, c = operands(kernel, 1, 5, 7, 9)
    candidate = AtenProduct(kernel, None, CPU)
    assert isinstance(candidate.entry(), PythonEntry)
    run(candidate, x, y, c, *integers(x, y, c))
    torch.testing.assert_close(c, x @ y)


@pytest.mark.parametrize("kind", [launcher.new_dispatcher, PythonDispatcher])
def test_what_a_native_kernel_declines_its_callable_takes(kind: Callable[..., Dispatcher]) -> None:
    kernel = product(torch.int8, out=torch.int32)
    x, y, c = operands(kernel, 2, 3, 4, 5)
    plan = products.AtenPlan(AtenProduct(kernel, None, CPU).product, -1)
    taken: list[int] = []
    entry = NativeEntry.of_product(plan, lambda *args: taken.append(len(args)))
    ints = integers(x, y, c)  # a batch of int8 matrices: no function of ATen's multiplies these
    call = kind(Interface("declined", (0,) * len(ints), lambda key, args: entry))
    for _ in range(2):
        call(x, y, c, *ints)
    launcher.time_burst(entry, (x, y, c, *ints), 3)
    assert taken == [3 + len(ints)] * 5
