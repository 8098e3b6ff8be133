"""In which order the nodes of an expression are written down, whatever the language."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from polytile.ir.expr import Node


def emission_order(
    root: Node, known: Container[int], made: Container[int], children: Callable[[Node], Sequence[Node]]
) -> list[Node]:
    """The nodes to write so that `root` has a value, children first. Those whose id is in `known` have theirs; those in
    `made` are made elsewhere, so that nothing below them is needed."""
    order: list[Node] = []
    stack, seen = [(root, False)], set()
    while stack:
        node, done = stack.pop()
        if done:
            order.append(node)
            continue
        if id(node) in seen or id(node) in known:
            continue
        seen.add(id(node))
        stack.append((node, True))
        if id(node) not in made:
            stack.extend((child, False) for child in reversed(children(node)))
    return order


__all__ = ["emission_order"]
