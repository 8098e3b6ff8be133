// pow: powers.
// needs: arith
// gives: pow
namespace pt {
namespace {

PT_LIBM2(pow)

// |x|^y in double. x is a float, so its exponent is in range, and 2^(y·log2|x|) overflows float long before double.
template <int L> PT_FN V<double, L> power_of_floats(V<double, L> x, V<double, L> y) {
  using D = V<double, L>;
  using I = V<i64, L>;
  const D magic(0x1.8p52);
  const I bits = as<i64>(x), k = (bits - as<i64>(D(0.75))) >> I(52l);
  const D e = as<double>(k + as<i64>(magic)) - magic, f = as<double>(bits - (k << I(52l))) - D(1.0);
  const D p = horner(f, -0.032195328355946379, 0.090389963458800626, -0.12668766392485872, 0.13659375794170375,
                     -0.14476069136512087, 0.15992652280051597, -0.18026505423394867, 0.20610966374195036,
                     -0.24045192152052813, 0.28853889249985737, -0.36067372117593016, 0.48089834739489318,
                     -0.72134752059624196, 1.4426950408885897);
  D log = mad(f, p, e);
  log = select(x == D(0.0), D(-__builtin_inf()), select(x < D(__builtin_inf()), log, x));
  const D t = greater(D(-300.0), lesser(D(300.0), y * log)), shifted = t + magic, r = t - (shifted - magic);
  const D q = horner(r, 0.0001535699486451455, 0.0013399104719354989, 0.0096184244302534565, 0.055503317937815294,
                     0.24022648021701171, 0.69314720329040469, 1);
  return as<double>(as<i64>(q) + (as<i64>(shifted) << I(52l)));
}

template <int L> PT_FN V<float, L> pow_of_float(V<float, L> x, V<float, L> y) {
  using F = V<float, L>;
  const F zero(0.0f), one(1.0f), half(0.5f), a = abs(x), infinite(infinity<float>);
  F r = cast<float>(power_of_floats(cast<double>(a), cast<double>(y)));
  const auto integer = trunc(y) == y, even = trunc(y * half) * F(2.0f) == y;
  r = select(signbit(x) & integer & ~even, -r, r);
  r = select((x < zero) & ~integer & (a < infinite), F(not_a_number<float>), r);
  return select((y == zero) | (x == one) | ((a == one) & (abs(y) == infinite)), one, r);
}

// Integer powers by squaring, wrapping as the type does. Negative powers of integers other than 1 and -1 are 0.
template <class T, int L> PT_FN V<T, L> pow_of_integer(V<T, L> x, V<T, L> y) {
  using I = V<T, L>;
  const I zero(T(0)), one(T(1));
  I r = one, base = x, left = select(y < zero, y & one, y);
  PT_NO_UNROLL while (hany(left != zero)) {
    r = select((left & one) != zero, r * base, r);
    base = base * base;
    left = as<T>(as<unsigned_of<T>>(left) >> V<unsigned_of<T>, L>(unsigned_of<T>(1)));
  }
  return select((y < zero) & (x != one) & (x != I(T(-1))), zero, r);
}

template <class T, int L> PT_FN V<T, L> pow(V<T, L> x, alone<V<T, L>> y) {
  if constexpr (same<T, float>) return pow_of_float(x, y);
  else if constexpr (same<T, double>) return libm_pow(x, y);
  else return pow_of_integer(x, y);
}

PT_SCALAR2(pow)

}  // namespace
}  // namespace pt
