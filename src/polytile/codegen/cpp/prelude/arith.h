// arith: arithmetic without an operator: rounding, roots, extremes, signs, tests; also for integers where meaningful.
// needs: convert
// gives: abs sign sqrt rsqrt reciprocal floor ceil trunc round minimum maximum min max fmin fmax copysign isnan isinf
//        isfinite signbit fma mad lesser greater horner each
namespace pt {
namespace {

template <class T> constexpr bool is_vector = false;
template <class T, int L> constexpr bool is_vector<V<T, L>> = true;
// The same function for scalars.
#define PT_SCALAR1(name) \
  template <class T, when<!is_vector<T>> = 0> PT_FN T name(T x) { return name(V<T, 1>(x))[0]; }
#define PT_SCALAR2(name) \
  template <class T, when<!is_vector<T>> = 0> PT_FN T name(T a, alone<T> b) { return name(V<T, 1>(a), V<T, 1>(b))[0]; }

template <class T> constexpr T infinity = T(__builtin_inf());
template <class T> constexpr T not_a_number = T(__builtin_nan(""));
template <class T> constexpr u64 sign_bit = u64(1) << (8 * sizeof(T) - 1);

template <class T, int L> PT_FN V<unsigned_of<T>, L> bits_of(V<T, L> v) { return as<unsigned_of<T>>(v); }

// a·b + c, rounded once if the machine has a fused instruction.
template <class T, int L> PT_FN V<T, L> mad(V<T, L> a, alone<V<T, L>> b, alone<V<T, L>> c) {
  if constexpr (wide<T, L>) return {mad(a.lo, b.lo, c.lo), mad(a.hi, b.hi, c.hi)};
  else return V<T, L>(a.n * b.n + c.n);
}
// The polynomial in x whose coefficients, highest power first, follow.
template <class T, int L, class... C> PT_FN V<T, L> horner(V<T, L> x, double top, C... rest) {
  V<T, L> p{T(top)};
  ((p = mad(p, x, V<T, L>(T(rest)))), ...);
  return p;
}

// One register at a time: by instructions if the machine has them, else lane by lane. ---------------------------------
#define PT_LANES1(name, f, d)                                                                    \
  template <class R> PT_FN R raw_##name(R v) {                                                   \
    R r;                                                                                         \
    PT_UNROLL for (unsigned i = 0; i < sizeof(R) / sizeof(v[0]); ++i) {                          \
      if constexpr (sizeof(v[0]) == 4) r[i] = f(v[i]); else r[i] = d(v[i]);                      \
    }                                                                                            \
    return r;                                                                                    \
  }
PT_LANES1(sqrt, __builtin_sqrtf, __builtin_sqrt)
#define PT_RAW1(name, T, N, call) PT_FN Raw<T, N> raw_##name(Raw<T, N> v) { return call; }
#if defined(PT_GCC_X86)
PT_RAW1(sqrt, float, 4, __builtin_ia32_sqrtps(v))
PT_RAW1(sqrt, double, 2, __builtin_ia32_sqrtpd(v))
#if PT_WIDTH >= 32
PT_RAW1(sqrt, float, 8, __builtin_ia32_sqrtps256(v))
PT_RAW1(sqrt, double, 4, __builtin_ia32_sqrtpd256(v))
#endif
#if PT_WIDTH >= 64
PT_RAW1(sqrt, float, 16, __builtin_ia32_sqrtps512_mask(v, v, u16(-1), 4))
PT_RAW1(sqrt, double, 8, __builtin_ia32_sqrtpd512_mask(v, v, u8(-1), 4))
#endif
#elif defined(__aarch64__) && !defined(__clang__)
PT_RAW1(sqrt, float, 4, __builtin_aarch64_sqrtv4sf(v))
PT_RAW1(sqrt, double, 2, __builtin_aarch64_sqrtv2df(v))
#endif

// a < b ? a : b and a > b ? a : b. If either is NaN, the result is b, as with x86's instructions.
template <class R> PT_FN R raw_lesser(R a, R b) { return a < b ? a : b; }
template <class R> PT_FN R raw_greater(R a, R b) { return a > b ? a : b; }
#if defined(PT_GCC_X86)
#define PT_EXTREMES(T, N, code, ...)                                                             \
  PT_FN Raw<T, N> raw_lesser(Raw<T, N> a, Raw<T, N> b) { return __builtin_ia32_min##code(a, b __VA_ARGS__); }   \
  PT_FN Raw<T, N> raw_greater(Raw<T, N> a, Raw<T, N> b) { return __builtin_ia32_max##code(a, b __VA_ARGS__); }
PT_EXTREMES(float, 4, ps)
PT_EXTREMES(double, 2, pd)
#if PT_WIDTH >= 32
PT_EXTREMES(float, 8, ps256)
PT_EXTREMES(double, 4, pd256)
#endif
#if PT_WIDTH >= 64
PT_EXTREMES(float, 16, ps512_mask, , a, u16(-1), 4)
PT_EXTREMES(double, 8, pd512_mask, , a, u8(-1), 4)
#endif
#undef PT_EXTREMES
#endif

// Rounds to an integer. Modes are numbered as on x86: 0 to nearest even, 1 down, 2 up, 3 towards zero.
template <int Mode, class R> PT_FN R raw_round(R v) {
  constexpr int bytes = sizeof(R), lane = sizeof(v[0]);
  (void)bytes;
#if defined(PT_AVX512)
  using F = Raw<float, 16>;
  using D = Raw<double, 8>;
  if constexpr (bytes == 64 && lane == 4) return (R)__builtin_ia32_rndscaleps_mask((F)v, Mode | 8, (F)v, u16(-1), 4);
  else if constexpr (bytes == 64) return (R)__builtin_ia32_rndscalepd_mask((D)v, Mode | 8, (D)v, u8(-1), 4);
  else
#endif
#if PT_WIDTH >= 32
  if constexpr (bytes == 32 && lane == 4) return (R)__builtin_ia32_roundps256((Raw<float, 8>)v, Mode | 8);
  else if constexpr (bytes == 32) return (R)__builtin_ia32_roundpd256((Raw<double, 4>)v, Mode | 8);
  else
#endif
#if defined(__SSE4_1__)
  if constexpr (lane == 4) return (R)__builtin_ia32_roundps((Raw<float, 4>)v, Mode | 8);
  else return (R)__builtin_ia32_roundpd((Raw<double, 2>)v, Mode | 8);
#else
  {
    using T = __typeof__(v[0] + v[0]);
    using Bits = Raw<int_of<T>, sizeof(R) / sizeof(T)>;
    constexpr T big = lane == 4 ? T(0x1p23) : T(0x1p52);  // all numbers from here on are integers
    const Bits sign = (Bits)v & int_of<T>(sign_bit<T>);
    const R size = (R)((Bits)v & ~int_of<T>(sign_bit<T>)), down = size + big - big;
    R whole = (R)((Bits)down | sign);
    if constexpr (Mode == 1) whole = whole > v ? whole - 1 : whole;
    if constexpr (Mode == 2) whole = (R)((Bits)(whole < v ? whole + 1 : whole) | sign);
    if constexpr (Mode == 3) whole = (R)((Bits)(down > size ? down - 1 : down) | sign);
    return size < big ? whole : v;
  }
#endif
}

template <class T, int L> PT_FN V<T, L> lesser(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (wide<T, L>) return {lesser(a.lo, b.lo), lesser(a.hi, b.hi)}; else return {raw_lesser(a.n, b.n)};
}
template <class T, int L> PT_FN V<T, L> greater(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (wide<T, L>) return {greater(a.lo, b.lo), greater(a.hi, b.hi)}; else return {raw_greater(a.n, b.n)};
}
template <int Mode, class T, int L> PT_FN V<T, L> whole(V<T, L> v) {
  if constexpr (!is_float<T>) return v;
  else if constexpr (wide<T, L>) return {whole<Mode>(v.lo), whole<Mode>(v.hi)};
  else return {raw_round<Mode>(v.n)};
}

// The functions themselves. -------------------------------------------------------------------------------------------
template <class T, int L> PT_FN V<T, L> sqrt(V<T, L> v) {
  if constexpr (wide<T, L>) return {sqrt(v.lo), sqrt(v.hi)}; else return {raw_sqrt(v.n)};
}
template <class T, int L> PT_FN V<T, L> rsqrt(V<T, L> v) { return V<T, L>(T(1)) / sqrt(v); }
template <class T, int L> PT_FN V<T, L> reciprocal(V<T, L> v) { return V<T, L>(T(1)) / v; }
template <class T, int L> PT_FN V<T, L> round(V<T, L> v) { return whole<0>(v); }  // ties to even
template <class T, int L> PT_FN V<T, L> floor(V<T, L> v) { return whole<1>(v); }
template <class T, int L> PT_FN V<T, L> ceil(V<T, L> v) { return whole<2>(v); }
template <class T, int L> PT_FN V<T, L> trunc(V<T, L> v) { return whole<3>(v); }

template <class T, int L> PT_FN V<T, L> abs(V<T, L> v) {
  using U = V<unsigned_of<T>, L>;
  if constexpr (is_float<T>) return as<T>(bits_of(v) & U(unsigned_of<T>(~sign_bit<T>)));
  else if constexpr (is_signed<T>) return select(v < V<T, L>(T(0)), -v, v);
  else return v;
}
// The magnitude of `size` with the sign of `sign`.
template <class T, int L> PT_FN V<T, L> copysign(V<T, L> size, alone<V<T, L>> sign) {
  using U = V<unsigned_of<T>, L>;
  const U mask(unsigned_of<T>(sign_bit<T>));
  return as<T>((bits_of(size) & ~mask) | (bits_of(sign) & mask));
}
template <class T, int L> PT_FN V<int_of<T>, L> signbit(V<T, L> v) {
  if constexpr (is_signed<T>) return as<int_of<T>>(v) < V<int_of<T>, L>(int_of<T>(0)); else return {};
}
template <class T, int L> PT_FN V<int_of<T>, L> isnan(V<T, L> v) { return v != v; }
template <class T, int L> PT_FN V<int_of<T>, L> isinf(V<T, L> v) {
  if constexpr (is_float<T>) return abs(v) == V<T, L>(infinity<T>); else return {};
}
template <class T, int L> PT_FN V<int_of<T>, L> isfinite(V<T, L> v) {
  if constexpr (is_float<T>) return abs(v) < V<T, L>(infinity<T>); else return v == v;
}

// 1, 0 or -1; 0 for NaN, as in torch.sign.
template <class T, int L> PT_FN V<T, L> sign(V<T, L> v) {
  const V<T, L> zero(T(0)), one(T(1));
  if constexpr (is_signed<T>) return select(v < zero, -one, select(v > zero, one, zero));
  else return select(v != zero, one, zero);
}

// NaN if either is NaN. In a running minimum `a`, only the minimum itself depends on the previous step, not the NaN test.
template <class T, int L> PT_FN V<T, L> minimum(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (is_float<T>) return select(b != b, b, lesser(b, a)); else return lesser(b, a);
}
template <class T, int L> PT_FN V<T, L> maximum(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (is_float<T>) return select(b != b, b, greater(b, a)); else return greater(b, a);
}
template <class T, int L> PT_FN V<T, L> min(V<T, L> a, alone<V<T, L>> b) { return minimum(a, b); }
template <class T, int L> PT_FN V<T, L> max(V<T, L> a, alone<V<T, L>> b) { return maximum(a, b); }
// If one operand is NaN, the result is the other.
template <class T, int L> PT_FN V<T, L> fmin(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (is_float<T>) return select(b != b, a, lesser(a, b)); else return lesser(a, b);
}
template <class T, int L> PT_FN V<T, L> fmax(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (is_float<T>) return select(b != b, a, greater(a, b)); else return greater(a, b);
}

// a·b + c rounded once.
template <class T, int L> PT_FN V<T, L> fma(V<T, L> a, alone<V<T, L>> b, alone<V<T, L>> c) {
#if defined(PT_FMA)
  return mad(a, b, c);
#else
  if constexpr (!is_float<T>) return a * b + c;
  V<T, L> r;
  PT_NO_UNROLL for (int i = 0; i < L; ++i) {
    if constexpr (same<T, float>) r[i] = __builtin_fmaf(a[i], b[i], c[i]); else r[i] = __builtin_fma(a[i], b[i], c[i]);
  }
  return r;
#endif
}

// f of each lane, one after the other: for rare or long functions.
template <class F, class T, int L> PT_FN V<T, L> each(F f, V<T, L> a) {
  V<T, L> r;
  PT_NO_UNROLL for (int i = 0; i < L; ++i) r[i] = f(a[i]);
  return r;
}
template <class F, class T, int L> PT_FN V<T, L> each(F f, V<T, L> a, V<T, L> b) {
  V<T, L> r;
  PT_NO_UNROLL for (int i = 0; i < L; ++i) r[i] = f(a[i], b[i]);
  return r;
}
// The C library's function, lane by lane: LIBM1(sin) defines libm_sin.
#define PT_LIBM1(name)                                                                           \
  template <class T, int L> PT_FN V<T, L> libm_##name(V<T, L> v) {                               \
    return each([](T x) {                                                                        \
      if constexpr (same<T, float>) return __builtin_##name##f(x); else return __builtin_##name(x); \
    }, v);                                                                                       \
  }
#define PT_LIBM2(name)                                                                           \
  template <class T, int L> PT_FN V<T, L> libm_##name(V<T, L> a, V<T, L> b) {                    \
    return each([](T x, T y) {                                                                   \
      if constexpr (same<T, float>) return __builtin_##name##f(x, y); else return __builtin_##name(x, y); \
    }, a, b);                                                                                    \
  }

PT_SCALAR1(sqrt) PT_SCALAR1(rsqrt) PT_SCALAR1(reciprocal) PT_SCALAR1(round) PT_SCALAR1(floor) PT_SCALAR1(ceil)
PT_SCALAR1(trunc) PT_SCALAR1(abs) PT_SCALAR1(sign) PT_SCALAR2(copysign) PT_SCALAR2(minimum) PT_SCALAR2(maximum)
PT_SCALAR2(min) PT_SCALAR2(max) PT_SCALAR2(fmin) PT_SCALAR2(fmax)

}  // namespace
}  // namespace pt
