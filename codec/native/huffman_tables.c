#include "huffman_tables.h"
#include "zigzag.h"

#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

#define LONGEST 16
#define SYMBOLS 256

/* The position in zigzag order of each natural position of a block (T.81, figure A.6). */
static const unsigned char ZIGZAG[DCTSIZE2] = {
    0,  1,  5,  6,  14, 15, 27, 28, 2,  4,  7,  13, 16, 26, 29, 42, 3,  8,  12, 17, 25, 30,
    41, 43, 9,  11, 18, 24, 31, 40, 44, 53, 10, 19, 23, 32, 39, 45, 52, 54, 20, 22, 33, 38,
    46, 51, 55, 60, 21, 34, 37, 47, 50, 56, 59, 61, 35, 36, 48, 49, 57, 58, 62, 63,
};
/* Bit z is set where the coefficient at zigzag position z is not zero. */
static uint64_t nonzero(const JCOEF *block) {
    uint64_t natural = 0, found = 0;
#ifdef __SSE2__
    const __m128i zero = _mm_setzero_si128();
    for (int row = 0; row < DCTSIZE; row += 2) {
        __m128i first = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)(block + row * 8)), zero);
        __m128i second = _mm_cmpeq_epi16(_mm_loadu_si128((const __m128i *)(block + row * 8 + 8)), zero);
        uint64_t zeros = (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_packs_epi16(first, second));
        natural |= (zeros ^ 0xffff) << (row * 8);
    }
#else
    for (int position = 0; position < DCTSIZE2; position++) {
        natural |= (uint64_t)(block[position] != 0) << position;
    }
#endif
    for (; natural; natural &= natural - 1) {
        found |= (uint64_t)1 << ZIGZAG[__builtin_ctzll(natural)];
    }
    return found;
}

/* Bits of a magnitude (T.81, F.1.2.1.1). */
static int category(int value) {
    return value ? 32 - __builtin_clz((unsigned)(value < 0 ? -value : value)) : 0;
}

bool count_block(const JCOEF *block, int previous, Histogram *dc, Histogram *ac) {
    int bits = category(block[0] - previous);
    if (bits > 11) {
        return false;
    }
    dc->symbols[bits]++;
    int last = 0;
    for (uint64_t rest = nonzero(block) & ~(uint64_t)1; rest; rest &= rest - 1) {
        int position = __builtin_ctzll(rest);
        int run = position - last - 1;
        bits = category(block[NATURAL[position]]);
        if (bits > 10) {
            return false;
        }
        ac->symbols[0xf0] += (uint32_t)(run >> 4);
        ac->symbols[(run & 15) << 4 | bits]++;
        last = position;
    }
    ac->symbols[0] += last != DCTSIZE2 - 1;
    return true;
}

/* A group of symbols whose codes share a prefix: a list that begins at `symbol`, is linked by `next` and ends at -1. */
typedef struct {
    uint64_t frequency;
    int symbol;
} Group;

void make_table(const Histogram *histogram, JHUFF_TBL *table) {
    Group groups[SYMBOLS + 1];
    int sizes[SYMBOLS + 1] = {0}, next[SYMBOLS + 1], count = 0;
    int per_size[SYMBOLS + 2] = {0};
    for (int symbol = 0; symbol < SYMBOLS; symbol++) {
        next[symbol] = -1;
        if (histogram->symbols[symbol]) {
            groups[count++] = (Group){histogram->symbols[symbol], symbol};
        }
    }
    /* No symbol may have the code of all ones: this extra symbol, the rarest of all, takes it. */
    next[SYMBOLS] = -1;
    groups[count++] = (Group){1, SYMBOLS};
    while (count > 1) {
        int rarest = -1, second = -1;
        for (int group = 0; group < count; group++) {
            /* Of two equal groups the later one, so that the reserved code is among the longest. */
            if (rarest < 0 || groups[group].frequency <= groups[rarest].frequency) {
                second = rarest;
                rarest = group;
            } else if (second < 0 || groups[group].frequency <= groups[second].frequency) {
                second = group;
            }
        }
        groups[second].frequency += groups[rarest].frequency;
        int symbol = groups[second].symbol;
        for (; next[symbol] >= 0; symbol = next[symbol]) {
            sizes[symbol]++;
        }
        sizes[symbol]++;
        next[symbol] = groups[rarest].symbol;
        for (symbol = groups[rarest].symbol; symbol >= 0; symbol = next[symbol]) {
            sizes[symbol]++;
        }
        groups[rarest] = groups[--count];
    }
    for (int symbol = 0; symbol <= SYMBOLS; symbol++) {
        per_size[sizes[symbol]] += sizes[symbol] > 0;
    }
    /* No code may be longer than 16 bits (T.81, figure K.3). */
    for (int size = SYMBOLS; size > LONGEST; size--) {
        while (per_size[size] > 0) {
            int shorter = size - 2;
            while (per_size[shorter] == 0) {
                shorter--;
            }
            per_size[size] -= 2;
            per_size[size - 1]++;
            per_size[shorter + 1] += 2;
            per_size[shorter]--;
        }
    }
    int longest = LONGEST;
    while (per_size[longest] == 0) {
        longest--;
    }
    per_size[longest]--; /* the reserved code */
    memset(table, 0, sizeof *table);
    for (int size = 1; size <= LONGEST; size++) {
        table->bits[size] = (UINT8)per_size[size];
    }
    /* Symbols in order of their code lengths before the longest codes were shortened. */
    int filled = 0;
    for (int size = 1; size <= SYMBOLS; size++) {
        for (int symbol = 0; symbol < SYMBOLS; symbol++) {
            if (sizes[symbol] == size) {
                table->huffval[filled++] = (UINT8)symbol;
            }
        }
    }
}
