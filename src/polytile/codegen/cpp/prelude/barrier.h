// barrier: synchronises the threads of a parallel().
// needs:
// gives: barrier
extern "C" void GOMP_barrier();
#define PT_BARRIER 1

namespace pt {
namespace {

// Threads of this thread's innermost parallel(). OpenMP's own team would be wrong: parallel(1, f) creates none, so a
// barrier in it would wait for the threads of an enclosing region.
static __thread long team_size = 1;

inline void barrier() {
  if (team_size > 1) GOMP_barrier();
}

}  // namespace
}  // namespace pt
