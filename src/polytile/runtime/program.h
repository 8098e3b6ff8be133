/* What a program in C (wrapper/cpp.py writes it) and the launcher (program.c) know of each other.

   A program is one function of a Frame. It names tensors, kernels and Python callables by number and has sizes as variables of its
   own; all that touches an object of Python or torch is a function of the Api. Functions return 0, or -1 with a Python exception. */

#include <stdint.h>

enum { RETURNED = 0, RAISED = -1, REFUSED = 1 }; /* refused: nothing was done, Python's wrapper makes this call */

typedef struct {
    int64_t rank;
    const int64_t *sizes, *strides; /* strides in elements */
    int32_t dtype;                  /* torch's number */
} Layout;

typedef struct { /* of a memory: the first line that needs it, the first that does not any more */
    int32_t first, last;
    int32_t inside; /* whether it may lie in the arena */
    int32_t bytes_of_element;
    int32_t argument; /* the tensor that it is, of those that the program was given; -1: it has a layout */
} Life;

typedef struct Frame Frame;

typedef struct {
    /* the arguments, before anything else: whether they are what the program takes */
    int (*take_tensor)(Frame *, int argument, int tensor);
    int (*take_integer)(Frame *, int argument, int64_t *integer);
    int (*take_value)(Frame *, int argument, int tensor); /* any other object */
    int (*on_device)(int device);
    void (*accept)(Frame *); /* the program makes this call: the caller's list is emptied */

    /* layouts: borrowed, as long as the tensor lives */
    const int64_t *(*sizes)(Frame *, int tensor);
    const int64_t *(*strides)(Frame *, int tensor);

    /* memory */
    int (*constant)(Frame *, int object, int tensor);
    int (*arena)(Frame *, const Life *, const Layout *const *, int count, int device_type, int device);
    int (*carve)(Frame *, int tensor, int memory, const Layout *, int device_type, int device); /* from the arena, if there is one */
    int (*allocate)(Frame *, int tensor, const Layout *, int device_type, int device);
    int (*reuse)(Frame *, int tensor, int old, const Layout *); /* no layout: that of the old one */
    int (*view)(Frame *, int tensor, int base, const Layout *, int64_t offset, int64_t bytes_of_element, int bits);
    void (*free)(Frame *, int tensor);

    /* calls */
    int (*kernel)(Frame *, int kernel, const int *tensors, int tensor_count, const int64_t *integers, int count);
    int (*python)(Frame *, int callable, int result, const int *tensors, int tensor_count, const int64_t *integers, int count);
    int (*number)(Frame *, int callable, int64_t *result, const int *tensors, int tensor_count, const int64_t *integers, int count);
    int (*pick)(Frame *, int tensor, int source, int output, const Layout *); /* output -1: the only one */
    int (*is_none)(Frame *, int tensor);
    int (*raise)(Frame *, int error); /* -1 */
    int (*overflow)(Frame *);         /* -1 */

    /* results, in order */
    int (*give_tensor)(Frame *, int tensor);
    int (*give_integer)(Frame *, int64_t integer);
    int (*give_none)(Frame *);

    /* packages alone: whether a tensor that was given has these sizes; it gets these strides */
    int (*expect)(Frame *, int tensor, const Layout *);
} Api;

typedef int (*Function)(const Api *, Frame *);
