// memory: loads and stores of storage types: contiguous, the first n lanes, strided, indexed.
// needs: convert
// gives: load load_n load_strided load_strided_n gather gather_mask
//        load_where store store_n store_strided store_strided_n store_stream stream_fence scatter scatter_mask
//
// A load converts elements of S to lanes of T; a store converts lanes of T to elements of S (see cast and to_storage).
// The _n forms access only the first n elements (0 <= n <= L) and set the other lanes to 0; the _mask forms access only
// the elements whose mask is set.
namespace pt {
namespace {

// Whole vectors. ------------------------------------------------------------------------------------------------------
template <class B, int L> PT_FN V<B, L> load_lanes(const void* p) {
  constexpr int bytes = sizeof(B) * L;
  if constexpr (wide<B, L>) return {load_lanes<B, L / 2>(p), load_lanes<B, L / 2>((const char*)p + bytes / 2)};
  else {
    typename V<B, L>::Inner n;
    if constexpr (bytes >= 16) __builtin_memcpy(&n, p, bytes);
    else {
      u64 x = 0;
      __builtin_memcpy(&x, p, bytes);
      n = (typename V<B, L>::Inner)Raw<u64, 2>{x, 0};
#if defined(PT_AVX512) && defined(PT_GCC_X86)
      asm("" : "+v"(n));  // GCC 12 merges this load, a widening and a select into one instruction, which it then fails to split
#endif
    }
    return {n};
  }
}
template <class B, int L> PT_FN void store_lanes(void* p, V<B, L> v) {
  constexpr int bytes = sizeof(B) * L;
  if constexpr (wide<B, L>) store_lanes(p, v.lo), store_lanes((char*)p + bytes / 2, v.hi);
  else if constexpr (bytes >= 16) __builtin_memcpy(p, &v.n, bytes);
  else {
    const u64 x = ((Raw<u64, 2>)v.n)[0];
    __builtin_memcpy(p, &x, bytes);
  }
}

// The first n lanes. --------------------------------------------------------------------------------------------------
struct Pointer {  // compilers differ in the pointer type of masked loads and stores
  void* p;
  template <class P> PT_FN operator P*() const { return (P*)p; }
};
PT_FN u64 low_bits(long n) { return n >= 64 ? ~u64(0) : ~(~u64(0) << n); }

#if defined(PT_AVX512)
#define PT_MASKED(size, bytes, Lane, code, Mask)                                                              \
  if constexpr (sizeof(B) == size && sizeof(V<B, L>) == bytes) {                                              \
    using Reg = Raw<Lane, bytes / size>;                                                                      \
    if constexpr (Store) __builtin_ia32_storedqu##code##_mask(Pointer{(void*)p}, (Reg)v.n, Mask(bits));       \
    else v.n = (typename V<B, L>::Inner)__builtin_ia32_loaddqu##code##_mask(Pointer{(void*)p}, Reg{}, Mask(bits)); \
  } else
// Loads or stores the lanes whose bit is set.
template <bool Store, class B, int L> PT_FN void move_masked(V<B, L>& v, const void* p, u64 bits) {
  PT_MASKED(1, 16, char, qi128, u16)
  PT_MASKED(1, 32, char, qi256, u32)
  PT_MASKED(1, 64, char, qi512, u64)
  PT_MASKED(2, 16, short, hi128, u8)
  PT_MASKED(2, 32, short, hi256, u16)
  PT_MASKED(2, 64, short, hi512, u32)
  PT_MASKED(4, 16, int, si128, u8)
  PT_MASKED(4, 32, int, si256, u8)
  PT_MASKED(4, 64, int, si512, u16)
  PT_MASKED(8, 16, long long, di128, u8)
  PT_MASKED(8, 32, long long, di256, u8)
  PT_MASKED(8, 64, long long, di512, u8)
  static_assert(L == 0, "not one register");
}
#undef PT_MASKED
template <class B, int L> constexpr bool has_masked_moves = true;
#elif defined(PT_AVX2)
#define PT_MASKED(size, bytes, Lane, code)                                                                    \
  if constexpr (sizeof(B) == size && sizeof(V<B, L>) == bytes) {                                              \
    using Reg = Raw<Lane, bytes / size>;                                                                      \
    const Reg mask = (Reg)first_n<B, L>(long(n)).n;                                                           \
    if constexpr (Store) __builtin_ia32_maskstore##code((Reg*)p, mask, (Reg)v.n);                             \
    else v.n = (typename V<B, L>::Inner)__builtin_ia32_maskload##code((const Reg*)p, mask);                   \
  } else
template <bool Store, class B, int L> PT_FN void move_first(V<B, L>& v, const void* p, long n) {
  PT_MASKED(4, 16, int, d)
  PT_MASKED(4, 32, int, d256)
  PT_MASKED(8, 16, long long, q)
  PT_MASKED(8, 32, long long, q256)
  static_assert(L == 0, "no such masked move");
}
#undef PT_MASKED
template <class B, int L> constexpr bool has_masked_moves = sizeof(B) >= 4;
#else
template <class B, int L> constexpr bool has_masked_moves = false;
#endif
#if !defined(PT_AVX2)
template <bool Store, class B, int L> PT_FN void move_first(V<B, L>& v, const void* p, long n) {
#if defined(PT_AVX512)
  move_masked<Store>(v, p, low_bits(n < L ? n : L));
#endif
}
#endif

template <class B, int L> PT_FN V<B, L> load_lanes_n(const void* p, long n) {
  if constexpr (wide<B, L>) {
    constexpr long h = L / 2;
    return {load_lanes_n<B, h>(p, n < h ? n : h), load_lanes_n<B, h>((const B*)p + h, n < h ? 0 : n - h)};
  } else if constexpr (has_masked_moves<B, L>) {
    V<B, L> v;
    move_first<false>(v, p, n);
    return v;
  } else {
    B row[L] = {};
    PT_NO_UNROLL for (long i = 0; i < n; ++i) __builtin_memcpy(row + i, (const B*)p + i, sizeof(B));
    return load_lanes<B, L>(row);
  }
}
template <class B, int L> PT_FN void store_lanes_n(void* p, V<B, L> v, long n) {
  if constexpr (wide<B, L>) {
    constexpr long h = L / 2;
    store_lanes_n(p, v.lo, n < h ? n : h);
    store_lanes_n((B*)p + h, v.hi, n < h ? 0 : n - h);
  } else if constexpr (has_masked_moves<B, L>) move_first<true>(v, p, n);
  else {
    B row[L];
    store_lanes(row, v);
    PT_NO_UNROLL for (long i = 0; i < n; ++i) __builtin_memcpy((B*)p + i, row + i, sizeof(B));
  }
}

template <class T, int L, class S> PT_FN V<T, L> load(const S* p) {
  return from_storage<T, S>(load_lanes<stored<S>, L>(p));
}
template <class T, int L, class S> PT_FN V<T, L> load_n(const S* p, long n) {
  return from_storage<T, S>(load_lanes_n<stored<S>, L>(p, n));
}
template <class S, class T, int L> PT_FN void store(S* p, V<T, L> v) { store_lanes(p, to_storage<S>(v)); }
template <class S, int L, class T> PT_FN void store(alone<S>* p, V<T, L> v) { store_lanes(p, to_storage<S>(v)); }
template <class S, class T, int L> PT_FN void store_n(S* p, V<T, L> v, long n) {
  store_lanes_n(p, to_storage<S>(v), n);
}
template <class S, int L, class T> PT_FN void store_n(alone<S>* p, V<T, L> v, long n) {
  store_lanes_n(p, to_storage<S>(v), n);
}

// A store that bypasses the caches if the machine can and p is a multiple of the vector's size; else a plain store.
template <class B, int L> PT_FN void stream_lanes(void* p, V<B, L> v) {
  constexpr int bytes = sizeof(B) * L;
  if constexpr (wide<B, L>) stream_lanes(p, v.lo), stream_lanes((char*)p + bytes / 2, v.hi);
#if defined(__SSE2__)
  else if (bytes >= 16 && (u64)p % bytes == 0) {
#if defined(__clang__)
    if constexpr (bytes >= 16) __builtin_nontemporal_store(v.n, (typename V<B, L>::Inner*)p);
#else
    if constexpr (bytes == 16) __builtin_ia32_movntps((float*)p, (Raw<float, 4>)v.n);
#if PT_WIDTH >= 32
    if constexpr (bytes == 32) __builtin_ia32_movntps256((float*)p, (Raw<float, 8>)v.n);
#endif
#if PT_WIDTH >= 64
    if constexpr (bytes == 64) __builtin_ia32_movntps512((float*)p, (Raw<float, 16>)v.n);
#endif
#endif
  }
#endif
  else store_lanes(p, v);
}
template <class S, class T, int L> PT_FN void store_stream(S* p, V<T, L> v) { stream_lanes(p, to_storage<S>(v)); }
// Makes this thread's streaming stores visible to other threads.
PT_FN void stream_fence() {
#if defined(__SSE2__)
  __builtin_ia32_sfence();
#endif
}

// Strided and indexed. ------------------------------------------------------------------------------------------------
// Lane by lane: gather instructions are no faster on most machines, and slow where microcode mitigates Gather Data
// Sampling.
template <class B> PT_FN B one(const void* p, long i) {
  B x;
  __builtin_memcpy(&x, (const B*)p + i, sizeof(B));
  return x;
}
template <class B> PT_FN void put(void* p, long i, B x) { __builtin_memcpy((B*)p + i, &x, sizeof(B)); }

template <class B, int L, class At, int... I> PT_FN V<B, L> pick(const void* p, At at, Lanes<I...>) {
  return {typename V<B, L>::Inner{(I < L ? one<B>(p, at(I < L ? I : 0)) : B(0))...}};
}
// Lanes at(0), at(1), ... of p.
template <class B, int L, class At> PT_FN V<B, L> load_at(const void* p, At at) {
  if constexpr (wide<B, L>) {
    const auto upper = [&](long i) __attribute__((always_inline)) { return at(i + L / 2); };
    return {load_at<B, L / 2>(p, at), load_at<B, L / 2>(p, upper)};
  } else return pick<B, L>(p, at, Up<raw_lanes<B, L>>{});
}

template <class T, int L, class S> PT_FN V<T, L> load_strided(const S* p, long stride) {
  const auto at = [=](long i) __attribute__((always_inline)) { return i * stride; };
  return from_storage<T, S>(load_at<stored<S>, L>(p, at));
}
template <class T, int L, class S> PT_FN V<T, L> load_strided_n(const S* p, long stride, long n) {
  using B = stored<S>;
  B row[L] = {};
  PT_NO_UNROLL for (long i = 0; i < n; ++i) row[i] = one<B>(p, i * stride);
  return from_storage<T, S>(load_lanes<B, L>(row));
}
template <class S, class T, int L> PT_FN void store_strided(S* p, long stride, V<T, L> v) {
  const V<stored<S>, L> x = to_storage<S>(v);
  PT_UNROLL for (long i = 0; i < L; ++i) put(p, i * stride, x[i]);
}
template <class S, int L, class T> PT_FN void store_strided(alone<S>* p, long stride, V<T, L> v) {
  store_strided<S, T, L>(p, stride, v);
}
template <class S, class T, int L> PT_FN void store_strided_n(S* p, long stride, V<T, L> v, long n) {
  stored<S> row[L];
  store_lanes(row, to_storage<S>(v));
  PT_NO_UNROLL for (long i = 0; i < n; ++i) put(p, i * stride, row[i]);
}
template <class S, int L, class T> PT_FN void store_strided_n(alone<S>* p, long stride, V<T, L> v, long n) {
  store_strided_n<S, T, L>(p, stride, v, n);
}

template <class T, int L, class S> PT_FN V<T, L> gather(const S* p, V<i64, L> index) {
  const auto at = [=](long i) __attribute__((always_inline)) { return index[i]; };
  return from_storage<T, S>(load_at<stored<S>, L>(p, at));
}
template <class T, int L, class S, class M> PT_FN V<T, L> gather_mask(const S* p, V<i64, L> index, V<M, L> mask) {
  using B = stored<S>;
  B row[L] = {};
  i64 at[L];
  store_lanes(at, index);
  PT_NO_UNROLL for (u64 bits = mask_bits(mask); bits != 0; bits &= bits - 1) {
    const long i = __builtin_ctzl(bits);
    row[i] = one<B>(p, at[i]);
  }
  return from_storage<T, S>(load_lanes<B, L>(row));
}
// Reads only the lanes whose mask is set.
template <class T, int L, class S> PT_FN V<T, L> load_where(const S* p, V<i32, L> mask) {
#if defined(PT_AVX512)
  if constexpr (!wide<stored<S>, L>) {
    V<stored<S>, L> v;
    move_masked<false>(v, p, mask_bits(mask));
    return from_storage<T, S>(v);
  }
#endif
  return gather_mask<T, L>(p, iota<i64, L>(), mask);
}
// Lanes are stored in order: if two share an index, the later one remains.
template <class S, class T, int L> PT_FN void scatter(S* p, V<i64, L> index, V<T, L> v) {
  const V<stored<S>, L> x = to_storage<S>(v);
  PT_UNROLL for (long i = 0; i < L; ++i) put(p, index[i], x[i]);
}
template <class S, class T, int L, class M> PT_FN void scatter_mask(S* p, V<i64, L> index, V<T, L> v, V<M, L> mask) {
  stored<S> row[L];
  i64 at[L];
  store_lanes(row, to_storage<S>(v));
  store_lanes(at, index);
  PT_NO_UNROLL for (u64 bits = mask_bits(mask); bits != 0; bits &= bits - 1) {
    const long i = __builtin_ctzl(bits);
    put(p, at[i], row[i]);
  }
}

}  // namespace
}  // namespace pt
