"""Plan files: every decision of a program, pinned, one a line.

A plan is JSON that a person can read and `git diff` can show:

    {"format": "polytile plan", "version": 3,
    "environment": {
     "torch": "2.13.0", ...},
    "decisions": [
    {"kernel": "softmax_1f0c9a52", "regime": "M=512..723%16", "candidate": "looped t2", "source": ..., "digest": ...,
     "dtypes": [...], "layouts": [...], "conditions": ["threads=2"], "sizes": {...}},
    ...]}

A decision is found by the kernel's digest, dtypes, layouts, the conditions that change how its candidate runs (conditions.py) and
the regime. Where a regime is subdivided (subdivision.py), the decisions are those of its sub-buckets, each with the regime as
"part_of"; so are those of exact sizes in it (refining.py). The kernel's name is there for readers, and so are the sizes, except
those of exact sizes. The environment says where the plan was made. It takes no part in finding a decision, so that a plan works
on another machine of the same kind.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from polytile import files
from polytile.dispatch.decision import Decision
from polytile.errors import PlanError
from polytile.facts import OF_PLANS, OF_PROBLEMS, Fact, Regime, read_all, read_regime, texts
from polytile.runtime import device
from polytile.runtime.pytorch import threads
from polytile.store import words
from polytile.tuning.environment import environment
from polytile.version import __version__

if TYPE_CHECKING:
    from polytile.dispatch.multikernel import MultiKernel
    from polytile.dispatch.spec import KernelSpec

FORMAT, VERSION = "polytile plan", 3
READABLE = (2, 3)
"""Version 2 had other names for some candidates and sizes, which are read as the present ones (store/words.py)."""

TEXTS = ("kernel", "regime", "candidate", "source", "digest")
"""The names of what is text in each decision."""

Key = tuple[str, tuple[str, ...], tuple[str, ...], tuple[str, ...], str]
"""What a decision is about, as text: kernel digest, dtypes, layouts, conditions, regime."""


@dataclass(frozen=True)
class Pinned:
    """One decision of a plan. `source` is the hash of the candidate's source; `sizes` are those it was first met at."""

    kernel: str
    regime: Regime
    candidate: str
    source: str
    digest: str
    dtypes: tuple[str, ...] = ()
    layouts: tuple[Fact, ...] = ()
    sizes: tuple[tuple[str, int], ...] = ()
    part_of: Regime | None = None
    conditions: tuple[Fact, ...] = ()

    @staticmethod
    def from_decision(spec: KernelSpec, conditions: tuple[Fact, ...], decision: Decision, source: str) -> Pinned:
        return Pinned(spec.name, decision.regime, decision.candidate, source, spec.kernel, spec.dtypes, spec.layouts,
                      decision.sizes, decision.part_of, conditions)  # fmt: skip

    @property
    def key(self) -> Key:
        return self._key_in(self.regime)

    @property
    def of_exact_sizes(self) -> bool:
        """Whether it is about exact sizes with an entry of their own: sub-buckets are ranges."""
        return self.part_of is not None and not self.regime.has_ranges

    @property
    def bucket_key(self) -> Key:
        """The key of the whole regime that this one's is a part of."""
        return self._key_in(self.part_of or self.regime)

    def _key_in(self, regime: Regime) -> Key:
        return self.digest, self.dtypes, texts(self.layouts), texts(self.conditions), str(regime)

    def as_json(self) -> dict[str, Any]:
        return {
            "kernel": self.kernel,
            "regime": str(self.regime),
            "candidate": self.candidate,
            "source": self.source,
            "digest": self.digest,
            "dtypes": list(self.dtypes),
            "layouts": texts(self.layouts),
            "conditions": texts(self.conditions),
            "sizes": dict(self.sizes),
            **({"part_of": str(self.part_of)} if self.part_of is not None else {}),
        }

    @staticmethod
    def from_json(entry: Mapping[str, Any]) -> Pinned:
        if not all(isinstance(entry[name], str) for name in TEXTS):
            raise TypeError(f"the decision {json.dumps(entry)} has something else than text where text belongs")
        return Pinned(
            entry["kernel"],
            read_regime(words.regime(entry["regime"], entry["sizes"])),
            words.candidate(entry["candidate"]),
            entry["source"],
            entry["digest"],
            dtypes=tuple(entry["dtypes"]),
            layouts=read_all(entry["layouts"], OF_PROBLEMS),
            sizes=tuple((name, int(size)) for name, size in words.sizes(entry["sizes"]).items()),
            part_of=read_regime(words.regime(entry["part_of"], entry["sizes"])) if entry.get("part_of") else None,
            conditions=read_all(entry["conditions"], OF_PLANS),
        )


@dataclass(frozen=True)
class Plan:
    """The decisions of one file, and facts about the place where they were made."""

    decisions: tuple[Pinned, ...]
    environment: Mapping[str, str]

    @cached_property
    def by_key(self) -> Mapping[Key, Pinned]:
        return {pinned.key: pinned for pinned in self.decisions}

    def other_conditions(self, key: Key) -> tuple[tuple[str, ...], ...]:
        """The other conditions under which the plan pins what `key` is about."""
        digest, dtypes, layouts, conditions, regime = key
        about = digest, dtypes, layouts, regime
        keys = (pinned.key for pinned in self.decisions)
        return tuple(other[3] for other in keys if (*other[:3], other[4]) == about and other[3] != conditions)

    @cached_property
    def subdivided(self) -> frozenset[Key]:
        """The keys of regimes whose sub-buckets are pinned."""
        parts = (pinned for pinned in self.decisions if pinned.part_of is not None)
        return frozenset(pinned.bucket_key for pinned in parts if not pinned.of_exact_sizes)

    @cached_property
    def exact_sizes(self) -> Mapping[Key, tuple[Mapping[str, int], ...]]:
        """The exact sizes that are pinned, by the key of their regime."""
        sizes: dict[Key, tuple[Mapping[str, int], ...]] = {}
        for pinned in self.decisions:
            if pinned.of_exact_sizes:
                sizes[pinned.bucket_key] = (*sizes.get(pinned.bucket_key, ()), dict(pinned.sizes))
        return sizes

    @staticmethod
    def read(path: str | os.PathLike[str]) -> Plan:
        """Raises PlanError where there is no such file, or it is no plan, or pins one thing twice."""
        try:
            content = json.loads(Path(path).expanduser().read_text())
            if content["format"] != FORMAT or content["version"] not in READABLE:
                raise ValueError(f"it is of version {content['version']}, this polytile reads {VERSION}")
            decisions = tuple(Pinned.from_json(entry) for entry in content["decisions"])
            facts = {str(name): str(value) for name, value in content["environment"].items()}
        except FileNotFoundError:
            raise PlanError(
                f"{os.fspath(path)} does not exist; write a plan there first, with polytile.save_plan."
            ) from None
        except KeyError as error:
            raise PlanError(f"{os.fspath(path)} is no plan file (it has no {error}); write it again.") from None
        except (OSError, ValueError, TypeError, AttributeError) as error:
            raise PlanError(f"{os.fspath(path)} is no plan file ({error}); write it again.") from None
        plan = Plan(decisions, facts)
        if len(plan.by_key) < len(decisions):
            twice = next(pinned for pinned in decisions if plan.by_key[pinned.key] is not pinned)
            raise PlanError(
                f"{os.fspath(path)} says twice what kernel {twice.kernel!r} runs for {twice.regime}; "
                "remove one of the lines."
            )
        return plan

    def write(self, path: str | os.PathLike[str]) -> None:
        """Writes the plan atomically. Raises PlanError where the file cannot be written."""
        target = Path(path).expanduser()
        try:
            files.write_text(target, self.text())
        except OSError as error:
            raise PlanError(f"the plan cannot be written to {target}: {error.strerror or error}.") from None

    def text(self) -> str:
        """The file: sorted, one fact and one decision a line, so that line tools show what has changed."""
        ordered = sorted(self.decisions, key=lambda pinned: (pinned.kernel, pinned.key))
        facts = _lines(
            [f"{json.dumps(name)}: {json.dumps(self.environment[name])}" for name in sorted(self.environment)]
        )
        decisions = _lines([json.dumps(pinned.as_json()) for pinned in ordered])
        return (
            f'{{"format": {json.dumps(FORMAT)}, "version": {VERSION},\n'
            f'"environment": {{{facts}}},\n"decisions": [{decisions}]}}\n'
        )


@dataclass(frozen=True)
class Change:
    """What one plan says and the other does not, or not so; None where a plan says nothing."""

    before: Pinned | None
    after: Pinned | None

    @property
    def pinned(self) -> Pinned:
        """Whichever of the two there is."""
        present = self.after or self.before
        assert present is not None
        return present


def compare(before: Plan, after: Plan) -> list[Change]:
    """The decisions in which two plans differ: candidate or source. Names and sizes, which are for readers, may differ."""
    changes = []
    for key in sorted({**before.by_key, **after.by_key}):
        old, new = before.by_key.get(key), after.by_key.get(key)
        if old is None or new is None or (old.candidate, old.source) != (new.candidate, new.source):
            changes.append(Change(old, new))
    return changes


def here() -> dict[str, str]:
    """What of this process and machine could make a pinned kernel give other results or take another time."""
    facts = {name: value for name, value in environment() if name != "method"}
    machine = device.describe()
    facts.update({name: str(machine[name]) for name in ("model", "isa", "cores")}, threads=str(threads()))
    return {"polytile": __version__, **facts}


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Each fact in which two environments differ, as words: "torch 2.11.0, here 2.13.0"."""
    names = sorted({**before, **after})
    return [
        f"{name} {before.get(name, 'unknown')}, here {after.get(name, 'unknown')}"
        for name in names
        if before.get(name) != after.get(name)
    ]


def key_of(spec: KernelSpec, conditions: tuple[Fact, ...], regime: Regime) -> Key:
    """What a decision about this kernel in this regime, under these conditions, is found by."""
    return spec.kernel, spec.dtypes, texts(spec.layouts), texts(conditions), str(regime)


def pinned_by(multikernel: MultiKernel) -> list[Pinned]:
    """Every decision that a MultiKernel has made so far, each with the source of its candidate as it is now. No source is
    generated for candidates that were never chosen."""
    decisions = multikernel.decisions
    chosen = {decision.candidate for decision in decisions}
    sources = {candidate.name: candidate.source_hash for candidate in multikernel.candidates if candidate.name in chosen}
    spec, conditions = multikernel.spec, multikernel.plan_conditions
    return [Pinned.from_decision(spec, conditions, decision, sources[decision.candidate]) for decision in decisions]


def _lines(parts: Sequence[str]) -> str:
    return "\n" + ",\n".join(parts) if parts else ""
