"""A part of the operator conformance run, spread over the families of operators; `make conformance` runs all of it."""

from __future__ import annotations

import pytest

from tests.conformance.check import check
from tests.conformance.entries import DTYPES, entries, spread
from tests.conformance.listed import reason_for

PER_FAMILY = 4
SAMPLES = 3


def subset() -> list[str]:
    """Names of entries: at most PER_FAMILY of each family, evenly spread over it."""
    families: dict[str, list[str]] = {}
    for name, entry in entries().items():
        families.setdefault(entry.family, []).append(name)
    return [name for names in families.values() for name in spread(names, PER_FAMILY)]


@pytest.mark.parametrize("name", subset())
def test_an_operator_is_eagers(name: str) -> None:
    report = check(entries()[name], "cpu", SAMPLES, tune="off")
    if known := reason_for(name, "cpu"):
        pytest.xfail(f"listed: {known}")
    assert report.verdict == "right", f"{report.detail}\n{report.text}"


def test_every_family_and_dtype_is_in_the_subset() -> None:
    chosen = [entries()[name] for name in subset()]
    assert {entry.family for entry in chosen} == {entry.family for entry in entries().values()}
    assert {entry.dtype for entry in chosen} == set(DTYPES)
