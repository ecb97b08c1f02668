#include "idct.h"

#ifdef HAS_X86_SIMD

#include <stdbool.h>
#include <string.h>

/* The algorithm is that of jidctint.c (Loeffler, Ligtenberg and Moschytz, 1989), and the order of operations, with what
   wraps at 16 bits and what saturates, that of libjpeg-turbo's jidctint-avx2.asm: so results are the same even where
   coefficients of a damaged or a hostile image are too large.

   Columns come first, eight at a time: a row of 16 bits is spread over both halves of a register, so that pairs of rows
   are interleaved in order. Rows follow, one in each half. */

#define CONST_BITS 13
#define PASS1_BITS 2
#define FIX(number) ((int)((number) * (1 << CONST_BITS) + 0.5))
#define F0_298 FIX(0.298631336)
#define F0_390 FIX(0.390180644)
#define F0_541 FIX(0.541196100)
#define F0_765 FIX(0.765366865)
#define F0_899 FIX(0.899976223)
#define F1_175 FIX(1.175875602)
#define F1_501 FIX(1.501321110)
#define F1_847 FIX(1.847759065)
#define F1_961 FIX(1.961570560)
#define F2_053 FIX(2.053119869)
#define F2_562 FIX(2.562915447)
#define F3_072 FIX(3.072711026)

#define PAIR(one, other) ((int)((unsigned)(other) << 16 | ((unsigned)(one) & 0xffff)))
#define PAIRS(one, other) _mm256_set1_epi32(PAIR(one, other))

/* A row times its quantisation, its first four columns in the lower half and the others in the upper one. */
AVX2 INLINE __m256i spread_row(const int16_t *block, const int16_t *table, int row) {
    __m128i values = _mm_loadu_si128((const __m128i *)(block + 8 * row));
    values = _mm_mullo_epi16(values, _mm_loadu_si128((const __m128i *)(table + 8 * row)));
    return _mm256_permute4x64_epi64(_mm256_castsi128_si256(values), 0x50);
}

AVX2 INLINE __m256i descaled(__m256i value, int bits) {
    return _mm256_srai_epi32(value, bits);
}

/* A sum of 16 bits, times 2 to the CONST_BITS. */
AVX2 INLINE __m256i scaled(__m256i value) {
    return _mm256_srai_epi32(_mm256_unpacklo_epi16(_mm256_setzero_si256(), value), 16 - CONST_BITS);
}

/* Two rows of the result: in each half, four columns of one row, then of the other. */
AVX2 INLINE __m256i two_rows(__m256i even, __m256i odd, __m256i even_2, __m256i odd_2, bool minus) {
    __m256i one = minus ? _mm256_sub_epi32(even, odd) : _mm256_add_epi32(even, odd);
    __m256i other = minus ? _mm256_sub_epi32(even_2, odd_2) : _mm256_add_epi32(even_2, odd_2);
    return _mm256_packs_epi32(descaled(one, CONST_BITS - PASS1_BITS), descaled(other, CONST_BITS - PASS1_BITS));
}

/* The columns. `rows` gets rows 0 and 1, 2 and 3, 4 and 5, 6 and 7, one in each half. */
AVX2 INLINE void pass_columns(const int16_t *block, const int16_t *table, __m256i rows[4]) {
    __m256i in[8];
    for (int row = 0; row < 8; row++) {
        in[row] = spread_row(block, table, row);
    }
    const __m256i rounding = _mm256_set1_epi32(1 << (CONST_BITS - PASS1_BITS - 1));
    __m256i two_six = _mm256_unpacklo_epi16(in[2], in[6]);
    __m256i tmp3 = _mm256_madd_epi16(two_six, PAIRS(F0_541 + F0_765, F0_541));
    __m256i tmp2 = _mm256_madd_epi16(two_six, PAIRS(F0_541, F0_541 - F1_847));
    __m256i tmp0 = _mm256_add_epi32(scaled(_mm256_add_epi16(in[0], in[4])), rounding);
    __m256i tmp1 = _mm256_add_epi32(scaled(_mm256_sub_epi16(in[0], in[4])), rounding);
    __m256i even0 = _mm256_add_epi32(tmp0, tmp3), even3 = _mm256_sub_epi32(tmp0, tmp3);
    __m256i even1 = _mm256_add_epi32(tmp1, tmp2), even2 = _mm256_sub_epi32(tmp1, tmp2);

    __m256i z = _mm256_unpacklo_epi16(_mm256_add_epi16(in[3], in[7]), _mm256_add_epi16(in[1], in[5]));
    __m256i z3 = _mm256_madd_epi16(z, PAIRS(F1_175 - F1_961, F1_175));
    __m256i z4 = _mm256_madd_epi16(z, PAIRS(F1_175, F1_175 - F0_390));
    __m256i seven_one = _mm256_unpacklo_epi16(in[7], in[1]), five_three = _mm256_unpacklo_epi16(in[5], in[3]);
    __m256i odd0 = _mm256_add_epi32(_mm256_madd_epi16(seven_one, PAIRS(-F0_899, F1_501 - F0_899)), z4);
    __m256i odd1 = _mm256_add_epi32(_mm256_madd_epi16(five_three, PAIRS(-F2_562, F3_072 - F2_562)), z3);
    __m256i odd2 = _mm256_add_epi32(_mm256_madd_epi16(five_three, PAIRS(F2_053 - F2_562, -F2_562)), z4);
    __m256i odd3 = _mm256_add_epi32(_mm256_madd_epi16(seven_one, PAIRS(F0_298 - F0_899, -F0_899)), z3);
    rows[0] = _mm256_permute4x64_epi64(two_rows(even0, odd0, even1, odd1, false), 0xd8);
    rows[1] = _mm256_permute4x64_epi64(two_rows(even2, odd2, even3, odd3, false), 0xd8);
    rows[2] = _mm256_permute4x64_epi64(two_rows(even3, odd3, even2, odd2, true), 0xd8);
    rows[3] = _mm256_permute4x64_epi64(two_rows(even1, odd1, even0, odd0, true), 0xd8);
}

/* The same for a block with band 0 alone, which has nothing below its third row. */
AVX2 INLINE void pass_few_columns(const int16_t *block, const int16_t *table, __m256i rows[4]) {
    __m256i in0 = spread_row(block, table, 0), in1 = spread_row(block, table, 1), in2 = spread_row(block, table, 2);
    const __m256i rounding = _mm256_set1_epi32(1 << (CONST_BITS - PASS1_BITS - 1)), zero = _mm256_setzero_si256();
    __m256i two = _mm256_unpacklo_epi16(in2, zero), one = _mm256_unpacklo_epi16(in1, zero);
    __m256i tmp3 = _mm256_madd_epi16(two, PAIRS(F0_541 + F0_765, 0)), tmp2 = _mm256_madd_epi16(two, PAIRS(F0_541, 0));
    __m256i tmp0 = _mm256_add_epi32(scaled(in0), rounding);
    __m256i even0 = _mm256_add_epi32(tmp0, tmp3), even3 = _mm256_sub_epi32(tmp0, tmp3);
    __m256i even1 = _mm256_add_epi32(tmp0, tmp2), even2 = _mm256_sub_epi32(tmp0, tmp2);
    __m256i odd0 = _mm256_madd_epi16(one, PAIRS(F1_501 - F0_899 + F1_175 - F0_390, 0));
    __m256i odd1 = _mm256_madd_epi16(one, PAIRS(F1_175, 0));
    __m256i odd2 = _mm256_madd_epi16(one, PAIRS(F1_175 - F0_390, 0));
    __m256i odd3 = _mm256_madd_epi16(one, PAIRS(F1_175 - F0_899, 0));
    rows[0] = _mm256_permute4x64_epi64(two_rows(even0, odd0, even1, odd1, false), 0xd8);
    rows[1] = _mm256_permute4x64_epi64(two_rows(even2, odd2, even3, odd3, false), 0xd8);
    rows[2] = _mm256_permute4x64_epi64(two_rows(even3, odd3, even2, odd2, true), 0xd8);
    rows[3] = _mm256_permute4x64_epi64(two_rows(even1, odd1, even0, odd0, true), 0xd8);
}

/* Whether a row times its quantisation has a value that takes more than 16 bits when it is scaled for the second pass. */
AVX2 INLINE bool is_large(__m128i values) {
    const __m128i most = _mm_set1_epi16(8192);
    return !_mm_testz_si128(_mm_add_epi16(values, most), _mm_set1_epi16(-16384));
}

/* Whether there is nothing below the first row. */
static bool has_one_row(const int16_t *block) {
    int16_t found = 0;
    for (int position = 8; position < 64; position++) {
        found |= block[position];
    }
    return !found;
}

/* A word of 16 bits as its two bytes; -1 is zero. */
#define WORD(number) (char)(2 * (number)), (char)(2 * (number) + 1)
#define NOTHING -1, -1
#define BOTH(...) _mm256_broadcastsi128_si256(_mm_setr_epi8(__VA_ARGS__))
#define FOUR_PAIRS(a, b, c, d) _mm256_setr_epi32(a, b, c, d, a, b, c, d)

/* A row in each half: columns 0 to 3, then 7 to 4. */
AVX2 INLINE __m256i pass_rows(__m256i row) {
    const int bits = CONST_BITS + PASS1_BITS + 3;
    const __m256i rounding = _mm256_set1_epi32(1 << (bits - 1));
    const __m256i signs = FOUR_PAIRS(PAIR(1, 1), PAIR(-1, -1), PAIR(-1, -1), PAIR(1, 1));
    __m256i zeros = _mm256_shuffle_epi8(
        row, BOTH(NOTHING, WORD(0), NOTHING, WORD(0), NOTHING, WORD(0), NOTHING, WORD(0)));
    __m256i fours = _mm256_shuffle_epi8(
        row, BOTH(NOTHING, WORD(4), NOTHING, WORD(4), NOTHING, WORD(4), NOTHING, WORD(4)));
    __m256i two_six = _mm256_shuffle_epi8(
        row, BOTH(WORD(2), WORD(6), WORD(2), WORD(6), WORD(2), WORD(6), WORD(2), WORD(6)));
    __m256i even = _mm256_srai_epi32(_mm256_add_epi16(zeros, _mm256_sign_epi16(fours, signs)), 16 - CONST_BITS);
    even = _mm256_add_epi32(even, _mm256_madd_epi16(two_six, FOUR_PAIRS(PAIR(F0_541 + F0_765, F0_541),
                                                                        PAIR(F0_541, F0_541 - F1_847),
                                                                        PAIR(-F0_541, F1_847 - F0_541),
                                                                        PAIR(-F0_541 - F0_765, -F0_541))));
    even = _mm256_add_epi32(even, rounding);

    __m256i sums = _mm256_add_epi16(row, _mm256_shuffle_epi32(row, 0x4e));
    __m256i z = _mm256_shuffle_epi8(sums,
                                    BOTH(WORD(3), WORD(1), WORD(3), WORD(1), WORD(3), WORD(1), WORD(3), WORD(1)));
    __m256i odds = _mm256_shuffle_epi8(row,
                                       BOTH(WORD(7), WORD(1), WORD(5), WORD(3), WORD(5), WORD(3), WORD(7), WORD(1)));
    const int z3 = PAIR(F1_175 - F1_961, F1_175), z4 = PAIR(F1_175, F1_175 - F0_390);
    __m256i odd = _mm256_add_epi32(
        _mm256_madd_epi16(z, FOUR_PAIRS(z4, z3, z4, z3)),
        _mm256_madd_epi16(odds, FOUR_PAIRS(PAIR(-F0_899, F1_501 - F0_899), PAIR(-F2_562, F3_072 - F2_562),
                                           PAIR(F2_053 - F2_562, -F2_562), PAIR(F0_298 - F0_899, -F0_899))));
    return _mm256_packs_epi32(descaled(_mm256_add_epi32(even, odd), bits), descaled(_mm256_sub_epi32(even, odd), bits));
}

/* The same for rows with nothing behind their fourth column. */
AVX2 INLINE __m256i pass_short_rows(__m256i row) {
    const int bits = CONST_BITS + PASS1_BITS + 3;
    const __m256i rounding = _mm256_set1_epi32(1 << (bits - 1));
    __m256i zeros = _mm256_shuffle_epi8(
        row, BOTH(NOTHING, WORD(0), NOTHING, WORD(0), NOTHING, WORD(0), NOTHING, WORD(0)));
    __m256i twos = _mm256_shuffle_epi8(
        row, BOTH(WORD(2), NOTHING, WORD(2), NOTHING, WORD(2), NOTHING, WORD(2), NOTHING));
    __m256i one_three = _mm256_shuffle_epi8(
        row, BOTH(WORD(1), WORD(3), WORD(1), WORD(3), WORD(1), WORD(3), WORD(1), WORD(3)));
    __m256i even = _mm256_add_epi32(
        _mm256_srai_epi32(zeros, 16 - CONST_BITS),
        _mm256_madd_epi16(twos, FOUR_PAIRS(PAIR(F0_541 + F0_765, 0), PAIR(F0_541, 0), PAIR(-F0_541, 0),
                                           PAIR(-F0_541 - F0_765, 0))));
    even = _mm256_add_epi32(even, rounding);
    __m256i odd = _mm256_madd_epi16(
        one_three, FOUR_PAIRS(PAIR(F1_501 - F0_899 + F1_175 - F0_390, F1_175),
                              PAIR(F1_175, F3_072 - F2_562 + F1_175 - F1_961),
                              PAIR(F1_175 - F0_390, F1_175 - F2_562), PAIR(F1_175 - F0_899, F1_175 - F1_961)));
    return _mm256_packs_epi32(descaled(_mm256_add_epi32(even, odd), bits), descaled(_mm256_sub_epi32(even, odd), bits));
}

AVX2 INLINE void store_rows(__m256i one, __m256i two, unsigned char *out, ptrdiff_t stride) {
    /* In each half: a row of the first pair, then one of the second. */
    __m256i samples = _mm256_add_epi8(_mm256_packs_epi16(one, two), _mm256_set1_epi8(-128));
    samples = _mm256_shuffle_epi8(samples, BOTH(0, 1, 2, 3, 7, 6, 5, 4, 8, 9, 10, 11, 15, 14, 13, 12));
    __m128i low = _mm256_castsi256_si128(samples), high = _mm256_extracti128_si256(samples, 1);
    _mm_storel_epi64((__m128i *)out, low);
    _mm_storel_epi64((__m128i *)(out + stride), high);
    _mm_storel_epi64((__m128i *)(out + 2 * stride), _mm_unpackhi_epi64(low, low));
    _mm_storel_epi64((__m128i *)(out + 3 * stride), _mm_unpackhi_epi64(high, high));
}

/* A block with nothing but its DC coefficient. */
static void fill(int16_t dc, unsigned char *out, ptrdiff_t stride) {
    int value = ((dc + 4) >> 3) + 128;
    value = value < 0 ? 0 : value > 255 ? 255 : value;
    for (int row = 0; row < 8; row++) {
        memset(out + row * stride, value, 8);
    }
}

AVX2 void idct_avx2(const int16_t *block, const int16_t *table, unsigned bands, unsigned char *out, ptrdiff_t stride) {
    __m256i rows[4];
    if (!bands) {
        int16_t dc = (int16_t)(block[0] * table[0]);
        /* Larger ones wrap between the passes. */
        if (dc >= -8192 && dc < 8192) {
            fill(dc, out, stride);
            return;
        }
    }
    __m128i first = _mm_mullo_epi16(_mm_loadu_si128((const __m128i *)block), _mm_loadu_si128((const __m128i *)table));
    if (__builtin_expect(is_large(first), 0) && has_one_row(block)) {
        /* The other columns saturate between the passes; where all have but one coefficient, the assembler code has a
           shorter way, on which they wrap. */
        for (int pair = 0; pair < 4; pair++) {
            rows[pair] = pass_rows(_mm256_broadcastsi128_si256(_mm_slli_epi16(first, PASS1_BITS)));
        }
    } else if (bands <= 1) {
        pass_few_columns(block, table, rows);
        for (int pair = 0; pair < 4; pair++) {
            rows[pair] = pass_short_rows(rows[pair]);
        }
    } else {
        pass_columns(block, table, rows);
        for (int pair = 0; pair < 4; pair++) {
            rows[pair] = pass_rows(rows[pair]);
        }
    }
    store_rows(rows[0], rows[1], out, stride);
    store_rows(rows[2], rows[3], out + 4 * stride, stride);
}

#endif
