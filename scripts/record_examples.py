"""Runs the examples and writes what each prints beside it: `python -m scripts.record_examples [NAME ...]`.

Each example begins with an empty cache directory, which its runs share. A run without compilers finds none on its PATH.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.environment import environment

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "examples"


@dataclass(frozen=True)
class Run:
    """One process: a script in `examples/` with its arguments, and whether it may find a compiler."""

    script: str
    arguments: tuple[str, ...] = ()
    compilers: bool = True

    def __str__(self) -> str:
        return " ".join(("$ python", f"examples/{self.script}", *self.arguments))


EXAMPLES = {
    "serving": (Run("serving.py"), Run("serving.py")),
    "training": (Run("training.py"),),
    "triton_kernels": (Run("triton_kernels.py"),),
    "cpp_kernels": (Run("cpp_kernels.py"),),
    "quantised": (Run("quantised.py"),),
    "package/package": (Run("package/package.py"),),
    "fleet/fleet": (Run("fleet/fleet.py"),),
    "container/app": (Run("container/app.py", ("warm",)), Run("container/app.py", compilers=False)),
}
"""By name, which is the path of its output without `.txt`, the processes that an example takes, one after the other."""


def variables(run: Run, folder: Path, options: Mapping[str, str]) -> dict[str, str]:
    """The environment of `run`: of polytile's options those named, and a cache directory in `folder`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("POLYTILE_")}
    kept |= {"POLYTILE_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(ROOT / "src"), **options}
    if run.compilers:
        return kept
    (folder / "nothing").mkdir(exist_ok=True)
    return {name: value for name, value in kept.items() if name not in ("CC", "CXX")} | {"PATH": str(folder / "nothing")}


def output(run: Run, folder: Path, options: Mapping[str, str]) -> str:
    """What `run` prints, after its command. Raises RuntimeError with its messages if it fails."""
    command = [sys.executable, str(FOLDER / run.script), *run.arguments]
    done = subprocess.run(command, env=variables(run, folder, options), cwd=folder, capture_output=True, text=True, timeout=600)
    if done.returncode != 0:
        raise RuntimeError(f"{run} ended with status {done.returncode}:\n{done.stderr}")
    return f"{run}\n{done.stdout}"


def recorded(name: str) -> str:
    """What the runs of an example print, a paragraph each."""
    with tempfile.TemporaryDirectory() as folder:
        return "\n".join(output(run, Path(folder), {}) for run in EXAMPLES[name])


def machine() -> str:
    facts = environment()
    return f"# {facts['processor']}, {facts['threads']} threads; PyTorch {facts['torch']}; {facts['date'][:10]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(EXAMPLES)} (default: all)")
    names = parser.parse_args().names or list(EXAMPLES)
    if unknown := set(names) - set(EXAMPLES):
        parser.error(f"there is no example {', '.join(sorted(unknown))}; there are {', '.join(EXAMPLES)}.")
    for name in names:
        (FOLDER / f"{name}.txt").write_text(f"{machine()}\n\n{recorded(name)}", encoding="utf-8")
        print(f"examples/{name}.txt is written", flush=True)


if __name__ == "__main__":
    main()
