"""What was chosen for which sizes, on what grounds, and how the others stood."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from polytile.facts import Regime
from polytile.problem import Problem, sizes_text, time_text


@dataclass(frozen=True)
class Standing:
    """One candidate at the time of a decision: seconds per call (NaN if not measured), and why it was not used, if so."""

    candidate: str
    seconds: float = math.nan
    note: str = ""

    def __str__(self) -> str:
        time = "" if math.isnan(self.seconds) else f" {time_text(self.seconds)}"
        why = self.note.split("\n", 1)[0]  # a compiler's messages have many lines, a decision has one
        return f"{self.candidate}{time}{f' ({why})' if why else ''}"


@dataclass(frozen=True)
class Decision:
    """A regime's candidate. `link` names the link of the selector that answered, `provenance` says on what grounds.

    `standings` has every candidate that was considered, in canonical order, with its time at the sizes `measured_at` (no
    sizes: at `sizes`); `notes` what stronger links said in passing. `part_of` is the whole regime where `regime` is sub-buckets
    or exact sizes of one. `from_store` says that it rests on measurements taken earlier, `tried` that the candidate ran on these
    arguments just now, `postponed` that there was no memory or time for measuring all, and a later call may have some,
    `provisional` that the times were taken while other programs had the cores. `programs` are the file names of the programs
    that it was made for (runtime/programs.py), `ints` all integers of the call, `evidence` the number of measurements that were
    on record at its sizes.
    """

    kernel: str
    problem: Problem
    sizes: tuple[tuple[str, int], ...]
    regime: Regime
    candidate: str
    link: str
    provenance: str
    standings: tuple[Standing, ...] = ()
    notes: tuple[str, ...] = ()
    from_store: bool = False
    tried: bool = field(default=False, compare=False)
    measured_at: tuple[tuple[str, int], ...] = ()
    part_of: Regime | None = None
    postponed: bool = field(default=False, compare=False)
    provisional: bool = field(default=False, compare=False)
    programs: frozenset[str] = field(default=frozenset(), compare=False, repr=False)
    ints: tuple[int, ...] = field(default=(), compare=False, repr=False)
    evidence: int = field(default=0, compare=False, repr=False)

    @property
    def seconds(self) -> float | None:
        """Seconds of a call of the chosen candidate, at `measured_at`; None where it was not measured."""
        seconds = next((s.seconds for s in self.standings if s.candidate == self.candidate), math.nan)
        return None if math.isnan(seconds) else seconds

    @property
    def runners_up(self) -> tuple[Standing, ...]:
        """The other candidates, fastest first, those without a time last."""
        others = [standing for standing in self.standings if standing.candidate != self.candidate]
        return tuple(sorted(others, key=lambda standing: (math.isnan(standing.seconds), standing.seconds)))

    def __str__(self) -> str:
        against = f"; others: {', '.join(map(str, self.runners_up))}" if self.runners_up else ""
        busy = ("taken while other programs had the cores, to be measured again",) if self.provisional else ()
        notes = f" ({'; '.join((*self.notes, *busy))})" if self.notes or busy else ""
        return f"{self.kernel} [{sizes_text(self.sizes)}] -> {self.candidate}: {self.provenance}{notes}{against}"
