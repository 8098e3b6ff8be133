/* A product of CUTLASS's collectives for sm_90a: C = Epilogue(A x B), a batch, rows and columns of any number.

   The lines above this file's text say what it computes: Element, Sum and Output; BM, BN, BK, STAGES, CLUSTER, PINGPONG;
   A_ALONG_K, B_ALONG_K; BATCHED; PROMOTED (sums of each step along k are added to sums in float32); A_SCALED, B_SCALED (rows of A
   and columns of B that share a scale in each step along k, scales.h; 0: there are no scales); SPLIT, PROGRAMS, FEWEST_STEPS (blocks.h);
   C_VECTORS (rows of C are a multiple of 16 bytes apart and begin at one); GROUP; SHARED; the struct Epilogue and what it takes.

   Persistent thread blocks of three warp groups. The first group's first thread asks the copy engine (TMA) for operands, by
   descriptors that the launch passes. The other two multiply by CollectiveMma: together the halves of one block of C
   (cooperative), or in turns a block each, so that one stores while the other multiplies (pingpong). CLUSTER thread blocks, one
   below the other in C, share their columns of B. Where SPLIT, several programs share the steps along k of a block; what each has
   of it goes to `parts` (parts.h). */

#include <cutlass/gemm/gemm.h>
#include <cutlass/gemm/dispatch_policy.hpp>
#include <cutlass/gemm/collective/collective_mma_decl.hpp>
#include <cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized.hpp>
#include <cutlass/gemm/collective/sm90_mma_tma_gmma_ss_warpspecialized_fp8.hpp>

namespace {

constexpr int CONSUMERS = PINGPONG ? 1 : 2;                   /* warp groups that share a block of C */
constexpr int WIDE = 128 / sizeof(Element);                   /* elements of a swizzled run in shared memory */
constexpr int WIDTH = A_SCALED > 0 && BN > 128 ? BN / 2 : BN; /* columns of an instruction */
using Number = conditional_t<is_same_v<Element, float>, cutlass::tfloat32_t, Element>;
using Tile = Shape<Int<BM>, Int<BN>, Int<BK>>;
using Cluster = Shape<Int<CLUSTER>, _1, _1>;
using Schedule = conditional_t<PINGPONG, cutlass::gemm::KernelTmaWarpSpecializedPingpong,
                               cutlass::gemm::KernelTmaWarpSpecializedCooperative>;
template <bool AlongK> using Strides = conditional_t<AlongK, Stride<int64_t, _1, int64_t>, Stride<_1, int64_t, int64_t>>;
template <bool AlongK>
using Atom = conditional_t<AlongK, GMMA::Layout_K_SW128_Atom<Number>, GMMA::Layout_MN_SW128_Atom<Number>>;
constexpr auto A_MAJOR = A_ALONG_K ? GMMA::Major::K : GMMA::Major::MN;
constexpr auto B_MAJOR = B_ALONG_K ? GMMA::Major::K : GMMA::Major::MN;
using Instruction = Shape<Int<BM>, Int<WIDTH>, Int<BK>>;
using Mma = decltype(make_tiled_mma(GMMA::ss_op_selector<Number, Number, Sum, Instruction, A_MAJOR, B_MAJOR>(),
                                    Layout<Shape<Int<CONSUMERS>, _1, _1>>{}));
using Multicast = conditional_t<(CLUSTER > 1), SM90_TMA_LOAD_MULTICAST, SM90_TMA_LOAD>;
using Policy = conditional_t<PROMOTED, cutlass::gemm::MainloopSm90TmaGmmaWarpSpecializedFP8<STAGES, Cluster, Schedule>,
                             cutlass::gemm::MainloopSm90TmaGmmaWarpSpecialized<STAGES, Cluster, Schedule>>;
using Mainloop = cutlass::gemm::collective::CollectiveMma<
    Policy, Tile, Element, Strides<A_ALONG_K>, Element,
    Strides<B_ALONG_K>, Mma, SM90_TMA_LOAD, Atom<A_ALONG_K>, void, identity, Multicast, Atom<B_ALONG_K>, void, identity>;
using Pipeline = typename Mainloop::MainloopPipeline;
using State = typename Mainloop::PipelineState;
using Order = cutlass::OrderedSequenceBarrier<2, 2>;

struct Shared {
    typename Mainloop::TensorStorage tensors;
    typename Pipeline::SharedStorage pipeline;
    typename Order::SharedStorage order;
};
static_assert(sizeof(Shared) <= SHARED, "the launch's shared memory is too small");

/* Starts copying this block's slice of an operand: ROWS x BK elements from (row, k) of an item on, swizzled as CollectiveMma
   reads them. */
template <int ROWS, bool ALONG_K, int SLICES>
CUTLASS_DEVICE void load(const Map &map, uint64_t *barrier, uint16_t mask, Number *stage, int row, int k, int item, int slice)
{
    constexpr int PART = ROWS / SLICES, COPIES = ALONG_K ? BK / WIDE : PART / WIDE;
    static_assert(ALONG_K || PART % WIDE == 0, "a slice is narrower than a copy");
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < COPIES; i++) {
        int place = ALONG_K ? (i * ROWS + slice * PART) * WIDE : (slice * COPIES + i) * WIDE * BK;
        int x = ALONG_K ? k + i * WIDE : row + (slice * COPIES + i) * WIDE, y = ALONG_K ? row + slice * PART : k;
        constexpr auto HINT = uint64_t(TMA::CacheHintSm90::EVICT_NORMAL);
        auto copy = [&](auto... at) {
            if constexpr (SLICES > 1)
                SM90_TMA_LOAD_MULTICAST::copy(&map, barrier, mask, HINT, stage + place, at...);
            else
                SM90_TMA_LOAD::copy(&map, barrier, HINT, stage + place, at...);
        };
        if constexpr (BATCHED)
            copy(x, y, item);
        else
            copy(x, y);
    }
}

/* The four threads that share a row exchange words, so that each holds 16 contiguous bytes of the row. */
CUTLASS_DEVICE void transpose(uint32_t (&word)[4], int lane)
{
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 4; i += 2) {
        uint32_t other = __shfl_xor_sync(0xffffffff, lane & 1 ? word[i] : word[i + 1], 1);
        word[i] = lane & 1 ? other : word[i]; /* an index that depends on the lane would force local memory */
        word[i + 1] = lane & 1 ? word[i + 1] : other;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; i++) {
        uint32_t other = __shfl_xor_sync(0xffffffff, lane & 2 ? word[i] : word[i + 2], 2);
        word[i] = lane & 2 ? other : word[i];
        word[i + 2] = lane & 2 ? word[i + 2] : other;
    }
}

/* Stores 16 bytes of a row from column x on, up to the end of the row. */
CUTLASS_DEVICE void store_words(Output *line, const uint32_t (&word)[4], int x, int n)
{
    if (x + 8 <= n) {
        *reinterpret_cast<uint4 *>(line + x) = make_uint4(word[0], word[1], word[2], word[3]);
        return;
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 8; i++) {
        auto bits = uint16_t(word[i / 2] >> i % 2 * 16);
        if (x + i < n)
            line[x + i] = reinterpret_cast<const Output &>(bits);
    }
}

/* Stores two adjacent elements of a row from column x on, up to the end of the row. */
CUTLASS_DEVICE void store_pair(Output *line, Output low, Output high, int x, int n)
{
    alignas(2 * sizeof(Output)) Output pair[2] = {low, high};
    if (C_VECTORS && sizeof(Output) == 4 && x + 2 <= n) {
        *reinterpret_cast<uint2 *>(line + x) = reinterpret_cast<const uint2 &>(pair);
        return;
    }
    if (x < n)
        line[x] = low;
    if (x + 1 < n)
        line[x + 1] = high;
}

/* Applies the epilogue to a warp group's sums and stores them: `row` and `column` are those of the thread's first sum. */
template <class Sums>
CUTLASS_DEVICE void store(const Sums &sums, const Epilogue &epilogue, int item, int m, int n, int row, int column)
{
    constexpr bool WORDS = C_VECTORS && sizeof(Output) == 2;
    int quad = threadIdx.x % 4;
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < size<1>(sums); part++) {
        CUTLASS_PRAGMA_UNROLL
        for (int below = 0; below < 2; below++) {
            int y = row + part * 64 * CONSUMERS + below * 8;
            Output *line = epilogue.row(item, y);
            auto value = [&](int eighth, int right) {
                int x = column + eighth * 8 + quad * 2 + right;
                Sum sum = sums(make_coord(right, below, eighth % (WIDTH / 8)), part, eighth / (WIDTH / 8));
                using Value = decltype(epilogue.at(sum, item, y, x));
                return !Epilogue::READS || (y < m && x < n) ? epilogue.at(sum, item, y, x) : Value(0);
            };
            CUTLASS_PRAGMA_UNROLL
            for (int eighth = 0; eighth < BN / 8; eighth += WORDS ? 4 : 1) {
                if constexpr (WORDS) {
                    uint32_t word[4];
                    CUTLASS_PRAGMA_UNROLL
                    for (int i = 0; i < 4; i++)
                        word[i] = packed(value(eighth + i, 0), value(eighth + i, 1));
                    transpose(word, quad);
                    if (y < m)
                        store_words(line, word, column + (eighth + quad) * 8, n);
                } else if (y < m)
                    store_pair(line, Output(value(eighth, 0)), Output(value(eighth, 1)), column + eighth * 8 + quad * 2, n);
            }
        }
    }
}

/* Stores a warp group's sums as they are, a part of a block of BM by BN: `row` is that of the thread's first sum in the block, of
   whose rows `high` are C's. */
template <class Sums> CUTLASS_DEVICE void store_part(const Sums &sums, Sum *block, int row, int high)
{
    CUTLASS_PRAGMA_UNROLL
    for (int part = 0; part < size<1>(sums); part++) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < BN / 4; i++) {
            int below = i % 2, eighth = i / 2, y = row + part * 64 * CONSUMERS + below * 8;
            auto two = sums(make_coord(_, below, eighth % (WIDTH / 8)), part, eighth / (WIDTH / 8));
            Sum pair[2] = {two(0), two(1)};
            auto *place = block + y * BN + eighth * 8 + threadIdx.x % 4 * 2;
            if (y < high)
                *reinterpret_cast<uint2 *>(place) = reinterpret_cast<const uint2 &>(pair);
        }
    }
}

/* Asks for the scales of A's rows in all pieces to be in the L2 cache when consumers load them, by threads that have nothing else
   to do. They are a 32nd of A's bytes, and every step has lines of its own. */
CUTLASS_DEVICE void prefetch_scales(const Scaling &scaling, const Blocks &blocks, int m)
{
    constexpr int LINE = 32, LINES = BM / LINE, THREADS = GROUP_THREADS - 32;
    if (A_SCALED != 1 || scaling.a_rows != 1)
        return;
    Pieces pieces(blocks, 0, 1);
    for (Piece piece; pieces.take(piece);) {
        for (int i = threadIdx.x - 32; i < (piece.last - piece.first) * LINES; i += THREADS) {
            int step = piece.first + i / LINES, row = min(piece.row + i % LINES * LINE, m - 1);
            asm volatile("prefetch.global.L2 [%0];" ::"l"(scaling.a + step * scaling.a_k + row));
        }
    }
}

CUTLASS_DEVICE void produce(Shared &shared, Pipeline &pipeline, const Map &a, const Map &b, const Blocks &blocks)
{
    State state = cutlass::make_producer_start_state<Pipeline>();
    int rank = cute::block_rank_in_cluster();
    Pieces pieces(blocks, 0, 1);
    for (Piece piece; pieces.take(piece);) {
        for (int step = piece.first; step < piece.last; step++, ++state) {
            pipeline.producer_acquire(state);
            uint64_t *barrier = pipeline.producer_get_barrier(state);
            Number *left = reinterpret_cast<Number *>(shared.tensors.smem_A.data()) + state.index() * BM * BK;
            Number *right = reinterpret_cast<Number *>(shared.tensors.smem_B.data()) + state.index() * BN * BK;
            load<BM, A_ALONG_K, 1>(a, barrier, 0, left, piece.row, step * BK, piece.item, 0);
            load<BN, B_ALONG_K, CLUSTER>(b, barrier, (1 << CLUSTER) - 1, right, piece.column, step * BK, piece.item, rank);
        }
    }
    pipeline.producer_tail(state);
}

/* mma reads at most one parameter: the number of instructions after which sums are promoted. */
template <class Parameters> CUTLASS_DEVICE void promote_each_step(Parameters &parameters)
{
    if constexpr (PROMOTED)
        parameters.mma_promotion_interval = BK / size<2>(typename Mma::AtomShape_MNK{});
}

/* A warp group's part of the product of a piece's operands; `group` is its number among those that share a block. */
struct Multiplier {
    Shared &shared;
    Pipeline &pipeline;
    Scaling scaling;
    int m, n, thread, group;
    typename Mainloop::Params &parameters;

    /* The products of each step are multiplied by its scales, which are fetched one step ahead, and added up: those of one
       instruction after the other, so that a thread has room for more sums. Groups that share a block take turns: one multiplies
       while the other adds. */
    template <class Sums> CUTLASS_DEVICE void add_scaled(Sums &sums, State state, const Piece &piece, int row, int column)
    {
        constexpr int DOWN = decltype(size<1>(sums))::value, RIGHT = decltype(size<2>(sums))::value;
        auto slice = Mma{}.get_slice(group * GROUP_THREADS);
        auto left = make_tensor(make_smem_ptr(shared.tensors.smem_A.data()), typename Mainloop::SmemLayoutA{});
        auto above = make_tensor(make_smem_ptr(shared.tensors.smem_B.data()), typename Mainloop::SmemLayoutB{});
        auto a = slice.make_fragment_A(slice.partition_A(left));
        auto b = slice.make_fragment_B(slice.partition_B(above));
        Scales<2 * DOWN, 64 * CONSUMERS, WIDTH> now, next;
        next.load(scaling, piece.first, m, n, row, column);
        clear(sums);
        for (int step = piece.first; step < piece.last; step++, ++state) {
            now = next;
            next.load(scaling, min(step + 1, piece.last - 1), m, n, row, column);
            pipeline.consumer_wait(state);
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < DOWN * RIGHT; i++) {
                auto products = make_fragment_like(sums(_, 0, 0));
                multiply(products, a(_, i / RIGHT, _, state.index()), b(_, i % RIGHT, _, state.index()));
                if (i == DOWN * RIGHT - 1)
                    pipeline.consumer_release(state);
                now.add(sums, products, i / RIGHT, i % RIGHT);
            }
        }
    }

    /* Multiplies one instruction's share of a step. */
    template <class Products, class A, class B> CUTLASS_DEVICE void multiply(Products &products, const A &a, const B &b)
    {
        Mma mma;
        take_turn();
        mma.accumulate_ = GMMA::ScaleOut::Zero;
        warpgroup_fence_operand(products);
        warpgroup_arrive();
        CUTLASS_PRAGMA_UNROLL
        for (int k = 0; k < size<1>(a); k++) {
            cute::gemm(mma, a(_, k), b(_, k), products);
            mma.accumulate_ = GMMA::ScaleOut::One;
        }
        warpgroup_commit_batch();
        pass_turn();
        warpgroup_wait<0>();
        warpgroup_fence_operand(products);
    }

    /* A turn is a named barrier, at which one group waits and the other arrives. */
    CUTLASS_DEVICE void take_turn() const
    {
        if constexpr (!PINGPONG)
            cutlass::arch::NamedBarrier::sync(CONSUMERS * GROUP_THREADS, uint32_t(group));
    }

    CUTLASS_DEVICE void pass_turn() const
    {
        if constexpr (!PINGPONG)
            cutlass::arch::NamedBarrier::arrive(CONSUMERS * GROUP_THREADS, uint32_t(1 - group));
    }

    /* `turn` is called when another group may begin to multiply. */
    template <class Sums, class Turn>
    CUTLASS_DEVICE void add(Sums &sums, State state, const Piece &piece, int row, int column, Turn turn)
    {
        if constexpr (A_SCALED > 0) {
            add_scaled(sums, state, piece, row, column);
            turn();
        } else {
            Mainloop mainloop;
            mainloop.mma(pipeline, state, sums, piece.last - piece.first, thread, shared.tensors, parameters);
            turn();
            mainloop.mma_tail(pipeline, state, piece.last - piece.first);
        }
    }
};

CUTLASS_DEVICE void consume(Shared &shared, Pipeline &pipeline, const Scaling &scaling, const Epilogue &epilogue, Sum *parts, int m,
                            int n, const Blocks &blocks)
{
    int group = threadIdx.x / GROUP_THREADS - 1, thread = threadIdx.x % GROUP_THREADS;
    int within = (PINGPONG ? 0 : group * 64) + thread / 32 * 16 + thread % 32 / 4; /* row of the thread's first sum in a block */
    Order order(shared.order, {uint32_t(group), GROUP_THREADS});
    alignas(typename Mainloop::Params) char memory[sizeof(typename Mainloop::Params)];
    auto &parameters = reinterpret_cast<typename Mainloop::Params &>(memory);
    promote_each_step(parameters);
    int shared_by = PINGPONG ? 0 : __shfl_sync(0xffffffff, group, 0); /* uniform, which the compiler would not know */
    Multiplier multiplier{shared, pipeline, scaling, m, n, shared_by * GROUP_THREADS + thread, shared_by, parameters};
    if (A_SCALED > 0 && group == 1)
        multiplier.pass_turn(); /* the first turn is the first group's */
    State state;
    Pieces pieces(blocks, PINGPONG ? group : 0, PINGPONG ? 2 : 1);
    if (PINGPONG && group == 1)
        state.advance(blocks.steps);
    for (Piece piece; pieces.take(piece);) {
        auto sums = partition_fragment_C(Mma{}, take<0, 2>(Tile{}));
        if (PINGPONG)
            order.wait();
        multiplier.add(sums, state, piece, piece.row + within, piece.column, [&] {
            if (PINGPONG)
                order.arrive();
        });
        state.advance((piece.last - piece.first) * (PINGPONG ? 2 : 1));
        if (PINGPONG)
            order.wait();
        if (SPLIT && piece.part >= 0)
            store_part(sums, parts + piece.part * (long long)(BM * BN), within, m - piece.row);
        else
            store(sums, epilogue, piece.item, m, n, piece.row + within, piece.column);
        if (PINGPONG)
            order.arrive();
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(3 * GROUP_THREADS, 1)
polytile_kernel(const __grid_constant__ Map a, const __grid_constant__ Map b, int m, int n, int k, int batch,
                SCALING_PARAMETERS PARTS_PARAMETER EPILOGUE_PARAMETERS)
{
    extern __shared__ __align__(1024) char memory[];
    Shared &shared = *reinterpret_cast<Shared *>(memory);
    int group = threadIdx.x / GROUP_THREADS;
    typename Pipeline::Params how;
    how.transaction_bytes = (BM + BN) * BK * sizeof(Element);
    how.role = group == 0 ? Pipeline::ThreadCategory::Producer : Pipeline::ThreadCategory::Consumer;
    how.is_leader = threadIdx.x == 0;
    how.num_consumers = CONSUMERS * GROUP_THREADS;
    Pipeline pipeline(shared.pipeline, how, Cluster{});
    if (threadIdx.x == 0) {
        prefetch_tma_descriptor(reinterpret_cast<const TmaDescriptor *>(&a));
        prefetch_tma_descriptor(reinterpret_cast<const TmaDescriptor *>(&b));
        for (int i = 0; i < 4; i++) /* barriers that order the turns of the two groups */
            (&shared.order.barrier_[0][0])[i].init(GROUP_THREADS);
        cutlass::arch::fence_barrier_init();
    }
    if constexpr (CLUSTER > 1) {
        cute::cluster_arrive_relaxed();
        cute::cluster_wait();
    }
    __syncthreads();
    wait_for_kernels_before();
    Blocks blocks(batch, m, n, k);
    if (group == 0) {
        cutlass::arch::warpgroup_reg_dealloc<40>();
        if (threadIdx.x == 0)
            produce(shared, pipeline, a, b, blocks);
        else if (threadIdx.x >= 32)
            prefetch_scales(Scaling{SCALING_ARGUMENTS}, blocks, m);
    } else {
        cutlass::arch::warpgroup_reg_alloc<232>();
        consume(shared, pipeline, Scaling{SCALING_ARGUMENTS}, Epilogue{EPILOGUE_ARGUMENTS}, PARTS_ARGUMENT, m, n, blocks);
    }
}
