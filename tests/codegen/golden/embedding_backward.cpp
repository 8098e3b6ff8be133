using namespace pt;
// test.op.default
//   a0:float32:in a1:int64:in a2:float32:inout
//   loop kernel for p0 < n0, p1 < n1
//     t0 = load a0[n1*p0 + p1] : float32
//     t1 = load a1[p0] : int64
//     t2 = check_index t1 1000 : int64
//     a2[t2*n1 + p1] += t0
static constexpr int L = 16;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const float* const a0 = (const float*)ptrs[0];
  const i64* const a1 = (const i64*)ptrs[1];
  float* const a2 = (float*)ptrs[2];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  long error = 0;
  if (n0*n1 <= 0) return 0;
  const long length = n1, total = n0;
  parallel(threads, [&](long thread, long workers) {
    const float* const a0 = (const float*)ptrs[0];
    const i64* const a1 = (const i64*)ptrs[1];
    float* const a2 = (float*)ptrs[2];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    const long first = share<L>(length, thread, workers), last = share<L>(length, thread + 1, workers);
    if (first == last) return;
    long p0 = 0;
    for (long item = 0; item < total; ++item) {
      const V<i64, 1> t1 = load<i64, 1>(a1 + p0);
      if (out_of_range<1>(from_end<1>(t1, splat<i64, 1>(1000L)), splat<i64, 1>(1000L), 1, 1, error)) return;
      const V<i64, 1> t2 = from_end<1>(t1, splat<i64, 1>(1000L));
      each_vector<L>(first, last, 0, [&](auto tail, const long p1, const long n) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + p1, n);
        const long at0 = t2[0];
        vadd<float, L>(tail, a2 + at0*n1 + p1, t0, n);
      });
      ++p0;
    }
  });
  return error;
}
