// tile: a square of a matrix that lies the other way round, turned so that its rows are vectors.
// gives: load_tile
namespace pt {
namespace {

// R vectors, as halves of halves: each one stays in a register.
template <class T, int L, int R> struct Rows { Rows<T, L, R / 2> lo, hi; };
template <class T, int L> struct Rows<T, L, 1> { V<T, L> row; };

template <class T, int L, int R, class S> PT_FN Rows<T, L, R> load_rows(const S* p, long stride) {
  if constexpr (R == 1) return {load<T, L>(p)};
  else return {load_rows<T, L, R / 2>(p, stride), load_rows<T, L, R / 2>(p + R / 2 * stride, stride)};
}
template <class T, int L, int R, class S>
PT_FN Rows<T, L, R> load_rows_n(const S* p, long stride, long rows, long columns) {
  if constexpr (R == 1) return {rows > 0 ? load_n<T, L>(p, columns) : V<T, L>{}};
  else {
    constexpr long h = R / 2;
    return {load_rows_n<T, L, h>(p, stride, rows, columns), load_rows_n<T, L, h>(p + h * stride, stride, rows - h, columns)};
  }
}
template <class T, int L, int R> PT_FN void store_rows(T* p, const Rows<T, L, R>& rows) {
  if constexpr (R == 1) store<T, T, L>(p, rows.row);
  else store_rows(p, rows.lo), store_rows(p + R / 2 * L, rows.hi);
}

// Lanes of a and b in turn: the first half of the result, or the second.
template <int Half, class T, int L, int... I> PT_FN V<T, L> zip(V<T, L> a, V<T, L> b, Lanes<I...>) {
  constexpr int n = raw_lanes<T, L>;
  return {__builtin_shufflevector(a.n, b.n, (I % 2 * n + (Half * (L / 2) + I / 2) % L)...)};
}
// Row k of a with row k of b becomes rows 2k and 2k + 1.
template <class T, int L, int R> PT_FN Rows<T, L, 2 * R> zip_rows(const Rows<T, L, R>& a, const Rows<T, L, R>& b) {
  if constexpr (R == 1) {
    constexpr Up<raw_lanes<T, L>> lanes{};
    return {{zip<0>(a.row, b.row, lanes)}, {zip<1>(a.row, b.row, lanes)}};
  } else return {zip_rows(a.lo, b.lo), zip_rows(a.hi, b.hi)};
}
// Zipping the first half of the rows with the second log2(L) times makes columns of them.
template <int Left, class T, int L> PT_FN Rows<T, L, L> turn(const Rows<T, L, L>& rows) {
  if constexpr (Left == 1) return rows; else return turn<Left / 2>(zip_rows(rows.lo, rows.hi));
}

// tile[u * L + k] = p[k * stride + u] for u < height, k < width (both at most L).
template <class T, int L, class S> PT_FN void load_tile(T* tile, const S* p, long stride, long height, long width) {
  if (height == L && width == L) store_rows(tile, turn<L>(load_rows<T, L, L>(p, stride)));
  else store_rows(tile, turn<L>(load_rows_n<T, L, L>(p, stride, width, height)));
}

}  // namespace
}  // namespace pt
