using namespace pt;
// test.op.default
//   a0:float32:in a1:float32:in a2:float32:in a3:float32:out a4:float32:out
//   loop kernel for p0 < n0 over r0 < n1
//     t0 = load a0[n1*p0 + r0] : float32
//     t1 = reduce sum t0 : float32
//     t2 = index n1 : int64
//     t3 = cast t2 : float32
//     t4 = div t1 t3 : float32
//     t5 = sub t0 t4 : float32
//     t6 = mul t5 t5 : float32
//     t7 = reduce sum t6 : float32
//     t8 = div t7 t3 : float32
//     t9 = add t8 1e-05 : float32
//     t10 = rsqrt t9 : float32
//     t11 = mul t5 t10 : float32
//     t12 = load a1[r0] : float32
//     t13 = mul t11 t12 : float32
//     t14 = load a2[r0] : float32
//     t15 = add t13 t14 : float32
//     a3[n1*p0 + r0] = t15
//     a4[p0] = t10
static constexpr int L = 16;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const float* const a0 = (const float*)ptrs[0];
  const float* const a1 = (const float*)ptrs[1];
  const float* const a2 = (const float*)ptrs[2];
  float* const a3 = (float*)ptrs[3];
  float* const a4 = (float*)ptrs[4];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  long error = 0;
  if (n0 <= 0) return 0;
  parallel(threads, [&](long thread, long workers) {
    const float* const a0 = (const float*)ptrs[0];
    const float* const a1 = (const float*)ptrs[1];
    const float* const a2 = (const float*)ptrs[2];
    float* const a3 = (float*)ptrs[3];
    float* const a4 = (float*)ptrs[4];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    const long begin = n0 * thread / workers, end = n0 * (thread + 1) / workers;
    if (begin == end) return;
    long p0 = begin;
    for (long row = begin; row < end; ++row) {
      const V<i64, 1> t2 = i64(n1);
      const V<float, 1> t3 = cast<float>(t2);
      // pass 0
      struct Acc0 {
        V<float, L> sum0 = splat<float, L>(0.0f);
        PT_FN void merge(const Acc0& o) { sum0 = sum0 + o.sum0; }
      };
      Acc0 total0;
      sweep<L, 4>(0, n1, total0, [&](auto tail, const long r0, const long n, Acc0& acc) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + r0, n);
        acc.sum0 = acc.sum0 + mask_tail<float, L>(tail, t0, 0.0f, n);
      });
      const V<float, 1> t1 = hsum(total0.sum0);
      const V<float, 1> t4 = t1 / t3;
      // pass 1
      struct Acc1 {
        V<float, L> sum0 = splat<float, L>(0.0f);
        PT_FN void merge(const Acc1& o) { sum0 = sum0 + o.sum0; }
      };
      Acc1 total1;
      sweep<L, 4>(0, n1, total1, [&](auto tail, const long r0, const long n, Acc1& acc) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + r0, n);
        const V<float, L> t5 = t0 - splat<float, L>(t4[0]);
        const V<float, L> t6 = t5 * t5;
        acc.sum0 = acc.sum0 + mask_tail<float, L>(tail, t6, 0.0f, n);
      });
      const V<float, 1> t7 = hsum(total1.sum0);
      const V<float, 1> t8 = t7 / t3;
      const V<float, 1> t9 = t8 + splat<float, 1>(1e-05f);
      const V<float, 1> t10 = rsqrt(t9);
      store<float, float, 1>(a4 + p0, t10);
      // pass 2
      each_vector<L>(0, n1, lead<L>(a3 + p0*n1, n1 - 0), [&](auto tail, const long r0, const long n) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + r0, n);
        const V<float, L> t5 = t0 - splat<float, L>(t4[0]);
        const V<float, L> t11 = t5 * splat<float, L>(t10[0]);
        const V<float, L> t12 = vload<float, L>(tail, a1 + r0, n);
        const V<float, L> t13 = t11 * t12;
        const V<float, L> t14 = vload<float, L>(tail, a2 + r0, n);
        const V<float, L> t15 = t13 + t14;
        vstore<float, L>(tail, a3 + p0*n1 + r0, t15, n);
      });
      ++p0;
    }
  });
  return error;
}
