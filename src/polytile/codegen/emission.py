"""How a loop's nodes are emitted in any language: their order, their names, and values before stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Generic, Protocol, TypeVar

from polytile.ir.expr import Const, Index, Load, Node, Op
from polytile.ir.loop import Store
from polytile.schedule.canonical import LoopKernel

COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
"""How all of the languages spell comparisons."""


def comment(kernel: LoopKernel, mark: str) -> list[str]:
    """The lines ahead of generated text: the operators that a loop came from, and the loop. `mark` begins a comment."""
    plain = replace(kernel, loop=replace(kernel.loop, origins=()))
    origins = ", ".join(dict.fromkeys(kernel.loop.origins))
    return [f"{mark} {origins}", *[f"{mark}   {line}" for line in plain.text.splitlines()]]


def emission_order(
    root: Node, known: Container[int], elsewhere: Container[int], children: Callable[[Node], Sequence[Node]]
) -> Iterator[Node]:
    """The nodes to emit so that `root` has a value, children first.

    Nodes whose ids are in `known` have values already; `known` is consulted again for each node, since emission may add
    to it. Nodes whose ids are in `elsewhere` are made by an override, which emits what it needs itself.
    """
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
        if id(node) not in elsewhere:
            stack.extend((child, False) for child in reversed(children(node)))


class Known(Protocol):
    """A scope of either language: names of its known values, by the ids of their nodes."""

    names: dict[int, str]


Scope = TypeVar("Scope", bound=Known)


class Emitter(ABC, Generic[Scope]):
    """Emits nodes into scopes, each node once per scope.

    `overrides` maps ids of nodes to the functions that make them where a schedule does so: cached values, scans, a
    template's accumulator. Values have the printer's names (ir.printer): the prefix and a number, in evaluation order,
    without constants.
    """

    def __init__(self, nodes: Iterable[Node], prefix: str = "t") -> None:
        self.overrides: dict[int, Callable[[Scope], str]] = {}
        named = (node for node in nodes if not isinstance(node, Const))
        self._names = {id(node): f"{prefix}{place}" for place, node in enumerate(named)}

    def name(self, node: Node) -> str:
        """The variable that holds the node's value: its name in the loop's text."""
        return self._names[id(node)]

    def emit(self, node: Node, scope: Scope) -> str:
        """The text of `node`'s value in `scope`. Emits lines for it and for its operands."""
        for below in emission_order(node, scope.names, self.overrides, self._needed):
            scope.names[id(below)] = self._one(below, scope)
        return scope.names[id(node)]

    def stores(self, stores: Iterable[Store], scope: Scope) -> None:
        """Emits stores: all values first, since a store may change what another store's value loads."""
        stores = list(stores)
        for store in stores:
            for root in store.roots:
                self.emit(root, scope)
        for store in stores:
            self._store(store, scope)

    def _value(self, node: Node, scope: Scope) -> str:
        """The expression that computes the node's value."""
        if id(node) in self.overrides:
            return self.overrides[id(node)](scope)
        match node:
            case Index():
                return self._index_value(node)
            case Load():
                return self._load(node, scope)
            case Op(name="check_index"):
                return self._checked(node, scope)
            case Op(name="check_divisor"):
                return self._divisor(node, scope)
            case Op():
                return self._operation(node, scope)
        raise AssertionError(f"{type(node).__name__} {node} is made by the schedule, not as a value of its own")

    @abstractmethod
    def _needed(self, node: Node) -> Sequence[Node]:
        """The nodes that the text of `node` refers to."""

    @abstractmethod
    def _one(self, node: Node, scope: Scope) -> str:
        """Emits the line that computes the node's value from its operands; returns the text that refers to it."""

    @abstractmethod
    def _index_value(self, node: Index) -> str:
        """An index expression as a value."""

    @abstractmethod
    def _load(self, node: Load, scope: Scope) -> str:
        """The value of a load."""

    @abstractmethod
    def _checked(self, node: Op, scope: Scope) -> str:
        """An index after its range check; a negative one counts from the end."""

    @abstractmethod
    def _divisor(self, node: Op, scope: Scope) -> str:
        """A divisor after the check that it is not 0."""

    @abstractmethod
    def _operation(self, node: Op, scope: Scope) -> str:
        """Any other operation on its arguments."""

    @abstractmethod
    def _store(self, store: Store, scope: Scope) -> None:
        """Emits one store, whose values are known."""
