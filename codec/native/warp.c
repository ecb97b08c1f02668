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

INLINE const unsigned char *pixel_of(const Warp *warp, int column, int line) {
    return warp->in + (size_t)line * warp_step(warp) + (size_t)column * (size_t)warp->channels;
}

INLINE unsigned char *row_of(const Warp *warp, int y) {
    return warp->out + (size_t)y * (size_t)warp->out_width * (size_t)warp->channels;
}

static void fill_pixels(const Warp *warp, unsigned char *row, int first, int last) {
    size_t channels = (size_t)warp->channels;
    for (unsigned char *out = row + (size_t)first * channels; first < last; first++, out += channels) {
        warp_copy(out, warp->fill, warp->channels);
    }
}

/* Where the pixels of a row lie: columns[x], or x_at + x * x_step and y_at + x * y_step with 16 bits after the binary
   point. */
typedef struct {
    const int *columns;
    int32_t x_at, y_at, x_step, y_step;
} Line;

/* The pixels from `first` to `last` of a row, all of which lie inside the image that begins at `in`. */
INLINE void pixels(const Warp *warp, const unsigned char *in, Line line, int first, int last, unsigned char *out,
                   int channels) {
    size_t step = warp_step(warp);
    if (line.columns) {
        for (int x = first; x < last; x++) {
            warp_copy(out + (size_t)x * channels, in + (size_t)line.columns[x] * channels, channels);
        }
        return;
    }
    int64_t across = line.x_at + (int64_t)first * line.x_step, down = line.y_at + (int64_t)first * line.y_step;
    for (int x = first; x < last; x++, across += line.x_step, down += line.y_step) {
        warp_copy(out + (size_t)x * channels, in + (size_t)(down >> 16) * step + (size_t)(across >> 16) * channels, channels);
    }
}

typedef void Pixels(const Warp *, const unsigned char *, Line, int, int, unsigned char *);

static void line_of_pixels(const Warp *warp, const unsigned char *in, Line line, int first, int last,
                           unsigned char *out) {
    if (warp->channels == 1) {
        pixels(warp, in, line, first, last, out, 1);
    } else if (warp->channels == 3) {
        pixels(warp, in, line, first, last, out, 3);
    } else {
        pixels(warp, in, line, first, last, out, 4);
    }
}

#ifdef HAS_X86_SIMD
/* Eight pixels. Four bytes are read of each, at the end of the image from some bytes before it. Up to four bytes are
   written beyond the eight pixels. */
AVX2 INLINE void eight_pixels(const unsigned char *in, __m256i at, __m256i most, unsigned char *out, int channels) {
    const __m256i rgb = _mm256_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1, /* four pixels */
                                         0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    const __m256i grey = _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, /* likewise */
                                          0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i beyond = _mm256_max_epi32(_mm256_sub_epi32(at, most), _mm256_setzero_si256());
    __m256i four = _mm256_i32gather_epi32((const int *)in, _mm256_sub_epi32(at, beyond), 1);
    four = _mm256_srlv_epi32(four, _mm256_slli_epi32(beyond, 3));
    if (channels == 4) {
        _mm256_storeu_si256((__m256i *)out, four);
        return;
    }
    four = _mm256_shuffle_epi8(four, channels == 1 ? grey : rgb);
    __m128i left = _mm256_castsi256_si128(four), right = _mm256_extracti128_si256(four, 1);
    if (channels == 1) {
        _mm_storel_epi64((__m128i *)out, _mm_unpacklo_epi32(left, right));
    } else {
        _mm_storeu_si128((__m128i *)out, left);
        _mm_storeu_si128((__m128i *)(out + 12), right);
    }
}

/* The numbers of eight pixels. They may wrap beyond the last pixel of a row, where they are not used. */
AVX2 INLINE __m256i from_pixel(int32_t at, int32_t step, int first) {
    const __m256i numbers = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    uint32_t start = (uint32_t)at + (uint32_t)step * (uint32_t)first;
    return _mm256_add_epi32(_mm256_set1_epi32((int)start), _mm256_mullo_epi32(numbers, _mm256_set1_epi32(step)));
}

AVX2 INLINE __m256i times(__m256i numbers, int channels) {
    return channels == 1   ? numbers
           : channels == 3 ? _mm256_add_epi32(numbers, _mm256_add_epi32(numbers, numbers))
                           : _mm256_slli_epi32(numbers, 2);
}

/* `last` is at most two pixels before the end of the row, which later pixels overwrite. */
AVX2 INLINE int pixels_avx2(const Warp *warp, const unsigned char *in, Line line, int x, int last, unsigned char *out,
                            int channels) {
    ptrdiff_t size = warp->in + warp_step(warp) * (size_t)warp->height - in;
    if (size < 4 || size > INT_MAX) {
        return x;
    }
    __m256i most = _mm256_set1_epi32((int)size - 4), step = _mm256_set1_epi32((int)warp_step(warp));
    if (line.columns) {
        for (; x + 8 <= last; x += 8) {
            __m256i columns = _mm256_loadu_si256((const __m256i *)(line.columns + x));
            eight_pixels(in, times(columns, channels), most, out + (size_t)x * channels, channels);
        }
        return x;
    }
    __m256i across = from_pixel(line.x_at, line.x_step, x), down = from_pixel(line.y_at, line.y_step, x);
    __m256i x_steps = _mm256_set1_epi32((int)((uint32_t)line.x_step * 8));
    __m256i y_steps = _mm256_set1_epi32((int)((uint32_t)line.y_step * 8));
    for (; x + 8 <= last; x += 8) {
        __m256i columns = _mm256_srai_epi32(across, 16), rows = _mm256_srai_epi32(down, 16);
        __m256i at = _mm256_add_epi32(_mm256_mullo_epi32(rows, step), times(columns, channels));
        eight_pixels(in, at, most, out + (size_t)x * channels, channels);
        across = _mm256_add_epi32(across, x_steps);
        down = _mm256_add_epi32(down, y_steps);
    }
    return x;
}

AVX2 static void line_of_pixels_avx2(const Warp *warp, const unsigned char *in, Line line, int first, int last,
                                     unsigned char *out) {
    int end = last < warp->out_width - 2 ? last : warp->out_width - 2;
    if (warp->channels == 1) {
        first = pixels_avx2(warp, in, line, first, end, out, 1);
    } else if (warp->channels == 3) {
        first = pixels_avx2(warp, in, line, first, end, out, 3);
    } else {
        first = pixels_avx2(warp, in, line, first, end, out, 4);
    }
    line_of_pixels(warp, in, line, first, last, out);
}
#endif

/* One row of the output, from `first` to `last` of the input. */
static void write_row(const Warp *warp, Pixels *function, const unsigned char *in, Line line, int first, int last,
                      unsigned char *out) {
    fill_pixels(warp, out, 0, first);
    function(warp, in, line, first, last, out);
    fill_pixels(warp, out, last, warp->out_width);
}

/* Maps that do not rotate: every row takes the same columns. */
static bool scaled(const Warp *warp) {
    int *columns = malloc((size_t)warp->out_width * sizeof *columns), first = warp->out_width, last = 0;
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
    Pixels *function = WITH_AVX2(line_of_pixels);
    for (int y = 0; y < warp->out_height; y++, down += warp->a[4]) {
        unsigned char *out = row_of(warp, y);
        int line = first < last ? inside(down, warp->height) : -1;
        if (line < 0) {
            fill_pixels(warp, out, 0, warp->out_width);
            continue;
        }
        if (adjacent) {
            size_t channels = (size_t)warp->channels;
            fill_pixels(warp, out, 0, first);
            memcpy(out + (size_t)first * channels, pixel_of(warp, columns[first], line),
                   (size_t)(last - first) * channels);
            fill_pixels(warp, out, last, warp->out_width);
        } else {
            write_row(warp, function, pixel_of(warp, 0, line), (Line){.columns = columns}, first, last, out);
        }
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

/* Affine maps with 16 bits after the binary point. */
static void in_fixed_point(const Warp *warp) {
    const double *a = warp->a;
    int32_t x_step = fixed(a[0]), y_step = fixed(a[3]);
    uint32_t x_down = (uint32_t)fixed(a[1]), y_down = (uint32_t)fixed(a[4]);
    uint32_t x_at = (uint32_t)fixed(a[2] + a[0] * 0.5 + a[1] * 0.5);
    uint32_t y_at = (uint32_t)fixed(a[5] + a[3] * 0.5 + a[4] * 0.5);
    int width = warp->out_width;
    Pixels *function = WITH_AVX2(line_of_pixels);
    for (int y = 0; y < warp->out_height; y++, x_at += x_down, y_at += y_down) {
        unsigned char *out = row_of(warp, y);
        Line line = {NULL, (int32_t)x_at, (int32_t)y_at, x_step, y_step};
        if (is_straight(line.x_at, x_step, width) && is_straight(line.y_at, y_step, width)) {
            int first = 0, last = width;
            narrow(line.x_at, x_step, (int64_t)warp->width << 16, &first, &last);
            narrow(line.y_at, y_step, (int64_t)warp->height << 16, &first, &last);
            write_row(warp, function, warp->in, line, first, last, out);
            continue;
        }
        uint32_t across = x_at, down = y_at;
        for (int x = 0; x < width; x++, across += (uint32_t)x_step, down += (uint32_t)y_step, out += warp->channels) {
            int32_t column = (int32_t)across >> 16, row = (int32_t)down >> 16;
            bool found = column >= 0 && column < warp->width && row >= 0 && row < warp->height;
            warp_copy(out, found ? pixel_of(warp, column, row) : warp->fill, warp->channels);
        }
    }
}

/* Affine maps that lead far outside the image. */
static void in_sums(const Warp *warp) {
    const double *a = warp->a;
    double x_at = a[2] + a[1] * 0.5 + a[0] * 0.5, y_at = a[5] + a[4] * 0.5 + a[3] * 0.5;
    unsigned char *out = warp->out;
    for (int y = 0; y < warp->out_height; y++, x_at += a[1], y_at += a[4]) {
        double across = x_at, down = y_at;
        for (int x = 0; x < warp->out_width; x++, across += a[0], down += a[3], out += warp->channels) {
            int column = inside(across, warp->width), line = inside(down, warp->height);
            warp_copy(out, column >= 0 && line >= 0 ? pixel_of(warp, column, line) : warp->fill, warp->channels);
        }
    }
}

static bool warp_nearest(const Warp *warp) {
    const double *a = warp->a;
    int width = warp->out_width, height = warp->out_height;
    if (warp->perspective) {
        warp_interpolated(warp, 1);
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
            warp_interpolated(&warp, 2);
        } else if (resample == BICUBIC) {
            warp_interpolated(&warp, 4);
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
