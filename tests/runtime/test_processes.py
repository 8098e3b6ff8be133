"""Several processes on one cache directory, and what a process starts."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

from polytile.runtime.cuda.workers import SCRIPT as SERVER
from tests.compilers import stand_in
from tests.waiting import PATIENCE

SCRIPT = """
import json, sys, threading

started = []
sys.addaudithook(lambda event, _: event in {"subprocess.Popen", "os.posix_spawn", "os.fork", "os.exec", "os.system"}
                 and started.append(event))
import torch
of_torch, threads = len(started), threading.active_count()
from polytile import counters
from polytile.runtime import compile, device, launcher
from polytile.runtime.dispatcher import Interface
from tests.runtime import helpers
at_import = threading.active_count() - threads + len(started) - of_torch

made = [compile.compile_cpp(f"kernel {i}", helpers.tiny(i)) for i in range(5)]
values = [helpers.returned(future.result().address("k")) for future in made]
out = torch.zeros(6, dtype=torch.int64)
dispatch = launcher.new_dispatcher(Interface("k", [1, 1], lambda key, arguments: helpers.entry("show")))
dispatch(out, None, 3, 4)
print(json.dumps({"at_import": at_import, "values": values, "shown": out.tolist()[3:], "started": len(started) - of_torch,
                  "compilers": counters["compiler_runs"], "fingerprint": device.fingerprint(),
                  "launcher": type(dispatch).__module__}))
"""


def start(home: Path, script: str = SCRIPT, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, "-c", script, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "POLYTILE_CACHE_DIR": str(home), "PYTHONPATH": f"{root}:{root / 'src'}", **environment},
    )


def finish(process: subprocess.Popen[str]) -> tuple[dict[str, Any], str]:
    output, messages = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, messages
    return json.loads(output), messages


def test_two_processes_at_once_share_a_cache_and_a_third_starts_no_program(home: Path) -> None:
    both = [finish(process) for process in [start(home), start(home)]]
    for report, messages in both:
        assert report["values"] == [0, 1, 2, 3, 4] and report["shown"] == [3, 4, 1]
        assert report["at_import"] == 0, "importing starts no thread and no program"
        assert report["launcher"] == "polytile_launcher" and messages == ""
    warm, messages = finish(start(home))
    assert warm["values"] == [0, 1, 2, 3, 4] and warm["shown"] == [3, 4, 1]
    assert (warm["started"], warm["compilers"], messages) == (0, 0, "")
    assert warm["fingerprint"] == both[0][0]["fingerprint"] == both[1][0]["fingerprint"]
    assert list((home / "tmp").iterdir()) == []
    assert not list(home.rglob("*.bad"))


ENDING = """
import pathlib, sys, time
from polytile import options
from polytile.runtime import compile

with options.override(cxx=sys.argv[1]):
    compile.compile_cpp("never needed", "")
while not pathlib.Path(sys.argv[2]).exists():
    time.sleep(0.01)
"""


def test_a_process_that_ends_takes_its_compilers_along(home: Path, tmp_path: Path) -> None:
    begun, done = tmp_path / "begun", tmp_path / "done"
    program = stand_in(tmp_path / "slow-g++", f"touch {begun}; sleep {10 * PATIENCE:.0f}; touch {done}")
    process = start(home, ENDING, program, str(begun))
    assert process.communicate(timeout=PATIENCE) == ("", "") and process.returncode == 0
    assert not done.exists() and not list(home.rglob("*.so"))


COMPUTING = """
import threading, torch
from polytile.runtime import background

begun = threading.Event()

class Product:
    disturbs = background.Disturbance.NONE

    def urgency(self):
        return ()

    def run(self):
        torch.set_num_threads(1)
        a = torch.zeros(2048, 2048, dtype=torch.float64)
        begun.set()
        a @ a @ a @ a  # each takes longer than the process waits for a job that rests

background.submit(Product())
begun.wait()
"""


def test_a_process_that_ends_waits_for_an_operator_in_the_background(home: Path) -> None:
    process = start(home, COMPUTING)
    assert process.communicate(timeout=PATIENCE) == ("", "") and process.returncode == 0


def test_a_process_with_an_unusable_cache_works_and_cleans_up(home: Path, tmp_path: Path) -> None:
    home.write_text("not a directory")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    report, messages = finish(start(home, TMPDIR=str(temporary)))
    assert report["values"] == [0, 1, 2, 3, 4]
    assert messages.count("cannot be used") == 1 and "POLYTILE_CACHE_DIR" in messages
    assert list(temporary.iterdir()) == [], "the private directory goes with the process"


def test_a_server_of_workers_ends_in_silence_with_its_parent() -> None:
    """The parent has not read that the server is ready, so that its end resets the connection."""
    parent, control = socket.socketpair()
    with control:
        command = [sys.executable, str(SERVER), "json", str(control.fileno())]
        process = subprocess.Popen(command, pass_fds=[control.fileno()], stderr=subprocess.PIPE, text=True)
    assert select.select([parent], [], [], PATIENCE)[0]
    parent.close()
    _, messages = process.communicate(timeout=PATIENCE)
    assert (process.returncode, messages) == (0, "")
