/* Adds up what several programs of a stream have left of a block (product.h), in the order of k, and stores it by the epilogue.
   A thread block has STRIP rows of a block. */

extern "C" __global__ void __launch_bounds__(STRIP_THREADS)
polytile_kernel(const Sum *__restrict__ parts, int m, int n, int k, int batch, EPILOGUE_PARAMETERS)
{
    Blocks blocks(batch, m, n, k);
    Piece piece = blocks.at(blockIdx.x / (BM / STRIP), 0);
    int strip = blockIdx.x % (BM / STRIP) * STRIP, share = blocks.share(), begin = piece.block * blocks.steps;
    int first = begin / share, last = (begin + blocks.steps - 1) / share;
    if (first == last)
        return;
    Epilogue epilogue{EPILOGUE_ARGUMENTS};
    for (int i = threadIdx.x; i < STRIP * BN; i += STRIP_THREADS) {
        int y = piece.row + strip + i / BN, x = piece.column + i % BN;
        if (y >= m || x >= n)
            continue;
        Sum sum = 0;
        for (int program = first; program <= last; program++) {
            int part = 2 * program + (program * share <= begin);
            sum += parts[(long long)part * (BM * BN) + strip * BN + i];
        }
        epilogue.row(piece.item, y)[x] = Output(epilogue.at(sum, piece.item, y, x));
    }
}
