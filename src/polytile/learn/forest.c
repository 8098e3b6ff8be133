/* What each tree of a table (forest.py) says of each row: out[tree * rows + row]. Four rows walk at once, as each step of one waits
   for memory; one that has reached its leaf stays there. */

typedef struct {
  float number;
  short feature;
  unsigned short down;
} Node;

static inline const Node *next(const Node *node, const double *own) {
  int feature = node->feature, inner = feature >= 0;
  int further = node->down + (own[inner ? feature : 0] > node->number);
  return node + (inner ? further : 0);
}

void polytile_forest(const Node *nodes, const int *roots, long trees, const double *values, long rows, long width, double *out) {
  for (long tree = 0; tree < trees; ++tree, out += rows) {
    for (long row = 0; row < rows; row += 4) {
      const long last = rows - 1, second = row < last ? row + 1 : last, third = row + 2 < last ? row + 2 : last;
      const long fourth = row + 3 < last ? row + 3 : last;
      const double *p = values + row * width, *q = values + second * width, *r = values + third * width;
      const double *s = values + fourth * width;
      const Node *a = nodes + roots[tree], *b = a, *c = a, *d = a;
      while ((a->feature & b->feature & c->feature & d->feature) >= 0) {
        a = next(a, p), b = next(b, q), c = next(c, r), d = next(d, s);
      }
      out[row] = a->number, out[second] = b->number, out[third] = c->number, out[fourth] = d->number;
    }
  }
}
