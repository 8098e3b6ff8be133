using namespace pt;
// test.op.default
//   a0:float32:in a1:float32:out
//   loop kernel for p0 < n0 over r0 < n1
//     t0 = load a0[n1*p0 + r0] : float32
//     t1 = reduce max t0 : float32
//     t2 = sub t0 t1 : float32
//     t3 = exp t2 : float32
//     t4 = reduce sum t3 : float32
//     t5 = div t3 t4 : float32
//     a1[n1*p0 + r0] = t5
static constexpr int L = 16;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const float* const a0 = (const float*)ptrs[0];
  float* const a1 = (float*)ptrs[1];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  long error = 0;
  if (n0 <= 0) return 0;
  const long rows = n0;
  struct Acc0 {
    V<float, L> max0 = splat<float, L>(-__builtin_inff());
    PT_FN void merge(const Acc0& o) { max0 = maximum(max0, o.max0); }
  };
  Scratch<Acc0> by_thread0(2 * threads);
  if (by_thread0.is_missing(error)) return error;
  struct Acc1 {
    V<float, L> sum0 = splat<float, L>(0.0f);
    PT_FN void merge(const Acc1& o) { sum0 = sum0 + o.sum0; }
  };
  Scratch<Acc1> by_thread1(2 * threads);
  if (by_thread1.is_missing(error)) return error;
  parallel(threads, [&](long thread, long workers) {
    const float* const a0 = (const float*)ptrs[0];
    float* const a1 = (float*)ptrs[1];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    const long first = share<L>(n1, thread, workers), last = share<L>(n1, thread + 1, workers);
    long p0 = 0;
    for (long row = 0; row < rows; ++row) {
      // pass 0
      Acc0 total0;
      sweep<L, 4>(first, last, total0, [&](auto tail, const long r0, const long n, Acc0& acc) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + r0, n);
        acc.max0 = maximum(acc.max0, mask_tail<float, L>(tail, t0, -__builtin_inff(), n));
      });
      combine_threads(total0, (Acc0*)by_thread0, row, thread, workers);
      const V<float, 1> t1 = hmax(total0.max0);
      // pass 1
      Acc1 total1;
      sweep<L, 4>(first, last, total1, [&](auto tail, const long r0, const long n, Acc1& acc) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + r0, n);
        const V<float, L> t2 = t0 - splat<float, L>(t1[0]);
        const V<float, L> t3 = exp(t2);
        acc.sum0 = acc.sum0 + mask_tail<float, L>(tail, t3, 0.0f, n);
        vstore<float, L>(tail, a1 + p0*n1 + r0, t3, n);
      });
      combine_threads(total1, (Acc1*)by_thread1, row, thread, workers);
      const V<float, 1> t4 = hsum(total1.sum0);
      // pass 2
      each_vector<L>(first, last, lead<L>(a1 + first + p0*n1, last - first), [&](auto tail, const long r0, const long n) PT_INLINE {
        const V<float, L> t3 = vload<float, L>(tail, a1 + p0*n1 + r0, n);
        const V<float, L> t5 = t3 / splat<float, L>(t4[0]);
        vstore<float, L>(tail, a1 + p0*n1 + r0, t5, n);
      });
      ++p0;
    }
  });
  return error;
}
