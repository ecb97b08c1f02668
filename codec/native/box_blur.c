/* Pillow's ImageFilter.GaussianBlur: three box filters along each row, then three down.

   The arithmetic is that of Pillow's src/libImaging/BoxBlur.c, in unsigned integers of 32 bits, which may wrap. */

#include "functions.h"

#include "errors.h"
#include "image_pair.h"
#include "simd.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PASSES 3
/* Up to this radius a row's sums are made anew for each pixel, as registers can do. */
#define SMALL 16

/* A filter takes `radius` pixels on either side with weight `inner`, and the two next to these with weight `outer`. */
typedef struct {
    int radius;
    uint32_t inner, outer;
} Box;

/* The box whose passes are like a Gaussian; false if it is too large. Floats and doubles are mixed as in Pillow. */
static bool find_box(float sigma, Box *box) {
    float variance = sigma * sigma / PASSES;
    float length = (float)sqrt(12.0 * variance + 1.0);
    float whole = (float)floor((length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    float radius = whole + part;
    if (!(radius >= 0.0f && radius < 1e9f)) {
        return false;
    }
    box->radius = (int)radius;
    box->inner = (uint32_t)((float)(uint32_t)(1 << 24) / (radius * 2 + 1));
    box->outer = ((1u << 24) - (uint32_t)(box->radius * 2 + 1) * box->inner) / 2;
    return true;
}

INLINE unsigned char weighted(const Box *box, uint32_t inner, uint32_t outer) {
    return (unsigned char)((inner * box->inner + outer * box->outer + (1u << 23)) >> 24);
}

/* A row with a small radius. `in` goes on beyond both ends. */
INLINE void small_pass(const Box *box, const unsigned char *in, size_t size, size_t channels, uint16_t *sums,
                       unsigned char *out) {
    size_t reach = (size_t)box->radius * channels, beyond = reach + channels;
    for (size_t i = 0; i < size; i++) {
        sums[i] = in[i];
    }
    for (size_t shift = channels; shift <= reach; shift += channels) {
        const unsigned char *left = in - shift, *right = in + shift;
        for (size_t i = 0; i < size; i++) {
            sums[i] = (uint16_t)(sums[i] + left[i] + right[i]);
        }
    }
    const unsigned char *left = in - beyond, *right = in + beyond;
    for (size_t i = 0; i < size; i++) {
        out[i] = weighted(box, sums[i], (uint32_t)left[i] + right[i]);
    }
}

/* One line of `count` pixels for each of `size` columns: a sum that moves along, and what is `far` at either end of
   it. */
INLINE void moved(const Box *box, uint32_t *sums, const unsigned char *leaves, const unsigned char *comes,
                  const unsigned char *next, size_t size, unsigned char *out) {
    for (size_t i = 0; i < size; i++) {
        uint32_t sum = sums[i] + comes[i] - leaves[i];
        sums[i] = sum;
        out[i] = weighted(box, sum, (uint32_t)leaves[i] + next[i]);
    }
}

/* A pass over `count` lines of `size` bytes, from one to the next. */
INLINE void pass(const Box *box, const unsigned char *in, size_t count, size_t size, uint32_t *sums,
                 unsigned char *out) {
    int64_t last = (int64_t)count - 1, radius = box->radius, edge = radius < last ? radius : last;
    for (size_t i = 0; i < size; i++) {
        uint32_t sum = in[i] * (uint32_t)(radius + 1);
        sums[i] = sum + in[(size_t)last * size + i] * (uint32_t)(radius - edge);
    }
    for (int64_t y = 0; y < edge; y++) {
        const unsigned char *line = in + (size_t)y * size;
        for (size_t i = 0; i < size; i++) {
            sums[i] += line[i];
        }
    }
    for (int64_t y = 0; y <= last; y++) {
        int64_t leaves = y - radius - 1, comes = y + radius, next = comes + 1;
        moved(box, sums, in + (size_t)(leaves > 0 ? leaves : 0) * size, in + (size_t)(comes < last ? comes : last) * size,
              in + (size_t)(next < last ? next : last) * size, size, out + (size_t)y * size);
    }
}

/* The passes along a row. `lines` are two lines with room for `margin` bytes beyond both ends. */
INLINE void along(const Box *box, const unsigned char *in, size_t size, size_t channels, size_t margin,
                  unsigned char *const *lines, uint16_t *sums, unsigned char *out) {
    memcpy(lines[0] + margin, in, size);
    for (int number = 0; number < PASSES; number++) {
        unsigned char *line = lines[number % 2] + margin;
        for (size_t at = channels; at <= margin; at += channels) {
            memcpy(line - at, line, channels);
            memcpy(line + size + at - channels, line + size - channels, channels);
        }
        small_pass(box, line, size, channels, sums, number == PASSES - 1 ? out : lines[1 - number % 2] + margin);
    }
}

typedef void Along(const Box *, const unsigned char *, size_t, size_t, size_t, unsigned char *const *, uint16_t *,
                   unsigned char *);
typedef void Pass(const Box *, const unsigned char *, size_t, size_t, uint32_t *, unsigned char *);

static void along_row(const Box *box, const unsigned char *in, size_t size, size_t channels, size_t margin,
                      unsigned char *const *lines, uint16_t *sums, unsigned char *out) {
    along(box, in, size, channels, margin, lines, sums, out);
}

static void pass_down(const Box *box, const unsigned char *in, size_t count, size_t size, uint32_t *sums,
                      unsigned char *out) {
    pass(box, in, count, size, sums, out);
}

/* A row with any radius. */
static void large_row(const Box *box, const unsigned char *in, size_t width, size_t channels,
                      unsigned char *const *lines, unsigned char *out) {
    uint32_t sums[3];
    if (channels == 1) {
        pass(box, in, width, 1, sums, lines[0]);
        pass(box, lines[0], width, 1, sums, lines[1]);
        pass(box, lines[1], width, 1, sums, out);
    } else {
        pass(box, in, width, 3, sums, lines[0]);
        pass(box, lines[0], width, 3, sums, lines[1]);
        pass(box, lines[1], width, 3, sums, out);
    }
}

#ifdef HAS_X86_SIMD
AVX2 static void along_row_avx2(const Box *box, const unsigned char *in, size_t size, size_t channels, size_t margin,
                                unsigned char *const *lines, uint16_t *sums, unsigned char *out) {
    along(box, in, size, channels, margin, lines, sums, out);
}

AVX2 static void pass_down_avx2(const Box *box, const unsigned char *in, size_t count, size_t size, uint32_t *sums,
                                unsigned char *out) {
    pass(box, in, count, size, sums, out);
}
#endif

static bool blur_all(const ImagePair *pair, const Box *box) {
    size_t height = (size_t)pair->in.shape[0], width = (size_t)pair->in.shape[1];
    size_t channels = (size_t)pair->in.shape[2], size = width * channels;
    bool is_small = box->radius <= SMALL;
    size_t margin = is_small ? ((size_t)box->radius + 1) * channels : 0;
    const unsigned char *in = pair->in.buf;
    unsigned char *out = pair->out.buf, *between = malloc(height * size), *room = malloc(2 * (size + 2 * margin));
    uint32_t *sums = malloc(size * sizeof *sums);
    bool done = between && room && sums;
    if (done) {
        unsigned char *const lines[2] = {room, room + size + 2 * margin};
        Along *along_function = FASTEST_AVX2(along_row);
        Pass *pass_function = FASTEST_AVX2(pass_down);
        for (size_t y = 0; y < height; y++) {
            if (is_small) {
                along_function(box, in + y * size, size, channels, margin, lines, (uint16_t *)sums, between + y * size);
            } else {
                large_row(box, in + y * size, width, channels, lines, between + y * size);
            }
        }
        pass_function(box, between, height, size, sums, out);
        pass_function(box, out, height, size, sums, between);
        pass_function(box, between, height, size, sums, out);
    }
    free(between);
    free(room);
    free(sums);
    return done;
}

PyObject *box_blur(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image, *target;
    ImagePair pair;
    Box box;
    float sigma;
    if (!PyArg_ParseTuple(args, "OfO:box_blur", &image, &sigma, &target) || !image_pair_open(&pair, image, target)) {
        return NULL;
    }
    if (!find_box(sigma, &box)) {
        set_error(INPUT_ERROR, "the radius is no number, or too large");
    } else if (image_pair_is_even(&pair)) {
        bool done;
        Py_BEGIN_ALLOW_THREADS
        done = blur_all(&pair, &box);
        Py_END_ALLOW_THREADS
        if (!done) {
            set_error(MEMORY_ERROR, NULL);
        }
    }
    image_pair_close(&pair);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
