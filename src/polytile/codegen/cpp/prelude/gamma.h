// gamma: the power series and the continued fraction of the incomplete gamma functions, until the last lane is settled.
// needs: arith
// gives: gamma_series gamma_fraction
namespace pt {
namespace {

template <class T> constexpr T epsilon = same<T, double> ? T(0x1p-52) : T(0x1p-23);

// 1 + x/(a + 1) + x²/((a + 1)(a + 2)) + …, of 0 ≤ x ≤ max(a, 2).
template <class T, int L> PT_FN V<T, L> gamma_series(V<T, L> a, alone<V<T, L>> x) {
  const V<T, L> least(epsilon<T> / 8);
  V<T, L> term(T(1)), sum(T(1));
  i64 n = 0;
  PT_NO_UNROLL while (hany(term > least * sum)) {
    term = term * x / (a + V<T, L>(T(++n)));
    sum = sum + term;
  }
  return sum;
}

// 1/(x + 1 - a - 1(1 - a)/(x + 3 - a - 2(2 - a)/(x + 5 - a - …))) by Lentz's method, of x ≥ max(a, 1).
template <class T, int L> PT_FN V<T, L> gamma_fraction(V<T, L> a, alone<V<T, L>> x) {
  const V<T, L> one(T(1)), two(T(2)), least(8 * epsilon<T>);
  V<T, L> under = x + one - a, c(infinity<T>), d = one / under, product = d;
  i64 k = 1;
  PT_NO_UNROLL for (auto left = under == under; hany(left) && k <= 500; ++k) {
    const V<T, L> n((T(k))), over = n * (a - n);
    under = under + two;
    d = one / mad(over, d, under), c = over / c + under;
    product = select(left, product * (c * d), product);
    left = left & (abs(c * d - one) > least);
  }
  return product;
}

PT_SCALAR2(gamma_series) PT_SCALAR2(gamma_fraction)

}  // namespace
}  // namespace pt
