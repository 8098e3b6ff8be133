"""Reports each decision once: a line on stderr (option debug ≥ 1) and a row of the metrics table."""

from __future__ import annotations

import contextlib
import csv
import io
import logging
import math
import os
from collections.abc import Sequence

from polytile import debug, options
from polytile.candidates.candidate import Candidate
from polytile.dispatch.decision import Decision
from polytile.dispatch.spec import KernelSpec
from polytile.problem import Outcome, sizes_text

log = logging.getLogger("polytile.dispatch")

COLUMNS = tuple(
    "multikernel family operators kernels size_hints reduction_hint source_paths latencies_us pick link "
    "provenance".split()
)
"""`kernels`, `source_paths` and `latencies_us` have one part for each sub-kernel, separated by ';', in canonical order. A part
of `latencies_us` is empty where the sub-kernel was not timed."""


DEFECTS = {
    Outcome.WRONG: "gives a wrong result",
    Outcome.COMPILE_ERROR: "did not compile",
    Outcome.CRASHED: "crashes",
    Outcome.TIMEOUT: "does not come to an end",
    Outcome.RAISED: "raises an error",
}


def announce(spec: KernelSpec, candidates: Sequence[Candidate], decision: Decision) -> None:
    """Reports a decision as the options `debug` and `metrics` say."""
    debug.show(1, lambda: f"polytile: {decision}")
    path = options.get("metrics")
    if path:
        try:
            _append(path, _row(spec, candidates, decision))
        except OSError as error:
            log.warning("The metrics table %s cannot be written: %s.", path, error.strerror)


def confirmed(decision: Decision, sizes: Sequence[tuple[str, int]], grounds: str) -> None:
    """Reports that a regime's candidate is as good as any at these frequent sizes of it."""
    debug.show(1, lambda: f"polytile: {decision.kernel} [{sizes_text(sizes)}] -> {decision.candidate}, still: {grounds}")


def rejected(spec: KernelSpec, candidate: str, detail: str, outcome: Outcome) -> None:
    """Reports that a candidate's result was wrong or is missing. That is a defect of its generator or author, and is reported
    whatever the options say."""
    why = detail.removeprefix(f"{outcome.value}: ").rstrip(".")
    log.warning("Candidate %r of kernel %r %s and is not used: %s.", candidate, spec.name, DEFECTS[outcome], why)


def resorted(spec: KernelSpec, decision: Decision) -> None:
    """Reports that no candidate's results passed, and that the library's candidate runs nevertheless."""
    sizes = sizes_text(decision.sizes)
    log.warning("Kernel %r at %s: no candidate agrees with the reference; %r runs it, as in eager.", spec.name, sizes,
                decision.candidate)  # fmt: skip


def _row(spec: KernelSpec, candidates: Sequence[Candidate], decision: Decision) -> list[str]:
    seconds = {standing.candidate: standing.seconds for standing in decision.standings}
    times = [seconds.get(candidate.name, math.nan) for candidate in candidates]
    return [
        spec.name,
        spec.family,
        ";".join(spec.source_ops),
        ";".join(candidate.name for candidate in candidates),
        sizes_text(decision.sizes, ";"),
        spec.reduction_hint,
        ";".join(source_path(candidate) for candidate in candidates),
        ";".join("" if math.isnan(time) else f"{time * 1e6:.4f}" for time in times),
        decision.candidate,
        decision.link,
        decision.provenance,
    ]


def source_path(candidate: Candidate) -> str:
    """Where a candidate's source can be read ; else its origin and source hash."""
    return str(candidate.source_path or f"{candidate.origin}:{candidate.source_hash}")


def _append(path: str, row: Sequence[str]) -> None:
    """One write to a file opened for appending: rows of several processes do not mix. Whoever comes first makes the
    file, complete with its header, under a temporary name and links it into place."""
    if not os.path.exists(path):
        temporary = f"{path}.{os.getpid()}.tmp"
        with open(temporary, "w") as file:
            file.write(_line(COLUMNS))
        with contextlib.suppress(FileExistsError):
            os.link(temporary, path)
        os.unlink(temporary)
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
    try:
        os.write(descriptor, _line(row).encode())
    finally:
        os.close(descriptor)


def _line(values: Sequence[str]) -> str:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerow(values)
    return buffer.getvalue()
