"""What both kernels share: types, loads, the call, the softmax weights of a row, and the store of its result."""

from __future__ import annotations

import torch

from polytile.attention.cpp import scores
from polytile.attention.layout import INDICES
from polytile.attention.problem import EXTENTS, AttentionProblem, Causal
from polytile.attention.scores import scores_of
from polytile.matmul.cpp import common as matmul
from polytile.schedule.canonical import TensorArg

STORAGE = {torch.float32: "float", torch.bfloat16: "pt::bf16", torch.float16: "pt::f16", torch.bool: "pt::bool8"}
"""C++ element types in memory."""

CONSTANTS = """\
typedef {storage} S;                               // q, k, v and out in memory
typedef S SB;                                      // the right operand of a product
typedef {bias} M;                                  // the bias in memory
constexpr long L = {lanes};
constexpr bool CAUSAL = {causal}, BOTTOM_RIGHT = {bottom_right}, EMPTY_IS_0 = {empty_is_0};
constexpr bool ADDED = {added};                    // of a bias of booleans, whether -inf is added where it is false
constexpr bool FOLDED = {folded};                  // scores stay products until they are exponents
constexpr float FILL = {fill};
"""

TYPES = """\
typedef float T;
typedef T V __attribute__((vector_size(4 * L)));
typedef unsigned U32 __attribute__((vector_size(4 * L)));
typedef pt::V<float, L> Floats;
constexpr float LOG2E = 1.4426950408889634f, NONE = -__builtin_inff();

static inline long least(long a, long b) { return a < b ? a : b; }
static inline long most(long a, long b) { return a < b ? b : a; }
static inline long ceil_div(long a, long b) { return (a + b - 1) / b; }
static inline V broadcast(T x) { return Floats(x).n; }
template <class P> static inline V load(const P* p) { return pt::load<float, L>(p).n; }
static inline void store(T* p, V v) { pt::store(p, Floats(v)); }
static inline T value(T x) { return x; }
// The first n elements from p on, `stride` apart, and zeros.
template <class X, class P> static inline pt::V<X, L> some(const P* p, long stride, long n) {
  if (stride == 1) return n >= L ? pt::load<X, L>(p) : pt::load_n<X, L>(p, n);
  return pt::load_strided_n<X, L>(p, stride, least(n, L));
}
"""

CALL = """\
// Row r of an item, which is a head of k, is query r % Mq of head r / Mq of its group.
static inline long head_of(const Call& c, long item, long r) { return item % c.Hkv * c.group + r / c.Mq; }
// How many keys a query sees.
static inline long visible(const Call& c, long m) {
  return CAUSAL ? most(0, least(c.Mkv, m + 1 + (BOTTOM_RIGHT ? c.Mkv - c.Mq : 0))) : c.Mkv;
}
// The most keys that any row of [r0, r1) sees.
static inline long visible(const Call& c, long r0, long r1) {
  return visible(c, r0 / c.Mq == (r1 - 1) / c.Mq ? (r1 - 1) % c.Mq : c.Mq - 1);
}
// Some rows see keys from `low` on below `high`, and each of them those from `all_low` on below `all_high`.
struct Span { long low, high, all_low, all_high; };
static inline const S* query_at(const Call& c, long item, long r) {
  return c.q + item / c.Hkv * c.q_stride_b + head_of(c, item, r) * c.q_stride_h + r % c.Mq * c.q_stride_m;
}
"""

ROWS = """\
static inline const S* keys_at(const Call& c, long item, long n) {
  return c.k + item / c.Hkv * c.k_stride_b + item % c.Hkv * c.k_stride_h + n * c.k_stride_n;
}
static inline const S* values_at(const Call& c, long item, long n) {
  return c.v + item / c.Hkv * c.v_stride_b + item % c.Hkv * c.v_stride_h + n * c.v_stride_n;
}
// How many keys from n on lie one stride apart.
static inline long neighbours(const Call& c, long n) { return c.Mkv - n; }
"""
PAGES = """\
static inline long page_at(const Call& c, long item, long n) {
  const long page = c.table[item / c.Hkv * c.table_stride_b + n / c.Page * c.table_stride_s];
  return page < 0 ? page + c.Pages : page;
}
static inline const S* keys_at(const Call& c, long item, long n) {
  return c.k + page_at(c, item, n) * c.k_stride_p + item % c.Hkv * c.k_stride_h + n % c.Page * c.k_stride_n;
}
static inline const S* values_at(const Call& c, long item, long n) {
  return c.v + page_at(c, item, n) * c.v_stride_p + item % c.Hkv * c.v_stride_h + n % c.Page * c.v_stride_n;
}
// How many keys from n on lie one stride apart: those of its page.
static inline long neighbours(const Call& c, long n) { return c.Page - n % c.Page; }
"""
ALIKE = """\
// The call as a sequence sees it.
static inline const Call& of_sequence(const Call& c, long) { return c; }
"""
OWN = """\
// The call as sequence b sees it, with its own rows and keys.
static inline Call of_sequence(const Call& c, long b) {{
  Call own = c;
{lines}  own.rows = own.group * own.Mq;
  return own;
}}
"""

LONGEST = """\
// The rows and the keys of the longest sequences.
static inline void measure(Call& c) {
  long rows = 0, keys = 0;
  for (long b = 0; b < c.B; ++b) {
    const Call own = of_sequence(c, b);
    rows = most(rows, own.Mq);
    keys = most(keys, own.Mkv);
  }
  c.Mq = rows;
  c.Mkv = keys;
}
"""

CAUSAL = """\
constexpr bool MASKED = false;                     // whether keys inside a span may be hidden
static inline Span span(const Call& c, long, long r0, long r1) { return {0, visible(c, r0, r1), 0, c.Mkv}; }
template <class A> static inline Floats shown(const Call&, Floats x, A, long, long) { return x; }
"""

BIAS = """\
typedef const M* At;
static inline At at_of(const Call& c, long item, long r, long n) {
  return c.bias + item / c.Hkv * c.bias_stride_b + head_of(c, item, r) * c.bias_stride_h + r % c.Mq * c.bias_stride_m
         + n * c.bias_stride_n;
}
// Scores after the bias of the first n of them, j keys after those that `p` is of.
static inline Floats changed(const Call& c, Floats x, At p, long j, long n) {
  p += j * c.bias_stride_n;
  if constexpr (pt::is_bool<M>) {
    const auto seen = some<pt::u8>(p, c.bias_stride_n, n) != pt::V<pt::u8, L>(0);
    return ADDED ? x + pt::select(seen, Floats(0.0f), Floats(NONE)) : pt::select(seen, x, Floats(FILL));
  } else return x + some<float>(p, c.bias_stride_n, n);
}
"""
NO_BIAS = """\
struct At {};
static inline At at_of(const Call&, long, long, long) { return {}; }
static inline Floats changed(const Call&, Floats x, At, long, long) { return x; }
"""
STORE_LSE = "static inline void store_lse(const Call& c, long place, float value) { c.lse[place] = value; }\n"
NO_LSE = "static inline void store_lse(const Call&, long, float) {}\n"

# A row's weights are 2^(exponent - base). If scores are FOLDED, exponents and base are products times `unit`. Otherwise the
# base is the row's maximum score, since a finite score times LOG2E might be infinite.
WEIGHTS = """\
struct Row { float base, total; };

static inline float power(float x, float base) {
  return pt::exp2(FOLDED ? x - base : (x - base) * LOG2E);
}

// Makes the products at x the weights of keys [n, n + wide) for row r of an item, and counts them in. Of the keys it sees none
// but those of `own`. Gives the factor that what was weighted before has to take.
template <class P>
static inline float weigh(const Call& c, long item, long r, long n, const Span& own, long wide, T* x, P* weights, Row& row) {
  Floats high(NONE);
  const At at = at_of(c, item, r, n);
  const long seen = most(0, least(wide, own.high - n));
  const bool hides = MASKED && (own.all_low > n || own.all_high < n + seen);
  long j = 0;
  if constexpr (MASKED)
    for (; j + L <= least(seen, own.low - n); j += L) store(x + j, Floats(NONE).n);
  if (FOLDED && !hides)
    for (; j + L <= seen; j += L) high = pt::greater(Floats(load(x + j)), high);
  for (; j < seen; j += L) {
    const long left = seen - j;
    Floats v(load(x + j));
    if constexpr (!FOLDED) v = changed(c, v * Floats(c.scale), at, j, left);
    if (hides) v = shown(c, v, at, j, left);
    if (left < L) v = pt::select(pt::first_n<float, L>(left), v, Floats(NONE));
    store(x + j, v.n);
    high = pt::greater(v, high);
  }
  for (; j < wide; j += L) store(x + j, Floats(NONE).n);
  const float before = row.base, top = pt::hmax(high) * (FOLDED ? c.unit : 1.0f);
  row.base = top > before ? top : before;
  const float base = row.base == NONE ? 0.0f : row.base;
  Floats total(0.0f);
  for (j = 0; j < wide; j += L) {
    const Floats v(load(x + j));
    const Floats p = pt::exp2(FOLDED ? pt::mad(v, Floats(c.unit), Floats(-base)) : (v - Floats(base)) * Floats(LOG2E));
    total += p;
    store_weights(weights + j, p);
  }
  const float factor = before == row.base ? 1.0f : power(before, base);
  row.total = row.total * factor + pt::hsum(total);
  return factor;
}

// Stores the result of row r: `sums` of weighted values over the sum of the weights.
static void finish(const Call& c, long item, long r, const T* sums, const Row& row) {
  const long b = item / c.Hkv, h = head_of(c, item, r), m = r % c.Mq;
  S* out = c.out + b * c.out_stride_b + h * c.out_stride_h + m * c.out_stride_m;
  const bool zero = row.total == 0.0f && (EMPTY_IS_0 || c.Mkv == 0);
  const Floats total(zero ? 1.0f : row.total);
  long j = 0;
  for (; j + L <= c.Dv; j += L) pt::store(out + j, Floats(load(sums + j)) / total);
  if (j < c.Dv) pt::store_n(out + j, Floats(load(sums + j)) / total, c.Dv - j);
  // `unit` is rounded: of the logarithm of a large score that is more than one rounding, which the derivative would show.
  const double base = FOLDED && c.unit != 0 ? row.base * (static_cast<double>(c.scale) / c.unit) : row.base;
  store_lse(c, lse_at(c, b, h, m), static_cast<float>(base + pt::log(row.total)));
}
"""

ENTRY = """\
}}  // namespace attention
}}  // namespace

extern "C" long {name}(void* const* ptrs, const long* sizes, long threads) {{
  using namespace attention;
  Call c{{{pointers}, {integers}}};
  c.group = c.Hq / most(1, c.Hkv);
{first}  c.rows = c.group * c.Mq;
  c.items = c.B * c.Hkv;
  if ({nothing}) return 0;
  c.scale = {scale};
  c.unit = c.scale * LOG2E;
{more}  return run(c, threads);
}}
"""


def opening(problem: AttentionProblem, lanes: int) -> str:
    """What every translation unit begins with, up to its constants within the namespace `attention`."""
    computed = scores.functions(problem, lanes) if problem.computes_scores else ""
    return f"{comment(problem)}{matmul.MEMORY}{computed}namespace {{\nnamespace attention {{\n{constants(problem, lanes)}"


def comment(problem: AttentionProblem) -> str:
    """What is computed."""
    return "".join(f"// {line}\n" for line in f"attention {problem.text}".splitlines())


def constants(problem: AttentionProblem, lanes: int) -> str:
    """The constants and types of a problem's kernel."""
    bias = problem.bias
    boolean = bias is not None and bias.dtype == torch.bool
    infinite = bias is not None and bias.fill == -float("inf")
    return CONSTANTS.format(
        storage=STORAGE[problem.dtype],
        bias=STORAGE[bias.dtype] if bias is not None else "float",
        lanes=lanes,
        causal=_flag(problem.causal is not Causal.NO),
        bottom_right=_flag(problem.causal is Causal.BOTTOM_RIGHT),
        empty_is_0=_flag(problem.empty_is_0),
        added=_flag(boolean and infinite and problem.empty_is_0),
        folded=_flag(scores_of(problem).score is None and (problem.scale is None or problem.scale > 0)),
        fill="-__builtin_inff()" if bias is None or infinite else _number(bias.fill),
    )


def call(problem: AttentionProblem) -> str:
    """The struct Call: the arguments under their names, and values derived from them."""
    pointers = "".join(
        f"  {'const ' if t.role == 'in' else ''}{_element(t)}* {t.name};\n"
        for t in problem.tensors
        if problem.extents(t.name)
    )
    integers = ", ".join(problem.size_names)
    absent = [
        name for t in problem.tensors if (name := f"{t.name}_stride_b") not in problem.size_names and t.name in EXTENTS
    ]
    derived = "  long group, rows, items;\n  float scale, unit;\n"
    derived += f"  static constexpr long {', '.join(f'{name} = 0' for name in absent)};\n" if absent else ""
    if problem.computes_scores:
        own = problem.layout is not None
        derived += (
            f"  void* const* ptrs;\n  {f'long sizes[{len(problem.size_names)}]' if own else 'const long* sizes'};\n"
        )
        derived += "  long* error;\n"
        optional = scores.flags(problem) + scores.calls(problem)
    else:
        optional = CAUSAL + (BIAS if problem.bias is not None else NO_BIAS)
    if not problem.backward:
        optional += STORE_LSE if problem.lse else NO_LSE
        optional += f"static inline long lse_at(const Call& c, long b, long h, long m) {{ return {_lse_place(problem)}; }}\n"
    return f"struct Call {{\n{pointers}  long {integers};\n{derived}}};\n" + CALL + _layout(problem) + optional


def _lse_place(problem: AttentionProblem) -> str:
    packed = problem.layout is not None and problem.layout.own_rows
    return "(void)b, h * c.Tq + m" if packed else "(b * c.Hq + h) * c.Mq + m"


def _layout(problem: AttentionProblem) -> str:
    """The addresses of keys, and the parts of a call that differ between sequences."""
    layout = problem.layout
    if layout is None:
        return ROWS + ALIKE
    places = PAGES if layout.table is not None else ROWS
    if not (layout.own_rows or layout.own_keys):
        return places + ALIKE
    lines = []
    if layout.own_rows:
        lines += [
            "const long row = c.q_starts[b * c.q_starts_stride_e];",
            "own.Mq = most(0, c.q_starts[(b + 1) * c.q_starts_stride_e] - row);",
            *[f"own.{name} += row * c.{name}_stride_m;" for name in _with_axis(problem, "m")],
            *(["own.lse += row;"] if problem.lse and not problem.backward else []),
        ]
    if layout.k_starts is not None:
        lines += [
            "const long key = c.k_starts[b * c.k_starts_stride_e];",
            "own.Mkv = most(0, c.k_starts[(b + 1) * c.k_starts_stride_e] - key);",
            *[f"own.{name} += key * c.{name}_stride_n;" for name in _with_axis(problem, "n")],
        ]
    if layout.k_used is not None:
        limit = (
            "own.Mkv" if layout.k_starts is not None else "c.Page * c.Slots" if layout.table is not None else "c.Mkv"
        )
        lines += [f"own.Mkv = most(0, least({limit}, c.k_used[b * c.k_used_stride_b]));"]
    if problem.computes_scores:
        lines += [f"own.sizes[{problem.size_names.index(name)}] = own.{name};" for name in ("Mq", "Mkv")]
    return places + OWN.format(lines="".join(f"  {line}\n" for line in lines)) + LONGEST


def _with_axis(problem: AttentionProblem, axis: str) -> list[str]:
    """The tensors, other than a bias, that have a dimension of rows ("m") or of keys ("n")."""
    return [t.name for t in problem.tensors if axis in problem.axes(t.name) and t.name != "bias"]


def entry(problem: AttentionProblem, name: str) -> str:
    """The exported function; `run` executes a Call."""
    pointers = (
        f"({'const ' if t.role == 'in' else ''}{_element(t)}*)ptrs[{k}]"
        for k, t in enumerate(problem.tensors)
        if problem.extents(t.name)
    )
    scale = _number(problem.scale) if problem.scale is not None else "1.0f / __builtin_sqrtf(float(most(1, c.D)))"
    integers = (f"sizes[{k}]" for k in range(len(problem.size_names)))
    layout = problem.layout
    own = layout is not None and (layout.own_rows or layout.own_keys)
    first, more, form = "  measure(c);\n" if own else "", "", ENTRY
    if problem.computes_scores:
        given = (
            "c.sizes = sizes;"
            if layout is None
            else f"__builtin_memcpy(c.sizes, sizes, {8 * len(problem.size_names)});"
        )
        more = f"  long error = 0;\n  c.ptrs = ptrs;\n  {given}\n  c.error = &error;\n"
        form = ENTRY.replace("return run(c, threads);", "const long code = run(c, threads);\n  return code ? code : error;")
    return form.format(
        name=name, pointers=", ".join(pointers), integers=", ".join(integers), scale=scale, first=first, more=more,
        nothing="c.items <= 0" if problem.backward else "c.items <= 0 || c.rows <= 0",
    )  # fmt: skip


def _element(tensor: TensorArg) -> str:
    if tensor.name in INDICES:
        return {torch.int32: "int", torch.int64: "long"}[tensor.dtype]
    return {"bias": "M", **dict.fromkeys(("lse", "saved", "grad_lse"), "float")}.get(tensor.name, "S")


def _flag(value: bool) -> str:
    return str(value).lower()


def _number(value: float) -> str:
    """A number as a float literal, including infinities."""
    return f"float({value!r})" if abs(value) != float("inf") else f"{'-' if value < 0 else ''}__builtin_inff()"
