// barrier: the threads of a parallel() wait for each other.
// needs:
// gives: barrier
extern "C" void GOMP_barrier();
#define PT_BARRIER 1

namespace pt {
namespace {

// Threads of the innermost parallel() of this thread. The runtime's own team will not do: a parallel(1, f) is no team
// of the runtime's, and a barrier in it would wait for the threads of a region around it.
static __thread long team_size = 1;

inline void barrier() {
  if (team_size > 1) GOMP_barrier();
}

}  // namespace
}  // namespace pt
