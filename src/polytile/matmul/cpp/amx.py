"""The micro-kernel of AMX: tiles of 16 rows by 64 bytes in registers of their own, in place of the register tile's vectors.

A tile of B is 16 steps of one vector of columns (a step is what a lane holds: two bfloat16 or four int8), just as panels
have them. A tile of A is 64 bytes along k of up to 16 rows, read where A lies if its k is contiguous. One instruction
multiplies the two and adds 16 x 16 sums. Of the eight registers four hold sums, two hold tiles of A and two tiles of B.

All tiles of a call have one shape, since setting it takes as long as 10 products. It has the rows of A, if they are less
than 16. Rows that are left over are copied and padded with zeros, and so is an A whose k is not contiguous or ends within
a tile.

Panels of int8 are unsigned (int8.py), as for VNNI. The sums of a row then begin at -128 times the sum of the row of A.
"""

from __future__ import annotations

from polytile.matmul.cpp import unroll
from polytile.matmul.cpp.spec import GemmConfig, GemmSpec

FLAGS = {"bfloat16": "amx_bf16", "int8": "amx_int8"}
"""Types that the instructions multiply, and the processor's flag for each."""
FORMS = ("tile_packed", "tile_prepacked")
"""Forms that have such a micro-kernel: those that copy B into panels."""
HEIGHT, STEPS, LANES = 16, 16, 16
"""Rows, steps and columns of a tile."""
INSTRUCTION = {"bfloat16": "tdpbf16ps", "int8": "tdpbsud"}
A, B = (4, 5), (6, 7)
"""Registers of the tiles of A and of B; those before hold sums."""

SHAPE = """\
constexpr long HEIGHT = 16, STEPS = 16;              // rows and steps of a tile
struct alignas(64) Shape { unsigned char palette, start, none[14]; unsigned short bytes[16]; unsigned char rows[16]; };
static inline long height_of(const Problem& p) { return least(HEIGHT, p.m); }
static void set_shape(long height) {
  Shape shape = {};
  shape.palette = 1;
  for (int i = 0; i < 8; ++i) shape.bytes[i] = 64, shape.rows[i] = i < 6 ? height : STEPS;
  asm volatile("ldtilecfg %0" ::"m"(shape));
}
// Where tiles of an operand are: the first one, and the bytes to its next row and to the tile of the next steps.
struct Tiles { const char* at; long row, next; };
"""

COPY_A = """\
// rows x steps of A as tiles, one after the other along k, with zeros up to whole tiles of `height` rows and in the last one.
static void copy_a(const Problem& p, long item, long m, long rows, long height, long from, long steps, PA* out) {
  const S* a = a_of(p, item, m, from);
  const long padded = ceil_div(rows, height) * height, whole = least(steps, (p.k - from) / STEP);
  for (long q = 0; q < steps; q += STEPS, out += padded * STEPS) {
    long i = 0;
{by_vectors}    for (; i < padded; ++i)
      for (long s = 0; s < STEPS; ++s) {
        const S* e = a + i * p.a_m + STEP * (q + s) * p.a_k;
        out[i * STEPS + s] = i < rows && q + s < steps ? element(e, p.a_k, p.k - from - STEP * (q + s)) : PA{};
      }
  }
}
"""
ROWS_ALONG_K = """\
    if (q + STEPS <= whole)
      for (; i < rows; ++i) store(out + i * STEPS, steps_of(a + i * p.a_m + STEP * q));
"""
ROWS_ALONG_M = """\
    if (q + STEPS <= whole)
      for (; i + L <= rows; i += L) {
        V block[L];
        for (long s = 0; s < L; ++s) block[s] = columns(a + i + STEP * (q + s) * p.a_k, p.a_k, STEP);
        transpose(block);
        for (long s = 0; s < L; ++s) store(out + (i + s) * STEPS, block[s]);
      }
"""

NO_SUMS = "static void begin_at(const Tiles&, long, long, T*) {}\n"
SUMS = """\
// What the sums of `rows` rows of A begin at.
static void begin_at(const Tiles& a, long rows, long steps, T* out) {
  for (long i = 0; i < rows; ++i) {
    V sums = {};
    for (long q = 0; q < steps; q += STEPS) sums -= product_with_128(load((const T*)(a.at + i * a.row + q / STEPS * a.next)));
    T total = 0;
    for (long j = 0; j < L; ++j) total += sums[j];
    out[i] = total;
  }
}
"""

COMPUTE = """\
static inline long padded_rows(long rows) { return ceil_div(rows, MR) * MR; }
// Elements of the memory of a thread for tiles of A, and behind them what sums begin at.
static inline long tile_space(const Problem& p, long depth) {
  return padded_rows(least(MC, p.m)) * (ceil_div(depth, STEPS) * STEPS + HEAD);
}

// Rows [m, m + rows) x columns [n, n + cols) over the depth of `q`; `panel` holds B from column n on, `start` what sums begin at.
static void multiply(const Problem& p, const Block& q, const Tiles& a, const T* start, long m, long rows, long n, long cols,
                     const PB* panel, Next next) {
  alignas(64) T scratch[MR * NR];
  T* out = scratch;
  long stride = NR;
  const long height = height_of(p), vectors = ceil_div(cols, L), apart = PACK_B ? L : kept_vector(p);
  const bool once = q.first && q.last;
  bool add = !q.first;
  O* place = once && cols == NR && rows % height == 0 ? in_place(p, q.item, m, n) : nullptr;
  if (place) out = (T*)place, stride = p.sizes[11];
  else if (!once) out = q.partial + (m - q.m0) * q.stride + (n - q.n0), stride = q.stride;
  if (HEAD) {
    for (long i = 0; i < rows; ++i)
      for (long j = 0; j < vectors; ++j) {
        T* at = out + i * stride + j * L;
        store(at, add ? load(at) + broadcast(start[i]) : broadcast(start[i]));
      }
    add = true;
  }
  const long row = (PACK_B ? NR : L) * sizeof(PB);
  const Tiles b = {(const char*)panel, row, STEPS * row};
  const bool two = rows > height;
  if (vectors == NV) (two ? WIDE2 : WIDE1)(a, b, apart * sizeof(PB), q.steps, out, stride, add, next);
  else
    for (long j = 0; j < vectors; ++j)
      (two ? NARROW2 : NARROW1)(a, {b.at + j * apart * sizeof(PB), b.row, b.next}, 0, q.steps, out + j * L, stride, add, next);
  if (q.last && !place) finish(p, q.item, m, n, rows, cols, out, stride);
}

static void compute(const Problem& p, const Block& q, PA* memory) {
  const long height = height_of(p), depth = ceil_div(q.steps, STEPS) * STEPS;
  const bool in_memory = !PACK_A && p.a_k == 1 && q.steps % STEPS == 0 && STEP * q.steps <= p.k - q.from;
  Tiles tiles[MC / MR];
  for (long m = q.m0; m < q.m1; m += MC) {
    const long rows = least(MC, q.m1 - m), count = ceil_div(rows, MR);
    T* starts = (T*)(memory + count * MR * depth);
    for (long t = 0; t < count; ++t) {
      const long i = t * MR, r = least(MR, rows - i), padded = ceil_div(r, height) * height;
      if (in_memory && r % height == 0) {
        tiles[t] = {(const char*)a_of(p, q.item, m + i, q.from), p.a_m * (long)sizeof(S), STEPS * sizeof(PA)};
      } else {
        copy_a(p, q.item, m + i, r, height, q.from, q.steps, memory + i * depth);
        tiles[t] = {(const char*)(memory + i * depth), STEPS * sizeof(PA), padded * STEPS * (long)sizeof(PA)};
      }
      begin_at(tiles[t], r, q.steps, starts + i);
    }
    const long lines = KEPT ? ceil_div(NV * STEPS, count) : 0;   // panels that were just copied are near
    for (long n = q.n0; n < q.n1; n += NR) {
      const PB* panel = q.panels + (n - q.n0) / L * vector_of(p, q);
      const PB* after = n + NR < q.n1 ? panel + NV * vector_of(p, q) : q.panels;
      for (long t = 0; t < count; ++t) {
        const long i = t * MR, vector = t * NV / count, before = t - ceil_div(vector * count, NV);
        const char* share = (const char*)(after + vector * vector_of(p, q)) + before * lines * depth / STEPS * 64;
        multiply(p, q, tiles[t], starts + i, m + i, least(MR, rows - i), n, least(NR, q.n1 - n), panel, {share, lines});
      }
    }
  }
}
"""

PERMITTED = """\
constexpr long DECLINED = -__LONG_MAX__ - 1;       // what a call answers that may not use tiles, and so has done nothing
// Whether the process may use tiles, for which it has to ask.
static bool permitted() {
  static bool granted = false;
  if (!granted) {
    long refused;
    asm volatile("syscall" : "=a"(refused) : "a"(158L), "D"(0x1023L), "S"(18L) : "rcx", "r11", "memory");
    granted = refused == 0;
  }
  return granted;
}
"""
OPENING = "  using namespace gemm;\n"
DENIED = (
    "multiplies by AMX's tiles, which Linux denies this process now: let a sandbox that was set up after polytile was imported "
    "permit the system call arch_prctl(ARCH_REQ_XCOMP_PERM), or set it up before, and polytile multiplies by vectors."
)
"""What is wrong with a call that declines."""

WORK = """\
static void work(const Call& c, long thread, long threads) {
  set_shape(height_of(c.p));
  work_blocks(c, thread, threads);
  asm volatile("tilerelease");
}
"""
NEXT = """\
// Memory that a tile fetches into the second-level cache, and how many lines of it with each tile of A.
struct Next { const char* at; long lines; };
"""


def fits(spec: GemmSpec, config: GemmConfig, lanes: int) -> bool:
    """Whether there are such tiles for a product and its config."""
    paired = spec.dtype == "int8" or (spec.dtype == "bfloat16" and config.pairs)
    square = config.mr == HEIGHT or (config.mr == 2 * HEIGHT and config.nv <= 2)
    return paired and square and config.nv <= 4 and config.form in FORMS and lanes == LANES


def functions(spec: GemmSpec, config: GemmConfig) -> str:
    """The text from a block of A and panels of B to finished sums: `compute` and all that it calls."""
    vectors = ROWS_ALONG_K if spec.a_layout == "k" else ROWS_ALONG_M if spec.a_layout == "m" else ""
    widths = sorted({config.nv, 1})
    heights = (1, 2) if config.mr > HEIGHT else (1,)
    text = PERMITTED + SHAPE + NEXT
    text += COPY_A.replace("{by_vectors}", vectors) + (SUMS if spec.dtype == "int8" else NO_SUMS)
    text += "".join(_tile(spec, height, width) for height in heights for width in widths)
    for height in (1, 2):
        own = min(height, heights[-1])
        text += f"static const auto WIDE{height} = tile{own}x{config.nv}, NARROW{height} = tile{own}x1;\n"
    return text + COMPUTE


def entry(text: str) -> str:
    """The exported function, which asks first whether it may use tiles."""
    return text.replace(OPENING, f"{OPENING}  if (!permitted()) return DECLINED;\n", 1)


def transposes_a(spec: GemmSpec) -> bool:
    """Whether copying A transposes blocks of it."""
    return spec.a_layout == "m"


def _load(register: int, at: str, row: str) -> str:
    return f'asm volatile("tileloadd (%0,%1,1), %%tmm{register}" ::"r"({at}), "r"({row}) : "memory");'


def _store(register: int, at: str, row: str) -> str:
    return f'asm volatile("tilestored %%tmm{register}, (%0,%1,1)" ::"r"({at}), "r"({row}) : "memory");'


def _tile(spec: GemmSpec, height: int, width: int) -> str:
    """The C++ function tile{height}x{width}: o (+)= A B for `height` tiles of rows and `width` vectors of columns."""
    sums = [
        (i * width + j, f"o + {i * HEIGHT} * stride + {j * LANES}") for i in range(height) for j in range(width)
    ]
    bytes_apart = "stride * sizeof(T)"
    signature = "const Tiles& a, const Tiles& b, long apart, long steps, T* o, long stride, bool add, Next next"
    copy = "store(&rest[j][s * L], load((const T*)(y + j * apart + s * b.row)));"
    return (
        f"static void tile{height}x{width}({signature}) {{\n"
        + unroll.lines(2, ["if (add) {", *(f"  {_load(c, at, bytes_apart)}" for c, at in sums)])
        + unroll.lines(2, ["} else {", *(f'  asm volatile("tilezero %tmm{c}");' for c, _ in sums), "}"])
        + unroll.lines(2, ["const char *x = a.at, *y = b.at;", "long q = 0;"])
        + unroll.lines(2, ["for (; q + STEPS <= steps; q += STEPS, x += a.next, y += b.next) {"])
        + unroll.lines(4, _products(spec, height, width, "y + {j} * apart", "b.row"))
        + unroll.lines(4, ["for (long i = 0; i < next.lines; ++i) __builtin_prefetch(next.at + 64 * i, 0, 2);"])
        + unroll.lines(4, ["next.at += 64 * next.lines;"])
        + unroll.lines(2, ["}", "if (q < steps) {                                // B's panels end within a tile"])
        + unroll.lines(4, [f"alignas(64) T rest[{width}][STEPS * L] = {{}};"])
        + unroll.lines(4, [f"for (long j = 0; j < {width}; ++j)", f"  for (long s = 0; s < steps - q; ++s) {copy}"])
        + unroll.lines(4, _products(spec, height, width, "&rest[{j}]", "64l"))
        + unroll.lines(2, ["}", *(_store(c, at, bytes_apart) for c, at in sums)])
        + "}\n"
    )


def _products(spec: GemmSpec, height: int, width: int, b: str, row: str) -> list[str]:
    """The products of the tiles at `x` and `b`, a format of the vector j, whose rows are `row` bytes apart."""
    statements = [_load(A[0], "x", "a.row")]
    for j in range(width):
        statements += [_load(B[j % 2], b.format(j=j), row), _multiply(spec, 0, j, width)]
    if height > 1:
        statements.append(_load(A[1], f"x + {HEIGHT} * a.row", "a.row"))
        statements += [_multiply(spec, 1, j, width) for j in range(width)]
    return statements


def _multiply(spec: GemmSpec, i: int, j: int, width: int) -> str:
    return f'asm volatile("{INSTRUCTION[spec.dtype]} %tmm{B[j % 2]}, %tmm{A[i]}, %tmm{i * width + j}");'
