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
  const long length = n0, tiles = (length + 1 * L - 1) / (1 * L);
  const long total = tiles;
  struct Acc0 {
    V<float, L> max0 = splat<float, L>(-__builtin_inff());
    PT_FN void merge(const Acc0& o) { max0 = maximum(max0, o.max0); }
  };
  struct Acc1 {
    V<float, L> sum0 = splat<float, L>(0.0f);
    PT_FN void merge(const Acc1& o) { sum0 = sum0 + o.sum0; }
  };
  struct State {
    V<float, L> t1;
    V<float, L> t4;
  };
  parallel(threads, [&](long thread, long workers) {
    const float* const a0 = (const float*)ptrs[0];
    float* const a1 = (float*)ptrs[1];
    const long n0 = sizes[0];
    const long n1 = sizes[1];
    const long begin = total * thread / workers, end = total * (thread + 1) / workers;
    if (begin == end) return;
    const long room = (n1 + L - 1) / L * L * L;
    Scratch<char> tiles_here((sizeof(float) + sizeof(float) + sizeof(float)) * room);
    if (tiles_here.is_missing(error)) return;
    float* const tile_t0 = (float*)((char*)tiles_here);
    float* const tile_t3 = (float*)(tile_t0 + room);
    float* const out0 = (float*)(tile_t3 + room);
    for (long number = begin; number < end; ++number) {
      auto pass0 = [&](auto tail, const long p0, const long n, State& s, Acc0& acc, const long r0) PT_INLINE {
        const V<float, L> t0 = load<float, L>(tile_t0 + r0 * L);
        acc.max0 = maximum(acc.max0, t0);
      };
      auto state1 = [&](auto tail, const long p0, const long n, State& s, Acc0& acc) PT_INLINE {
        s.t1 = acc.max0;
      };
      auto pass1 = [&](auto tail, const long p0, const long n, State& s, Acc1& acc, const long r0) PT_INLINE {
        const V<float, L> t0 = load<float, L>(tile_t0 + r0 * L);
        const V<float, L> t2 = t0 - s.t1;
        const V<float, L> t3 = exp(t2);
        acc.sum0 = acc.sum0 + t3;
        store<float, float, L>(tile_t3 + r0 * L, t3);
      };
      auto state2 = [&](auto tail, const long p0, const long n, State& s, Acc1& acc) PT_INLINE {
        s.t4 = acc.sum0;
      };
      auto pass2 = [&](auto tail, const long p0, const long n, State& s, const long r0) PT_INLINE {
        const V<float, L> t3 = load<float, L>(tile_t3 + r0 * L);
        const V<float, L> t5 = t3 / s.t4;
        store<float, float, L>(out0 + r0 * L, t5);
      };
      auto tile = [&](auto tail, auto width, const long column, const long n) PT_INLINE {
        load_tiles<float, L>(tile_t0, a0 + column*n1, n1, n1, n);
        Slots<State, width.value> states;
        {
          Slots<Acc0, width.value> totals;
          fold_rows(0, n1, totals, [&](long begin, long end, auto& part) PT_INLINE {
            for (long r0 = begin; r0 < end; ++r0) {
              each(states, part, [&](long u, State& s, Acc0& acc) PT_INLINE { pass0(tail, column + u * L, n, s, acc, r0); });
            }
          });
          each(states, totals, [&](long u, State& s, Acc0& acc) PT_INLINE { state1(tail, column + u * L, n, s, acc); });
        }
        {
          Slots<Acc1, width.value> totals;
          fold_rows(0, n1, totals, [&](long begin, long end, auto& part) PT_INLINE {
            for (long r0 = begin; r0 < end; ++r0) {
              each(states, part, [&](long u, State& s, Acc1& acc) PT_INLINE { pass1(tail, column + u * L, n, s, acc, r0); });
            }
          });
          each(states, totals, [&](long u, State& s, Acc1& acc) PT_INLINE { state2(tail, column + u * L, n, s, acc); });
        }
        {
          for (long r0 = 0; r0 < n1; ++r0) {
            each(states, [&](long u, State& s) PT_INLINE { pass2(tail, column + u * L, n, s, r0); });
          }
        }
        store_tiles<float, L>(out0, a1 + column*n1, n1, n1, n);
      };
      if (const long column = number * 1 * L; column + 1 * L <= length) {
        tile(Full{}, Width<1>{}, column, L);
      } else {
        tile(Part{}, Width<1>{}, column, length - column);
      }
    }
  });
  return error;
}
