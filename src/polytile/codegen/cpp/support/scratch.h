// scratch: temporary memory of a running kernel.
// gives: Scratch
extern "C" void* malloc(unsigned long);
extern "C" void free(void*);

namespace pt {
namespace {

constexpr long NO_MEMORY = -2;  // returned by a kernel that cannot allocate its scratch memory

// `count` uninitialised values of T, 64-byte aligned: on the stack if there are few, else on the heap.
template <class T> struct Scratch {
  static constexpr long near = 32768;
  alignas(64) char stack[near];
  void* heap;
  T* values;
  PT_FN explicit Scratch(long count) {
    const long bytes = count * long(sizeof(T)) + 64;  // the last vector may be written as a whole
    heap = bytes > near ? malloc(bytes + 64) : nullptr;
    values = bytes > near ? (T*)(heap ? ((unsigned long)heap + 63) & ~63UL : 0) : (T*)stack;
  }
  // Whether the allocation failed; if so, sets `error`.
  PT_FN bool is_missing(long& error) const {
    if (__builtin_expect(!values, 0)) __atomic_store_n(&error, NO_MEMORY, __ATOMIC_RELAXED);
    return __builtin_expect(!values, 0);
  }
  PT_FN ~Scratch() {
    if (heap) free(heap);
  }
  Scratch(const Scratch&) = delete;
  PT_FN operator T*() { return values; }
};

}  // namespace
}  // namespace pt
