/* A product by a library as data. products.py makes it for live programs, packages contain it, and product.c reads it. */

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ProductApi ProductApi;
typedef struct Known Known;

typedef struct { /* (batch, rows, columns) in memory, strides in elements; `tensor` -1: there is none */
    const int64_t *strides[3];
    int32_t tensor, type, torch_type;
} Operand;

enum { A, B, C, D, ALL };

typedef struct {
    const ProductApi *api;
    void *context, *handle; /* the device's; cuBLASLt's */
    int64_t fastest_at[4];  /* batch, M, N, K at which proposal `rank` was the fastest; elsewhere the first one runs; -1: any */
    uint64_t most_workspace;
    Operand operands[ALL];
    int32_t bias; /* the tensor, or -1 */
    int32_t compute, scale, device, rank;
    int32_t integers; /* number of leading integers of a call that matter */
    /* the rest belongs to C and starts as zeros */
    int32_t refusals, has_run;
    uint64_t number; /* unique number, where calls are recorded; 0: not assigned yet */
    atomic_flag busy;
    size_t capacity, used;
    int64_t *keys; /* integers + 1 of each slot */
    Known **slots;
} ProductPlan;
