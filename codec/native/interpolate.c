/* Pillow's affine and perspective transforms, with bilinear and bicubic filters.

   The arithmetic is that of Pillow's src/libImaging/Geometry.c, in doubles: first along the rows, then down. Pixels
   beyond an edge are those of the edge. Sums of bytes are exact, so they may be summed as integers. */

#include "warp.h"

#include "simd.h"

#include <math.h>
#include <stdint.h>
#include <string.h>


/* What a pixel of the output is made of: pixels from (left, top) on, and how far it lies beyond the first of them, or
   for bicubic filters beyond the second one. */
typedef struct {
    int left, top;
    double across, down;
} Place;

typedef enum { OUTSIDE, UNDEFINED, FOUND } Finding;

INLINE Finding find(const Warp *warp, bool perspective, bool bicubic, int x, int y, Place *place) {
    double across, down;
    warp_place(warp, perspective, x, y, &across, &down);
    if (across < 0.0 || across >= warp->width || down < 0.0 || down >= warp->height) {
        return OUTSIDE;
    }
    if (isnan(across) || isnan(down)) {
        return UNDEFINED;
    }
    across -= 0.5;
    down -= 0.5;
    /* Rounded down: a negative number is at least -0.5. */
    int left = (int)across - (across < 0), top = (int)down - (down < 0);
    *place = (Place){left - bicubic, top - bicubic, across - left, down - top};
    return FOUND;
}

INLINE int clipped(int at, int size) { return at < 0 ? 0 : at < size ? at : size - 1; }

INLINE double line(double first, double second, double at) { return first + (second - first) * at; }

INLINE double cubic(const double *v, double at) {
    double p1 = v[1], p2 = -v[0] + v[2], p3 = 2 * (v[0] - v[1]) + v[2] - v[3], p4 = -v[0] + v[1] - v[2] + v[3];
    return p1 + at * (p2 + at * (p3 + at * p4));
}

/* One pixel, wherever it lies. */
INLINE void pixel(const Warp *warp, bool bicubic, const Place *place, unsigned char *out, int channels) {
    int count = bicubic ? 4 : 2;
    size_t columns[4];
    const unsigned char *rows[4];
    for (int i = 0; i < count; i++) {
        columns[i] = (size_t)clipped(place->left + i, warp->width) * (size_t)channels;
        rows[i] = warp->in + (size_t)clipped(place->top + i, warp->height) * warp_step(warp);
    }
    for (int channel = 0; channel < channels; channel++) {
        double sums[4];
        for (int i = 0; i < count; i++) {
            const unsigned char *row = rows[i] + channel;
            if (bicubic) {
                double values[4] = {row[columns[0]], row[columns[1]], row[columns[2]], row[columns[3]]};
                sums[i] = cubic(values, place->across);
            } else {
                sums[i] = line(row[columns[0]], row[columns[1]], place->across);
            }
        }
        double sum = bicubic ? cubic(sums, place->down) : line(sums[0], sums[1], place->down);
        out[channel] = (unsigned char)(sum <= 0.0 ? 0.0 : sum >= 255.0 ? 255.0 : sum);
    }
}

/* Pixels that are not FOUND. Pillow's numbers that are none become 0. */
INLINE void missing(const Warp *warp, Finding finding, unsigned char *out) {
    static const unsigned char black[4];
    warp_copy(out, finding == OUTSIDE ? warp->fill : black, warp->channels);
}

INLINE void all(const Warp *warp, bool perspective, bool bicubic, int channels) {
    unsigned char *out = warp->out;
    for (int y = 0; y < warp->out_height; y++) {
        for (int x = 0; x < warp->out_width; x++, out += channels) {
            Place place;
            Finding finding = find(warp, perspective, bicubic, x, y, &place);
            if (finding == FOUND) {
                pixel(warp, bicubic, &place, out, channels);
            } else {
                missing(warp, finding, out);
            }
        }
    }
}

#define FOR_BOTH_KINDS(function, bicubic, channels)                                                                    \
    if (warp->perspective) {                                                                                           \
        function(warp, true, bicubic, channels);                                                                       \
    } else {                                                                                                           \
        function(warp, false, bicubic, channels);                                                                      \
    }

static void grey_bilinear(const Warp *warp) { FOR_BOTH_KINDS(all, false, 1) }
static void grey_bicubic(const Warp *warp) { FOR_BOTH_KINDS(all, true, 1) }
static void rgb_bilinear(const Warp *warp) { FOR_BOTH_KINDS(all, false, 3) }
static void rgb_bicubic(const Warp *warp) { FOR_BOTH_KINDS(all, true, 3) }

#ifdef HAS_X86_SIMD
/* A register holds the channels of a pixel as doubles, and a byte of the next pixel, which is not used. */
AVX2 INLINE __m256d double_line(__m256d first, __m256d second, __m256d at) {
    return _mm256_add_pd(first, _mm256_mul_pd(_mm256_sub_pd(second, first), at));
}

AVX2 INLINE __m256d polynomial(__m256d p1, __m256d p2, __m256d p3, __m256d p4, __m256d at) {
    p3 = _mm256_add_pd(p3, _mm256_mul_pd(at, p4));
    p2 = _mm256_add_pd(p2, _mm256_mul_pd(at, p3));
    return _mm256_add_pd(p1, _mm256_mul_pd(at, p2));
}

AVX2 INLINE __m256d double_cubic(const __m256d *v, __m256d at) {
    __m256d difference = _mm256_sub_pd(v[0], v[1]);
    __m256d p2 = _mm256_sub_pd(v[2], v[0]);
    __m256d p3 = _mm256_sub_pd(_mm256_add_pd(_mm256_add_pd(difference, difference), v[2]), v[3]);
    __m256d p4 = _mm256_add_pd(_mm256_sub_pd(_mm256_sub_pd(v[1], v[0]), v[2]), v[3]);
    return polynomial(v[1], p2, p3, p4, at);
}

AVX2 INLINE __m256d bilinear_row(const unsigned char *row, __m256d at) {
    __m128i bytes = _mm_loadl_epi64((const __m128i *)row);
    __m128i first = _mm_cvtepu8_epi32(bytes), second = _mm_cvtepu8_epi32(_mm_srli_si128(bytes, 3));
    __m256d difference = _mm256_cvtepi32_pd(_mm_sub_epi32(second, first));
    return _mm256_add_pd(_mm256_cvtepi32_pd(first), _mm256_mul_pd(difference, at));
}

AVX2 INLINE __m256d bicubic_row(const unsigned char *row, __m256d at) {
    __m128i bytes = _mm_loadu_si128((const __m128i *)row), v[4];
    v[0] = _mm_cvtepu8_epi32(bytes);
    v[1] = _mm_cvtepu8_epi32(_mm_srli_si128(bytes, 3));
    v[2] = _mm_cvtepu8_epi32(_mm_srli_si128(bytes, 6));
    v[3] = _mm_cvtepu8_epi32(_mm_srli_si128(bytes, 9));
    __m128i left = _mm_sub_epi32(v[0], v[1]), right = _mm_sub_epi32(v[2], v[3]);
    __m128i p2 = _mm_sub_epi32(v[2], v[0]), p4 = _mm_sub_epi32(_mm_setzero_si128(), _mm_add_epi32(left, right));
    __m128i p3 = _mm_add_epi32(_mm_add_epi32(left, left), right);
    return polynomial(_mm256_cvtepi32_pd(v[1]), _mm256_cvtepi32_pd(p2), _mm256_cvtepi32_pd(p3), _mm256_cvtepi32_pd(p4),
                      at);
}

/* One pixel of three channels, all of whose sources lie inside the image. Writes a byte beyond it. */
AVX2 INLINE void pixel_avx2(const unsigned char *in, size_t step, bool bicubic, const Place *place,
                            unsigned char *out) {
    __m256d across = _mm256_set1_pd(place->across), down = _mm256_set1_pd(place->down), sum;
    if (bicubic) {
        __m256d rows[4];
        for (int i = 0; i < 4; i++) {
            rows[i] = bicubic_row(in + (size_t)i * step, across);
        }
        sum = double_cubic(rows, down);
    } else {
        sum = double_line(bilinear_row(in, across), bilinear_row(in + step, across), down);
    }
    /* Packing clips: every sum fits into 16 bits. */
    __m128i values = _mm256_cvttpd_epi32(sum);
    values = _mm_packus_epi16(_mm_packs_epi32(values, values), values);
    uint32_t four = (uint32_t)_mm_cvtsi128_si32(values);
    memcpy(out, &four, sizeof four);
}

AVX2 INLINE void all_avx2(const Warp *warp, bool perspective, bool bicubic, int channels) {
    size_t step = warp_step(warp), size = step * (size_t)warp->height;
    int count = bicubic ? 4 : 2;
    /* The bytes that are read of the last row. */
    size_t read = (size_t)(count - 1) * step + (bicubic ? 16 : 8);
    unsigned char *out = warp->out;
    for (int y = 0; y < warp->out_height; y++) {
        for (int x = 0; x < warp->out_width; x++, out += channels) {
            Place place;
            Finding finding = find(warp, perspective, bicubic, x, y, &place);
            if (finding != FOUND) {
                missing(warp, finding, out);
                continue;
            }
            size_t at = (size_t)place.top * step + (size_t)place.left * 3;
            if (place.left >= 0 && place.top >= 0 && place.left <= warp->width - count &&
                place.top <= warp->height - count && at + read <= size && x < warp->out_width - 1) {
                pixel_avx2(warp->in + at, step, bicubic, &place, out);
            } else {
                pixel(warp, bicubic, &place, out, 3);
            }
        }
    }
}

AVX2 static void rgb_bilinear_avx2(const Warp *warp) { FOR_BOTH_KINDS(all_avx2, false, 3) }
AVX2 static void rgb_bicubic_avx2(const Warp *warp) { FOR_BOTH_KINDS(all_avx2, true, 3) }
#endif

void warp_bilinear(const Warp *warp) { (warp->channels == 1 ? grey_bilinear : WITH_AVX2(rgb_bilinear))(warp); }

void warp_bicubic(const Warp *warp) { (warp->channels == 1 ? grey_bicubic : WITH_AVX2(rgb_bicubic))(warp); }
