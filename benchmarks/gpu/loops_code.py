"""`python -m benchmarks.gpu.loops_code [benchmarks/results/gpu.json] [--every 8]`: what the prior of rows believes of generated
code against the code itself, which Triton compiles for sm_90 without a GPU: instructions, shuffles, loads, stores, registers.

Asked are candidates of the unseen shapes of a result file that take up to NEAR times the best."""

from __future__ import annotations

import math
import re
import statistics
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import triton

from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.functions import BY_NAME
from benchmarks.gpu.loops import Kernel
from polytile.codegen.triton.compile import to_cubin
from polytile.codegen.triton.elf import resources
from polytile.codegen.triton.generate import generate
from polytile.cost import triton_loops as prior
from polytile.cost import triton_work as work
from polytile.report import Table, show
from polytile.runtime.cuda.device import named
from polytile.schedule.gpu.catalogue import schedule_of

NEAR = 1.6
DISASSEMBLER = Path(triton.__file__).parent / "backends/nvidia/bin/nvdisasm"
OPERATION = re.compile(r"/\*[0-9a-f]{4}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_.]*)")
COUNTED = {"shuffles": ("SHFL",), "loads and stores": ("LDG", "STG")}


def code(binary: bytes) -> list[str]:
    """The operations of a cubin, one an instruction."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        text = subprocess.run([DISASSEMBLER, "-c", file.name], capture_output=True, text=True, check=True).stdout
    return [name for name in OPERATION.findall(text) if name != "NOP"]


def compared(rows: list[dict[str, Any]], every: int) -> Iterator[tuple[str, str, float, float]]:
    """(function, what is counted, predicted, found) of every so many persistent candidates."""
    device = named("H100")
    for function in dict.fromkeys(row["function"] for row in rows):
        made = Kernel(BY_NAME[function], "bf16", small=True)
        spec, configs = made.kernel.spec, {c.name: c for c in made.kernel.candidates if c.origin == "triton"}
        pairs = [(row, name) for row in rows if row["function"] == function for name, us in row["candidates_us"].items()
                 if name.startswith("persistent") and us < NEAR * row["best_us"]]  # fmt: skip
        for row, name in pairs[::every]:
            candidate: Any = configs[name]
            kernel, config, sizes = candidate.work.kernel, candidate.config, made.sizes(row["shape"])
            schedule = schedule_of(config)
            own, nest = work.nest_under(kernel, schedule)
            asked = work.work_at(kernel, schedule, tuple(sorted(sizes.items())))
            tile = work.tile_at(own.digest, nest, schedule)
            counts = {d: math.prod(asked.extents[a.symbol] for a in d.axes) for d in (*tile.parallel, *tile.reduced)}
            said = prior.Rows(asked, tile, counts, schedule, device)
            facts = spec.keys.facts_for_code([sizes[n] for n in spec.size_names])
            (launch,) = generate(kernel, config, facts, overlaps=True).launches
            binary = to_cubin(launch, 90).binary
            found = code(binary)
            predicted = {"shuffles": said.shuffles, "loads and stores": said.accesses}
            yield function, "instructions", said.instructions, len(found)
            yield function, "registers", said.registers, resources(binary)[0]
            for what, beginnings in COUNTED.items():
                yield function, what, predicted[what], sum(each.startswith(beginnings) for each in found)


def main() -> None:
    parser = Command(__doc__)
    parser.add_argument("results", nargs="?", type=Path, default=record.RESULTS / "gpu.json")
    parser.add_argument("--every", type=int, default=8, help="one in so many candidates is compiled")
    given = parser.parsed()
    rows = record.read(given.results)["unseen"]
    ratios: dict[tuple[str, str], list[float]] = {}
    for function, what, predicted, found in compared([row for row in rows if row["function"] != "gelu"], given.every):
        ratios.setdefault((function, what), []).append(math.log(predicted / found) if predicted and found else 0.0)
    body = []
    for key, own in ratios.items():
        body.append((*key, len(own), f"{math.exp(statistics.mean(own)):.2f}", f"{statistics.pstdev(own):.2f}"))
    show(Table.from_rows("predicted over found, in sm_90 code", ["function", "what", "kernels", "mean", "deviation"], body))


if __name__ == "__main__":
    main()
