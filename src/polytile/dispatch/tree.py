"""The regimes of a kernel as a tree of nodes: bucket → sub-bucket → exact size.

A node owns the decision there, the candidates that cannot run there, and the count of its calls. A regime that no single
candidate serves well is subdivided (subdivision.py): its node's contents move to the sub-bucket of the sizes at which they were
found. Exact sizes have nodes below either. The dispatch table (runtime/table.c) has the same tree for calls, with the same key
fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from polytile.candidates.candidate import Candidate
from polytile.dispatch import trace
from polytile.dispatch.decision import Decision
from polytile.dispatch.keys import KeyFields, Keys
from polytile.dispatch.refining import Arrivals
from polytile.dispatch.request import Request
from polytile.dispatch.subdivision import NEAR, Evidence, Expectation, distance
from polytile.problem import Outcome

DEFECTS = (Outcome.WRONG, Outcome.COMPILE_ERROR, Outcome.CRASHED, Outcome.TIMEOUT)
"""Outcomes that are reported whatever the options say."""

RAISES = 2
"""A user's candidate that raises an error in this many regimes, and succeeds in none, is tried in no other."""


@dataclass
class Node:
    """A regime, sub-buckets of one, or exact sizes. `failures` are the candidates that cannot run there, with the reason;
    `arrivals` counts the sizes that come, if they are counted; `postponed` says how often measuring was put off because memory
    or time was short."""

    fields: KeyFields
    decision: Decision | None = None
    failures: dict[str, str] = field(default_factory=dict)
    arrivals: Arrivals | None = None
    postponed: int = 0
    subdivided: bool = False

    @property
    def interval(self) -> int:
        """The calls until the next look at one; 0 where they are not counted."""
        return 0 if self.arrivals is None else self.arrivals.interval


class DecisionTree:
    """The nodes of one kernel, and the failures of candidates in all of them. The MultiKernel's lock protects it."""

    def __init__(self, keys: Keys) -> None:
        self.keys = keys
        self._nodes: dict[KeyFields, Node] = {}
        self._failures: dict[str, str] = {}
        """Candidates that do not compile, or that once gave a wrong result or crashed."""
        self._endless: list[tuple[str, Mapping[str, int], str]] = []
        """Candidates that timed out, with the sizes; they are not tried again where no size is smaller."""
        self._wrong_somewhere: dict[str, str] = {}
        """Candidates that gave a wrong result in one regime and run in others."""
        self._raised: dict[str, set[KeyFields]] = {}
        """The regimes in which a user's candidate has raised an error."""

    def node(self, fields: KeyFields) -> Node:
        return self._nodes.setdefault(fields, Node(fields))

    def leaf(self, fields: KeyFields, sizes: Mapping[str, int]) -> Node:
        """The node that decides for these sizes, in the regime `fields`: its own, or that of their sub-buckets."""
        node = self.node(fields)
        return self.node(self.keys.sub_bucket(fields, sizes)) if node.subdivided else node

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decision of every node that has one."""
        return tuple(node.decision for node in self._nodes.values() if node.decision is not None)

    @property
    def decided(self) -> dict[KeyFields, Decision]:
        """The same by the fields of the nodes."""
        return {node.fields: node.decision for node in self._nodes.values() if node.decision is not None}

    # What is decided.

    def decide(
        self, fields: KeyFields, new: Decision, candidates: Iterable[Candidate], full: Mapping[str, int]
    ) -> list[tuple[Node, Node]]:
        """Files a decision that was made for a call with the sizes `full`, and subdivides each regime that it shows to need
        more than one candidate: its own or a neighbouring one. Returns the nodes of these regimes, each with the node of the
        sub-bucket that takes over its contents. A decision for exact sizes says nothing about their regime."""
        self.node(fields).decision = new
        doubtful = () if self.keys.is_exact_size(fields) else tuple(self._doubtful(new, candidates, full))
        return [self._subdivide(node, decision) for node, decision in doubtful]

    def _subdivide(self, node: Node, decision: Decision) -> tuple[Node, Node]:
        whole, own = node.fields, self.keys.sub_bucket(node.fields, dict(decision.sizes))
        decision = replace(decision, regime=self.keys.regime(own), part_of=self.keys.regime(whole))
        self._nodes[whole], self._nodes[own] = Node(whole, subdivided=True), replace(node, fields=own, decision=decision)
        return self._nodes[whole], self._nodes[own]

    def _doubtful(
        self, new: Decision, candidates: Iterable[Candidate], full: Mapping[str, int]
    ) -> Iterator[tuple[Node, Decision]]:
        """Nodes near the new decision whose own decisions are not expected to hold all over their regimes. There are none if
        nothing was measured for it, or no prediction says how time grows: a neighbour's times do not say where the order of two
        changes."""
        known = {candidate.name: candidate for candidate in candidates}
        if not Evidence.from_decision(new).seconds or not all(candidate.foreseen for candidate in known.values()):
            return
        expectation = Expectation(known, full, self.keys.bucketed)
        near = [
            (node, node.decision)
            for node in self._nodes.values()
            if node.decision is not None
            and node.decision.problem.layouts == new.problem.layouts
            and not self.keys.is_exact_size(node.fields)
            and distance(dict(node.decision.sizes), dict(new.sizes), expectation.bucketed) <= NEAR
        ]
        evidence = [Evidence.from_decision(decision) for _, decision in near]
        for (node, decision), own in zip(near, evidence, strict=True):
            if self.keys.is_sub_bucket(node.fields) or len(own.seconds) < 2:
                continue
            ends = [{**dict(decision.sizes), **end} for end in self.keys.ends(node.fields)]
            if not all(expectation.holds(decision.candidate, end, evidence) for end in ends):
                yield node, decision

    # What fails.

    @property
    def faulty(self) -> dict[str, str]:
        """Candidates that do not compile, have crashed or have given a wrong result, in whatever regime that was."""
        return {**self._wrong_somewhere, **self._failures}

    @property
    def unfit(self) -> set[str]:
        """Candidates that must not run in undecided regimes: they fail everywhere, or did not come to an end somewhere."""
        return {*self._failures, *(name for name, _, _ in self._endless)}

    def decided_for(self, name: str) -> list[Node]:
        """The nodes at which this candidate runs."""
        return [node for node in self._nodes.values() if node.decision is not None and node.decision.candidate == name]

    def excluded(self, fields: KeyFields, sizes: Mapping[str, int]) -> dict[str, str]:
        """Candidates that are not to run in this regime at these sizes of it, with the reason."""
        endless = {
            name: reason
            for name, least, reason in self._endless
            if all(size <= sizes.get(dimension, size) for dimension, size in least.items())
        }
        return {**self.node(fields).failures, **endless, **self._failures}

    def fail(self, name: str, reason: str, fields: KeyFields | None = None) -> None:
        """Records that a candidate cannot run in the regime `fields`, or anywhere if `fields` is not given."""
        (self._failures if fields is None else self.node(fields).failures)[name] = reason

    def learn(self, fields: KeyFields, request: Request) -> None:
        """Records what the selector's links found out about candidates while they decided for the regime `fields`."""
        for name, reason in request.rejected.items():
            outcome = request.outcomes.get(name)
            if outcome in DEFECTS or (outcome is Outcome.RAISED and request.spec.family == "user"):
                self._report_rejection(request, name, reason, outcome)
            if outcome is Outcome.RAISED and self._raises_everywhere(fields, request, name):
                self.fail(name, reason)
            elif outcome is Outcome.TIMEOUT:
                self._endless.append((name, dict(request.sizes), reason))
            elif outcome not in DEFECTS:
                self.fail(name, reason, fields)
            elif request.named(name).origin == "library":  # what is wrong there is so for these numbers alone
                self.fail(name, reason, fields)
                if outcome is Outcome.WRONG:
                    self._wrong_somewhere[name] = reason
            else:
                self.fail(name, reason)

    def _raises_everywhere(self, fields: KeyFields, request: Request, name: str) -> bool:
        """Whether a user's candidate is not worth another trial, because it has raised errors in several regimes and succeeded
        in none."""
        if request.spec.family != "user":
            return False
        self._raised.setdefault(name, set()).add(fields)
        standings = (one for decision in self.decisions for one in decision.standings)
        ran = any(one.candidate == name and one.seconds == one.seconds for one in standings)
        return len(self._raised[name]) >= RAISES and not ran

    def _report_rejection(self, request: Request, name: str, reason: str, outcome: Outcome) -> None:
        reported = request.spec.reported
        if name not in self._failures and (name, outcome.value) not in reported:
            reported.add((name, outcome.value))
            trace.rejected(request.spec, name, reason, outcome)
