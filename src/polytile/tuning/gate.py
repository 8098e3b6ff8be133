"""The accuracy gate: no candidate is timed, let alone used, before its results have been compared.

A candidate runs once on poisoned clones of the caller's arguments. Every argument that it writes must then agree with the
reference, which runs on the same arguments in float64. If they disagree, the candidate is also compared with the reference at
the arguments' own precision: a formula that overflows in float32 does so in every float32 kernel, and a candidate need only be
about as good as the straightforward kernel. If comparisons of computed values decide the result, the reference tells which
elements rounding may decide either way (near_ties.py). If terms cancel, errors are measured against the size of the terms and
not of the result (terms.py).
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

from polytile.errors import SignatureError
from polytile.ir.leaning import Leaning, leaning
from polytile.runtime import openmp
from polytile.tuning.clones import Clones, Lent, stand_ins, written_positions
from polytile.tuning.distance import bits_equal, compare, computable, pieces, root_mean_square, scaling
from polytile.tuning.headroom import copy_of, wide_fits
from polytile.tuning.near_ties import ErrorCount, count_errors, firm_error
from polytile.tuning.terms import OFF, sizes_of_terms
from polytile.tuning.tolerance import tolerance

log = logging.getLogger("polytile.tuning")

Reference = Callable[..., None]
"""Called with the kernel's own flat arguments, tensors then ints; writes the written ones. It must accept float64 tensors."""


class OfCandidates(ABC):
    """A reference that consists of candidates' results and runs these candidates in this process."""

    @abstractmethod
    def __call__(self, *args: Any) -> None:
        """As any other reference."""

    @abstractmethod
    def without(self, names: Collection[str]) -> OfCandidates:
        """That of the other candidates."""


Scales = Mapping[int, "float | torch.Tensor"]
"""What errors are relative to in addition to |expected|, by the position of a written argument: one number, or one per
element."""

EXCUSE = 4.0
"""A candidate may be this many times as far from float64 as the reference at the arguments' own precision is."""

AGAIN, AGAIN_SECONDS = 2, 2e-3
"""How often a candidate runs again if its first run and check took at most this many seconds."""

SMALL = 1 << 20
"""The most elements of all arguments for which the reference runs on one thread (openmp.py)."""


@dataclass(frozen=True)
class Verdict:
    """Whether the results were right; the largest error relative to |expected| + rms(expected), and where that is too large
    to the size of the terms as well; what was wrong."""

    ok: bool
    max_error: float | None = None
    detail: str = ""


class Gate:
    """The expected results of one problem, and the comparison with them.

    `names` and `roles` describe the tensor arguments. With `wide` the reference runs in float64, with `on_host` on the host,
    where results are then compared, because their device has no memory to spare. `coarse` says for each tensor how far it may
    be off at least, for what is rounded on its way. `unavailable` says why
    there is nothing to compare with, if so; then every candidate passes. Raises what the reference raises when the
    arguments themselves are at fault (IndexError).
    """

    def __init__(
        self,
        args: Sequence[Any],
        roles: Sequence[str],
        names: Sequence[str],
        reference: Reference | None,
        reduction: int = 1,
        wide: bool = True,
        on_host: bool = False,
        coarse: Sequence[float] = (),
    ) -> None:
        self._args, self._roles, self._names = tuple(args), tuple(roles), tuple(names)
        self._reference, self._reduction = reference, reduction
        self._coarse = dict(enumerate(coarse))
        self._written = written_positions(args, roles)
        self._random = torch.get_rng_state()
        self.unavailable = "" if reference else "there is no reference"
        self._on_host = on_host
        wide_args = stand_ins(args, roles, on_host=on_host) if reference and wide else None
        self._expected = self._evaluate(wide_args) if wide_args else None
        self._wide = self._expected is not None
        self._own: list[torch.Tensor] | None = None
        if reference and not self._wide:
            self._expected = self._kept_result()
            if self._expected is None and not isinstance(reference, OfCandidates):  # these say themselves how they fail
                log.warning("Candidates are used without a check of their results, for %s.", self.unavailable)
        written = zip(self._written, self._expected or (), strict=self._expected is not None)
        self._scales: Scales = {position: root_mean_square(right) for position, right in written}

    @cached_property
    def clones(self) -> Clones:
        """The arguments that candidates are tried on in this process."""
        return Clones(self._args, self._roles)

    def close(self) -> None:
        """Gives the caller's memory back if it was used."""
        if "clones" in vars(self):
            self.clones.close()

    def check(
        self, run: Callable[[tuple[Any, ...]], None], clones: Clones | None = None, again_within: float | None = None
    ) -> Verdict:
        """Runs a candidate on the clones (this gate's own if none are given) and judges what it wrote. Passes on what `run`
        raises.

        A candidate quicker than `again_within` seconds (default: AGAIN_SECONDS) runs AGAIN times more. A race between its
        threads, or something that it leaves behind in its own memory, shows as a result that changes from run to run.
        """
        clones = clones if clones is not None else self.clones
        again_within = AGAIN_SECONDS if again_within is None else again_within
        started = time.perf_counter()
        verdict = self._judged(run, clones)
        again = AGAIN if verdict.ok and time.perf_counter() - started < again_within else 0
        if again:
            first = [copy_of(clones.args[position]) for position in self._written]
        for _ in range(again):
            self._run(run, clones)
            same = all(bits_equal(clones.args[p], f) for p, f in zip(self._written, first, strict=True))
            repeated = verdict if same and clones.damage(inputs=False) is None else self._verdict(clones)
            if not repeated.ok:
                return replace(repeated, detail=f"{repeated.detail}, in a later run of the same")
            verdict = replace(verdict, max_error=max(verdict.max_error or 0.0, repeated.max_error or 0.0))
        return verdict

    def _judged(self, run: Callable[[tuple[Any, ...]], None], clones: Clones) -> Verdict:
        self._run(run, clones)
        return self._verdict(clones)

    def _run(self, run: Callable[[tuple[Any, ...]], None], clones: Clones) -> None:
        clones.restore()
        clones.poison()
        torch.set_rng_state(self._random)
        run(clones.args)

    def _verdict(self, clones: Clones) -> Verdict:
        """Judges what a run wrote to the clones."""
        beside = clones.damage()
        if beside is not None:
            inside = self._roles[beside] == "in"
            where = "to argument {!r}, which it may only read" if inside else "outside argument {!r}"
            return Verdict(False, None, "wrote " + where.format(self._names[beside]))
        if self._expected is None:
            return Verdict(True, None, self.unavailable)
        verdict = self._beside(self._expected, clones, self._scales)
        if verdict.ok or not self._terms:
            return verdict
        second = self._beside(self._expected, clones, self._terms)
        return second if second.ok else verdict

    def _beside(self, expected: Sequence[torch.Tensor], clones: Clones, scales: Scales) -> Verdict:
        """Judges what a run wrote by its errors relative to |expected| + `scales`."""
        verdict = self._compare(expected, clones, scales)
        if not verdict.ok and self._leaned:
            return Verdict(True) if self._decided_as_well(clones, scales) else verdict
        if not verdict.ok and self._wide:
            own = self._own_precision()
            least = self._compare(own, clones, scales if scales is self._terms else {})
            if least.ok or (verdict.max_error or math.inf) <= EXCUSE * self._error_of(own, scales):
                return Verdict(True, verdict.max_error)
        return verdict

    @cached_property
    def _terms(self) -> Scales:
        """For each written argument, its elements' root mean square and the size of their terms. Empty if the reference cannot
        tell, or there is no memory for it."""
        if not self._on_host and not wide_fits(self._args, self._roles):
            return {}
        floats = [t.dtype.to_real() if t.is_complex() else t.dtype for t in self._args[: len(self._roles)] if _computes(t)]
        off = OFF[torch.float64] if self._wide else max((OFF[dtype] for dtype in floats if dtype in OFF), default=0.0)

        def evaluate() -> list[torch.Tensor] | None:
            args = stand_ins(self._args, self._roles, self._wide, self._on_host)
            return self._evaluate(args) if args is not None else None

        try:
            sizes = sizes_of_terms(evaluate, off) if off else None
        except torch.OutOfMemoryError:
            return {}
        finally:
            self.unavailable = ""
        by_place = zip(self._written, sizes or (), strict=sizes is not None)
        return {place: size.mul_(self._part_of_terms(place)).add_(self._scales[place]) for place, size in by_place}

    def _part_of_terms(self, position: int) -> float:
        """The share of an argument's tolerance that applies to its terms: values that are stored in 16 bits, or rounded to them
        on the way, are still accumulated in float32."""
        dtype = self._args[position].dtype
        added_up_in = torch.float32 if dtype.itemsize < torch.float32.itemsize else dtype
        allowed = self._allowed(position)
        return min(1.0, tolerance(added_up_in, self._reduction) / allowed) if allowed else 1.0

    @cached_property
    def _leaned(self) -> tuple[list[torch.Tensor], ...]:
        """What the reference writes if its decisions lean to one side, and to the other. Empty if it compares no computed
        values."""
        floats = [t.dtype for t in self._args[: len(self._roles)] if isinstance(t, torch.Tensor) and t.dtype.is_floating_point]
        by = max((tolerance(dtype, self._reduction) for dtype in floats), default=0.0)
        first = self._leaning(by, 1)
        other = self._leaning(by, -1) if first is not None else None
        return (first, other) if first is not None and other is not None else ()

    def _decided_as_well(self, clones: Clones, scales: Scales) -> bool:
        """Whether results differ from the reference only where rounding may decide, and elsewhere about as little as the
        reference's own results at the arguments' precision."""
        assert self._expected is not None
        own = self._own_precision() if self._wide else self._expected
        for place, *results in zip(self._written, own, self._expected, *self._leaned, strict=True):
            got, mine, *rights = map(computable, (clones.args[place], *results))
            scale, device = scaling(scales[place], rights[0]), rights[0].device
            allowed = self._allowed(place)
            with openmp.at_most(1):
                errors = (firm_error(near, each, allowed, s) for near, s, *each in pieces(mine.to(device), scale, *rights))
                allowed = max(allowed, EXCUSE * max(errors, default=0.0))
                counts = (count_errors(part.to(device), each, allowed, s) for part, s, *each in pieces(got, scale, *rights))
                if not sum(counts, ErrorCount()).right:
                    return False
        return True

    def _leaning(self, by: float, side: int) -> list[torch.Tensor] | None:
        """What the reference writes if its decisions lean to one side, in the arguments' types. None if it has no decisions, or
        there is no memory for it; then nothing is excused."""
        if not self._on_host and not wide_fits(self._args, self._roles):
            return None
        args, how = stand_ins(self._args, self._roles, self._wide, self._on_host), Leaning(side, by)
        try:
            with leaning(how):
                written = self._evaluate(args) if args is not None else None
        except torch.OutOfMemoryError:
            return None
        if written is None or not how.used:
            return None
        return [right.to(self._args[place].dtype) for place, right in zip(self._written, written, strict=True)]

    def _own_precision(self) -> list[torch.Tensor]:
        """What the reference writes at the arguments' own precision; what it wrote in float64 if it cannot."""
        if self._own is None:
            assert self._expected is not None
            self._own = self._kept_result() or self._expected
        return self._own

    def _kept_result(self) -> list[torch.Tensor] | None:
        """What the reference writes at the arguments' own precision, in memory of its own; None if it fails."""
        hosted = stand_ins(self._args, self._roles, wide=False, on_host=True) if self._on_host else None
        if hosted is not None:
            return self._evaluate(hosted)
        clones = Clones(self._args, self._roles)
        try:
            written = self._evaluate(clones.args)
            lent = any(isinstance(block, Lent) for block in clones.blocks)
            return [tensor.cpu() for tensor in written] if lent and written else written
        finally:
            clones.close()

    def _evaluate(self, args: tuple[Any, ...]) -> list[torch.Tensor] | None:
        """What the reference writes when it is called with `args`; None if it fails."""
        assert self._reference is not None
        torch.set_rng_state(self._random)
        elements = sum(arg.numel() for arg in args if isinstance(arg, torch.Tensor))
        try:
            with openmp.at_most(1) if elements <= SMALL else contextlib.nullcontext():
                self._reference(*args)
        except (IndexError, torch.OutOfMemoryError, SignatureError):
            raise
        except Exception as error:
            self.unavailable = f"the reference failed ({type(error).__name__}: {error})"
            return None
        self.unavailable = ""
        return [args[i] for i in self._written]

    def _compare(self, expected: Sequence[torch.Tensor], clones: Clones, scales: Scales) -> Verdict:
        worst = 0.0
        for position, right in zip(self._written, expected, strict=True):
            got, place = clones.args[position], f"argument {self._names[position]!r}"
            allowed = self._allowed(position) * (1 if right.dtype != got.dtype else 2)
            error, why = compare(got, right, scales.get(position))
            worst = max(worst, error)
            if why:
                return Verdict(False, math.inf, f"{place} {why}")
            if error > allowed:
                return Verdict(False, error, f"{place} is off by {error:.2g} of its values; {allowed:.2g} is allowed")
        return Verdict(True, worst)

    def _allowed(self, position: int) -> float:
        """How far a written argument may be off."""
        dtype = self._args[position].dtype
        return max(tolerance(dtype, self._reduction), self._coarse.get(position, 0.0) if dtype.is_floating_point else 0.0)

    def _error_of(self, own: Sequence[torch.Tensor], scales: Scales) -> float:
        """Distance of the reference at the arguments' own precision from the one in float64."""
        assert self._expected is not None
        both = zip(self._written, own, self._expected, strict=True)
        errors = [compare(mine, right, scales[position]) for position, mine, right in both]
        return max((error for error, why in errors if not why and math.isfinite(error)), default=0.0)


def _computes(arg: Any) -> bool:
    return isinstance(arg, torch.Tensor) and (arg.dtype.is_floating_point or arg.dtype.is_complex)
