// exp: exponentials.
// needs: arith
// gives: exp exp2 expm1 sigmoid exp_times
//
// e^x = 2^n·e^r with n = round(x·log2 e) and |r| <= ln(2)/2. e^r is a polynomial: near-minimax fits whose coefficients
// are rounded one by one. Relative errors before the final rounding are below 2^-28 for float and 2^-57 for double.
namespace pt {
namespace {

template <class T> constexpr T magic = same<T, float> ? T(0x1.8p23) : T(0x1.8p52);  // x + magic - magic is x rounded
template <class T> constexpr int mantissa_bits = same<T, float> ? 23 : 52;
template <class T> constexpr int exponent_bias = same<T, float> ? 127 : 1023;

// 2^k for exponents of normal numbers.
template <class T, int L> PT_FN V<T, L> power_of_two(V<int_of<T>, L> k) {
  using I = V<int_of<T>, L>;
  return as<T>((k + I(exponent_bias<T>)) << I(mantissa_bits<T>));
}

#if defined(PT_AVX512)
#define PT_SCALE(T, N, code, ...)                                                                \
  PT_FN Raw<T, N> raw_scale(Raw<T, N> p, Raw<T, N> n) {                                          \
    return __builtin_ia32_scalef##code##_mask(p, n, p, __VA_ARGS__);                             \
  }
PT_SCALE(float, 16, ps512, u16(-1), 4)
PT_SCALE(double, 8, pd512, u8(-1), 4)
PT_SCALE(float, 8, ps256, u8(-1))
PT_SCALE(double, 4, pd256, u8(-1))
PT_SCALE(float, 4, ps128, u8(-1))
PT_SCALE(double, 2, pd128, u8(-1))
#undef PT_SCALE
#endif
// p·2^n for an integer n; subnormal results are rounded once.
template <class T, int L> PT_FN V<T, L> scale(V<T, L> p, V<T, L> n) {
#if defined(PT_AVX512)
  if constexpr (wide<T, L>) return {scale(p.lo, n.lo), scale(p.hi, n.hi)};
  else return {raw_scale(p.n, n.n)};
#else
  using I = V<int_of<T>, L>;
  const I k = as<int_of<T>>(n + V<T, L>(magic<T>)) - as<int_of<T>>(V<T, L>(magic<T>));
  const I half = k >> I(int_of<T>(1));
  return p * power_of_two<T, L>(half) * power_of_two<T, L>(k - half);
#endif
}

// 2^n for an integer n with a normal result.
template <class T, int L> PT_FN V<T, L> scale_one(V<T, L> n) {
  return power_of_two<T, L>(as<int_of<T>>(n + V<T, L>(magic<T>)) - as<int_of<T>>(V<T, L>(magic<T>)));
}

template <class T, int L> struct Reduced { V<T, L> n, r; };  // x = n·ln 2 + r

// For x clamped by clamp_exponent; NaN stays NaN.
template <class T, int L> PT_FN Reduced<T, L> reduce_ln2(V<T, L> x) {
  constexpr bool f = same<T, float>;
  constexpr T high = f ? T(0x1.62e4p-1) : T(0x1.62e42feep-1), low = f ? T(0x1.7f7d1cp-20) : T(0x1.a39ef35793c76p-33);
  const V<T, L> n = mad(x, V<T, L>(T(0x1.71547652b82fep0)), V<T, L>(magic<T>)) - V<T, L>(magic<T>);
  return {n, mad(-n, V<T, L>(low), mad(-n, V<T, L>(high), x))};
}

template <class T, int L> PT_FN V<T, L> clamp_exponent(V<T, L> x, T lowest, T highest) {
  return greater(V<T, L>(lowest), lesser(V<T, L>(highest), x));
}

// e^x·2^bias, correct even where e^x itself would overflow.
template <class T, int L> PT_FN V<T, L> exp_times(V<T, L> x, T bias) {
  constexpr bool f = same<T, float>;
  const auto [n, r] = reduce_ln2(clamp_exponent(x, f ? T(-105) : T(-746), f ? T(90) : T(711)));
  V<T, L> p;
  if constexpr (f) p = horner(r, 0.0013822841, 0.00836882368, 0.0416682437, 0.166665196, 0.49999994, 1, 1);
  else
    p = horner(r, 2.5011092703525529e-8, 2.7630519148578731e-7, 2.755755071329598e-6, 2.4801492313565127e-5,
               1.9841269547903775e-4, 1.3888888944432348e-3, 8.333333333474368e-3, 4.1666666666526797e-2,
               0.16666666666666446, 0.50000000000000111, 1, 1);
  return scale(p, bias == T(0) ? n : n + V<T, L>(bias));
}

template <class T, int L> PT_FN V<T, L> exp(V<T, L> x) { return exp_times(x, T(0)); }

template <class T, int L> PT_FN V<T, L> exp2(V<T, L> x) {
  constexpr bool f = same<T, float>;
  x = clamp_exponent(x, f ? T(-151) : T(-1076), f ? T(129) : T(1025));
  const V<T, L> n = x + V<T, L>(magic<T>) - V<T, L>(magic<T>), r = x - n;
  V<T, L> p;
  if constexpr (f)
    p = horner(r, 1.5329865e-4, 1.33911625e-3, 9.61849838e-3, 5.55035919e-2, 0.240226477, 0.693147182, 1);
  else
    p = horner(r, 4.4396026250175033e-10, 7.0733337125843192e-9, 1.0178155584235667e-7, 1.321543823403392e-6,
               1.5252733643321738e-5, 1.5403530450288337e-4, 1.3333558146538503e-3, 9.6181291076005617e-3,
               5.5504108664821743e-2, 0.24022650695910111, 0.69314718055994529, 1);
  return scale(p, n);
}

// e^r - 1 for |r| <= ln(2)/2.
template <class T, int L> PT_FN V<T, L> expm1_near(V<T, L> r) {
  V<T, L> q;
  if constexpr (same<T, float>)
    q = horner(r, 1.97356785e-4, 1.39330188e-3, 8.33357498e-3, 4.16664854e-2, 0.166666657, 0.5);
  else
    q = horner(r, 2.0891069346213259e-9, 2.5109186456054503e-8, 2.7557347454423908e-7, 2.755724377539565e-6,
               2.4801587244360753e-5, 1.9841269886570874e-4, 1.3888888888920151e-3, 8.3333333333214434e-3,
               4.1666666666666616e-2, 0.16666666666666677, 0.5);
  return mad(r * r, q, r);
}
// e^x - 1 = s·(e^r - 1) + (s - 1), s = 2^n, where s is a normal number: |x| <= 80.
template <class T, int L> PT_FN V<T, L> expm1_small(V<T, L> x) {
  const auto [n, r] = reduce_ln2(x);
  const V<T, L> s = scale_one(n);
  return mad(s, expm1_near(r), s - V<T, L>(T(1)));
}
// The same as 2·(s·(e^r - 1) + (s - 1/2)) with s = 2^(n-1), which cannot overflow before the result does.
template <class T, int L> PT_FN V<T, L> expm1(V<T, L> x) {
  constexpr bool f = same<T, float>;
  const auto [n, r] = reduce_ln2(clamp_exponent(x, f ? T(-20) : T(-40), f ? T(89) : T(709.9)));
  const V<T, L> half(T(0.5)), s = scale(half, n), y = mad(s, expm1_near(r), s - half);
  return select(x == V<T, L>(T(0)), x, y + y);  // keeps the sign of 0
}

// 1/(1 + e^-x), computed from e^-|x| so that small results keep their precision.
template <class T, int L> PT_FN V<T, L> sigmoid(V<T, L> x) {
  const V<T, L> e = exp(-abs(x)), one(T(1));
  return select(x < V<T, L>(T(0)), e, one) / (one + e);
}

PT_SCALAR1(exp) PT_SCALAR1(exp2) PT_SCALAR1(expm1) PT_SCALAR1(sigmoid)

}  // namespace
}  // namespace pt
