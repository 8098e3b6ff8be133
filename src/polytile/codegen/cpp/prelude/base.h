// base: element types, the vector V<T, L>, masks.
// needs:
// gives: V Raw bf16 f16 f8e5 f8e4 bool8 i8 i16 i32 i64 u8 u16 u32 u64 as low high join zip broadcast iota first_n select hany hall
//
// V<T, L> is L lanes of T (L a power of two, 1..64). It behaves like a GCC vector: operators, comparisons that give
// -1/0 masks, v[i] to read and to write. It is a class because GCC scalarises or spills generic vectors that are wider
// than a register; here a wide vector is two halves, each handled separately. A vector of at most one register holds
// one GCC vector `n`, padded to 16 bytes if it is narrower. The padding lanes hold unspecified values, and no operation
// on them traps.
#pragma GCC diagnostic ignored "-Wpsabi"
#if !defined(__clang__) && __GNUC__ < 12
#error "polytile's kernels need GCC 12 or newer, or clang"
#endif

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#define PT_AVX512 1
#define PT_WIDTH 64
#elif defined(__AVX2__)
#define PT_AVX2 1
#define PT_WIDTH 32
#else
#define PT_WIDTH 16
#endif
#if defined(__FMA__) || defined(PT_AVX512) || defined(__aarch64__)
#define PT_FMA 1
#endif
#if defined(__SSE2__) && !defined(__clang__)
#define PT_GCC_X86 1
#endif
#if defined(__clang__)
#define PT_UNROLL _Pragma("clang loop unroll(full)")
#define PT_NO_UNROLL _Pragma("clang loop unroll(disable)")
#else
#define PT_UNROLL _Pragma("GCC unroll 64")
#define PT_NO_UNROLL _Pragma("GCC unroll 1")
#endif
#define PT_FN inline __attribute__((always_inline))

namespace pt {
namespace {

using i8 = signed char;
using i16 = short;
using i32 = int;
using i64 = long;
using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned;
using u64 = unsigned long;
static_assert(sizeof(i64) == 8, "polytile's kernels need an LP64 system");

// Storage types: the layout in memory of elements that are computed in another type.
struct bf16 { u16 bits; };
struct f16 { u16 bits; };
struct f8e5 { u8 bits; };   // e5m2; kernels only read it
struct f8e4 { u8 bits; };   // e4m3fn, which has no infinities; kernels only read it
struct bool8 { u8 bits; };  // 0 or 1

template <class A, class B> constexpr bool same = false;
template <class A> constexpr bool same<A, A> = true;
template <class T> constexpr bool is_float = same<T, float> || same<T, double>;
template <class T> constexpr bool is_signed = T(-1) < T(0);
template <class T> struct Alone { using type = T; };
template <class T> using alone = typename Alone<T>::type;  // excluded from template argument deduction
template <bool Yes> struct When {};
template <> struct When<true> { using type = int; };
template <bool Yes> using when = typename When<Yes>::type;

template <int Bytes> struct IntOf;
template <> struct IntOf<1> { using type = i8; using bare = u8; };
template <> struct IntOf<2> { using type = i16; using bare = u16; };
template <> struct IntOf<4> { using type = i32; using bare = u32; };
template <> struct IntOf<8> { using type = i64; using bare = u64; };
template <class T> using int_of = typename IntOf<sizeof(T)>::type;       // element of T's masks
template <class T> using unsigned_of = typename IntOf<sizeof(T)>::bare;  // its bits

template <class T, int N> struct RawOf { typedef T type __attribute__((vector_size(sizeof(T) * N))); };
template <class T, int N> using Raw = typename RawOf<T, N>::type;

template <int... I> struct Lanes {};
#if defined(__clang__)
template <class T, T... I> struct LanesOf { using type = Lanes<int(I)...>; };
template <int N> using Up = typename __make_integer_seq<LanesOf, int, N>::type;
#else
template <int N> using Up = Lanes<__integer_pack(N)...>;  // Lanes<0, 1, ..., N - 1>
#endif

template <class T, int L> struct V;
template <class T, int L> constexpr bool wide = sizeof(T) * L > PT_WIDTH;
template <class T, int L> constexpr int raw_lanes = sizeof(T) * L < 16 ? 16 / int(sizeof(T)) : L;

struct NoRaw {};
template <class T, int L, bool Wide = wide<T, L>> struct Body { Raw<T, raw_lanes<T, L>> n; };
template <class T, int L> struct Body<T, L, true> {  // copied half by half, so that GCC keeps it in registers
  V<T, L / 2> lo, hi;
  Body() = default;
  PT_FN Body(const Body& b) : lo(b.lo), hi(b.hi) {}
  PT_FN Body& operator=(const Body& b) {
    lo = b.lo, hi = b.hi;
    return *this;
  }
};
template <class T, int L, bool Wide = wide<T, L>> struct Inside { using type = Raw<T, raw_lanes<T, L>>; };
template <class T, int L> struct Inside<T, L, true> { using type = NoRaw; };

#define PT_BINARY(op)                                                                            \
  friend PT_FN V operator op(V a, V b) {                                                         \
    if constexpr (wide<T, L>) return {a.lo op b.lo, a.hi op b.hi}; else return V(a.n op b.n);    \
  }                                                                                              \
  friend PT_FN V& operator op##=(V& a, V b) { return a = a op b; }
#define PT_COMPARE(op)                                                                           \
  friend PT_FN Mask operator op(V a, V b) {                                                      \
    if constexpr (wide<T, L>) return {a.lo op b.lo, a.hi op b.hi};                               \
    else return Mask((Raw<int_of<T>, raw_lanes<T, L>>)(a.n op b.n));                             \
  }
#define PT_DIVIDE(op)                                                                            \
  friend PT_FN V operator op(V a, V b) {                                                         \
    static_assert(is_float<T>, "integers divide through floordiv, truncdiv, remainder and fmod, which do not trap"); \
    if constexpr (wide<T, L>) return {a.lo op b.lo, a.hi op b.hi}; else return V(a.n op b.n);    \
  }                                                                                              \
  friend PT_FN V& operator op##=(V& a, V b) { return a = a op b; }

template <class T, int L> struct V : Body<T, L> {
  static_assert(L >= 1 && L <= 64 && (L & (L - 1)) == 0, "a vector has 1, 2, 4, ..., 64 lanes");
  using Lane = T;
  using Mask = V<int_of<T>, L>;
  using Inner = typename Inside<T, L>::type;
  static constexpr int lanes = L;

  V() = default;  // uninitialised; V{} is zero
  PT_FN V(Inner raw) { if constexpr (!wide<T, L>) this->n = raw; }
  PT_FN V(T x) {  // x in every lane
    if constexpr (wide<T, L>) this->lo = V<T, L / 2>(x), this->hi = V<T, L / 2>(x);
    else this->n = x - Inner{};
  }
  PT_FN V(V<T, L / 2 + (L == 1)> lo, V<T, L / 2 + (L == 1)> hi) {
    static_assert(wide<T, L>, "join puts halves together");
    if constexpr (wide<T, L>) this->lo = lo, this->hi = hi;
  }
  PT_FN explicit operator Inner() const { if constexpr (wide<T, L>) return {}; else return this->n; }
  PT_FN T& operator[](long i) { return reinterpret_cast<T*>(this)[i]; }
  PT_FN T operator[](long i) const { return reinterpret_cast<const T*>(this)[i]; }

  PT_BINARY(+) PT_BINARY(-) PT_BINARY(*) PT_BINARY(&) PT_BINARY(|) PT_BINARY(^) PT_BINARY(<<) PT_BINARY(>>)
  PT_DIVIDE(/) PT_DIVIDE(%)
  PT_COMPARE(<) PT_COMPARE(<=) PT_COMPARE(>) PT_COMPARE(>=) PT_COMPARE(==) PT_COMPARE(!=)
  friend PT_FN V operator-(V a) { if constexpr (wide<T, L>) return {-a.lo, -a.hi}; else return V(-a.n); }
  friend PT_FN V operator~(V a) { if constexpr (wide<T, L>) return {~a.lo, ~a.hi}; else return V(~a.n); }
  friend PT_FN V operator+(V a) { return a; }
  friend PT_FN Mask operator!(V a) { return a == V(T(0)); }
};
#undef PT_BINARY
#undef PT_COMPARE
#undef PT_DIVIDE

template <class T, int L> PT_FN V<T, L> broadcast(alone<T> x) { return V<T, L>(x); }

// The same bits as lanes of another type of the same size.
template <class To, class From, int L> PT_FN V<To, L> as(V<From, L> v) {
  static_assert(sizeof(To) == sizeof(From), "as() keeps the size of a lane; cast() converts values");
  if constexpr (same<To, From>) return v;
  else if constexpr (wide<To, L>) return {as<To>(v.lo), as<To>(v.hi)};
  else return V<To, L>((typename V<To, L>::Inner)v.n);
}

// Halves --------------------------------------------------------------------------------------------------------------
template <class T, int L, int From, int... I> PT_FN V<T, L / 2> half(V<T, L> v, Lanes<I...>) {
  constexpr int n = raw_lanes<T, L>;
  if constexpr (raw_lanes<T, L / 2> == n) return {__builtin_shufflevector(v.n, v.n, (From + I) % n...)};
  else return {__builtin_shufflevector(v.n, v.n, (From + I)...)};
}
template <class T, int L> PT_FN V<T, L / 2> low(V<T, L> v) {
  if constexpr (wide<T, L>) return v.lo;
  else if constexpr (raw_lanes<T, L / 2> == raw_lanes<T, L>) return {v.n};
  else return half<T, L, 0>(v, Up<raw_lanes<T, L / 2>>{});
}
template <class T, int L> PT_FN V<T, L / 2> high(V<T, L> v) {
  if constexpr (wide<T, L>) return v.hi;
  else return half<T, L, L / 2>(v, Up<raw_lanes<T, L / 2>>{});
}
// Concatenates the first L/2 lanes of two raw vectors of N lanes.
template <int L, class R, int N, int... I> PT_FN auto raw_join(R a, R b, Lanes<I...>) {
  return __builtin_shufflevector(a, b, (I % L < L / 2 ? I % L : N + I % L - L / 2)...);
}
template <class T, int L> PT_FN V<T, 2 * L> join(V<T, L> lo, V<T, L> hi) {
  if constexpr (wide<T, 2 * L>) return {lo, hi};
  else return {raw_join<2 * L, typename V<T, L>::Inner, raw_lanes<T, L>>(lo.n, hi.n, Up<raw_lanes<T, 2 * L>>{})};
}

// Interleaves the lanes of a and b, one register each: the first half of the result, or the second.
template <int Half, int L, class R, int N, int... I> PT_FN R raw_zip(R a, R b, Lanes<I...>) {
  return __builtin_shufflevector(a, b, (I % 2 * N + (Half * (L / 2) + I / 2) % L)...);
}
template <int Half, class T, int L> PT_FN V<T, L> zip(V<T, L> a, V<T, L> b) {
  using R = typename V<T, L>::Inner;
  return {raw_zip<Half, L, R, raw_lanes<T, L>>(a.n, b.n, Up<raw_lanes<T, L>>{})};
}

// Lane numbers and masks ----------------------------------------------------------------------------------------------
template <class T, int... I> PT_FN Raw<T, sizeof...(I)> raw_iota(Lanes<I...>) { return Raw<T, sizeof...(I)>{T(I)...}; }
template <class T, int L> PT_FN V<T, L> iota() {  // 0, 1, 2, ...
  if constexpr (wide<T, L>) return {iota<T, L / 2>(), iota<T, L / 2>() + V<T, L / 2>(T(L / 2))};
  else return {raw_iota<T>(Up<raw_lanes<T, L>>{})};
}

// A mask of T lanes that is set for lanes below n.
template <class T, int L> PT_FN V<int_of<T>, L> first_n(long n) {
  return iota<int_of<T>, L>() < V<int_of<T>, L>(int_of<T>(n < L ? n : L));
}

template <class T, class M, int L> PT_FN V<int_of<T>, L> mask_to(V<M, L> m);  // convert.h: the mask with lanes of T's size

// m ? a : b, lane by lane. The mask may have lanes of any size.
template <class M, class T, int L> PT_FN V<T, L> select(V<M, L> m, V<T, L> a, alone<V<T, L>> b) {
  if constexpr (sizeof(M) != sizeof(T)) return select(mask_to<T>(m), a, b);
  else if constexpr (wide<T, L>) return {select(m.lo, a.lo, b.lo), select(m.hi, a.hi, b.hi)};
  else return {m.n ? a.n : b.n};
}

// One bit per lane: whether the lane is set. The mask is one register of at most 64 lanes.
template <class M, int L> PT_FN u64 mask_bits(V<M, L> m) {
  static_assert(!is_float<M>, "a mask has integer lanes");
  [[maybe_unused]] constexpr u64 live = L == 64 ? ~u64(0) : (u64(1) << (L % 64)) - 1;
  if constexpr (wide<M, L>) return mask_bits(m.lo) | mask_bits(m.hi) << (L / 2);
#if defined(PT_AVX512)
  else if constexpr (sizeof(m) == 64 && sizeof(M) == 1) return __builtin_ia32_cvtb2mask512((Raw<char, 64>)m.n);
  else if constexpr (sizeof(m) == 64 && sizeof(M) == 2) return __builtin_ia32_cvtw2mask512((Raw<short, 32>)m.n);
  else if constexpr (sizeof(m) == 64 && sizeof(M) == 4) return __builtin_ia32_cvtd2mask512((Raw<int, 16>)m.n);
  else if constexpr (sizeof(m) == 64 && sizeof(M) == 8) return __builtin_ia32_cvtq2mask512((Raw<long long, 8>)m.n);
#endif
#if defined(PT_AVX512) || defined(PT_AVX2)
  else if constexpr (sizeof(m) == 32 && sizeof(M) == 1) return u32(__builtin_ia32_pmovmskb256((Raw<char, 32>)m.n));
  else if constexpr (sizeof(m) == 32 && sizeof(M) == 4) return u32(__builtin_ia32_movmskps256((Raw<float, 8>)m.n));
  else if constexpr (sizeof(m) == 32 && sizeof(M) == 8) return u32(__builtin_ia32_movmskpd256((Raw<double, 4>)m.n));
#endif
#if defined(__SSE2__)
  else if constexpr (sizeof(m) == 16 && sizeof(M) == 1) return __builtin_ia32_pmovmskb128((Raw<char, 16>)m.n) & live;
  else if constexpr (sizeof(m) == 16 && sizeof(M) == 4) return u32(__builtin_ia32_movmskps((Raw<float, 4>)m.n)) & live;
  else if constexpr (sizeof(m) == 16 && sizeof(M) == 8) return u32(__builtin_ia32_movmskpd((Raw<double, 2>)m.n)) & live;
#endif
  else {
    u64 bits = 0;
    PT_UNROLL for (int i = 0; i < L; ++i) bits |= u64(m[i] != 0) << i;
    return bits;
  }
}

template <class M, int L> PT_FN bool hany(V<M, L> m) {
  if constexpr (wide<M, L>) return hany(m.lo | m.hi);
#if !defined(__SSE2__)
  else if constexpr (sizeof(M) * L == 16) return (((Raw<u64, 2>)m.n)[0] | ((Raw<u64, 2>)m.n)[1]) != 0;
#endif
  else return mask_bits(m) != 0;
}
template <class M, int L> PT_FN bool hall(V<M, L> m) { return !hany(~m); }

}  // namespace
}  // namespace pt
