/* A product for sm_90a whose B is integers of 8 or 4 bits: C = Epilogue(A x B), rows and columns of any number.

   The lines above this file's text say what it computes: Element, Number (an integer of B), Output; BM, BN, BK, STAGES; BITS of an
   integer; MIDDLE, which is subtracted from it; LOW_FIRST (which half of a byte comes first along k); SCALED (0: B has no scales,
   1: one for each column, 2: one for each column and group of steps along k), the struct WeightScales; SPLIT, PROGRAMS,
   FEWEST_STEPS (blocks.h); C_VECTORS; SHARED; the struct Epilogue and what it takes.

   The tensor cores compute the transpose of C, since only their first operand can come from registers: each thread converts its
   integers of B to Element, multiplies them by their scales, and passes them to instructions that read A in shared memory. So the
   instructions' 64 rows are columns of C, and few rows of C cost little. Persistent thread blocks of three warp groups: the first
   group's first thread asks the copy engine (TMA) for operands, the others share the columns of a block. Where SPLIT, programs
   share the steps along k of a block (parts.h). */

#include <cute/arch/copy_sm75.hpp>
#include <cute/arch/mma_sm90.hpp>
#include <cute/atom/mma_traits_sm90_gmma.hpp>

namespace {

constexpr int GROUPS = 2, COLUMNS = 64 * GROUPS; /* warp groups that multiply; columns of their instructions */
constexpr int DOWN = BN / COLUMNS;               /* instructions along a block's columns */
constexpr int RUN = BK * BITS / 8;               /* bytes of a column of B in a step */
constexpr int LINES = 128 / RUN;                 /* columns in 128 bytes of shared memory */
constexpr int DEEP = BK / 16;                    /* instructions along k of a step */
constexpr bool HALVES = is_same_v<Element, cutlass::half_t>;
using Instruction = decltype(GMMA::rs_op_selector<Element, Element, float, Shape<Int<BN>, Int<BM>, Int<BK>>, GMMA::Major::K,
                                                  GMMA::Major::K>());
using Mma = decltype(make_tiled_mma(Instruction{}, Layout<Shape<Int<GROUPS>, _1, _1>>{}));
using Rows = decltype(tile_to_shape(GMMA::Layout_K_SW128_Atom<Element>{}, Shape<Int<BM>, Int<BK>, Int<STAGES>>{}));
using Pipeline = cutlass::PipelineTmaAsync<STAGES>;
using State = cutlass::PipelineState<STAGES>;

struct Shared {
    alignas(1024) Element rows[STAGES * BM * BK];
    alignas(1024) uint8_t integers[STAGES * BN * RUN];
    typename Pipeline::SharedStorage pipeline;
};
static_assert(sizeof(Shared) <= SHARED, "the launch's shared memory is too small");

/* Arithmetic on two elements, each rounded. */
CUTLASS_DEVICE uint32_t difference(uint32_t a, uint32_t b)
{
    uint32_t result;
    if constexpr (HALVES)
        asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    else
        asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

CUTLASS_DEVICE uint32_t times(uint32_t a, uint32_t b)
{
    uint32_t result;
    if constexpr (HALVES)
        asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    else
        asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
    return result;
}

CUTLASS_DEVICE uint32_t both(float value)
{
    auto element = Element(value);
    uint32_t bits = reinterpret_cast<const uint16_t &>(element);
    return bits | bits << 16;
}

/* A thread's four integers of one column for an instruction: two words of elements, for k and k + 1, and for k + 8 and k + 9, where
   k is twice the thread's place among the four that share the column. `column` is the start of the column's bytes in this step, and
   `turn` what the copy engine has exchanged its 16-byte pieces by. */
struct Converter {
    int quad = threadIdx.x % 4;

    CUTLASS_DEVICE void load(const uint8_t *column, int turn, int deep, uint32_t &first, uint32_t &second) const
    {
        if constexpr (BITS == 8) {
            auto *place = column + (deep ^ turn) * 16 + quad * 2;
            uint32_t low = *reinterpret_cast<const uint16_t *>(place), high = *reinterpret_cast<const uint16_t *>(place + 8);
            uint32_t four = low | high << 16;
            auto elements = cutlass::NumericArrayConverter<Element, Number, 4>{}(
                reinterpret_cast<const cutlass::Array<Number, 4> &>(four));
            first = reinterpret_cast<const uint32_t *>(&elements)[0];
            second = reinterpret_cast<const uint32_t *>(&elements)[1];
            if constexpr (MIDDLE != 0) {
                first = difference(first, both(MIDDLE));
                second = difference(second, both(MIDDLE));
            }
        } else {
            auto sixteen = *reinterpret_cast<const uint2 *>(column + (deep / 2 ^ turn) * 16 + deep % 2 * 8);
            first = of_byte(sixteen.x);
            second = of_byte(sixteen.y);
        }
    }

    /* The elements of the thread's byte of a word. A number of 4 bits is the end of a large element's mantissa. */
    CUTLASS_DEVICE uint32_t of_byte(uint32_t word) const
    {
        constexpr uint32_t LARGE = HALVES ? 0x64006400 : 0x43004300; /* 1024 or 128, twice */
        uint32_t low = word >> (8 * quad), high = word >> (8 * quad + 4);
        uint32_t pair = __byte_perm(LOW_FIRST ? low : high, LOW_FIRST ? high : low, 0x5410) & 0x000f000f;
        return difference(pair | LARGE, both((HALVES ? 1024 : 128) + MIDDLE));
    }
};

/* The scales of a thread's columns, each twice. */
struct Factors {
    uint32_t of[2 * DOWN];

    CUTLASS_DEVICE void load(const WeightScales &scales, int step, int n, int column)
    {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < 2 * DOWN; i++)
            of[i] = both(scales.at(step * BK, min(column + i / 2 * COLUMNS + i % 2 * 8, n - 1)));
    }
};

CUTLASS_DEVICE void produce(Shared &shared, Pipeline &pipeline, const Map &a, const Map &b, const Blocks &blocks)
{
    constexpr auto HINT = uint64_t(TMA::CacheHintSm90::EVICT_NORMAL);
    State state = cutlass::make_producer_start_state<Pipeline>();
    Pieces pieces(blocks, 0, 1);
    for (Piece piece; pieces.take(piece);) {
        for (int step = piece.first; step < piece.last; step++, ++state) {
            pipeline.producer_acquire(state);
            uint64_t *barrier = pipeline.producer_get_barrier(state);
            SM90_TMA_LOAD::copy(&a, barrier, HINT, shared.rows + state.index() * BM * BK, step * BK, piece.row);
            SM90_TMA_LOAD::copy(&b, barrier, HINT, shared.integers + state.index() * BN * RUN, step * RUN, piece.column);
        }
    }
    pipeline.producer_tail(state);
}

/* A warp group's part of the product of a piece's operands. */
struct Multiplier {
    Shared &shared;
    Pipeline &pipeline;
    WeightScales scales;
    int n, group, within; /* `within`: the thread's first column in a block */

    /* Registers of an instruction are written again a step later, when it has ended. */
    template <class Sums> CUTLASS_DEVICE void add(Sums &sums, State state, const Piece &piece)
    {
        Mma mma;
        auto rows = mma.get_slice(group * GROUP_THREADS);
        auto a = rows.make_fragment_B(rows.partition_B(make_tensor(make_smem_ptr(shared.rows), Rows{})));
        auto elements = make_tensor<Element>(partition_shape_A(mma, Shape<Int<BN>, Int<BK>>{}));
        auto words = recast<uint32_t>(elements);
        Factors now, next;
        if constexpr (SCALED > 0)
            next.load(scales, piece.first, n, piece.column + within);
        State before = state;
        mma.accumulate_ = GMMA::ScaleOut::Zero;
        warpgroup_fence_operand(sums);
        for (int step = piece.first; step < piece.last; step++) {
            now = next;
            if constexpr (SCALED == 2)
                next.load(scales, min(step + 1, piece.last - 1), n, piece.column + within);
            pipeline.consumer_wait(state);
            CUTLASS_PRAGMA_UNROLL
            for (int deep = 0; deep < DEEP; deep++) {
                warpgroup_wait<DEEP - 1>();
                if (deep == DEEP - 1 && step > piece.first)
                    pipeline.consumer_release(before);
                convert(words, now, state.index(), deep);
                warpgroup_fence_operand(sums);
                warpgroup_arrive();
                cute::gemm(mma, elements(_, _, deep), a(_, _, deep, state.index()), sums);
                warpgroup_commit_batch();
                mma.accumulate_ = GMMA::ScaleOut::One;
            }
            before = state;
            ++state;
        }
        warpgroup_wait<0>();
        warpgroup_fence_operand(sums);
        pipeline.consumer_release(before);
    }

    /* Elements of all instructions at one place along k. */
    template <class Words> CUTLASS_DEVICE void convert(Words &words, const Factors &factors, int stage, int deep)
    {
        CUTLASS_PRAGMA_UNROLL
        for (int down = 0; down < DOWN; down++) {
            CUTLASS_PRAGMA_UNROLL
            for (int below = 0; below < 2; below++) {
                int column = within + down * COLUMNS + below * 8, turn = column / LINES % (RUN / 16);
                uint32_t first, second;
                Converter{}.load(shared.integers + (stage * BN + column) * RUN, turn, deep, first, second);
                bool scaled = SCALED > 0;
                words(below, down, deep) = scaled ? times(first, factors.of[2 * down + below]) : first;
                words(2 + below, down, deep) = scaled ? times(second, factors.of[2 * down + below]) : second;
            }
        }
    }
};

/* Calls `take` for each two sums of a thread that are below each other in C, eight of whose threads have columns side by side:
   take(sums, row, column). `column` is that of the thread's first sum. */
template <class Sums, class Take> CUTLASS_DEVICE void each_pair(const Sums &sums, int row, int column, Take take)
{
    CUTLASS_PRAGMA_UNROLL
    for (int down = 0; down < DOWN; down++) {
        CUTLASS_PRAGMA_UNROLL
        for (int eighth = 0; eighth < BM / 8; eighth++) {
            CUTLASS_PRAGMA_UNROLL
            for (int below = 0; below < 2; below++) {
                float two[2] = {sums(make_coord(0, below, eighth), down, 0), sums(make_coord(1, below, eighth), down, 0)};
                take(two, row + eighth * 8 + threadIdx.x % 4 * 2, column + down * COLUMNS + below * 8);
            }
        }
    }
}

/* Applies the epilogue and stores the results. Of 16 bits, 8 x 8 are transposed within a warp, so that four threads store 16 bytes
   of a row. */
template <class Sums>
CUTLASS_DEVICE void store(const Sums &sums, const Epilogue &epilogue, int m, int n, int row, int column)
{
    int lane = threadIdx.x % 32;
    each_pair(sums, row, column, [&](const float (&two)[2], int y, int x) {
        auto value = [&](int below) {
            using Value = decltype(epilogue.at(two[below], 0, y + below, x));
            return !Epilogue::READS || (y + below < m && x < n) ? epilogue.at(two[below], 0, y + below, x) : Value(0);
        };
        if constexpr (C_VECTORS && sizeof(Output) == 2) {
            uint32_t word;
            SM75_U32x1_MOVM_T::copy(packed(value(0), value(1)), word);
            y += lane / 4 - lane % 4 * 2;
            x += lane % 4 * 2 - lane / 4;
            Output *place = epilogue.row(0, y) + x;
            if (y < m && x + 1 < n)
                *reinterpret_cast<uint32_t *>(place) = word;
            else if (y < m && x < n)
                *place = reinterpret_cast<const Output &>(word);
        } else {
            for (int below = 0; below < 2; below++)
                if (y + below < m && x < n)
                    epilogue.row(0, y + below)[x] = Output(value(below));
        }
    });
}

/* Stores sums as they are, a part of a block of BM by BN: `column` is that of the thread's first sum in the block, of whose rows
   `high` are C's. */
template <class Sums> CUTLASS_DEVICE void store_part(const Sums &sums, float *block, int column, int high)
{
    each_pair(sums, 0, column, [&](const float (&two)[2], int y, int x) {
        if (y < high)
            block[y * BN + x] = two[0];
        if (y + 1 < high)
            block[(y + 1) * BN + x] = two[1];
    });
}

CUTLASS_DEVICE void consume(Shared &shared, Pipeline &pipeline, const WeightScales &scales, const Epilogue &epilogue, float *parts,
                            int m, int n, const Blocks &blocks)
{
    int thread = threadIdx.x % GROUP_THREADS, group = __shfl_sync(0xffffffff, threadIdx.x / GROUP_THREADS - 1, 0);
    int within = group * 64 + thread / 32 * 16 + thread % 32 / 4;
    Multiplier multiplier{shared, pipeline, scales, n, group, within};
    State state;
    Pieces pieces(blocks, 0, 1);
    for (Piece piece; pieces.take(piece);) {
        auto sums = partition_fragment_C(Mma{}, Shape<Int<BN>, Int<BM>>{});
        multiplier.add(sums, state, piece);
        state.advance(piece.last - piece.first);
        if (SPLIT && piece.part >= 0)
            store_part(sums, parts + piece.part * (long long)(BM * BN), within, m - piece.row);
        else
            store(sums, epilogue, m, n, piece.row, piece.column + within);
    }
}

} // namespace

extern "C" __global__ void __launch_bounds__(3 * GROUP_THREADS, 1)
polytile_kernel(const __grid_constant__ Map a, const __grid_constant__ Map b, int m, int n, int k, int batch,
                SCALING_PARAMETERS PARTS_PARAMETER EPILOGUE_PARAMETERS)
{
    extern __shared__ __align__(1024) char memory[];
    Shared &shared = *reinterpret_cast<Shared *>(memory);
    bool consumes = threadIdx.x >= GROUP_THREADS;
    typename Pipeline::Params how;
    how.transaction_bytes = BM * BK * sizeof(Element) + BN * RUN;
    how.role = consumes ? Pipeline::ThreadCategory::Consumer : Pipeline::ThreadCategory::Producer;
    how.is_leader = threadIdx.x == 0;
    how.num_consumers = GROUPS * GROUP_THREADS;
    Pipeline pipeline(shared.pipeline, how, Shape<_1, _1, _1>{});
    if (threadIdx.x == 0) {
        prefetch_tma_descriptor(reinterpret_cast<const TmaDescriptor *>(&a));
        prefetch_tma_descriptor(reinterpret_cast<const TmaDescriptor *>(&b));
        cutlass::arch::fence_barrier_init();
    }
    __syncthreads();
    wait_for_kernels_before();
    Blocks blocks(batch, m, n, k);
    if (consumes) {
        cutlass::arch::warpgroup_reg_alloc<232>();
        WeightScales scales{SCALING_ARGUMENTS};
        consume(shared, pipeline, scales, Epilogue{EPILOGUE_ARGUMENTS}, PARTS_ARGUMENT, m, n, blocks);
    } else {
        cutlass::arch::warpgroup_reg_dealloc<40>();
        if (threadIdx.x == 0)
            produce(shared, pipeline, a, b, blocks);
    }
}
