/* Regime keys, as in regime.py. Packages (packages/runtime.c) use them too, so nothing here depends on Python. */

#include <stdint.h>

typedef long (*Kernel)(void *const *pointers, const long *integers, long threads);

enum { IGNORE = 0, BUCKET = 1, EXACT = 2, DIVISIBLE = 3 };
enum { ANY = 0, ALIGNED_64 = 1, ALIGNED_16 = 2, ALIGNMENT = 3 };
static const int64_t EXACT_SIZE = (int64_t)1 << 62, SUB_BUCKET = 4096;

static inline int64_t bucket(int64_t size)
{
    if (size <= 8)
        return size;
    unsigned __int128 below = (unsigned __int128)size * (unsigned __int128)size - 1;
    uint64_t high = (uint64_t)(below >> 64);
    int half_octave = high ? 127 - __builtin_clzll(high) : 63 - __builtin_clzll((uint64_t)below);
    return 16 + 2 * half_octave + (size % 16 == 0);
}

/* The field of a size's sub-bucket. */
static inline int64_t sub_bucket(int64_t size)
{
    if (size <= 8)
        return size;
    int octave = 63 - __builtin_clzll((uint64_t)size - 1);
    return bucket(size) + SUB_BUCKET * (1 + (((size - 1) >> (octave - 3)) & 7));
}

/* The field of a size that has its own entry. */
static inline int64_t exact_size(int64_t size)
{
    return size <= 8 ? size : EXACT_SIZE | size;
}

static inline uint64_t hash_of(const int64_t *fields, long count)
{
    uint64_t hash = 0x243F6A8885A308D3u;
    for (long i = 0; i < count; i++) {
        hash = (hash ^ (uint64_t)fields[i]) * 0x9E3779B97F4A7C15u;
        hash ^= hash >> 32;
    }
    return hash;
}

static inline int64_t tensor_field(unsigned char code, uintptr_t address)
{
    if (code == ALIGNMENT)
        return (int64_t)((address | 16) & -(address | 16));
    return address % (code == ALIGNED_64 ? 64 : 16) == 0;
}

static inline int64_t *append_integer_field(int64_t *fields, unsigned char code, long integer)
{
    if (code != IGNORE)
        *fields++ = code == BUCKET ? bucket(integer) : code == DIVISIBLE ? integer % 16 == 0 : integer;
    return fields;
}

/* What a kernel relies on: the number divides an integer; equals it; is at most it; divides the address of a tensor's
   data; equals a field of the key. */
enum { SIZE_DIVIDED = 0, SIZE_IS = 1, SIZE_REACHES = 2, ADDRESS_DIVIDED = 3, FIELD_IS = 4 };

typedef struct {
    int64_t kind, index, number;
} LeafFact;

static inline int fact_holds(const LeafFact *fact, const int64_t *fields, const long *integers, void *const *pointers)
{
    int64_t index = fact->index, number = fact->number;
    switch (fact->kind) {
    case SIZE_DIVIDED: return integers[index] % number == 0;
    case SIZE_IS: return integers[index] == number;
    case SIZE_REACHES: return integers[index] >= number;
    case ADDRESS_DIVIDED: return (uintptr_t)pointers[index] % (uintptr_t)number == 0;
    default: return fields[index] == number;
    }
}
