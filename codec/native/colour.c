/* Blends with black, with the mean grey and with the grey image, as Pillow's ImageEnhance does.

   Pillow blends in single precision: grey + factor * (value - grey), without its fraction. Each operation rounds by
   itself, so this file must not be compiled with contraction of floating point operations (-ffp-contract=off). */

#include "functions.h"

#include "arguments.h"
#include "eight_pixels.h"
#include "errors.h"
#include "value_maps.h"

#include <math.h>

/* Values of the argument `style`. */
#define PILLOW_SIMD 0
#define PILLOW 1

/* What red and blue count for a grey value, of 65536; green counts for GREEN. pillow-simd computes with 15 bits instead
   of 16, in blocks of four pixels. Pixels after the last block of a row have the weights of Pillow. */
typedef struct {
    int red, blue;
} Weights;

#define GREEN 38470
#define BLOCK 4
static const Weights by_pillow = {19595, 7471}, by_pillow_simd = {19596, 7470};

static const Weights *weights_by(int style) { return style == PILLOW_SIMD ? &by_pillow_simd : &by_pillow; }

static inline unsigned char blended(int grey, int value, float factor) {
    float result = (float)grey + factor * (float)(value - grey);
    return (unsigned char)(result <= 0.0f ? 0 : result >= 255.0f ? 255 : (int)result);
}

static ValueMap blend_with(int grey, float factor) {
    ValueMap map;
    for (int value = 0; value < 256; value++) {
        map.of[value] = blended(grey, value, factor);
    }
    return map;
}

static inline int grey_of(const unsigned char *pixel, const Weights *weights) {
    return (weights->red * pixel[0] + GREEN * pixel[1] + weights->blue * pixel[2] + 0x8000) >> 16;
}

/* The weights for pixel `at` of the last `count` pixels of a row, which begin with a block. */
static inline const Weights *weights_of(const Weights *weights, size_t at, size_t count) {
    return at < count / BLOCK * BLOCK ? weights : &by_pillow;
}

static void grey_row(unsigned char *row, size_t count, const Weights *weights) {
    for (size_t i = 0; i < count; i++, row += 3) {
        row[0] = row[1] = row[2] = (unsigned char)grey_of(row, weights_of(weights, i, count));
    }
}

static void saturate_row(unsigned char *row, size_t count, const Weights *weights, float factor) {
    for (size_t i = 0; i < count; i++, row += 3) {
        int grey = grey_of(row, weights_of(weights, i, count));
        for (int channel = 0; channel < 3; channel++) {
            row[channel] = blended(grey, row[channel], factor);
        }
    }
}

static int64_t sum_row(const unsigned char *row, size_t count, const Weights *weights) {
    int64_t sum = 0;
    for (size_t i = 0; i < count; i++, row += 3) {
        sum += grey_of(row, weights_of(weights, i, count));
    }
    return sum;
}

#ifdef HAS_SIMD
/* The grey values of eight pixels. As weights have 16 bits with a sign, green counts half with red and half with blue. */
AVX2 static inline __m256i grey_of_eight(__m256i pixels, const Weights *weights) {
    const __m256i first = _mm256_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1, /* red and green */
                                           0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1);
    const __m256i second = _mm256_setr_epi8(2, -1, 1, -1, 6, -1, 5, -1, 10, -1, 9, -1, 14, -1, 13, -1, /* blue, green */
                                            2, -1, 1, -1, 6, -1, 5, -1, 10, -1, 9, -1, 14, -1, 13, -1);
    const __m256i of_red = _mm256_set1_epi32((GREEN / 2) << 16 | weights->red);
    const __m256i of_blue = _mm256_set1_epi32((GREEN / 2) << 16 | weights->blue);
    __m256i sum = _mm256_add_epi32(_mm256_madd_epi16(_mm256_shuffle_epi8(pixels, first), of_red),
                                   _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, second), of_blue));
    return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(0x8000)), 16);
}

AVX2 static void grey_row_avx2(unsigned char *row, size_t count, const Weights *weights) {
    const __m256i thrice = _mm256_setr_epi8(0, 0, 0, -1, 4, 4, 4, -1, 8, 8, 8, -1, 12, 12, 12, -1, /* first half */
                                            0, 0, 0, -1, 4, 4, 4, -1, 8, 8, 8, -1, 12, 12, 12, -1);
    for (; count >= 8; count -= 8, row += 24) {
        store_eight(row, _mm256_shuffle_epi8(grey_of_eight(load_eight(row), weights), thrice));
    }
    grey_row(row, count, weights);
}

AVX2 static void saturate_row_avx2(unsigned char *row, size_t count, const Weights *weights, float factor) {
    const __m256 factors = _mm256_set1_ps(factor), full = _mm256_set1_ps(255.0f);
    for (; count >= 8; count -= 8, row += 24) {
        __m256i pixels = load_eight(row), grey = grey_of_eight(pixels, weights), result = _mm256_setzero_si256();
        __m256 base = _mm256_cvtepi32_ps(grey);
        for (int channel = 2; channel >= 0; channel--) {
            __m256i difference = _mm256_sub_epi32(channel_of_eight(pixels, channel), grey);
            __m256 value = _mm256_add_ps(base, _mm256_mul_ps(factors, _mm256_cvtepi32_ps(difference)));
            value = _mm256_max_ps(_mm256_min_ps(value, full), _mm256_setzero_ps());
            result = _mm256_or_si256(_mm256_slli_epi32(result, 8), _mm256_cvttps_epi32(value));
        }
        store_eight(row, result);
    }
    saturate_row(row, count, weights, factor);
}

AVX2 static int64_t sum_row_avx2(const unsigned char *row, size_t count, const Weights *weights) {
    /* Each of the eight sums is less than 2^31, as a row has less than 2^26 pixels. */
    __m256i sums = _mm256_setzero_si256();
    for (; count >= 8; count -= 8, row += 24) {
        sums = _mm256_add_epi32(sums, grey_of_eight(load_eight(row), weights));
    }
    int32_t each[8];
    _mm256_storeu_si256((__m256i *)each, sums);
    int64_t sum = sum_row(row, count, weights);
    for (int i = 0; i < 8; i++) {
        sum += each[i];
    }
    return sum;
}
#endif

/* The mean of the grey values, rounded as Python does it. */
static int mean_grey(const Py_buffer *pixels, const Weights *weights) {
    const unsigned char *row = pixels->buf;
    size_t width = (size_t)pixels->shape[1], channels = (size_t)pixels->shape[2];
    int64_t sum = 0;
    for (Py_ssize_t y = 0; y < pixels->shape[0]; y++, row += channels * width) {
        if (channels == 3) {
            sum += FASTEST_AVX2(sum_row)(row, width, weights);
        } else {
            for (size_t x = 0; x < width; x++) {
                sum += row[x];
            }
        }
    }
    return (int)((double)sum / ((double)pixels->shape[0] * (double)width) + 0.5);
}

/* Takes the arguments of a blend; false, with a Python exception, if something is wrong with them. */
static bool take_blend(PyObject *array, float factor, int style, Py_buffer *pixels) {
    if (!isfinite(factor)) {
        set_error(INPUT_ERROR, "the factor is not a finite number");
    } else if (style != PILLOW && style != PILLOW_SIMD) {
        set_error(INPUT_ERROR, "this style is unknown");
    } else {
        return take_pixels(array, pixels);
    }
    return false;
}

PyObject *brighten(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array;
    float factor;
    Py_buffer pixels;
    if (!PyArg_ParseTuple(args, "Of:brighten", &array, &factor) || !take_blend(array, factor, PILLOW, &pixels)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    ValueMap map = blend_with(0, factor);
    map_bytes(pixels.buf, (size_t)pixels.len, &map);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels);
    Py_RETURN_NONE;
}

PyObject *contrast(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array;
    float factor;
    int style;
    Py_buffer pixels;
    if (!PyArg_ParseTuple(args, "Ofi:contrast", &array, &factor, &style) ||
        !take_blend(array, factor, style, &pixels)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    ValueMap map = blend_with(mean_grey(&pixels, weights_by(style)), factor);
    map_bytes(pixels.buf, (size_t)pixels.len, &map);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels);
    Py_RETURN_NONE;
}

PyObject *saturate(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array;
    float factor;
    int style;
    Py_buffer pixels;
    if (!PyArg_ParseTuple(args, "Ofi:saturate", &array, &factor, &style) ||
        !take_blend(array, factor, style, &pixels)) {
        return NULL;
    }
    if (pixels.shape[2] == 3) {
        Py_BEGIN_ALLOW_THREADS
        const Weights *weights = weights_by(style);
        unsigned char *row = pixels.buf;
        size_t width = (size_t)pixels.shape[1];
        for (Py_ssize_t y = 0; y < pixels.shape[0]; y++, row += 3 * width) {
            if (factor == 0.0f) {
                FASTEST_AVX2(grey_row)(row, width, weights);
            } else {
                FASTEST_AVX2(saturate_row)(row, width, weights, factor);
            }
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&pixels);
    Py_RETURN_NONE;
}
