"""Forms tile_packed, tile_direct, tile_prepacked, splitk and small: register tiles over row blocks and column panels.

tile_packed copies B into panels of NR columns inside the call (all threads of a team together), tile_direct reads B
where it lies, tile_prepacked reads panels that were made before the call (panels.py), splitk gives each thread a range of K and
adds the partial sums at the end, small keeps one panel on the stack.

    c[m, n] = sum(a[m, k] * b[k, n])   →   for blocks of K: for blocks of rows, panels of NR columns: (B's panel is copied)
                                               for tiles of MR rows: for k: acc[MR, NR] += a[rows, k] * b[k, panel]
                                           c[tile] = epilogue(acc)

Legal as forms.py says. Moves A once per block of columns and B once per block of rows; blocks are as large as caches hold. Costs
the copies of B (tile_packed, splitk), its strides (tile_direct), or memory for the panels (tile_prepacked); splitk also costs
splits × M × N partial sums. BLIS, GotoBLAS: the five loops around a micro-kernel; oneDNN: brgemm on packed or plain weights.
Halide, TVM: tile, with a packed layout of B; rfactor for splitk.
"""

from __future__ import annotations

from polytile.matmul.cpp import amx, common, int8, packing, register_tile, shared_tiles, side_by_side, unroll
from polytile.matmul.cpp.common import MAC, PAIRS, entry, head
from polytile.matmul.cpp.packing import packs_a, packs_b, transposed_rows
from polytile.matmul.cpp.register_tile import Access, Tile
from polytile.matmul.cpp.spec import NIBBLES_TOGETHER, GemmConfig, GemmSpec, k_per_lane, widens
from polytile.matmul.cpp.unroll import CHAIN

CONSTANTS = """\
constexpr long MR = {mr}, NV = {nv}, NR = NV * L, STEP = {step}, KC = {kc}, MC = {mc}, NC = {nc}, GROUP = {group};
constexpr long WHOLE = {whole};                      // a block of K is as many whole groups of so many steps
constexpr long HEAD = {head};                      // steps before those of a tile of A: what its sums begin at
constexpr bool PACK_A = {pack_a}, PACK_B = {pack_b}, KEPT = {prepacked}, RAGGED = {ragged};
constexpr long KEPT_AT = {panels_at};                // where among the pointers kept panels are
// Columns before the ragged vector of a panel that are copied with it.
static inline long copied_before(long cols) {{ return RAGGED && cols > NR - L ? cols / L * L : 0; }}
"""

TYPES = """\
typedef {pa} PA;                                   // A and B as the register tile reads them
typedef {pb} PB;
"""

BLOCK = """\
// Elements from one vector of columns of kept panels to the next.
static inline long kept_vector(const Problem& p) { return ceil_div(p.k, STEP) * L; }
{kept_panels}

// Rows [m0, m1) x columns [n0, n1) of one item over one depth of K. `panels` holds B from column n0 on; sums that are
// not `first` add to `partial` (origin m0, n0); those that are not `last` stay there.
struct Block { long item, m0, m1, n0, n1, from, steps; bool first, last; const PB* panels; T* partial; long stride; };

// Elements from one vector of columns of this block's panels to the next.
static inline long vector_of(const Problem& p, const Block& q) { return KEPT ? kept_vector(p) : q.steps * L; }
"""

KEPT_PANELS = "static inline PB* kept_panels(const Problem& p) { return (PB*)p.ptrs[KEPT_AT]; }"
KEPT_PANELS_OF_GROUP = """\
// Kept panels from this part's columns on: those of one matrix follow those of the one before.
static inline PB* kept_panels(const Problem& p) {
  return (PB*)p.ptrs[KEPT_AT] + (p.matrix * ceil_div(p.sizes[2], L) + p.column / L) * kept_vector(p);
}"""

COMPUTE = """\
{with_scales}
static void multiply(const Problem& p, const Block& q, const PA* a, long a_m, long a_k, long m, long rows, long n,
                     long cols, const PB* packed, Next next) {
  alignas(64) T scratch[MR * NR];
  T* out = scratch;
  long stride = NR;
  const bool once = q.first && q.last;
  O* place = once && cols == NR ? in_place(p, q.item, m, n) : nullptr;
  if (place) out = (T*)place, stride = p.sizes[11];
  else if (!once) out = q.partial + (m - q.m0) * q.stride + (n - q.n0), stride = q.stride;
  constexpr bool PANELS = PACK_B || KEPT;          // end in whole vectors
  const PB* b = PANELS ? packed : (const PB*)b_of(p, q.item, q.from, n);
  const long b_k = PACK_B ? NR : KEPT ? kept_vector(p) : p.b_k, b_j = KEPT ? b_k : L;
  const long whole = PANELS ? ceil_div(cols, L) : cols / L, rest = PANELS ? 0 : cols % L;
  const long steps = PANELS ? q.steps : least(STEP * q.steps, p.k - q.from);  // in place B is counted by its rows
  const Next wide = with_scales(p, q, next, n, cols);
  if (whole == NV) WIDE[rows](a, a_m, a_k, b, b_k, steps, out, stride, !q.first, wide);
  else if (rest && copied_before(cols)) WIDE[rows](a, a_m, a_k, packed, NR, steps, out, stride, !q.first, wide);
  else {
    for (long j = 0; j < whole; ++j)
      NARROW[rows](a, a_m, a_k, b + j * b_j, b_k, steps, out + j * L, stride, !q.first,
                   with_scales(p, q, next, n + j * L, cols - j * L));
    if (rest)
      NARROW[rows](a, a_m, a_k, packed, L, steps, out + whole * L, stride, !q.first,
                   with_scales(p, q, next, n + whole * L, rest));
  }
  if (q.last && !place) finish(p, q.item, m, n, rows, cols, out, stride);
}

// What tile `t` of `count` fetches of the panel at `after`, which all of them share: a part of one of its vectors.
static inline Next next_of(const Problem& p, const Block& q, const PA* a, const PB* after, long t, long count) {
  const long sharers = count / NV > 1 ? count / NV : 1, j = t / sharers, pace = L * sizeof(PB) / sharers;
  if (!after || j >= NV) return {(const char*)a, 0};
  return {(const char*)(after + j * vector_of(p, q)) + t % sharers * q.steps * pace, pace};
}

static inline long padded_rows(long rows) { return rows; }
// Elements of the memory of a thread for tiles of A.
static inline long tile_space(const Problem& p, long depth) {
  return PACK_A ? (HEAD + depth) * least(MC, p.m) + GROUP + L : 0;
}

static void compute(const Problem& p, const Block& q, PA* tiles) {
  for (long m = q.m0; m < q.m1; m += MC) {
    const long rows = least(MC, q.m1 - m), count = ceil_div(rows, MR), base = rows / count, extra = rows % count;
    if (PACK_A)
      for (long t = 0, i = 0, r; t < count; ++t, i += r) {
        PA* tile = tiles + i * (HEAD + q.steps);
        r = base + (t < extra), pack_a(p, q.item, m + i, r, q.from, q.steps, tile + HEAD * r);
        if (HEAD) correct(tile, r, q.steps);
      }
    for (long n = q.n0; n < q.n1; n += NR) {
      const PB* panel = q.panels;
      const PB* after = nullptr;                   // the next panel; behind the last one comes the first, for more rows
      if (PACK_B || KEPT) {
        panel += (n - q.n0) / L * vector_of(p, q);
        after = n + NR < q.n1 ? panel + NV * vector_of(p, q) : m + MC < q.m1 ? q.panels : nullptr;
      }
      for (long t = 0, i = 0, r; t < count; ++t, i += r) {
        r = base + (t < extra);
        const PA* a = PACK_A ? tiles + i * (HEAD + q.steps) : (const PA*)a_of(p, q.item, m + i, q.from);
        multiply(p, q, a, p.a_m, PACK_A ? r : p.a_k, m + i, r, n, least(NR, q.n1 - n), panel,
                 next_of(p, q, a, after, t, count));
      }
    }
  }
}
"""

NO_SCALES = "static inline Next with_scales(const Problem&, const Block&, Next next, long, long) { return next; }\n"
WITH_SCALES = """\
// The scales of `columns` columns from n on, of this block's first group.
static inline Next with_scales(const Problem& p, const Block& q, Next next, long n, long columns) {{
  const long first = q.from / {group} * p.n + n;
  next.scales = (const float*)p.ptrs[{scales_at}] + first, next.zeros = {zeros};
  next.apart = p.n, next.columns = columns;
  return next;
}}
"""

# Workspace: per team one or two blocks of panels (two where a team packs together: it packs one while the other is
# read) and, where K takes several depths, the partial sums; per thread packed tiles of A or the ragged last vector of
# B.
TILE_WORK = """\
constexpr long PARTIAL_SUMS = 2 << 20;             // bounds the rows that keep partial sums at a time
constexpr long BLOCK_OF_A = 448 << 10;             // bytes of A that stay near while kept panels pass by

struct Call {
  Problem p;
  long depth, width, height, block, buffers, tile_block;
  PB* panels; T* partial; PA* tiles; char* memory;
};
static inline long most_threads(const Problem& p) { return p.batch * ceil_div(p.m, MR) * ceil_div(p.n, NR); }
static inline long padded(long bytes) { return (bytes + 4159) / 64 * 64; }

static bool open(Call& c) {
  const Problem& p = c.p;
  const long rows = least(MC, p.m), deepest = least(KC / STEP, KEPT && !PACK_A ? BLOCK_OF_A / (rows * sizeof(PA)) : KC);
  const long steps = ceil_div(p.k, STEP), depths = steps > deepest ? ceil_div(steps, deepest) : 1;
  const long teams = least(p.threads, p.batch);
  c.depth = steps ? ceil_div(ceil_div(steps, depths), WHOLE) * WHOLE : 1;
  c.width = least(NC, ceil_div(p.n, NR) * NR);
  c.height = depths > 1 ? least(padded_rows(p.m), ceil_div(PARTIAL_SUMS / c.width, MC) * MC) : p.m;
  c.buffers = p.threads > teams ? 2 : 1;
  c.block = c.depth * (c.width + (p.threads / teams - 1) * NR);
  c.tile_block = tile_space(p, c.depth);
  const long panels = KEPT ? 0 : padded((PACK_B ? teams * c.buffers * c.block : p.threads * c.depth * STEP * L) * sizeof(PB));
  const long partial = depths > 1 ? padded(teams * c.height * c.width * sizeof(T)) : 0;
  c.memory = (char*)malloc(panels + partial + padded(p.threads * c.tile_block * sizeof(PA)) + 64);
  c.panels = (PB*)(((unsigned long)c.memory + 63) / 64 * 64);
  c.partial = (T*)((char*)c.panels + panels);
  c.tiles = (PA*)((char*)c.partial + partial);
  return c.memory;
}
static void close(Call& c) { free(c.memory); }

// A thread's place in the grid of its team (row of row_count, col of col_count) and its rows and columns of one block.
struct Share { long row, row_count, col, col_count, m0, m1, n0, n1; };

static Share share_of(const Team& team, long row_count, long m, long rows, long n, long cols) {
  const long panels = ceil_div(cols, NR), tiles = ceil_div(rows, MR), col_count = team.size / row_count;
  const long row = team.rank % row_count, col = team.rank / row_count;
  return {row, row_count, col, col_count,
          m + least(rows, tiles * row / row_count * MR), m + least(rows, tiles * (row + 1) / row_count * MR),
          n + least(cols, panels * col / col_count * NR), n + least(cols, panels * (col + 1) / col_count * NR)};
}

// The threads of one column of the grid copy its panels together, each a range of the steps.
static void pack_share(const Problem& p, const Share& s, long item, long from, long depth, PB* block) {
  const long blocks = depth / L, q0 = blocks * s.row / s.row_count * L;
  const long q1 = s.row + 1 < s.row_count ? blocks * (s.row + 1) / s.row_count * L : depth;
  for (long n = s.n0; n < s.n1; n += NR, block += NR * depth)
    pack_b(p, item, n, least(NR, s.n1 - n), from + q0 * STEP, q1 - q0, block + q0 * NR);
}

// One thread's part of one block, depth after depth: copy, wait for the team where panels are shared, multiply.
static void part(const Call& c, const Team& team, const Share& s, bool active, long thread, long item, long turn,
                 T* partial) {
  const Problem& p = c.p;
  const long steps = ceil_div(p.k, STEP), own = ceil_div(c.width / NR, s.col_count) * NR * c.depth;
  for (long q = 0; q == 0 || q < steps; q += c.depth, ++turn) {
    const long depth = least(c.depth, steps - q), from = q * STEP;
    PB* block = c.panels;                          // a column's panels lie at one place in every block
    if (KEPT) block = kept_panels(p) + s.n0 / L * kept_vector(p) + q * L;
    else if (PACK_B) block += (team.index * c.buffers + turn % c.buffers) * c.block + s.col * own;
    else block += thread * c.depth * STEP * L;
    if (PACK_B && active) pack_share(p, s, item, from, depth, block);
    if (PACK_B && s.row_count > 1) GOMP_barrier();
    if (!active || s.m0 >= s.m1 || s.n0 >= s.n1) continue;
    if (!PACK_B && !KEPT) pack_b(p, item, s.n1 - (s.n1 - s.n0) % L, (s.n1 - s.n0) % L, from, depth, block);
    compute(p, {item, s.m0, s.m1, s.n0, s.n1, from, depth, q == 0, q + depth >= steps, block, partial, c.width},
            c.tiles + thread * c.tile_block);
  }
}

static void work(const Call& c, long thread, long threads) {
  const Problem& p = c.p;
  const Team team = team_of(p, thread, threads);
  const long depths = p.k ? ceil_div(ceil_div(p.k, STEP), c.depth) : 1;
  const long row_count = row_parts(ceil_div(c.height, MR), c.width / NR, team.size);
  long turn = 0;
  for (long round = 0; round < team.rounds; ++round) {
    const long item = round * team.teams + team.index;
    for (long m = 0; m < p.m; m += c.height)
      for (long n = 0; n < p.n; n += c.width, turn += depths) {
        if (turn && depths > 1 && team.size > 1) GOMP_barrier();   // partial sums change owners between blocks
        const Share s = share_of(team, row_count, m, least(c.height, p.m - m), n, least(c.width, p.n - n));
        const bool active = team.index < team.teams && item < p.batch && s.col < s.col_count;
        T* partial = c.partial + (team.index * c.height + s.m0 - m) * c.width + s.n0 - n;
        part(c, team, s, active, thread, item, turn, partial);
      }
  }
}
"""

SPLITK_WORK = """\
struct Call { Problem p; long depth, width, stride; PB* panels; T* partial; PA* tiles; long tile_block; char* memory; };
static inline long most_threads(const Problem& p) { return least(p.threads, ceil_div(p.k, 4 * STEP) + !p.k); }
static inline long padded(long bytes) { return (bytes + 4159) / 64 * 64; }

static bool open(Call& c) {
  const Problem& p = c.p;
  c.depth = least(KC / STEP, ceil_div(p.k, STEP));
  c.stride = ceil_div(p.n, NR) * NR;
  c.width = least(NC, c.stride);
  c.tile_block = tile_space(p, c.depth);
  const long panels = padded(p.threads * c.depth * c.width * sizeof(PB));
  const long partial = padded(p.threads * p.m * c.stride * sizeof(T));
  c.memory = (char*)malloc(panels + partial + p.threads * c.tile_block * sizeof(PA) + 64);
  c.panels = (PB*)(((unsigned long)c.memory + 63) / 64 * 64);
  c.partial = (T*)((char*)c.panels + panels);
  c.tiles = (PA*)((char*)c.partial + partial);
  return c.memory;
}
static void close(Call& c) { free(c.memory); }

// This thread's steps [s0, s1) of one item, all rows and columns, into its own partial sums.
static void part(const Call& c, long thread, long item, long s0, long s1) {
  const Problem& p = c.p;
  PB* panels = c.panels + thread * c.depth * c.width;
  for (long n = 0; n < p.n; n += c.width) {
    const long cols = least(c.width, p.n - n);
    for (long s = s0; s < s1; s += c.depth) {
      const long depth = least(c.depth, s1 - s);
      for (long j = 0; j < cols; j += NR)
        pack_b(p, item, n + j, least(NR, cols - j), s * STEP, depth, panels + j * depth);
      T* partial = c.partial + thread * p.m * c.stride + n;
      compute(p, {item, 0, p.m, n, n + cols, s * STEP, depth, s == s0, false, panels, partial, c.stride},
              c.tiles + thread * c.tile_block);
    }
  }
}

static void work(const Call& c, long thread, long threads) {
  const Problem& p = c.p;
  const long steps = ceil_div(p.k, STEP), parts = least(threads, steps);
  for (long item = 0; item < p.batch; ++item) {
    if (item && threads > 1) GOMP_barrier();
    if (thread < parts) part(c, thread, item, steps * thread / parts, steps * (thread + 1) / parts);
    if (threads > 1) GOMP_barrier();
    for (long m = p.m * thread / threads; m < p.m * (thread + 1) / threads; ++m)
      for (long n = 0; n < p.n; n += L) {
        V sum = {};
        for (long t = 0; t < parts; ++t) sum += load(c.partial + (t * p.m + m) * c.stride + n);
        emit(p, item, m, n, sum, least(L, p.n - n));
      }
  }
}
"""

SMALL_WORK = """\
constexpr long WIDTH = PACK_B || RAGGED ? NR : L;   // columns of the one panel of a thread

struct Call { Problem p; long panel; PB* panels; };
static inline long most_threads(const Problem& p) { return p.batch * ceil_div(p.n, NR); }

static bool open(Call& c) {
  c.panel = ceil_div(c.p.k, STEP) * WIDTH;
  c.panels = c.p.k <= KC ? nullptr : (PB*)malloc(c.p.threads * c.panel * sizeof(PB));
  return c.p.k <= KC || c.panels;
}
static void close(Call& c) { free(c.panels); }

// Each thread takes whole panels; one panel (direct: its ragged last vector) lies on the stack while K fits KC.
static void work(const Call& c, long thread, long threads) {
  const Problem& p = c.p;
  alignas(64) PB on_stack[KC / STEP * WIDTH];
  const long panels = ceil_div(p.n, NR), units = p.batch * panels, steps = ceil_div(p.k, STEP);
  PB* panel = c.panels ? c.panels + thread * c.panel : on_stack;
  for (long unit = units * thread / threads; unit < units * (thread + 1) / threads; ++unit) {
    const long item = unit / panels, n = unit % panels * NR, cols = least(NR, p.n - n);
    pack_b(p, item, n, cols, 0, steps, panel);
    compute(p, {item, 0, p.m, n, n + cols, 0, steps, true, true, panel, nullptr, 0}, nullptr);
  }
}
"""

# Measured on Zen 5 with weights in DRAM: 4 steps ahead is 5-15 % faster than none at M = 4..32 and costs nothing with
# weights in L2/L3; 8 and 16 steps gain more from DRAM at M = 8 but lose 10-25 % from L3.
PREFETCH_STEPS = 4

ACCESS: dict[str, Access] = {"k": "rows", "m": "cols", "any": "both"}
"""How a register tile reads an A that is not packed, by its layout."""

WORK = {
    **dict.fromkeys(("tile_packed", "tile_direct", "tile_prepacked"), TILE_WORK), "splitk": SPLITK_WORK, "small": SMALL_WORK,
}  # fmt: skip


def generate(
    spec: GemmSpec, config: GemmConfig, name: str, epilogue: str | None, lanes: int, panels_at: int = 0, scales_at: int = 2
) -> str:
    """The translation unit of one of the tile forms, without the prelude. `panels_at` and `scales_at`: the positions of prepacked
    panels and of the scales of groups among the pointers."""
    zeros = f"(const float*)p.ptrs[{scales_at + 1}] + first" if spec.zeros else "nullptr"
    scaled = spec.group > 0 and not widens(spec, config)
    scales = WITH_SCALES.format(scales_at=scales_at, group=spec.group, zeros=zeros) if scaled else NO_SCALES
    return "".join(
        (
            "" if config.amx else _shared(spec, config, lanes),
            head(spec, config, epilogue, lanes, f"gemm {config}: A {spec.dtype} {spec.a_layout}, B {spec.b_layout}"),
            _constants(spec, config, lanes, panels_at),
            _types(spec, config),
            _products(spec, config),
            packing.functions(spec, config, lanes, scales_at),
            *_micro_kernel(spec, config, scales),
            amx.entry(entry(name, spec, scales_at)) if config.amx else entry(name, spec, scales_at),
        )
    )


def _micro_kernel(spec: GemmSpec, config: GemmConfig, scales: str) -> tuple[str, ...]:
    """From a block of A and panels of B to finished sums, and how threads divide a call."""
    block = BLOCK.replace("{kept_panels}", KEPT_PANELS_OF_GROUP if spec.grouped else KEPT_PANELS)
    if config.amx:
        return block, amx.functions(spec, config), WORK[config.form].replace("void work(", "void work_blocks("), amx.WORK
    called = register_tile.next_of(_register_tile(spec, config)) + register_tile.TYPE
    called += shared_tiles.tables_of("Tile", ("WIDE", "NARROW"))
    return called, block, COMPUTE.replace("{with_scales}", scales), WORK[config.form]


def _shared(spec: GemmSpec, config: GemmConfig, lanes: int) -> str:
    """The register tiles, with all that they need."""
    tile, step = _register_tile(spec, config), k_per_lane(spec, config)
    text, tables = register_tile.tiles(tile)
    needed = [common.vectors(spec, lanes), common.operands(spec, lanes), _types(spec, config), _products(spec, config)]
    if tile.scaled:
        needed.append(common.parts_of_vectors(spec, lanes))
    if tile.in_place > 1:
        together = side_by_side.whole(step, tile.nv)
        needed += [f"constexpr long NV = {tile.nv};\n", packing.elements(spec, config)]
        needed += [unroll.SHUFFLE_MACRO, side_by_side.function(step, lanes)] if together else []
    return shared_tiles.part(f"tiles_{tile.mr}x{tile.nv}", "".join((*needed, text)), tables)


def _products(spec: GemmSpec, config: GemmConfig) -> str:
    """The multiply-add."""
    return int8.MAC if spec.dtype == "int8" else PAIRS if config.pairs else MAC


def _types(spec: GemmSpec, config: GemmConfig) -> str:
    packed, tiled_a = "unsigned" if config.pairs else "T", packs_a(spec, config)
    panelled_b = packs_b(spec, config) or _reads_kept(spec, config)
    return TYPES.format(pa=packed if tiled_a or config.amx else "S", pb=packed if panelled_b else "SB")


def _register_tile(spec: GemmSpec, config: GemmConfig) -> Tile:
    prepacked, direct = _reads_kept(spec, config), config.form == "tile_direct"
    access: Access = "cols" if packs_a(spec, config) else ACCESS[spec.a_layout]
    group = 0 if widens(spec, config) else spec.group
    return Tile(
        config.mr,
        config.nv,
        access,
        config.unroll,
        ahead=PREFETCH_STEPS if direct else 0,
        head=spec.dtype == "int8",
        prepacked=prepacked,
        in_place=k_per_lane(spec, config) if direct else 1,
        next_panel=prepacked or packs_b(spec, config),
        chain=group or (CHAIN if spec.dtype == spec.accumulator and spec.dtype != "int8" else 0),
        scaled=group > 0,
        zeros=group > 0 and spec.zeros,
    )


def _reads_kept(spec: GemmSpec, config: GemmConfig) -> bool:
    """Whether tiles read the panels that were made before the call."""
    return config.form == "tile_prepacked" and not widens(spec, config)


def _constants(spec: GemmSpec, config: GemmConfig, lanes: int, panels_at: int) -> str:
    """The numbers and types of a unit; blocks are whole tiles."""
    tiled_a, panelled_b, prepacked = packs_a(spec, config), packs_b(spec, config), _reads_kept(spec, config)
    return CONSTANTS.format(
        group=transposed_rows(config),
        mr=config.mr,
        nv=config.nv,
        step=k_per_lane(spec, config),
        head=int(spec.dtype == "int8"),
        whole=_whole_steps(spec, config),
        kc=config.kc,
        mc=max(config.mc // config.mr, 1) * config.mr,
        nc=max(config.nc // (config.nv * lanes), 1) * config.nv * lanes,
        pack_a=str(tiled_a).lower(),
        pack_b=str(panelled_b).lower(),
        prepacked=str(prepacked).lower(),
        ragged=str(config.form == "small" and not panelled_b and config.nv > 1).lower(),
        panels_at=panels_at,
    )


def _whole_steps(spec: GemmSpec, config: GemmConfig) -> int:
    """How many steps a block of K is a multiple of: those of a group whose sums are scaled, those of a word of 4-bit numbers."""
    if config.amx:
        return amx.STEPS
    if widens(spec, config):
        return 1 if spec.nibbles_from is None else NIBBLES_TOGETHER // k_per_lane(spec, config)
    return spec.group or 1
