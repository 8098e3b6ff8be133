"""The parts that every generated matmul shares: types, loads, stores, the problem at run time, threads, entry point."""

from __future__ import annotations

from polytile.matmul.cpp.spec import GemmConfig, GemmSpec

C_TYPES = {"float32": "float", "float64": "double", "bfloat16": "bf16", "int8": "signed char", "int32": "int"}
ACCUMULATOR_BYTES = {"float32": 4, "float64": 8, "int32": 4}

TYPES = """\
typedef {acc} VACC __attribute__((vector_size({bytes})));
"""

MEMORY = """\
extern "C" void* malloc(unsigned long);
extern "C" void free(void*);
constexpr long NO_MEMORY = -2;                     // what a call answers that finds no memory for its work
"""
THREADS = """\
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
extern "C" void GOMP_barrier();
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();
"""

# Loads widen bfloat16 to float by a shift; stores round to nearest even and keep NaN a NaN.
LOADS = """\
struct bf16 {{ unsigned short bits; }};
typedef {acc} T;                                   // the sums
typedef {storage} S;                               // A in memory
typedef {b_storage} SB;                              // B in memory
typedef VACC V;
constexpr long L = {lanes};
typedef T VU __attribute__((vector_size({bytes}), aligned(sizeof(T)), may_alias));
typedef unsigned U32 __attribute__((vector_size(4 * L)));
typedef unsigned short U16 __attribute__((vector_size(2 * L)));
typedef unsigned short U16U __attribute__((vector_size(2 * L), aligned(2), may_alias));

static inline long least(long a, long b) {{ return a < b ? a : b; }}
static inline long ceil_div(long a, long b) {{ return (a + b - 1) / b; }}
static inline V broadcast(T x) {{ return V{{{repeat}}}; }}
static inline V load(const T* p) {{ return *(const VU*)p; }}
static inline void store(T* p, V v) {{ *(VU*)p = v; }}
static inline T value(T x) {{ return x; }}
"""

OUT = "typedef {out} O;                                   // C in memory\n"
LOAD_BF16 = """\
static inline V load(const bf16* p) { return (V)(__builtin_convertvector(*(const U16U*)p, U32) << 16); }
static inline T value(bf16 x) { unsigned bits = unsigned(x.bits) << 16; T f; __builtin_memcpy(&f, &bits, 4); return f; }
"""

# int8 beside floats: every number of it is one of theirs. GCC 12 converts vectors of bytes to wider lanes one by one, or in
# halves where a step is twice as wide: 11 instructions for the 2 that it takes, so the instruction is named where there is one.
LOAD_INT8 = """\
typedef int I32 __attribute__((vector_size(4 * L)));
typedef short I16 __attribute__((vector_size(2 * L)));
typedef signed char I8U __attribute__((vector_size(L), aligned(1), may_alias));
static inline V load(const signed char* p) {
  I32 wide;
#if defined(__AVX512F__)
  if constexpr (L == 16) {
    asm("vpmovsxbd %1, %0" : "=v"(wide) : "m"(*(const I8U*)p));
    return __builtin_convertvector(wide, V);
  }
#endif
#if defined(__AVX2__)
  if constexpr (L == 8) {
    asm("vpmovsxbd %1, %0" : "=x"(wide) : "m"(*(const I8U*)p));
    return __builtin_convertvector(wide, V);
  }
#endif
  wide = __builtin_convertvector(__builtin_convertvector(*(const I8U*)p, I16), I32);
  return __builtin_convertvector(wide, V);
}
static inline T value(signed char x) { return x; }
"""

# The first n lanes of a vector.
LOAD_N = """\
template <class P> static inline V load_n(const P* p, long n) {
  alignas(64) P row[L] = {};
  for (long i = 0; i < n; ++i) row[i] = p[i];
  return load(row);
}
template <class P> static inline void store_n(P* p, V v, long n) {
  alignas(64) P row[L];
  store(row, v);
  for (long i = 0; i < n; ++i) p[i] = row[i];
}
template <class P> static inline void copy_n(P* out, const P* p, long n) {
  for (long i = 0; i < L; ++i) out[i] = i < n ? p[i] : P{};
}
"""

MASKED = """\
#ifdef __AVX512F__
static inline unsigned {mask} first(long n) {{ return (unsigned {mask})~(~0u << n); }}
static inline V load_n(const T* p, long n) {{ return __builtin_ia32_load{code}512_mask(p, V{{}}, first(n)); }}
static inline void store_n(T* p, V v, long n) {{ __builtin_ia32_store{code}512_mask(p, v, first(n)); }}
static inline void copy_n(T* out, const T* p, long n) {{ store(out, load_n(p, n)); }}
#endif
"""
MASKS = {("float32", 16): ("ups", "short"), ("float64", 8): ("upd", "char")}
"""Instruction and type of a mask, by the type of the sums and lanes."""

ROUND_BF16 = """\
// The bits of floats rounded to bfloat16, to nearest even, in the high halves; a NaN stays one.
static inline U32 rounded(V v) {
  const U32 bits = (U32)v, nan = (U32)(v != v);
  return (nan & (bits | 0x400000)) | (~nan & (bits + 0x7fff + ((bits >> 16) & 1)));
}
"""
STORES = {
    ("float32", "float32"): "",
    ("float64", "float64"): "",
    ("int32", "int32"): "",
    ("float32", "float64"): """\
typedef double OUT __attribute__((vector_size(8 * L), aligned(8), may_alias));
static inline void store(double* p, V v) { *(OUT*)p = __builtin_convertvector(v, OUT); }
""",
    ("float64", "float32"): """\
typedef float OUT __attribute__((vector_size(4 * L), aligned(4), may_alias));
static inline void store(float* p, V v) { *(OUT*)p = __builtin_convertvector(v, OUT); }
""",
    ("float32", "bfloat16"): """\
static inline void store(bf16* p, V v) { *(U16U*)p = __builtin_convertvector(rounded(v) >> 16, U16); }
""",
}

TO_B = "template <class X> static inline X to_b(X x) { return x; }\n"
MAC = "static inline void mac(V& c, V x, V b) { c += x * b; }\n" + TO_B

# A step is two k: a lane holds both as bfloat16. The instruction takes denormals for zero; the other branch does not.
MAC_PAIRS = """\
static inline void mac(V& c, V x, V b) {
#if defined(__AVX512BF16__) && defined(__AVX512VL__)
  asm("vdpbf16ps %2, %1, %0" : "+v"(c) : "v"(x), "v"(b));
#else
  const U32 high = U32{} + 0xffff0000;
  c += (V)((U32)x << 16) * (V)((U32)b << 16);
  c += (V)((U32)x & high) * (V)((U32)b & high);
#endif
}
"""
PAIRS = (
    """\
typedef unsigned U32U __attribute__((vector_size(4 * L), aligned(4), may_alias));
static inline V load(const unsigned* p) { return (V)*(const U32U*)p; }
static inline void store(unsigned* p, V v) { *(U32U*)p = (U32U)v; }
static inline unsigned value(unsigned x) { return x; }
static inline V broadcast(unsigned x) { return broadcast(__builtin_bit_cast(T, x)); }
"""
    + MAC_PAIRS
    + TO_B
)

PROBLEM = """\
struct Problem {
  void* const* ptrs; const long* sizes; long threads;
  const S* a; const SB* b;
  long batch, m, n, k, a_b, a_m, a_k, b_b, b_k, b_n;
};
static inline const S* a_of(const Problem& p, long item, long m, long k) {
  return p.a + item * p.a_b + m * p.a_m + k * p.a_k;
}
static inline const SB* b_of(const Problem& p, long item, long k, long n) {
  return p.b + item * p.b_b + k * p.b_k + n * p.b_n;
}
"""

IN_GROUP = """\
  long item, row, column;                         // where the result of this part of a group begins
  long matrix;                                    // which B it is multiplied by
"""
"""Further members of the Problem of a grouped product."""

EMIT_EPILOGUE = """\
static inline O* in_place(const Problem&, long, long, long) { return nullptr; }
static inline void emit(const Problem& p, long item, long m, long n, V v, long count) {
  epilogue(p.ptrs, p.sizes, item, m, n, v, count);
}
"""

EMIT_STORE = """\
static inline O* c_of(const Problem& p, long item, long m, long n) {
  return (O*)p.ptrs[2] + item * p.sizes[10] + m * p.sizes[11] + n * p.sizes[12];
}
// Where a whole tile may be written straight from registers; null where it may not.
static inline O* in_place(const Problem& p, long item, long m, long n) {
  return sizeof(O) == sizeof(T) && p.sizes[12] == 1 ? c_of(p, item, m, n) : nullptr;
}
static inline void emit(const Problem& p, long item, long m, long n, V v, long count) {
  O* c = c_of(p, item, m, n);
  const long step = p.sizes[12];
  if (step == 1 && count == L) return store(c, v);
  if (step == 1) return store_n(c, v, count);
  alignas(64) O row[L];
  store(row, v);
  for (long i = 0; i < count; ++i) c[i * step] = row[i];
}
"""

FINISH = """\
// Gives `rows` x `cols` finished sums (`stride` apart, rows padded to whole vectors) to the epilogue, each once.
static void finish(const Problem& p, long item, long m, long n, long rows, long cols, const T* sums, long stride) {
  for (long i = 0; i < rows; ++i)
    for (long j = 0; j < cols; j += L) emit(p, item, m + i, n + j, load(sums + i * stride + j), least(L, cols - j));
}
"""

# Teams: with at least as many batch items as threads each thread works alone on whole items; otherwise a team shares
# one.
TEAMS = """\
struct Team { long rounds, teams, size, index, rank; };
static inline Team team_of(const Problem& p, long thread, long threads) {
  const long teams = least(threads, p.batch), size = threads / teams;
  return {ceil_div(p.batch, teams), teams, size, thread / size, thread % size};
}
// How many parts the rows get when `size` threads divide rows x cols units: the smallest largest share; ties go to
// fewer parts, for then less of B is packed together.
static inline long row_parts(long rows, long cols, long size) {
  long best = 1, least_work = -1;
  for (long parts = 1; parts <= size; ++parts) {
    const long work = ceil_div(rows, parts) * ceil_div(cols, size / parts);
    if (least_work < 0 || work < least_work) best = parts, least_work = work;
  }
  return best;
}
"""

ENTRY = """\
static void region(void* data) {{
  work(*(const Call*)data, omp_get_thread_num(), omp_get_num_threads());
}}
}}  // namespace gemm
}}  // namespace

extern "C" long {name}(void* const* ptrs, const long* sizes, long threads) {{
  using namespace gemm;
  const long* s = sizes;
  Call c{{{{ptrs, sizes, threads, (const S*)ptrs[0], (const SB*)ptrs[1],
          s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]}}}};
  if (c.p.batch <= 0 || c.p.m <= 0 || c.p.n <= 0) return 0;
  if (c.p.k < 0) c.p.k = 0;
  c.p.threads = least(threads, most_threads(c.p));
  if (!open(c)) return NO_MEMORY;
  if (c.p.threads <= 1) work(c, 0, 1);
  else GOMP_parallel(region, &c, unsigned(c.p.threads), 0);
  close(c);
  return 0;
}}
"""


GROUPED_ENTRY = """
// A grouped product is gone through in parts, each a plain product: up to BLOCK rows of a group, by ranges of GRAIN columns.
// Threads take equal shares of the parts' weights, one after the other.
constexpr long GRAIN = 4 * L, BLOCK = 384, LIGHT = 8;

struct Part {{ long group, row, rows, k, depth, weight; }};
struct Parts {{
  const int* ends; const long* s;
  long group, end, row, left;
  Parts(const int* ends, const long* s) : ends(ends), s(s), group(-1), end(0), row(0), left(0) {{}}
  // The next rows of a group; none are left where this is false. Rows behind the last group are a group of sums of nothing.
  bool next(Part& part) {{
    const bool along_k = {along_k};
    const long total = along_k ? s[3] : s[1];
    while (left == 0) {{
      if (++group > s[0] - along_k) return false;
      const long first = end, last = group < s[0] ? ends[group] : total;
      end = last < 0 ? 0 : least(last, total);
      row = along_k ? 0 : first, left = along_k ? s[1] : end > first ? end - first : 0;
      part.k = along_k ? first : 0, part.depth = along_k ? (end > first ? end - first : 0) : group < s[0] ? s[3] : 0;
    }}
    part.group = group, part.row = row, part.rows = least(BLOCK, left);
    part.weight = (part.rows + LIGHT) * (part.depth + LIGHT);
    row += part.rows, left -= part.rows;
    return true;
  }}
}};

struct Whole {{ void* const* ptrs; const long* sizes; const int* ends; long columns, weight; bool failed; }};

static void share(Whole& whole, long thread, long threads) {{
  const long* s = whole.sizes;
  const long from = whole.weight * thread / threads, to = whole.weight * (thread + 1) / threads;
  Parts parts(whole.ends, s);
  Part part;
  for (long before = 0; before < to && parts.next(part); before += part.weight * whole.columns) {{
    const long lead = from > before ? from - before : 0, rest = to - before;
    const long n0 = least(whole.columns, ceil_div(lead, part.weight)) * GRAIN;
    const long n1 = least(least(whole.columns, ceil_div(rest, part.weight)) * GRAIN, s[2]);
    if (n0 >= n1) continue;
    const bool along_k = {along_k};
    const long item = along_k || part.group == s[0] ? 0 : part.group;
    Call c{{{{whole.ptrs, s, 1, (const S*)whole.ptrs[0] + part.row * s[5] + part.k * s[6],
            (const SB*)whole.ptrs[1] + item * s[7] + part.k * s[8] + n0 * s[9],
            1, part.rows, n1 - n0, part.depth, 0, s[5], s[6], 0, s[8], s[9], along_k ? part.group : 0, part.row, n0, item}}}};
    if (!open(c)) {{ whole.failed = true; return; }}
    work(c, 0, 1);
    close(c);
  }}
}}

static void region(void* data) {{ share(*(Whole*)data, omp_get_thread_num(), omp_get_num_threads()); }}
}}  // namespace gemm
}}  // namespace

extern "C" long {name}(void* const* ptrs, const long* sizes, long threads) {{
  using namespace gemm;
  if (sizes[1] <= 0 || sizes[2] <= 0) return 0;
  Whole whole{{ptrs, sizes, (const int*)ptrs[{ends_at}], ceil_div(sizes[2], GRAIN), 0, false}};
  Parts parts(whole.ends, sizes);
  Part part;
  long count = 0;
  for (; parts.next(part); ++count) whole.weight += part.weight * whole.columns;
  threads = least(threads, count * whole.columns);
  if (threads <= 1) share(whole, 0, 1);
  else GOMP_parallel(region, &whole, unsigned(threads), 0);
  return whole.failed ? NO_MEMORY : 0;
}}
"""


def head(spec: GemmSpec, config: GemmConfig, epilogue: str | None, lanes: int, title: str) -> str:
    """Everything before the form's own functions: types, the caller's epilogue, loads, stores, the problem."""
    acc = C_TYPES[spec.accumulator]
    return "".join(
        (
            f"// {title}\n",
            vectors(spec, lanes),
            epilogue or "",
            "\n" if epilogue else "",
            MEMORY,
            THREADS,
            "namespace {\nnamespace gemm {\n",
            operands(spec, lanes),
            OUT.format(out=acc if spec.has_epilogue else C_TYPES[spec.out_dtype]),
            ROUND_BF16 if "bfloat16" in (spec.dtype, spec.out_dtype) else "",
            "" if spec.has_epilogue else STORES[spec.accumulator, spec.out_dtype],
            parts_of_vectors(spec, lanes),
            *_stored(spec),
            FINISH,
            TEAMS,
        )
    )


def vectors(spec: GemmSpec, lanes: int) -> str:
    """The type of a vector of sums."""
    return TYPES.format(acc=C_TYPES[spec.accumulator], bytes=ACCUMULATOR_BYTES[spec.accumulator] * lanes)


def operands(spec: GemmSpec, lanes: int) -> str:
    """The types of sums and operands, and whole vectors of them in memory."""
    names = {
        "acc": C_TYPES[spec.accumulator],
        "bytes": ACCUMULATOR_BYTES[spec.accumulator] * lanes,
        "storage": C_TYPES[spec.dtype],
        "b_storage": C_TYPES[spec.stored_b],
        "lanes": lanes,
        "repeat": ", ".join(["x"] * lanes),
    }
    narrow = LOAD_INT8 if spec.b_dtype else ""
    return LOADS.format(**names) + (LOAD_BF16 if spec.dtype == "bfloat16" else "") + narrow


def parts_of_vectors(spec: GemmSpec, lanes: int) -> str:
    """Loads and stores of the first elements of a vector; of floats one instruction, where there are masks."""
    code, mask = MASKS.get((spec.accumulator, lanes), ("", ""))
    return LOAD_N + (MASKED.format(code=code, mask=mask) if code else "")


def _stored(spec: GemmSpec) -> tuple[str, str]:
    """The problem at run time, and what becomes of finished sums."""
    emit = EMIT_EPILOGUE if spec.has_epilogue else EMIT_STORE.replace("ptrs[2]", f"ptrs[{spec.leading_ptrs - 1}]")
    if not spec.grouped:
        return PROBLEM, emit
    emit = emit.replace("item, m, n, v, count)", "p.item + item, p.row + m, p.column + n, v, count)")
    emit = emit.replace("item * p.sizes[10] + m *", "(p.item + item) * p.sizes[10] + (p.row + m) *")
    emit = emit.replace("+ n * p.sizes[12]", "+ (p.column + n) * p.sizes[12]")
    return PROBLEM.replace("};\nstatic", f"{IN_GROUP}}};\nstatic", 1), emit


def entry(name: str, spec: GemmSpec, beside_at: int = 2) -> str:
    """The exported function; the form has defined Call, most_threads, open (whether there is memory), work and close. The ends of
    groups are at ptrs[beside_at]."""
    if spec.grouped:
        return GROUPED_ENTRY.format(name=name, ends_at=beside_at, along_k=str(spec.grouped == "k").lower())
    return ENTRY.format(name=name)
