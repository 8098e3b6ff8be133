// tile: transposes tiles of a matrix, so that its rows become vectors.
// gives: load_tile load_tiles store_tile store_tiles
namespace pt {
namespace {

// R vectors, split in half recursively, so that each one stays in a register.
template <class T, int L, int R> struct Rows { Rows<T, L, R / 2> lo, hi; };
template <class T, int L> struct Rows<T, L, 1> { V<T, L> row; };

// R rows.
template <class T, int L, int R, class S> PT_FN Rows<T, L, R> load_rows(const S* p, long stride) {
  if constexpr (R == 1) return {load<T, L>(p)};
  else return {load_rows<T, L, R / 2>(p, stride), load_rows<T, L, R / 2>(p + R / 2 * stride, stride)};
}
// The first `columns` elements of R rows; rows after number `last` repeat it.
template <class T, int L, int R, class S>
PT_FN Rows<T, L, R> load_part(const S* p, long stride, long columns, long last) {
  constexpr int H = R / 2;
  if constexpr (R == 1) return {load_n<T, L>(p + smaller(last, 0) * stride, columns)};
  else return {load_part<T, L, H>(p, stride, columns, last), load_part<T, L, H>(p + H * stride, stride, columns, last - H)};
}
template <class T, int L, int R> PT_FN void store_rows(T* p, const Rows<T, L, R>& rows) {
  if constexpr (R == 1) store<T, T, L>(p, rows.row);
  else store_rows(p, rows.lo), store_rows(p + R / 2 * L, rows.hi);
}

// Interleaves row k of a and row k of b into rows 2k and 2k + 1.
template <class T, int L, int R> PT_FN Rows<T, L, 2 * R> zip_rows(const Rows<T, L, R>& a, const Rows<T, L, R>& b) {
  if constexpr (R == 1) return {{zip<0>(a.row, b.row)}, {zip<1>(a.row, b.row)}};
  else return {zip_rows(a.lo, b.lo), zip_rows(a.hi, b.hi)};
}
// Zipping the first half of the rows with the second half, log2(L) times, turns L rows into columns; it also turns R registers
// that hold L consecutive rows of R elements into the R columns. Zipping log2(R) times is the inverse.
template <int Left, class T, int L, int R> PT_FN Rows<T, L, R> turn(const Rows<T, L, R>& rows) {
  if constexpr (Left == 1) return rows; else return turn<Left / 2>(zip_rows(rows.lo, rows.hi));
}

// p[k * stride + u] = row k, element u, for u < height and k < width. `left` elements from p on may be written: the next rows
// overwrite what a row writes past its end, since masked stores are slow.
template <class T, int L, int R, class S>
PT_FN void put_rows(S* p, const Rows<T, L, R>& rows, long stride, long height, long left) {
  if constexpr (R > 1) {
    put_rows(p, rows.lo, stride, height, left);
    put_rows(p + R / 2 * stride, rows.hi, stride, height, left - R / 2 * stride);
  } else if (left >= L) store<S, T, L>(p, rows.row);
  else if (left > 0) store_n<S, T, L>(p, rows.row, smaller(height, left));
}
// Contiguous rows of R elements.
template <int R, class T, int L, class S> PT_FN void load_narrow(T* tile, const S* p) {
  store_rows(tile, turn<L>(load_rows<T, L, R>(p, L)));
}
template <int R, class T, int L, class S> PT_FN void store_narrow(const T* tile, S* p) {
  const auto rows = turn<R>(load_rows<T, L, R>(tile, L));
  put_rows(p, rows, L, L, R * L);
}

// tile[u * L + k] = p[k * stride + u] for u < height, k < width (both at most L); other k repeat the last one. Masked loads from
// memory take up to twice as long, so full tiles avoid them. Not inlined: it is long, and one call transposes L vectors.
template <class T, int L, class S>
__attribute__((noinline)) void load_tile(T* tile, const S* p, long stride, long height, long width) {
  if (width == L && stride == height && height == 2) load_narrow<2, T, L>(tile, p);
  else if (width == L && stride == height && height == 4) load_narrow<4, T, L>(tile, p);
  else {
    Rows<T, L, L> rows;
    if (width == L && height == L) rows = load_rows<T, L, L>(p, stride);
    else rows = load_part<T, L, L>(p, stride, height, width - 1);
    store_rows(tile, turn<L>(rows));
  }
}
// The same for any height, one L x L tile after the other; `tile` has room for full ones.
template <class T, int L, class S> PT_FN void load_tiles(T* tile, const S* p, long stride, long height, long width) {
  for (long u = 0; u < height; u += L) load_tile<T, L>(tile + u * L, p + u, stride, smaller(height - u, L), width);
}

// p[k * stride + u] = tile[u * L + k]. Rows with gaps between them are stored element by element.
template <class T, int L, class S>
__attribute__((noinline)) void store_tile(const T* tile, S* p, long stride, long height, long width) {
  if (width == L && stride == height && height == 2) store_narrow<2, T, L>(tile, p);
  else if (width == L && stride == height && height == 4) store_narrow<4, T, L>(tile, p);
  else if (height == L || stride == height) {
    const auto rows = turn<L>(load_rows<T, L, L>(tile, L));
    put_rows(p, rows, stride, height, stride == height ? width * stride : width * stride + L - stride);
  } else {
    PT_NO_UNROLL for (long k = 0; k < width; ++k)
      PT_NO_UNROLL for (long u = 0; u < height; ++u) store<S, T, 1>(p + k * stride + u, V<T, 1>(tile[u * L + k]));
  }
}
template <class T, int L, class S>
PT_FN void store_tiles(const T* tile, S* p, long stride, long height, long width) {
  for (long u = 0; u < height; u += L) store_tile<T, L>(tile + u * L, p + u, stride, smaller(height - u, L), width);
}

}  // namespace
}  // namespace pt
