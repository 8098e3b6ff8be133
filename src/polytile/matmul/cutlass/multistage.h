/* A product of CUTLASS's collectives for sm_80, sm_86 and sm_89: C = Epilogue(A x B), a batch, rows and columns of any number. Both
   operands lie along k, which is a multiple of BK.

   The lines above this file's text say what it computes: Element, Sum and Output; BM, BN, BK, STAGES; DOWN, ACROSS, warps of a
   thread block along rows and columns; GROUP; the struct Epilogue and what it takes.

   A thread block has one block of C. All its threads copy operands to shared memory, STAGES steps ahead (cp.async), and multiply by
   CollectiveMma. */

#include <cutlass/cutlass.h>
#include <cute/tensor.hpp>
#include <cute/atom/copy_atom.hpp>
#include <cute/atom/mma_atom.hpp>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/collective/collective_mma_decl.hpp>
#include <cutlass/gemm/collective/sm80_mma_multistage.hpp>
#include <cutlass/numeric_conversion.h>

using namespace cute;

namespace {

constexpr int THREADS = 32 * DOWN * ACROSS, WIDE = 16 / sizeof(Element); /* elements of a copy */
template <class Element> struct Instructions;
template <> struct Instructions<cutlass::bfloat16_t> {
    using Type = SM80_16x8x16_F32BF16BF16F32_TN;
};
template <> struct Instructions<cutlass::half_t> {
    using Type = SM80_16x8x16_F32F16F16F32_TN;
};
template <> struct Instructions<int8_t> {
    using Type = SM80_16x8x32_S32S8S8S32_TN;
};
using Instruction = typename Instructions<Element>::Type;
using Mma = TiledMMA<MMA_Atom<Instruction>, Layout<Shape<Int<DOWN>, Int<ACROSS>, _1>>,
                     cute::Tile<Int<16 * DOWN>, Int<16 * ACROSS>, Int<32 / sizeof(Element)>>>;
/* 8 rows of 64 bytes, whose copies are exchanged so that a warp reads them from different banks. */
static_assert(BK * sizeof(Element) == 64, "rows of a step are 64 bytes");
using Atom = decltype(composition(Swizzle<2, sizeof(Element) == 2 ? 3 : 4, 3>{},
                                  Layout<Shape<_8, Int<BK>>, Stride<Int<BK>, _1>>{}));
using Threads = Layout<Shape<Int<THREADS * WIDE / BK>, Int<BK / WIDE>>, Stride<Int<BK / WIDE>, _1>>;
using Copy = decltype(make_tiled_copy(Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<cute::uint128_t>, Element>{}, Threads{},
                                      Layout<Shape<_1, Int<WIDE>>>{}));
using Load = Copy_Atom<SM75_U32x4_LDSM_N, Element>;
using Strides = Stride<int64_t, _1, int64_t>;
using Mainloop = cutlass::gemm::collective::CollectiveMma<
    cutlass::gemm::MainloopSm80CpAsync<STAGES>, Shape<Int<BM>, Int<BN>, Int<BK>>, Element, Strides, Element, Strides, Mma, Copy,
    Atom, Load, identity, Copy, Atom, Load, identity>;
static_assert(sizeof(typename Mainloop::SharedStorage) <= SHARED, "the launch's shared memory is too small");

/* Steps along k of `rows` rows of an operand, from its row `first` on. */
template <int ROWS> CUTLASS_DEVICE auto steps(const Element *operand, int rows, int k, long long apart, int first)
{
    auto whole = make_tensor(make_gmem_ptr(operand), make_shape(rows, k), make_stride(int64_t(apart), _1{}));
    return local_tile(whole, Shape<Int<ROWS>, Int<BK>>{}, make_coord(first / ROWS, _));
}

} // namespace

extern "C" __global__ void __launch_bounds__(THREADS)
polytile_kernel(const Element *__restrict__ a, const Element *__restrict__ b, OPERAND_PARAMETERS int m, int n, int k, int batch,
                EPILOGUE_PARAMETERS)
{
    extern __shared__ __align__(128) char memory[];
    Blocks blocks(batch, m, n, k);
    Piece piece = blocks.block(blockIdx.x, 0);
    auto left = steps<BM>(a + piece.item * a_stride_b, m, k, a_stride_m, piece.row);
    auto above = steps<BN>(b + piece.item * b_stride_b, n, k, b_stride_n, piece.column);
    auto sums = partition_fragment_C(Mma{}, Shape<Int<BM>, Int<BN>>{});
    clear(sums);
    Mainloop mainloop;
    auto remain = make_tuple(m - piece.row, n - piece.column, 0);
    mainloop(sums, left, above, sums, make_coord_iterator(size<2>(left)), blocks.steps, remain, int(threadIdx.x), memory);
    Epilogue epilogue{EPILOGUE_ARGUMENTS};
    auto places = Mma{}.get_slice(threadIdx.x).partition_C(make_identity_tensor(Shape<Int<BM>, Int<BN>>{}));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size(sums); i++) {
        int y = piece.row + get<0>(places(i)), x = piece.column + get<1>(places(i));
        if (y < m && x < n)
            epilogue.row(piece.item, y)[x] = Output(epilogue.at(sums(i), piece.item, y, x));
    }
}
