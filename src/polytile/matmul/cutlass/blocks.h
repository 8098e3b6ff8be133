/* Which blocks of C, and which of their steps along k, are whose. Both kernels of a product have this text.

   Blocks are numbered item by item; within one, GROUP rows of clusters at a time, column by column. */

template <class T> CUTLASS_DEVICE T quotient_up(T number, T by)
{
    return (number + by - 1) / by;
}

/* Waits until the kernels that this one was launched after have ended, and lets the next one's thread blocks be scheduled
   (programmatic dependent launch). */
CUTLASS_DEVICE void wait_for_kernels_before()
{
    asm volatile("griddepcontrol.wait;\n\tgriddepcontrol.launch_dependents;" ::: "memory");
}

/* Steps `first` to `last` along k of the block of C whose first element is (row, column) of the batch's `item`. Where these are
   not all of its steps, `part` numbers the piece among all such pieces; else it is -1. */
struct Piece {
    int item, row, column, first, last, part;
};

/* The first `whole` blocks are a piece each. Where SPLIT, blocks that do not fill the last round of programs are `parts` pieces
   each, equal shares of their steps along k: all blocks' first shares, then all second ones, so that programs that run side by
   side read the same steps of operands. */
struct Blocks {
    int rows, columns, total, steps, whole, parts;

    CUTLASS_DEVICE Blocks(int batch, int m, int n, int k) : rows(quotient_up(m, BM * CLUSTER)), columns(quotient_up(n, BN))
    {
        total = rows * columns * batch;
        steps = quotient_up(k, BK);
        int left = SPLIT ? total % PROGRAMS : 0;
        parts = left > 0 ? max(1, min(PROGRAMS / left, steps / FEWEST_STEPS)) : 1;
        whole = parts > 1 ? total - left : total;
    }

    CUTLASS_DEVICE int pieces() const { return whole + (total - whole) * parts; }

    /* All steps of a block; `rank` is this thread block's place in its cluster. */
    CUTLASS_DEVICE Piece block(int block, int rank) const
    {
        int number = block % (rows * columns), first = number / (GROUP * columns) * GROUP, within = number % (GROUP * columns);
        int high = rows - first < GROUP ? rows - first : GROUP;
        int row = ((first + within % high) * CLUSTER + rank) * BM;
        return {block / (rows * columns), row, within / high * BN, 0, steps, -1};
    }

    CUTLASS_DEVICE Piece piece(int number, int rank) const
    {
        if (number < whole)
            return block(number, rank);
        int part = number - whole, left = total - whole, share = part / left, least = steps / parts, longer = steps % parts;
        Piece piece = block(whole + part % left, rank);
        piece.first = share * least + min(share, longer);
        piece.last = piece.first + least + (share < longer);
        piece.part = part;
        return piece;
    }
};
