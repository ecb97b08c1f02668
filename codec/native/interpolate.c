/* Pillow's affine and perspective transforms, with places of pixels in doubles: with bilinear and bicubic filters, and
   for perspectives also with the nearest pixel.

   The arithmetic is that of Pillow's src/libImaging/Geometry.c: first along the rows, then down. Pixels beyond an edge
   are those of the edge. Sums of bytes are exact in any order, sums of their products are not. */

#include "warp.h"

#include "simd.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* What a pixel of the output is made of: pixels of the input from (left, top) on, as many in each direction as a filter
   has taps, and how far it lies beyond the first of them, or of four taps beyond the second one. */
typedef struct {
    int left, top;
    double across, down;
} Place;

typedef enum { OUTSIDE, UNDEFINED, FOUND } Finding;

INLINE Finding find(const Warp *warp, bool perspective, int taps, int x, int y, Place *place) {
    const double *a = warp->a;
    double column = x + 0.5, row = y + 0.5;
    double across = a[0] * column + a[1] * row + a[2], down = a[3] * column + a[4] * row + a[5];
    if (perspective) {
        double depth = a[6] * column + a[7] * row + 1;
        across /= depth;
        down /= depth;
    }
    if (across < 0.0 || across >= warp->width || down < 0.0 || down >= warp->height) {
        return OUTSIDE;
    }
    if (isnan(across) || isnan(down)) {
        return taps == 1 ? OUTSIDE : UNDEFINED;
    }
    if (taps > 1) {
        across -= 0.5;
        down -= 0.5;
    }
    /* Rounded down: a negative number is at least -0.5. */
    int left = (int)across - (across < 0), top = (int)down - (down < 0), before = taps / 2 - (taps > 1);
    *place = (Place){left - before, top - before, across - left, down - top};
    return FOUND;
}

INLINE int clipped(int at, int size) { return at < 0 ? 0 : at < size ? at : size - 1; }

INLINE double linear(const double *v, double at) { return v[0] + (v[1] - v[0]) * at; }

INLINE double cubic(const double *v, double at) {
    double p2 = v[2] - v[0], p3 = 2 * (v[0] - v[1]) + v[2] - v[3], p4 = v[1] - v[0] - v[2] + v[3];
    return v[1] + at * (p2 + at * (p3 + at * p4));
}

/* Bytes are made of values that were cut off or clipped. */
INLINE double mixed(const double *values, int taps, double at) {
    return taps == 1 ? values[0] : taps == 2 ? linear(values, at) : cubic(values, at);
}

/* One pixel, wherever it lies. */
INLINE void pixel(const Warp *warp, bool perspective, int taps, int channels, int x, int y, unsigned char *out) {
    static const unsigned char black[4];
    Place place;
    Finding finding = find(warp, perspective, taps, x, y, &place);
    if (finding != FOUND) {
        warp_copy(out, finding == OUTSIDE ? warp->fill : black, channels);
        return;
    }
    size_t columns[4];
    const unsigned char *rows[4];
    for (int i = 0; i < taps; i++) {
        columns[i] = (size_t)clipped(place.left + i, warp->width) * (size_t)channels;
        rows[i] = warp->in + (size_t)clipped(place.top + i, warp->height) * warp_step(warp);
    }
    for (int channel = 0; channel < channels; channel++) {
        double sums[4];
        for (int i = 0; i < taps; i++) {
            double values[4];
            for (int j = 0; j < taps; j++) {
                values[j] = rows[i][columns[j] + (size_t)channel];
            }
            sums[i] = mixed(values, taps, place.across);
        }
        double sum = mixed(sums, taps, place.down);
        out[channel] = (unsigned char)(sum <= 0.0 ? 0.0 : sum >= 255.0 ? 255.0 : sum);
    }
}

INLINE void all(const Warp *warp, bool perspective, int taps, int channels) {
    unsigned char *out = warp->out;
    for (int y = 0; y < warp->out_height; y++) {
        for (int x = 0; x < warp->out_width; x++, out += channels) {
            pixel(warp, perspective, taps, channels, x, y, out);
        }
    }
}

#ifdef HAS_SIMD
/* Pixels that are computed at once. */
#define LANES 4

/* Byte `at` of each lane as a double: as the lowest bits of 2 to the power of 52, which is then subtracted. */
AVX2 INLINE __m256d byte_of(__m256i lanes, int at) {
    const __m256d power = _mm256_set1_pd(4503599627370496.0);
    __m256i byte = _mm256_and_si256(_mm256_srli_epi64(lanes, 8 * at), _mm256_set1_epi64x(255));
    return _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(byte, _mm256_castpd_si256(power))), power);
}

AVX2 INLINE __m256d mixed_lanes(const __m256d *v, int taps, __m256d at) {
    if (taps == 1) {
        return v[0];
    }
    if (taps == 2) {
        return _mm256_add_pd(v[0], _mm256_mul_pd(_mm256_sub_pd(v[1], v[0]), at));
    }
    __m256d less = _mm256_sub_pd(v[0], v[1]), p2 = _mm256_sub_pd(v[2], v[0]);
    __m256d p3 = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(less, less), v[2]), v[3]);
    __m256d p4 = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v[1], v[0]), v[2]), v[3]);
    p3 = _mm256_add_pd(p3, _mm256_mul_pd(at, p4));
    p2 = _mm256_add_pd(p2, _mm256_mul_pd(at, p3));
    return _mm256_add_pd(v[1], _mm256_mul_pd(at, p2));
}

/* Eight bytes at each of four places. Loading them one by one is as fast as an instruction that gathers them, and much
   faster on some processors. */
AVX2 INLINE __m256i gathered(const unsigned char *from, const int64_t *places) {
    __m128i lanes[LANES];
    for (int i = 0; i < LANES; i++) {
        lanes[i] = _mm_loadl_epi64((const __m128i *)(from + places[i]));
    }
    return _mm256_set_m128i(_mm_unpacklo_epi64(lanes[2], lanes[3]), _mm_unpacklo_epi64(lanes[0], lanes[1]));
}

/* Four pixels whose sources lie inside the image. */
AVX2 INLINE void lanes_from(const unsigned char *in, size_t step, const int64_t *places, __m256d across, __m256d down,
                            int taps, int channels, unsigned char *out) {
    __m256i first[4], second[4];
    for (int i = 0; i < taps; i++) {
        const unsigned char *row = in + step * (size_t)i;
        first[i] = gathered(row, places);
        /* Four pixels of three bytes need twelve bytes. */
        second[i] = taps == 4 && channels == 3 ? gathered(row + 4, places) : first[i];
    }
    __m128i pixels = _mm_setzero_si128();
    for (int channel = 0; channel < channels; channel++) {
        __m256d sums[4];
        for (int i = 0; i < taps; i++) {
            __m256d values[4];
            for (int j = 0; j < taps; j++) {
                int at = j * channels + channel;
                values[j] = at < 8 ? byte_of(first[i], at) : byte_of(second[i], at - 4);
            }
            sums[i] = mixed_lanes(values, taps, across);
        }
        __m256d sum = mixed_lanes(sums, taps, down);
        if (taps == 4) {
            sum = _mm256_min_pd(_mm256_max_pd(sum, _mm256_setzero_pd()), _mm256_set1_pd(255.0));
        }
        pixels = _mm_or_si128(pixels, _mm_slli_epi32(_mm256_cvttpd_epi32(sum), 8 * channel));
    }
    const __m128i grey = _mm_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i rgb = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    pixels = _mm_shuffle_epi8(pixels, channels == 1 ? grey : rgb);
    memcpy(out, &pixels, (size_t)(LANES * channels));
}

/* Four pixels if all of them lie well inside the image, or all of them outside; false if not. */
AVX2 INLINE bool lanes(const Warp *warp, bool perspective, int taps, int channels, int x, int y, unsigned char *out) {
    const double *a = warp->a;
    const __m256d zero = _mm256_setzero_pd();
    __m256d column = _mm256_add_pd(_mm256_set1_pd(x), _mm256_setr_pd(0.5, 1.5, 2.5, 3.5));
    double row = y + 0.5;
    __m256d across = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(a[0]), column), _mm256_set1_pd(a[1] * row));
    __m256d down = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(a[3]), column), _mm256_set1_pd(a[4] * row));
    across = _mm256_add_pd(across, _mm256_set1_pd(a[2]));
    down = _mm256_add_pd(down, _mm256_set1_pd(a[5]));
    if (perspective) {
        __m256d depth = _mm256_add_pd(_mm256_mul_pd(_mm256_set1_pd(a[6]), column), _mm256_set1_pd(a[7] * row));
        depth = _mm256_add_pd(depth, _mm256_set1_pd(1));
        across = _mm256_div_pd(across, depth);
        down = _mm256_div_pd(down, depth);
    }
    __m256d width = _mm256_set1_pd(warp->width), height = _mm256_set1_pd(warp->height);
    __m256d outside = _mm256_or_pd(
        _mm256_or_pd(_mm256_cmp_pd(across, zero, _CMP_LT_OQ), _mm256_cmp_pd(across, width, _CMP_GE_OQ)),
        _mm256_or_pd(_mm256_cmp_pd(down, zero, _CMP_LT_OQ), _mm256_cmp_pd(down, height, _CMP_GE_OQ)));
    if (_mm256_movemask_pd(outside) == 15) {
        for (int i = 0; i < LANES; i++) {
            warp_copy(out + i * channels, warp->fill, channels);
        }
        return true;
    }
    if (taps > 1) {
        across = _mm256_sub_pd(across, _mm256_set1_pd(0.5));
        down = _mm256_sub_pd(down, _mm256_set1_pd(0.5));
    }
    __m256d left = _mm256_floor_pd(across), top = _mm256_floor_pd(down);
    across = _mm256_sub_pd(across, left);
    down = _mm256_sub_pd(down, top);
    if (taps == 4) {
        left = _mm256_sub_pd(left, _mm256_set1_pd(1));
        top = _mm256_sub_pd(top, _mm256_set1_pd(1));
    }
    __m256d inside = _mm256_and_pd(
        _mm256_and_pd(_mm256_cmp_pd(left, zero, _CMP_GE_OQ),
                      _mm256_cmp_pd(left, _mm256_set1_pd(warp->width - taps), _CMP_LE_OQ)),
        _mm256_and_pd(_mm256_cmp_pd(top, zero, _CMP_GE_OQ),
                      _mm256_cmp_pd(top, _mm256_set1_pd(warp->height - taps), _CMP_LE_OQ)));
    if (_mm256_movemask_pd(inside) != 15) {
        return false;
    }
    size_t step = warp_step(warp), read = taps == 4 && channels == 3 ? 12 : 8;
    int64_t most = (int64_t)(step * (size_t)warp->height) - (int64_t)(step * (size_t)(taps - 1) + read);
    __m256i columns = _mm256_cvtepi32_epi64(_mm256_cvttpd_epi32(left));
    __m256i rows = _mm256_cvtepi32_epi64(_mm256_cvttpd_epi32(top));
    __m256i places = _mm256_add_epi64(_mm256_mul_epi32(rows, _mm256_set1_epi64x((int64_t)step)),
                                      _mm256_mul_epi32(columns, _mm256_set1_epi64x(channels)));
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi64(places, _mm256_set1_epi64x(most)))) {
        return false;
    }
    int64_t stored[LANES];
    _mm256_storeu_si256((__m256i *)stored, places);
    lanes_from(warp->in, step, stored, across, down, taps, channels, out);
    return true;
}

AVX2 INLINE void all_lanes(const Warp *warp, bool perspective, int taps, int channels) {
    unsigned char *out = warp->out;
    for (int y = 0; y < warp->out_height; y++) {
        for (int x = 0; x < warp->out_width;) {
            int count = warp->out_width - x < LANES ? warp->out_width - x : LANES;
            if (count < LANES || !lanes(warp, perspective, taps, channels, x, y, out)) {
                for (int i = 0; i < count; i++) {
                    pixel(warp, perspective, taps, channels, x + i, y, out + i * channels);
                }
            }
            x += count;
            out += count * channels;
        }
    }
}
#endif

/* Functions for each number of taps and channels, whose loops the compiler unrolls. */
#define FUNCTIONS(attribute, name, body)                                                                               \
    attribute static void name(const Warp *warp, int taps) {                                                           \
        bool grey = warp->channels == 1;                                                                               \
        if (taps == 1) {                                                                                               \
            grey ? body(warp, true, 1, 1) : body(warp, true, 1, 3);                                                    \
        } else if (taps == 2 && warp->perspective) {                                                                   \
            grey ? body(warp, true, 2, 1) : body(warp, true, 2, 3);                                                    \
        } else if (taps == 2) {                                                                                        \
            grey ? body(warp, false, 2, 1) : body(warp, false, 2, 3);                                                  \
        } else if (warp->perspective) {                                                                                \
            grey ? body(warp, true, 4, 1) : body(warp, true, 4, 3);                                                    \
        } else {                                                                                                       \
            grey ? body(warp, false, 4, 1) : body(warp, false, 4, 3);                                                  \
        }                                                                                                              \
    }

FUNCTIONS(, interpolated, all)
#ifdef HAS_SIMD
FUNCTIONS(AVX2, interpolated_avx2, all_lanes)
#endif

void warp_interpolated(const Warp *warp, int taps) {
    if (warp->channels == 4) {
        all(warp, true, 1, 4);
    } else {
        FASTEST_AVX2(interpolated)(warp, taps);
    }
}
