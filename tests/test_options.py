"""The table of options: values, their order of strength, errors, and the page made from it."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile import options
from polytile.compiler import programs as compiler
from polytile.dispatch import planfile
from polytile.errors import OptionError
from polytile.tuning.environment import environment
from scripts import options_page


def test_the_page_is_the_table() -> None:
    assert options_page.PAGE.read_text() == options_page.as_markdown(), "stale: run python -m scripts.options_page"


def test_a_misspelt_option_names_the_nearest_one() -> None:
    with pytest.raises(OptionError, match="no option 'shortlits'; did you mean 'shortlist'"):
        options.get("shortlits")


def test_a_value_of_the_wrong_type_is_named() -> None:
    with pytest.raises(OptionError, match="option 'shortlist' .* is 'many'; it takes a value of type int"):
        options.check({"shortlist": "many"})


def test_a_choice_outside_the_table_lists_the_choices() -> None:
    with pytest.raises(OptionError, match="choose from eager, philox"):
        options.check({"random": "dice"})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"threads": -1}, "option 'threads' .* is -1; it takes 0 or more"),
        ({"shortlist": 0}, "option 'shortlist' .* is 0; it takes 1 or more"),
        ({"refine": float("nan")}, "option 'refine' .* is nan; it takes 0 or more"),
        ({"sources": "cpp, cutlas"}, "is 'cpp, cutlas'; choose one or more from triton, library, cpp, cublaslt"),
        ({"sources": " , "}, "choose one or more from triton"),
        ({"shortlists": 3}, "no option 'shortlists'; did you mean 'shortlist'"),
        ({3: 1}, "polytile has no option 3"),
        ({"zzz": 3}, r"no option 'zzz'\. Options: agree, agree_seconds, attention_dropout, builder, "),
        ([("threads", 1)], "takes a mapping from names of options to their values; it was given"),
    ],
)
def test_what_no_option_takes_is_refused_by_name(given: Any, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        options.check(given)


def test_an_override_is_stronger_than_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_SHORTLIST", "7")
    assert options.get("shortlist") == 7
    with options.override(shortlist=2):
        assert options.get("shortlist") == 2
    assert options.get("shortlist") == 7


def test_a_bad_environment_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_PERSIST", "perhaps")
    with pytest.raises(OptionError, match="environment variable POLYTILE_PERSIST.*'perhaps'"):
        options.get("persist")


def test_whoever_begins_to_use_polytile_is_told_of_a_bad_variable(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("POLYTILE_TRIAL_SECONDZ", "1")
    monkeypatch.setenv("POLYTILE_ELSEWHERE", "1")
    for _ in range(2):
        polytile.compile(torch.sin)
    told = [message for message in caplog.messages if "but polytile has no such option" in message]
    assert len(told) == 2 and "POLYTILE_TRIAL_SECONDZ" in told[1] and "did you mean POLYTILE_TRIAL_SECONDS?" in told[1]
    monkeypatch.setenv("POLYTILE_REFINE", "lots")  # which is read long after the first call
    said = "environment variable POLYTILE_REFINE.*'lots'; it takes a value of type float"
    with pytest.raises(OptionError, match=said):
        polytile.compile(torch.sin)
    with pytest.raises(OptionError, match=said):
        torch.compile(lambda x: x.sin(), backend="polytile")(torch.ones(3))
    with pytest.raises(OptionError, match=said):
        polytile.kernel("x[M] -> y[M]")(lambda x, y, M: None)


# Modes.


@pytest.mark.parametrize("mode", [None, *(mode.name for mode in options.MODES)])
def test_a_mode_of_torch_compile_stands_for_options(mode: str | None, caplog: pytest.LogCaptureFixture) -> None:
    def patient(compiled: Any, x: torch.Tensor) -> tuple[Any, ...]:
        compiled(x)
        (kernel,) = compiler.compiled_programs()[-1].multikernels
        return tuple(kernel.options[name] for name in ("tune", "shortlist"))

    options._tell_of_unknown.cache_clear()
    much = (mode or "").startswith("max-autotune")
    with warnings.catch_warnings(), options.override(persist=False):
        warnings.simplefilter("error")
        found = patient(torch.compile(lambda x: x.sin() + 1, backend="polytile", mode=mode), torch.randn(5))
        own = patient(polytile.compile(lambda x: x.cos() + 1, mode=mode, options={"shortlist": 2}), torch.randn(5))
    assert found == (("thorough", 6) if much else ("auto", 3))
    assert own == (found[0], 2), "an option is stronger than the mode"
    assert not [m for m in caplog.messages if "mode" in m]
    assert options.of_mode(mode).get("cuda_graphs", "off") == ("auto" if mode == "reduce-overhead" else "off")


def test_an_unknown_mode_is_refused_and_the_known_are_named() -> None:
    said = "polytile has no mode 'fastest'; choose from default, reduce-overhead, max-autotune-no-cudagraphs, max-autotune"
    with pytest.raises(OptionError, match=said):
        polytile.compile(torch.sin, mode="fastest")
    with pytest.raises(OptionError, match=said):
        torch.compile(lambda x: x.sin(), backend="polytile", mode="fastest")(torch.ones(3))


LEVEL = options.Option("mine_level", int, 3, "How hard another package tries.", choices=(1, 2, 3))


@pytest.fixture
def level() -> Iterator[None]:
    options.register(LEVEL)
    yield
    options.unregister("mine_level")


@pytest.mark.parametrize("name", ["cache_dir", "store", "plan", "metrics"])
def test_a_relative_path_stays_where_the_process_was(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(f"POLYTILE_{name.upper()}", f"kept-of-{name}")
    with options.override(**{name: "given"}):
        assert options.get(name) == str(tmp_path / "given")
        monkeypatch.chdir(tmp_path / "elsewhere")
        assert options.get(name) == str(tmp_path / "given")
    monkeypatch.chdir(tmp_path)
    assert options.get(name) == str(tmp_path / f"kept-of-{name}")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert options.get(name) == str(tmp_path / f"kept-of-{name}")
    with options.override(**{name: ""}), options.override(store="postgresql://user@host/database"):
        assert options.get("store") == "postgresql://user@host/database" and (name == "store" or options.get(name) == "")


@pytest.mark.usefixtures("level")
def test_a_package_registers_options_of_its_own_which_are_given_like_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options.register(LEVEL)  # its module may run twice
    assert options.get("mine_level") == 3
    monkeypatch.setenv("POLYTILE_MINE_LEVEL", "2")
    assert options.get("mine_level") == 2
    with pytest.raises(OptionError, match="'mine_level' .* is 9; choose from 1, 2, 3"):
        options.check({"mine_level": 9})
    assert "mine_level" not in options_page.as_markdown()


@pytest.mark.usefixtures("level")
def test_a_registered_option_takes_part_in_the_keys_of_measurements_and_plans() -> None:
    before = environment(), planfile.here()
    with options.override(mine_level=1):
        measured, plan = environment(), planfile.here()
    assert set(measured) - set(before[0]) == {("option mine_level", "1")} and plan != before[1]
    assert (environment(), planfile.here()) == before


def test_names_that_are_taken_and_options_that_come_with_polytile_stay() -> None:
    with pytest.raises(OptionError, match="an option 'force' already; put the package's name before it"):
        options.register(options.Option("force", int, 0, "Something else."))
    with pytest.raises(OptionError, match=r"register takes Option\(name, type, default, doc\); it was given 'mine'"):
        options.register("mine")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="'force' comes with polytile and stays"):
        options.unregister("force")
    with pytest.raises(OptionError, match="'mine' .its default. is 4; choose from 1, 2"):
        options.register(options.Option("mine", int, 4, "A default that it does not take.", choices=(1, 2)))
