/* What each tree of a table (forest.py) says of each row: out[tree * rows + row]. */

typedef struct {
  float number;
  short feature;
  unsigned short down;
} Node;

void polytile_forest(const Node *nodes, const int *roots, long trees, const double *values, long rows, long width, double *out) {
  for (long tree = 0; tree < trees; ++tree) {
    for (long row = 0; row < rows; ++row) {
      const double *own = values + row * width;
      const Node *node = nodes + roots[tree];
      while (node->feature >= 0) node += node->down + (own[node->feature] > node->number);
      *out++ = node->number;
    }
  }
}
