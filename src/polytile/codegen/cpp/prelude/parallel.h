// parallel: runs work on the threads of the OpenMP runtime that torch has loaded into the process.
// needs:
// gives: parallel
extern "C" void GOMP_parallel(void (*f)(void*), void* data, unsigned threads, unsigned flags);
extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();

namespace pt {
namespace {

#if defined(PT_BARRIER)
// The threads that barrier() waits for: those of the innermost parallel().
struct Team {
  long before;
  explicit Team(long size) : before(team_size) { team_size = size; }
  ~Team() { team_size = before; }
};
#else
struct Team { explicit Team(long) {} };
#endif

template <class F> struct Bare { using type = F; };
template <class F> struct Bare<F&> { using type = F; };
template <class F> using bare = typename Bare<F>::type;

template <class F> void run_member(void* f) {
  const long threads = omp_get_num_threads();
  const Team team(threads);
  (*static_cast<F*>(f))(long(omp_get_thread_num()), threads);
}

// Calls f(thread, threads) on at most `threads` threads: inside another parallel region there is only one. A single
// thread is the caller itself, without a call to the runtime.
template <class F> inline void parallel(long threads, F&& f) {
  if (threads <= 1) {
    const Team team(1);
    f(0l, 1l);
  } else {
    GOMP_parallel(run_member<bare<F>>, (void*)&f, unsigned(threads), 0);
  }
}

}  // namespace
}  // namespace pt
