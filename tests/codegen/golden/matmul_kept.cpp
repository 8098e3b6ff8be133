static void tile2x3(const PA* a, long a_m, long a_k, const PB* b, long b_k, long steps, T* o, long o_m, bool add, Next next) {
  const PA* a0 = a + 0 * a_m;
  const PA* a1 = a + 1 * a_m;
  for (long p = 0, end, first = 1; first || p < steps; first = 0, add = true) {
    end = least(p + 384, steps);
    V c0_0 = {}, c0_1 = {}, c0_2 = {};
    V c1_0 = {}, c1_1 = {}, c1_2 = {};
    for (; p < end; ++p) {
      const V b0 = load(b + 0 * b_k);
      const V b1 = load(b + 1 * b_k);
      const V b2 = load(b + 2 * b_k);
      { const V x = broadcast(value(a0[p])); mac(c0_0, x, b0); mac(c0_1, x, b1); mac(c0_2, x, b2); }
      { const V x = broadcast(value(a1[p])); mac(c1_0, x, b0); mac(c1_1, x, b1); mac(c1_2, x, b2); }
      __builtin_prefetch(next.at, 0, 2); next.at += next.pace;
      b += L;
    }
    if (add) {
      c0_0 += load(o + 0 * o_m + 0 * L);
      c0_1 += load(o + 0 * o_m + 1 * L);
      c0_2 += load(o + 0 * o_m + 2 * L);
      c1_0 += load(o + 1 * o_m + 0 * L);
      c1_1 += load(o + 1 * o_m + 1 * L);
      c1_2 += load(o + 1 * o_m + 2 * L);
    }
    store(o + 0 * o_m + 0 * L, c0_0);
    store(o + 0 * o_m + 1 * L, c0_1);
    store(o + 0 * o_m + 2 * L, c0_2);
    store(o + 1 * o_m + 0 * L, c1_0);
    store(o + 1 * o_m + 1 * L, c1_1);
    store(o + 1 * o_m + 2 * L, c1_2);
  }
}
static inline long kept_vector(const Problem& p) { return ceil_div(p.k, STEP) * L; }
static inline PB* kept_panels(const Problem& p) { return (PB*)p.ptrs[KEPT_AT]; }

// Rows [m0, m1) x columns [n0, n1) of one item over one depth of K. `panels` holds B from column n0 on; sums that are
// not `first` add to `partial` (origin m0, n0); those that are not `last` stay there.
struct Block { long item, m0, m1, n0, n1, from, steps; bool first, last; const PB* panels; T* partial; long stride; };

// Elements from one vector of columns of this block's panels to the next.
static inline long vector_of(const Problem& p, const Block& q) { return KEPT ? kept_vector(p) : q.steps * L; }
static inline Next with_scales(const Problem&, const Block&, Next next, long, long) { return next; }

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

