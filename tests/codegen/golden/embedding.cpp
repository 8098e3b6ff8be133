using namespace pt;
// test.op.default
//   a0:int64:in a1:float32:in a2:float32:out
//   loop kernel for p0 < n0, p1 < n1
//     t0 = load a0[p0] : int64
//     t1 = check_index t0 1000 : int64
//     t2 = load a1[t1*n1 + p1] : float32
//     a2[n1*p0 + p1] = t2
static constexpr int L = 16;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const i64* const a0 = (const i64*)ptrs[0];
  const float* const a1 = (const float*)ptrs[1];
  float* const a2 = (float*)ptrs[2];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  long error = 0;
  if (n0*n1 <= 0) return 0;
  const long length = n1, total = n0 * length;
  parallel(threads, [&](long thread, long workers) {
    const i64* const a0 = (const i64*)ptrs[0];
    const float* const a1 = (const float*)ptrs[1];
    float* const a2 = (float*)ptrs[2];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    long at = share<L>(total, thread, workers), first = at % length;
    const long end = share<L>(total, thread + 1, workers);
    long p0 = at / length;
    for (; at < end; first = 0) {
      const long last = smaller(first + (end - at), length);
      const long row = at - first;
      const V<i64, 1> t0 = load<i64, 1>(a0 + p0);
      if (out_of_range<1>(from_end<1>(t0, splat<i64, 1>(1000L)), splat<i64, 1>(1000L), 1, 1, error)) return;
      const V<i64, 1> t1 = from_end<1>(t0, splat<i64, 1>(1000L));
      each_vector<L>(first, last, lead<L>(a2 + row + first, last - first), [&](auto tail, const long p1, const long n) PT_INLINE {
        const long at0 = t1[0];
        const V<float, L> t2 = vload<float, L>(tail, a1 + at0*n1 + p1, n);
        vstore<float, L>(tail, a2 + row + p1, t2, n);
      });
      at += last - first;
      ++p0;
    }
  });
  return error;
}
