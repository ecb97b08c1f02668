/* Pillow's affine and perspective transforms, with the nearest pixel.

   The arithmetic is that of Pillow's src/libImaging/Geometry.c, which has four ways: tables for maps that do not rotate,
   numbers with 16 bits after the binary point while coordinates stay below 32768, sums of doubles for other affine
   maps, and products of doubles for perspectives. Each rounds differently. */

#include "warp.h"

#include "functions.h"

#include "copy_pixels.h"
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

/* Pixels whose places are computed before they are copied. */
#define BLOCK 64

/* The pixels at `places`, in bytes from `in` on. `most` is the last place at which four bytes can be read. Up to the last
   of them, each pixel may be written with a byte more, which the next one overwrites. */
INLINE void copy_pixels_at(const unsigned char *in, const uint32_t *places, int count, int64_t most, unsigned char *out,
                           int channels) {
    for (int i = 0; i < count - 1; i++, out += channels) {
        if (channels == 3 && places[i] <= most) {
            memcpy(out, in + places[i], 4);
        } else {
            warp_copy(out, in + places[i], channels);
        }
    }
    if (count > 0) {
        warp_copy(out, in + places[count - 1], channels);
    }
}

static void copy_at(const Warp *warp, const unsigned char *in, const uint32_t *places, int count, unsigned char *out) {
    int64_t most = warp->in + warp_step(warp) * (size_t)warp->height - in - 4;
    if (warp->channels == 1) {
        copy_pixels_at(in, places, count, most, out, 1);
    } else if (warp->channels == 3) {
        copy_pixels_at(in, places, count, most, out, 3);
    } else {
        copy_pixels_at(in, places, count, most, out, 4);
    }
}

/* Coordinates with 16 bits after the binary point. */
typedef struct {
    int32_t x_at, y_at, x_step, y_step;
} Line;

/* Where `BLOCK` pixels of a row lie. Beyond those that are used, numbers may wrap. */
INLINE void find_places(const Warp *warp, const Line *line, int first, uint32_t *places) {
    uint32_t step = (uint32_t)warp_step(warp), channels = (uint32_t)warp->channels;
    uint32_t x_step = (uint32_t)line->x_step, across = (uint32_t)line->x_at + (uint32_t)first * x_step;
    uint32_t y_step = (uint32_t)line->y_step, down = (uint32_t)line->y_at + (uint32_t)first * y_step;
    for (uint32_t i = 0; i < BLOCK; i++) {
        places[i] = ((down + i * y_step) >> 16) * step + ((across + i * x_step) >> 16) * channels;
    }
}

/* Steps of whole pixels: along a row, or in a quarter turn along a column. */
static void copy_evenly(const Warp *warp, const Line *line, int first, int last, unsigned char *out) {
    int channels = warp->channels, count = last - first;
    int64_t column = (line->x_at + (int64_t)first * line->x_step) >> 16;
    int64_t row = (line->y_at + (int64_t)first * line->y_step) >> 16;
    ptrdiff_t step = (ptrdiff_t)warp_step(warp), stride = (line->y_step >> 16) * step + (line->x_step >> 16) * channels;
    const unsigned char *from = pixel_of(warp, (int)column, (int)row), *end = warp->in + step * warp->height;
    if (stride == channels) {
        memcpy(out, from, (size_t)count * (size_t)channels);
        return;
    }
    if (channels == 3) {
        /* A pixel may be written with a byte more, which the next one overwrites. */
        for (; count > 1 && end - from >= 4; count--, from += stride, out += 3) {
            memcpy(out, from, 4);
        }
    }
    if (channels == 1) {
        for (int i = 0; i < count; i++, from += stride) {
            out[i] = *from;
        }
        return;
    }
    for (; count > 0; count--, from += stride, out += channels) {
        warp_copy(out, from, channels);
    }
}

typedef void Places(const Warp *, const Line *, int, uint32_t *);

static void places_of(const Warp *warp, const Line *line, int first, uint32_t *places) {
    find_places(warp, line, first, places);
}

#ifdef HAS_SIMD
AVX2 static void places_of_avx2(const Warp *warp, const Line *line, int first, uint32_t *places) {
    find_places(warp, line, first, places);
}
#endif

/* Maps that do not rotate: every row takes the same columns. */
static bool scaled(const Warp *warp) {
    uint32_t *places = malloc((size_t)warp->out_width * sizeof *places), channels = (uint32_t)warp->channels;
    int first = warp->out_width, last = 0;
    if (!places) {
        return false;
    }
    double across = warp->a[2] + warp->a[0] * 0.5, down = warp->a[5] + warp->a[4] * 0.5;
    for (int x = 0; x < warp->out_width; x++, across += warp->a[0]) {
        int column = inside(across, warp->width);
        if (column >= 0) {
            places[x] = (uint32_t)column * channels;
            first = x < first ? x : first;
            last = x + 1;
        }
    }
    bool adjacent = true, mirrored = warp->channels < 4;
    for (int x = first + 1; x < last; x++) {
        adjacent &= places[x] == places[x - 1] + channels;
        mirrored &= places[x] + channels == places[x - 1];
    }
    for (int y = 0; y < warp->out_height; y++, down += warp->a[4]) {
        unsigned char *out = row_of(warp, y);
        int row = first < last ? inside(down, warp->height) : -1;
        if (row < 0) {
            fill_pixels(warp, out, 0, warp->out_width);
            continue;
        }
        const unsigned char *in = pixel_of(warp, 0, row);
        fill_pixels(warp, out, 0, first);
        if (adjacent) {
            memcpy(out + (size_t)first * channels, in + places[first], (size_t)(last - first) * channels);
        } else if (mirrored) {
            mirror_row(out + (size_t)first * channels, in + places[last - 1], (size_t)(last - first), channels);
        } else {
            copy_at(warp, in, places + first, last - first, out + (size_t)first * channels);
        }
        fill_pixels(warp, out, last, warp->out_width);
    }
    free(places);
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
static void copy_line(const Warp *warp, Places *function, const Line *line, int first, int last, unsigned char *out) {
    uint32_t places[BLOCK];
    if (first < last && ((line->x_step | line->y_step) & 0xffff) == 0) {
        copy_evenly(warp, line, first, last, out + (size_t)first * (size_t)warp->channels);
        return;
    }
    for (; first < last; first += BLOCK) {
        int count = last - first < BLOCK ? last - first : BLOCK;
        function(warp, line, first, places);
        copy_at(warp, warp->in, places, count, out + (size_t)first * (size_t)warp->channels);
    }
}

/* One pixel after the other, where numbers wrap. */
static void copy_wrapped(const Warp *warp, const Line *line, int first, int last, unsigned char *out) {
    uint32_t across = (uint32_t)line->x_at + (uint32_t)first * (uint32_t)line->x_step;
    uint32_t down = (uint32_t)line->y_at + (uint32_t)first * (uint32_t)line->y_step;
    for (int x = first; x < last; x++, across += (uint32_t)line->x_step, down += (uint32_t)line->y_step) {
        int32_t column = (int32_t)across >> 16, row = (int32_t)down >> 16;
        bool found = column >= 0 && column < warp->width && row >= 0 && row < warp->height;
        warp_copy(out + (size_t)x * (size_t)warp->channels, found ? pixel_of(warp, column, row) : warp->fill,
                  warp->channels);
    }
}

/* Affine maps with 16 bits after the binary point, for columns from `left` to `right` of the output. */
static void in_fixed_point(const Warp *warp, int left, int right) {
    const double *a = warp->a;
    uint32_t x_down = (uint32_t)fixed(a[1]), y_down = (uint32_t)fixed(a[4]);
    Line line = {fixed(a[2] + a[0] * 0.5 + a[1] * 0.5), fixed(a[5] + a[3] * 0.5 + a[4] * 0.5), fixed(a[0]), fixed(a[3])};
    bool fits = warp_step(warp) * (size_t)warp->height <= UINT32_MAX;
    Places *function = FASTEST_AVX2(places_of);
    for (int y = 0; y < warp->out_height; y++) {
        unsigned char *out = row_of(warp, y);
        if (fits && is_straight(line.x_at, line.x_step, right) && is_straight(line.y_at, line.y_step, right)) {
            int first = left, last = right;
            narrow(line.x_at, line.x_step, (int64_t)warp->width << 16, &first, &last);
            narrow(line.y_at, line.y_step, (int64_t)warp->height << 16, &first, &last);
            fill_pixels(warp, out, left, first);
            copy_line(warp, function, &line, first, last, out);
            fill_pixels(warp, out, last, right);
        } else {
            copy_wrapped(warp, &line, left, right, out);
        }
        line.x_at = (int32_t)((uint32_t)line.x_at + x_down);
        line.y_at = (int32_t)((uint32_t)line.y_at + y_down);
    }
}

/* Where a row of the output runs down many rows of the input, it is cut into strips, for the sake of the caches. */
#define STRIP 128

static void in_strips(const Warp *warp) {
    int strip = fabs(warp->a[3]) * warp->out_width > 2 * STRIP ? STRIP : warp->out_width;
    for (int left = 0; left < warp->out_width; left += strip) {
        in_fixed_point(warp, left, warp->out_width - left < strip ? warp->out_width : left + strip);
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
        if (!warp_turned(warp)) {
            in_strips(warp);
        }
    } else {
        in_sums(warp);
    }
    return true;
}

/* Reads six or eight numbers; false with a Python exception if there are others. */
static bool read_coefficients(PyObject *given, Warp *warp) {
    Py_ssize_t count = PyTuple_Size(given);
    if (count != 6 && count != 8) {
        return set_error(INPUT_ERROR, "an affine map has six coefficients, a perspective eight");
    }
    warp->perspective = count == 8;
    for (Py_ssize_t i = 0; i < count; i++) {
        warp->a[i] = PyFloat_AsDouble(PyTuple_GetItem(given, i));
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
