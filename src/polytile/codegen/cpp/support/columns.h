// columns: several vectors side by side, one value of T for each, in registers.
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

// f(number, value) for every slot, or f(number, value, other) for those of two sets.
template <class T, int... I, class F> PT_FN void each(SlotsOf<T, Lanes<I...>>& s, F f) {
  (f(long(I), static_cast<Slot<I, T>&>(s).value), ...);
}
template <class T, class U, int... I, class F>
PT_FN void each(SlotsOf<T, Lanes<I...>>& s, SlotsOf<U, Lanes<I...>>& t, F f) {
  (f(long(I), static_cast<Slot<I, T>&>(s).value, static_cast<Slot<I, U>&>(t).value), ...);
}
// Whether f is true for every slot; stops at the first where it is not.
template <class T, int... I, class F> PT_FN bool each_checked(SlotsOf<T, Lanes<I...>>& s, F f) {
  return (f(long(I), static_cast<Slot<I, T>&>(s).value) && ...);
}
template <class T, class U, int... I, class F>
PT_FN bool each_checked(SlotsOf<T, Lanes<I...>>& s, SlotsOf<U, Lanes<I...>>& t, F f) {
  return (f(long(I), static_cast<Slot<I, T>&>(s).value, static_cast<Slot<I, U>&>(t).value) && ...);
}
// f(begin, end, accumulator) over blocks of rows of [first, last), merged in two stages into `total`, so that rounding
// errors grow with the cube root of the length.
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
