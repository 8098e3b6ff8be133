// arc: inverse trigonometric functions. Floats are vectorised; doubles use the C library.
// needs: arith
// gives: asin acos atan atan2
namespace pt {
namespace {

PT_LIBM1(asin) PT_LIBM1(acos) PT_LIBM1(atan) PT_LIBM2(atan2)

constexpr float half_pi = 0x1.921fb6p+0f, half_pi_rest = -0x1.777a5cp-25f;

// asin(s) for s in [0, 1/2], z = s².
template <int L> PT_FN V<float, L> asin_near(V<float, L> s, V<float, L> z) {
  return mad(s * z, horner(z, 0.0422195569, 0.024149809, 0.0454761013, 0.0749525353, 0.166667536), s);
}
// Above 1/2, asin(a) = π/2 - 2·asin(sqrt((1 - a)/2)).
template <int L> struct Arc { V<float, L> near; V<i32, L> far; };
template <int L> PT_FN Arc<L> arc_of(V<float, L> a) {
  const V<float, L> half(0.5f);
  const auto far = a > half;
  const V<float, L> z = select(far, (V<float, L>(1.0f) - a) * half, a * a);
  return {asin_near(select(far, sqrt(z), a), z), far};
}

template <class T, int L> PT_FN V<T, L> asin(V<T, L> x) {
  if constexpr (!same<T, float>) return libm_asin(x);
  else {
    const auto [p, far] = arc_of(abs(x));
    return copysign(select(far, V<T, L>(half_pi) - (p + p - V<T, L>(half_pi_rest)), p), x);
  }
}
template <class T, int L> PT_FN V<T, L> acos(V<T, L> x) {
  if constexpr (!same<T, float>) return libm_acos(x);
  else {
    const auto [p, far] = arc_of(abs(x));
    const V<T, L> zero(0.0f), twice = p + p;
    const V<T, L> below = select(x < zero, V<T, L>(2 * half_pi) - (twice - V<T, L>(2 * half_pi_rest)), twice);
    const V<T, L> middle = V<T, L>(half_pi) - (copysign(p, x) - V<T, L>(half_pi_rest));
    return select(far, below, middle);
  }
}

// atan(t) for |t| <= 1.
template <int L> PT_FN V<float, L> atan_near(V<float, L> t) {
  const V<float, L> z = t * t;
  return mad(t * z, horner(z, -0.00178671582, 0.0108844098, -0.0311229937, 0.0579040162, -0.0840040818, 0.109511733,
                           -0.142640531, 0.19998531, -0.333332986), t);
}
template <class T, int L> PT_FN V<T, L> atan(V<T, L> x) {
  if constexpr (!same<T, float>) return libm_atan(x);
  else {
    const V<T, L> a = abs(x), one(1.0f);
    const auto far = a > one;
    const V<T, L> p = atan_near(select(far, -one, a) / select(far, a, one));  // above 1, π/2 + atan(-1/a)
    return copysign(select(far, V<T, L>(half_pi) + (p + V<T, L>(half_pi_rest)), p), x);
  }
}
template <class T, int L> PT_FN V<T, L> atan2(V<T, L> y, alone<V<T, L>> x) {
  if constexpr (!same<T, float>) return libm_atan2(y, x);
  else {
    const V<T, L> ay = abs(y), ax = abs(x), zero(0.0f);
    const auto steep = ay > ax;
    const V<T, L> big = select(steep, ay, ax), small = select(steep, ax, ay);
    V<T, L> t = small / big;
    t = select(big == zero, zero, select(small == V<T, L>(infinity<T>), V<T, L>(1.0f), t));
    const V<T, L> p = atan_near(t), r = select(steep, V<T, L>(half_pi) - (p - V<T, L>(half_pi_rest)), p);
    const V<T, L> angle = select(signbit(x), V<T, L>(2 * half_pi) - (r - V<T, L>(2 * half_pi_rest)), r);
    return select((x != x) | (y != y), x + y, copysign(angle, y));
  }
}

PT_SCALAR1(asin) PT_SCALAR1(acos) PT_SCALAR1(atan) PT_SCALAR2(atan2)

}  // namespace
}  // namespace pt
