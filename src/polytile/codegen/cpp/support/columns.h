// columns: adjacent vectors, each with its own value of T in registers.
// gives: Slots Width each each_checked fold_rows
namespace pt {
namespace {

template <int W> struct Width { static constexpr int value = W; };
template <int I, class T> struct Slot { T value; };
template <class T, class Is> struct SlotsOf;
template <class T, int... I> struct SlotsOf<T, Lanes<I...>> : Slot<I, T>... {
  PT_FN void merge(const SlotsOf& o) { (Slot<I, T>::value.merge(static_cast<const Slot<I, T>&>(o).value), ...); }
};
template <class T, int W> using Slots = SlotsOf<T, Up<W>>;

// Calls f(number, value) for every slot, or f(number, value, other) for the slots of two sets.
template <class T, int... I, class F> PT_FN void each(SlotsOf<T, Lanes<I...>>& s, F f) {
  (f(long(I), static_cast<Slot<I, T>&>(s).value), ...);
}
template <class T, class U, int... I, class F>
PT_FN void each(SlotsOf<T, Lanes<I...>>& s, SlotsOf<U, Lanes<I...>>& t, F f) {
  (f(long(I), static_cast<Slot<I, T>&>(s).value, static_cast<Slot<I, U>&>(t).value), ...);
}
// Whether f is true for every slot; stops at the first one for which it is false.
template <class T, int... I, class F> PT_FN bool each_checked(SlotsOf<T, Lanes<I...>>& s, F f) {
  return (f(long(I), static_cast<Slot<I, T>&>(s).value) && ...);
}
template <class T, class U, int... I, class F>
PT_FN bool each_checked(SlotsOf<T, Lanes<I...>>& s, SlotsOf<U, Lanes<I...>>& t, F f) {
  return (f(long(I), static_cast<Slot<I, T>&>(s).value, static_cast<Slot<I, U>&>(t).value) && ...);
}
// Calls f(begin, end, accumulator) for blocks of rows of [first, last). Accumulators are merged into `total` in two
// stages, so that rounding errors grow with the cube root of the length.
template <class Acc, class F> PT_FN void fold_rows(long first, long last, Acc& total, F f) {
  constexpr long block = 128, stage = 128 * block;
  for (long at = first; at < last; at += stage) {
    const long stop = smaller(at + stage, last);
    Acc sum;
    for (long begin = at; begin < stop; begin += block) {
      Acc part;
      f(begin, smaller(begin + block, stop), part);
      sum.merge(part);
    }
    total.merge(sum);
  }
}

}  // namespace
}  // namespace pt
