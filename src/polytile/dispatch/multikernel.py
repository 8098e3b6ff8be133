"""MultiKernel: several candidates for one kernel behind one call. Each regime of sizes goes to its own candidate."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from polytile import locks, store
from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry
from polytile.counters import counters
from polytile.dispatch import (
    agreement,
    collecting,
    hinted,
    last_resort,
    recorded,
    refiner,
    refining,
    selector,
    trace,
    trials,
)
from polytile.dispatch.ahead import compile_elsewhere
from polytile.dispatch.decision import Decision
from polytile.dispatch.declining import entry_that_may_decline
from polytile.dispatch.fallbacks import CELLS, Fallbacks
from polytile.dispatch.inputs import check_inputs
from polytile.dispatch.keys import KeyFields
from polytile.dispatch.learning import Learning
from polytile.dispatch.links import forced, plan
from polytile.dispatch.plan_conditions import plan_conditions
from polytile.dispatch.request import Request, nothing_left
from polytile.dispatch.spec import KernelSpec
from polytile.dispatch.temporary import entry_until_tried
from polytile.dispatch.tree import DecisionTree, Node
from polytile.errors import (
    CandidateRejected,
    CompileFailed,
    CompilerMissing,
    DeviceLost,
    DivisionByZero,
    IndexOutOfRange,
    NoCandidate,
    ResourcesExceeded,
)
from polytile.problem import Outcome
from polytile.runtime import background, programs, regime
from polytile.runtime.dispatcher import Interface
from polytile.runtime.launcher import new_dispatcher
from polytile.schedule.checks import NO_DIVISOR
from polytile.tuning.budget import Budget
from polytile.tuning.environment import environment
from polytile.tuning.headroom import MOST_POSTPONED


class MultiKernel:
    """A kernel with several implementations.

    `candidates` come in canonical order, with different names. `options` are those of the compile that this kernel belongs to;
    they are in force whenever it chooses. `budget` is what all kernels of its program together may spend on measuring.

    Generated code calls `dispatch` with the kernel's flat arguments. A call in a decided regime goes straight to the regime's
    candidate. In an open regime either the selector chooses within the call (selector.py), or, where calls wait for nothing, the
    table runs what is loaded (fallbacks.py) and the background chooses (learning.py). Any number of threads may call.

    Hints (hinted.py), sizes that come often (refiner.py), what the background decides (learning.py) and decisions of earlier
    processes (resuming.py) have modules of their own, which work under the kernel's `lock` too."""

    def __init__(
        self,
        spec: KernelSpec,
        candidates: Sequence[Candidate],
        options: Mapping[str, Any] | None = None,
        budget: Budget | None = None,
    ) -> None:
        self.spec, self.keys = spec, spec.keys
        self.candidates = tuple(candidates)
        self.options = agreement.restrained(settings.check(options or {}, f"options of kernel {spec.name!r}"))
        self._by_name = {candidate.name: candidate for candidate in self.candidates}
        if not self.candidates or len(self._by_name) != len(self.candidates):
            names = ", ".join(repr(candidate.name) for candidate in self.candidates) or "none"
            raise ValueError(f"kernel {spec.name!r} needs candidates with different names; it was given {names}.")
        self.budget = budget
        self.lock = locks.rlock()
        self._choosing: set[int] = set()
        self._tree = DecisionTree(spec.keys)
        self._recorded_keys: set[int] | None = None
        """The keys of calls, while someone wants to know them."""
        interface = Interface(
            spec.name,
            spec.size_codes,
            self._on_miss,
            tensor_key=spec.tensor_codes,
            on_error=self._on_error,
            formulas=tuple(condition.formula for condition in spec.conditions),
            device=spec.device_type,
            on_due=functools.partial(refiner.on_due, self),
            label=spec.label,
        )
        self.dispatcher = new_dispatcher(interface)
        self.learning = self._learner()
        self.fallbacks = None if self.learning is None else Fallbacks(self, self.learning.wake)
        with settings.restored(self.options):
            checked = settings.get("check_inputs")
            self.plan_conditions = plan_conditions(spec.target.type)
            """The conditions under which a plan's decisions hold for this kernel."""
        self.dispatch: Callable[..., None] = self._checked_call if checked else self.dispatcher

    def __call__(self, *args: Any) -> None:
        """Runs the kernel: tensors, then ints. Raises NoCandidate where nothing can run at these sizes."""
        self.dispatch(*args)

    def named(self, name: str) -> Candidate:
        return self._by_name[name]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its candidates, in canonical order."""
        return tuple(self._by_name)

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The decision of every regime met so far."""
        with self.lock:
            return self._tree.decisions

    @property
    def faulty(self) -> dict[str, str]:
        """Candidates that do not compile or have given a wrong result, in whatever regime that was, and why."""
        with self.lock:
            return self._tree.faulty

    @property
    def unfit(self) -> set[str]:
        """Candidates that are to run in no open regime: they fail everywhere, or did not come to an end somewhere."""
        with self.lock:
            return self._tree.unfit

    def decision_at(self, *args: Any) -> Decision | None:
        """The decision that a call with these arguments or integers would follow; None if there is none yet."""
        with self.lock:
            return self.decision_of(self.dispatcher.key_of(*args))

    def choose(self, sizes: Mapping[str, int]) -> Decision:
        """What the selector would choose at these sizes (all of `spec.size_names`) without measuring. Changes nothing.

        Raises NoCandidate where nothing can run.
        """
        ints = tuple(sizes[name] for name in self.spec.size_names)
        with self.lock, settings.restored(self.options):
            key = self.planned_key(ints)
            request = self.request(key, ints, None)
            decision = selector.choose(request) if request.candidates else None
            if decision is None:
                raise NoCandidate(self._reasons(request))
            return decision

    def prepare(self, ints: Sequence[int]) -> Sequence[Candidate]:
        """Starts compiling the candidates that the first call at these integers will need, and returns them at once."""
        ints = tuple(ints)
        at_first = {"stall": "compile"} if self.learning is not None else {}
        with self.lock, settings.restored({**self.options, **at_first}):
            key = self.planned_key(ints)
            return [] if self.decision_of(key) is not None else hinted.start_compiling(self.request(key, ints, None))

    def warm(self, hints: Iterable[Mapping[str, int]]) -> list[Decision]:
        """Chooses ahead of calls for the hinted sizes (hinted.py). Returns one decision for each hint. Raises HintError for one
        at which there can be no arguments."""
        return hinted.warm(self, hints)

    def forget(self) -> None:
        """Forgets every decision and every failure; the next call chooses anew."""
        with self.lock:
            self.dispatcher.clear()
            self._tree = DecisionTree(self.keys)

    # A regime met for the first time.

    def _learner(self) -> Learning | None:
        """The jobs that decide in the background; None where calls wait for decisions, or where no arguments can be generated
        for trials."""
        stall = str({**settings.overridden(), **self.options}.get("stall", settings.get("stall")))
        return Learning(self) if stall == "never" and self.spec.make_args is not None else None

    def _on_miss(self, key: int, args: tuple[Any, ...]) -> Entry:
        """Decides within a call: nothing is loaded that could serve it, or calls wait for decisions."""
        entry = self.choose_entry(args)
        if self.learning is not None and not background.is_here():
            self.learning.measure(self.dispatcher.key_of(*args), self.spec.ints_of(args))
        return entry

    def fill_open_regimes(self, ints: Sequence[int], cells: int = CELLS, varying: Collection[str] = ()) -> None:
        """Lets loaded kernels serve the undecided regimes around these integers (fallbacks.py)."""
        if self.fallbacks is not None:
            with self.lock:
                self.fallbacks.fill_open_regimes(ints, cells, varying)

    def seconds_undecided(self, ints: Sequence[int]) -> float:
        """Predicted seconds of a call with these integers, where nothing is decided; 0 if nothing that is loaded can run."""
        return 0.0 if self.fallbacks is None else self.fallbacks.seconds(ints)

    def add_fallback(self, form: Candidate) -> None:
        """Loads a form of a candidate to serve undecided regimes. A form that cannot be loaded is skipped here; a decision for it
        fails for the same reason and records that."""
        try:
            entry = form.entry()
        except (CandidateRejected, CompileFailed):
            return
        if self.fallbacks is not None:
            with self.lock:
                self.fallbacks.add_fallback(form, entry)

    def call_options(self) -> dict[str, Any]:
        """The options under which a call decides. Where calls do not wait, it measures nothing."""
        waits = self.learning is None or background.is_here()
        return self.options if waits else {**self.options, "stall": "compile"}

    @contextlib.contextmanager
    def in_background(self) -> Iterator[None]:
        """Within the block, which has the lock, the kernel's options are in force, and candidates may be measured."""
        with self.lock, settings.restored({**self.options, "stall": "tune"}):
            yield

    def enter(self, entry: Entry, request: Request) -> None:
        """Puts the entry into the table for calls like the request's."""
        self.dispatcher.insert(regime.pack(self._tree.leaf(request.key_fields, request.sizes).fields), entry)

    def inner_calls(self, ints: Sequence[int]) -> Iterator[tuple[MultiKernel, tuple[int, ...], bool]]:
        """The inner kernels that calls with these integers may run, each with the integers of its own call and whether it is the
        decided candidate's. The others are those of the candidates that serve open regimes."""
        decision = self.decision_of(self.dispatcher.key_of(*ints))
        chosen = () if decision is None else (decision.candidate,)
        for name in dict.fromkeys((*chosen, *(() if self.fallbacks is None else self.fallbacks.loaded))):
            for inner, own in self._by_name[name].inner_calls(ints):
                if isinstance(inner, MultiKernel):
                    yield inner, tuple(own), name in chosen

    def choose_entry(self, args: tuple[Any, ...]) -> Entry:
        """The entry for the regime of this call, decided now."""
        with self.lock, settings.restored(self.call_options()), counters.stage("choosing"):
            try:
                return self.select(self.planned_key(args), args)
            except Exception as error:
                if not last_resort.is_defect(error):
                    raise
                return last_resort.entry(self.spec, self.candidates, self.spec.sizes(self.spec.ints_of(args)), error)

    def planned_key(self, args: Sequence[Any]) -> int:
        """The key of a call, or of ints alone; with sub-buckets or exact sizes where a plan in force says so."""
        key = self.dispatcher.key_of(*args)
        fields = self.keys.unpack(key)
        bucket = self.keys.regime(fields)
        if not self.keys.is_sub_bucket(fields) and plan.subdivides(self.spec, bucket):
            self.dispatcher.insert(key, None)
        elif plan.exact_sizes(self.spec, bucket) and self.dispatcher.get(key) is None:
            self.dispatcher.reopen(key)
        for sizes in plan.exact_sizes(self.spec, bucket):
            self.add_exact_size(fields, sizes)
        return self.dispatcher.key_of(*args)

    def add_exact_size(self, fields: KeyFields, sizes: Mapping[str, int]) -> None:
        """Gives exactly these sizes, in the regime `fields`, a decision of their own, unless they have one. The
        next call at them takes it."""
        own = regime.pack(self.keys.exact_size(fields, sizes))
        if self.dispatcher.get(own) is None:
            self.dispatcher.reopen(own)

    def decision_of(self, key: int) -> Decision | None:
        return self.node(key).decision

    def node(self, key: int) -> Node:
        """What is known of the regime, the sub-buckets or the exact sizes that a key stands for."""
        return self._tree.node(self.keys.unpack(key))

    def node_for(self, request: Request, decision: Decision) -> Node:
        """The node that decides at the sizes of a decision, in the regime of the request."""
        return self._tree.leaf(request.key_fields, dict(decision.sizes))

    def select(self, key: int, args: tuple[Any, ...]) -> Entry:
        """Decides for the regime `key`, makes the candidate, and passes over those that cannot be made."""
        reentrant = key in self._choosing  # a candidate on trial called its own MultiKernel: do not try it again
        untimed = reentrant or (trials.within() and self.spec.family == "loop")
        self._choosing.add(key)
        try:
            while True:
                request = self.request(key, self.spec.ints_of(args), None if untimed else args)
                entry = self.adopt(self.decide(request), request)
                if entry is not None:
                    break
            collecting.collect(request)
            own = self.dispatcher.key_of(*args)
            exact = self.keys.is_exact_size(self.keys.unpack(own)) and own != key  # what is on record here says otherwise
            return self.select(own, args) if exact else entry
        finally:
            if not reentrant:
                self._choosing.discard(key)

    def adopt(self, decision: Decision, request: Request) -> Entry | None:
        """Files the decision and returns the entry that runs by it; None if its candidate cannot be made."""
        chosen = request.named(decision.candidate)
        if decision.seconds is not None:
            chosen = chosen.pinned_to(dict(decision.measured_at) or request.sizes)
        entry = self._make_entry(chosen, request)
        if entry is None:
            return None
        self._keep(decision, request)
        counters.add("store_hits", decision.from_store)
        for operator in chosen.operators if not trials.within() else ():
            counters.add_library_call(operator)
        trace.announce(self.spec, self.candidates, decision)
        entry = entry_until_tried(self, decision, entry, request)
        if not trials.within():
            if self.fallbacks is not None:
                form = request.named(decision.candidate)
                self.fallbacks.add_fallback(form, entry if form is chosen else form.entry())
                self.fallbacks.learn(form.name, request.sizes)
            refiner.count_calls(self, self.node_for(request, decision), request, entry)
        return entry

    def decide(self, request: Request) -> Decision:
        """What the selector chooses, or what the ranks of a job agree on; eager's own kernel if all candidates were wrong. Raises
        NoCandidate if nothing can run."""
        forced.check(self.spec.name, self.names)
        decision = agreement.decide(request) if request.candidates else None
        self.learn(request)
        if decision is None and (decision := selector.eagers_own(request)) is not None:
            trace.resorted(self.spec, decision)
        if decision is None:
            reasons = self._reasons(request)
            self._tree.node(request.key_fields).failures.clear()
            raise NoCandidate(reasons)
        return decision

    @contextlib.contextmanager
    def recording_keys(self) -> Iterator[set[int]]:
        """Within the block, the set that it yields collects the key of every decision that calls follow, whichever program it was
        made for."""
        with self.lock:
            self._recorded_keys = recorded_keys = set[int]()
            keys = list(self.dispatcher.table())
        for key in keys:
            self.dispatcher.watch(key, 1)
        try:
            yield recorded_keys
        finally:
            background.background.hear()
            self._recorded_keys = None
            for key in keys:
                self.dispatcher.watch(key, self.node(key).interval)

    def _keep(self, decision: Decision, request: Request) -> None:
        """Files a decision, and subdivides the regimes over which it shows that no one candidate is best. A decision taken within
        another kernel's trial is filed until that trial ends."""
        node = self._tree.node(request.key_fields)
        earlier = node.decision.programs if node.decision is not None else frozenset()
        decision = dataclasses.replace(decision, programs=programs.running() | earlier)
        if trials.within():
            node.decision = decision
            trials.at_end(functools.partial(self._reopen_after_trial, node.fields))
            return
        for whole, part in self._tree.decide(node.fields, decision, self.candidates, request.sizes):
            buckets, sub_buckets = regime.pack(whole.fields), regime.pack(part.fields)
            entry = self.dispatcher.get(buckets)
            self.dispatcher.insert(buckets, None)
            if entry is not None:
                self.dispatcher.insert(sub_buckets, entry)
                self.dispatcher.watch(sub_buckets, part.interval)
        recorded.keep(self)

    @property
    def regimes(self) -> Mapping[KeyFields, Decision]:
        """The decision of every regime met so far, by its key fields."""
        with self.lock:
            return self._tree.decided

    def record_key(self, key: int) -> bool:
        """Adds the key of a call to the set that `recording_keys` yields. Returns whether anybody wants to know."""
        if self._recorded_keys is None:
            return False
        self._recorded_keys.add(key)
        self.dispatcher.watch(key, refining.LEAST_CALLS)
        return True

    def pointers(self, args: tuple[Any, ...] | None) -> Sequence[int]:
        if not args or not self.spec.tensor_codes:
            return ()
        return [0 if tensor is None else tensor.data_ptr() for tensor in self.spec.tensors_of(args)]

    def request(self, key: int, ints: tuple[int, ...], args: tuple[Any, ...] | None, pointers: Sequence[int] = ()) -> Request:
        """The question to the selector about these integers, in the regime `key`. With `args`, candidates may be tried on them;
        without, `pointers` say how tensors are aligned."""
        spec, sizes = self.spec, self.spec.sizes(ints)
        pointers = self.pointers(args) or pointers
        rejected = self._tree.excluded(self.keys.unpack(key), sizes)
        able = [c for c in self.candidates if c.name not in rejected and self.can_run(c, sizes, ints)]
        facts = spec.keys.facts_for_code(ints, pointers)
        forms = [candidate.specialise(facts) for candidate in able]
        return Request(
            spec=spec,
            problem=spec.problem(ints, pointers),
            candidates=tuple(form for form in forms if form.valid(sizes)),
            sizes=sizes,
            ints=ints,
            key_fields=spec.keys.unpack(key),
            args=args,
            environment=environment(spec.target),
            store=store.current(),
            budget=self.budget,
            last_chance=self._is_last_chance(key),
            compile_first=functools.partial(compile_elsewhere, self),
        )

    def _is_last_chance(self, key: int) -> bool:
        """Whether measuring in the regime `key` is not to be postponed again: nobody waits, or it was postponed often enough."""
        patient = self.learning is not None or settings.get("tune") == "thorough"
        return patient or self.node(key).postponed >= MOST_POSTPONED

    def can_run(self, candidate: Candidate, sizes: Mapping[str, int], ints: Sequence[int]) -> bool:
        """Whether the candidate may serve the regime of these sizes. It must be `valid` at the sizes themselves; with hard limits
        also all over the regime, since later calls in the regime go to it unasked."""
        if not candidate.valid(sizes):
            return False
        return not candidate.hard_limits or all(candidate.valid(corner) for corner in self.keys.corners(ints))

    def _make_entry(self, candidate: Candidate, request: Request) -> Entry | None:
        """The candidate's entry; None, with the failure recorded, if it cannot be made."""
        try:
            candidate.prepare()
            return entry_that_may_decline(self, candidate)
        except CompilerMissing as error:
            self._tree.fail(candidate.name, str(error))
        except DeviceLost:
            raise
        except ResourcesExceeded as error:  # by the code for the facts of this regime; in another it may fit
            request.record_failure(candidate, Outcome.RESOURCES, error)
            self._tree.fail(candidate.name, f"{Outcome.RESOURCES.value}: {error}", request.key_fields)
        except Exception as error:
            request.record_failure(candidate, Outcome.COMPILE_ERROR, error)
            self._tree.fail(candidate.name, f"{Outcome.COMPILE_ERROR.value}: {error}")
            trace.rejected(self.spec, candidate.name, str(error), Outcome.COMPILE_ERROR)
        return None

    def _reasons(self, request: Request) -> str:
        """Why no candidate can run, as a sentence."""
        return nothing_left(request, self.names, self._tree.excluded(request.key_fields, request.sizes))

    # Calls off the straight path.

    def _reopen_after_trial(self, fields: KeyFields) -> None:
        """Takes back a decision that was made within another kernel's trial: the next call decides anew."""
        with self.lock:
            self.reopen(fields)

    def learn(self, request: Request) -> None:
        """Records the failures that the selector met while it answered the request. A candidate that fails everywhere no longer
        serves regimes where it was only predicted to be fastest."""
        known = self._tree.unfit
        self._tree.learn(request.key_fields, request)
        for name in self._tree.unfit - known:
            if self.fallbacks is not None:
                self.fallbacks.withdraw(name)
            for node in self._tree.decided_for(name):
                if node.decision is not None and node.decision.link in selector.UNMEASURED:
                    self.reopen(node.fields)

    def drop(self, key: int) -> None:
        """Decides the regime `key` anew, since its candidate has failed. What failed in this regime alone takes part once more:
        the library's candidate may have to serve numbers at which all are wrong."""
        node = self.node(key)
        if self.fallbacks is not None and node.decision is not None:
            self.fallbacks.exclude(node.fields, self._tree.excluded(node.fields, dict(node.decision.sizes)))
        node.failures.clear()
        self.reopen(node.fields)

    def reopen(self, fields: KeyFields) -> None:
        """Drops the decision of this regime; the next call decides anew."""
        node = self._tree.node(fields)
        if node.decision is not None:
            node.decision = None
            self.dispatcher.reopen(regime.pack(fields))

    def _checked_call(self, *args: Any) -> None:
        check_inputs(self.spec, args)
        self.dispatcher(*args)

    def _on_error(self, code: int) -> None:
        """A native kernel's run-time check failed; returning leaves the error's text to the dispatcher."""
        if 0 < code <= len(self.spec.checks):
            sentence = self.spec.checks[code - 1]
            raise DivisionByZero if sentence == NO_DIVISOR else IndexOutOfRange(f"kernel {self.spec.name!r}: {sentence}")

    def replace(self, args: tuple[Any, ...], entry: Entry) -> Entry:
        """Puts `entry` into the table for calls like this one, and returns it."""
        self.dispatcher.insert(self.dispatcher.key_of(*args), entry)
        return entry
