"""Which register tiles to try: rows of the CPU family's table, in canonical order, all-rounders first.

The rows (matmul/configs/tables/cpu.json) were chosen on an AMD EPYC (Zen 5, AVX-512; AVX2 on the same machine) over
M 1..1024, K and N 768..3072, squares 64..1024 and attention shapes; those for vectors of 16 bytes follow from NEON's 32
registers and are not measured.

With 32 registers tiles are 6x4, 12x2 or 8x3 sums, the vectors of B and one of A. 6x4 packed is within 3 % of the best from
M = 64 on; 8x3 direct wins below it for a row-major B; 12x2 with packed A wins where A's k is far apart and K long. With 16
registers they are 6x2 or 4x3, and one row of A against four columns beats two columns for M = 1 and 2 only.

Rows of a row-major int8 or bfloat16 B are brought side by side in registers by 6x4 direct, at M = 1 to 6 twice as fast as
through panels (17 and 30 us at 1024 x 1024 on one thread; panels 34 to 47 and 62), and by 8x2, which takes 8 rows at once and
is for bfloat16 alone (bytes need four vectors side by side). From M = 16 on panels win: each tile of rows interleaves its B
again.
"""

from __future__ import annotations

from dataclasses import fields

from polytile.matmul.configs.families import Cpu
from polytile.matmul.configs.records import RegisterTile
from polytile.matmul.configs.registry import heuristic
from polytile.matmul.cpp import amx
from polytile.matmul.cpp.common import ACCUMULATOR_BYTES
from polytile.matmul.cpp.forms import GROUPED_FORMS, UNGROUPED_FORMS
from polytile.matmul.cpp.spec import GemmConfig, GemmSpec
from polytile.runtime import cpu


def configs(spec: GemmSpec, lanes: int, prepacked: bool = False) -> tuple[GemmConfig, ...]:
    """The configs worth trying for `spec` with vectors of `lanes` sums, in canonical order. Tiles that read a packed B are
    among them only if `prepacked`, tiles of AMX only where this process may use them.

    Raises ValueError where no instruction set has vectors of that size.
    """
    family = heuristic("cpu")
    assert isinstance(family, Cpu)
    rows = family.register_tiles(lanes * ACCUMULATOR_BYTES[spec.accumulator])
    if not rows:
        raise ValueError(f"no matmul configs for vectors of {lanes} {spec.accumulator}; see the table register_tiles.")
    # What operands of two types are multiplied as: floats of 32 bits, or what rows for such pairs of types say.
    dtypes = {"float32", f"{spec.dtype} by {spec.b_dtype}"} if spec.b_dtype else {spec.dtype}
    able = (row for row in rows if dtypes & set(row.dtypes) and spec.a_layout in row.a and spec.b_layout in row.b)
    able = (row for row in able if not row.amx or amx.FLAGS[spec.dtype] in cpu.cpu().flags)
    able = (row for row in able if not spec.group or row.form in GROUPED_FORMS)
    able = (row for row in able if not spec.grouped or row.form not in UNGROUPED_FORMS)
    return tuple(_config(row) for row in able if prepacked or row.form != "tile_prepacked")


def _config(row: RegisterTile) -> GemmConfig:
    return GemmConfig(**{field.name: getattr(row, field.name) for field in fields(GemmConfig)})
