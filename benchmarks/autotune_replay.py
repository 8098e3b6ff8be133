"""`polytile.autotune` over recorded times: are choices at sizes nobody tuned good, few timings enough, and processes of one mind?

    TRITON_INTERPRET=1 python -m benchmarks.autotune_replay [MATRIX.json] [--processes 20] [--noise 0.003] [--json]
    python -m benchmarks.autotune_replay --show                           only prints the table of the committed file

The engine is the real one, on a kernel that copies one number; `do_bench` answers from a table of microseconds by M and config,
with random noise of its own in each "process", which has decisions of its own. The table is what `benchmarks.gpu.autotune_unseen`
has recorded, or, without one, a model of a product on 132 multiprocessors: waves of blocks, of which larger ones do more for each
byte. No GPU is asked; the rule of ties is the CPU's.
"""

from __future__ import annotations

import math
import os
import random
import re
import statistics
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")  # Triton reads it when it is imported

import torch
import triton
import triton.language as tl

import polytile
from benchmarks import record
from benchmarks.autotune_matrix import Matrix, first_winners, regret, unseen
from benchmarks.command import Command
from benchmarks.timing import geomean
from polytile.report import Table, show

MULTIPROCESSORS = 132
BLOCKS = ((16, 64), (32, 64), (64, 64), (64, 128), (128, 64), (128, 128), (128, 256), (256, 128))


@triton.jit
def stand_in(src, dst, M, WHOSE: tl.constexpr, CONFIG: tl.constexpr):  # type: ignore[no-untyped-def]
    tl.store(dst, tl.load(src))


def modelled(sizes: Sequence[int], n: int = 4096, k: int = 4096) -> Matrix:
    """A product's times by BLOCKS: waves over 132 multiprocessors, each as long as the slower of arithmetic and loads."""

    def microseconds(m: int, rows: int, columns: int) -> float:
        waves = math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / MULTIPROCESSORS)
        arithmetic = 2 * rows * columns * k / (6e6 * min(1.0, (rows * columns / 16_384) ** 0.25))
        return 3 + waves * max(arithmetic, (rows + columns) * k * 2 / 3e4 / 8)

    return {m: {f"{rows}x{columns}": microseconds(m, rows, columns) for rows, columns in BLOCKS} for m in sizes}


def waves_of(config: str, m: int, n: int = 4096) -> int:
    """Waves of a product's blocks, by a config's name; the stand-in itself launches one program."""
    found = re.search(r"BLOCK_M=(\d+) BLOCK_N=(\d+)|(\d+)x(\d+)", config)
    assert found is not None
    rows, columns = (int(number) for number in found.groups() if number)
    return math.ceil(math.ceil(m / rows) * math.ceil(n / columns) / MULTIPROCESSORS)


class Process:
    """One tuner with noise of its own. `whose`: those of one number find each other's measurements, none for its own alone.
    `choices`: the config by size; `timed`: how many timings that took."""

    def __init__(self, matrix: Matrix, noise: float, seed: int, whose: int | None = None, **options: Any) -> None:
        self.matrix, self.noise, self.draw = matrix, noise, random.Random(seed)
        self.whose = seed if whose is None else whose
        self.timed, self.choices = 0, dict[int, str]()
        self._now: tuple[int, str] = (0, "")
        names = list(next(iter(matrix.values())))
        configs = [triton.Config({"CONFIG": name}) for name in names]
        self.kernel = polytile.autotune(configs, ["M"], do_bench=self._bench, options={"persist": False, **options})(stand_in)
        self.kernel.programs = lambda call: {name: waves_of(name, call.sizes_by_name["M"]) for name in self.kernel.named}

    def call(self, m: int) -> None:
        src, dst = torch.ones(1), torch.empty(1)

        def grid(meta: Mapping[str, Any]) -> tuple[int]:
            self._now = m, str(meta["CONFIG"])
            return (1,)

        self.kernel[grid](src, dst, m, WHOSE=self.whose)
        self.choices[m] = self.kernel.best_config.kwargs["CONFIG"]

    def _bench(self, call: Callable[[], Any], quantiles: Sequence[float]) -> list[float]:
        call()
        self.timed += 1
        m, config = self._now
        return [1e-3 * self.matrix[m][config] * math.exp(self.draw.gauss(0.0, self.noise))] * 3


def agreement(processes: Sequence[Process]) -> float:
    """The share of choices that are the commonest one at their size."""
    sizes = processes[0].choices
    common = [Counter(process.choices[m] for process in processes).most_common(1)[0][1] for m in sizes]
    return sum(common) / (len(processes) * len(sizes))


def run(matrix: Matrix, processes: int, noise: float) -> dict[str, Any]:
    made = [Process(matrix, noise, seed) for seed in range(processes)]
    for process in made:
        for m in matrix:
            process.call(m)
    timings = sum(map(len, matrix.values()))
    return {
        "sizes": len(matrix), "configs": len(next(iter(matrix.values()))), "processes": processes, "noise": noise,
        "over_exhaustive": geomean([regret(matrix, process.choices) for process in made]),
        "first_winner_over_exhaustive": first_winners(matrix),
        "timings": statistics.mean(process.timed for process in made), "timings_exhaustive": timings,
        "agreement": agreement(made),
    }  # fmt: skip


def main() -> None:
    parser = Command(__doc__, "autotune_replay", show_table, json=True)
    parser.add_argument("matrix", type=Path, nargs="?", help="a result of benchmarks.gpu.autotune_unseen; default: the model")
    parser.add_argument("--processes", type=int, default=20)
    noise = "relative; races on a GPU have 0.17 to 0.4 %% (benchmarks.same_winner)"
    parser.add_argument("--noise", type=float, default=0.003, help=noise)
    given = parser.parsed()
    if given.matrix is None:
        matrix = modelled(unseen(64))
    else:
        said = record.read(given.matrix)["unseen"]["matrix"]
        matrix = {int(m): times for m, times in said.items()}
    with tempfile.TemporaryDirectory() as folder:
        os.environ["POLYTILE_CACHE_DIR"] = folder
        found = run(matrix, given.processes, given.noise)
    found["times"] = "a model" if given.matrix is None else str(given.matrix.name)
    if given.json:
        record.write("autotune_replay", found)
    show_table(found)


def show_table(found: Mapping[str, Any]) -> None:
    rows = [
        ("time over the best config's at each size, geomean", f"{found['over_exhaustive']:.3f}"),
        ("the same of one size's winner, as the median over the sizes", f"{found['first_winner_over_exhaustive']:.2f}"),
        ("timings, of each size tuned exhaustively", f"{found['timings']:.0f} of {found['timings_exhaustive']}"),
        (f"choices alike in {found['processes']} processes, each by itself", f"{found['agreement']:.1%}"),
    ]
    title = f"{found['sizes']} unseen sizes, {found['configs']} configs, times of {found['times']} ± {found['noise']:.1%}"
    show(Table.from_rows(title, ("what", "found"), rows))


if __name__ == "__main__":
    main()
