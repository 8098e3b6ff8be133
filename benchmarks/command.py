"""The command lines of benchmarks: a parser with the options that many have, in the same words for all."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks import record

OUT = Path(os.environ.get("OUT") or record.RESULTS)
"""Where results go unless the command line says otherwise."""


class Command(argparse.ArgumentParser):
    """The arguments of a benchmark, whose module's docstring says in `--help` what it measures.

    show    prints results. With it there is an option `--show [FILE]`, which has those of a file printed and nothing measured;
            without FILE, those of `suite` in the folder of results. `suite` may name other options, as "wrapper_{device}"
    json    whether there is an option `--json`, by which results are written too
    out     whether there is an option `--out`, the folder that they are written to
    gpu     the same, and measuring needs an NVIDIA GPU
    """

    def __init__(
        self, doc: str | None, suite: str = "", show: Callable[[Any], object] | None = None, *, json: bool = False,
        out: bool = False, gpu: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
        self.suite, self.show, self.gpu = suite, show, gpu
        if show is not None:
            words = "only print what a result file has; without FILE, the one in the folder of results"
            self.add_argument("--show", nargs="?", type=Path, const=Path(), metavar="FILE", help=words)
        if json:
            self.add_argument("--json", action="store_true", help=f"also write the results to {record.RESULTS}")
        if out or gpu:
            self.add_argument("--out", type=Path, default=OUT, help="the folder that results are written to")

    def parsed(self, arguments: Sequence[str] | None = None) -> argparse.Namespace:
        """What the command line says. Raises SystemExit where `--show` has printed a file, or the GPU is missing."""
        given = self.parse_args(arguments)
        if self.show is not None and given.show is not None:
            folder = getattr(given, "out", record.RESULTS)
            self.show(record.read(given.show if given.show.name else folder / f"{self.suite.format(**vars(given))}.json"))
            raise SystemExit(0)
        if self.gpu and not torch.cuda.is_available():
            raise SystemExit(f"{self.prog} needs an NVIDIA GPU; this process sees none.")
        return given


__all__ = ["OUT", "Command"]
