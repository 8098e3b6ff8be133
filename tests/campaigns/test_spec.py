"""What a campaign's spec may say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from polytile.campaigns import spec as specs
from polytile.errors import CampaignError


def read(folder: Path, text: str) -> specs.Spec:
    (folder / "spec.toml").write_text(text)
    return specs.read(folder / "spec.toml")


def test_a_spec_is_read(tmp_path: Path) -> None:
    found = read(
        tmp_path,
        """
        [campaign]
        device = "cuda"
        seconds = 60
        [[model]]
        target = "model.py:encoder"
        sizes = {s0 = [8, 100], s1 = {low = 4, high = 64, count = 3}}
        [[model]]
        target = "model.py:decoder"
        sizes = "sizes.json"
        [[kernel]]
        target = "kernels.py:rms_norm"
        shapes = ["64x512,64x512"]
        """,
    )
    first, second = found.models
    assert (found.device, found.seconds, found.search) == ("cuda", 60, "thorough")
    assert first.target == str(tmp_path / "model.py:encoder")
    assert first.hints == [{"s0": a, "s1": b} for a in (8, 100) for b in (4, 16, 64)]
    assert second.hints == tmp_path / "sizes.json"
    assert found.kernels[0].shapes == ("64x512,64x512",)


def test_of_too_many_combinations_the_same_ones_are_drawn() -> None:
    values = {"s0": list(range(2, 30)), "s1": list(range(2, 30))}
    drawn = specs.combinations(values, 20)
    assert len(drawn) == 20
    assert drawn == specs.combinations(values, 20)


MODEL = '[[model]]\ntarget = "m.py:f"\n'


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[campaign]\n", "has nothing to measure"),
        ("[campaign", "is no TOML"),
        ("[other]\n", "'other', which means nothing"),
        ("[campaign]\nsearch = 'wide'\n" + MODEL + "sizes = [8]", "choose from thorough, all, exhaustive"),
        ("[campaign]\nseconds = -1\n" + MODEL + "sizes = [8]", "0 or more"),
        ("[campaign]\nstore = 3\n" + MODEL + "sizes = [8]", "has to be of type str"),
        (MODEL, "needs sizes"),
        (MODEL + "sizes = {s0 = [1, 8]}", "2 or more"),
        (MODEL + "sizes = {s0 = {low = 9, high = 3, count = 2}}", "2 or more"),
        (MODEL + "size = [8]", "'size', which means nothing"),
        ("[[kernel]]\nshapes = ['8']", "needs a target"),
        ("[[kernel]]\ntarget = 'k.py:f'\nshapes = [8]", "shapes is"),
    ],
)
def test_what_a_spec_cannot_say_is_refused(text: str, why: Any, tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match=why):
        read(tmp_path, text)


def test_a_spec_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CampaignError, match="cannot be read"):
        specs.read(tmp_path / "none.toml")
