// trig: sine, cosine, tangent.
// needs: exp
// gives: sin cos tan
//
// x = n·π/2 + r with |r| <= π/4. π/2 is split into three parts, all positive to keep the sign of 0. n mod 4 selects the
// polynomial for sin r or cos r and its sign. Arguments too large for three parts use the C library.
namespace pt {
namespace {

PT_LIBM1(sin) PT_LIBM1(cos) PT_LIBM1(tan)

#if defined(PT_FMA)
template <class T> constexpr T most_reducible = same<T, float> ? T(1e5) : T(1e6);
#else
template <class T> constexpr T most_reducible = same<T, float> ? T(1e5) : T(-1);  // double: always the C library
#endif

template <class T, int L> struct Quadrant { V<int_of<T>, L> n; V<T, L> r; };

template <class T, int L> PT_FN Quadrant<T, L> reduce_half_pi(V<T, L> x) {
  constexpr bool f = same<T, float>;
  const V<T, L> shifted = mad(x, V<T, L>(T(0x1.45f306dc9c883p-1)), V<T, L>(magic<T>)), n = shifted - V<T, L>(magic<T>);
  V<T, L> r;
  if constexpr (f) {
#if defined(PT_FMA)
    r = mad(-n, V<T, L>(T(0x1.921fb4p+0)), x);
    r = mad(-n, V<T, L>(T(0x1.4442dp-24)), r);
    r = mad(-n, V<T, L>(T(0x1.846988p-48)), r);
#else
    using D = V<double, L>;
    const D nd = cast<double>(n);
    r = cast<float>(cast<double>(x) - nd * D(0x1.921fb544p+0) - nd * D(0x1.0b4611a6p-34));
#endif
  } else {
    r = mad(-n, V<T, L>(T(0x1.921fb54442d18p+0)), x);
    r = mad(-n, V<T, L>(T(0x1.1a62633145c06p-54)), r);
    r = mad(-n, V<T, L>(T(0x1.c1cd129024e08p-107)), r);
  }
  return {as<int_of<T>>(shifted), r};  // the low bits of the shifted sum are those of n
}

template <class T, int L> PT_FN V<T, L> sin_near(V<T, L> r) {
  const V<T, L> z = r * r;
  V<T, L> p;
  if constexpr (same<T, float>) p = horner(z, 2.82798146e-6, -1.98526395e-4, 8.33337847e-3, -0.166666672);
  else
    p = horner(z, -7.4079048953690974e-13, 1.6054667715830571e-10, -2.5052073520254755e-8, 2.7557319082767145e-6,
               -1.9841269840975849e-4, 8.3333333333330487e-3, -0.16666666666666666);
  if constexpr (same<T, float>) return r * mad(z, p, V<T, L>(T(1)));  // a product keeps the sign of 0
  else return select(r == V<T, L>(T(0)), r, mad(r * z, p, r));
}
template <class T, int L> PT_FN V<T, L> cos_near(V<T, L> r) {
  const V<T, L> z = r * r, one(T(1));
  if constexpr (same<T, float>)
    return mad(z, mad(z, horner(z, 2.44323091e-5, -1.38873095e-3, 4.16666456e-2), V<T, L>(T(-0.5))), one);
  else {
    const V<T, L> p = horner(z, 4.6005338599686328e-14, -1.1467025889700285e-11, 2.0876723334920996e-9,
                             -2.7557319065822491e-7, 2.4801587301190277e-5, -1.3888888888888395e-3,
                             4.1666666666666664e-2);
    const V<T, L> half = V<T, L>(T(0.5)) * z, near = one - half;  // adds back the rounding error of `near`
    return near + mad(z * z, p, (one - near) - half);
  }
}

// sin(x + quarters·π/2) for reducible arguments.
template <class T, int L> PT_FN V<T, L> sin_quarters(V<T, L> x, int quarters) {
  using I = V<int_of<T>, L>;
  const auto [n, r] = reduce_half_pi(x);
  const I q = n + I(int_of<T>(quarters)), one(int_of<T>(1));
  const V<T, L> y = select((q & one) == one, cos_near(r), sin_near(r));
  return as<T>(as<int_of<T>>(y) ^ ((q & I(int_of<T>(2))) << I(int_of<T>(8 * sizeof(T) - 2))));
}
template <class T, int L> PT_FN V<T, L> tan_near(V<T, L> x) {
  using I = V<int_of<T>, L>;
  const auto [n, r] = reduce_half_pi(x);
  const auto odd = (n & I(int_of<T>(1))) != I(int_of<T>(0));
  const V<T, L> s = sin_near(r), c = cos_near(r);
  return select(odd, -c, s) / select(odd, s, c);
}

// y where x is reducible, f(x) from the C library elsewhere, so that no lane's result depends on its neighbours.
template <class F, class T, int L> PT_FN V<T, L> mend_large(V<T, L> x, V<T, L> y, F f) {
  const auto large = ~(abs(x) <= V<T, L>(most_reducible<T>));
  if (__builtin_expect(hany(large), 0)) y = select(large, f(x), y);
  return y;
}
#define PT_MENDED(name, near)                                                                    \
  template <class T, int L> PT_FN V<T, L> name(V<T, L> x) {                                      \
    return mend_large(x, near, [](V<T, L> v) { return libm_##name(v); });                        \
  }
PT_MENDED(sin, sin_quarters(x, 0))
PT_MENDED(cos, sin_quarters(x, 1))
PT_MENDED(tan, tan_near(x))
#undef PT_MENDED

PT_SCALAR1(sin) PT_SCALAR1(cos) PT_SCALAR1(tan)

}  // namespace
}  // namespace pt
