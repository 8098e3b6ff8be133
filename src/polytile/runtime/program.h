/* The interface between a program in C, written by wrapper/cpp.py, and the launcher (program.c).

   A program is one function of a Frame. It refers to tensors, kernels and Python callables by number, and its sizes are
   local variables. Everything that touches an object of Python or torch is a function of the Api. Functions return 0,
   or -1 with a Python exception. */

#include <stdint.h>

enum { RETURNED = 0, RAISED = -1, REFUSED = 1 }; /* refused: nothing was done; Python's wrapper makes this call */

typedef struct {
    int64_t rank;
    const int64_t *sizes, *strides; /* strides in elements */
    int32_t dtype;                  /* torch's number */
} Layout;

typedef struct { /* the live range of a memory: its first line, and the first line after the last use */
    int32_t first, last;
    int32_t inside; /* whether it may lie in the arena */
    int32_t bytes_of_element;
    int32_t argument; /* the given tensor that it is; -1: it has a layout */
} Life;

typedef struct Frame Frame;

typedef struct {
    /* the arguments, before anything else: whether the program accepts them */
    int (*take_tensor)(Frame *, int argument, int tensor);
    int (*take_integer)(Frame *, int argument, int64_t *integer);
    int (*take_value)(Frame *, int argument, int tensor); /* any other object */
    int (*on_device)(int device);
    void (*accept)(Frame *); /* the program makes this call: empties the caller's list */

    /* layouts: borrowed, as long as the tensor lives */
    const int64_t *(*sizes)(Frame *, int tensor);
    const int64_t *(*strides)(Frame *, int tensor);

    /* memory */
    int (*constant)(Frame *, int object, int tensor);
    int (*arena)(Frame *, const Life *, const Layout *const *, int count, int device_type, int device);
    int (*carve)(Frame *, int tensor, int memory, const Layout *, int device_type, int device); /* from the arena, if there is one */
    int (*allocate)(Frame *, int tensor, const Layout *, int device_type, int device);
    int (*reuse)(Frame *, int tensor, int old, const Layout *); /* layout NULL: that of the old one */
    int (*view)(Frame *, int tensor, int base, const Layout *, int64_t offset, int64_t bytes_of_element, int bits);
    void (*free)(Frame *, int tensor);

    /* calls */
    int (*kernel)(Frame *, int kernel, const int *tensors, int tensor_count, const int64_t *integers, int count);
    int (*python)(Frame *, int callable, int result, const int *tensors, int tensor_count, const int64_t *integers, int count);
    int (*number)(Frame *, int callable, int64_t *result, const int *tensors, int tensor_count, const int64_t *integers, int count);
    int (*pick)(Frame *, int tensor, int source, int output, const Layout *, int is_view); /* output -1: the only one */
    int (*is_none)(Frame *, int tensor);
    int (*raise)(Frame *, int error); /* -1 */
    int (*overflow)(Frame *);         /* -1 */

    /* results, in order */
    int (*give_tensor)(Frame *, int tensor);
    int (*give_integer)(Frame *, int64_t integer);
    int (*give_none)(Frame *);

    /* only in packages: checks the sizes of a given tensor, and sets its strides */
    int (*expect)(Frame *, int tensor, const Layout *);
} Api;

typedef int (*Function)(const Api *, Frame *);
