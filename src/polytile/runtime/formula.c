/* Integer formulas over a call's integers; see formula.py, which makes them. */

#include <stdint.h>

enum { END, CONSTANT, ARGUMENT, ADD, MULTIPLY, FLOOR_DIVIDE, MODULUS, MINIMUM, MAXIMUM, COMMON };

static inline int64_t floor_divide(int64_t a, int64_t b)
{
    if (b == 0)
        return 0;
    return a / b - (a % b != 0 && (a < 0) != (b < 0));
}

static inline int64_t combined(int64_t operation, int64_t a, int64_t b)
{
    switch (operation) {
    case ADD: return (int64_t)((uint64_t)a + (uint64_t)b);
    case MULTIPLY: return (int64_t)((uint64_t)a * (uint64_t)b);
    case FLOOR_DIVIDE: return floor_divide(a, b);
    case MODULUS: return b == 0 ? 0 : a - floor_divide(a, b) * b;
    case MINIMUM: return a < b ? a : b;
    case COMMON: return (int64_t)((uint64_t)(a | b) & -(uint64_t)(a | b));
    default: return a > b ? a : b;
    }
}

static int64_t formula(const int64_t *code, const long *integers)
{
    int64_t stack[33], *top = stack; /* the first is below the bottom */
    for (;; code += 2) {
        switch (code[0]) {
        case END: return *top;
        case CONSTANT: *++top = code[1]; break;
        case ARGUMENT: *++top = integers[code[1]]; break;
        default: top--; top[0] = combined(code[0], top[0], top[1]);
        }
    }
}
