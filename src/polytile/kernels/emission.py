"""In which order the nodes of an expression are written down, whatever the language."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence

from polytile.ir.expr import Node


def emission_order(
    root: Node, known: Container[int], made: Container[int], children: Callable[[Node], Sequence[Node]]
) -> Iterator[Node]:
    """The nodes to write so that `root` has a value, children first. Those whose id is in `known` have theirs, also those that
    get there on the way: what is made elsewhere, whose ids are in `made`, may write what it needs itself."""
    stack, seen = [(root, False)], set()
    while stack:
        node, done = stack.pop()
        if done:
            yield node
            continue
        if id(node) in seen or id(node) in known:
            continue
        seen.add(id(node))
        stack.append((node, True))
        if id(node) not in made:
            stack.extend((child, False) for child in reversed(children(node)))


__all__ = ["emission_order"]
