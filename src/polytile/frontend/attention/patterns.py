"""Recognises decomposed attention in an ATen graph, and replaces it by one operator.

    bmm → scale, bias, mask → softmax → bmm        →        polytile::attention

The products in the graph are batched matrices with views around them; `heads` finds the four-dimensional tensors from which they
were made. A graph is unchanged if something in between is more than attention, or has other users; the second product then has
the reason in its `meta`, which explain() lists.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from polytile.frontend.attention.dropout import dropped_input
from polytile.frontend.attention.masks import simplified
from polytile.frontend.attention.operator import ATTENTION, ATTENTION_OF, COMPUTED
from polytile.frontend.attention.operator import PRODUCTS as PRODUCTS_OF
from polytile.frontend.attention.pages import read_in_place
from polytile.frontend.attention.regions import Region, region_of
from polytile.frontend.attention.scores import PRODUCTS, SOFTMAXES, NotAttention, Scores, scores_of
from polytile.frontend.attention.trained import BACKWARD, TRAINED
from polytile.frontend.attention.views import (
    CASTS,
    EXPAND,
    PERMUTE,
    RESHAPES,
    UNSQUEEZE,
    VIEWS,
    inserted,
    is_one,
    keeps_order,
    number,
    plain,
    same,
    shape,
    source,
    unrepeated,
    uses,
    value,
)
from polytile.frontend.taken_apart import KEY, Name, Result
from polytile.ir.attention import EMPTY

aten = torch.ops.aten

REASON = "polytile_not_attention"
"""The key in a node's `meta` of the reason why the product after a softmax is not part of an attention."""

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
MOST_VIEWS = 12
"""Maximum number of views between a softmax and a product."""


def recognise(module: torch.fx.GraphModule) -> None:
    """Replace decomposed attention by polytile::attention in an ATen graph without gradients."""
    graph = module.graph
    names = {node.name: node for node in graph.nodes}
    changed = False
    for node in list(graph.nodes):
        softmax = softmax_before(node) if node.target in PRODUCTS else None
        if softmax is None:
            continue
        changed = True  # nodes inserted by a failed rewriting are erased again
        try:
            Rewriting(module, node, *softmax, names).run()
        except NotAttention as why:
            node.meta[REASON] = f"no attention: {why}"
    for node in list(graph.nodes):
        if node.target == ATTENTION:
            changed = _without_mask_of_positions(graph, node) or changed
        if node.target in (ATTENTION, ATTENTION_OF):
            changed = _without_repetitions(graph, node) or changed
        if node.target == ATTENTION:
            changed = read_in_place(graph, node) or changed
    if changed:
        erase_unused(graph)
        graph.lint()
        module.recompile()


def is_softmax(node: torch.fx.Node) -> bool:
    """Whether the node is the result of a softmax that the tracer took apart."""
    noted = node.meta.get(KEY)
    return isinstance(noted, Result) and noted.call.target in SOFTMAXES


def softmax_before(product: torch.fx.Node, dropped: bool = False) -> tuple[torch.fx.Node, list[torch.fx.Node]] | None:
    """The softmax over the last dimension that is the left operand of a product, and the views between them; if it may be
    `dropped`, dropout too."""
    node, path = product.args[0], list[torch.fx.Node]()
    while isinstance(node, torch.fx.Node) and len(path) < MOST_VIEWS:
        if is_softmax(node):
            noted = node.meta[KEY]
            argument, dim = noted.call.args[:2]
            last = isinstance(argument, Name) and dim in (-1, value(node).ndim - 1)
            return (node, path) if last else None
        if dropped and (drawn := dropped_input(node)) is not None:
            path[:0] = [drawn, node]
            node = drawn.args[0]
            continue
        if node.target not in VIEWS:
            return None
        path.insert(0, node)
        node = node.args[0]
    return None


class Rewriting:
    """The rewriting of one attention, with the `path` from `softmax` to the second product `last`."""

    def __init__(
        self, module: torch.fx.GraphModule, last: torch.fx.Node, softmax: torch.fx.Node, path: list[torch.fx.Node],
        names: dict[str, torch.fx.Node],
    ) -> None:  # fmt: skip
        self.module, self.graph, self.last, self.softmax, self.path = module, module.graph, last, softmax, path
        self.names = names

    def run(self) -> None:
        """Raises NotAttention before any node is replaced."""
        argument, empty_is_0 = self._argument()
        try:
            scores = scores_of(argument, self.module)
        except NotAttention as why:
            attention = self._attention_of(region_of(argument, self.softmax, self.module, why), empty_is_0)
            with self.graph.inserting_before(self.last):
                self._replace(attention)
            return
        with self.graph.inserting_before(self.last):
            attention = self._attention(scores, empty_is_0)
            self._replace(attention)

    def _argument(self) -> tuple[torch.fx.Node, bool]:
        """The softmax's argument, and whether a row of -inf gives 0."""
        if any(len(uses(node)) != 1 for node in (self.softmax, *self.path)):
            raise NotAttention("the softmax has other uses")
        call = self.softmax.meta[KEY].call
        argument = self.names.get(call.args[0].node)
        if argument is None or not 2 <= value(self.softmax).ndim <= 4:
            raise NotAttention(f"the softmax has {value(self.softmax).ndim} dimensions")
        if not keeps_order(self.softmax, self.path):
            raise NotAttention("the softmax is transposed before the second product")
        return argument, SOFTMAXES[call.target]

    # the operator ------------------------------------------------------------------------------------------------------

    def _attention(self, scores: Scores, empty_is_0: bool) -> torch.fx.Node:
        q, k, v, scale = self._operands(scores.left, scores.right, scores.scale)
        for divides, factor in scores.factors:
            q = self._insert(aten.div.Tensor if divides else aten.mul.Tensor, q, factor)
        self._check_types(q, k, v)
        bias, fill = self._bias(scores, q, k)
        return self._insert(ATTENTION, q, k, v, bias, scale, "", fill, empty_is_0)

    def _attention_of(self, region: Region, empty_is_0: bool) -> torch.fx.Node:
        """The attention whose scores are any function of the products."""
        left, right = region.product.args
        assert isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node)
        with self.graph.inserting_before(self.last):
            q, k, v, scale = self._operands(left, right, region.scale)
            self._check_types(q, k, v)
            if any(size == 0 for each in (q, k, v) for size in shape(each) if isinstance(size, int)):
                raise NotAttention("it has no elements")
            products = self._insert(PRODUCTS_OF, q, k, scale, value(region.root).dtype)
            copies = {region.root: self._as_softmax(products)}
            for node in region.nodes:
                copies[node] = self.graph.node_copy(node, lambda given: copies.get(given, given))
                copies[node].meta[COMPUTED] = True
            scores = self._of_rank_4(copies[(region.root, *region.nodes)[-1]])
            return self._insert(ATTENTION_OF, q, k, v, scores, scale, empty_is_0)

    def _as_softmax(self, scores: torch.fx.Node) -> torch.fx.Node:
        """Scores (batch, heads, m, n) in the rank of the softmax."""
        missing = {2: [0, 1], 3: [1], 4: []}[value(self.softmax).ndim]
        return self._insert(aten.squeeze.dims, scores, missing) if missing else scores

    def _of_rank_4(self, scores: torch.fx.Node) -> torch.fx.Node:
        if value(scores).ndim == 2:
            scores = self._insert(UNSQUEEZE, scores, 0)
        return self._insert(UNSQUEEZE, scores, 1) if value(scores).ndim == 3 else scores

    def _operands(
        self, left: torch.fx.Node, right: torch.fx.Node, scale: float
    ) -> tuple[torch.fx.Node, torch.fx.Node, torch.fx.Node, float]:
        """q, k and v with their heads, and the scale including the factors of q or k."""
        values = self.last.args[1]
        assert isinstance(values, torch.fx.Node)
        q, k, v = self._heads(left), self._heads(right), self._heads(values)
        turned = k.target == PERMUTE and k.args[1] == [0, 1, 3, 2]
        k = source(k) if turned else self._insert(PERMUTE, k, [0, 1, 3, 2])
        q, k, scale = self._narrowed(q, k, v, scale)
        return q, k, v, scale

    def _check_types(self, q: torch.fx.Node, k: torch.fx.Node, v: torch.fx.Node) -> None:
        kinds = {value(each).dtype for each in (q, k, v)} | {value(self.last).dtype}
        if len(kinds) > 1 or not kinds <= set(DTYPES):
            raise NotAttention(f"its operands are of {', '.join(sorted(map(str, kinds)))}")

    def _heads(self, node: torch.fx.Node) -> torch.fx.Node:
        """An operand of a product as (batch, heads, rows, columns): the tensor of which it is a view, if there is one."""
        rank = value(self.softmax).ndim
        if rank < 4:
            for _ in range(3 - value(node).ndim):
                node = self._insert(UNSQUEEZE, node, 0)
            return self._insert(UNSQUEEZE, plain(node), 1)
        wanted = (*shape(self.softmax)[:2], *shape(node)[-2:])
        base = plain(node)
        if base.target in RESHAPES:
            base = plain(source(base))
            sizes = shape(base)
            left_out = [d for d, n in enumerate(sizes) if is_one(n) and same((*sizes[:d], *sizes[d + 1 :]), wanted)]
            base = self._insert(aten.squeeze.dims, base, left_out[-1:]) if left_out else base
        if value(base).ndim == 4 and same(shape(base), wanted):
            return base
        lengths = [*self._sizes(self.softmax, 0, 1), *self._sizes(node, 1, 2)]
        return self._insert(aten.view.default, node, lengths)

    def _narrowed(
        self, q: torch.fx.Node, k: torch.fx.Node, v: torch.fx.Node, scale: float
    ) -> tuple[torch.fx.Node, torch.fx.Node, float]:
        """q and k without constant factors, which move to the scale, and without conversions from v's dtype to a wider one."""
        q, of_q = self._unscaled(q)
        k, of_k = self._unscaled(k)
        for_all = [each.target in CASTS and value(source(each)).dtype == value(v).dtype for each in (q, k)]
        if all(for_all):
            q, k = source(q), source(k)
        return q, k, scale * of_q * of_k

    def _unscaled(self, node: torch.fx.Node) -> tuple[torch.fx.Node, float]:
        """`node` and 1, or the node of which it is a multiple, and the factor. Views are applied to that again."""
        views, inner = list[torch.fx.Node](), node
        while inner.target in (PERMUTE, EXPAND, UNSQUEEZE, aten.clone.default) and len(views) < MOST_VIEWS:
            views.append(inner)
            inner = source(inner)
        if inner.target not in (aten.mul.Tensor, aten.div.Tensor):
            return node, 1.0
        known = number(inner.args[1], self.module)
        if known is None or not same(shape(source(inner)), shape(inner)) or value(source(inner)).dtype != value(inner).dtype:
            return node, 1.0
        factor, inner = 1 / known if inner.target == aten.div.Tensor else known, source(inner)
        for view in reversed([view for view in views if view.target != aten.clone.default]):
            inner = self._insert(view.target, inner, *view.args[1:])
        return inner, factor

    # mask and bias -----------------------------------------------------------------------------------------------------

    def _bias(self, scores: Scores, q: torch.fx.Node, k: torch.fx.Node) -> tuple[torch.fx.Node | None, float]:
        """The bias or mask (batch, heads, m, n), and the fill for masked scores."""
        total: torch.fx.Node | None = None
        for bias, views in scores.added:
            one = self._reshaped(bias, views)
            if not value(one).is_floating_point():  # an added boolean counts as a number
                one = self._insert(aten._to_copy.default, one, dtype=value(q).dtype)
            total = one if total is None else self._insert(aten.add.Tensor, total, one)
        kept = scores.kept
        if kept is not None and value(kept).dtype != torch.bool:
            raise NotAttention(f"its mask is of {value(kept).dtype}")
        if kept is not None and total is not None:
            fake = value(total)
            lowest = max(scores.fill, torch.finfo(fake.dtype).min) if scores.fill > -torch.inf else scores.fill
            low = self._insert(aten.full.default, [], lowest, dtype=fake.dtype, device=fake.device)
            total = self._insert(aten.where.self, kept, *((low, total) if scores.inverted else (total, low)))
        elif kept is not None:
            total = self._insert(aten.logical_not.default, kept) if scores.inverted else kept
        if total is None:
            return None, -torch.inf
        if value(total).dtype not in (torch.bool, *DTYPES):
            raise NotAttention(f"its bias is of {value(total).dtype}")
        return self._expanded(total, q, k), scores.fill if value(total).dtype == torch.bool else -torch.inf

    def _reshaped(self, bias: torch.fx.Node, views: Sequence[torch.fx.Node]) -> torch.fx.Node:
        """A bias that is added before `views`, as one after them."""
        reshapes = [view for view in views if view.target not in (aten.clone.default, EXPAND)]
        if not reshapes or same(shape(source(reshapes[0])), shape(self.softmax)):  # or the last view undoes the first
            return bias
        inner = source(reshapes[0])
        bias = self._insert(EXPAND, bias, self._sizes(inner, *range(value(inner).ndim)))
        for view in reshapes:
            if view.target in RESHAPES:
                bias = self._insert(aten.clone.default, bias, memory_format=torch.contiguous_format)
            bias = self._insert(view.target, bias, *view.args[1:])
        return bias

    def _expanded(self, bias: torch.fx.Node, q: torch.fx.Node, k: torch.fx.Node) -> torch.fx.Node:
        """A bias of the softmax's shape, or one that broadcasts to it, as (batch, heads, m, n)."""
        rank = value(self.softmax).ndim
        for _ in range(rank - value(bias).ndim):
            bias = self._insert(UNSQUEEZE, bias, 0)
        if rank == 3:
            bias = self._insert(UNSQUEEZE, bias, 1)
        elif rank == 2:
            bias = self._insert(UNSQUEEZE, self._insert(UNSQUEEZE, bias, 0), 0)
        return self._insert(EXPAND, bias, [*self._sizes(q, 0, 1, 2), *self._sizes(k, 2)])

    # the result --------------------------------------------------------------------------------------------------------

    def _replace(self, attention: torch.fx.Node) -> None:
        """Replace the second product, and the view that splits it again, by `attention` (batch, heads, m, d)."""
        users = uses(self.last)
        if len(users) == 1 and users[0].target in RESHAPES and same(shape(users[0]), shape(attention)):
            users[0].replace_all_uses_with(attention)
            _without_copies(attention)
            return
        if value(self.softmax).ndim < 4:
            result = self._insert(aten.squeeze.dims, attention, [1] if value(self.last).ndim == 3 else [0, 1])
        else:
            rows = self._insert(aten.clone.default, attention, memory_format=torch.contiguous_format)
            right = self.last.args[1]
            assert isinstance(right, torch.fx.Node)
            result = self._insert(aten.view.default, rows, [*self._sizes(right, 0), *self._sizes(attention, 2, 3)])
        self.last.replace_all_uses_with(result)

    def _sizes(self, node: torch.fx.Node, *dims: int) -> list[Any]:
        """Sizes of `node` as numbers or nodes. Nodes that the graph has already are reused, so that these keep nothing alive."""
        lengths: list[Any] = []
        for d in dims:
            size = shape(node)[d]
            known = size if isinstance(size, int) else self._known_sizes.get(size.node.expr)
            lengths.append(known if known is not None else self._insert(aten.sym_size.int, node, d))
        return lengths

    @functools.cached_property
    def _known_sizes(self) -> dict[Any, torch.fx.Node]:
        """The nodes before the second product that are symbolic numbers, by their expressions."""
        ahead = itertools.takewhile(lambda node: node is not self.last, self.graph.nodes)
        numbers = [node for node in ahead if isinstance(node.meta.get("val"), torch.SymInt) and node.target != aten.sym_size.int]
        return {node.meta["val"].node.expr: node for node in reversed(numbers)}

    def _insert(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        return inserted(self.graph, target, *args, **kwargs)


def _without_copies(attention: torch.fx.Node) -> None:
    """Drop a copy after a permutation of the result that is row-major already, as the heads of a row are contiguous."""
    for turned in [user for user in attention.users if user.target == PERMUTE]:
        turned.meta["val"] = value(attention).permute(turned.args[1])  # type: ignore[arg-type]
        for copy in [user for user in turned.users if user.target == aten.clone.default]:
            row_major = copy.kwargs.get("memory_format") == torch.contiguous_format
            if row_major and all(user.op != "output" for user in copy.users) and value(turned).is_contiguous():
                copy.replace_all_uses_with(turned)


def simplify_masks(graph: torch.fx.Graph) -> None:
    """Replace masks that mask nothing, or are causal, in the graph of a training step, before it is split."""
    for node in list(graph.nodes):
        if node.target in (TRAINED, BACKWARD):
            _without_mask_of_positions(graph, node)


def _without_mask_of_positions(graph: torch.fx.Graph, attention: torch.fx.Node) -> bool:
    """Replace an attention's mask that masks nothing, or is causal, by the attribute."""
    at_q, at_k, at_mask, at_causal = _PLACES[attention.target]
    arguments = list(attention.args)
    q, k, mask = arguments[at_q], arguments[at_k], arguments[at_mask]
    if arguments[at_causal] or not isinstance(mask, torch.fx.Node) or value(mask).dtype != torch.bool:
        return False
    simpler, fill = simplified(mask), arguments[6] if attention.target == ATTENTION else EMPTY
    if simpler is None or (simpler.causal and fill != EMPTY):
        return False
    left: torch.fx.Node | None = None
    with graph.inserting_before(attention):
        for other in simpler.others:
            left = other if left is None else inserted(graph, aten.bitwise_and.Tensor, left, other)
        if left is not None:
            sizes = [(node, d, shape(node)[d]) for node, d in ((q, 0), (q, 1), (q, 2), (k, 2))]  # type: ignore[arg-type]
            known = [n if isinstance(n, int) else inserted(graph, aten.sym_size.int, node, d) for node, d, n in sizes]
            left = inserted(graph, EXPAND, left, known)
    arguments[at_mask], arguments[at_causal] = left, simpler.causal
    attention.args = tuple(arguments)
    return True


_PLACES: dict[Any, tuple[int, int, int, int]] = {ATTENTION: (0, 1, 3, 5), TRAINED: (0, 1, 3, 5), BACKWARD: (1, 2, 4, 8)}
"""Which arguments of an operator are q, k, the mask and what a causal one is called."""


def _without_repetitions(graph: torch.fx.Graph, attention: torch.fx.Node) -> bool:
    """Make an attention read keys and values that are repeated for several heads from the unrepeated tensor."""
    bases = [unrepeated(node) for node in attention.args[1:3]]  # type: ignore[arg-type]
    if any(base is None for base in bases):
        return False
    with graph.inserting_before(attention):
        singles = [inserted(graph, aten.squeeze.dims, base, [2]) for base in bases]
    attention.args = (attention.args[0], *singles, *attention.args[3:])
    return True


def erase_unused(graph: torch.fx.Graph) -> None:
    """Erase operators without users. A size that the graph knows under an earlier name keeps nothing alive."""
    known: dict[Any, torch.fx.Node] = {}
    for node in list(graph.nodes):
        number = node.meta.get("val")
        if isinstance(number, torch.SymInt):
            earlier = known.setdefault(number.node.expr, node)
            if earlier is not node and node.target == aten.sym_size.int:
                node.replace_all_uses_with(earlier)
    for node in reversed(list(graph.nodes)):
        target = node.target
        if node.users or not isinstance(target, torch._ops.OpOverload) or target.namespace not in ("aten", "prims", "polytile"):
            continue
        schema = target._schema
        if schema.returns and not schema.is_mutable and torch.Tag.nondeterministic_seeded not in target.tags:
            graph.erase_node(node)
