"""How many compilers run at once: as many as there are cores, fewer where memory is short."""

from __future__ import annotations

from pathlib import Path

import pytest

from polytile.runtime import cpu


@pytest.mark.parametrize(
    ("available", "expected"), [(None, 16), (64 << 30, 16), (2 << 30, 5), (100 << 20, 1), (0, 1)]
)
def test_processes_are_bounded_by_cores_and_by_memory(
    monkeypatch: pytest.MonkeyPatch, available: int | None, expected: int
) -> None:
    monkeypatch.setattr(cpu, "usable_cores", lambda: 16)
    monkeypatch.setattr(cpu, "available_bytes", lambda: available)
    assert cpu.side_by_side(400 << 20) == expected


def test_a_control_group_that_leaves_less_than_the_machine_counts(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.max").write_text("10000\n")
    assert cpu._group_bytes(tmp_path) == 7000
    (tmp_path / "memory.max").write_text("max\n")
    assert cpu._group_bytes(tmp_path) is None and cpu._group_bytes(tmp_path / "none") is None


def test_this_machine_says_what_it_has() -> None:
    available = cpu.available_bytes()
    assert available is None or available > 1 << 20
