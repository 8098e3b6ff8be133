// division: quotients and remainders of floats and integers, and shifts. No argument traps.
// needs: arith
// gives: floordiv truncdiv remainder fmod shift_left shift_right
//
// Integers: a divisor of 0 counts as 1, as in the reference interpreter; the lowest value divided by -1 wraps.
namespace pt {
namespace {

PT_LIBM2(fmod)

// Integers. -----------------------------------------------------------------------------------------------------------
template <class T> inline __attribute__((noinline)) T divide_one(T a, T b) {
  if constexpr (is_signed<T>) if (b == T(-1)) return T(unsigned_of<T>(0) - unsigned_of<T>(a));
  return a / b;
}
// Divides in a float type that represents every value exactly (double: those below 2^52), so that rounding cannot carry
// the quotient to the next integer.
template <class T, int L> PT_FN V<T, L> divide_trunc(V<T, L> a, V<T, L> b) {
  b = select(b == V<T, L>(T(0)), V<T, L>(T(1)), b);
  if constexpr (sizeof(T) < 4) return cast<T>(cast<float>(a) / cast<float>(b));
  else if constexpr (sizeof(T) == 4) return cast<T>(cast<double>(a) / cast<double>(b));
  else {
#if defined(PT_AVX512)
    const V<u64, L> small(u64(1) << 52);
    const auto fits = (as<u64>(abs(a)) < small) & (as<u64>(abs(b)) < small);
    if (__builtin_expect(hall(fits), 1)) return cast<T>(cast<double>(a) / cast<double>(b));
#endif
    return each([](T x, T y) { return divide_one(x, y); }, a, b);
  }
}
// Whether the remainder r of a truncated division by b has the opposite sign of b.
template <class T, int L> PT_FN V<int_of<T>, L> opposed(V<T, L> r, V<T, L> b) {
  const V<T, L> zero(T(0));
  return (r != zero) & ((r < zero) ^ (b < zero));
}

// Floats. -------------------------------------------------------------------------------------------------------------
// a - trunc(a/b)·b, exact. Floats use double while the quotient has at most 52 bits, else the C library.
template <int L> PT_FN V<float, L> fmod_of_float(V<float, L> a, V<float, L> b) {
#if defined(PT_FMA)
  using D = V<double, L>;
  const D x = cast<double>(abs(a)), y = cast<double>(abs(b)), zero(0.0);
  const D q = trunc(x / y);
  if (__builtin_expect(hany((q >= D(0x1p52)) & (q < D(__builtin_inf()))), 0)) return libm_fmod(a, b);
  D r = mad(-q, y, x);  // rounding up may make q too large by one
  r = select(r < zero, r + y, r);
  r = select((y == D(__builtin_inf())) & (x < y), x, r);
  return copysign(cast<float>(r), a);
#else
  return libm_fmod(a, b);
#endif
}
template <class T, int L> PT_FN V<T, L> floordiv_of_floats(V<T, L> a, V<T, L> b, V<T, L> mod) {
  const V<T, L> zero(T(0)), one(T(1)), ratio = a / b;
  V<T, L> q = (a - mod) / b;
  q = select(opposed(mod, b), q - one, q);
  V<T, L> down = floor(q);
  down = select(q - down > V<T, L>(T(0.5)), down + one, down);
  return select(b == zero, ratio, select(q == zero, copysign(zero, ratio), down));
}

// Both. ---------------------------------------------------------------------------------------------------------------
// The remainder with the sign of a.
template <class T, int L> PT_FN V<T, L> fmod(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (same<T, float>) return fmod_of_float(a, b);
  else if constexpr (same<T, double>) return libm_fmod(a, b);
  else return a - divide_trunc(a, b) * select(b == V<T, L>(T(0)), V<T, L>(T(1)), b);
}
// The remainder with the sign of b, as in Python and torch.remainder.
template <class T, int L> PT_FN V<T, L> remainder(V<T, L> a, alone<V<T, L>> b) {
  const V<T, L> r = fmod(a, b);
  if constexpr (!is_signed<T>) return r; else return select(opposed<T, L>(r, b), r + b, r);
}
// a/b rounded towards zero.
template <class T, int L> PT_FN V<T, L> truncdiv(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (is_float<T>) return trunc(a / b); else return divide_trunc<T, L>(a, b);
}
// a/b rounded down; for floats as in torch.floor_divide: (a - fmod(a, b))/b, corrected.
template <class T, int L> PT_FN V<T, L> floordiv(V<T, L> a, alone<V<T, L>> b) {
  if constexpr (is_float<T>) return floordiv_of_floats<T, L>(a, b, fmod(a, b));
  else if constexpr (!is_signed<T>) return divide_trunc<T, L>(a, b);
  else {
    const V<T, L> q = divide_trunc<T, L>(a, b), r = a - q * select(b == V<T, L>(T(0)), V<T, L>(T(1)), b);
    return select(opposed<T, L>(r, b), q - V<T, L>(T(1)), q);
  }
}

// Shifts by a negative amount or by at least the type's width give 0 to the left and all sign bits to the right, as in torch.
template <class T, int L> PT_FN V<T, L> shift_left(V<T, L> a, alone<V<T, L>> count) {
  using U = V<unsigned_of<T>, L>;
  const auto fits = bits_of<T, L>(count) < U(unsigned_of<T>(8 * sizeof(T)));
  const U safe = select(fits, bits_of<T, L>(count), U(unsigned_of<T>(0)));
  return select(fits, as<T>(bits_of(a) << safe), V<T, L>(T(0)));
}
template <class T, int L> PT_FN V<T, L> shift_right(V<T, L> a, alone<V<T, L>> count) {
  using U = V<unsigned_of<T>, L>;
  constexpr unsigned_of<T> last = 8 * sizeof(T) - 1;
  const U wanted = bits_of<T, L>(count), safe = select(wanted < U(last), wanted, U(last));
  if constexpr (is_signed<T>) return a >> as<T>(safe);
  else return select(wanted <= U(last), as<T>(bits_of(a) >> safe), V<T, L>(T(0)));
}

PT_SCALAR2(floordiv) PT_SCALAR2(truncdiv) PT_SCALAR2(remainder) PT_SCALAR2(fmod)
PT_SCALAR2(shift_left) PT_SCALAR2(shift_right)

}  // namespace
}  // namespace pt
