using namespace pt;
// test.op.default
//   a0:int64:in a1:float32:in a2:float32:out
//   loop kernel for p0 < n0, p1 < n1
//     t0 = load a0[n1*p0 + p1] : int64
//     t1 = lt t0 0 : bool
//     t2 = index n2 : int64
//     t3 = where t1 t2 t0 : int64
//     t4 = check_index t3 t2 : int64
//     t5 = load a1[t4 + n2*p0] : float32
//     a2[n1*p0 + p1] = t5
static constexpr int L = 8;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const i64* const a0 = (const i64*)ptrs[0];
  const float* const a1 = (const float*)ptrs[1];
  float* const a2 = (float*)ptrs[2];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  const long n2 = sizes[2];
  long error = 0;
  if (n0*n1 <= 0) return 0;
  const long length = n1, total = n0 * length;
  parallel(threads, [&](long thread, long workers) {
    const i64* const a0 = (const i64*)ptrs[0];
    const float* const a1 = (const float*)ptrs[1];
    float* const a2 = (float*)ptrs[2];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    const long n2 = sizes[2];
    long at = share<L>(total, thread, workers), first = at % length;
    const long end = share<L>(total, thread + 1, workers);
    long p0 = at / length;
    for (; at < end; first = 0) {
      const long last = smaller(first + (end - at), length);
      const long row = at - first;
      const V<i64, 1> t2 = i64(n2);
      each_vector<L>(first, last, lead<L>(a2 + row + first, last - first), [&](auto tail, const long p1, const long n) PT_INLINE {
        const V<i64, L> t0 = vload<i64, L>(tail, a0 + row + p1, n);
        if (out_of_range<L>(t0, splat<i64, L>(t2[0]), n, 1, error)) return;
        const V<i64, L> t4 = t0;
        const V<float, L> t5 = vload_gather<float, L>(tail, a1, (t4 + splat<i64, L>(p0*n2)), n);
        vstore<float, L>(tail, a2 + row + p1, t5, n);
      });
      at += last - first;
      ++p0;
    }
  });
  return error;
}
