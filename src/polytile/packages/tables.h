/* The content of a package's program.so, as data. packages/text.py writes it, runtime.c reads it. */

enum { PACKAGE_ABI = 2, NO_LIBRARY = -1, NO_KERNEL = -1 };

typedef struct { /* the machine code of one launch: the file, and the kernel in it */
    int32_t image;
    const char *symbol;
} PackagedCode;

typedef struct { /* how a kernel is launched on GPUs of one architecture */
    int32_t architecture; /* 90 */
    int32_t launch_count, scratch_count;
    int32_t reports; /* whether it reports run-time checks */
    const Launch *launches;
    const PackagedCode *codes; /* of each launch */
    const Scratch *scratch;
} PackagedBuild;

typedef struct { /* a kernel's machine code, and the calls for which it is right; or a product by cuBLASLt */
    int32_t library;
    const char *symbol;
    int64_t threads;
    int32_t core; /* the library with the core that it is bound to, or NO_LIBRARY */
    const char *bind, *core_symbol;
    int64_t slot;
    int32_t fact_count;
    const int64_t *facts; /* LeafFacts (keys.c): kind, index and number of each */
    int32_t build_count; /* of a kernel for GPUs, which has no library */
    const PackagedBuild *builds;
    const ProductPlan *product; /* without what belongs to a process or a device; NULL: it is none */
    int32_t then;               /* the kernel that reads a product in memory, or NO_KERNEL: it is the result */
    int32_t element_bytes;      /* of that memory */
} PackagedLeaf;

typedef struct { /* which leaves serve, the first to look at first; no leaves: the regime is subdivided */
    const int64_t *key;
    int32_t count;
    const unsigned short *leaves;
} PackagedRow;

typedef struct { /* rows in the order of their keys */
    int32_t count;
    const PackagedRow *rows;
} PackagedTable;

typedef struct {
    const char *name;
    int32_t tensors, integers, fields;
    const unsigned char *codes, *tensor_codes; /* of regime keys; tensor codes may be NULL */
    int32_t formula_count;
    const int64_t *const *formulas;
    int32_t leaf_count;
    const PackagedLeaf *leaves;
    PackagedTable decided, cells;
    int32_t has_exact_sizes;
    int32_t anywhere_count;
    const unsigned short *anywhere; /* leaves for all other sizes */
    int32_t check_count;
    const char *const *checks; /* sentences for run-time checks 1, 2, ... */
} PackagedKernel;

typedef struct {
    const char *name;
    int32_t dtype, rank; /* dtype: torch's number */
} PackagedInput;

typedef struct { /* a tensor in the file of weights */
    int64_t offset, bytes;
    Layout layout;
} PackagedConstant;

typedef struct {
    int32_t status; /* what the call returns (polytile_package.h) */
    const char *sentence;
} PackagedError;

typedef struct {
    int64_t abi;
    const char *machine, *features; /* what `uname -m` says; features of the processor, with blanks around each */
    int32_t device_type; /* DLPack's: 1 a CPU, 2 a GPU */
    int32_t inputs, outputs, tensors, memories, constants, kernels, libraries, images;
    const PackagedInput *input;
    const PackagedConstant *constant;
    const PackagedKernel *kernel;
    const char *const *library, *const *image; /* names of files */
    int32_t launcher, multiplier; /* the libraries that launch kernels and multiply by cuBLASLt, or NO_LIBRARY */
    const char *cublaslt;         /* the name of that library */
    const PackagedError *errors;
    Function run;
} PackagedProgram;
