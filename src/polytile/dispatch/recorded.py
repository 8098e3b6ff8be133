"""Decisions on disk: a later process runs what an earlier one decided, without choosing anew.

Each kernel of a program has a file of its decisions in the cache directory, named by a digest of what it computes, polytile's
sources, the device and the conditions (conditions.py). It is rewritten with each decision. Decisions of the background are
written when none that calls need is pending, and at the latest when the process ends: a file holds all of a kernel's decisions,
and new sizes bring hundreds in a row.

Decisions still rest on the measurements in the store. If calls wait for nothing, they use the file at once, and the background
checks whether more has been measured since. If calls wait, the store is asked as usual. Without a compiler the file is always
followed, because it names what has been compiled.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import json
import logging
import math
import time
import weakref
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import torch

from polytile import options
from polytile.dispatch import agreement, resuming
from polytile.dispatch.conditions import conditions_on_disk
from polytile.dispatch.decision import Decision, Standing
from polytile.dispatch.selector import UNMEASURED
from polytile.errors import CacheError, PolytileError
from polytile.problem import digest
from polytile.runtime import background, device, programs, regime, toolchain
from polytile.runtime.background import Disturbance
from polytile.runtime.cache import Cache, current
from polytile.version import source_digest

if TYPE_CHECKING:
    from polytile.dispatch.keys import KeyFields
    from polytile.dispatch.multikernel import MultiKernel

log = logging.getLogger("polytile")

FORMAT = 1

MEASURED = ("measured", "exact")
"""Links whose decisions rest on measurements at their sizes."""

TURN_SECONDS = 3e-4
"""Seconds after which a turn of filing decisions beside calls ends."""

PATIENCE = 0.02
"""Seconds that a process which ends waits for what the background does with a kernel."""

Row = dict[str, Any]


class Work(Protocol):
    """What a MultiKernel of a program is made from (define.py)."""

    @property
    def target(self) -> torch.device: ...

    @property
    def text(self) -> str:
        """What it computes, and by what sources."""
        ...

    def document(self) -> dict[str, Any]:
        """All of it as JSON. Raises Unstorable."""


class _Recorded:
    """The record of one MultiKernel: its work, its file, and the rows of the file. A kernel that meets many sizes has hundreds
    of rows and is written often, so the text of unchanged rows is kept."""

    def __init__(self, work: Work, multikernel: MultiKernel) -> None:
        self.work = work
        self.cache: Cache = current()
        about = [FORMAT, source_digest(), work.text, str(work.target), multikernel.spec.device or device.fingerprint()]
        key = digest(f"{json.dumps(about)} {conditions_on_disk(work.target)}", 24)
        self.name = f"decisions/{multikernel.spec.name}-{key}.json"
        self._rows: dict[KeyFields, Row] | None = None
        self._lines: dict[KeyFields, str] = {}
        self._written: dict[KeyFields, Decision] = {}

    @property
    def rows(self) -> dict[KeyFields, Row]:
        """What the file holds, as this process knows it."""
        if self._rows is None:
            text = self.cache.read(self.name)
            self._rows = {tuple(row["fields"]): row for row in (json.loads(text) if text is not None else ())}
        return self._rows

    def update(self, decisions: Mapping[KeyFields, Decision]) -> None:
        """Writes the file anew if any of these decisions is not in it."""
        met = {fields: each for fields, each in decisions.items() if self._written.get(fields) is not each}
        self._written.update(met)
        changed = {fields: row for fields, each in met.items() if self.rows.get(fields) != (row := _row(fields, each))}
        if changed:
            self.rows.update(changed)
            new = (fields for fields in self.rows if fields in changed or fields not in self._lines)
            self._lines.update({fields: json.dumps(self.rows[fields]) for fields in new})
            with contextlib.suppress(CacheError):  # of which there was a warning
                self.cache.write(self.name, ("[" + ",\n".join(self._lines.values()) + "]").encode())


_recorded: weakref.WeakKeyDictionary[MultiKernel, _Recorded] = weakref.WeakKeyDictionary()
_met: contextvars.ContextVar[dict[MultiKernel, None] | None] = contextvars.ContextVar("polytile_met", default=None)


def known(multikernel: MultiKernel, work: Work) -> MultiKernel:
    """The MultiKernel, whose decisions are kept from now on as those about `work`."""
    if multikernel not in _recorded:
        _recorded[multikernel] = _Recorded(work, multikernel)
    if (met := _met.get()) is not None:
        met[multikernel] = None
    return multikernel


def work_of(multikernel: MultiKernel) -> Any:
    """What a MultiKernel of a program was made from; None of others, such as those that users write."""
    record = _recorded.get(multikernel)
    return None if record is None else record.work


@contextlib.contextmanager
def collecting_multikernels() -> Iterator[dict[MultiKernel, None]]:
    """Within the block, gets every MultiKernel of a program that is made or asked for, those inside others among them."""
    multikernels: dict[MultiKernel, None] = {}
    token = _met.set(multikernels)
    try:
        yield multikernels
    finally:
        _met.reset(token)


def keep(multikernel: MultiKernel) -> None:
    """Writes the decisions of a MultiKernel, if they are of interest to other processes. Decisions of regimes that it has not
    met stay."""
    record = _recorded.get(multikernel)
    if record is None or _planned():
        return
    if not background.is_here():
        _write(multikernel)
    elif multikernel not in _changed:
        _changed.add(multikernel)
        background.submit(_Write(weakref.ref(multikernel)))


_changed: weakref.WeakSet[MultiKernel] = weakref.WeakSet()
"""Kernels with decisions that are to be written."""


@dataclass(frozen=True)
class _Write:
    """Writes the decisions of a kernel, after what calls run by is decided."""

    owner: weakref.ref[MultiKernel]
    disturbs: Disturbance = Disturbance.COMPUTES

    def urgency(self) -> tuple[float, ...]:
        return 0.5, 0.0

    def run(self) -> None:
        owner = self.owner()
        if owner is not None:
            _write_changed(owner)


def _write_changed(multikernel: MultiKernel) -> None:
    with multikernel.lock:
        if multikernel in _changed:
            _changed.discard(multikernel)
            _write(multikernel)


@atexit.register
def _write_all() -> None:
    """Writes, when the process ends, what it has decided, for later processes."""
    for multikernel in list(_changed):
        if multikernel.lock.acquire(timeout=PATIENCE):
            try:
                _write_changed(multikernel)
            finally:
                multikernel.lock.release()


def _write(multikernel: MultiKernel) -> None:
    kept = {fields: each for fields, each in multikernel.regimes.items() if each.ints and not each.postponed}
    _recorded[multikernel].update(kept)


def restore(multikernel: MultiKernel, ints: Collection[tuple[int, ...]] | None = None) -> None:
    """Files the decisions of earlier processes, in regimes without one, if their candidates are compiled: now those for these
    integers, if any are given, and the others in the background."""
    record, keys = _recorded.get(multikernel), multikernel.keys
    waits = options.get("stall") != "never"
    if record is None or _planned() or (waits and toolchain.find().present):
        return
    rows = dict(sorted(record.rows.items(), key=lambda pair: keys.is_exact_size(pair[0])))
    first = {keys.bucket(keys.fields(each)) for each in ints} if ints is not None and not waits else None
    left: dict[KeyFields, list[tuple[KeyFields, Row]]] = {}
    for fields, row in rows.items():
        left.setdefault(keys.bucket(fields), []).append((fields, row))
    for bucket in [*left] if first is None else first & left.keys():
        _resume_all(multikernel, left.pop(bucket))
    if rows and not waits:
        job = Resume(weakref.ref(multikernel), left, deque(rows), programs.running())
        _resuming.setdefault(multikernel, []).append(job)
        background.submit(job)


@dataclass(frozen=True, eq=False)
class Resume:
    """Files the decisions from disk that are `left`, by the regime of which they are parts, then looks whether those of `regimes`
    hold by what is on record now. Calls come in between: a turn ends after TURN_SECONDS, and asks for the next."""

    owner: weakref.ref[MultiKernel]
    left: dict[KeyFields, list[tuple[KeyFields, Row]]]
    regimes: deque[KeyFields]
    programs: frozenset[str]
    disturbs: Disturbance = Disturbance.COMPUTES

    def urgency(self) -> tuple[float, ...]:
        return 0.9, 0.0  # after regimes that calls have met, for which `resume_regime` is asked

    def run(self) -> None:
        owner, end = self.owner(), time.thread_time() + TURN_SECONDS
        if owner is None:
            return
        while self.left or self.regimes:
            if self.left:
                self.resume(owner, next(iter(self.left)))
            else:
                with programs.on_behalf(*self.programs), options.restored(owner.options):
                    resuming.reconsider(owner, self.regimes.popleft())
            if time.thread_time() > end:
                break
        if self.left or self.regimes:
            background.submit(self)
        else:
            _resuming[owner].remove(self)

    def resume(self, owner: MultiKernel, bucket: KeyFields) -> None:
        """Files what is left of the regime `bucket`."""
        with programs.on_behalf(*self.programs), options.restored(owner.options):
            _resume_all(owner, self.left.pop(bucket, ()))


_resuming: weakref.WeakKeyDictionary[MultiKernel, list[Resume]] = weakref.WeakKeyDictionary()
"""The jobs of each kernel that are not done. Only the background's thread takes from them."""


def resume_regime(multikernel: MultiKernel, fields: KeyFields) -> None:
    """Files at once what an earlier process has decided for the regime `fields`, if that was to come later."""
    for job in _resuming.get(multikernel, ()):
        job.resume(multikernel, multikernel.keys.bucket(fields))


def _resume_all(multikernel: MultiKernel, rows: Iterable[tuple[KeyFields, Row]]) -> None:
    for fields, row in rows:
        try:
            if multikernel.decision_of(regime.pack(fields)) is None:
                _resume(multikernel, fields, row)
        except (*NOT_HERE, PolytileError) as error:
            known = multikernel.keys.regime(fields)
            log.info("Kernel %r decides again for %s: %s", multikernel.spec.name, known, error)


NOT_HERE = (LookupError, TypeError, ValueError)
"""What a row of another's raises that has no meaning here."""


def _planned() -> bool:
    """Whether it is said what runs, or agreed on by the ranks of a job, or everything is to be measured: then decisions of other
    processes do not hold."""
    planned = options.get("plan") or options.get("force") or options.get("collect") or options.get("tune") == "all"
    return bool(planned) or agreement.wanted()


def _row(fields: KeyFields, decision: Decision) -> Row:
    return {
        "fields": list(fields),
        "ints": list(decision.ints),
        "candidate": decision.candidate,
        "link": decision.link,
        "provenance": decision.provenance,
        "standings": [[s.candidate, None if math.isnan(s.seconds) else s.seconds, s.note] for s in decision.standings],
        "notes": list(decision.notes),
        "measured_at": [list(size) for size in decision.measured_at],
        "provisional": decision.provisional,
        "evidence": decision.evidence,
    }


def _resume(multikernel: MultiKernel, fields: KeyFields, row: Mapping[str, Any]) -> None:
    keys, ints = multikernel.keys, tuple(row["ints"])
    pointers, part = keys.pointers(fields), keys.is_sub_bucket(fields) or keys.is_exact_size(fields)
    decision = Decision(
        kernel=multikernel.spec.name,
        problem=multikernel.spec.problem(ints, pointers),
        sizes=keys.deciding(ints),
        regime=keys.regime(fields),
        candidate=row["candidate"],
        link="exact" if row["link"] in MEASURED else row["link"],
        provenance="measured before, at these sizes" if row["link"] in MEASURED else row["provenance"],
        standings=tuple(Standing(name, math.nan if s is None else s, note) for name, s, note in row["standings"]),
        notes=tuple(row["notes"]),
        from_store=row["link"] not in UNMEASURED,
        tried=True,
        measured_at=tuple((name, size) for name, size in row["measured_at"]),
        part_of=keys.regime(keys.bucket(fields)) if part else None,
        provisional=row["provisional"],
        programs=programs.running(),
        ints=ints,
        evidence=row["evidence"],
    )
    form = multikernel.named(decision.candidate).specialise(keys.facts_for_code(ints, pointers))
    form.prepare()
    if not form.ready():
        raise LookupError(f"{decision.candidate!r} is not compiled")
    resuming.resume(multikernel, fields, decision, form)
