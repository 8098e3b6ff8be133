"""Matrix products in canonical form: the kernel that equal products share, and what each call passes to it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import sympy
import torch

from polytile.ir.buffer import Buffer, View
from polytile.ir.loop import Loop
from polytile.ir.printer import loop_text, type_name
from polytile.ir.template import IS_PACKED, PackedInt4, PackedWeight, Template
from polytile.matmul import prologue, scales
from polytile.matmul.cpp import GemmSpec
from polytile.matmul.cpp.spec import OUTPUT_SIZES, SIZES
from polytile.matmul.prologue import Prologues
from polytile.problem import digest
from polytile.runtime import regime
from polytile.schedule import canonical
from polytile.schedule.canonical import TensorArg

DECIDING = {**dict.fromkeys(("batch", "M", "N", "K", "L"), regime.BUCKET), IS_PACKED.name: regime.EXACT}
"""The integers that a choice depends on, and whether by bucket or exactly. Strides are passed but do not affect the choice."""

SECOND_SIZES = ("L", "p_stride_b", "p_stride_m", "p_stride_k", "q_stride_b", "q_stride_k", "q_stride_n")
"""Integers of a second product: the length of its reduction, and the strides of its operands."""


ENDS = "ENDS"
"""The name of the tensor with the ends of a grouped product's groups."""


@dataclass(frozen=True)
class GemmKernel:
    """A matmul under canonical names: what is common to all products that share its kernels.

    The tensors are A, B, and then C or the epilogue's own tensors e0, e1, … The integers are those of the generated kernels' ABI
    (`leading`), followed by the size symbols of the epilogue and of the prologues, and by those of `second`, `scales` and
    `packed`.

    Attributes
    ----------
    tf32
        Whether float32 operands may be rounded to TF32, as PyTorch's switch allowed when the graph was compiled. (Dynamo
        recompiles when the switch changes.)
    prologues
        An operand with a prologue is not in memory. The tensors A0, A1, … from which it is computed take its place; its strides
        are those with which it would be stored.
    packed
        If set, the last tensor, P, is B packed ahead of the call, or absent; the last integer, IS_PACKED, says which
        (matmul/packed_weights.py).
    second
        The layouts of P (batch, m, k) and Q (batch, k, n), whose product over L terms is added to that of A and B. They follow A
        and B among the tensors. Such a kernel has no prologues.
    scales
        The block sizes (rows, columns) that share a scale, for A (None if unscaled) and for B (matmul/scales.py).
    int4
        The layout of the packed weight from which the prologue of B computes it, if ATen packed that weight for GPUs.

    Notes
    -----
    If its spec is `grouped`, the tensor ENDS follows A and B, and `batch` is the number of groups. With groups along m, only B
    has a batch; with groups along k, only the result has one. The other batch strides are passed but unused.
    """

    spec: GemmSpec
    in_dtype: torch.dtype
    product_dtype: torch.dtype
    tensors: tuple[TensorArg, ...]
    epilogue: Loop | None
    symbols: tuple[sympy.Symbol, ...]
    layouts: tuple[str, ...]
    family: str = "mm"
    tf32: bool = False
    prologues: Prologues = (None, None)
    packed: bool = False
    second: tuple[str, str] | None = None
    scales: tuple[scales.Blocks | None, scales.Blocks] | None = None
    int4: PackedInt4 | None = None

    @property
    def prologue_kernels(self) -> tuple[canonical.LoopKernel, ...]:
        """The prologues that are present."""
        return tuple(prologue_kernel for prologue_kernel in self.prologues if prologue_kernel is not None)

    @cached_property
    def text(self) -> str:
        types = " ".join(f"{t.name}:{type_name(t.dtype)}:{t.role}" for t in self.tensors)
        loop = loop_text(replace(self.epilogue, name="epilogue", origins=())) if self.epilogue else ""
        loop += canonical.signs(self.symbols) if self.epilogue else ""
        switches = (" tf32" if self.tf32 else "") + (f" + {' '.join(self.second)}" if self.second is not None else "")
        switches += f" scaled {self.scales}" if self.scales is not None else ""
        switches += f" {self.int4}" if self.int4 is not None else ""
        computed = "".join(f"{prologue_kernel.text}\n" for prologue_kernel in self.prologue_kernels)
        return f"{self.spec} {self.product_dtype}{switches} {types}\n{computed}{loop}"

    @cached_property
    def digest(self) -> str:
        return digest(self.text)

    @property
    def size_names(self) -> tuple[str, ...]:
        own = [s.name for prologue_kernel in self.prologue_kernels for s in prologue_kernel.symbols]
        last: tuple[str, ...] = SECOND_SIZES if self.second is not None else scales.size_names(self)
        last += (IS_PACKED.name,) if self.packed else ()
        return (*self.leading, *[s.name for s in self.symbols], *own, *last)

    @cached_property
    def inputs(self) -> tuple[tuple[TensorArg, ...], tuple[TensorArg, ...]]:
        """The tensors that each operand is read or computed from."""
        first = prologue.tensor_count(self.prologues[0])
        return self.tensors[:first], self.tensors[first : first + prologue.tensor_count(self.prologues[1])]

    @cached_property
    def outer(self) -> tuple[TensorArg, ...]:
        """The tensors that are not operands: C, or those of the epilogue."""
        before = sum(map(len, self.inputs)) + (2 if self.second is not None else len(scales.blocks(self)))
        before += bool(self.spec.grouped)
        return self.tensors[before : len(self.tensors) - self.packed]

    @cached_property
    def operand_dtypes(self) -> tuple[torch.dtype, torch.dtype]:
        """The dtype of each operand's elements as loaded or computed: that of its tensor, or of its prologue's result."""
        a, b = (
            tensors[0].dtype if operand_prologue is None else operand_prologue.tensors[-1].dtype
            for tensors, operand_prologue in zip(self.inputs, self.prologues, strict=True)
        )
        return a, b

    def misaligned(self, size: Mapping[str, int]) -> bool:
        """Whether the row pitch of a stored operand is not a multiple of 16 bytes."""
        pitches = zip(self._row_pitches(size), self.operand_dtypes, strict=True)
        return any(elements * dtype.itemsize % 16 for elements, dtype in pitches)

    def scalar_loads(self, size: Mapping[str, int]) -> tuple[bool, bool]:
        """Whether generated kernels load A, and B, element by element: no axis is known to have stride 1, or the row pitch is not
        a multiple of 16 elements."""
        a, b = (
            bool(elements % 16) or (operand_prologue is None and layout == "any")
            for elements, operand_prologue, layout in zip(self._row_pitches(size), self.prologues, self.layouts, strict=True)
        )
        return a, b

    def _row_pitches(self, size: Mapping[str, int]) -> tuple[int, int]:
        """The row pitches of A and B in elements; 0 if there is a single row or the operand is computed. Strides that `size`
        lacks are dense."""
        full, spec = {**self.dense_strides(size), **size}, self.spec
        rows = ("a_stride_k", "K") if spec.a_layout == "m" else ("a_stride_m", "M")
        columns = ("b_stride_n", "N") if spec.b_layout == "k" else ("b_stride_k", "K")
        a, b = (
            full[stride] if operand_prologue is None and full[count] > 1 else 0
            for operand_prologue, (stride, count) in zip(self.prologues, (rows, columns), strict=True)
        )
        return a, b

    @cached_property
    def plain(self) -> GemmKernel:
        """The same product with all operands in memory and no packed weight."""
        if not any(self.prologues):
            return replace(self, tensors=self.tensors[:-1], packed=False) if self.packed else self
        operands = tuple(TensorArg(name, dtype, "in") for name, dtype in zip("AB", self.operand_dtypes, strict=True))
        others = self.tensors[sum(map(len, self.inputs)) : len(self.tensors) - self.packed]
        return replace(self, prologues=(None, None), tensors=(*operands, *others), packed=False, int4=None)

    def average(self, size: Mapping[str, int]) -> dict[str, int]:
        """For a grouped product, the sizes of the batched product with groups of equal size; otherwise `size`."""
        axis = {"m": "M", "k": "K"}.get(self.spec.grouped)
        if axis is None:
            return dict(size)
        groups = min(size["batch"], max(1, size["M"])) if axis == "M" else size["batch"]
        return {**size, "batch": groups, axis: -(-size[axis] // max(1, groups))}

    @property
    def leading(self) -> tuple[str, ...]:
        """The product's own integers, which come first."""
        return SIZES + (() if self.spec.has_epilogue else OUTPUT_SIZES)

    @property
    def product_storage(self) -> torch.dtype:
        """The dtype in which a library call stores the product for the epilogue."""
        if self.scales is not None:
            return self.product_dtype
        if not self.in_dtype.is_floating_point:
            return torch.int32
        return torch.float32 if self.in_dtype.itemsize == 1 else self.in_dtype

    def dense_strides(self, size: Mapping[str, int]) -> dict[str, int]:
        """The strides of dense operands in these layouts, and a batch of 1."""
        m, n, k = size["M"], size["N"], size["K"]
        second = scales.dense_strides(self, size)
        if self.second is not None:
            length = size["L"]
            p = (1, m) if self.second[0] == "m" else (length, 1)
            q = (1, length) if self.second[1] == "k" else (n, 1)
            second = dict(zip(SECOND_SIZES[1:], (m * length, *p, length * n, *q), strict=True))
        a = (1, m) if self.spec.a_layout == "m" else (k, 1)
        b = (1, k) if self.spec.b_layout == "k" else (n, 1)
        apart = {"a": m * k, "b": k * n, "c": m * n}
        apart |= dict.fromkeys({"m": "ac", "k": "ab"}.get(self.spec.grouped, ""), 0)
        return {
            "batch": 1, "a_stride_b": apart["a"], "a_stride_m": a[0], "a_stride_k": a[1], "b_stride_b": apart["b"],
            "b_stride_k": b[0], "b_stride_n": b[1], "c_stride_b": apart["c"], "c_stride_m": n, "c_stride_n": 1, **second,
        }  # fmt: skip


@dataclass(frozen=True)
class ProductSite:
    """What a call of a canonical product passes: buffers, views or packed weights, and size expressions, in argument order."""

    buffers: tuple[str | View | PackedWeight, ...]
    sizes: tuple[sympy.Expr, ...]


@dataclass(frozen=True)
class _Arguments:
    """Part of a product's argument list: tensors, the buffer or view to pass for each, and the integers that they need."""

    tensors: tuple[TensorArg, ...] = ()
    passed: tuple[str | View, ...] = ()
    sizes: tuple[sympy.Expr, ...] = ()

    def __add__(self, other: _Arguments) -> _Arguments:
        return _Arguments(self.tensors + other.tensors, self.passed + other.passed, self.sizes + other.sizes)


def canonicalize(template: Template, buffers: Mapping[str, Buffer]) -> tuple[GemmKernel, ProductSite]:
    """The canonical kernel of `template`, and how to call it. Views of A and B are passed if they do not start at the first
    element."""
    a, b, spec = template.a, template.b, _spec(template)
    dtype = _common_type(template)
    first, other = (
        prologue.canonicalize(operand_prologue, name, buffers) if operand_prologue is not None else None
        for name, operand_prologue in zip("AB", template.prologues, strict=True)
    )
    read = _operand("A", a, first, buffers) + _operand("B", b, other, buffers)
    second = shared = None
    if template.second is not None:
        p, q = template.second
        second = _unit_stride_axis(p, {2: "k", 1: "m"}), _unit_stride_axis(q, {2: "n", 1: "k"})
        read += _in_memory("P", p, buffers) + _in_memory("Q", q, buffers)
        read += _Arguments(sizes=(p.sizes[2], *p.strides, *q.strides))
    if template.scales is not None:
        shared = scales.blocks_of(template.scales)
        left, right = template.scales
        for name, view in zip(scales.AXES, (left.view if left is not None else None, right.view, right.zeros), strict=True):
            if view is not None:
                read += _in_memory(name, view, buffers) + _Arguments(sizes=view.strides[1:])
    if template.grouping is not None:
        read += _in_memory(ENDS, template.grouping.ends, buffers)
    written, epilogue, symbols = _results(template, buffers)
    on_gpu = buffers[a.buffer].device.type == "cuda"
    kernel = GemmKernel(
        spec, dtype, template.out.dtype, read.tensors + written.tensors, epilogue, symbols, (spec.a_layout, spec.b_layout),
        tf32=on_gpu and dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32",
        prologues=(first.kernel if first is not None else None, other.kernel if other is not None else None),
        second=second, scales=shared, int4=template.int4 if other is not None else None,
    )  # fmt: skip
    batch = a.sizes[0] if template.grouping is None else template.grouping.ends.sizes[0]
    leading = (batch, a.sizes[1], b.sizes[2], a.sizes[2], *a.strides, *b.strides)
    return kernel, ProductSite(read.passed + written.passed, (*leading, *written.sizes, *read.sizes))


def _common_type(template: Template) -> torch.dtype:
    a, b = template.a.dtype, template.b.dtype
    return torch.promote_types(a, b) if a != b else a


def _spec(template: Template) -> GemmSpec:
    a, b, out, dtype = template.a, template.b, template.out, type_name(_common_type(template))
    left, right = template.scales or (None, None)
    return GemmSpec(
        dtype=dtype,
        a_layout=_unit_stride_axis(a, {2: "k", 1: "m"}),
        b_layout=_unit_stride_axis(b, {2: "n", 1: "k"}),
        batched=out.sizes[0] != 1,
        out_dtype=type_name(out.dtype),
        has_epilogue=template.epilogue is not None,
        c_layout=_unit_stride_axis(out, {2: "n", 1: "m"}),
        b_dtype="int8" if b.dtype == torch.int8 and dtype != "int8" else "",
        group=right.along if right is not None and left is None else 0,
        zeros=right is not None and right.zeros is not None,
        grouped=template.grouping.axis if template.grouping is not None else "",
    )


def _in_memory(name: str, view: View, buffers: Mapping[str, Buffer]) -> _Arguments:
    """A tensor in memory. Its strides are not included: the caller adds them in the order of the ABI."""
    return _Arguments((TensorArg(name, view.dtype, "in"),), (view.passed(buffers),))


def _operand(name: str, view: View, computed: prologue.Canonical | None, buffers: Mapping[str, Buffer]) -> _Arguments:
    """An operand, or the tensors from which its prologue computes it: all of the prologue's tensors but the last, which is the
    operand."""
    if computed is None:
        return _in_memory(name, view, buffers)
    return _Arguments(computed.kernel.tensors[:-1], computed.site.buffers[:-1], computed.site.sizes)


def _results(template: Template, buffers: Mapping[str, Buffer]) -> tuple[_Arguments, Loop | None, tuple[sympy.Symbol, ...]]:
    """C and its strides, or the epilogue with its own tensors and integers."""
    out, loop = template.out, template.epilogue
    if loop is None:
        return _Arguments((TensorArg("C", out.dtype, "out"),), (out.passed(buffers),), out.strides), None, ()
    inner, site = canonical.canonicalize(loop, buffers)
    names = {t.name: f"e{t.name[1:]}" for t in inner.tensors}
    tensors = tuple(TensorArg(names[t.name], t.dtype, t.role) for t in inner.tensors)
    return _Arguments(tensors, site.buffers, site.sizes), canonical.rename_tensors(inner.loop, names), inner.symbols


def _unit_stride_axis(view: View, letters: Mapping[int, str]) -> str:
    """The axis of an operand that is known to have stride 1, or "any"."""
    return next((letter for d, letter in letters.items() if view.strides[d] == 1), "any")


def kernel_name(kernel: GemmKernel, origins: Sequence[str]) -> str:
    """A readable name: up to four distinct operators, and the kernel's digest."""
    words = [re.sub(r"\W", "", o.split(".")[1] if o.count(".") > 1 else o) for o in dict.fromkeys(origins)]
    return f"{'_'.join(words[:4])[:48].strip('_') or 'mm'}_{kernel.digest[:8]}"
