// scratch: memory that a kernel needs while it runs.
// gives: Scratch
extern "C" void* malloc(unsigned long);
extern "C" void free(void*);

namespace pt {
namespace {

constexpr long NO_MEMORY = -2;  // what a kernel answers that finds no memory for its work

// `count` values of T, not set: on the stack where they are few, else on the heap; 64-byte aligned.
template <class T> struct Scratch {
  static constexpr long near = 32768;
  alignas(64) char stack[near];
  void* heap;
  T* values;
  PT_FN explicit Scratch(long count) {
    const long bytes = count * long(sizeof(T)) + 64;  // whole vectors may be written at the end
    heap = bytes > near ? malloc(bytes + 64) : nullptr;
    values = bytes > near ? (T*)(heap ? ((unsigned long)heap + 63) & ~63UL : 0) : (T*)stack;
  }
  // Whether there is no memory for the values; sets `error`.
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
