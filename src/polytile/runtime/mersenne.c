// Bernoulli numbers of torch's CPU generator (MT19937), from its state as torch.Generator.get_state() lays it out.
//
// Eager draws two 32-bit words per number, the upper half first, and compares the lower 53 bits with p, one number after
// the other. Here the 624 words of a round are generated and compared vector by vector.
// Source: Matsumoto and Nishimura, "Mersenne Twister", ACM TOMACS 8 (1998).
#include <string.h>

typedef unsigned int u32;
typedef unsigned long long u64;
enum { WORDS = 624, FAR = 397, LANES = 16, NUMBERS = 8 };
typedef u32 Word __attribute__((vector_size(4 * LANES), aligned(4)));
typedef u64 Pair __attribute__((vector_size(8 * NUMBERS), aligned(4)));
typedef unsigned char Bytes __attribute__((vector_size(NUMBERS)));

struct State {  // the first fields of get_state()'s result
  u64 seed;
  int left;  // words until the next round, plus 1
  int seeded;
  u64 next;  // index of the next word to draw
  u64 words[WORDS];
};

static inline Word load(const u32* p) { return *(const Word*)p; }

// Generates the words fresh[k...] of the next round; `far` points to the words FAR positions after k = 0.
static inline void renew_vector(const u32* old, u32* fresh, const u32* far, int k) {
  const Word here = load(old + k), then = load(old + k + 1);
  const Word mixed = (here & 0x80000000u) | (then & 0x7fffffffu);
  *(Word*)(fresh + k) = load(far + k) ^ (mixed >> 1) ^ (-(then & 1u) & 0x9908b0dfu);
}

// The next round of all words. old[WORDS] is room for the first new one, which the last one needs.
static void renew(u32* old, u32* fresh) {
  const int split = WORDS - FAR;
  for (int k = 0; k < split; k += LANES) renew_vector(old, fresh, old + FAR, k < split - LANES ? k : split - LANES);
  old[WORDS] = fresh[0];
  for (int k = split; k < WORDS; k += LANES) renew_vector(old, fresh, fresh - split, k < WORDS - LANES ? k : WORDS - LANES);
}

static void temper(const u32* words, u32* drawn) {
  for (int k = 0; k < WORDS; k += LANES) {
    Word y = load(words + k);
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    *(Word*)(drawn + k) = y ^ (y >> 18);
  }
}

static inline u64 value(u32 upper, u32 lower) { return ((u64)upper << 32 | lower) & ((1ull << 53) - 1); }

// out[0..count): whether each number's 53 bits are below `limit`. `state` moves on by two words a number.
void polytile_bernoulli(void* raw, unsigned char* out, long count, u64 limit) {
  struct State* state = (struct State*)raw;
  u32 rounds[2][WORDS + LANES], drawn[WORDS + LANES];
  int now = 0;
  for (int k = 0; k < WORDS; ++k) rounds[0][k] = (u32)state->words[k];
  temper(rounds[0], drawn);
  long at = state->left == 1 ? WORDS : (long)state->next;
  while (count > 0) {
    u32 upper = 0;
    const int odd = at == WORDS - 1;  // a number whose words are of two rounds
    if (odd) upper = drawn[at];
    if (at >= WORDS - 1) {
      renew(rounds[now], rounds[1 - now]);
      now = 1 - now;
      temper(rounds[now], drawn);
      at = 0;
    }
    if (odd) *out++ = value(upper, drawn[at++]) < limit, --count;
    long whole = (WORDS - at) / 2;
    if (whole > count) whole = count;
    for (long k = 0; k < whole; k += NUMBERS) {
      const Pair two = *(const Pair*)(drawn + at + 2 * k);
      const Pair below = (Pair)(((two << 32 | two >> 32) & ((1ull << 53) - 1)) < limit) & 1ull;
      const Bytes bytes = __builtin_convertvector(below, Bytes);
      memcpy(out + k, &bytes, whole - k < NUMBERS ? (unsigned long)(whole - k) : NUMBERS);
    }
    out += whole, at += 2 * whole, count -= whole;
  }
  for (int k = 0; k < WORDS; ++k) state->words[k] = rounds[now][k];
  state->left = (int)(WORDS - at) + 1;
  state->next = (u64)at;
}
