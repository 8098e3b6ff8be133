// convert: converts values between lane types and masks between lane sizes; bf16, f16 and 8-bit floats.
// needs: base
// gives: cast mask_cast round_to from_storage to_storage value_of stored
namespace pt {
namespace {

// Integers between lane sizes. ----------------------------------------------------------------------------------------
// GCC 12 scalarises its vector conversions, so on x86 the instructions are named: one row for each pair of lane sizes
// and each register width on the wider side.
#if defined(PT_GCC_X86)
using Bytes16 = Raw<char, 16>;
using Bytes32 = Raw<char, 32>;
using Shorts8 = Raw<short, 8>;
using Shorts16 = Raw<short, 16>;
using Shorts32 = Raw<short, 32>;
using Ints4 = Raw<int, 4>;
using Ints8 = Raw<int, 8>;
using Ints16 = Raw<int, 16>;
using Longs2 = Raw<long long, 2>;
using Longs4 = Raw<long long, 4>;
using Longs8 = Raw<long long, 8>;

#define PT_WIDEN(F, T, W, In, code, ...)                                                         \
  if constexpr (From == F && To == T && Width == W) {                                            \
    if constexpr (Signed) return __builtin_ia32_pmovsx##code((In)v __VA_ARGS__);                 \
    else return __builtin_ia32_pmovzx##code((In)v __VA_ARGS__);                                  \
  } else
#define PT_NARROW(F, T, W, In, code, Out, all)                                                   \
  if constexpr (From == F && To == T && Width == W) return __builtin_ia32_pmov##code##_mask((In)v, Out{}, all); else
#if defined(__SSE4_1__)
template <int From, int To, int Width, bool Signed, class R> PT_FN auto x86_widen(R v) {
  PT_WIDEN(1, 2, 16, Bytes16, bw128)
  PT_WIDEN(1, 4, 16, Bytes16, bd128)
  PT_WIDEN(1, 8, 16, Bytes16, bq128)
  PT_WIDEN(2, 4, 16, Shorts8, wd128)
  PT_WIDEN(2, 8, 16, Shorts8, wq128)
  PT_WIDEN(4, 8, 16, Ints4, dq128)
#if PT_WIDTH >= 32
  PT_WIDEN(1, 2, 32, Bytes16, bw256)
  PT_WIDEN(1, 4, 32, Bytes16, bd256)
  PT_WIDEN(1, 8, 32, Bytes16, bq256)
  PT_WIDEN(2, 4, 32, Shorts8, wd256)
  PT_WIDEN(2, 8, 32, Shorts8, wq256)
  PT_WIDEN(4, 8, 32, Ints4, dq256)
#endif
#if PT_WIDTH >= 64
  PT_WIDEN(1, 2, 64, Bytes32, bw512_mask, , Shorts32{}, u32(-1))
  PT_WIDEN(1, 4, 64, Bytes16, bd512_mask, , Ints16{}, u16(-1))
  PT_WIDEN(1, 8, 64, Bytes16, bq512_mask, , Longs8{}, u8(-1))
  PT_WIDEN(2, 4, 64, Shorts16, wd512_mask, , Ints16{}, u16(-1))
  PT_WIDEN(2, 8, 64, Shorts8, wq512_mask, , Longs8{}, u8(-1))
  PT_WIDEN(4, 8, 64, Ints8, dq512_mask, , Longs8{}, u8(-1))
#endif
  static_assert(Width == 0, "no such widening");
}
#endif
#if defined(PT_AVX512)
template <int From, int To, int Width, class R> PT_FN auto x86_narrow(R v) {
  PT_NARROW(2, 1, 16, Shorts8, wb128, Bytes16, u8(-1))
  PT_NARROW(4, 1, 16, Ints4, db128, Bytes16, u8(-1))
  PT_NARROW(8, 1, 16, Longs2, qb128, Bytes16, u8(-1))
  PT_NARROW(4, 2, 16, Ints4, dw128, Shorts8, u8(-1))
  PT_NARROW(8, 2, 16, Longs2, qw128, Shorts8, u8(-1))
  PT_NARROW(8, 4, 16, Longs2, qd128, Ints4, u8(-1))
  PT_NARROW(2, 1, 32, Shorts16, wb256, Bytes16, u16(-1))
  PT_NARROW(4, 1, 32, Ints8, db256, Bytes16, u8(-1))
  PT_NARROW(8, 1, 32, Longs4, qb256, Bytes16, u8(-1))
  PT_NARROW(4, 2, 32, Ints8, dw256, Shorts8, u8(-1))
  PT_NARROW(8, 2, 32, Longs4, qw256, Shorts8, u8(-1))
  PT_NARROW(8, 4, 32, Longs4, qd256, Ints4, u8(-1))
  PT_NARROW(2, 1, 64, Shorts32, wb512, Bytes32, u32(-1))
  PT_NARROW(4, 1, 64, Ints16, db512, Bytes16, u16(-1))
  PT_NARROW(8, 1, 64, Longs8, qb512, Bytes16, u8(-1))
  PT_NARROW(4, 2, 64, Ints16, dw512, Shorts16, u16(-1))
  PT_NARROW(8, 2, 64, Longs8, qw512, Shorts8, u8(-1))
  PT_NARROW(8, 4, 64, Longs8, qd512, Ints8, u8(-1))
  static_assert(Width == 0, "no such narrowing");
}
#endif
#undef PT_WIDEN
#undef PT_NARROW
#endif

// The compiler's own conversion of the first lanes, padded to fill a register.
template <class To, class In, int... I> PT_FN auto first_lanes(In x, Lanes<I...>) {
  if constexpr (sizeof...(I) * sizeof(x[0]) == sizeof(x)) return __builtin_convertvector(x, Raw<To, sizeof...(I)>);
  else return __builtin_convertvector(__builtin_shufflevector(x, x, I...), Raw<To, sizeof...(I)>);
}
template <class T, int N, class In, int... I> PT_FN Raw<T, sizeof...(I)> padded(In x, Lanes<I...>) {
  if constexpr (sizeof...(I) == N) return x;
  else return __builtin_shufflevector(x, x, (I % N)...);
}
template <class To, class From, int L> PT_FN V<To, L> convert_plain(V<From, L> v) {
  constexpr int from = raw_lanes<From, L>, to = raw_lanes<To, L>, live = from < to ? from : to;
  return {padded<To, live>(first_lanes<To>(v.n, Up<live>{}), Up<to>{})};
}

// Interleaves the lanes of x with those of `extension`: doubles the lane size on little-endian machines.
template <class R, int N, int... I> PT_FN R interleave(R x, R extension, Lanes<I...>) {
  return __builtin_shufflevector(x, extension, (I % 2 * N + I / 2)...);
}
// Every Step-th lane, from the first; the remaining lanes repeat them.
template <int Step, class R, int N, int... I> PT_FN auto every(R x, Lanes<I...>) {
  return __builtin_shufflevector(x, x, (I * Step % N)...);
}

template <class To, class From, int L> PT_FN V<To, L> resize_one(V<From, L> v) {
#if defined(__clang__)
  return convert_plain<To>(v);
#else
  using Out [[maybe_unused]] = typename V<To, L>::Inner;
  if constexpr (sizeof(To) > sizeof(From)) {
#if defined(PT_GCC_X86) && defined(__SSE4_1__)
    return {(Out)x86_widen<sizeof(From), sizeof(To), sizeof(V<To, L>), is_signed<From>>(v.n)};
#else
    using Next = typename IntOf<2 * sizeof(From)>::type;
    using In = typename V<From, L>::Inner;
    constexpr int n = raw_lanes<From, L>;
    const In zero{}, extension = is_signed<From> ? (In)(v.n < zero) : zero;
    using Twice = typename V<Next, L>::Inner;
    static_assert(sizeof(Twice) == sizeof(In), "widening starts from a narrow vector");
    return resize_one<To>(V<Next, L>((Twice)interleave<In, n>(v.n, extension, Up<n>{})));
#endif
  } else if constexpr (sizeof(To) < sizeof(From)) {
#if defined(PT_AVX512) && defined(PT_GCC_X86)
    return {(Out)x86_narrow<sizeof(From), sizeof(To), sizeof(V<From, L>)>(v.n)};
#else
    constexpr int n = sizeof(v) / sizeof(To);
    return {every<sizeof(From) / sizeof(To), Raw<To, n>, n>((Raw<To, n>)v.n, Up<raw_lanes<To, L>>{})};
#endif
  } else return as<To>(v);
#endif
}

// Whether a conversion is done in halves: one side is wider than a register, or both fill a register.
#if defined(__clang__) || (defined(PT_GCC_X86) && defined(__SSE4_1__))
template <class A, class B, int L> constexpr bool in_halves = wide<A, L> || wide<B, L>;
#else
template <class A, class B, int L>
constexpr bool in_halves = wide<A, L> || wide<B, L> || (sizeof(B) > sizeof(A) && sizeof(A) * L >= 16);
#endif

template <class To, class From, int L> PT_FN V<To, L> resize(V<From, L> v) {
  if constexpr (sizeof(To) == sizeof(From)) return as<To>(v);
  else if constexpr (in_halves<From, To, L>) return join(resize<To>(low(v)), resize<To>(high(v)));
  else return resize_one<To>(v);
}

// The mask with lanes of T's size.
template <class T, class M, int L> PT_FN V<int_of<T>, L> mask_to(V<M, L> m) {
  return resize<int_of<T>>(as<int_of<M>>(m));
}
template <class T, int L, class M> PT_FN V<int_of<T>, L> mask_cast(V<M, L> m) { return mask_to<T>(m); }
template <class T, class M, int L> PT_FN V<int_of<T>, L> mask_cast(V<M, L> m) { return mask_to<T>(m); }

// Floats. -------------------------------------------------------------------------------------------------------------
// One register on either side.
template <class To, class From, int L> PT_FN V<To, L> convert_one(V<From, L> v) {
#if defined(PT_GCC_X86)
  using Out = typename V<To, L>::Inner;
  constexpr int width = sizeof(V<From, L>) > sizeof(V<To, L>) ? sizeof(V<From, L>) : sizeof(V<To, L>);
#define PT_ROW(F, T, W, call) if constexpr (same<From, F> && same<To, T> && width == W) return {(Out)call}; else
  PT_ROW(float, double, 16, __builtin_ia32_cvtps2pd(v.n))
  PT_ROW(double, float, 16, __builtin_ia32_cvtpd2ps(v.n))
  PT_ROW(i32, double, 16, __builtin_ia32_cvtdq2pd(v.n))
  PT_ROW(double, i32, 16, __builtin_ia32_cvttpd2dq(v.n))
#if PT_WIDTH >= 32
  PT_ROW(float, double, 32, __builtin_ia32_cvtps2pd256(v.n))
  PT_ROW(double, float, 32, __builtin_ia32_cvtpd2ps256(v.n))
  PT_ROW(i32, double, 32, __builtin_ia32_cvtdq2pd256(v.n))
  PT_ROW(double, i32, 32, __builtin_ia32_cvttpd2dq256(v.n))
#endif
#if PT_WIDTH >= 64
  PT_ROW(float, double, 64, __builtin_ia32_cvtps2pd512_mask(v.n, Out{}, u8(-1), 4))
  PT_ROW(double, float, 64, __builtin_ia32_cvtpd2ps512_mask(v.n, Out{}, u8(-1), 4))
  PT_ROW(i32, double, 64, __builtin_ia32_cvtdq2pd512_mask(v.n, Out{}, u8(-1)))
  PT_ROW(double, i32, 64, __builtin_ia32_cvttpd2dq512_mask(v.n, Out{}, u8(-1), 4))
  PT_ROW(float, i64, 16, __builtin_ia32_cvttps2qq128_mask(v.n, Longs2{}, u8(-1)))
  PT_ROW(float, i64, 32, __builtin_ia32_cvttps2qq256_mask(v.n, Longs4{}, u8(-1)))
  PT_ROW(float, i64, 64, __builtin_ia32_cvttps2qq512_mask(v.n, Longs8{}, u8(-1), 4))
  PT_ROW(i64, float, 16, __builtin_ia32_cvtqq2ps128_mask((Longs2)v.n, Out{}, u8(-1)))
  PT_ROW(i64, float, 32, __builtin_ia32_cvtqq2ps256_mask((Longs4)v.n, Out{}, u8(-1)))
  PT_ROW(i64, float, 64, __builtin_ia32_cvtqq2ps512_mask((Longs8)v.n, Out{}, u8(-1), 4))
#endif
#undef PT_ROW
#endif
  return convert_plain<To>(v);
}

// To or from a float, through a lane type that the machine converts directly.
template <class To, class From, int L> PT_FN V<To, L> convert(V<From, L> v) {
  constexpr bool from_float = is_float<From>, to_float = is_float<To>;
  if constexpr (from_float && !to_float && sizeof(To) < 4) return resize<To>(convert<i32>(v));
  else if constexpr (!from_float && sizeof(From) < 4) return convert<To>(resize<i32>(v));
  else if constexpr (from_float && same<To, u32>) return resize<u32>(convert<i64>(v));
  else if constexpr (same<From, u32> && sizeof(To) == 8) return convert<To>(resize<i64>(v));
  else if constexpr (wide<From, L> || wide<To, L>) return join(convert<To>(low(v)), convert<To>(high(v)));
  else if constexpr (from_float && same<To, u64>) {  // negative values wrap, as in compiled C++ on x86
    const V<u64, L> small = as<u64>(convert_one<i64>(v));
    return select(v < V<From, L>(From(9223372036854775808.0)), small, convert_one<u64>(v));
  } else return convert_one<To>(v);
}

// bf16 and f16 --------------------------------------------------------------------------------------------------------
template <int L> PT_FN V<float, L> bf16_to_float(V<u16, L> bits) {
  return as<float>(resize<u32>(bits) << V<u32, L>(16u));
}

// To nearest, ties to even; NaN stays NaN.
template <int L> PT_FN V<u16, L> float_to_bf16(V<float, L> v) {
  const V<u32, L> bits = as<u32>(v), rounded = bits + (((bits >> V<u32, L>(16u)) & V<u32, L>(1u)) + V<u32, L>(0x7fffu));
  return resize<u16>(select(v == v, rounded, bits | V<u32, L>(0x400000u)) >> V<u32, L>(16u));
}

template <int L> PT_FN V<float, L> f16_to_float(V<u16, L> h) {
  if constexpr (wide<float, L>) return join(f16_to_float(low(h)), f16_to_float(high(h)));
#if defined(PT_AVX512)
  else if constexpr (L == 16) {
    return {(Raw<float, 16>)__builtin_ia32_vcvtph2ps512_mask((Raw<short, 16>)h.n, Raw<float, 16>{}, u16(-1), 4)};
  }
#endif
#if defined(__F16C__)
#if PT_WIDTH >= 32
  else if constexpr (L == 8) return {(Raw<float, 8>)__builtin_ia32_vcvtph2ps256((Raw<short, 8>)h.n)};
#endif
  else if constexpr (L <= 4) return {(Raw<float, 4>)__builtin_ia32_vcvtph2ps((Raw<short, 8>)h.n)};
#endif
  else {  // a multiplication rebiases the exponent, which also normalises subnormals
    using U = V<u32, L>;
    const U bits = resize<u32>(h), magnitude = (bits & U(0x7fffu)) << U(13u);
    const U value = as<u32>(as<float>(magnitude) * V<float, L>(0x1p112f));
    const U special = select(magnitude >= U(0x0f800000u), value | U(0x7f800000u), value);
    return as<float>(special | (bits & U(0x8000u)) << U(16u));
  }
}

// To nearest, ties to even.
template <int L> PT_FN V<u16, L> float_to_f16(V<float, L> v) {
  if constexpr (wide<float, L>) return join(float_to_f16(low(v)), float_to_f16(high(v)));
#if defined(PT_AVX512)
  else if constexpr (L == 16) {
    return {(Raw<u16, 16>)__builtin_ia32_vcvtps2ph512_mask(v.n, 0, Raw<short, 16>{}, u16(-1))};
  }
#endif
#if defined(__F16C__)
#if PT_WIDTH >= 32
  else if constexpr (L == 8) return {(Raw<u16, 8>)__builtin_ia32_vcvtps2ph256(v.n, 0)};
#endif
  else if constexpr (L <= 4) return {(Raw<u16, 8>)__builtin_ia32_vcvtps2ph(v.n, 0)};
#endif
  else {
    using U = V<u32, L>;
    const U bits = as<u32>(v), sign = (bits >> U(16u)) & U(0x8000u), magnitude = bits & U(0x7fffffffu);
    const U odd = (magnitude >> U(13u)) & U(1u);
    const U normal = (magnitude - U(0x37fff001u) + odd) >> U(13u);  // exponent - 112, plus half an ulp
    const U tiny = as<u32>(as<float>(magnitude) + V<float, L>(0.5f)) - U(0x3f000000u);  // rounds to multiples of 2^-24
    const U special = select(magnitude > U(0x7f800000u), U(0x7e00u), U(0x7c00u));
    const U finite = select(magnitude < U(0x38800000u), tiny, normal);
    return resize<u16>(select(magnitude < U(0x477ff000u), finite, special) | sign);
  }
}

// 8-bit floats have half the bits of a float16: of the same exponents, or of others, whose values are 2^8 times as large.
template <int L> PT_FN V<float, L> f8e5_to_float(V<u8, L> bits) {
  return f16_to_float(resize<u16>(bits) << V<u16, L>(u16(8)));
}
template <int L> PT_FN V<float, L> f8e4_to_float(V<u8, L> bits) {
  using U = V<u16, L>;
  const U b = resize<u16>(bits), magnitude = b & U(u16(0x7f)), sign = (b & U(u16(0x80))) << U(u16(8));
  const U special = select(magnitude == U(u16(0x7f)), U(u16(0x7e00)), magnitude << U(u16(7)));
  return f16_to_float(sign | special) * V<float, L>(256.0f);
}

// Storage -------------------------------------------------------------------------------------------------------------
template <class S> struct Stored { using type = S; };
template <> struct Stored<f8e5> { using type = u8; };
template <> struct Stored<f8e4> { using type = u8; };
template <> struct Stored<bf16> { using type = u16; };
template <> struct Stored<f16> { using type = u16; };
template <> struct Stored<bool8> { using type = u8; };
template <> struct Stored<bool> { using type = u8; };
template <class S> using stored = typename Stored<S>::type;  // lanes in which elements of S are loaded and stored
template <class S> constexpr bool is_bool = same<S, bool8> || same<S, bool>;

template <class S> struct ValueOf { using type = S; };
template <> struct ValueOf<bf16> { using type = float; };
template <> struct ValueOf<f8e5> { using type = float; };
template <> struct ValueOf<f8e4> { using type = float; };
template <> struct ValueOf<f16> { using type = float; };
template <> struct ValueOf<bool8> { using type = u8; };
template <class S> using value_of = typename ValueOf<S>::type;  // the type in which elements of S are computed

// v converted to To. Floats truncate towards zero; bool8 gives u8 lanes, 1 where v is nonzero (NaN counts as nonzero).
template <class To, class From, int L> PT_FN V<stored<To>, L> cast(V<From, L> v) {
  static_assert(!same<To, bf16> && !same<To, f16>, "bf16 and f16 are storage types: see round_to and store");
  if constexpr (same<To, From>) return v;
  else if constexpr (is_bool<To>) return resize<u8>(as<unsigned_of<From>>(v != V<From, L>(From(0)))) & V<u8, L>(u8(1));
  else if constexpr (is_float<To> || is_float<From>) return convert<To>(v);
  else return resize<To>(v);
}

template <class T, class S, int L> PT_FN V<T, L> from_storage(V<stored<S>, L> v) {
  if constexpr (same<S, bf16>) return cast<T>(bf16_to_float(v));
  else if constexpr (same<S, f16>) return cast<T>(f16_to_float(v));
  else if constexpr (same<S, f8e5>) return cast<T>(f8e5_to_float(v));
  else if constexpr (same<S, f8e4>) return cast<T>(f8e4_to_float(v));
  else return cast<T>(v);
}
template <class S, class T, int L> PT_FN V<stored<S>, L> to_storage(V<T, L> v) {
  if constexpr (same<S, bf16>) return float_to_bf16(cast<float>(v));
  else if constexpr (same<S, f16>) return float_to_f16(cast<float>(v));
  else return cast<S>(v);
}

// v rounded to the precision of S.
template <class S, class T, int L> PT_FN V<T, L> round_to(V<T, L> v) { return from_storage<T, S>(to_storage<S>(v)); }

}  // namespace
}  // namespace pt
