/* cuBLASLt's C interface on the host's memory: proposals are numbered, products are computed as the descriptors say, and what
   the descriptors contradict is refused. Tests read and set the stub_ variables. */

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef STUB_RELEASE
#define STUB_RELEASE 13
#endif

enum { F32 = 0, I8 = 3, I32 = 10, BF16 = 14, COMPUTE_32I = 72, BIAS = 4 };
typedef struct { int type; uint64_t rows, columns; int64_t stride; int32_t batch; int64_t batch_stride; } Layout;
typedef struct { int compute, scale, transposed[2], epilogue; const char *bias; } Operation;
typedef struct { uint64_t workspace; uint32_t reductions, alignments[4]; } Preference;
typedef struct { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; } Result;

int stub_proposals = 4, stub_asked, stub_products, stub_alive, stub_status, stub_refuses_start;
uint64_t stub_algorithm, stub_refused;
size_t stub_workspace;
uint32_t stub_alignment, stub_reductions;
int stub_epilogue;

static void *made(void **where, size_t bytes)
{
    stub_alive++;
    return *where = calloc(1, bytes);
}

size_t cublasLtGetVersion(void) { return STUB_RELEASE * 10000 + 100; }
int cublasLtCreate(void **handle) { *handle = (void *)0x99; return stub_refuses_start; }

int cublasLtMatmulDescCreate(void **where, int compute, int scale)
{
    Operation *operation = made(where, sizeof(Operation));
    operation->compute = compute, operation->scale = scale, operation->epilogue = 1;
    return 0;
}
int cublasLtMatmulDescSetAttribute(Operation *operation, int number, const void *value, size_t bytes)
{
    if (number == 7 && bytes == 4) memcpy(&operation->epilogue, value, 4);
    else if (number == 8 && bytes == 8) memcpy(&operation->bias, value, 8);
    else if ((number == 3 || number == 4) && bytes == 4) memcpy(&operation->transposed[number - 3], value, 4);
    else return 7;
    return 0;
}
int cublasLtMatmulDescDestroy(void *operation) { stub_alive--; free(operation); return 0; }

int cublasLtMatrixLayoutCreate(void **where, int type, uint64_t rows, uint64_t columns, int64_t stride)
{
    Layout *layout = made(where, sizeof(Layout));
    layout->type = type, layout->rows = rows, layout->columns = columns, layout->stride = stride, layout->batch = 1;
    return 0;
}
int cublasLtMatrixLayoutSetAttribute(Layout *layout, int number, const void *value, size_t bytes)
{
    if (number == 5 && bytes == 4) memcpy(&layout->batch, value, 4);
    else if (number == 6 && bytes == 8) memcpy(&layout->batch_stride, value, 8);
    else return 7;
    return 0;
}
int cublasLtMatrixLayoutDestroy(void *layout) { stub_alive--; free(layout); return 0; }

int cublasLtMatmulPreferenceCreate(void **where) { made(where, sizeof(Preference)); return 0; }
int cublasLtMatmulPreferenceSetAttribute(Preference *preference, int number, const void *value, size_t bytes)
{
    if (number == 1 && bytes == 8) memcpy(&preference->workspace, value, 8);
    else if (number == 3 && bytes == 4) memcpy(&preference->reductions, value, 4);
    else if (number >= 5 && number <= 8 && bytes == 4) memcpy(&preference->alignments[number - 5], value, 4);
    else return 7;
    return 0;
}
int cublasLtMatmulPreferenceDestroy(void *preference) { stub_alive--; free(preference); return 0; }

static int contradicts(const Operation *o, const Layout *a, const Layout *b, const Layout *c, const Layout *d)
{
    int like_d = c->type == d->type && c->rows == d->rows && c->columns == d->columns && c->batch == d->batch;
    int unaligned = (o->epilogue & BIAS) && (!o->bias || (uintptr_t)o->bias % 16);
    uint64_t m = o->transposed[0] ? a->columns : a->rows, k = o->transposed[0] ? a->rows : a->columns;
    uint64_t n = o->transposed[1] ? b->rows : b->columns, inner = o->transposed[1] ? b->columns : b->rows;
    int strides = a->stride < (int64_t)a->rows || b->stride < (int64_t)b->rows || d->stride < (int64_t)d->rows;
    int types = a->type != b->type || (a->type == I8 ? d->type != I32 || o->compute != COMPUTE_32I : d->type == I32);
    int empty = !m || !n || !k || !like_d || unaligned || c->stride < (int64_t)c->rows;
    return empty || strides || types || inner != k || d->rows != m || d->columns != n || a->batch != d->batch ||
           b->batch != d->batch || o->scale != (o->compute == COMPUTE_32I ? I32 : F32);
}

int cublasLtMatmulAlgoGetHeuristic(void *handle, Operation *o, Layout *a, Layout *b, Layout *c, Layout *d,
                                   Preference *preference, int most, Result *results, int *count)
{
    stub_asked++;
    stub_alignment = preference->alignments[0], stub_reductions = preference->reductions;
    if (contradicts(o, a, b, c, d) || handle != (void *)0x99) return 15;
    *count = most < stub_proposals ? most : stub_proposals;
    for (int i = 0; i < *count; i++) {
        memset(&results[i], 0, sizeof(Result));
        results[i].algorithm[0] = 100 + (uint64_t)i;
        results[i].workspace = i % 2 ? 4096 : 0;
    }
    return 0;
}
int cublasLtMatmulAlgoConfigGetAttribute(const uint64_t *algorithm, int number, void *value, size_t bytes, size_t *written)
{
    memset(value, 0, bytes);
    if (number == 0) memcpy(value, algorithm, bytes);
    *written = bytes;
    return bytes == (number >= 7 ? 2 : 4) ? 0 : 7;
}

static double element(const Layout *l, const char *memory, int64_t at)
{
    uint32_t word;
    float value;
    if (l->type == I8) return ((const int8_t *)memory)[at];
    if (l->type == F32) return ((const float *)memory)[at];
    word = (uint32_t)((const uint16_t *)memory)[at] << 16;
    memcpy(&value, &word, 4);
    return value;
}

int cublasLtMatmul(void *handle, Operation *o, const void *one, const char *at_a, Layout *a, const char *at_b, Layout *b,
                   const void *share, const char *at_c, Layout *c, char *at_d, Layout *d, const uint64_t *algorithm,
                   void *workspace, size_t bytes, void *stream)
{
    uint64_t inner = o->transposed[0] ? a->rows : a->columns;
    float alpha = *(const float *)one;
    if (algorithm[0] == stub_refused) return 15;
    if (stub_status || contradicts(o, a, b, c, d) || (bytes && !workspace)) return stub_status ? stub_status : 7;
    if (o->compute == COMPUTE_32I ? *(const int32_t *)one != 1 : alpha != 1.0f) return 7;
    stub_epilogue = o->epilogue;
    stub_products++, stub_algorithm = algorithm[0], stub_workspace = bytes;
    for (int64_t item = 0; item < d->batch; item++)
        for (uint64_t m = 0; m < d->rows; m++)
            for (uint64_t n = 0; n < d->columns; n++) {
                double sum = 0;
                for (uint64_t k = 0; k < inner; k++) {
                    uint64_t i = o->transposed[0] ? m * a->stride + k : k * a->stride + m;
                    uint64_t j = o->transposed[1] ? k * b->stride + n : n * b->stride + k;
                    sum += element(a, at_a, item * a->batch_stride + i) * element(b, at_b, item * b->batch_stride + j);
                }
                if (*(const float *)share == 1.0f)
                    sum += element(c, at_c, item * c->batch_stride + (int64_t)(n * c->stride + m));
                if (o->epilogue & BIAS) sum += element(d, o->bias, m);
                int64_t at = item * d->batch_stride + (int64_t)(n * d->stride + m);
                float value = (float)sum;
                uint32_t word;
                if (d->type == I32) ((int32_t *)at_d)[at] = (int32_t)sum;
                else if (d->type == F32) ((float *)at_d)[at] = value;
                else memcpy(&word, &value, 4), ((uint16_t *)at_d)[at] = (uint16_t)((word + 0x8000) >> 16);
            }
    return 0;
}
