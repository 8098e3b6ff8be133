// indices: Python's index rule: a negative index counts from the end; one out of range is an error.
// gives: out_of_range from_end
namespace pt {
namespace {

template <int L, class T> PT_FN V<T, L> from_end(V<T, L> index, V<T, L> size) {
  return select(index < V<T, L>(T(0)), index + size, index);
}

// Whether any of the first n indices is out of [0, size): one comparison of unsigned numbers. If so, sets `error` to the
// check's number.
template <int L, class T>
PT_FN bool out_of_range(V<T, L> index, V<T, L> size, long n, long number, long& error) {
  using U = unsigned_of<T>;
  const auto bad = as<U>(index) >= as<U>(size);
  const bool any = hany(L == 1 ? bad : bad & first_n<U, L>(n));
  if (__builtin_expect(any, 0)) __atomic_store_n(&error, number, __ATOMIC_RELAXED);
  return __builtin_expect(any, 0);
}

}  // namespace
}  // namespace pt
