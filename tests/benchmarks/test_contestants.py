"""Contestants have processes and caches of their own; what they find comes back, and so does what goes wrong."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from benchmarks.contestants import CACHES, LATE, Calls, Entrant, Processes, alone, turn
from benchmarks.timing import compare

HERE = "tests.benchmarks.test_contestants"


def look(given: dict[str, Any]) -> dict[str, Any]:
    """What a contestant finds in its caches, in which it leaves something."""
    found = {variable: os.listdir(os.environ[variable]) for variable in CACHES if variable != "TMPDIR"}
    for variable in found:
        (Path(os.environ[variable]) / "left").write_text("something")
    return {"found": found, "process": os.getpid(), "places": [os.environ[variable] for variable in found], **given}


def fail(given: dict[str, Any]) -> dict[str, Any]:
    raise ValueError(given["text"])


def die(given: dict[str, Any]) -> dict[str, Any]:
    os._exit(given["status"])


def sleep(given: dict[str, Any]) -> dict[str, Any]:
    time.sleep(given["seconds"])
    return {}


@pytest.fixture(params=[(), ("json", "os")], ids=["new processes", "forked processes"])
def processes(request: pytest.FixtureRequest) -> Iterator[Processes]:
    made = Processes(shared=request.param)
    yield made
    made.close()


def test_each_has_a_process_and_empty_caches_that_are_removed(processes: Processes) -> None:
    """What they are given may be longer than a command line."""
    first, second = (processes.run(f"{HERE}:look", {"name": name * 300_000}, 60) for name in ("a", "b"))
    assert (first["name"][0], second["name"][0]) == ("a", "b")
    assert not any(first["found"].values()) and not any(second["found"].values())
    assert first["process"] != second["process"] and not set(first["places"]) & set(second["places"])
    assert not any(Path(place).exists() for place in (*first["places"], *second["places"]))


def test_what_goes_wrong_in_a_contestant_is_said(processes: Processes) -> None:
    assert processes.run(f"{HERE}:fail", {"text": "of no use"}, 60) == {"error": "ValueError: of no use"}
    assert processes.run(f"{HERE}:die", {"status": 3}, 60)["error"].startswith("ended with status 3")
    assert processes.run(f"{HERE}:sleep", {"seconds": 60}, 0.1 if processes._parent else 2)["error"] == LATE
    assert processes.run(f"{HERE}:look", {"name": "c"}, 60)["name"] == "c"


def test_one_alone_raises_where_it_gives_nothing() -> None:
    with pytest.raises(RuntimeError, match="gave nothing: ValueError: of no use"):
        alone(f"{HERE}:fail", {"text": "of no use"})


def hold(given: dict[str, Any]) -> dict[str, Any]:
    """Holds a lock for a while, and takes a turn within its turn."""
    lock = Path(given["lock"])
    with turn(lock), turn(lock):
        began = time.monotonic()
        time.sleep(0.3)
        return {"from": began, "to": time.monotonic()}


def test_turns_do_not_overlap(tmp_path: Path) -> None:
    given = {"lock": str(tmp_path / "lock")}
    with ThreadPoolExecutor(2) as pool:
        both = sorted(pool.map(lambda _: Processes().run(f"{HERE}:hold", given, 60), range(2)), key=lambda one: one["from"])
    assert both[0]["to"] <= both[1]["from"]


class Sleeper(Calls):
    def __init__(self, given: dict[str, Any]) -> None:
        print("what is printed is no answer")
        self.calls = {"sleep": lambda: time.sleep(given["seconds"])}

    def look(self) -> dict[str, Any]:
        return look({})

    def fail(self) -> None:
        raise ValueError("of no use")


def test_those_that_stay_are_timed_in_turns_where_they_are() -> None:
    made = {name: Entrant(f"{HERE}:Sleeper", {"seconds": seconds}) for name, seconds in (("quick", 0.001), ("slow", 0.02))}
    with made["quick"], made["slow"]:
        found = compare({name: one.call("sleep") for name, one in made.items()}, seconds=0.1, min_rounds=2)
        quick, slow = (one.ask("look") for one in made.values())
        with pytest.raises(RuntimeError, match="ValueError: of no use"):
            made["slow"].ask("fail")
        assert made["slow"].ask("burst", "sleep", 1) >= 0.02
    assert set(found.timings) == {"quick", "slow"} and found["slow"].low >= 0.02
    assert not set(quick["places"]) & set(slow["places"]) and not any(map(os.path.exists, quick["places"]))
    with pytest.raises(RuntimeError, match="its process ended"):
        made["quick"].ask("look")
