"""Neighbouring rows of a row-major B as the register tile needs them where a lane holds several k: side by side.

Four rows of bytes become four vectors of four k a lane, two of bfloat16 two vectors of two: each row is read as a whole
vector, and two (one) shuffles a vector interleave them, into panels (tile_packed) or into registers (tile_direct).
"""

from __future__ import annotations

FUNCTION = {
    4: """\
typedef S BYTES __attribute__((vector_size(4 * L)));
typedef short WORDS __attribute__((vector_size(4 * L)));
typedef S BYTESU __attribute__((vector_size(4 * L), aligned(1), may_alias));
// One step of NV vectors of columns, 4 * L columns at a time: bytes of neighbouring rows side by side, then pairs of them.
static inline void side_by_side(const S* b, long stride, long left, V* out) {{
  if (left < 4) {{
    for (long j = 0; j < NV; ++j) out[j] = to_b(columns(b + j * L, stride, left));
    return;
  }}
  for (long j = 0; j < NV; j += 4, b += 4 * L) {{
    const BYTES r0 = *(const BYTESU*)b, r1 = *(const BYTESU*)(b + stride);
    const BYTES r2 = *(const BYTESU*)(b + 2 * stride), r3 = *(const BYTESU*)(b + 3 * stride);
    const WORDS first = (WORDS)SHUFFLE(r0, r1, {bytes_low}), second = (WORDS)SHUFFLE(r2, r3, {bytes_low});
    const WORDS third = (WORDS)SHUFFLE(r0, r1, {bytes_high}), fourth = (WORDS)SHUFFLE(r2, r3, {bytes_high});
    out[j] = to_b((V)SHUFFLE(first, second, {words_low}));
    out[j + 1] = to_b((V)SHUFFLE(first, second, {words_high}));
    out[j + 2] = to_b((V)SHUFFLE(third, fourth, {words_low}));
    out[j + 3] = to_b((V)SHUFFLE(third, fourth, {words_high}));
  }}
}}
""",
    2: """\
typedef short WORDS __attribute__((vector_size(4 * L)));
typedef short WORDSU __attribute__((vector_size(4 * L), aligned(2), may_alias));
// One step of NV vectors of columns, 2 * L columns at a time.
static inline void side_by_side(const S* b, long stride, long left, V* out) {{
  if (left < 2) {{
    for (long j = 0; j < NV; ++j) out[j] = columns(b + j * L, stride, left);
    return;
  }}
  for (long j = 0; j < NV; j += 2, b += 2 * L) {{
    const WORDS r0 = *(const WORDSU*)b, r1 = *(const WORDSU*)(b + stride);
    out[j] = (V)SHUFFLE(r0, r1, {words_low});
    out[j + 1] = (V)SHUFFLE(r0, r1, {words_high});
  }}
}}
""",
}
"""By k in a lane; V is a register of sums' size whatever it holds."""

PANEL_ROW = """\
// One step of a whole panel.
static inline void panel_row(const S* b, long stride, long left, PB* out) {
  V row[NV];
  side_by_side(b, stride, left, row);
  for (long j = 0; j < NV; ++j) store(out + j * L, row[j]);
}
"""


def whole(step: int, nv: int) -> bool:
    """Whether a panel of `nv` vectors can be interleaved in this way: `step` k in a lane, as many vectors at once."""
    return step > 1 and nv % step == 0


def function(step: int, lanes: int) -> str:
    """side_by_side(b, stride, left, out) for `step` k in each of `lanes` lanes."""

    def interleaved(count: int, start: int) -> str:
        """The mask that takes element `start` of each of two vectors of `count`, then the next ones."""
        return ", ".join(f"{i}, {count + i}" for i in range(start, start + count // 2))

    parts = {"bytes": 4 * lanes, "words": 2 * lanes}
    masks = {f"{n}_{half}": interleaved(c, c // 2 * k) for n, c in parts.items() for k, half in enumerate(("low", "high"))}
    return FUNCTION[step].format(**masks)
