"""What every test starts from: a cache directory of its own run, a fixed seed, nothing compiled, counters at zero."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
import torch

if not torch.cuda.is_available():  # Triton decides whether it interprets when it is imported, which torch's tracer does
    os.environ.setdefault("TRITON_INTERPRET", "1")

os.environ.setdefault("POLYTILE_STALL", "tune")  # a test of a kernel wants that kernel; those of the background say "never"
os.environ.setdefault("POLYTILE_BUILDER", "thread")  # what a test puts in the place of a function is not in another process
os.environ.setdefault("POLYTILE_LEARNED", "0")  # choices follow from what a test measures; those of models say otherwise
os.environ.setdefault("POLYTILE_ON_FAILURE", "raise")  # what polytile fails at is an error of the test

# Generated examples say whether behaviour holds, never how fast they are made or run: no deadline. They are the same in
# each run, so that what passes once passes again; POLYTILE_EXAMPLES=500 draws that many new ones for every property.
_examples = int(os.environ.get("POLYTILE_EXAMPLES", "0"))
hypothesis.settings.register_profile(
    "polytile",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    print_blob=True,
    max_examples=_examples or 30,
    derandomize=not _examples,
)
hypothesis.settings.load_profile("polytile")


@pytest.fixture(scope="session", autouse=True)
def cache_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache directory for the run, shared by its processes: kernels compile once, the user's own is left alone."""
    base = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        base = base.parent
    directory = base / "polytile-cache"
    directory.mkdir(mode=0o700, exist_ok=True)
    before = os.environ.get("POLYTILE_CACHE_DIR")
    os.environ["POLYTILE_CACHE_DIR"] = str(directory)
    yield directory
    if before is None:
        os.environ.pop("POLYTILE_CACHE_DIR", None)
    else:
        os.environ["POLYTILE_CACHE_DIR"] = before


@pytest.fixture(scope="session", autouse=True)
def what_is_imported_stays() -> Iterator[None]:
    """Garbage collection passes over what torch, sympy and the tests themselves hold from their import on: searching those some
    400 000 objects takes 0.2 s, several times in each test that compiles. In the end they are let go: Triton 3.9 lists what a
    process still holds when it ends."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache directory that holds nothing, for tests of what is made, kept and found again."""
    directory = tmp_path / "polytile-cache"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("POLYTILE_CACHE_DIR", str(directory))
    return directory


@pytest.fixture(autouse=True)
def own_programs(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test finds the programs that it has left on disk itself, and none of another's, who may have changed what makes them."""
    stored = sys.modules.get("polytile.compiler.stored")
    if stored is not None:
        monkeypatch.setattr(stored, "_versions", lambda: (request.node.nodeid,))


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    """Fixed seed, default dtype and threads, also in the background; afterwards Dynamo forgets what it compiled and the counters
    are back at zero."""
    torch.manual_seed(0)
    if "polytile.runtime.background" in sys.modules:
        sys.modules["polytile.runtime.background"].background.threads = torch.get_num_threads()
    default, threads = torch.get_default_dtype(), torch.get_num_threads()
    yield
    torch.set_default_dtype(default)
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    if "torch._dynamo" in sys.modules:
        torch._dynamo.reset()
    if "polytile.counters" in sys.modules:
        sys.modules["polytile.counters"].counters.reset()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    skip = pytest.mark.skip(reason="needs an NVIDIA GPU")
    for item in items:
        if item.get_closest_marker("gpu") is not None:
            item.add_marker(skip)
