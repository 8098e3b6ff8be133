"""Form stream: few rows of A against a row-major B that is read once, row after row, while the sums stay in L1.

    c[m, n] = sum(a[m, k] * b[k, n])   →   each thread, for its columns: for k: for m: sums[m, :] += a[m, k] * b[k, :]
                                                                         c[:, columns] = epilogue(sums)

Legal for a row-major B and up to STREAM_ROWS rows (forms.py). Moves B once, at the speed of memory. BLAS: gemv without
transposition. Halide: reorder k outside of the columns, compute_at the columns.
"""

from __future__ import annotations

from polytile.matmul.cpp import unroll
from polytile.matmul.cpp.common import MAC, entry, head
from polytile.matmul.cpp.forms import stream_depth
from polytile.matmul.cpp.spec import GemmConfig, GemmSpec

CONSTANTS = """\
constexpr long MR = {mr}, NC = {nc}, KC = {kc};
"""

WORK = """\
struct Call { Problem p; };
static inline long most_threads(const Problem& p) { return p.batch * ceil_div(p.n, L); }
static bool open(Call&) { return true; }
static void close(Call&) {}

// Rows [m, m + rows) x columns [n, n + cols) over the whole of K, then the epilogue. No sum is of more than KC products in a row:
// where K is longer, partial sums are added up.
static void block(const Problem& p, long item, long m, long rows, long n, long cols) {
  alignas(64) T sums[MR * NC], totals[MR * NC];
  const long padded = ceil_div(cols, L) * L, count = rows * padded, u = DEPTH[rows];
  for (long k = 0, first = 1; first || k < p.k; first = 0) {
    const long end = k + least(KC, p.k - k);
    for (long i = 0; i < count; i += L) store(sums + i, V{});
    for (; k + u <= end; k += u)
      UPDATE[rows](a_of(p, item, m, k), p.a_m, p.a_k, b_of(p, item, k, n), p.b_k, cols, sums, padded);
    for (; k < end; ++k)
      UPDATE_ONE[rows](a_of(p, item, m, k), p.a_m, p.a_k, b_of(p, item, k, n), p.b_k, cols, sums, padded);
    if (p.k > KC)
      for (long i = 0; i < count; i += L) store(totals + i, first ? load(sums + i) : load(totals + i) + load(sums + i));
  }
  finish(p, item, m, n, rows, cols, p.k > KC ? totals : sums, padded);
}

static void work(const Call& c, long thread, long threads) {
  const Problem& p = c.p;
  const Team team = team_of(p, thread, threads);
  const long vectors = ceil_div(p.n, L), blocks = ceil_div(p.m, MR);
  const long n0 = vectors * team.rank / team.size * L, n1 = least(p.n, vectors * (team.rank + 1) / team.size * L);
  if (team.index >= team.teams) return;
  for (long item = team.index; item < p.batch; item += team.teams)
    for (long n = n0; n < n1; n += NC)
      for (long t = 0, m = 0, rows; t < blocks; ++t, m += rows) {
        rows = p.m / blocks + (t < p.m % blocks);
        block(p, item, m, rows, n, least(NC, n1 - n));
      }
}
"""


def generate(spec: GemmSpec, config: GemmConfig, name: str, epilogue: str | None, lanes: int, beside_at: int = 2) -> str:
    """The translation unit of the stream form, without the prelude. B has b_stride_n == 1; A may have any strides."""
    depths = {rows: stream_depth(rows, config.unroll) for rows in range(1, config.mr + 1)}
    kernels = {(rows, u) for rows, d in depths.items() for u in (d, 1)}
    members = ", ".join(f"update{rows}x{d}" for rows, d in depths.items())
    tables = (
        "typedef void (*Update)(const S*, long, long, const SB*, long, long, T*, long);\n"
        + f"static const long DEPTH[MR + 1] = {{1, {', '.join(map(str, depths.values()))}}};\n"
        + f"static const Update UPDATE[MR + 1] = {{nullptr, {members}}};\n"
        + f"static const Update UPDATE_ONE[MR + 1] = {{nullptr, {', '.join(f'update{r}x1' for r in depths)}}};\n"
    )
    return "".join(
        (
            head(spec, config, epilogue, lanes, f"gemm {config}: A {spec.dtype} {spec.a_layout}, B {spec.b_layout}"),
            MAC,
            CONSTANTS.format(mr=config.mr, nc=max(config.nc // lanes, 1) * lanes, kc=min(config.kc, unroll.CHAIN)),
            "".join(unroll.update(rows, u) for rows, u in sorted(kernels)),
            tables,
            WORK,
            entry(name, spec, beside_at),
        )
    )
