// log: logarithms.
// needs: exp
// gives: log log2 log10 log1p
//
// x = 2^e·m with m in [3/4, 3/2), so that e = 0 for x near 1 and nothing cancels. log(1 + f) = f - f²/2 + f³·P(f) for
// float; double uses a series in s = f/(2 + f).
namespace pt {
namespace {

template <class T, int L> struct Parted { V<T, L> e, m; };

#if defined(PT_AVX512)
// Exponent (as a float) and mantissa by dedicated instructions, which handle zero, subnormal, negative and infinite
// numbers.
#define PT_PART(T, N, code, mask, ...)                                                                               \
  PT_FN Raw<T, N> raw_exponent(Raw<T, N> v) { return __builtin_ia32_getexp##code##_mask(v, v, mask __VA_ARGS__); }   \
  PT_FN Raw<T, N> raw_mantissa(Raw<T, N> v) { return __builtin_ia32_getmant##code##_mask(v, 11, v, mask __VA_ARGS__); }
PT_PART(float, 16, ps512, u16(-1), , 4)
PT_PART(double, 8, pd512, u8(-1), , 4)
PT_PART(float, 8, ps256, u8(-1))
PT_PART(double, 4, pd256, u8(-1))
PT_PART(float, 4, ps128, u8(-1))
PT_PART(double, 2, pd128, u8(-1))
#undef PT_PART
#endif

template <class T, int L> PT_FN Parted<T, L> part(V<T, L> x) {
#if defined(PT_AVX512)
  if constexpr (wide<T, L>) {
    const Parted<T, L / 2> lo = part(x.lo), hi = part(x.hi);
    return {{lo.e, hi.e}, {lo.m, hi.m}};
  } else {
    const V<T, L> m = V<T, L>(raw_mantissa(x.n)), e = V<T, L>(raw_exponent(x.n));
    return {select(m < V<T, L>(T(1)), e + V<T, L>(T(1)), e), m};
  }
#else
  using I = V<int_of<T>, L>;
  constexpr int digits = mantissa_bits<T>;
  const auto small = x < power_of_two<T, L>(I(int_of<T>(1 - exponent_bias<T>)));
  const I bits = as<int_of<T>>(select(small, x * power_of_two<T, L>(I(int_of<T>(digits))), x));
  const I k = (bits - as<int_of<T>>(V<T, L>(T(0.75)))) >> I(int_of<T>(digits));
  const V<T, L> m = as<T>(bits - (k << I(int_of<T>(digits))));
  const V<T, L> e = as<T>(k + as<int_of<T>>(V<T, L>(magic<T>))) - V<T, L>(magic<T>);
  return {e - select(small, V<T, L>(T(digits)), V<T, L>(T(0))), m};
#endif
}

// The logarithm of x where x is 0, negative, infinite or NaN; y elsewhere.
template <class T, int L> PT_FN V<T, L> log_edges(V<T, L> x, V<T, L> y) {
#if defined(PT_AVX512)
  return y;  // part() has handled these
#else
  const V<T, L> zero(T(0)), infinite(infinity<T>);
  y = select(x < infinite, y, x);
  return select(x > zero, y, select(x == zero, -infinite, V<T, L>(not_a_number<T>)));
#endif
}

// log(1 + f), f in [-1/4, 1/2].
template <class T, int L> PT_FN V<T, L> log1p_near(V<T, L> f) {
  if constexpr (same<T, float>) {
    const V<T, L> p = horner(f, 0.0375183113, -0.0909906998, 0.11697606, -0.127300218, 0.142768875, -0.166551977,
                             0.199995726, -0.250001669, 0.333333403);
    const V<T, L> square = f * f;
    return mad(square, mad(f, p, V<T, L>(T(-0.5))), f);
  } else {
    const V<T, L> s = f / (V<T, L>(T(2)) + f), z = s * s, half = V<T, L>(T(0.5)) * f * f;
    const V<T, L> p = z * horner(z, 0.15373647749177141, 0.15249482826268942, 0.18186391664973087, 0.22222137619915003,
                                 0.2857142940633578, 0.39999999996097718, 0.66666666666672836);
    return f - (half - s * (half + p));
  }
}

template <class T, int L> PT_FN V<T, L> log(V<T, L> x) {
  constexpr bool f = same<T, float>;
  const auto [e, m] = part(x);
  const V<T, L> y = mad(e, V<T, L>(f ? T(0x1.7f7d1cp-20) : T(0x1.a39ef35793c76p-33)), log1p_near(m - V<T, L>(T(1))));
  return log_edges(x, mad(e, V<T, L>(f ? T(0x1.62e4p-1) : T(0x1.62e42feep-1)), y));
}

template <class T, int L> PT_FN V<T, L> log2(V<T, L> x) {
  const auto [e, m] = part(x);
  return log_edges(x, mad(log1p_near(m - V<T, L>(T(1))), V<T, L>(T(1.4426950408889634)), e));
}

template <class T, int L> PT_FN V<T, L> log10(V<T, L> x) {
  constexpr bool f = same<T, float>;
  constexpr T high = f ? T(0x1.344p-2) : T(0x1.34413509f6p-2), low = f ? T(0x1.3509f8p-18) : T(0x1.9fef311f12b36p-42);
  const auto [e, m] = part(x);
  const V<T, L> y = mad(log1p_near(m - V<T, L>(T(1))), V<T, L>(T(0.43429448190325183)), e * V<T, L>(low));
  return log_edges(x, mad(e, V<T, L>(high), y));
}

// log(1 + x): e and m are those of 1 + x, but f = (1 + x)·2^-e - 1 is x·2^-e + (2^-e - 1), which loses no digits.
template <class T, int L> PT_FN V<T, L> log1p(V<T, L> x) {
  constexpr bool f = same<T, float>;
  const V<T, L> one(T(1)), u = one + x;
  const auto [e, m] = part(u);
  const auto exact = (x > -one) & (x < V<T, L>(f ? T(0x1p30) : T(0x1p60)));
  const V<T, L> s = scale(one, V<T, L>(T(0)) - e), g = select(exact, mad(x, s, s - one), m - one);
  const V<T, L> y = mad(e, V<T, L>(f ? T(0x1.7f7d1cp-20) : T(0x1.a39ef35793c76p-33)), log1p_near(g));
  const V<T, L> z = log_edges(u, mad(e, V<T, L>(f ? T(0x1.62e4p-1) : T(0x1.62e42feep-1)), y));
  return select(x == V<T, L>(T(0)), x, z);  // keeps the sign of 0
}

PT_SCALAR1(log) PT_SCALAR1(log2) PT_SCALAR1(log10) PT_SCALAR1(log1p)

}  // namespace
}  // namespace pt
