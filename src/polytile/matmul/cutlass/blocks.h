/* Which blocks of C, and which of their steps along k, are whose. Both kernels of a product have this text.

   Blocks are numbered item by item; within one, GROUP rows of clusters at a time, column by column. */

template <class T> CUTLASS_DEVICE T quotient_up(T number, T by)
{
    return (number + by - 1) / by;
}

/* Steps `first` to `last` along k of the block of C whose first element is (row, column) of the batch's `item`. */
struct Piece {
    int block, item, row, column, first, last;
};

struct Blocks {
    int rows, columns, total, steps;

    CUTLASS_DEVICE Blocks(int batch, int m, int n, int k) : rows(quotient_up(m, BM * CLUSTER)), columns(quotient_up(n, BN))
    {
        total = rows * columns * batch;
        steps = quotient_up(k, BK);
    }

    /* All steps of a block; `rank` is this thread block's place in its cluster. */
    CUTLASS_DEVICE Piece at(int block, int rank) const
    {
        int number = block % (rows * columns), first = number / (GROUP * columns) * GROUP, within = number % (GROUP * columns);
        int high = rows - first < GROUP ? rows - first : GROUP;
        int row = ((first + within % high) * CLUSTER + rank) * BM;
        return {block, block / (rows * columns), row, within / high * BN, 0, steps};
    }

    /* Of a stream: how many steps each program has. */
    CUTLASS_DEVICE int share() const { return quotient_up(total * steps, PROGRAMS); }
};
