"""Matmuls with what joins their kernels: scales, groups, a prologue, an epilogue, packed weights."""

from __future__ import annotations

from dataclasses import dataclass

from polytile.ir import names
from polytile.ir import sizes as algebra
from polytile.ir.buffer import Buffer, View
from polytile.ir.loop import Loop

SCALED_ALONG_K = 128
"""Number of elements along k that share one scale in block-scaled float8."""


@dataclass(frozen=True)
class Scales:
    """The float32 scales of an operand: one for every block of `rows` rows of A (columns of B) by `along` elements along k.

    `view` is (1, blocks of rows, blocks along k) for A and (1, blocks along k, blocks of columns) for B. `zeros`, for B only, has
    the same layout; a zero point is subtracted from the elements before they are scaled.
    """

    view: View
    rows: int
    along: int = SCALED_ALONG_K
    zeros: View | None = None

    @property
    def views(self) -> list[View]:
        return [self.view] if self.zeros is None else [self.view, self.zeros]


@dataclass(frozen=True)
class Grouping:
    """Makes a Template a grouped matmul, in which consecutive rows of A (axis "m") or consecutive k of both operands (axis "k")
    form groups.

    `ends` is a dense int32 vector with the end of each group, so the group sizes are known only in memory. An end beyond the axis
    is clamped to its size; a group that ends before it begins is empty.

    "m"  out[m, n] = Σ_k a[m, k]·b[g, k, n] for the group g of row m, and 0 for rows beyond the last end. `a` and `out` have
         batch size 1; the batch of `b` is the groups.
    "k"  out[g, m, n] = Σ_k a[m, k]·b[k, n] over the k of group g. `a` and `b` have batch size 1; that of `out` is the
         number of groups.
    """

    ends: View
    axis: str


@dataclass(frozen=True)
class PackedInt4:
    """The weights from which a prologue computes B are those of `torch._weight_int4pack_mm`: dense int32 words, packed by
    `torch._convert_weight_to_int4pack` with this number of inner `tiles`, and dense bfloat16 scales and zeros of groups of
    `group` elements along k."""

    tiles: int
    group: int


@dataclass(frozen=True)
class Template:
    """A matmul: out[b, m, n] = Σ_k a[b, m, k]·b[b, k, n], followed by `epilogue` over the same points (b, m, n).

    Operands of different dtypes are first converted to their common dtype.

    Attributes
    ----------
    a, b
        Views of sizes (batch, m, k) and (batch, k, n).
    out
        The buffer that receives the product if there is no epilogue. Inside an epilogue it stands for the accumulator, and it is
        written only if one of the epilogue's stores does so.
    epilogue
        A Loop over (batch, m, n) whose values read `Accumulator`. If it contains reductions, its axes are (batch, m) and n is
        reduced.
    prologues
        For each operand that is computed as it is read, a Loop over its (batch, rows, columns) that stores it to the buffer of
        its view; None for an operand in memory. That buffer has no memory unless a kernel chooses to materialise it.
    second
        Operands (batch, m, l) and (batch, l, n), of the dtypes of `a` and `b`. Their product is added to the same accumulator.
    scales
        The scales of `a` and `b`; each product of elements is multiplied by them before it is accumulated. That of `a` is None if
        only `b` is scaled. A scaled product has no prologues, no second product and no batch.
    grouping
        Set for a grouped matmul, which has no prologues, no second product and no scales.
    int4
        What `b` is computed from, if that is a weight which ATen has packed for GPUs; it holds for a template with a prologue.
    """

    name: str
    kind: str
    a: View
    b: View
    out: View
    epilogue: Loop | None = None
    origins: tuple[str, ...] = ()
    prologues: tuple[Loop | None, Loop | None] = (None, None)
    second: tuple[View, View] | None = None
    scales: tuple[Scales | None, Scales] | None = None
    grouping: Grouping | None = None
    int4: PackedInt4 | None = None

    def reads(self) -> set[str]:
        return self.operand_reads() | (self.epilogue.reads() if self.epilogue else set())

    def operand_reads(self) -> set[str]:
        """Buffers that the product itself reads, at other points than those that it writes."""
        pairs = zip((self.a, self.b), self.prologues, strict=True)
        read = [{view.buffer} if loop is None else loop.reads() for view, loop in pairs]
        beside = [*(self.second or ()), *self.views_beside]
        return set().union(*read, {view.buffer for view in beside})

    def writes(self) -> set[str]:
        return self.epilogue.writes() if self.epilogue else {self.out.buffer}

    @property
    def scale_views(self) -> list[View]:
        return [view for scales in self.scales or () if scales is not None for view in scales.views]

    @property
    def views_beside(self) -> list[View]:
        """Further views that are read unchanged: scales and group ends."""
        return [*self.scale_views, *([self.grouping.ends] if self.grouping is not None else [])]


@dataclass(frozen=True)
class PackedWeight:
    """A kernel argument that is looked up at each call: the packed copy of a weight, if there is one.

    The kernel's integer argument IS_PACKED is 1 if the copy exists, else 0.

    Attributes
    ----------
    view
        The weight.
    lanes, together
        The copy is packed for vectors of `lanes` elements, with `together` values of k in a lane.
    constant
        Nothing is expected to change the weight, so its first use packs it.
    unpacked
        The operand and the Loop that computes it from the whole weight; None if the weight is the operand.
    nibbles_from
        The least of the 16 integers among which all values are, of which the copy holds 4 bits each; None for whole values.
    """

    view: View
    lanes: int
    together: int
    constant: bool
    unpacked: tuple[View, Loop] | None = None
    nibbles_from: int | None = None


IS_PACKED = algebra.axis(names.IS_PACKED)


@dataclass(frozen=True)
class ComputedWeight:
    """The argument `result` of a kernel that runs `loop` over the constant weight `weight` alone. Calls look it up, and it is
    computed once (compiler/computed_weights.py)."""

    result: Buffer
    weight: Buffer
    loop: Loop
