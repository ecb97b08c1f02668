/* Eight pixels of three bytes in a register, with 32 bits for each. Reads and writes 24 bytes and no more. */

#ifndef PACKTRAIN_EIGHT_PIXELS_H
#define PACKTRAIN_EIGHT_PIXELS_H

#include "simd.h"

#ifdef HAS_SIMD
AVX2 static inline __m256i load_eight(const unsigned char *in) {
    /* Both halves are read from within the 24 bytes, so that the second begins four bytes late. */
    const __m256i order = _mm256_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1, /* first half */
                                           4, 5, 6, -1, 7, 8, 9, -1, 10, 11, 12, -1, 13, 14, 15, -1);
    __m256i bytes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)in)),
                                            _mm_loadu_si128((const __m128i *)(in + 8)), 1);
    return _mm256_shuffle_epi8(bytes, order);
}

AVX2 static inline void store_eight(unsigned char *out, __m256i pixels) {
    const __m256i order = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, /* first half */
                                           0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i together = _mm256_setr_epi32(0, 1, 2, 4, 5, 6, 3, 7);
    __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_shuffle_epi8(pixels, order), together);
    _mm_storeu_si128((__m128i *)out, _mm256_castsi256_si128(bytes));
    _mm_storel_epi64((__m128i *)(out + 16), _mm256_extracti128_si256(bytes, 1));
}

/* Channel 0, 1 or 2 of the pixels. */
AVX2 static inline __m256i channel_of_eight(__m256i pixels, int channel) {
    return _mm256_and_si256(_mm256_srli_epi32(pixels, 8 * channel), _mm256_set1_epi32(255));
}
#endif

#endif
