/* Scales of operands' blocks: B_SCALED columns of B share one in each step along k, and A_SCALED rows of A. */

namespace {

constexpr int WARP = 32;

/* Where the scales of A's rows and B's columns are, and elements between them along both axes. */
struct Scaling {
    const float *a, *b;
    long long a_rows, a_k, b_k, b_columns;
};

/* The scales of a thread's sums in one step along k: of its ROWS rows, pairs 8 apart that begin every DOWN rows, and of the
   block's columns, which instructions multiply WIDTH at a time. Where each column has a scale of its own, the threads of a warp
   hold them together, each that of every 32nd column: one thread has no room for those of all its columns. Else the columns of an
   instruction share one. */
template <int ROWS, int DOWN, int WIDTH> struct Scales {
    static constexpr bool EACH = B_SCALED == 1;
    static constexpr int COLUMNS = BN / (EACH ? WARP : WIDTH);
    static_assert(EACH ? BN % WARP == 0 : B_SCALED % WIDTH == 0, "columns of an instruction have several scales");
    float rows[ROWS], columns[COLUMNS];

    /* Rows and columns beyond the last, whose sums nobody stores, have the last one's. */
    CUTLASS_DEVICE void load(const Scaling &from, int step, int m, int n, int row, int column)
    {
        const float *above = from.b + step * from.b_k, *left = from.a + step * from.a_k;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < COLUMNS; i++) {
            int x = min(column + (EACH ? i * WARP + int(threadIdx.x % WARP) : i * WIDTH), n - 1);
            columns[i] = above[x / B_SCALED * int(from.b_columns)];
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < ROWS; i++) {
            int y = min(row + i / 2 * DOWN + i % 2 * 8, m - 1);
            rows[i] = left[y / A_SCALED * int(from.a_rows)];
        }
    }

    /* Adds one instruction's products: the `down`-th of the block's rows, the `right`-th of its columns. All threads of a warp
       call it together. */
    template <class Sums, class Products>
    CUTLASS_DEVICE void add(Sums &sums, const Products &products, int down, int right) const
    {
        float whole = EACH ? 1.0f : columns[right];
        float factors[2] = {rows[2 * down] * whole, rows[2 * down + 1] * whole};
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < WIDTH / 4; i++) { /* columns of the thread: two of every eight */
            float own = EACH ? of_column(right * WIDTH / 8 + i / 2, i % 2) : 1.0f;
            CUTLASS_PRAGMA_UNROLL
            for (int below = 0; below < 2; below++) {
                int place = i / 2 * 4 + below * 2 + i % 2;
                sums(place, down, right) += products(place) * factors[below] * own;
            }
        }
    }

    /* The scale of a column of the thread: of its two in the `eighth`-th eight of the block's columns, the left or right. */
    CUTLASS_DEVICE float of_column(int eighth, int right) const
    {
        int holder = eighth * 8 % WARP + threadIdx.x % 4 * 2 + right;
        return __shfl_sync(0xffffffff, columns[eighth * 8 / WARP], holder);
    }
};

} // namespace
