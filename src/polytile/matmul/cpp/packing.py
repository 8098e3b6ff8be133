"""How a block of A becomes packed tiles and a block of B panels, and the single elements and vectors that this reads.

A tile of A is [steps][rows], a panel of B [steps][NR]; a step is as many k as one lane holds (spec.k_per_lane).
"""

from __future__ import annotations

from polytile.matmul.cpp import amx, int8, narrow_panels, side_by_side, unroll
from polytile.matmul.cpp.spec import GemmConfig, GemmSpec, k_per_lane, widens

# One step of one row of A or column of B, and one step of L columns of a row-major B.
ELEMENT = """\
template <class P> static inline T element(const P* p, long, long) { return value(*p); }
template <class P> static inline V columns(const P* p, long, long) { return load(p); }
template <class P> static inline V steps_of(const P* p) { return load(p); }
"""
PANEL_ROW = """\
// One step of a whole panel.
static inline void panel_row(const SB* b, long stride, long left, PB* out) {
  for (long j = 0; j < NV; ++j) store(out + j * L, to_b(columns(b + j * L, stride, left)));
}
"""
ELEMENT_PAIRS = """\
static inline unsigned element(const S* p, long stride, long left) {
  return p[0].bits | (left > 1 ? unsigned(p[stride].bits) << 16 : 0);
}
static inline V columns(const S* p, long stride, long left) {
  const U32 low = __builtin_convertvector(*(const U16U*)p, U32);
  return (V)(left > 1 ? low | __builtin_convertvector(*(const U16U*)(p + stride), U32) << 16 : low);
}
static inline V steps_of(const S* p) { return (V)*(const U32U*)p; }
"""

PACK_A = """\
// rows x steps of A as [steps][rows]; `from` is a real k, the last step of an odd K is half empty.
static void pack_a(const Problem& p, long item, long m, long rows, long from, long steps, PA* out) {
  const S* a = a_of(p, item, m, from);
  for (long q = 0; q < steps; ++q)
    for (long i = 0; i < rows; ++i)
      out[q * rows + i] = element(a + i * p.a_m + STEP * q * p.a_k, p.a_k, p.k - from - STEP * q);
}
"""

PACK_A_M = """\
// rows x steps of A as [steps][rows], from an A whose rows are neighbours: whole vectors are read and stored while
// the matrix has rows enough, what they store past a step's rows is overwritten by the next step or lies in the next
// tile's place.
static void pack_a(const Problem& p, long item, long m, long rows, long from, long steps, PA* out) {
  const S* a = a_of(p, item, m, from);
  const bool vectors = m + (rows + L - 1) / L * L <= p.m;
  for (long q = 0; q < steps; ++q, a += STEP * p.a_k, out += rows) {
    const long left = p.k - from - STEP * q;
    if (vectors)
      for (long i = 0; i < rows; i += L) store(out + i, columns(a + i, p.a_k, left));
    else
      for (long i = 0; i < rows; ++i) out[i] = element(a + i, p.a_k, left);
  }
}
"""

PACK_A_K = """\
// rows x steps of A as [steps][rows], from an A whose k is contiguous: `GROUP` >= rows rows by L steps transposed in
// registers at a time. What a store writes past a step's rows is overwritten by the next step or lies in the next
// tile's place.
static void pack_a(const Problem& p, long item, long m, long rows, long from, long steps, PA* out) {
  const S* row[GROUP];
  for (long i = 0; i < GROUP; ++i) row[i] = a_of(p, item, m + least(i, rows - 1), from);
  const long whole = least(steps, (p.k - from) / STEP) / L * L;
  for (long q = 0; q < whole; q += L) {
    V block[GROUP];
    for (long i = 0; i < GROUP; ++i) block[i] = steps_of(row[i] + STEP * q);
    transpose_group(block);
    for (long g = 0; g < L / GROUP; ++g)
      for (long i = 0; i < GROUP; ++i)
        __builtin_memcpy(out + (q + g * GROUP + i) * rows, (const T*)&block[i] + g * GROUP, GROUP * sizeof(T));
  }
  for (long q = whole; q < steps; ++q)
    for (long i = 0; i < rows; ++i) out[q * rows + i] = element(row[i] + STEP * q, 1, p.k - from - STEP * q);
}
"""

PACK_B_N = """\
// steps x cols of a row-major B as [steps][NR]; a vector that is not full ends in zeros.
static void pack_b(const Problem& p, long item, long n, long cols, long from, long steps, PB* out) {
  const SB* b = b_of(p, item, from, n);
  const long whole = cols / L;
  for (long q = 0; q < steps; ++q, b += STEP * p.b_k, out += NR) {
    const long left = p.k - from - STEP * q;
    __builtin_prefetch(b + 8 * STEP * p.b_k);
    if (whole == NV) panel_row(b, p.b_k, left, out);
    else {
      for (long j = 0; j < whole; ++j) store(out + j * L, to_b(columns(b + j * L, p.b_k, left)));
      for (long j = whole * L; j < ceil_div(cols, L) * L; ++j)
        out[j] = j < cols ? to_b(element(b + j, p.b_k, left)) : PB{};
    }
  }
}
"""

PACK_B_K = """\
// steps x cols of a B whose k is contiguous as [steps][NR], L x L blocks transposed in registers; columns past `cols`
// repeat the last one: their sums are never used.
static void pack_b(const Problem& p, long item, long n, long cols, long from, long steps, PB* out) {
  const long whole = least(steps, (p.k - from) / STEP) / L * L;
  for (long j = 0; j < cols; j += L) {
    const SB* column[L];
    for (long i = 0; i < L; ++i) column[i] = b_of(p, item, from, n + least(j + i, cols - 1));
    for (long q = 0; q < whole; q += L) {
      V block[L];
      for (long i = 0; i < L; ++i) block[i] = steps_of(column[i] + STEP * q);
      transpose(block);
      for (long i = 0; i < L; ++i) store(out + (q + i) * NR + j, to_b(block[i]));
    }
    for (long q = whole; q < steps; ++q)
      for (long i = 0; i < L; ++i) out[q * NR + j + i] = to_b(element(column[i] + STEP * q, 1, p.k - from - STEP * q));
  }
}
"""

PACK_B_ANY = """\
// steps x cols of a B with any strides as [steps][NR]; a vector that is not full ends in zeros.
static void pack_b(const Problem& p, long item, long n, long cols, long from, long steps, PB* out) {
  const SB* b = b_of(p, item, from, n);
  for (long q = 0; q < steps; ++q)
    for (long j = 0; j < ceil_div(cols, L) * L; ++j)
      out[q * NR + j] = j < cols ? to_b(element(b + STEP * q * p.b_k + j * p.b_n, p.b_k, p.k - from - STEP * q)) : PB{};
}
"""

# B read in place: only the last vector of a ragged panel is copied, so that no load passes the end of a row. With RAGGED the
# vectors before it are too, where that makes a panel of full width: one tile then takes all of it.
PACK_B_TAIL = """\
static void pack_b(const Problem& p, long item, long n, long cols, long from, long steps, PB* out) {
  const long rest = cols % L, rows = least(STEP * steps, p.k - from), before = copied_before(cols);
  if (!rest) return;
  const SB* b = b_of(p, item, from, n + cols / L * L);
  for (long q = 0; q < rows; ++q, b += p.b_k, out += before + L) {
    for (long j = 0; j < before; j += L) copy_n(out + j, b + j - before, L);
    copy_n(out + before, b, rest);
  }
}
"""

# Kept panels of int8 as pairs of bfloat16. `scaled` is what becomes of the elements of one group of one vector of columns.
PACK_B_WIDENED = """\
typedef unsigned short WORDS __attribute__((vector_size(4 * L)));
// Two vectors of floats, each rounded to bfloat16, side by side in each lane.
static inline V pairs_of(V low, V high) {{
#if defined(__AVX512BF16__)
  if constexpr (L == 16) {{
    WORDS both;
    asm("vcvtne2ps2bf16 %2, %1, %0" : "=v"(both) : "v"(high), "v"(low));
    return (V)SHUFFLE(both, both, {interleaved});
  }}
#endif
  return (V)(rounded(low) >> 16 | (rounded(high) & 0xffff0000u));
}}
{factors}
// steps x cols of kept panels as [steps][NR]; the last step of an odd K is half empty.
static void pack_b(const Problem& p, long, long n, long cols, long from, long steps, PB* out) {{
  const long end = least(p.k, from + STEP * steps);
  for (long j = 0; j < cols; j += L) {{
    PB* to = out + j;
    for (long k = from, stop; k < end; k = stop) {{
      const Factors own(p, n + j, k);
      stop = least(end, {stop});
{widen}    }}
  }}
}}
"""
WIDEN_BYTES = """\
      const SB* b = panels_of(p, n + j) + k * L;
      for (; k + 1 < stop; k += 2, b += 2 * L, to += NR) store(to, pairs_of(own.on(load(b)), own.on(load(b + L))));
      if (k < stop) store(to, pairs_of(own.on(load(b)), V{}));
"""
WIDEN_NIBBLES = """\
      const SB* b = panels_of(p, n + j) + k * L / A_BYTE;
      for (; k < stop; k += 8, b += 4 * L) {
        const I32 w = word(b);
        store(to, pairs_of(own.on(number<0>(w)), own.on(number<4>(w)))); to += NR;
        store(to, pairs_of(own.on(number<1>(w)), own.on(number<5>(w)))); to += NR;
        store(to, pairs_of(own.on(number<2>(w)), own.on(number<6>(w)))); to += NR;
        store(to, pairs_of(own.on(number<3>(w)), own.on(number<7>(w)))); to += NR;
      }
"""
NO_FACTORS = """\
struct Factors {
  Factors(const Problem&, long, long) {}
  V on(V x) const { return x; }
};"""
FACTORS = """\
// The scales, and the zeros if there are any, of the columns from n on in the group of k.
struct Factors {{
  V scale, zero;
  Factors(const Problem& p, long n, long k) {{
    const long at = k / {group} * p.n + n, count = least(L, p.n - n);
    scale = load_n((const float*)p.ptrs[{scales_at}] + at, count);
    zero = {zero};
  }}
  V on(V x) const {{ return (x - zero) * scale; }}
}};"""

CORRECT_NEVER = "static void correct(PA*, long, long) {}\n"
PACK_A_NEVER = "static void pack_a(const Problem&, long, long, long, long, long, PA*) {}\n"
PACK_B_NEVER = "static void pack_b(const Problem&, long, long, long, long, long, PB*) {}\n"

PACK_A_OF = {"k": PACK_A_K, "m": PACK_A_M}
PACK_B_OF = {"n": PACK_B_N, "k": PACK_B_K, "any": PACK_B_ANY}


def packs_a(spec: GemmSpec, config: GemmConfig) -> bool:
    """Whether A is copied into tiles: asked for, or needed (several k in one lane, but in tiles of AMX)."""
    return config.form != "small" and (config.pack_a or (k_per_lane(spec, config) > 1 and not config.amx))


def packs_b(spec: GemmSpec, config: GemmConfig) -> bool:
    """Whether B is copied into panels; `small` reads a row-major B in place."""
    return config.form in ("tile_packed", "splitk") or widens(spec, config) or (config.form == "small" and spec.b_layout != "n")


def transposed_rows(config: GemmConfig) -> int:
    """Rows of A that are transposed together: those of a register tile, and up to the next power of two."""
    return 1 << (config.mr - 1).bit_length()


def elements(spec: GemmSpec, config: GemmConfig) -> str:
    """The single elements and vectors that are read of an operand in memory."""
    return int8.ELEMENT if spec.dtype == "int8" else ELEMENT_PAIRS if config.pairs else ELEMENT


def functions(spec: GemmSpec, config: GemmConfig, lanes: int, scales_at: int) -> str:
    """The functions `pack_a`, `correct` and `pack_b` of a unit, which do nothing where nothing is copied, and what they call."""
    tiled_a, integers, widened = packs_a(spec, config) and not config.amx, spec.dtype == "int8", widens(spec, config)
    panelled_b = packs_b(spec, config) and not widened
    step, row_major = k_per_lane(spec, config), spec.b_layout == "n"
    interleaved = panelled_b or (config.form == "tile_direct" and step > 1)
    together = row_major and interleaved and side_by_side.whole(step, config.nv)
    square = (panelled_b and spec.b_layout == "k") or (config.amx and amx.transposes_a(spec))
    transposes = (tiled_a and spec.a_layout == "k" and config.mr <= lanes, square)
    panel_row = side_by_side.PANEL_ROW if together else PANEL_ROW
    return "".join(
        (
            elements(spec, config),
            int8.CORRECT if integers else CORRECT_NEVER,
            unroll.SHUFFLE_MACRO if together or widened or any(transposes) else "",
            unroll.shuffles(lanes) if any(transposes) else "",
            side_by_side.function(step, lanes) if together else "",
            panel_row if panelled_b and row_major else "",
            unroll.transpose(lanes, transposed_rows(config), "transpose_group") if transposes[0] else "",
            unroll.transpose(lanes, lanes, "transpose") if transposes[1] else "",
            _pack_a(spec, tiled_a, transposes[0]),
            _widened(spec, lanes, scales_at) if widened else _pack_b(spec, config),
        )
    )


def _pack_a(spec: GemmSpec, tiled: bool, transposed: bool) -> str:
    """The function that copies A into tiles: by whole vectors where its layout allows that."""
    if not tiled:
        return PACK_A_NEVER
    return PACK_A_OF[spec.a_layout] if transposed or spec.a_layout == "m" else PACK_A


def _pack_b(spec: GemmSpec, config: GemmConfig) -> str:
    if config.form == "tile_prepacked":
        return PACK_B_NEVER
    return PACK_B_OF[spec.b_layout] if packs_b(spec, config) else PACK_B_TAIL


def _widened(spec: GemmSpec, lanes: int, scales_at: int) -> str:
    """The function that makes kept panels of int8 pairs of bfloat16."""
    zero = f"load_n((const float*)p.ptrs[{scales_at + 1}] + at, count)" if spec.zeros else "V{}"
    return narrow_panels.reading(spec) + PACK_B_WIDENED.format(
        interleaved=", ".join(f"{i}, {lanes + i}" for i in range(lanes)),
        factors=FACTORS.format(group=spec.group, scales_at=scales_at, zero=zero) if spec.group else NO_FACTORS,
        stop=f"(k / {spec.group} + 1) * {spec.group}" if spec.group else "end",
        widen=WIDEN_BYTES if spec.nibbles_from is None else WIDEN_NIBBLES,
    )
