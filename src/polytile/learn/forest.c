/* What each tree of a table (forest.py) says of each row: out[tree * rows + row]. Rows go down a tree side by side: one alone would
   wait for each node. */

typedef struct {
  float number;
  short feature;
  unsigned short down;
} Node;

enum { TOGETHER = 8 };

void polytile_forest(const Node *nodes, const int *roots, long trees, const double *values, long rows, long width, double *out) {
  for (long tree = 0; tree < trees; ++tree) {
    for (long first = 0; first < rows; first += TOGETHER) {
      const double *own = values + first * width;
      long count = rows - first < TOGETHER ? rows - first : TOGETHER, on = 1;
      const Node *at[TOGETHER];
      for (long row = 0; row < count; ++row) at[row] = nodes + roots[tree];
      while (on) {
        on = 0;
        for (long row = 0; row < count; ++row) {
          const Node *node = at[row];
          long inner = node->feature >= 0;
          long next = node->down + (own[row * width + (inner ? node->feature : 0)] > node->number);
          at[row] = node + (inner ? next : 0);
          on |= inner;
        }
      }
      for (long row = 0; row < count; ++row) *out++ = at[row]->number;
    }
  }
}
