// scatter: stores single lanes in order, for lanes that may share an element.
// gives: each_lane put_plain add_plain vadd
namespace pt {
namespace {

// Unrolling keeps the lanes in registers: 20 000 additions by index take 11 µs, and 27 µs if each lane is read from memory.
template <int L, class Tail, class F> PT_FN void each_lane(Tail tail, V<i32, L> mask, long n, F f) {
  const V<i32, L> on = live(tail, mask, n);
  PT_UNROLL for (long k = 0; k < L; ++k)
    if (on[k]) f(k);
}
template <class S, class T> PT_FN void put_plain(S* p, T x) { store<S, T, 1>(p, V<T, 1>(x)); }
template <class S, class T> PT_FN void add_plain(S* p, T x) { store<S, T, 1>(p, load<T, 1>(p) + V<T, 1>(x)); }
// Contiguous elements, one for each lane.
template <class S, int L, class Tail, class T> PT_FN void vadd(Tail tail, S* p, V<T, L> v, long n) {
  vstore<S, L>(tail, p, vload<T, L>(tail, p, n) + v, n);
}

}  // namespace
}  // namespace pt
