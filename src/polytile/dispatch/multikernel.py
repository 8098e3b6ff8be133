"""MultiKernel: candidates for one kernel behind one call, each regime of sizes sent to its own."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from polytile import locks, store
from polytile import options as settings
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry, PythonEntry
from polytile.counters import counters
from polytile.dispatch import (
    agreement,
    collecting,
    hinted,
    last_resort,
    leases,
    recorded,
    refiner,
    refining,
    selector,
    trace,
    trials,
)
from polytile.dispatch.ahead import compile_elsewhere
from polytile.dispatch.decision import Decision
from polytile.dispatch.fallbacks import CELLS, Fallbacks
from polytile.dispatch.inputs import check_inputs
from polytile.dispatch.keys import KeyFields
from polytile.dispatch.learning import UNMEASURED, Learning
from polytile.dispatch.leases import Lease
from polytile.dispatch.links import forced, plan, prior
from polytile.dispatch.live import LiveTrial
from polytile.dispatch.plan_conditions import plan_conditions
from polytile.dispatch.request import Request, measuring
from polytile.dispatch.spec import KernelSpec
from polytile.dispatch.temporary import FirstRun, ProvisionalEntry
from polytile.dispatch.tree import DecisionTree, Node
from polytile.errors import (
    CandidateRejected,
    CompileFailed,
    CompilerMissing,
    DeviceLost,
    DivisionByZero,
    HintError,
    LoweringError,
    NoCandidate,
    ResourcesExceeded,
)
from polytile.problem import Measurement, Outcome, sizes_text
from polytile.runtime import background, programs, regime
from polytile.runtime.launcher import Dispatcher
from polytile.schedule.checks import NO_DIVISOR
from polytile.schedule.facts import Facts
from polytile.tuning.budget import Budget
from polytile.tuning.environment import environment
from polytile.tuning.headroom import MOST_POSTPONED

ON_RECORD = ("exact", "nearby")
"""Links of the selector that answer from the store."""


class MultiKernel:
    """A kernel with several implementations.

    `candidates` come in canonical order, with different names. `options` are those of the compile that this kernel
    belongs to; they are in force whenever it has to choose. `budget` is what the program that the kernel is part of may spend on
    measuring, all its kernels together. `dispatch` is what generated code calls, with the kernel's
    flat arguments: calls in a regime that is decided go straight to its candidate. Where nothing is decided, the selector
    chooses in the call (selector.py), or, where calls wait for nothing, the table runs what is loaded (fallbacks.py) and the
    background chooses (learning.py). Any number of threads may call.

    Hints (hinted.py), sizes that come often (refiner.py) and decisions of earlier processes (resuming.py) are parts of it in
    modules of their own, which work under its `lock` too."""

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
        self._noted: set[int] | None = None
        """The keys of calls, while someone wants to know them."""
        self.dispatcher: Dispatcher = Dispatcher(  # type: ignore[abstract]  # its __new__ makes one of two concrete ones
            spec.name,
            spec.size_codes,
            self._on_miss,
            tensor_key=spec.tensor_codes,
            on_error=self._on_error,
            formulas=tuple(condition.formula for condition in spec.conditions),
            device=spec.device_type,
            on_due=self._on_due,
            label=spec.label,
        )
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
        """The candidate of that name."""
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

    def decision_at(self, *args: Any) -> Decision | None:
        """The decision that a call with these arguments, or these ints alone, would follow; None if there is none
        yet."""
        with self.lock:
            return self.decision_of(self.dispatcher.key_of(*args))

    def choose(self, sizes: Mapping[str, int]) -> Decision:
        """What would be chosen at these sizes (all of `spec.size_names`) without measuring; changes nothing.

        Raises NoCandidate where nothing can run.
        """
        ints = tuple(sizes[name] for name in self.spec.size_names)
        with self.lock, settings.restored(self.options):
            key = self.planned_key(ints)
            request = self.request(key, ints, None)
            decision = selector.choose(request) if request.candidates else None
            if decision is None:
                raise NoCandidate(self._nothing_left(request))
            return decision

    def prepare(self, ints: Sequence[int]) -> None:
        """Starts compiling, in the background, what a first call at these integers is going to need."""
        ints = tuple(ints)
        at_first = {"stall": "compile"} if self.learning is not None else {}
        with self.lock, settings.restored({**self.options, **at_first}):
            key = self.planned_key(ints)
            if self.decision_of(key) is None:
                self.start_compiling(self.request(key, ints, None))

    def warm(self, hints: Iterable[Mapping[str, int]]) -> list[Decision]:
        """Chooses ahead of calls for the hinted sizes (hinted.py). Returns one decision for each hint. Raises HintError for one
        at which there can be no arguments."""
        return hinted.warm(self, hints)

    def arguments_for(self, hint: Mapping[str, int]) -> tuple[Any, ...]:
        if self.spec.make_args is None:
            raise ValueError(f"kernel {self.spec.name!r} cannot make arguments for hinted sizes; call it instead.")
        try:
            return tuple(self.spec.make_args(hint))
        except (RuntimeError, TypeError) as error:  # torch's: memory does not suffice, or 64 bits do not for the element count
            why = str(error).partition("\n")[0].rstrip(".")
            at = sizes_text(hint.items())
            raise HintError(f"kernel {self.spec.name!r} cannot be tried at the hinted {at}: {why}.") from None

    def forget(self) -> None:
        """Forgets every decision and every failure; the next call chooses anew."""
        with self.lock:
            self.dispatcher.clear()
            self._tree = DecisionTree(self.keys)

    def explain(self) -> str:
        """The decisions as text, one a line."""
        lines = [f"{self.spec.name}: {', '.join(candidate.name for candidate in self.candidates)}"]
        return "\n".join([*lines, *(f"  {decision}" for decision in self.decisions)])

    # A regime met for the first time.

    def _learner(self) -> Learning | None:
        """What decides behind the caller's back; None where calls wait for decisions, or no arguments can be made up to try
        candidates on."""
        stall = str({**settings.overridden(), **self.options}.get("stall", settings.get("stall")))
        return Learning(self) if stall == "never" and self.spec.make_args is not None else None

    def _on_miss(self, key: int, args: tuple[Any, ...]) -> Entry:
        """Decides for a call, as nothing is loaded that could serve it, or as calls wait for decisions."""
        entry = self.choose_entry(args)
        if self.learning is not None and not background.is_here():
            self.learning.measure(self.dispatcher.key_of(*args), self.spec.ints_of(args))
        return entry

    def look_around(self, ints: Sequence[int], cells: int = CELLS, varying: Collection[str] = ()) -> None:
        """Works out what is to serve in regimes around these integers that are not decided yet (fallbacks.py)."""
        if self.fallbacks is not None:
            with self.lock:
                self.fallbacks.look_around(ints, cells, varying)

    def offer(self, form: Candidate) -> None:
        """Loads a form of a candidate, to serve in regimes that are not decided yet. One that cannot be loaded serves nowhere:
        the decision that wants it meets the reason again, and records it."""
        try:
            entry = form.entry()
        except (CandidateRejected, CompileFailed):
            return
        if self.fallbacks is not None:
            with self.lock:
                self.fallbacks.offer(form, entry)

    def _options_of_a_call(self) -> dict[str, Any]:
        """The options under which a call decides: where calls do not wait, it measures nothing."""
        waits = self.learning is None or background.is_here()
        return self.options if waits else {**self.options, "stall": "compile"}

    def decide_unmeasured(self, ints: Sequence[int], pointers: Sequence[int] = (), key: int | None = None) -> None:
        """Has calls at these integers run what is known to be fastest, or predicted to be where nothing is known; compiles it.
        `key` is that of the call, if there was one; without pointers, tensors count as aligned. What measuring may better is left
        to the background."""
        ints, decision = tuple(ints), None
        with settings.restored({**self.options, "stall": "compile"}), counters.stage("choosing"):
            called, key = key, self.planned_key(ints) if key is None else key
            while decision is None:
                with self.lock:
                    decision = self.decision_of(key)
                    if decision is not None:
                        break
                    if called is not None and not self.dispatcher.is_open(key):
                        return  # it was subdivided or forgotten meanwhile
                    request = self.request(key, ints, None, pointers)
                    wanted = self._decide(request)
                with contextlib.suppress(Exception):  # compiled without the lock; whoever adopts it meets the error again
                    compile_elsewhere(self, [request.named(wanted.candidate)])
                    request.named(wanted.candidate).prepare()
                    request.named(wanted.candidate).entry()
                with self.lock:
                    entry = self.adopt(wanted, request)
                    if entry is not None:
                        self._enter(entry, request)
                        decision = wanted
        with settings.restored(self.options):
            better = decision.link in UNMEASURED and measuring()
            if self.learning is not None and (better or settings.get("collect")):
                self.learning.measure(key, ints)

    def _enter(self, entry: Entry, request: Request) -> None:
        """Has calls like the request's run this entry."""
        self.dispatcher.insert(regime.pack(self._tree.leaf(request.key_fields, request.sizes).fields), entry)

    def prepare_everywhere(self, ints: Sequence[int], varying: Collection[str]) -> Candidate | None:
        """Starts compiling a form of the candidate that was decided for these integers which is right in all regimes of tensors
        that are aligned: it serves regimes that are new, and this works out where. `varying`: names of the sizes that differ
        from call to call. Where nothing else serves at any sizes, starts compiling a candidate that can, which is returned."""
        decision = self.decision_of(self.dispatcher.key_of(*ints))
        if decision is None or self.learning is None or self.fallbacks is None:
            return None
        self.look_around(ints, varying=varying)
        facts, sizes = Facts(aligned=self.keys.facts_for_code(tuple(ints)).aligned), self.spec.sizes(ints)
        with settings.restored(self.options):
            form = self._by_name[decision.candidate].specialise(facts)
            compile_elsewhere(self, [form])
            _prepared(form)
            self.learning.load_when_compiled(form)
            if self.fallbacks.serve_everywhere:
                return None
            able = [c for c in self.candidates if self.fallbacks.valid_everywhere(c) and c.name not in self._tree.unfit]
            best = min(able, key=lambda candidate: candidate.cost(sizes), default=None)
            if best is not None:
                compile_elsewhere(self, [best.specialise(facts)])
                _prepared(best.specialise(facts))
            return None if best is None else best.specialise(facts)

    def inner_calls(self, ints: Sequence[int]) -> Iterator[tuple[MultiKernel, tuple[int, ...]]]:
        """The kernels that calls with these integers may run inside others: those of the candidate that was decided for them, and
        of what serves where nothing is decided; with their own integers."""
        decision = self.decision_of(self.dispatcher.key_of(*ints))
        chosen = () if decision is None else (decision.candidate,)
        for name in dict.fromkeys((*chosen, *(() if self.fallbacks is None else self.fallbacks.loaded))):
            for inner, own in self._by_name[name].inner_calls(ints):
                if isinstance(inner, MultiKernel):
                    yield inner, tuple(own)

    def take_lease(self, args: tuple[Any, ...]) -> Lease | None:
        """The right to measure for the regime of these arguments; None while another process, or rank of the job, has it."""
        with self.lock, settings.restored({**self.options, "stall": "tune"}):
            request = self.request(self.planned_key(args), self.spec.ints_of(args), args)
            return None if agreement.waits(request) else leases.take(request)

    def decide_measured(self, args: tuple[Any, ...]) -> None:
        """Decides for the regime of these arguments, which candidates are tried on; in the background."""
        with self.lock, settings.restored({**self.options, "stall": "tune"}), counters.stage("choosing"):
            entry = self.select(self.planned_key(args), args)
            self.dispatcher.insert(self.dispatcher.key_of(*args), entry)

    def begin_trial(self, args: tuple[Any, ...]) -> LiveTrial | None:
        """Has the candidates worth measuring in the regime of these arguments tried on the program's own calls; None where that
        cannot be, or where nothing is left to decide. In the background."""
        with self.lock, settings.restored({**self.options, "stall": "tune"}):
            key = self.dispatcher.key_of(*args)
            serving = self.decision_of(key)
            if serving is None or serving.link not in UNMEASURED:
                return None
            request = self.request(key, self.spec.ints_of(args), args)
            request.store.refresh()
            if selector.choose(dataclasses.replace(request, args=None), ON_RECORD) is not None:
                return None  # another process has found it meanwhile
            trial = LiveTrial.begin(self, key, request, serving.candidate)
            self.learn(request)
            if serving.candidate in request.rejected:
                self.drop(key)
            return trial

    def judge(self, trial: LiveTrial) -> bool:
        """Looks at what a trial has found; decides, and says so, if it is settled."""
        with self.lock, settings.restored({**self.options, "stall": "tune"}):
            try:
                answer = trial.judge()
            except LookupError:  # the entry that it was for is gone
                return True
            self.learn(trial.request)
            if answer is None:
                return False
            trial.end()
            entry = self.adopt(selector.decision_from(trial.request, "measured", answer), trial.request)
            if entry is not None:
                self._enter(entry, trial.request)
            return True

    def is_due(self, key: int, ints: Sequence[int], pointers: Sequence[int]) -> bool:
        """Counts a call of the regime `key`; says whether its sizes come so often that measuring there pays."""
        with self.lock, settings.restored({**self.options, "stall": "tune"}):
            due = refiner.is_due(self, key, tuple(ints), pointers)
            self.dispatcher.watch(key, self.node(key).interval)
            return due

    def refine(self, args: tuple[Any, ...]) -> None:
        """Measures at the sizes of these arguments, which come often, in the background: they may get a decision of their own."""
        with self.lock, settings.restored({**self.options, "stall": "tune"}):
            refiner.refine(self, self.dispatcher.key_of(*args), args)

    def choose_entry(self, args: tuple[Any, ...]) -> Entry:
        """The entry for the regime of this call, decided now."""
        with self.lock, settings.restored(self._options_of_a_call()), counters.stage("choosing"):
            try:
                return self.select(self.planned_key(args), args)
            except Exception as error:
                if not last_resort.is_defect(error):
                    raise
                return last_resort.entry(self.spec, self.candidates, self.spec.sizes(self.spec.ints_of(args)), error)

    def replace_provisional(self, provisional: ProvisionalEntry, args: tuple[Any, ...]) -> Entry | None:
        """Decides now what runs calls like this one in place of `provisional`; None while another thread is choosing."""
        if not self.lock.acquire(blocking=False):
            return None
        try:
            entry: Any = self.dispatcher.get(self.dispatcher.key_of(*args))
            replaced = entry is not None and not (isinstance(entry, PythonEntry) and entry.call is provisional)
            return entry if replaced else self.replace(args, self.choose_entry(args))
        finally:
            self.lock.release()

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
        """Has the next call at exactly these sizes, of the regime `fields`, decide for them alone, if none has yet."""
        own = regime.pack(self.keys.exact_size(fields, sizes))
        if self.dispatcher.get(own) is None:
            self.dispatcher.reopen(own)

    def decision_of(self, key: int) -> Decision | None:
        """The decision for a key, if there is one."""
        return self.node(key).decision

    def node(self, key: int) -> Node:
        """What is known of the regime, the sub-buckets or the exact sizes that a key stands for."""
        return self._tree.node(self.keys.unpack(key))

    def select(self, key: int, args: tuple[Any, ...]) -> Entry:
        """Decides for the regime `key`, makes the candidate, and passes over those that cannot be made."""
        reentrant = key in self._choosing  # a candidate on trial called its own MultiKernel: do not try it again
        untimed = reentrant or (trials.within() and self.spec.family == "loop")
        self._choosing.add(key)
        try:
            while True:
                request = self.request(key, self.spec.ints_of(args), None if untimed else args)
                entry = self.adopt(self._decide(request), request)
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
        """Files the decision and returns what is to run by it; None where its candidate cannot be made."""
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
        entry = self._temporary_entry(decision, entry, request)
        if not trials.within():
            if self.fallbacks is not None:
                form = request.named(decision.candidate)
                self.fallbacks.offer(form, entry if form is chosen else form.entry())
            refiner.count_calls(self, self._tree.leaf(request.key_fields, dict(decision.sizes)), request, entry)
        return entry

    def _decide(self, request: Request) -> Decision:
        """What the selector chooses, or the ranks of a job agree on; eager's own kernel where all candidates were wrong. Raises
        NoCandidate where nothing can run."""
        forced.check(self.spec.name, self.names)
        decision = agreement.decide(request) if request.candidates else None
        self.learn(request)
        if decision is None and (decision := selector.eagers_own(request)) is not None:
            trace.resorted(self.spec, decision)
        if decision is None:
            reasons = self._nothing_left(request)
            self._tree.node(request.key_fields).failures.clear()
            raise NoCandidate(reasons)
        return decision

    def _temporary_entry(self, decision: Decision, entry: Entry, request: Request) -> Entry:
        """The entry to put into the table: one that falls back to another candidate should this one, untried so far, raise; one
        that chooses anew after some calls where measuring was put off; else `entry` itself."""
        untried = isinstance(entry, PythonEntry) or self.spec.target.type == "cuda"
        if untried and not decision.tried and len(request.candidates) > 1:
            entry = PythonEntry(FirstRun(self, decision, entry))
        if decision.postponed and not request.last_chance:
            node = self._tree.leaf(request.key_fields, dict(decision.sizes))
            node.postponed += 1
            entry = PythonEntry(ProvisionalEntry(self, entry, calls=2 ** (node.postponed - 1)))
        return entry

    @contextlib.contextmanager
    def noting(self) -> Iterator[set[int]]:
        """Within the block, the set that it is given gets the key of every decision that calls follow, whoever it was made
        for."""
        with self.lock:
            self._noted = noted = set[int]()
            keys = list(self.dispatcher.table())
        for key in keys:
            self.dispatcher.watch(key, 1)
        try:
            yield noted
        finally:
            background.background.hear()
            self._noted = None
            for key in keys:
                self.dispatcher.watch(key, self.node(key).interval)

    def _keep(self, decision: Decision, request: Request) -> None:
        """Files a decision, and subdivides regimes for whose sizes it shows that one candidate is not the best everywhere. A
        decision taken within another kernel's trial is filed until that trial ends."""
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

    def _on_due(self, args: tuple[Any, ...]) -> None:
        """The table has counted as many calls of an entry as it was told: looks at this one."""
        key, calls = self.dispatcher.key_of(*args), refining.LEAST_CALLS
        if self.take_note(key):
            return
        free = self.lock.acquire(blocking=False)
        try:
            if free:
                with settings.restored(self.options):
                    if refiner.is_due(self, key, self.spec.ints_of(args), self.pointers(args)):
                        refiner.refine(self, key, args)
                    calls = self.node(key).interval
        except Exception as error:
            if not last_resort.is_defect(error):
                raise
            last_resort.report_failure(self.spec, "measure more of", error)
        finally:
            self.dispatcher.watch(key, calls)
            if free:
                self.lock.release()

    def take_note(self, key: int) -> bool:
        """Tells those who want to know the keys of calls of this one; says whether someone does."""
        if self._noted is None:
            return False
        self._noted.add(key)
        self.dispatcher.watch(key, refining.LEAST_CALLS)
        return True

    def pointers(self, args: tuple[Any, ...] | None) -> Sequence[int]:
        if not args or not self.spec.tensor_codes:
            return ()
        return [0 if tensor is None else tensor.data_ptr() for tensor in self.spec.tensors_of(args)]

    def request(
        self, key: int, ints: tuple[int, ...], args: tuple[Any, ...] | None, pointers: Sequence[int] = ()
    ) -> Request:
        """What the selector is asked about these integers, in the regime `key`; with `args`, candidates may be tried on them.
        `pointers` say how tensors are aligned where there are no `args`."""
        spec, sizes = self.spec, self.spec.sizes(ints)
        pointers = self.pointers(args) or pointers
        rejected = self._tree.excluded(self.keys.unpack(key), sizes)
        able = [c for c in self.candidates if c.name not in rejected and self.can_run(c, sizes, ints)]
        facts = spec.keys.facts_for_code(ints, pointers)
        return Request(
            spec=spec,
            problem=spec.problem(ints, pointers),
            candidates=tuple(candidate.specialise(facts) for candidate in able),
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
        """Whether what cannot be measured now in the regime `key` never will be: nobody waits, or it was put off often enough."""
        patient = self.learning is not None or settings.get("tune") == "thorough"
        return patient or self.node(key).postponed >= MOST_POSTPONED

    def can_run(self, candidate: Candidate, sizes: Mapping[str, int], ints: Sequence[int]) -> bool:
        """Whether the candidate may serve the regime of these sizes: `valid` at the sizes themselves and, where it
        says of itself that its limits are hard, all over the regime, as later calls of the regime go to it unasked."""
        if not candidate.valid(sizes):
            return False
        return not candidate.hard_limits or all(candidate.valid(corner) for corner in self.keys.corners(ints))

    def start_compiling(self, request: Request) -> tuple[Sequence[Candidate], bool]:
        """Starts compiling what a decision at these sizes will need. Returns these candidates, the one that is already known
        to win or a shortlist, and whether they will be measured."""
        known = selector.choose(dataclasses.replace(request, args=None)) if request.candidates else None
        decided = known is not None and (known.link not in ("prior", "default") or not measuring())
        wanted = [request.named(known.candidate)] if known is not None and decided else prior.shortlist(request)
        for candidate in wanted:
            _prepared(candidate)
        return wanted, not decided

    def _make_entry(self, candidate: Candidate, request: Request) -> Entry | None:
        """The candidate's entry; None, with the failure recorded, if it cannot be made."""
        try:
            candidate.prepare()
            return candidate.entry()
        except CompilerMissing as error:
            self._tree.fail(candidate.name, str(error))
        except DeviceLost:
            raise
        except ResourcesExceeded as error:  # by the code for the facts of this regime; in another it may fit
            self._record(request, candidate, Outcome.RESOURCES, error)
            self._tree.fail(candidate.name, f"{Outcome.RESOURCES.value}: {error}", request.key_fields)
        except Exception as error:
            self._record(request, candidate, Outcome.COMPILE_ERROR, error)
            self._tree.fail(candidate.name, f"{Outcome.COMPILE_ERROR.value}: {error}")
            trace.rejected(self.spec, candidate.name, str(error), Outcome.COMPILE_ERROR)
        return None

    def _record(self, request: Request, candidate: Candidate, outcome: Outcome, error: Exception) -> None:
        detail = f"{type(error).__name__}: {error}"
        request.store.append(
            Measurement(
                request.problem, candidate.name, candidate.config, candidate.source_hash, outcome, detail=detail,
                environment=request.environment,
            )
        )  # fmt: skip

    def _nothing_left(self, request: Request) -> str:
        sizes = sizes_text(request.sizes.items())
        known = {**self._tree.excluded(request.key_fields, request.sizes), **request.rejected}
        reasons = "; ".join(f"{c.name!r}: {known.get(c.name, 'not made for such sizes')}" for c in self.candidates)
        own = "Correct the call or the kernel, or add a config or implementation that can run there."
        others = "Add one that can: products get more by the option sources, of which 'library' can run everything."
        return (
            f"kernel {self.spec.name!r} has no candidate that can run at {sizes or 'any size'} ({reasons}). "
            f"{own if self.spec.family == 'user' else others}"
        )

    # Calls off the straight path.

    def _reopen_after_trial(self, fields: KeyFields) -> None:
        """Takes back a decision that a trial of another kernel's candidate brought about: the next call decides anew."""
        with self.lock:
            self.reopen(fields)

    def learn(self, request: Request) -> None:
        """Keeps what was found out about candidates that fail while the request was answered. One that fails everywhere serves
        no longer where it was only predicted to be the fastest."""
        known = self._tree.unfit
        self._tree.learn(request.key_fields, request)
        for name in self._tree.unfit - known:
            if self.fallbacks is not None:
                self.fallbacks.withdraw(name)
            for node in self._tree.decided_for(name):
                if node.decision is not None and node.decision.link in UNMEASURED:
                    self.reopen(node.fields)

    def drop(self, key: int) -> None:
        """The candidate of the regime `key` has failed: it is decided anew. What has failed in this regime alone takes part
        once more, as the library's may have to serve numbers at which all are wrong."""
        node = self.node(key)
        if self.fallbacks is not None and node.decision is not None:
            self.fallbacks.exclude(node.fields, self._tree.excluded(node.fields, dict(node.decision.sizes)))
        node.failures.clear()
        self.reopen(node.fields)

    def reopen(self, fields: KeyFields) -> None:
        """Has this regime decided anew."""
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
            raise DivisionByZero if sentence == NO_DIVISOR else IndexError(f"kernel {self.spec.name!r}: {sentence}")

    def replace_failed(self, first: FirstRun, args: tuple[Any, ...], error: Exception) -> Callable[..., None]:
        """What to call in place of a candidate that raised `error` in its `first` run, with the same arguments: another one, or
        where calls wait for nothing what serves until one is decided."""
        with self.lock, settings.restored(self._options_of_a_call()):
            called = self.dispatcher.key_of(*args)
            candidate = self._by_name[first.decision.candidate]
            self._record(self.request(called, self.spec.ints_of(args), args), candidate, Outcome.RAISED, error)
            if self.spec.family == "user":
                trace.rejected(self.spec, candidate.name, f"{type(error).__name__}: {error}", Outcome.RAISED)
            for key in {called, *(key for key, entry in self.dispatcher.table().items() if first.stands(entry))}:
                node = self.node(key)
                node.failures[candidate.name], node.decision = f"raised {type(error).__name__}: {error}", None
                if self.fallbacks is not None:
                    self.fallbacks.exclude(node.fields, (candidate.name,))
                self.dispatcher.reopen(key)
            return self.dispatcher

    def replace(self, args: tuple[Any, ...], entry: Entry) -> Entry:
        """Makes `entry` the one that runs calls like this one."""
        self.dispatcher.insert(self.dispatcher.key_of(*args), entry)
        return entry


def _prepared(candidate: Candidate) -> None:
    """Starts compiling it; one that has no source for these facts fails when it is asked for, not here."""
    with contextlib.suppress(LoweringError):
        candidate.prepare()
