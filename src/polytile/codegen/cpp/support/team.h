// team: threads that share a row put their running values together.
// gives: put_together
namespace pt {
namespace {

// `total` becomes the running value of all threads. `places` has room for two of each thread (a Room may be larger than
// an Acc), used in turn: a fast thread in the next row overwrites nothing that a slow one still reads.
template <class Acc, class Room>
PT_FN void put_together(Acc& total, Room* places, long turn, long thread, long workers) {
  Room* const now = places + (turn & 1) * workers;
  (Acc&)now[thread] = total;
  barrier();
  total = (Acc&)now[0];
  for (long w = 1; w < workers; ++w) total.merge((Acc&)now[w]);
}

}  // namespace
}  // namespace pt
