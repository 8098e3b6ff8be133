using namespace pt;
// test.op.default
//   a0:float32:in a1:float32:in a2:float32:out
//   loop kernel for p0 < n0, p1 < n1
//     t0 = load a0[n1*p0 + p1] : float32
//     t1 = load a1[p1] : float32
//     t2 = add t0 t1 : float32
//     t3 = mul t2 0.5 : float32
//     t4 = mul t2 0.7071067811865476 : float32
//     t5 = erf t4 : float32
//     t6 = add t5 1.0 : float32
//     t7 = mul t3 t6 : float32
//     a2[n1*p0 + p1] = t7
static constexpr int L = 16;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const float* const a0 = (const float*)ptrs[0];
  const float* const a1 = (const float*)ptrs[1];
  float* const a2 = (float*)ptrs[2];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  long error = 0;
  if (n0*n1 <= 0) return 0;
  const long length = n1, total = n0 * length;
  parallel(threads, [&](long thread, long workers) {
    const float* const a0 = (const float*)ptrs[0];
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
      each_vector<L>(first, last, lead<L>(a2 + row + first, last - first), [&](auto tail, const long p1, const long n) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + row + p1, n);
        const V<float, L> t1 = vload<float, L>(tail, a1 + p1, n);
        const V<float, L> t2 = t0 + t1;
        const V<float, L> t3 = t2 * splat<float, L>(0.5f);
        const V<float, L> t4 = t2 * splat<float, L>(0.70710677f);
        const V<float, L> t5 = erf(t4);
        const V<float, L> t6 = t5 + splat<float, L>(1.0f);
        const V<float, L> t7 = t3 * t6;
        vstore<float, L>(tail, a2 + row + p1, t7, n);
      });
      at += last - first;
      ++p0;
    }
  });
  return error;
}
