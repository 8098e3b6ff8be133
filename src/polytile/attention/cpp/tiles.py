"""Products of a few rows and a panel, with the register tiles of matmul (matmul/cpp/register_tile.py)."""

from __future__ import annotations

from typing import Literal

from polytile.matmul.cpp.register_tile import Tile

MULTIPLY = """\
// o (+)= a · b for a panel of `vectors` vectors, whose steps are b_k apart. {meaning}
static inline void multiply(const PA* a, long apart, long rows, const PB* b, long vectors, long b_k, long steps, T* o, long o_m,
                            bool add) {{
  const long count = ceil_div(rows, MR), base = rows / count, extra = rows % count;
  for (long k = sizeof(TILES) / sizeof(TILES[0]) - 1; k >= 0; --k)
    for (; vectors >= 1 << k; vectors -= 1 << k, b += L << k, o += L << k)
      for (long t = 0, i = 0, r; t < count; ++t, i += r) {{
        r = base + (t < extra);
        TILES[k][r - 1]({of_row}, b, b_k, steps, o + i * o_m, o_m, add, Next{{}});
      }}
}}
"""


ACCESS = {
    "rows": {"of_row": "a + i * apart, apart, 1", "meaning": "Rows of a are `apart`."},
    "cols": {"of_row": "a + i, 1, apart", "meaning": "Rows of a are neighbours, and its steps are `apart`."},
}
"""The address and the strides of row i of the left operand, by how a tile reads it."""


def tiles(mr: int, nv: int, access: Literal["rows", "cols"] = "rows") -> str:
    """The tiles of up to `mr` rows and of 1, 2, 4, … `nv` vectors (a power of two), and `multiply`, which takes any number of
    rows and vectors."""
    rows, widths = range(1, mr + 1), [1 << k for k in range(nv.bit_length())]
    text = "struct Next {};\n"
    text += "".join(Tile(m, n, access, 1).function() for n in widths for m in rows)
    text += "typedef void (*Tile)(const PA*, long, long, const PB*, long, long, T*, long, bool, Next);\n"
    table = ",\n  ".join("{" + ", ".join(f"tile{m}x{n}" for m in rows) + "}" for n in widths)
    return text + f"static const Tile TILES[{len(widths)}][{mr}] = {{\n  {table}}};\n" + MULTIPLY.format(**ACCESS[access])
