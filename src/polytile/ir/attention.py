"""Attention as an operation of a program, and its reference definition, with which every kernel must agree."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from polytile.ir.buffer import View
from polytile.ir.dropout import Dropout, kept
from polytile.ir.dtypes import compute_dtype
from polytile.ir.loop import Loop

EMPTY = -float("inf")
"""The score of a masked key."""

SCORES, SLOPES = "scores", "slopes"
"""The buffer names to which an Attention's `scores` store. They have no memory."""


@dataclass(frozen=True)
class Gradients:
    """Makes an Attention its own derivative. `grad` is the gradient of `out`, and is read along with `out` and `lse`; the
    gradients of q, k and v are written to `dq`, `dk` and `dv`. `lse`, (batch, heads, m), is the gradient of the log-sum-exp, if
    that is used too. `dscores`, (batch, heads, m, n), receives the gradient of the scores, if that is wanted."""

    grad: View
    dq: View
    dk: View
    dv: View
    lse: View | None = None
    dscores: View | None = None


@dataclass(frozen=True)
class Sequences:
    """Describes packed or paged sequences by integer tensors (see attention.layout). There are `count` sequences of at most
    `rows` rows and `keys` keys."""

    count: sympy.Expr
    rows: sympy.Expr
    keys: sympy.Expr
    q_starts: View | None = None
    k_starts: View | None = None
    table: View | None = None
    k_used: View | None = None

    @property
    def named(self) -> dict[str, View]:
        """The integer tensors that are present, by name, in order."""
        given = {name: getattr(self, name) for name in ("q_starts", "k_starts", "table", "k_used")}
        return {name: view for name, view in given.items() if view is not None}

    @property
    def views(self) -> tuple[View, ...]:
        return tuple(self.named.values())


@dataclass(frozen=True)
class Attention:
    """out[b, h, m, :] = Σ_n softmax_n(score[b, h, m, n])·v[b, h / group, n, :], where score is scale·Σ_d q·k, masked.

    Attributes
    ----------
    q, k, v
        Views of sizes (batch, heads, m, d), (batch, heads of k, n, d) and (batch, heads of k, n, d of v). `group` is the number
        of query heads per key head.
    scale
        None means d ** -0.5.
    causal
        "", "top left" or "bottom right" (see ir.attention.causal_mask).
    bias, fill
        (batch, heads, m, n), with stride 0 along broadcast dimensions. A floating-point bias is added to the score; where a
        boolean one is false, `fill` replaces the score.
    empty_is_0
        Whether a row whose scores are all -inf gives 0 instead of NaN.
    lse
        (batch, heads, m): if given, receives log Σ_n exp(score) in float32.
    gradients
        If given, the operation is the backward pass: `out` and `lse` are read and the gradients are written.
    scores
        A Loop over (batch, heads, m, n) that replaces `bias` and `causal`. Its store computes the score from the Accumulator,
        the scaled product. It names the row-major buffer SCORES, which has no memory. A backward pass may have a second
        store, to SLOPES: the derivative of the score by the scaled product. Without it, that is 1.
    window
        Masks further keys (see ir.attention.window_mask).
    sequences
        Set for packed or paged sequences; then q, k and v have the sizes of their memory (see attention.layout).
    dropout, random
        If given, softmax weights are dropped as elements of a row-major (batch, heads, m, n); `random`, int64 [2], has the seed
        and the offset of their numbers. The log-sum-exp is that of all weights.
    """

    name: str
    q: View
    k: View
    v: View
    out: View
    scale: float | None
    causal: str = ""
    bias: View | None = None
    fill: float = -float("inf")
    empty_is_0: bool = True
    lse: View | None = None
    origins: tuple[str, ...] = ()
    gradients: Gradients | None = None
    scores: Loop | None = None
    window: tuple[int, int] | None = None
    sequences: Sequences | None = None
    dropout: Dropout | None = None
    random: View | None = None

    @property
    def extents(self) -> tuple[sympy.Expr, ...]:
        """Batch, heads of q, heads of k, rows, keys, d and d of v; rows and keys are those of the longest sequence."""
        (*_, q_heads, rows, d), (*_, heads, keys, _) = self.q.sizes, self.k.sizes
        batch = self.q.sizes[0]
        if self.sequences is not None:
            batch, rows, keys = self.sequences.count, self.sequences.rows, self.sequences.keys
        return batch, q_heads, heads, rows, keys, d, self.v.sizes[-1]

    @property
    def read(self) -> tuple[View, ...]:
        places = self.sequences.views if self.sequences is not None else ()
        left = () if self.gradients is None else (self.out, self.lse, self.gradients.grad, self.gradients.lse)
        own = (self.q, self.k, self.v, self.bias, self.random, *places, *left)
        return tuple(view for view in own if view is not None)

    @property
    def written(self) -> tuple[View, ...]:
        given = self.gradients
        own = (self.out, self.lse) if given is None else (given.dq, given.dk, given.dv, given.dscores)
        return tuple(view for view in own if view is not None)

    @property
    def views(self) -> tuple[View, ...]:
        """The views that are read, followed by those that are written."""
        return (*self.read, *self.written)

    def reads(self) -> set[str]:
        return {view.buffer for view in self.read} | (self.scores.reads() if self.scores is not None else set())

    def writes(self) -> set[str]:
        return {view.buffer for view in self.written}


BLOCK = 1 << 20
"""Number of scores that `attend` and its derivative hold at once, if they can process the rows in blocks: this many fit in a
cache."""


@dataclass(frozen=True)
class Rows:
    """Rows [first, last) of `count`."""

    first: int
    last: int
    count: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """These of a tensor (batch, heads, m, …)."""
        return tensor[:, :, self.first : self.last] if tensor.shape[2] == self.count else tensor

    def seen(self, keys: int, device: torch.device) -> torch.Tensor:
        return torch.ones(self.last - self.first, keys, dtype=torch.bool, device=device)


def causal_mask(kind: str, rows: Rows, keys: int, device: torch.device) -> torch.Tensor:
    """Whether row m attends to key n, as booleans (rows, keys): n ≤ m for "top left", n - keys ≤ m - rows for "bottom right"."""
    shift = keys - rows.count if kind == "bottom right" else 0
    return rows.seen(keys, device).tril(shift + rows.first)


def window_mask(window: tuple[int, int], rows: Rows, keys: int, device: torch.device) -> torch.Tensor:
    """Whether row m attends to key n, as booleans (rows, keys): -before ≤ n - m - (keys - rows) ≤ after, for `window` = (before,
    after). -1 means unbounded on that side."""
    before, after = window
    seen, shift = rows.seen(keys, device), keys - rows.count + rows.first
    seen = seen if after < 0 else seen.tril(shift + after)
    return seen if before < 0 else seen.triu(shift - before)


def masked(
    scores: torch.Tensor, bias: torch.Tensor | None, causal: str = "", fill: float = EMPTY, added: bool = False,
    window: tuple[int, int] | None = None, rows: Rows | None = None,
) -> torch.Tensor:  # fmt: skip
    """Apply mask and bias to scores (..., rows, keys), which are those of all rows unless `rows` are given.

    With `added`, a boolean mask adds -inf where it is false, so that NaN stays NaN; otherwise it sets the score to `fill`.
    """
    if bias is not None and bias.dtype == torch.bool:
        scores = scores + torch.where(bias, 0.0, EMPTY).to(scores.dtype) if added else torch.where(bias, scores, fill)
    elif bias is not None:
        scores = scores + bias.to(scores.dtype)
    count, keys = scores.shape[-2:]
    rows = rows or Rows(0, count, count)
    if causal:
        scores = torch.where(causal_mask(causal, rows, keys, scores.device), scores, EMPTY)
    if window is not None:
        scores = torch.where(window_mask(window, rows, keys, scores.device), scores, EMPTY)
    return scores


def attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    scale: float | None,
    causal: str = "",
    fill: float = EMPTY,
    empty_is_0: bool = True,
    precision: torch.dtype | None = None,
    scores: Callable[[torch.Tensor], tuple[torch.Tensor, ...]] | None = None,
    window: tuple[int, int] | None = None,
    factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(out, lse) of an ir.attention.Attention.

    Parameters
    ----------
    q, k, v
        (batch, heads, m, d), (batch, heads of k, n, d) and (batch, heads of k, n, dv); heads is a multiple of the heads of k.
    precision
        The dtype of the computation; None means the compute dtype of `q`.
    scores
        Computes the scores from the scaled products (batch, heads, m, n), in place of `bias` and `causal`. In a backward pass
        their derivatives by the products may follow.
    factors
        (batch, heads, m, n), what softmax weights are multiplied by: those of dropout (see `factors_of`).
    """
    if scores is None and _has_parts(q, k):
        how: dict[str, Any] = {"scale": scale, "causal": causal, "fill": fill, "empty_is_0": empty_is_0}
        how |= {"precision": precision, "window": window}
        return _by_part(attend, q=q, k=k, v=v, given={"bias": bias, "factors": factors}, **how)
    dtype = precision or compute_dtype(q.dtype)
    scale = math.sqrt(1 / max(1, q.shape[3])) if scale is None else scale
    group = q.shape[1] // max(1, k.shape[1])
    k, v = k.to(dtype), v.to(dtype)
    if group != 1:
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    added = empty_is_0 and fill == EMPTY
    blocks = []
    for rows in _blocks(q, k, whole=scores is not None):
        products = rows.of(q).to(dtype) @ k.transpose(-1, -2) * scale
        own = rows.of(bias) if bias is not None else None
        changed = masked(products, own, causal, fill, added, window, rows) if scores is None else scores(products)[0]
        shares = torch.softmax(changed, -1)
        if empty_is_0:
            shares = torch.where((changed == EMPTY).all(-1, keepdim=True), 0.0, shares)
        shares = shares if factors is None else shares * rows.of(factors)
        blocks.append((shares @ v, torch.logsumexp(changed, -1)))
    out, lse = (torch.cat(each, 2) for each in zip(*blocks, strict=True))
    return out, lse


def attend_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor,
    bias: torch.Tensor | None = None, *, scale: float | None, causal: str = "", fill: float = EMPTY, empty_is_0: bool = True,
    precision: torch.dtype | None = None, window: tuple[int, int] | None = None,
    scores: Callable[[torch.Tensor], tuple[torch.Tensor, ...]] | None = None, grad_lse: torch.Tensor | None = None,
    with_changes: bool = False, factors: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The gradients of q, k and v of `attend`, from its results and the gradients of `out` and, if given, of `lse`; and, with
    `with_changes`, that of the scores. A row that attends to no key, whose lse is -inf, contributes none, and neither does a key
    whose score is -inf."""
    if scores is None and _has_parts(q, k):
        how: dict[str, Any] = {"scale": scale, "causal": causal, "fill": fill, "empty_is_0": empty_is_0}
        how |= {"precision": precision, "window": window, "with_changes": with_changes}
        given = {"out": out, "lse": lse, "grad": grad, "bias": bias, "grad_lse": grad_lse, "factors": factors}
        return _by_part(attend_backward, q=q, k=k, v=v, given=given, **how)
    dtype = precision or compute_dtype(q.dtype)
    scale = math.sqrt(1 / max(1, q.shape[3])) if scale is None else scale
    heads = k.shape[1]
    group = q.shape[1] // max(1, heads)
    q, k, v, out, grad = (each.to(dtype) for each in (q, k, v, out, grad))
    if group != 1:
        k, v = (each.repeat_interleave(group, 1) for each in (k, v))
    delta = (grad * out).sum(-1, keepdim=True)
    delta = delta if grad_lse is None else delta - grad_lse.to(dtype).unsqueeze(-1)
    added = empty_is_0 and fill == EMPTY
    gradients: list[tuple[torch.Tensor, ...]] = []
    dk, dv = torch.zeros_like(k), torch.zeros_like(v)
    for rows in _blocks(q, k, whole=scores is not None):
        own_q, own_grad, own_lse = rows.of(q), rows.of(grad), rows.of(lse)
        own = rows.of(bias) if bias is not None else None
        products = own_q @ k.transpose(-1, -2) * scale
        changed, *slopes = scores(products) if scores is not None else (
            masked(products, own, causal, fill, added, window, rows),
        )  # fmt: skip
        shares = torch.exp(changed - torch.where(own_lse == EMPTY, 0.0, own_lse).to(dtype).unsqueeze(-1))
        of_shares = own_grad @ v.transpose(-1, -2)
        dropped = shares if factors is None else shares * rows.of(factors)
        of_shares = of_shares if factors is None else of_shares * rows.of(factors)
        of_scores = shares * (of_shares - rows.of(delta))
        changes = of_scores * scale
        for slope in slopes:
            changes = torch.where(changed == EMPTY, 0.0, changes * slope)
        if own is not None and own.dtype == torch.bool:  # a replaced score does not depend on q and k
            changes = torch.where(own, changes, 0.0)
        dk += changes.transpose(-1, -2) @ own_q
        dv += dropped.transpose(-1, -2) @ own_grad
        gradients.append((changes @ k, of_scores) if with_changes else (changes @ k,))
    dq, *more = (torch.cat(each, 2) for each in zip(*gradients, strict=True))
    if group != 1:
        dk, dv = (each.unflatten(1, (heads, group)).sum(2) for each in (dk, dv))
    return dq, dk, dv, *more


def factors_of(dropout: Dropout | None, random: torch.Tensor | None, shape: tuple[int, ...]) -> torch.Tensor | None:
    """What `dropout` multiplies softmax weights (batch, heads, m, n) by, in float32; None without it."""
    if dropout is None or random is None:
        return None
    return kept(dropout, random, shape).to(torch.float32).mul_(dropout.factor)


def _has_parts(q: torch.Tensor, k: torch.Tensor) -> bool:
    """Whether there are more than BLOCK scores, of more than one head of k."""
    return q.shape[0] * k.shape[1] > 1 and q.shape[:3].numel() * k.shape[2] > BLOCK


def _by_part(
    run: Callable[..., Any], q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, given: Mapping[str, torch.Tensor | None],
    **how: Any,
) -> Any:  # fmt: skip
    """The results of `run`, which is called for each head of k of each batch with the parts of q, k, v and the tensors `given`,
    (batch, heads, …), that belong to it."""
    batch, heads, tensors = q.shape[0], k.shape[1], {"q": q, "k": k, "v": v, **given}

    def part(tensor: torch.Tensor, b: int, h: int) -> torch.Tensor:
        tensor = tensor[b : b + 1] if tensor.shape[0] > 1 else tensor
        count = max(1, tensor.shape[1] // heads)
        return tensor[:, h * count : (h + 1) * count] if tensor.shape[1] > 1 else tensor

    def results(b: int, h: int) -> tuple[torch.Tensor, ...]:
        return run(**{name: None if each is None else part(each, b, h) for name, each in tensors.items()}, **how)

    of_heads = [[results(b, h) for h in range(heads)] for b in range(batch)]
    of_batches = [[torch.cat(each, 1) for each in zip(*row, strict=True)] for row in of_heads]
    return tuple(torch.cat(each) for each in zip(*of_batches, strict=True))


def _blocks(q: torch.Tensor, k: torch.Tensor, whole: bool) -> Iterator[Rows]:
    """Blocks of rows with BLOCK scores; all rows at once if they have to be `whole`."""
    count = q.shape[2]
    step = max(1, count) if whole else max(1, BLOCK // max(1, q.shape[0] * q.shape[1] * k.shape[2]))
    for first in range(0, max(1, count), step):
        yield Rows(first, min(first + step, count), count)


# sequences of their own lengths -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sequence:
    """One sequence of a batch. `rows` and `keys` select its part, (1, heads, m, d) or (1, heads, m), of a tensor laid out like q
    or like k."""

    rows: Callable[[torch.Tensor], torch.Tensor]
    keys: Callable[[torch.Tensor], torch.Tensor]


def sequences(indices: Mapping[str, torch.Tensor], count: int) -> Iterator[Sequence]:
    """Each sequence of a batch that the integer tensors in `indices` describe (see attention.layout)."""
    known = {name: tensor.tolist() for name, tensor in indices.items() if name != "table"}
    for b in range(count):
        yield Sequence(_rows(known.get("q_starts"), None, b), _keys(known, indices.get("table"), b))


def _rows(starts: list[int] | None, used: int | None, b: int) -> Callable[[torch.Tensor], torch.Tensor]:
    if starts is None:
        return lambda tensor: tensor[b : b + 1, :, :used]
    begin, end = starts[b], max(starts[b], starts[b + 1])
    return lambda tensor: tensor[:, begin : end if used is None else min(end, begin + used)].unsqueeze(0)


def _keys(known: Mapping[str, list[int]], table: torch.Tensor | None, b: int) -> Callable[[torch.Tensor], torch.Tensor]:
    used = known["k_used"][b] if "k_used" in known else None
    if table is None:
        return _rows(known.get("k_starts"), used, b)
    pages = table[b]
    return lambda tensor: gathered(tensor, pages[None, : used if used is None else -(-used // tensor.shape[2])])[
        :, :, :used
    ]


def gathered(pages: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The keys (B, heads, n, d) from the `pages` (pages, heads, page, d) that `table` (B, slots) lists."""
    return pages[table.long()].transpose(1, 2).flatten(2, 3)


def attend_sequences(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor | None,
    indices: Mapping[str, torch.Tensor], count: int, keys: int, **settings: Any,
) -> None:  # fmt: skip
    """Write `attend` of each of `count` sequences, of at most `keys` keys, to its part of `out` and `lse`."""
    if set(indices) == {"table"}:  # all sequences have the same length
        k, v = (gathered(each, indices["table"])[:, :, :keys] for each in (k, v))
        result, logarithm = attend(q, k, v, **settings)
        out.copy_(result)
        if lse is not None:
            lse.copy_(logarithm)
        return
    for each in sequences(indices, count):
        result, logarithm = attend(each.rows(q), each.keys(k), each.keys(v), **settings)
        each.rows(out).copy_(result)
        if lse is not None:
            each.rows(lse).copy_(logarithm)


def attend_sequences_backward(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, grad: torch.Tensor,
    gradients: tuple[torch.Tensor, ...], indices: Mapping[str, torch.Tensor], count: int, **settings: Any,
) -> None:  # fmt: skip
    """Write `attend_backward` of each of `count` sequences to its part of the gradients of q, k and v."""
    dq, dk, dv = gradients
    for each in sequences(indices, count):
        left = map(each.rows, (out, lse, grad))
        computed = attend_backward(each.rows(q), each.keys(k), each.keys(v), *left, **settings)
        for place, value in zip((each.rows(dq), each.keys(dk), each.keys(dv)), computed, strict=False):
            place.copy_(value)
