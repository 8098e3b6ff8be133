/* Adds up the parts of blocks that are split along k (product.h) in an order that depends on their number alone, and stores the
   sums by the epilogue.

   A warp reads ACROSS neighbouring sums of a part at a time. If there are so many parts, WAYS warps have an equal share of the
   parts of the same sums; else each has sums of its own. */

constexpr int ACROSS = 128, WAYS = PARTS_THREADS / 32;

extern "C" __global__ void __launch_bounds__(PARTS_THREADS)
polytile_kernel(const Sum *__restrict__ parts, int m, int n, int k, int batch, EPILOGUE_PARAMETERS)
{
    __shared__ alignas(16) Sum shared[WAYS][ACROSS];
    wait_for_kernels_before();
    Blocks blocks(batch, m, n, k);
    Epilogue epilogue{EPILOGUE_ARGUMENTS};
    int left = blocks.total - blocks.whole, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int ways = blocks.parts < WAYS ? 1 : WAYS, runs = BM * BN / ACROSS; /* per block */
    for (int first = blockIdx.x * (WAYS / ways); first < left * runs; first += gridDim.x * (WAYS / ways)) {
        int run = first + (ways == 1 ? warp : 0);
        if (run < left * runs) {
            Sum sums[4] = {};
            #pragma unroll 4
            for (int part = ways == 1 ? 0 : warp; part < blocks.parts; part += ways) {
                long long block = part * left + run / runs;
                auto four = reinterpret_cast<const uint4 *>(parts + block * (BM * BN) + run % runs * ACROSS)[lane];
                for (int i = 0; i < 4; i++)
                    sums[i] += reinterpret_cast<const Sum *>(&four)[i];
            }
            reinterpret_cast<uint4 *>(shared[warp])[lane] = reinterpret_cast<const uint4 &>(sums);
        }
        __syncthreads();
        for (int i = threadIdx.x; i < WAYS / ways * ACROSS; i += PARTS_THREADS) {
            int place = (first + i / ACROSS) % runs * ACROSS + i % ACROSS, number = (first + i / ACROSS) / runs;
            if (number >= left)
                continue;
            Piece piece = blocks.block(blocks.whole + number, 0);
            int y = piece.row + place / BN, x = piece.column + place % BN;
            Sum sum = shared[i / ACROSS][i % ACROSS];
            for (int way = 1; way < ways; way++)
                sum += shared[way][i];
            if (y < m && x < n)
                epilogue.row(piece.item, y)[x] = Output(epilogue.at(sum, piece.item, y, x));
        }
        __syncthreads();
    }
}
