using namespace pt;
// test.op.default
//   a0:float32:in a1:float32:out
//   loop kernel for p0 < n0 over r0 < n1
//     t0 = load a0[n1*p0 + r0] : float32
//     t1 = scan sum t0 : float32
//     a1[n1*p0 + r0] = t1
static constexpr int L = 16;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const float* const a0 = (const float*)ptrs[0];
  float* const a1 = (float*)ptrs[1];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  long error = 0;
  if (n0 <= 0) return 0;
  const long rows = n0;
  Scratch<V<float, 1>> shares_carry0(2 * threads);
  if (shares_carry0.is_missing(error)) return error;
  parallel(threads, [&](long thread, long workers) {
    const float* const a0 = (const float*)ptrs[0];
    float* const a1 = (float*)ptrs[1];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    const long first = share<L>(n1, thread, workers), last = share<L>(n1, thread + 1, workers);
    long p0 = 0;
    for (long row = 0; row < rows; ++row) {
      // pass 0
      {
        V<float, 1> carry0 = splat<float, 1>(0.0f);
        each_vector<L>(first, last, 0, [&](auto tail, const long r0, const long n) PT_INLINE {
          const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + r0, n);
          scan_lanes<float, L>(t0, carry0, n, [](auto a, auto b) PT_INLINE { return decltype(a)(a + b); });
        });
        V<float, 1>* const shares = shares_carry0 + (row & 1) * workers;
        shares[thread] = carry0;
        barrier();
        carry0 = V<float, 1>(0.0f);
        const auto combine = [](auto a, auto b) PT_INLINE { return decltype(a)(a + b); };
        for (long w = 0; w < thread; ++w) carry0 = combine(carry0, shares[w]);
        each_vector<L>(first, last, lead<L>(a1 + first + p0*n1, last - first), [&](auto tail, const long r0, const long n) PT_INLINE {
          const V<float, L> t0 = vload<float, L>(tail, a0 + p0*n1 + r0, n);
          const V<float, L> t1 = scan_lanes<float, L>(t0, carry0, n, [](auto a, auto b) PT_INLINE { return decltype(a)(a + b); });
          vstore<float, L>(tail, a1 + p0*n1 + r0, t1, n);
        });
      }
      ++p0;
    }
  });
  return error;
}
