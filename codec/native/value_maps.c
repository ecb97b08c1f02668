#include "value_maps.h"

#include "simd.h"

static void map(unsigned char *bytes, size_t size, const ValueMap *values) {
    for (size_t i = 0; i < size; i++) {
        bytes[i] = values->of[bytes[i]];
    }
}

#ifdef HAS_SIMD
#define ROWS 16

/* A shuffle looks up 16 values, and gives 0 where the index is negative. So each index counts down from row to row until
   it is negative, and each row holds what the value differs from the one 16 places before: the sum of the differences,
   by exclusive or, is the value. Indices of 128 and more are negative from the start; they go through the second half
   of the rows as if they were 128 less. */
AVX2 static void map_avx2(unsigned char *bytes, size_t size, const ValueMap *values) {
    __m256i rows[ROWS];
    for (int row = 0; row < ROWS; row++) {
        __m128i here = _mm_loadu_si128((const __m128i *)(values->of + 16 * row));
        if (row % (ROWS / 2)) {
            here = _mm_xor_si128(here, _mm_loadu_si128((const __m128i *)(values->of + 16 * (row - 1))));
        }
        rows[row] = _mm256_broadcastsi128_si256(here);
    }
    const __m256i next = _mm256_set1_epi8(16);
    for (; size >= 32; size -= 32, bytes += 32) {
        __m256i low = _mm256_loadu_si256((const __m256i *)bytes), high = _mm256_xor_si256(low, _mm256_set1_epi8(-128));
        __m256i lows = _mm256_shuffle_epi8(rows[0], low), highs = _mm256_shuffle_epi8(rows[ROWS / 2], high);
        for (int row = 1; row < ROWS / 2; row++) {
            low = _mm256_subs_epi8(low, next), high = _mm256_subs_epi8(high, next);
            lows = _mm256_xor_si256(lows, _mm256_shuffle_epi8(rows[row], low));
            highs = _mm256_xor_si256(highs, _mm256_shuffle_epi8(rows[ROWS / 2 + row], high));
        }
        _mm256_storeu_si256((__m256i *)bytes, _mm256_xor_si256(lows, highs));
    }
    map(bytes, size, values);
}
#endif

void map_bytes(unsigned char *bytes, size_t size, const ValueMap *values) { FASTEST_AVX2(map)(bytes, size, values); }

void map_channels(unsigned char *pixels, size_t count, const ValueMap maps[3]) {
    for (; count; count--, pixels += 3) {
        pixels[0] = maps[0].of[pixels[0]];
        pixels[1] = maps[1].of[pixels[1]];
        pixels[2] = maps[2].of[pixels[2]];
    }
}
