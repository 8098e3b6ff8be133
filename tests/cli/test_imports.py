"""Commands that only read and print start without importing torch, which takes seconds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from polytile import store
from polytile.dispatch import planfile
from polytile.runtime import pytorch
from polytile.runtime.cuda import gpus
from tests.cli.helpers import DIGEST, filled, measured

HEAVY = ("torch", "sympy", "numpy", "triton")

COMMAND = f"""
import sys
from polytile.cli import main
try:
    main()
finally:
    print("imported:", [name for name in {HEAVY} if name in sys.modules], file=sys.stderr)
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache directory with a store of one kernel, and a plan."""
    directory = tmp_path_factory.mktemp("cache")
    filled(directory / "store.sqlite3", measured())
    planfile.Plan((), planfile.here()).write(directory / "plan.json")
    store.forget()
    return directory


def _run(place: Path, words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, which tells on stderr what of HEAVY it has imported."""
    return subprocess.run(
        [sys.executable, "-c", COMMAND, *words], cwd=place, capture_output=True, text=True, timeout=120,
        env={**os.environ, "POLYTILE_CACHE_DIR": str(place), "COLUMNS": "200"},
    )  # fmt: skip


@pytest.mark.skipif(bool(gpus.drivers()), reason="with a GPU, torch is asked for it")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--version",), "polytile"),
        (("doctor",), "a kernel compiled"),
        (("why", DIGEST, "64", "512"), "measured at these sizes"),
        (("plan", "show", "plan.json"), "Made in an environment like this one"),
        (("plan", "diff", "plan.json", "plan.json"), "pin the same kernels"),
        (("store", "ls"), "Measurements in"),
        (("store", "show", DIGEST), "looped t1"),
        (("store", "check"), "sound"),
        (("report", "--text"), "looped t1"),
        (("store", "gc"), "can still be used"),
        (("configs", "cuda", "64", "64", "64"), "15 tried"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, tuple) else "",
)
def test_a_command_that_only_reads_does_without_torch(place: Path, words: tuple[str, ...], says: str) -> None:
    done = _run(place, words)
    assert done.returncode == 0, done.stderr
    assert says in done.stdout and "imported: []" in done.stderr, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("why", "nosuch.py:f"), "there is no file nosuch.py"),
        (("tune", "nosuch.py:f"), "there is no file nosuch.py"),
        (("tune", "kernels.py"), "names no function"),
        (("package", "nosuch.py:f"), "there is no file nosuch.py"),
        (("autotune", "--scan", "nosuch.py"), "there is no file nosuch.py"),
        (("replay", "nosuch"), "no measurement store nosuch"),
        (("learn", "train", "nosuch"), "no measurement store nosuch"),
        (("learn", "evaluate"), "nothing was collected here yet"),
        (("campaign", "run", "nosuch.toml"), "nosuch.toml cannot be read"),
    ],
    ids=lambda words: " ".join(words[:2]) if isinstance(words, tuple) else "",
)
def test_a_name_that_is_wrong_is_told_before_torch_is_imported(place: Path, words: tuple[str, ...], says: str) -> None:
    done = _run(place, words)
    assert done.returncode == 2, done.stderr
    assert says in done.stderr and "imported: []" in done.stderr, done.stderr


def test_what_is_said_of_pytorch_without_it_is_what_it_says_itself() -> None:
    import torch

    assert (pytorch._read().__version__, pytorch._read().hip) == (torch.__version__, torch.version.hip)
    assert pytorch.folder() == Path(torch.__file__).parent


@pytest.mark.parametrize("variables", [{}, {"OMP_NUM_THREADS": "1"}, {"MKL_NUM_THREADS": "3"}], ids=str)
def test_the_threads_are_those_that_torch_would_use(empty_cache: Path, variables: dict[str, str]) -> None:
    """Asked of its library, then read from the cache, then asked of torch."""
    script = """
from polytile.runtime import pytorch
print(pytorch.torch_threads(), pytorch.torch_threads())
import torch
print(torch.get_num_threads(), pytorch.torch_threads())
"""
    others = {name: value for name, value in os.environ.items() if not name.startswith(pytorch.THREAD_VARIABLES)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True,
                          env={**others, **variables})  # fmt: skip
    assert len(set(done.stdout.split())) == 1, done.stdout
