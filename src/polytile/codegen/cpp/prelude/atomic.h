// atomic: relaxed atomic updates of elements that several threads may update.
// needs: convert
// gives: atomic_add atomic_apply
namespace pt {
namespace {

// *p = f(*p), atomically.
template <class S, class F> inline void atomic_apply(S* p, F f) {
  using Bits = unsigned_of<stored<S>>;
  using B = stored<S>;
  Bits before = __atomic_load_n((Bits*)p, __ATOMIC_RELAXED), after;
  do {
    B lane;
    __builtin_memcpy(&lane, &before, sizeof lane);
    const value_of<S> value = f(from_storage<value_of<S>, S>(V<B, 1>(lane))[0]);
    lane = to_storage<S>(V<value_of<S>, 1>(value))[0];
    __builtin_memcpy(&after, &lane, sizeof after);
  } while (!__atomic_compare_exchange_n((Bits*)p, &before, after, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
}

// *p += v; for bool8, *p |= v.
template <class S, class T> inline void atomic_add(S* p, T v) {
  if constexpr (same<S, bool8>) __atomic_fetch_or((u8*)p, u8(v != 0), __ATOMIC_RELAXED);
  else if constexpr (same<S, value_of<S>> && !is_float<S>) __atomic_fetch_add(p, S(v), __ATOMIC_RELAXED);
  else atomic_apply(p, [v](value_of<S> x) { return value_of<S>(x + value_of<S>(v)); });
}

}  // namespace
}  // namespace pt
