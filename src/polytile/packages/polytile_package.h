/* Calls of a package that `polytile package` has written, from C and C++. Nothing of Python, torch or a compiler is needed.

       char why[1024];
       PolytilePackage *package = polytile_open("model.ptp", why, sizeof why);
       int status = polytile_call(package, inputs, 1, outputs, 1, why, sizeof why);

   Tensors are those of DLPack. Inputs are borrowed for the call; outputs belong to the caller, who ends each by its `deleter`. Any
   number of threads may call. */

#ifndef POLYTILE_PACKAGE_H
#define POLYTILE_PACKAGE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef DLPACK_VERSION /* else dlpack.h has been included, which declares the same */
typedef struct {
    int32_t device_type; /* 1: the processor's memory, 2: that of a GPU (CUDA) */
    int32_t device_id;
} DLDevice;

typedef struct {
    uint8_t code; /* 0 int, 1 unsigned int, 2 float, 4 bfloat, 5 complex, 6 bool */
    uint8_t bits;
    uint16_t lanes; /* 1 */
} DLDataType;

typedef struct {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides; /* in elements; NULL: row-major, without gaps */
    uint64_t byte_offset;
} DLTensor;

typedef struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(struct DLManagedTensor *self);
} DLManagedTensor;
#endif

typedef struct PolytilePackage PolytilePackage;

enum {
    POLYTILE_OK = 0,
    POLYTILE_REFUSED = 1,  /* the inputs are not what the package takes; nothing was computed */
    POLYTILE_INDEX = 2,    /* a kernel found an index out of range, or a divisor of 0 */
    POLYTILE_ASSERTION = 3, /* an assertion of the model does not hold */
    POLYTILE_MEMORY = 4,   /* memory ran out */
    POLYTILE_DEVICE = 5,   /* the GPU, its driver or cuBLASLt refused */
};

/* Opens a package: a file, or a folder with the same content. NULL on failure; `why` gets a sentence of up to `room` bytes, here and
   below. */
PolytilePackage *polytile_open(const char *path, char *why, size_t room);

/* Calls the program. An integer is a tensor of rank 0 and type int64. `outputs` gets polytile_outputs(package) tensors. */
int polytile_call(PolytilePackage *package, const DLTensor *const *inputs, int input_count, DLManagedTensor **outputs,
                  int output_count, char *why, size_t room);

/* The same of a package for GPUs, on a stream (CUstream, cudaStream_t; NULL: the default one) of the GPU that the inputs are on.
   It returns when the work is on the stream, not when it is done; an index out of range is told by a later call. Outputs are the
   stream's: work on others waits for it, and they end before it is destroyed. */
int polytile_call_on(PolytilePackage *package, void *stream, const DLTensor *const *inputs, int input_count,
                     DLManagedTensor **outputs, int output_count, char *why, size_t room);

int polytile_device_type(const PolytilePackage *package); /* where it runs, as of a DLDevice */
int polytile_inputs(const PolytilePackage *package);
int polytile_outputs(const PolytilePackage *package);
const char *polytile_input_name(const PolytilePackage *package, int input);

/* Unloads the package. No call may be running. Outputs stay. */
void polytile_close(PolytilePackage *package);

#ifdef __cplusplus
}
#endif

#endif
