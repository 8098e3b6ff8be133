using namespace pt;
// test.op.default
//   a0:float32:in a1:float32:out
//   loop kernel for p0 < n0 over r0 < n1
//     t0 = load a0[n0*r0 + p0] : float32
//     t1 = reduce sum t0 : float32
//     a1[p0] = t1
static constexpr int L = 16;

extern "C" long polytile_kernel(void* const* ptrs, const long* sizes, long threads) {
  const float* const a0 = (const float*)ptrs[0];
  float* const a1 = (float*)ptrs[1];
  const long n0 = sizes[0];
  const long n1 = sizes[1];
  long error = 0;
  if (n0 <= 0) return 0;
  const long length = n0, tiles = (length + 4 * L - 1) / (4 * L);
  const long total = tiles;
  struct Acc0 {
    V<float, L> sum0 = splat<float, L>(0.0f);
    PT_FN void merge(const Acc0& o) { sum0 = sum0 + o.sum0; }
  };
  struct State {};
  Scratch<Slots<Acc0, 4>> by_thread0(2 * threads);
  if (by_thread0.is_missing(error)) return error;
  parallel(threads, [&](long thread, long workers) {
    const float* const a0 = (const float*)ptrs[0];
    float* const a1 = (float*)ptrs[1];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    long turn = 0;
    for (long number = 0; number < total; ++number) {
      auto pass0 = [&](auto tail, const long p0, const long n, State& s, Acc0& acc, const long r0) PT_INLINE {
        const V<float, L> t0 = vload<float, L>(tail, a0 + r0*n0 + p0, n);
        acc.sum0 = acc.sum0 + t0;
      };
      auto state1 = [&](auto tail, const long p0, const long n, State& s, Acc0& acc) PT_INLINE {
        if (thread == 0) {
          vstore<float, L>(tail, a1 + p0, acc.sum0, n);
        }
      };
      auto tile = [&](auto tail, auto width, const long column, const long n) PT_INLINE {
        Slots<State, width.value> states;
        {
          Slots<Acc0, width.value> totals;
          fold_rows(n1 * thread / workers, n1 * (thread + 1) / workers, totals, [&](long begin, long end, auto& part) PT_INLINE {
            for (long r0 = begin; r0 < end; ++r0) {
              each(states, part, [&](long u, State& s, Acc0& acc) PT_INLINE { pass0(tail, column + u * L, n, s, acc, r0); });
            }
          });
          combine_threads(totals, (Slots<Acc0, 4>*)by_thread0, turn++, thread, workers);
          each(states, totals, [&](long u, State& s, Acc0& acc) PT_INLINE { state1(tail, column + u * L, n, s, acc); });
        }
      };
      if (const long column = number * 4 * L; column + 4 * L <= length) {
        tile(Full{}, Width<4>{}, column, L);
      } else {
        each_vector<L>(column, length, 0, [&](auto tail, long at, long n) PT_INLINE { tile(tail, Width<1>{}, at, n); });
      }
    }
  });
  return error;
}
