"""Form tile_prepacked of a B that is narrower than A: register tiles that convert the panels' numbers as they read them.

A thread takes whole vectors of columns over all of K, so a call needs no workspace and no barrier, and reads each panel once for
each tile of rows. A number of 4 bits is looked up in a table: `vpermps` takes an index from each lane, `vpermw` from each half of
a lane, and both ignore the bits above it, so that one shift brings the next numbers of all columns in place. Beside bfloat16 the
table is of bfloat16, and `vdpbf16ps` multiplies two k at once.
"""

from __future__ import annotations

from polytile.matmul.cpp.common import MAC, MAC_PAIRS, entry, head
from polytile.matmul.cpp.spec import NIBBLES, NIBBLES_TOGETHER, GemmConfig, GemmSpec
from polytile.matmul.cpp.unroll import CHAIN, lines

LEAST_SUMS = 8
"""Sums of a tile that keep two units of multiply-adds busy, each of which takes 4 cycles."""

CONSTANTS = """\
constexpr long MR = {mr}, NV = {nv}, NR = NV * L;
constexpr long STEP = {step}, CHAIN = {chain};       // k that are read at once, and products that are added up in a row
constexpr long KEPT_AT = {panels_at};                // where among the pointers panels are
"""

PANELS = """\
constexpr long A_BYTE = {a_byte};                    // numbers in a byte
// The panels of the vector of columns at n, and the bytes from one such vector to the next.
static inline const SB* panels_of(const Problem& p, long n) {{ return (const SB*)p.ptrs[KEPT_AT] + n * p.k / A_BYTE; }}
static inline long vector_bytes(const Problem& p) {{ return L * p.k / A_BYTE; }}
"""

BYTES = """\
static inline V word(const SB* b) { return load(b); }
template <int t> static inline V number(V word) { return word; }
"""

# `number<t>` is the float that 4 bits of a word stand for, from bit 4 t on.
NIBBLE_WORDS = """\
typedef I32 I32U __attribute__((aligned(1), may_alias));
constexpr int LEAST = {least};                      // what the bits 0000 stand for
#if defined(__AVX512F__)
alignas(64) static const float FLOATS[] = {{{floats}}};
#endif
static inline I32 word(const SB* b) {{ return *(const I32U*)b; }}
template <int t> static inline V number(I32 word) {{
#if defined(__AVX512F__)
  if constexpr (L == 16) {{
    V out;
    asm("vpermps %1, %2, %0" : "=v"(out) : "v"(load(FLOATS)), "v"((U32)word >> 4 * t));
    return out;
  }}
#endif
  return __builtin_convertvector((I32)((U32)word >> 4 * t & 15) + LEAST, V);
}}
"""

NIBBLE_PAIRS = """\
typedef unsigned short HALVES __attribute__((vector_size(64)));
static const HALVES PAIRS = {{{halves}}};
// The numbers of two neighbouring k, from bit 4 t on of both halves of a word, as bfloat16.
template <int t> static inline V pair(I32 word) {{
  HALVES out;
  asm("vpermw %1, %2, %0" : "=v"(out) : "v"(PAIRS), "v"((HALVES)word >> 4 * t));
  return (V)out;
}}
static const V ONES = (V)(U32{{}} + 0x3f803f80);
static inline V broadcast_pair(const S* a) {{
  T both;
  __builtin_memcpy(&both, a, 4);
  return broadcast(both);
}}
"""

WORK = """\
struct Call { Problem p; };
static inline long most_threads(const Problem& p) { return ceil_div(p.m, MR) * ceil_div(p.n, L); }
static bool open(Call&) { return true; }
static void close(Call&) {}

// All of K for `rows` x `cols`: a panel of full width, or one vector of columns after the other.
static void block(const Problem& p, long m, long rows, long n, long cols) {
  alignas(64) T sums[MR * NR];
  const S* a = a_of(p, 0, m, 0);
  if (cols > NR - L) WIDE[rows](p, a, n, sums);
  else
    for (long j = 0; j < cols; j += L) NARROW[rows](p, a, n + j, sums + j);
  finish(p, 0, m, n, rows, cols, sums, NR);
}

static void work(const Call& c, long thread, long threads) {
  const Problem& p = c.p;
  const long tiles = ceil_div(p.m, MR), vectors = ceil_div(p.n, L);
  const long row_count = row_parts(tiles, vectors, threads), col_count = threads / row_count;
  const long row = thread % row_count, col = thread / row_count;
  if (col >= col_count) return;
  const long t0 = tiles * row / row_count, t1 = tiles * (row + 1) / row_count;
  const long n1 = least(p.n, vectors * (col + 1) / col_count * L);
  for (long n = vectors * col / col_count * L; n < n1; n += NR)
    for (long t = t0; t < t1; ++t) {
      const long m = p.m * t / tiles;
      block(p, m, p.m * (t + 1) / tiles - m, n, least(NR, n1 - n));
    }
}
"""


def generate(
    spec: GemmSpec, config: GemmConfig, name: str, epilogue: str | None, lanes: int, panels_at: int, scales_at: int
) -> str:
    """The translation unit, without the prelude. Panels are at ptrs[panels_at]; scales and zeros of groups, if there are any, at
    ptrs[scales_at] and behind."""
    nibbles = spec.nibbles_from is not None
    step = NIBBLES_TOGETHER if nibbles else 1
    constants = CONSTANTS.format(mr=config.mr, nv=config.nv, step=step, chain=spec.group or CHAIN, panels_at=panels_at)
    plain = MAC + _tables(spec, config, scales_at, [(f"number<{t}>", k) for t, k in _order(nibbles)], paired=False)
    tiles = plain
    if nibbles and spec.dtype == "bfloat16" and spec.a_layout == "k" and lanes == 16:
        pairs = [(f"pair<{t}>", 2 * t) for t in range(step // 2)]  # panels.NIBBLES has the second ones in the high halves
        text = NIBBLE_PAIRS.format(halves=_halves(spec)) + MAC_PAIRS + _tables(spec, config, scales_at, pairs, paired=True)
        tiles = f"#if defined(__AVX512BF16__) && defined(__AVX512BW__)\n{text}#else\n{plain}#endif\n"
    return "".join(
        (
            head(spec, config, epilogue, lanes, f"gemm {config}: A {spec.dtype} {spec.a_layout}, B of {8 // (1 + nibbles)} bits"),
            constants,
            reading(spec),
            tiles,
            WORK,
            entry(name, spec, scales_at),
        )
    )


def reading(spec: GemmSpec) -> str:
    """How panels are read: `word` is what one load takes for a vector of columns, `number<t>` the floats of one k in it."""
    if spec.nibbles_from is None:
        return PANELS.format(a_byte=1) + BYTES
    values = range(spec.nibbles_from, spec.nibbles_from + 16)
    return PANELS.format(a_byte=2) + NIBBLE_WORDS.format(least=spec.nibbles_from, floats=", ".join(map(str, values)))


def _halves(spec: GemmSpec) -> str:
    """The table of bfloat16, twice: the index has a fifth bit, which is another number's."""
    import torch

    assert spec.nibbles_from is not None
    values = torch.arange(spec.nibbles_from, spec.nibbles_from + 16).bfloat16().view(torch.int16).tolist() * 2
    return ", ".join(str(value & 0xFFFF) for value in values)


def _order(nibbles: bool) -> list[tuple[int, int]]:
    """The numbers of a word, each with its k."""
    return [(NIBBLES.index(k), k) for k in range(NIBBLES_TOGETHER)] if nibbles else [(0, 0)]


def _tables(spec: GemmSpec, config: GemmConfig, scales_at: int, numbers: list[tuple[str, int]], paired: bool) -> str:
    """Every row tail of the tile, in full width and one vector wide, and the tables that choose among them."""
    every, widths = range(1, config.mr + 1), sorted({config.nv, 1})
    text = "".join(_tile(spec, rows, width, scales_at, numbers, paired) for width in widths for rows in every)
    text += "typedef void (*Tile)(const Problem&, const S*, long, T*);\n"
    for table, width in (("WIDE", config.nv), ("NARROW", 1)):
        text += f"static const Tile {table}[MR + 1] = {{nullptr, {', '.join(f'tile{r}x{width}' for r in every)}}};\n"
    return text


def _tile(spec: GemmSpec, rows: int, width: int, scales_at: int, numbers: list[tuple[str, int]], paired: bool) -> str:
    """out[i, j] = sum over k of a[i, k] * b[k, n + j], i < rows, j < width * L. Sums c of one chain are added to the totals t.
    A few sums would wait for their own last additions, so there are two of each then, c and d."""
    points = [(i, j) for i in range(rows) for j in range(width)]
    totals, sums = (_zeros(letter, points) for letter in "tc")
    pointers = [f"const S* a{i} = a + {i} * p.a_m;" for i in range(rows)]
    scales = [f"const float* scales = (const float*)p.ptrs[{scales_at}] + n;"] if spec.group else []
    scales += [f"const float* zeros = (const float*)p.ptrs[{scales_at + 1}] + n;"] if spec.zeros else []
    of_rows = [f"V {', '.join(f'r{i} = {{}}' for i in range(rows))};"] if spec.zeros else []
    chain = ["end = least(p.k, k + CHAIN);", sums, *of_rows]
    twice = rows * width < LEAST_SUMS
    if twice:
        chain += [_zeros("d", points), *_loop(spec, rows, width, numbers, paired, "cd")]
    chain += _loop(spec, rows, width, numbers, paired, "c")
    chain += [f"c{i}_{j} += d{i}_{j};" for i, j in points] if twice else []
    return (
        f"static void tile{rows}x{width}(const Problem& p, const S* a, long n, T* out) {{\n"
        + lines(2, ["const SB* b = panels_of(p, n);", "const long apart = vector_bytes(p);", *pointers, *scales, totals])
        + lines(2, ["for (long k = 0, end; k < p.k;) {"])
        + lines(4, [*chain, *_add_chain(spec, rows, width)])
        + lines(2, ["}", *(f"store(out + {i} * NR + {j} * L, t{i}_{j});" for i, j in points)])
        + "}\n"
    )


def _zeros(letter: str, points: list[tuple[int, int]]) -> str:
    return "V " + ", ".join(f"{letter}{i}_{j} = {{}}" for i, j in points) + ";"


def _loop(
    spec: GemmSpec, rows: int, width: int, numbers: list[tuple[str, int]], paired: bool, letters: str
) -> list[str]:
    """The steps of a chain, as many at once as there are letters of sums."""
    turn = len(letters)
    statements = [f"for (; k + {turn - 1} * STEP < end; k += {turn} * STEP, b += {turn} * L * STEP / A_BYTE) {{"]
    for at, letter in enumerate(letters):
        place = f"b + {at} * L * STEP / A_BYTE"
        statements += ["  {", *(f"    const auto w{j} = word({place} + {j} * apart);" for j in range(width))]
        for number, k in numbers:
            statements += [f"    {each}" for each in _products(spec, rows, width, number, f"{at} * STEP + {k}", paired, letter)]
        statements.append("  }")
    return [*statements, "}"]


def _products(spec: GemmSpec, rows: int, width: int, number: str, k: str, paired: bool, letter: str) -> list[str]:
    """One number, or pair of numbers, of each word times the rows' elements from k + `k` on, added to the sums `letter`."""
    step = "" if spec.a_layout == "k" else " * p.a_k"
    element = f"broadcast_pair(a{{i}} + k + {k})" if paired else f"broadcast(value(a{{i}}[(k + {k}){step}]))"
    statements = ["{", *(f"  const V b{j} = {number}(w{j});" for j in range(width))]
    for i in range(rows):
        macs = [f"mac({letter}{i}_{j}, x, b{j});" for j in range(width)]
        macs += [f"mac(r{i}, x, {'ONES' if paired else 'broadcast(T(1))'});"] if spec.zeros else []
        statements.append(f"  {{ const V x = {element.format(i=i)}; {' '.join(macs)} }}")
    return [*statements, "}"]


def _add_chain(spec: GemmSpec, rows: int, width: int) -> list[str]:
    """The chain's sums times the scales of its group, without what the zeros times the sums r of A's rows make of it:
    sum of a (b - z) s = (sum of a b - z sum of a) s."""
    if not spec.group:
        return [f"t{i}_{j} += c{i}_{j};" for i in range(rows) for j in range(width)]
    statements = []
    for j in range(width):
        left = f"p.n - n - {j} * L"
        loaded = f"{left} >= L ? load({{of}} + {j} * L) : load_n({{of}} + {j} * L, {left});"
        statements += [f"const V s{j} = {loaded.format(of='scales')}"]
        statements += [f"const V z{j} = {loaded.format(of='zeros')}"] if spec.zeros else []
        less = f" - z{j} * r{{i}}" if spec.zeros else ""
        statements += [f"t{i}_{j} += (c{i}_{j}{less.format(i=i)}) * s{j};" for i in range(rows)]
    return [*statements, "scales += p.n;", *(["zeros += p.n;"] if spec.zeros else [])]
