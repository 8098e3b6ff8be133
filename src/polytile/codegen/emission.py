"""How the nodes of a loop are written down, whatever the language: their order, their names, and values before stores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from polytile.ir.expr import Const, Index, Load, Node, Op
from polytile.ir.program import Store


def emission_order(
    root: Node, known: Container[int], elsewhere: Container[int], children: Callable[[Node], Sequence[Node]]
) -> Iterator[Node]:
    """The nodes to write so that `root` has a value, children first. Those whose id is in `known` have theirs, also those that
    get there on the way: what is made elsewhere, whose ids are in `elsewhere`, may write what it needs itself."""
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
    """A scope of either language: names of the values known in it, by the ids of their nodes."""

    names: dict[int, str]


Scope = TypeVar("Scope", bound=Known)


class Emitter(ABC, Generic[Scope]):
    """Emits nodes into scopes, each once a scope. `overrides` says how to get those that a schedule makes elsewhere, by their
    ids: kept values, scans, the accumulator of a template.

    Values have the names that the printer gives them (ir.printer): the prefix and a number, in evaluation order, constants left
    out.
    """

    def __init__(self, nodes: Iterable[Node], prefix: str = "t") -> None:
        self.overrides: dict[int, Callable[[Scope], str]] = {}
        named = (node for node in nodes if not isinstance(node, Const))
        self._names = {id(node): f"{prefix}{place}" for place, node in enumerate(named)}

    def name(self, node: Node) -> str:
        """The variable that holds the node's value: its name in the loop's text."""
        return self._names[id(node)]

    def emit(self, node: Node, scope: Scope) -> str:
        """The text of `node`'s value in `scope`, adding lines for it and for what it needs."""
        for below in emission_order(node, scope.names, self.overrides, self._needed):
            scope.names[id(below)] = self._one(below, scope)
        return scope.names[id(node)]

    def stores(self, stores: Iterable[Store], scope: Scope) -> None:
        """Adds the lines of stores: all values first, since a store may change what another one's value loads."""
        stores = list(stores)
        for store in stores:
            for root in store.roots:
                self.emit(root, scope)
        for store in stores:
            self._store(store, scope)

    def _value(self, node: Node, scope: Scope) -> str:
        """The text that computes the node's value."""
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
        """The nodes that the text of `node` names."""

    @abstractmethod
    def _one(self, node: Node, scope: Scope) -> str:
        """Adds the line that makes the node's value from those it needs; the text by which others name it."""

    @abstractmethod
    def _index_value(self, node: Index) -> str:
        """An index expression as a value."""

    @abstractmethod
    def _load(self, node: Load, scope: Scope) -> str:
        """What memory holds."""

    @abstractmethod
    def _checked(self, node: Op, scope: Scope) -> str:
        """An index, once it is known to be in range; a negative one counts from the end."""

    @abstractmethod
    def _divisor(self, node: Op, scope: Scope) -> str:
        """A divisor, once it is known not to be 0."""

    @abstractmethod
    def _operation(self, node: Op, scope: Scope) -> str:
        """Any other operation on its arguments."""

    @abstractmethod
    def _store(self, store: Store, scope: Scope) -> None:
        """Adds the lines of one store, whose values are known."""
