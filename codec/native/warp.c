/* Pillow's affine and perspective transforms, with the nearest pixel.

   The arithmetic is that of Pillow's src/libImaging/Geometry.c, which has four ways: tables for maps that do not rotate,
   numbers with 16 bits after the binary point while coordinates stay below 32768, sums of doubles for other affine
   maps, and products of doubles for perspectives. Each rounds differently. */

#include "warp.h"

#include "functions.h"

#include "errors.h"
#include "image_pair.h"
#include "simd.h"

#include <limits.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BILINEAR 2
#define BICUBIC 3

/* The whole part of a coordinate, or -1 if it is outside of the image or not a number. */
INLINE int inside(double at, int size) { return at >= 0.0 && at < size ? (int)at : -1; }

INLINE void fill_pixels(const Warp *warp, unsigned char *out, int first, int last, int channels) {
    for (int x = first; x < last; x++) {
        warp_copy(out + (size_t)x * channels, warp->fill, channels);
    }
}

INLINE unsigned char *row_of(const Warp *warp, int y, int channels) {
    return warp->out + (size_t)y * (size_t)warp->out_width * (size_t)channels;
}

/* Maps that do not rotate: every row takes the same columns. */
static bool scaled(const Warp *warp) {
    int *columns = malloc((size_t)warp->out_width * sizeof *columns), first = warp->out_width, last = 0;
    int channels = warp->channels;
    if (!columns) {
        return false;
    }
    double across = warp->a[2] + warp->a[0] * 0.5, down = warp->a[5] + warp->a[4] * 0.5;
    for (int x = 0; x < warp->out_width; x++, across += warp->a[0]) {
        columns[x] = inside(across, warp->width);
        if (columns[x] >= 0) {
            first = x < first ? x : first;
            last = x + 1;
        }
    }
    bool adjacent = true;
    for (int x = first + 1; x < last; x++) {
        adjacent &= columns[x] == columns[x - 1] + 1;
    }
    for (int y = 0; y < warp->out_height; y++, down += warp->a[4]) {
        unsigned char *out = row_of(warp, y, channels);
        int line = first < last ? inside(down, warp->height) : -1;
        if (line < 0) {
            fill_pixels(warp, out, 0, warp->out_width, channels);
            continue;
        }
        const unsigned char *in = warp->in + (size_t)line * warp_step(warp);
        fill_pixels(warp, out, 0, first, channels);
        if (adjacent) {
            memcpy(out + (size_t)first * channels, in + (size_t)columns[first] * channels,
                   (size_t)(last - first) * channels);
        } else {
            for (int x = first; x < last; x++) {
                warp_copy(out + (size_t)x * channels, in + (size_t)columns[x] * channels, channels);
            }
        }
        fill_pixels(warp, out, last, warp->out_width, channels);
    }
    free(columns);
    return true;
}

/* With 16 bits after the binary point; INT_MIN where that does not fit, as x86's processors have it. */
static int32_t fixed(double value) {
    value = floor(value * 65536.0 + 0.5);
    return value >= INT_MIN && value <= INT_MAX ? (int32_t)value : INT_MIN;
}

/* Whether a pixel's coordinates stay small enough for `fixed`. */
static bool is_near(const double *a, int x, int y) {
    return fabs(x * a[0] + y * a[1] + a[2]) < 32768.0 && fabs(x * a[3] + y * a[4] + a[5]) < 32768.0;
}

/* Narrows first..last to those x for which 0 <= start + x * step < limit. */
static void narrow(int64_t start, int64_t step, int64_t limit, int *first, int *last) {
    int64_t from = 0, to = *last;
    if (step == 0) {
        to = start >= 0 && start < limit ? to : 0;
    } else {
        /* A falling line is a rising one seen from the other end of the interval. */
        int64_t rise = step > 0 ? step : -step, origin = step > 0 ? start : limit - 1 - start;
        from = origin < 0 ? (-origin + rise - 1) / rise : 0;
        to = origin < limit ? (limit - origin + rise - 1) / rise : 0;
    }
    *first = from > *first ? (from < *last ? (int)from : *last) : *first;
    *last = to < *last ? (int)to : *last;
    *last = *last < *first ? *first : *last;
}

/* Whether start + x * step fits into 32 bits for all x. */
static bool is_straight(int64_t start, int64_t step, int width) {
    int64_t end = start + step * (width - 1);
    return end >= INT32_MIN && end <= INT32_MAX;
}

/* The pixels from `first` to `last` of a row, all of which lie inside the image. */
INLINE void along(const Warp *warp, unsigned char *out, int first, int last, int32_t x_at, int32_t y_at, int32_t x_step,
                  int32_t y_step, int channels) {
    size_t step = warp_step(warp);
    int64_t across = x_at + (int64_t)first * x_step, down = y_at + (int64_t)first * y_step;
    for (int x = first; x < last; x++, across += x_step, down += y_step) {
        warp_copy(out + (size_t)x * channels,
                  warp->in + (size_t)(down >> 16) * step + (size_t)(across >> 16) * channels, channels);
    }
}

static void along_1(const Warp *warp, unsigned char *out, int first, int last, int32_t x_at, int32_t y_at,
                    int32_t x_step, int32_t y_step) {
    along(warp, out, first, last, x_at, y_at, x_step, y_step, 1);
}

static void along_3(const Warp *warp, unsigned char *out, int first, int last, int32_t x_at, int32_t y_at,
                    int32_t x_step, int32_t y_step) {
    along(warp, out, first, last, x_at, y_at, x_step, y_step, 3);
}

static void along_4(const Warp *warp, unsigned char *out, int first, int last, int32_t x_at, int32_t y_at,
                    int32_t x_step, int32_t y_step) {
    along(warp, out, first, last, x_at, y_at, x_step, y_step, 4);
}

typedef void Along(const Warp *, unsigned char *, int, int, int32_t, int32_t, int32_t, int32_t);

#ifdef HAS_X86_SIMD
/* Eight pixels at once. Four bytes are read of each, but for the last pixel of the image from the byte before it. Up to
   four bytes are written beyond the eight pixels, which later pixels of the row overwrite. */
AVX2 static void along_3_avx2(const Warp *warp, unsigned char *out, int first, int last, int32_t x_at, int32_t y_at,
                              int32_t x_step, int32_t y_step) {
    const __m256i order = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, /* four pixels */
                                           0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    size_t step = warp_step(warp), size = step * (size_t)warp->height;
    int x = first, end = last < warp->out_width - 2 ? last : warp->out_width - 2;
    if (size >= 4 && size <= INT_MAX && end - first >= 8) {
        /* Beyond `last` the sums may wrap, but they are not used there. */
        uint32_t x_first = (uint32_t)x_at + (uint32_t)x_step * (uint32_t)first;
        uint32_t y_first = (uint32_t)y_at + (uint32_t)y_step * (uint32_t)first;
        __m256i across = _mm256_add_epi32(_mm256_set1_epi32((int)x_first),
                                          _mm256_mullo_epi32(numbers, _mm256_set1_epi32(x_step)));
        __m256i down = _mm256_add_epi32(_mm256_set1_epi32((int)y_first),
                                        _mm256_mullo_epi32(numbers, _mm256_set1_epi32(y_step)));
        __m256i x_steps = _mm256_set1_epi32((int)((uint32_t)x_step * 8));
        __m256i y_steps = _mm256_set1_epi32((int)((uint32_t)y_step * 8));
        const __m256i most = _mm256_set1_epi32((int)size - 4), line = _mm256_set1_epi32((int)step);
        for (; x + 8 <= end; x += 8) {
            __m256i column = _mm256_srai_epi32(across, 16), row = _mm256_srai_epi32(down, 16);
            __m256i at = _mm256_add_epi32(_mm256_mullo_epi32(row, line),
                                          _mm256_add_epi32(column, _mm256_add_epi32(column, column)));
            __m256i beyond = _mm256_cmpgt_epi32(at, most);
            __m256i pixels = _mm256_i32gather_epi32((const int *)warp->in, _mm256_add_epi32(at, beyond), 1);
            pixels = _mm256_srlv_epi32(pixels, _mm256_and_si256(beyond, _mm256_set1_epi32(8)));
            pixels = _mm256_shuffle_epi8(pixels, order);
            unsigned char *to = out + 3 * (size_t)x;
            _mm_storeu_si128((__m128i *)to, _mm256_castsi256_si128(pixels));
            _mm_storeu_si128((__m128i *)(to + 12), _mm256_extracti128_si256(pixels, 1));
            across = _mm256_add_epi32(across, x_steps);
            down = _mm256_add_epi32(down, y_steps);
        }
    }
    along_3(warp, out, x, last, x_at, y_at, x_step, y_step);
}
#endif

static Along *along_for(int channels) {
    return channels == 1 ? along_1 : channels == 3 ? WITH_AVX2(along_3) : along_4;
}

/* Affine maps with 16 bits after the binary point. */
static void in_fixed_point(const Warp *warp) {
    const double *a = warp->a;
    int32_t x_step = fixed(a[0]), y_step = fixed(a[3]);
    uint32_t x_down = (uint32_t)fixed(a[1]), y_down = (uint32_t)fixed(a[4]);
    uint32_t x_at = (uint32_t)fixed(a[2] + a[0] * 0.5 + a[1] * 0.5);
    uint32_t y_at = (uint32_t)fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
    int width = warp->out_width, channels = warp->channels;
    Along *row = along_for(channels);
    for (int y = 0; y < warp->out_height; y++, x_at += x_down, y_at += y_down) {
        unsigned char *out = row_of(warp, y, channels);
        if (is_straight((int32_t)x_at, x_step, width) && is_straight((int32_t)y_at, y_step, width)) {
            int first = 0, last = width;
            narrow((int32_t)x_at, x_step, (int64_t)warp->width << 16, &first, &last);
            narrow((int32_t)y_at, y_step, (int64_t)warp->height << 16, &first, &last);
            fill_pixels(warp, out, 0, first, channels);
            row(warp, out, first, last, (int32_t)x_at, (int32_t)y_at, x_step, y_step);
            fill_pixels(warp, out, last, width, channels);
            continue;
        }
        uint32_t across = x_at, down = y_at;
        for (int x = 0; x < width; x++, across += (uint32_t)x_step, down += (uint32_t)y_step, out += channels) {
            int32_t column = (int32_t)across >> 16, line = (int32_t)down >> 16;
            bool found = column >= 0 && column < warp->width && line >= 0 && line < warp->height;
            warp_copy(out, found ? warp->in + (size_t)line * warp_step(warp) + (size_t)column * channels : warp->fill,
                      channels);
        }
    }
}

INLINE void one(const Warp *warp, unsigned char *out, double x, double y) {
    int column = inside(x, warp->width), line = inside(y, warp->height), channels = warp->channels;
    bool found = column >= 0 && line >= 0;
    warp_copy(out, found ? warp->in + (size_t)line * warp_step(warp) + (size_t)column * channels : warp->fill, channels);
}

/* Affine maps that lead far outside the image. */
static void in_sums(const Warp *warp) {
    const double *a = warp->a;
    double x_at = a[2] + a[1] * 0.5 + a[0] * 0.5, y_at = a[5] + a[4] * 0.5 + a[3] * 0.5;
    unsigned char *out = warp->out;
    for (int y = 0; y < warp->out_height; y++, x_at += a[1], y_at += a[4]) {
        double across = x_at, down = y_at;
        for (int x = 0; x < warp->out_width; x++, across += a[0], down += a[3], out += warp->channels) {
            one(warp, out, across, down);
        }
    }
}

static void in_perspective(const Warp *warp) {
    unsigned char *out = warp->out;
    for (int y = 0; y < warp->out_height; y++) {
        for (int x = 0; x < warp->out_width; x++, out += warp->channels) {
            double across, down;
            warp_place(warp, true, x, y, &across, &down);
            one(warp, out, across, down);
        }
    }
}

static bool warp_nearest(const Warp *warp) {
    const double *a = warp->a;
    int width = warp->out_width, height = warp->out_height;
    if (warp->perspective) {
        in_perspective(warp);
    } else if (a[1] == 0 && a[3] == 0) {
        return scaled(warp);
    } else if (is_near(a, 0, 0) && is_near(a, width, height) && is_near(a, 0, height) && is_near(a, width, 0)) {
        in_fixed_point(warp);
    } else {
        in_sums(warp);
    }
    return true;
}

/* Reads six or eight numbers; false with a Python exception if there are others. */
static bool read_coefficients(PyObject *given, Warp *warp) {
    Py_ssize_t count = PyTuple_GET_SIZE(given);
    if (count != 6 && count != 8) {
        return set_error(INPUT_ERROR, "an affine map has six coefficients, a perspective eight");
    }
    warp->perspective = count == 8;
    for (Py_ssize_t i = 0; i < count; i++) {
        warp->a[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(given, i));
        if (warp->a[i] == -1.0 && PyErr_Occurred()) {
            return false;
        }
    }
    return true;
}

PyObject *warp(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image, *coefficients, *target;
    Py_buffer fill;
    ImagePair pair;
    int resample;
    Warp warp;
    if (!PyArg_ParseTuple(args, "OO!iy*O:warp", &image, &PyTuple_Type, &coefficients, &resample, &fill, &target)) {
        return NULL;
    }
    if (!read_coefficients(coefficients, &warp) || !image_pair_open(&pair, image, target)) {
        PyBuffer_Release(&fill);
        return NULL;
    }
    warp.channels = (int)pair.in.shape[2];
    if (fill.len != warp.channels) {
        set_error(INPUT_ERROR, "the fill does not have one byte for each channel");
    } else if (resample != 0 && (warp.channels == 4 || (resample != BILINEAR && resample != BICUBIC))) {
        set_error(INPUT_ERROR, "this filter is not available, or not for four channels");
    } else {
        warp.in = pair.in.buf;
        warp.out = pair.out.buf;
        warp.width = (int)pair.in.shape[1];
        warp.height = (int)pair.in.shape[0];
        warp.out_width = (int)pair.out.shape[1];
        warp.out_height = (int)pair.out.shape[0];
        memcpy(warp.fill, fill.buf, (size_t)fill.len);
        bool done = true;
        Py_BEGIN_ALLOW_THREADS
        if (resample == BILINEAR) {
            warp_bilinear(&warp);
        } else if (resample == BICUBIC) {
            warp_bicubic(&warp);
        } else {
            done = warp_nearest(&warp);
        }
        Py_END_ALLOW_THREADS
        if (!done) {
            set_error(MEMORY_ERROR, NULL);
        }
    }
    PyBuffer_Release(&fill);
    image_pair_close(&pair);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
