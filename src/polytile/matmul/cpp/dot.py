"""Form dot: dot products along K for a B whose k is contiguous (the weights of a linear layer), with nothing copied.

    c[m, n] = sum(a[m, k] * b[n, k])   →   each thread, for blocks of rows and columns:
                                               for k by vectors: acc[m, n] += a[m, k] * b[n, k]
                                               c[m, n] = epilogue(sum over lanes of acc)

Legal for a B whose k is contiguous. Moves B once per block of rows. Costs a reduction of lanes for each element of the result.
BLAS: gemv with transposition. Halide, TVM: vectorize the reduction, rfactor over lanes.
"""

from __future__ import annotations

from polytile.matmul.cpp import common, int8, shared_tiles, unroll
from polytile.matmul.cpp.common import MAC, PAIRS, entry, head
from polytile.matmul.cpp.spec import GemmConfig, GemmSpec, k_per_lane

CONSTANTS = """\
constexpr long MR = {mr}, COLUMNS = {columns}, MC = {mc}, KC = {kc};
constexpr bool PACK_A = {pack_a};
"""

FETCH = """\
template <class P> static inline V fetch(const P* p) { return load(p); }
template <class P> static inline V fetch_n(const P* p, long n) { return load_n(p, n); }
"""

FETCH_PAIRS = """\
static inline V fetch(const bf16* p) { return (V)*(const U32U*)p; }
static inline V fetch_n(const bf16* p, long n) {
  alignas(64) bf16 row[W] = {};
  for (long i = 0; i < n; ++i) row[i] = p[i];
  return fetch(row);
}
"""

START = "static inline V start(const PA*, long) { return V{}; }\n"

CONVERT = {True: "static inline PA convert(S x) { return x; }\n", False: "static inline PA convert(S x) { return value(x); }\n"}

WORK = """\
struct Call { Problem p; long tile_block; PA* tiles; };
static inline long most_threads(const Problem& p) { return p.batch * ceil_div(p.m, MR) * ceil_div(p.n, L); }
static bool open(Call& c) {
  c.tile_block = (least(MC, c.p.m) * c.p.k + 63) / 64 * 64;
  c.tiles = PACK_A ? (PA*)malloc(c.p.threads * c.tile_block * sizeof(PA) + 64) : nullptr;
  return !PACK_A || c.tiles;
}
static void close(Call& c) { if (PACK_A) free(c.tiles); }

// `rows` rows against up to L columns: the sums of one vector of columns for each row, K in blocks that keep A in L1,
// then the epilogue. A row of `sums` has room past its L: whole vectors are stored at any column, in rising order.
static void group(const Problem& p, long item, long m, long rows, long n, const PA* a, long a_m) {
  alignas(64) T total[MR * L], sums[MR * 2 * L] = {};
  const long cols = least(L, p.n - n);
  for (long i = 0; i < rows; ++i) store(total + i * L, start(a + i * a_m, p.k));
  for (long k = 0; k < p.k; k += KC) {
    const long depth = least(KC, p.k - k);
    long j = 0;
    for (; j + COLUMNS <= cols; j += COLUMNS)
      DOT[rows](a + k, a_m, b_of(p, item, k, n + j), p.b_n, depth, sums + j, 2 * L);
    for (; j < cols; ++j) DOT_ONE[rows](a + k, a_m, b_of(p, item, k, n + j), p.b_n, depth, sums + j, 2 * L);
    for (long i = 0; i < rows; ++i) store(total + i * L, load(total + i * L) + load(sums + i * 2 * L));
  }
  finish(p, item, m, n, rows, cols, total, L);
}

static void part(const Problem& p, long item, long m0, long m1, long n0, long n1, PA* tiles) {
  for (long from = m0; from < m1; from += MC) {
    const long height = least(MC, m1 - from), count = ceil_div(height, MR);
    const long base = height / count, extra = height % count;
    if (PACK_A)
      for (long i = 0; i < height; ++i)
        for (long k = 0; k < p.k; ++k) tiles[i * p.k + k] = convert(*a_of(p, item, from + i, k));
    for (long n = n0; n < n1; n += L)
      for (long t = 0, i = 0, rows; t < count; ++t, i += rows) {
        rows = base + (t < extra);
        const PA* a = PACK_A ? tiles + i * p.k : (const PA*)a_of(p, item, from + i, 0);
        group(p, item, from + i, rows, n, a, PACK_A ? p.k : p.a_m);
      }
  }
}

static void work(const Call& c, long thread, long threads) {
  const Problem& p = c.p;
  const Team team = team_of(p, thread, threads);
  const long tiles = ceil_div(p.m, MR), groups = ceil_div(p.n, L);
  const long row_count = row_parts(tiles, groups, team.size), col_count = team.size / row_count;
  const long row = team.rank % row_count, col = team.rank / row_count;
  if (team.index >= team.teams || col >= col_count) return;
  const long m0 = tiles * row / row_count * MR, m1 = least(p.m, tiles * (row + 1) / row_count * MR);
  const long n0 = groups * col / col_count * L, n1 = least(p.n, groups * (col + 1) / col_count * L);
  PA* tiles_of_a = c.tiles + thread * c.tile_block;
  for (long item = team.index; item < p.batch; item += team.teams) part(p, item, m0, m1, n0, n1, tiles_of_a);
}
"""


def generate(spec: GemmSpec, config: GemmConfig, name: str, epilogue: str | None, lanes: int, beside_at: int = 2) -> str:
    """The translation unit of the dot form, without the prelude. B must have b_stride_k == 1; other A than k-contiguous
    (or bfloat16 without `pairs`) is copied row by row."""
    integers, width = spec.dtype == "int8", k_per_lane(spec, config) * lanes
    as_stored = integers or config.pairs
    pack_a = spec.a_layout != "k" or (spec.dtype == "bfloat16" and not config.pairs)
    constants = CONSTANTS.format(
        mr=config.mr,
        columns=config.nv,
        mc=max(config.mc // config.mr, 1) * config.mr,
        kc=-(-config.kc // (4 * lanes)) * 4 * lanes,
        pack_a=str(pack_a).lower(),
    )
    reads = f"typedef {'S' if as_stored or not pack_a else 'T'} PA;\nconstexpr long W = {width};\n"
    reads += int8.MAC + int8.ELEMENT + int8.FETCH if integers else (PAIRS + FETCH_PAIRS if config.pairs else MAC + FETCH) + START
    return "".join(
        (
            _shared(spec, config, lanes, reads),
            head(spec, config, epilogue, lanes, f"gemm {config}: A {spec.dtype} {spec.a_layout}, B {spec.b_layout}"),
            constants,
            reads,
            CONVERT[as_stored],
            "typedef void (*Dot)(const PA*, long, const SB*, long, long, T*, long);\n",
            shared_tiles.tables_of("Dot", ("DOT", "DOT_ONE")),
            WORK,
            entry(name, spec, beside_at),
        )
    )


def _shared(spec: GemmSpec, config: GemmConfig, lanes: int, reads: str) -> str:
    """The dot products of each number of rows, with all that they need; `reads` are the multiply-add and the loads."""
    rows, widths = range(1, config.mr + 1), (config.nv, 1)
    needed = common.vectors(spec, lanes), common.operands(spec, lanes), common.parts_of_vectors(spec, lanes), reads
    text = "".join((*needed, unroll.SHUFFLE_MACRO, unroll.shuffles(lanes)))
    text += "".join(unroll.dot(r, width, lanes, config.unroll) for width in sorted({*widths}) for r in rows)
    tables = [[f"dot{r}x{width}" for r in rows] for width in widths]
    return shared_tiles.part(f"dot_{config.mr}x{config.nv}", text, tables)
