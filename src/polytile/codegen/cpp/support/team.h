// team: combines the running values of threads that share a row.
// gives: combine_threads
namespace pt {
namespace {

// Sets `total` to the combined value of all threads. `places` has two slots per thread (a Room may be larger than an
// Acc), used alternately, so that a fast thread in the next row overwrites nothing that a slow one still reads.
template <class Acc, class Room>
PT_FN void combine_threads(Acc& total, Room* places, long turn, long thread, long workers) {
  Room* const now = places + (turn & 1) * workers;
  (Acc&)now[thread] = total;
  barrier();
  total = (Acc&)now[0];
  for (long w = 1; w < workers; ++w) total.merge((Acc&)now[w]);
}

}  // namespace
}  // namespace pt
