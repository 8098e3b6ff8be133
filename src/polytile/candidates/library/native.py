"""Products that a library computes, called from C (runtime/cuda/products.py): a call costs no more than the library's function.

An epilogue that the library lacks is a kernel of its own. It reads the product from scratch memory. If the plan declines a
call, ATen computes the product through Python.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import sympy
import torch

from polytile.candidates.entries import NativeEntry, PythonEntry
from polytile.candidates.library.epilogue import LibraryEpilogue
from polytile.candidates.library.matmul import MatmulLibrary
from polytile.errors import CompileFailed, CompilerMissing, DeviceError
from polytile.ir import sizes as algebra
from polytile.matmul.cpp.spec import SIZES
from polytile.matmul.gemm_args import operands
from polytile.runtime import launcher
from polytile.runtime.arguments import CPU, CUDA
from polytile.runtime.cuda import products
from polytile.runtime.cuda.products import AtenPlan, Operand, Product
from polytile.runtime.dispatcher import Dispatcher, Interface
from polytile.runtime.formula import encode

log = logging.getLogger("polytile.candidates")

Strides = tuple[sympy.Expr, sympy.Expr, sympy.Expr]
"""The strides of batch, row and column, in elements."""


class NativeProduct(MatmulLibrary):
    """A product by `plan`, straight into the result or, for `unfused`, into scratch memory. `epilogue`: what the library adds
    itself."""

    epilogue: LibraryEpilogue | None = None
    compute = 0

    @property
    def second_kernel(self) -> bool:
        return self.unfused is not None and self.epilogue is None

    @property
    def device(self) -> int:
        """The number of the GPU; -1 for a CPU."""
        return (self.target.index or 0) if self.target is not None and self.target.type == "cuda" else -1

    def prepare(self) -> None:
        """Starts compiling what calls the library, and the first candidate of the epilogue's kernel."""
        products.prepare()
        super().prepare()

    def plan(self) -> AtenPlan:
        """The plan that C executes. Raises DeviceError if the library is missing, CompileFailed or CompilerMissing."""
        return AtenPlan(self.product, self.device)

    def entry(self) -> NativeEntry | PythonEntry:
        product = NativeEntry.of_product(self.plan(), self._multiply if self.second_kernel else self._call)
        if not self.second_kernel and not self._converts:
            return product
        self._product_call = self._dispatcher(product)
        both = None if self._converts else self._with_epilogue(product)
        if both is None:
            return PythonEntry(self._apart, recordable=True)
        owner, address, threads = both
        return NativeEntry(address, threads, (product, owner), otherwise=self._apart)

    def _with_epilogue(self, product: NativeEntry) -> tuple[Any, int, int] | None:
        """The product and the epilogue's own kernel as one native kernel, if they can be."""
        dispatch = None if self.unfused is None else self.unfused.dispatch
        if dispatch is None:
            return None
        size = self.kernel.product_storage.itemsize
        return launcher.product_with_epilogue(product, dispatch, len(SIZES), size, max(0, self.device))

    @property
    def _converts(self) -> bool:
        """Whether operands are stored in other types than they are multiplied in."""
        return self.kernel.operand_dtypes != (self.kernel.in_dtype, self.kernel.in_dtype)

    # what C is told ---------------------------------------------------------------------------------------------------

    @cached_property
    def strides(self) -> Mapping[str, Strides | None]:
        """Strides of A, B, C and D (see Product) in terms of the kernel's sizes; None if there is no such operand."""
        named = {name: sympy.Symbol(name, integer=True) for name in self.kernel.leading}

        def own(letter: str, axes: str) -> Strides:
            return tuple(named[f"{letter}_stride_{axis}"] for axis in axes)

        by_operand: dict[str, Strides | None] = {"A": own("a", "bmk"), "B": own("b", "bkn"), "C": None}
        one = sympy.Integer(1)
        if self.epilogue is not None:
            by_operand["C"] = (*self.epilogue.addend_strides, one) if self.epilogue.addend else None
            return {**by_operand, "D": (*self.epilogue.out_strides, one)}
        return {**by_operand, "D": (named["M"] * named["N"], named["N"], one) if self.second_kernel else own("c", "bmn")}

    @cached_property
    def product(self) -> Product:
        """The product as C describes it. Raises IRError for strides that cannot be computed in a call."""
        kernel, epilogue = self.kernel, self.epilogue
        places: dict[sympy.Symbol, int] = {sympy.Symbol(name, integer=True): k for k, name in enumerate(kernel.leading)}
        places |= {symbol: len(kernel.leading) + k for k, symbol in enumerate(kernel.symbols)}
        tensors = {tensor.name: place for place, tensor in enumerate(kernel.tensors)}
        stored = kernel.product_storage if self.second_kernel else kernel.product_dtype

        def operand(name: str, tensor: int, dtype: torch.dtype) -> Operand | None:
            strides = self.strides[name]
            return None if strides is None else Operand(tensor, dtype, tuple(encode(s, places) for s in strides))  # type: ignore[arg-type]

        out = tensors[epilogue.out] if epilogue is not None else 2
        a, b, d = operand("A", 0, kernel.in_dtype), operand("B", 1, kernel.in_dtype), operand("D", out, stored)
        assert a is not None and b is not None and d is not None
        matter = len(kernel.leading) + (len(kernel.symbols) if epilogue is not None else 0)
        c = operand("C", tensors[epilogue.addend], stored) if epilogue is not None and epilogue.addend else None
        bias = tensors[epilogue.bias] if epilogue is not None and epilogue.bias else None
        return Product(a, b, d, matter, c, bias, self.compute)

    def strides_at(self, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
        """The strides of A, B, C and D at these sizes, zeros for none. Where they depend on others, those of dense tensors."""
        full = {**self.kernel.dense_strides(sizes), **sizes}
        values = {s: full[s.name] for own in self.strides.values() for e in own or () for s in e.free_symbols if s.name in full}
        dense = (full["M"] * full["N"], full["N"], 1)
        numbers = []
        for own in self.strides.values():
            known = own is not None and all(e.free_symbols <= values.keys() for e in own)
            numbers.append(tuple(algebra.evaluate(e, values) for e in own) if known and own else dense if own else (0, 0, 0))
        return tuple(numbers)

    # calls through Python ---------------------------------------------------------------------------------------------

    def _dispatcher(self, native: NativeEntry) -> Dispatcher:
        """The product alone as a function of A, B, the result and the integers that matter."""
        on = CPU if self.device < 0 else CUDA
        codes = (0,) * self.product.integers
        return launcher.new_dispatcher(Interface(f"product {self.name}", codes, lambda key, args: native, device=on))

    def _apart(self, *args: Any) -> None:
        """A call that takes more than the product: copies of the operands in one type, or the epilogue's own kernel."""
        kernel, count = self.kernel, len(self.kernel.tensors)
        batch, m, n = args[count : count + 3]
        a, b, matter = *args[:2], args[count : count + self.product.integers]
        if self._converts:
            named, _ = operands(kernel, args)
            a, b = (named[name].to(kernel.in_dtype) for name in ("A", "B"))
            matter = (*matter[:4], *a.stride(), *b.stride(), *matter[len(SIZES) :])
        if not self.second_kernel:
            self._product_call(a, b, *args[2:count], *matter)
            return
        out = torch.empty_strided((batch, m, n), (m * n, n, 1), dtype=kernel.product_storage, device=a.device)
        self._product_call(a, b, out, *matter)
        self._finish(out, args)

    def _multiply(self, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *ints: int) -> None:
        """ATen's product into scratch memory."""
        batch, m, n, k = ints[:4]
        left = a.as_strided((batch, m, k), ints[4:7], a.storage_offset())
        right = b.as_strided((batch, k, n), ints[7:10], b.storage_offset())
        out.copy_(self._product(left, right, batch == 1).view(out.shape))


class AtenProduct(NativeProduct):
    """ATen's `mm` or `bmm`. Where C cannot call it, Python does."""

    def entry(self) -> NativeEntry | PythonEntry:
        kernel = self.kernel
        whole = kernel.in_dtype == torch.int8 and self.target is None
        if (kernel.in_dtype.itemsize == 1 and not whole) or self._converts or self._result != kernel.product_storage:
            return PythonEntry(self._call, recordable=True)
        try:
            return super().entry()
        except (CompilerMissing, CompileFailed, DeviceError) as error:
            log.info("%s is called through Python: %s", self.kernel.digest[:8], error)
            return PythonEntry(self._call, recordable=True)

    def _call(self, *args: Any) -> None:
        if self.target is None and args[len(self.kernel.tensors)] == 1:
            self._call_flat(args)
        else:
            super()._call(*args)

    def _call_flat(self, args: Sequence[Any]) -> None:
        """A product without a batch, on a CPU: of matrices it takes some 15 µs less than of views of three dimensions, half of
        what a small product takes."""
        at = len(self.kernel.tensors)
        _, m, n, k, _, a_m, a_k, _, b_k, b_n = args[at : at + 10]
        a, b = matrix(args[0], m, k, a_m, a_k), matrix(args[1], k, n, b_k, b_n)
        if a.dtype != b.dtype:
            a, b = a.to(self.kernel.in_dtype), b.to(self.kernel.in_dtype)
        multiply = torch._int_mm if a.dtype == torch.int8 else torch.mm
        if self.unfused is not None:
            self._finish(multiply(a, b), args)
            return
        out = matrix(args[2], m, n, args[at + 11], args[at + 12])
        if out.dtype == self.kernel.product_storage:
            multiply(a, b, out=out)
        else:
            out.copy_(multiply(a, b))

    @property
    def _result(self) -> torch.dtype:
        return self.kernel.product_storage if self.second_kernel else self.kernel.product_dtype


def matrix(tensor: torch.Tensor, rows: int, columns: int, row_stride: int, column_stride: int) -> torch.Tensor:
    """The memory of `tensor` as a matrix of these sizes and strides; itself or its transpose where it is that."""
    shape, strides = tensor.shape, tensor.stride()
    if shape == (rows, columns) and strides == (row_stride, column_stride):
        return tensor
    if shape == (columns, rows) and strides == (column_stride, row_stride):
        return tensor.t()
    return tensor.as_strided((rows, columns), (row_stride, column_stride), tensor.storage_offset())
