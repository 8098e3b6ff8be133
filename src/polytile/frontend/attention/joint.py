"""Recognises decomposed attention in the joint graph of a training step, and replaces it by one node each way.

    bmm → scale, bias, mask → softmax → bmm, and the derivatives of these        →        held, held_backward

The forward pass is read as in inference (patterns.py), the backward pass in derivatives.py. Scores and their slopes become
expressions (held.py), so the forward pass saves q, k, v, the result and its log-sum-exp, and nothing with an element for each
query and key. Attention whose scores cannot be computed in kernels stays as it is, with the reason in its `meta`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from operator import getitem
from typing import Any

import torch
import torch.fx

from polytile.frontend.attention.derivatives import Gradients, Joint
from polytile.frontend.attention.dropout import DROPPED, STATE, Dropped, dropout_of, erase_dropped
from polytile.frontend.attention.expressions import expression_of
from polytile.frontend.attention.held import held, held_backward, hold
from polytile.frontend.attention.masked_calls import hold_masked_calls
from polytile.frontend.attention.operator import OF_BACKWARD, PRODUCTS, WITH_LSE
from polytile.frontend.attention.patterns import REASON, Rewriting, erase_unused, is_softmax, softmax_before
from polytile.frontend.attention.regions import Region, is_by_elements, region_of
from polytile.frontend.attention.scores import PRODUCTS as MATRIX_PRODUCTS
from polytile.frontend.attention.scores import NotAttention, Scores, scores_of
from polytile.frontend.attention.trained import LONGEST
from polytile.frontend.attention.views import (
    BACKWARD,
    CASTS,
    PERMUTE,
    RESHAPES,
    UNSQUEEZE,
    VIEWS,
    keeps_order,
    loosen_views,
    number,
    same,
    shape,
    source,
    value,
)

aten = torch.ops.aten

DIVISIONS = (aten.div.Tensor, aten.div.Scalar)
TAGS = ("recompute", "ac_graph_id")
"""Keys in a node's `meta` of what activation checkpointing says about it."""


def recognise_in_training(module: torch.fx.GraphModule, results: int) -> None:
    """Replace decomposed attention in a joint graph, whose first `results` outputs are those of the forward pass."""
    graph = module.graph
    changed = hold_masked_calls(graph)
    _note_changed_weights(graph)
    candidates = [(node, softmax) for node in graph.nodes if (softmax := _softmax_before_product(node)) is not None]
    if candidates:
        _recognise(module, candidates, results)
    if candidates or changed:
        erase_unused(graph)
        erase_dropped(graph)
        erase_unused(graph)
        graph.lint()
        module.recompile()


def _recognise(module: torch.fx.GraphModule, candidates: Sequence[Any], results: int) -> None:
    graph = module.graph
    outputs: Any = graph.output_node().args[0]
    with_results = _needed_by(outputs[:results])
    backward = [node for node in graph.nodes if node not in with_results and node.op == "call_function"]
    for node in backward:
        node.meta[BACKWARD] = True
    joint = Joint.of(module)
    for node, softmax in candidates:
        if BACKWARD not in node.meta:
            try:
                _Training(joint, node, *softmax).run()
            except NotAttention as why:
                node.meta[REASON] = f"no attention: {why}"
    for node in backward:
        node.meta.pop(BACKWARD, None)


def _note_changed_weights(graph: torch.fx.Graph) -> None:
    """Say of the products of a softmax that is changed before them, as by dropout, that they are no attention."""
    weights = set[torch.fx.Node]()
    for node in graph.nodes:
        changed = not weights.isdisjoint(node.all_input_nodes)
        if is_softmax(node) or (changed and node.target in (*VIEWS, aten.mul.Tensor)):
            weights.add(node)
        elif changed and node.target in MATRIX_PRODUCTS and node.args[0] in weights and softmax_before(node) is None:
            node.meta[REASON] = "no attention: its weights are changed between the softmax and the second product"


def _softmax_before_product(node: torch.fx.Node) -> tuple[torch.fx.Node, list[torch.fx.Node]] | None:
    return softmax_before(node, dropped=True) if node.target in MATRIX_PRODUCTS else None


def _needed_by(outputs: Any) -> set[torch.fx.Node]:
    """Some of a graph's outputs, and what they are computed from."""
    needed, left = set[torch.fx.Node](), [node for node in outputs if isinstance(node, torch.fx.Node)]
    while left:
        node = left.pop()
        if node not in needed:
            needed.add(node)
            left += node.all_input_nodes
    return needed


def _is_short(head: Any) -> bool:
    """Whether kernels take heads of this size: by what it was in the traced call, if it is known only in a call. Longer ones then
    run with scores in memory."""
    known = head if isinstance(head, int) else head.node.hint
    return known is not None and known <= LONGEST


class _Training(Rewriting):
    """The rewriting of one attention and of its derivative."""

    def __init__(self, joint: Joint, last: torch.fx.Node, softmax: torch.fx.Node, path: list[torch.fx.Node]) -> None:
        super().__init__(joint.module, last, softmax, path, joint.names)
        self.joint = joint

    def run(self) -> None:
        """Raises NotAttention before any node is replaced."""
        argument, empty_is_0 = self._argument()
        scored = self._scored(argument)
        product = scored.product
        left, right = product.args[-2:]
        assert isinstance(left, torch.fx.Node) and isinstance(right, torch.fx.Node)
        dropped = self._dropped()
        gradients = self.joint.gradients(self.softmax, self.last, left, right, dropped)
        if gradients is None and dropped is not None:
            raise NotAttention("its weights are dropped without a gradient")
        if gradients is None:
            super().run()
            return
        with self.graph.inserting_before(self.last):
            q, k, v, scale = self._operands(left, right, scored.scale)
            self._check_types(q, k, v)
            root, scores, one, slopes = self._computed(scored, gradients, q, k, argument)
        self._check_sizes(q, v)
        how = None if dropped is None else dropped.how
        forward, seen = expression_of(root, (scores,), empty_is_0, dropout=how)
        backward, seen_again = expression_of(root, (scores, slopes), empty_is_0, [one], how)
        first = min(gradients.products)
        if any(first < node for node in seen_again):
            raise NotAttention("the derivative of its scores needs tensors of the backward pass")
        random = None if dropped is None else self._state(dropped)
        with self.graph.inserting_before(self.last):
            fakes = WITH_LSE(*map(value, (q, k, v, scores)), scale, empty_is_0)
            attention = self._tagged(hold(self.graph, held, forward, (q, k, v, seen, random), fakes))
            out, lse = (self._tagged(self._item(attention, number)) for number in range(2))
            self._replace(out)
            loosen_views(out)
        with self.graph.inserting_before(first):
            given = q, k, v, seen_again, out, lse, self._heads(gradients.grad)
            fakes = OF_BACKWARD(*map(value, (q, k, v, scores, slopes, *given[4:])), None, scale)
            self._replace_gradients(gradients, hold(self.graph, held_backward, backward, (*given, random), fakes))

    def _dropped(self) -> Dropped | None:
        """The dropout of the weights, as elements in the order of the softmax's."""
        dropped = dropout_of(self.path)
        if dropped is not None and not keeps_order(self.softmax, self.path[: self.path.index(dropped.node)]):
            raise NotAttention("its weights are dropped in another order")
        return dropped

    def _state(self, dropped: Dropped) -> torch.fx.Node:
        """The state of dropout's numbers, taken where the graph draws its mask."""
        weights, dropped.node.meta[DROPPED] = source(dropped.node), True
        with self.graph.inserting_before(dropped.node):
            known = self._sizes(self.softmax, *range(value(self.softmax).ndim))
            late = [d for d, size in enumerate(known) if isinstance(size, torch.fx.Node) and dropped.node < size]
            shape = [self._insert(aten.sym_size.int, self.softmax, d) if d in late else size for d, size in enumerate(known)]
            return self._insert(STATE, shape, dropped.how.threads, device=value(weights).device)

    def _check_sizes(self, q: torch.fx.Node, v: torch.fx.Node) -> None:
        if not value(q).is_cuda:
            return
        if value(q).dtype == torch.float32:
            raise NotAttention("on a GPU its gradient is computed in 16-bit types only")
        if not all(_is_short(shape(each)[3]) for each in (q, v)):
            raise NotAttention(f"on a GPU its gradient is computed for heads of up to {LONGEST}")

    def _narrowed(
        self, q: torch.fx.Node, k: torch.fx.Node, v: torch.fx.Node, scale: float
    ) -> tuple[torch.fx.Node, torch.fx.Node, float]:
        """q and k as the products read them, with dense rows, because their gradients are those of these products."""
        return self._dense(q), self._dense(k), scale

    def _dense(self, node: torch.fx.Node) -> torch.fx.Node:
        dense = isinstance(value(node).stride(-1), int) and value(node).stride(-1) == 1
        return node if dense else self._insert(aten.clone.default, node, memory_format=torch.contiguous_format)

    def _item(self, node: torch.fx.Node, index: int) -> torch.fx.Node:
        item = self.graph.call_function(getitem, (node, index))
        item.meta["val"] = node.meta["val"][index]
        return item

    def _tagged(self, node: torch.fx.Node) -> torch.fx.Node:
        """A node with what activation checkpointing says about the second product."""
        node.meta |= {key: self.last.meta[key] for key in TAGS if key in self.last.meta}
        return node

    # scores ------------------------------------------------------------------------------------------------------------

    def _scored(self, argument: torch.fx.Node) -> Region | Scores:
        """The scores as elementwise operators on the products, or with biases that are added in another shape."""
        scores, why = None, NotAttention("a mask has another shape than the softmax")
        try:
            scores = scores_of(argument, self.module)
        except NotAttention as reason:
            why = reason
        try:
            return region_of(argument, self.softmax, self.module, why)
        except NotAttention:
            if scores is None or scores.factors:
                raise
            return scores

    def _computed(
        self, scored: Region | Scores, gradients: Gradients, q: torch.fx.Node, k: torch.fx.Node, argument: torch.fx.Node
    ) -> tuple[torch.fx.Node, torch.fx.Node, torch.fx.Node, torch.fx.Node]:
        """New nodes for the scaled products, the scores (batch, heads, m, n), a 1, and the slopes that are computed from it."""
        products = self._insert(PRODUCTS, q, k, scored.scale, torch.float32)
        recomputed = dict[torch.fx.Node, torch.fx.Node]()
        if isinstance(scored, Scores):
            bias, fill = self._bias(scored, q, k)
            scores = [products, *([self._biased(products, bias, fill)] if bias is not None else [])]
        else:
            recomputed[scored.root] = self._as_softmax(products)
            for node in scored.nodes:
                recomputed[node] = self._unrounded(node, recomputed)
            scores = list(dict.fromkeys(recomputed.values()))
        shift = self.joint.shifts.shift_of(self.graph, scores)
        last = scores[-1] if shift is None else self._insert(aten.sub.Tensor, scores[-1], shift)
        one = self._full(1.0)
        slopes = self._slopes(one, gradients, scored.scale, recomputed)
        with_heads = value(self.softmax).ndim == value(slopes).ndim == 3
        return products, self._of_rank_4(last), one, self._insert(UNSQUEEZE, slopes, 1) if with_heads else slopes

    def _biased(self, products: torch.fx.Node, bias: torch.fx.Node, fill: float) -> torch.fx.Node:
        if value(bias).dtype != torch.bool:
            return self._insert(aten.add.Tensor, products, bias)
        return self._insert(aten.where.self, bias, products, self._full(fill))

    def _full(self, number: float) -> torch.fx.Node:
        return self._insert(aten.full.default, [], number, dtype=torch.float32, device=value(self.last).device)

    def _slopes(
        self, one: torch.fx.Node, gradients: Gradients, scale: float, recomputed: dict[torch.fx.Node, torch.fx.Node]
    ) -> torch.fx.Node:
        """The derivative of the scores by the scaled products, in a shape that broadcasts to the softmax's: what the steps of the
        backward pass make of 1."""
        slope, factor = one, 1 / scale
        for step in gradients.steps:
            others = [each for each in step.args if each not in self.joint.of_tangents]
            known = 1.0 if step.target == aten.neg.default else number(others[0], self.module)
            if known is not None:
                factor *= -1.0 if step.target == aten.neg.default else 1 / known if step.target in DIVISIONS else known
            elif not same(shape(step), shape(self.softmax)):
                raise NotAttention("the gradients of its scores are changed in another shape than the softmax")
            elif step.target == aten.where.self:
                branches = (slope if each in self.joint.of_tangents else self._full(0.0) for each in step.args[1:])
                slope = self._insert(aten.where.self, self._recomputed(step.args[0], recomputed), *branches)
            else:
                slope = self._insert(step.target, slope, self._recomputed(others[0], recomputed))
        return slope if math.isclose(factor, 1.0, rel_tol=1e-6) else self._insert(aten.mul.Tensor, slope, factor)

    def _recomputed(self, node: Any, recomputed: dict[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
        """A node, or its copy that is computed from the new products."""
        if node in recomputed:
            return recomputed[node]
        if node.target in MATRIX_PRODUCTS:
            raise NotAttention("the derivative of its scores needs the products")
        recomputed[node] = node
        if node.target in VIEWS or is_by_elements(node):
            inputs = {each: self._recomputed(each, recomputed) for each in node.all_input_nodes}
            if any(each is not other for each, other in inputs.items()):
                recomputed[node] = self._unrounded(node, inputs)
        return recomputed[node]

    def _unrounded(self, node: torch.fx.Node, inputs: Mapping[torch.fx.Node, torch.fx.Node]) -> torch.fx.Node:
        """The same of other inputs, in float32: kernels do not round scores to 16 bits between operators."""
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda given: inputs.get(given, given))
        if node.target in CASTS and value(node).is_floating_point():
            return inputs[source(node)]
        return self._insert(node.target, *args, **kwargs)

    # gradients ---------------------------------------------------------------------------------------------------------

    def _replace_gradients(self, found: Gradients, attention: torch.fx.Node) -> None:
        dq, dk, dv = gradients = [self._item(attention, number) for number in range(3)]
        for product, gradient in ((found.of_q, dq), (found.of_k, dk), (found.of_v, dv)):
            if product is not None:
                turned = product is found.of_k and found.turned
                self._replace_gradient(product, self._insert(PERMUTE, gradient, [0, 1, 3, 2]) if turned else gradient)
        for gradient in gradients:
            loosen_views(gradient)
        if found.of_bias:
            changes = self._as_softmax(self._item(attention, 3))
            wanted = value(found.changes).dtype
            if value(changes).dtype != wanted:
                changes = self._insert(CASTS[0], changes, dtype=wanted)
            found.changes.replace_all_uses_with(changes)

    def _replace_gradient(self, product: torch.fx.Node, gradient: torch.fx.Node) -> None:
        """Replace a product, and the view that splits it again, by `gradient` (batch, heads, rows, columns)."""
        users = list(product.users)
        if len(users) == 1 and users[0].target in RESHAPES and same(shape(users[0]), shape(gradient)):
            users[0].replace_all_uses_with(gradient)
        elif value(self.softmax).ndim < 4:
            product.replace_all_uses_with(self._insert(aten.squeeze.dims, gradient, [1] if value(product).ndim == 3 else [0, 1]))
        else:
            rows = self._insert(aten.clone.default, gradient, memory_format=torch.contiguous_format)
            sizes = [*self._sizes(self.last, 0), *self._sizes(gradient, 2, 3)]
            product.replace_all_uses_with(self._insert(aten.view.default, rows, sizes))
