"""Campaigns from the spec to the table, with real workers, some of which end or hang."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import polytile
from polytile.campaigns import results
from polytile.campaigns.board import Board
from polytile.compiler.programs import compiled_programs
from polytile.dispatch.planfile import Plan
from polytile.errors import CampaignError
from polytile.store.reading import records
from tests.cli.helpers import new_process, run

MODEL = """
import os, signal, sys, time
from pathlib import Path
import torch

weight = torch.nn.Parameter(torch.randn(24, 32))

def scores(x):
    return torch.softmax(x @ weight, -1)

def model():
    return scores, [(torch.randn(7, 24),)]

def shifted(x):
    return torch.softmax(x + 1, -1)

def fatal(x):
    if Path("fatal").exists() and "work" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return torch.softmax(x - 1, -1)
"""

SPEC = """
[campaign]
unit_seconds = 120
[[model]]
target = "model.py:model"
sizes = {s0 = [9, 40]}
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "spec.toml").write_text(SPEC)
    return tmp_path / "spec.toml"


def campaign(spec: Path, *words: str, cwd: Path | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "polytile", "campaign", *words]
    own: Any = {**os.environ, "POLYTILE_ISOLATION": "never"}
    return subprocess.Popen(
        command, cwd=spec.parent, env=own, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True
    )


def test_a_campaign_is_killed_goes_on_and_ends_in_a_table_a_plan_and_a_word_on_models(
    spec: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = spec.with_suffix("")
    first = campaign(spec, "run", str(spec))
    until(lambda: folder.joinpath("done").exists() and any(folder.joinpath("done").glob("*.json")), first)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    for path in folder.glob("workers/*.json"):  # its workers are in sessions of their own, as they are on other hosts
        os.kill(json.loads(path.read_text())["pid"], signal.SIGKILL)
    for path in folder.glob("taken/*.json"):
        os.utime(path, (1, 1))
    kept = {path.name: path.read_bytes() for path in folder.glob("done/*.json")}
    assert run("campaign", "status", folder).exit_code == (1 if len(kept) < 4 else 0)

    words = ["--sign", str(key(spec.parent))] if shutil.which("ssh-keygen") else []
    monkeypatch.setenv("POLYTILE_ISOLATION", "never")
    second = run("campaign", "run", spec, *words)
    told = second.output
    assert second.exit_code == 0, told
    assert "**Choices**" in told
    assert "No model" in told
    assert {name: (folder / "done" / name).read_bytes() for name in kept} == kept
    assert len(list(folder.glob("done/*.json"))) == len(list(folder.glob("units/*.json"))) == 4
    uids = [record.uid for record in records(folder / "store.sqlite3")]
    assert len(uids) == len(set(uids)) > 4

    table = results.verify(folder / "table.json")
    assert len(table["choices"]) == 4
    assert sum(choice["seconds"] is not None for choice in table["choices"]) >= 3  # a busy machine may have had no time for one
    if words:
        text = (folder / "table.json").read_bytes()
        check = ["ssh-keygen", "-Y", "check-novalidate", "-n", "polytile", "-s", str(folder / "table.json.sig")]
        assert subprocess.run(check, input=text, capture_output=True).returncode == 0
        assert "check-novalidate" in run("campaign", "verify", folder / "table.json").output
    assert len(Plan.read(folder / "plan.json").decisions) == 4
    follows_the_plan(spec.parent / "model.py", folder / "plan.json")
    (folder / "table.json").write_text((folder / "table.json").read_text().replace('"M": 9', '"M": 10'))
    with pytest.raises(CampaignError, match="was changed"):
        results.verify(folder / "table.json")


def follows_the_plan(model: Path, plan: Path) -> None:
    given = importlib.util.spec_from_file_location("campaign_model", model)
    assert given is not None and given.loader is not None
    module = importlib.util.module_from_spec(given)
    given.loader.exec_module(module)
    new_process()
    function, _ = module.model()
    compiled = polytile.compile(function, options={"plan": str(plan), "plan_missing": "error"})
    with torch.no_grad():
        for rows in (9, 40):
            x = torch.randn(rows, 24)
            torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-5)
    found = [each for program in compiled_programs() for kernel in program.multikernels for each in kernel.decisions]
    assert found and {each.link for each in found} == {"plan"}, found  # a counter would have what other programs still measure


def key(folder: Path) -> Path:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "key")], check=True)
    return folder / "key"


def until(holds: Any, process: subprocess.Popen[str], seconds: float = 240.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < end
        time.sleep(0.1)


@pytest.mark.slow
def test_a_unit_that_kills_its_workers_is_given_up_and_the_others_are_measured(spec: Path) -> None:
    spec.write_text(
        '[[kernel]]\ntarget = "model.py:fatal"\nshapes = ["8x90"]\n[[kernel]]\ntarget = "model.py:shifted"\nshapes = ["8x90"]\n'
    )
    (spec.parent / "fatal").touch()
    told, _ = campaign(spec, "run", str(spec), "--workers", "folder", "--count", "1").communicate(timeout=300)
    folder = spec.with_suffix("")
    status = Board(folder).status()
    assert len(status.failed) == 1, told
    assert "3 workers ended or hung" in told
    assert status.done == 2
    assert any(choice["seconds"] for choice in results.verify(folder / "table.json")["choices"])
    assert any(record.measurement.problem.family == "loop" for record in records(folder / "store.sqlite3"))


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed: pip install 'polytile[campaign]'")
def test_actors_of_a_ray_cluster_do_the_same(spec: Path) -> None:
    process = campaign(spec, "run", str(spec), "--workers", "ray", "--count", "2")
    told, _ = process.communicate(timeout=300)
    assert process.returncode == 0, told
    assert len(results.verify(spec.with_suffix("") / "table.json")["choices"]) == 4
    board = Board(spec.with_suffix(""))
    assert {board.result(path.stem).worker[:3] for path in board.root.glob("done/*.json")} == {"ray"}
