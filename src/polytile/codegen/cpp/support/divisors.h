// divisors: checks for integer division by zero, which is an error, as in eager, and would trap otherwise.
// gives: any_zero
namespace pt {
namespace {

// Whether any of the first n divisors is zero; if so, sets `error` to the check's number.
template <int L, class T>
PT_FN bool any_zero(V<T, L> divisor, long n, long number, long& error) {
  const auto bad = divisor == V<T, L>(T(0));
  const bool any = hany(L == 1 ? bad : bad & first_n<T, L>(n));
  if (__builtin_expect(any, 0)) __atomic_store_n(&error, number, __ATOMIC_RELAXED);
  return __builtin_expect(any, 0);
}

}  // namespace
}  // namespace pt
