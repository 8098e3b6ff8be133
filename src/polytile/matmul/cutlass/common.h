/* What the kernels of products share: the headers of CUTLASS that both need, operands' descriptors, a program's pieces. */

#include <cutlass/cutlass.h>
#include <cute/tensor.hpp>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>
#include <cutlass/numeric_conversion.h>
#include <cutlass/pipeline/sm90_pipeline.hpp>

using namespace cute;

namespace {

constexpr int GROUP_THREADS = 128;

struct alignas(64) Map { /* CUtensorMap */
    unsigned long long words[16];
};

/* A program's pieces, one after another: every `apart`-th of all. */
struct Pieces {
    const Blocks &blocks;
    int next, apart;

    CUTLASS_DEVICE Pieces(const Blocks &blocks, int turn, int turns) : blocks(blocks)
    {
        int programs = gridDim.x / CLUSTER, program = blockIdx.x / CLUSTER;
        next = program + turn * programs;
        apart = turns * programs;
    }

    CUTLASS_DEVICE bool take(Piece &piece)
    {
        if (next >= blocks.pieces())
            return false;
        piece = blocks.piece(next, cute::block_rank_in_cluster());
        next += apart;
        return true;
    }
};

template <class Value> CUTLASS_DEVICE uint32_t packed(Value low, Value high)
{
    auto both = cutlass::NumericArrayConverter<Output, Value, 2>{}({low, high});
    return reinterpret_cast<const uint32_t &>(both);
}

} // namespace
