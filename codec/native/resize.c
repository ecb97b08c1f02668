/* Pillow's antialiased resize with the same pixels, for crops with three bytes per pixel, read directly from the
   record.

   The arithmetic is that of Pillow's src/libImaging/Resample.c: weights are computed in double precision and rounded to
   integers; there is one pass over rows and one over columns, with bytes in between. Since Pillow 13, columns come
   first where the height shrinks by more than twice as many pixels as the width. Sums of integers are the same in any
   order, so this file is free to choose one. pillow-simd rounds its weights to 16 bits, Pillow to 22 bits after the
   binary point. */

#include "functions.h"

#include "arguments.h"
#include "copy_pixels.h"
#include "errors.h"
#include "resize.h"
#include "simd.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Values of the arguments `resample` and `style`. */
#define BILINEAR 2
#define BICUBIC 3
#define PILLOW_SIMD 0
#define PILLOW_13 2

#define WIDE_PRECISION 22
#define NARROW_BITS 15
/* A wide weight is split into two numbers of 16 bits: (high << SPLIT) + low. */
#define SPLIT 12
/* Bytes after a row, more than what any register reads or writes beyond its end. */
#define PADDING 64
#define ROWS_AT_ONCE 4

/* How the wanted pixels along one axis are computed, from the pixels in memory from `begin` to `end` - 1. Pixel i is a
   sum of count[i] pairs of these from first[i] on, which counts from `begin`, times their weights, which are stored in
   pairs of 16 bits each. */
typedef struct {
    int begin, end, size, pairs, most, precision;
    int *first, *count;
    int32_t *low, *high;
    double *weights;
} Axis;

struct Resizer {
    Axis across, down;
    unsigned char *rows, *between, *second, *line;
};

#ifdef HAS_SIMD
static double bilinear(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

static double bicubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) {
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    }
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

static bool grow(void *pointer, size_t size) {
    void *memory, **target = pointer;
    memory = realloc(*target, size);
    if (memory) {
        *target = memory;
    }
    return memory != NULL;
}

/* The highest precision, in bits after the binary point, at which the greatest weight fits into 16 bits. */
static int narrow_precision(const double *weights, size_t count) {
    double greatest = weights[0];
    for (size_t i = 1; i < count; i++) {
        greatest = weights[i] > greatest ? weights[i] : greatest;
    }
    int precision = 0;
    while (precision < WIDE_PRECISION && (int)(0.5 + greatest * (1 << (precision + 1))) < 1 << NARROW_BITS) {
        precision++;
    }
    return precision;
}

static void set_weight(int32_t *pairs, int index, int value) {
    int32_t half = (int32_t)(uint16_t)value;
    pairs[index / 2] = index % 2 ? pairs[index / 2] | (int32_t)((uint32_t)half << 16) : half;
}

static bool changes(const Side *side) { return side->source != side->target; }

static bool prepare(Axis *axis, const Side *whole, const Filter *filter) {
    const Side part = *whole, *side = &part; /* a copy, which no write below can change */
    if (!changes(side)) {
        axis->begin = side->first - side->start;
        axis->end = axis->begin + side->count;
        return true;
    }
    double scale = (double)side->source / side->target, spread = scale < 1.0 ? 1.0 : scale;
    double support = filter->bicubic ? 2.0 : 1.0;
    support *= spread;
    int most = (int)ceil(support) * 2 + 1;
    size_t count = (size_t)side->count, all = (size_t)side->target * (size_t)most;
    axis->size = side->count;
    axis->pairs = (most + 1) / 2;
    axis->most = 1;
    size_t words = count * (size_t)axis->pairs * sizeof *axis->low;
    if (!grow(&axis->weights, all * sizeof *axis->weights) || !grow(&axis->low, words) || !grow(&axis->high, words) ||
        !grow(&axis->first, count * sizeof *axis->first) || !grow(&axis->count, count * sizeof *axis->count)) {
        return false;
    }
    memset(axis->weights, 0, all * sizeof *axis->weights);
    for (int i = 0; i < side->target; i++) {
        bool wanted = i >= side->first && i - side->first < side->count;
        if (!wanted && filter->wide) {
            continue;
        }
        double center = (i + 0.5) * scale, sum = 0.0, shrink = 1.0 / spread;
        double *weights = axis->weights + (size_t)i * most;
        int first = (int)(center - support + 0.5), end = (int)(center + support + 0.5);
        first = first < 0 ? 0 : first;
        end = end > side->source ? side->source : end;
        for (int j = 0; j < end - first; j++) {
            double x = (j + first - center + 0.5) * shrink;
            weights[j] = filter->bicubic ? bicubic(x) : bilinear(x);
            sum += weights[j];
        }
        for (int j = 0; j < end - first && sum != 0.0; j++) {
            weights[j] /= sum;
        }
        if (wanted) {
            int k = i - side->first;
            axis->begin = k == 0 ? first - side->start : axis->begin;
            axis->end = end - side->start;
            axis->first[k] = first - side->start - axis->begin;
            axis->count[k] = (end - first + 1) / 2;
            axis->most = axis->count[k] > axis->most ? axis->count[k] : axis->most;
        }
    }
    /* Narrow weights of all pixels have the same precision, whichever are wanted. */
    axis->precision = filter->wide ? WIDE_PRECISION : narrow_precision(axis->weights, all);
    for (int i = 0; i < side->count; i++) {
        int32_t *low = axis->low + (size_t)i * axis->pairs, *high = axis->high + (size_t)i * axis->pairs;
        const double *weights = axis->weights + (size_t)(side->first + i) * most;
        for (int j = 0; j < most; j++) {
            int rounded = (int)((weights[j] < 0 ? -0.5 : 0.5) + weights[j] * (1 << axis->precision));
            int half = 1 << (SPLIT - 1), rest = filter->wide ? ((rounded + half) & (2 * half - 1)) - half : rounded;
            set_weight(low, j, rest);
            set_weight(high, j, (rounded - rest) >> SPLIT);
        }
        if (most % 2) {
            set_weight(low, most, 0);
            set_weight(high, most, 0);
        }
    }
    return true;
}

static bool has_pixels(const Axis *axis, const Side *side) { return axis->begin >= 0 && axis->end <= side->length; }

AVX2 static inline __m256i two_rows(const unsigned char *first, const unsigned char *second) {
    const __m256i order = _mm256_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1, /* first row */
                                           0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1);
    __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadl_epi64((const __m128i *)first)),
                                             _mm_loadl_epi64((const __m128i *)second), 1);
    return _mm256_shuffle_epi8(pixels, order);
}

AVX2 static inline __m256i summed(__m256i low, __m256i high, int precision, bool wide) {
    __m256i sum = _mm256_add_epi32(low, _mm256_set1_epi32(1 << (precision - 1)));
    if (wide) {
        sum = _mm256_add_epi32(sum, _mm256_slli_epi32(high, SPLIT));
    }
    return _mm256_srai_epi32(sum, precision);
}

static inline void store_pixel(unsigned char *out, uint32_t pixel) { memcpy(out, &pixel, sizeof pixel); }

/* Four rows. Every pixel is a sum of `count` pairs, since a loop of known length is faster; unused weights are 0.
   Writes a byte beyond each pixel, which the next pixel overwrites. */
AVX2 static inline void across(const Axis *axis, const unsigned char *const *in, unsigned char *const *out,
                               bool mirrored, bool wide, int count) {
    for (int x = 0; x < axis->size; x++) {
        int i = mirrored ? axis->size - 1 - x : x;
        const int32_t *low = axis->low + (size_t)i * axis->pairs, *high = axis->high + (size_t)i * axis->pairs;
        size_t at = 3 * (size_t)axis->first[i];
        __m256i one = _mm256_setzero_si256(), two = one, one_high = one, two_high = one;
        for (int j = 0; j < count; j++, at += 6) {
            __m256i upper = two_rows(in[0] + at, in[1] + at), lower = two_rows(in[2] + at, in[3] + at);
            __m256i weights = _mm256_set1_epi32(low[j]);
            one = _mm256_add_epi32(one, _mm256_madd_epi16(upper, weights));
            two = _mm256_add_epi32(two, _mm256_madd_epi16(lower, weights));
            if (wide) {
                weights = _mm256_set1_epi32(high[j]);
                one_high = _mm256_add_epi32(one_high, _mm256_madd_epi16(upper, weights));
                two_high = _mm256_add_epi32(two_high, _mm256_madd_epi16(lower, weights));
            }
        }
        __m256i words = _mm256_packs_epi32(summed(one, one_high, axis->precision, wide),
                                           summed(two, two_high, axis->precision, wide));
        __m256i bytes = _mm256_packus_epi16(words, words);
        uint64_t even = (uint64_t)_mm256_extract_epi64(bytes, 0), odd = (uint64_t)_mm256_extract_epi64(bytes, 2);
        store_pixel(out[0] + 3 * x, (uint32_t)even);
        store_pixel(out[1] + 3 * x, (uint32_t)odd);
        store_pixel(out[2] + 3 * x, (uint32_t)(even >> 32));
        store_pixel(out[3] + 3 * x, (uint32_t)(odd >> 32));
    }
}

AVX2 static void across_wide(const Axis *axis, const unsigned char *const *in, unsigned char *const *out,
                             bool mirrored) {
    switch (axis->most) {
    case 1:
        across(axis, in, out, mirrored, true, 1);
        break;
    case 2:
        across(axis, in, out, mirrored, true, 2);
        break;
    default:
        across(axis, in, out, mirrored, true, axis->most);
    }
}

AVX2 static void across_narrow(const Axis *axis, const unsigned char *const *in, unsigned char *const *out,
                               bool mirrored) {
    switch (axis->most) {
    case 1:
        across(axis, in, out, mirrored, false, 1);
        break;
    case 2:
        across(axis, in, out, mirrored, false, 2);
        break;
    default:
        across(axis, in, out, mirrored, false, axis->most);
    }
}

/* One row of the result, in whole blocks of 32 bytes. */
AVX2 static inline void down(const Axis *axis, int i, const unsigned char *in, size_t step, size_t size,
                             unsigned char *out, bool wide) {
    const int32_t *low = axis->low + (size_t)i * axis->pairs, *high = axis->high + (size_t)i * axis->pairs;
    const __m256i zero = _mm256_setzero_si256();
    in += step * (size_t)axis->first[i];
    for (size_t at = 0; at < size; at += 32) {
        __m256i sums[4] = {zero, zero, zero, zero}, highs[4] = {zero, zero, zero, zero};
        const unsigned char *row = in + at;
        for (int j = 0; j < axis->count[i]; j++, row += 2 * step) {
            __m256i first = _mm256_loadu_si256((const __m256i *)row);
            __m256i second = _mm256_loadu_si256((const __m256i *)(row + step));
            __m256i left = _mm256_unpacklo_epi8(first, second), right = _mm256_unpackhi_epi8(first, second);
            __m256i pairs[4] = {_mm256_unpacklo_epi8(left, zero), _mm256_unpackhi_epi8(left, zero),
                                _mm256_unpacklo_epi8(right, zero), _mm256_unpackhi_epi8(right, zero)};
            __m256i weights = _mm256_set1_epi32(low[j]), more = _mm256_set1_epi32(high[j]);
            for (int k = 0; k < 4; k++) {
                sums[k] = _mm256_add_epi32(sums[k], _mm256_madd_epi16(pairs[k], weights));
                if (wide) {
                    highs[k] = _mm256_add_epi32(highs[k], _mm256_madd_epi16(pairs[k], more));
                }
            }
        }
        for (int k = 0; k < 4; k++) {
            sums[k] = summed(sums[k], highs[k], axis->precision, wide);
        }
        __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(sums[0], sums[1]), _mm256_packs_epi32(sums[2], sums[3]));
        _mm256_storeu_si256((__m256i *)(out + at), bytes);
    }
}

AVX2 static void down_wide(const Axis *axis, int i, const unsigned char *in, size_t step, size_t size,
                           unsigned char *out) {
    down(axis, i, in, step, size, out, true);
}

AVX2 static void down_narrow(const Axis *axis, int i, const unsigned char *in, size_t step, size_t size,
                             unsigned char *out) {
    down(axis, i, in, step, size, out, false);
}

static bool has_resize(void) { return has_avx2(); }

/* Bytes of a row, and of what is read beyond its end. */
static size_t line_of(const Axis *axis, int width) { return 3 * (size_t)width + 6 * (size_t)axis->most + PADDING; }

/* Resizes the rows to the new width. Writes up to three rows more than there are. */
static void all_across(Resizer *resizer, const Filter *filter, const unsigned char *in, const unsigned char *end,
                       size_t in_step, int width, int height, bool mirrored, unsigned char *out, size_t step) {
    size_t size = 3 * (size_t)width, line = line_of(&resizer->across, width);
    for (int y = 0; y < height; y += ROWS_AT_ONCE) {
        const unsigned char *from[ROWS_AT_ONCE];
        unsigned char *to[ROWS_AT_ONCE];
        for (int k = 0; k < ROWS_AT_ONCE; k++) {
            const unsigned char *row = in + in_step * (size_t)(y + k < height ? y + k : height - 1);
            unsigned char *copy = resizer->rows + line * (size_t)k;
            bool room = (size_t)(end - row) >= line;
            /* After the last rows there are fewer bytes than the registers read. */
            from[k] = room ? row : memcpy(copy, row, size);
            to[k] = out + step * (size_t)(y + k);
        }
        (filter->wide ? across_wide : across_narrow)(&resizer->across, from, to, mirrored);
    }
}

static void copy_rows(unsigned char *out, size_t step, const unsigned char *in, size_t in_step, int width, int height,
                      bool mirrored, unsigned char *spare) {
    for (int y = 0; y < height; y++, out += step, in += in_step) {
        copy_row(out, in, (size_t)width, 3, mirrored, false, spare);
    }
}

static size_t step_of(int width) { return (3 * (size_t)width + PADDING + 31) & ~(size_t)31; }

Resized resize(Resizer *resizer, const Filter *filter, const unsigned char *in, const unsigned char *end,
               size_t in_step, const Side *across, const Side *down, unsigned char *out, bool mirrored,
               bool past_caches) {
    bool narrower = changes(across), shorter = changes(down);
    int lost = down->source - down->target;
    bool down_first = filter->tall_first && lost > 0 && lost > 2 * (across->source - across->target);
    if (!prepare(&resizer->across, across, filter) || !prepare(&resizer->down, down, filter)) {
        return NO_MEMORY;
    }
    if (!has_pixels(&resizer->across, across) || !has_pixels(&resizer->down, down)) {
        return LACKS_PIXELS;
    }
    in += in_step * (size_t)resizer->down.begin + 3 * (size_t)resizer->across.begin;
    int width = resizer->across.end - resizer->across.begin, height = resizer->down.end - resizer->down.begin;
    int new_width = across->count, new_height = down->count;
    size_t most = (size_t)(height > new_height ? height : new_height) + ROWS_AT_ONCE + 1;
    size_t step = step_of(new_width), in_between = step_of(width > new_width ? width : new_width);
    if (!grow(&resizer->rows, ROWS_AT_ONCE * line_of(&resizer->across, width)) || !grow(&resizer->line, in_between) ||
        !grow(&resizer->between, most * in_between) || !grow(&resizer->second, most * in_between)) {
        return NO_MEMORY;
    }
    if (narrower && shorter && down_first) {
        /* Into rows with room after them. */
        copy_rows(resizer->between, in_between, in, in_step, width, height, false, NULL);
        for (int y = 0; y < new_height; y++) {
            (filter->wide ? down_wide : down_narrow)(&resizer->down, y, resizer->between, in_between,
                                                     3 * (size_t)width, resizer->second + in_between * (size_t)y);
        }
        all_across(resizer, filter, resizer->second, resizer->second + most * in_between, in_between, width, new_height,
                   mirrored, resizer->between, step);
        shorter = false;
    } else if (narrower) {
        all_across(resizer, filter, in, end, in_step, width, height, mirrored, resizer->between, step);
    } else {
        copy_rows(resizer->between, step, in, in_step, width, height, mirrored, resizer->line);
    }
    for (int y = 0; y < new_height; y++, out += 3 * (size_t)new_width) {
        unsigned char *ready = resizer->between + step * (size_t)y;
        if (shorter) {
            ready = resizer->line;
            (filter->wide ? down_wide : down_narrow)(&resizer->down, y, resizer->between, step, 3 * (size_t)new_width,
                                                     ready);
        }
        copy_row(out, ready, (size_t)new_width, 3, false, past_caches, NULL);
    }
    return RESIZED;
}
#else
static bool has_resize(void) { return false; }
Resized resize(Resizer *resizer, const Filter *filter, const unsigned char *in, const unsigned char *end,
               size_t in_step, const Side *across, const Side *down, unsigned char *out, bool mirrored,
               bool past_caches) {
    (void)resizer, (void)filter, (void)in, (void)end, (void)in_step, (void)across, (void)down;
    (void)out, (void)mirrored, (void)past_caches;
    return NO_MEMORY;
}
#endif

Resizer *resizer_new(void) { return calloc(1, sizeof(Resizer)); }

void resizer_free(Resizer *resizer) {
    if (!resizer) {
        return;
    }
    Axis *axes[] = {&resizer->across, &resizer->down};
    for (int i = 0; i < 2; i++) {
        free(axes[i]->weights);
        free(axes[i]->first);
        free(axes[i]->count);
        free(axes[i]->low);
        free(axes[i]->high);
    }
    free(resizer->rows);
    free(resizer->between);
    free(resizer->second);
    free(resizer->line);
    free(resizer);
}

bool find_filter(int resample, int style, Filter *filter) {
    *filter = (Filter){.bicubic = resample == BICUBIC, .wide = style != PILLOW_SIMD, .tall_first = style == PILLOW_13};
    return (resample == BILINEAR || resample == BICUBIC) && has_resize();
}

/* Whether `side` is that of a part of an image, and of a part of the resized image. */
static bool is_sound(const Side *side) {
    return is_side(side->source) && is_side(side->target) && is_side(side->length) && is_side(side->count) &&
           side->start >= 0 && side->first >= 0 && side->start <= side->source - side->length &&
           side->first <= side->target - side->count;
}

PyObject *resize_pixels(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image, *output;
    Py_buffer view, out = {0};
    int resample, style, mirrored, past_caches;
    Side across, down;
    Filter filter;
    if (!PyArg_ParseTuple(args, "O(iiii)(iiii)iippO:resize_pixels", &image, &across.source, &down.source, &across.start,
                          &down.start, &across.target, &down.target, &across.first, &down.first, &resample, &style,
                          &mirrored, &past_caches, &output)) {
        return NULL;
    }
    if (PyObject_GetBuffer(image, &view, PyBUF_STRIDED_RO) != 0) {
        return NULL;
    }
    if (PyObject_GetBuffer(output, &out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    Resized done = RESIZED;
    if (!has_dense_rows(&view) || view.shape[2] != 3 || out.ndim != 3 || out.itemsize != 1 ||
        out.shape[2] != 3 || !is_side(view.shape[0]) || !is_side(view.shape[1]) || !is_side(out.shape[0]) ||
        !is_side(out.shape[1]) || view.strides[0] < 3 * view.shape[1]) {
        set_error(INPUT_ERROR,
                        "the image or the output does not have dense rows of pixels with three bytes");
        goto end;
    }
    across.length = (int)view.shape[1], down.length = (int)view.shape[0];
    across.count = (int)out.shape[1], down.count = (int)out.shape[0];
    if (!is_sound(&across) || !is_sound(&down)) {
        set_error(INPUT_ERROR, "the image or the output is not part of one of these sizes");
    } else if (overlaps(&view, &out)) {
        set_error(INPUT_ERROR, "the image and the output overlap");
    } else if (!find_filter(resample, style, &filter)) {
        set_error(INPUT_ERROR, "this filter is not available on this processor");
    } else {
        size_t step = (size_t)view.strides[0];
        const unsigned char *in = view.buf, *end = in + step * (size_t)(view.shape[0] - 1) + 3 * view.shape[1];
        Py_BEGIN_ALLOW_THREADS
        Resizer *resizer = resizer_new();
        done = resizer ? resize(resizer, &filter, in, end, step, &across, &down, out.buf, mirrored, past_caches)
                       : NO_MEMORY;
        resizer_free(resizer);
        past_caches_done();
        Py_END_ALLOW_THREADS
        if (done == NO_MEMORY) {
            set_error(MEMORY_ERROR, NULL);
        } else if (done == LACKS_PIXELS) {
            set_error(INPUT_ERROR, "the output depends on more of the image than there is");
        }
    }
end:
    PyBuffer_Release(&view);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
