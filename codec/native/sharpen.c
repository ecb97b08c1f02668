/* What PIL.ImageEnhance.Sharpness does: blends an image with a smoothed one.

   A smoothed pixel is the mean of its neighbours, each with weight 1 of 13, and of itself, with weight 5. Pillow adds
   floats, pillow-simd has weights of 13 bits. The exact mean is never close to where rounding changes, so both give the
   mean rounded to the nearest integer. Pixels at the edges stay as they are. */

#include "functions.h"

#include "errors.h"
#include "image_pair.h"
#include "simd.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* One row without its first and last pixel. `sums` has room for a row. */
INLINE void sharpen_row(const unsigned char *row, size_t size, size_t channels, float factor, uint16_t *sums,
                        unsigned char *out) {
    const unsigned char *above = row - size, *below = row + size;
    for (size_t i = 0; i < size; i++) {
        sums[i] = (uint16_t)(above[i] + row[i] + below[i]);
    }
    for (size_t i = channels; i < size - channels; i++) {
        int sum = sums[i - channels] + sums[i] + sums[i + channels], center = row[i];
        /* 5042 / 65536 is close enough to 1 / 13 for these sums. */
        int smooth = ((sum + 4 * center + 6) * 5042) >> 16;
        float value = (float)smooth + factor * (float)(center - smooth);
        value = value > 0.0f ? value : 0.0f;
        value = value < 255.0f ? value : 255.0f;
        out[i] = (unsigned char)(int)value;
    }
}

typedef void Sharpen(const unsigned char *, size_t, size_t, float, uint16_t *, unsigned char *);

static void sharpen(const unsigned char *row, size_t size, size_t channels, float factor, uint16_t *sums,
                    unsigned char *out) {
    sharpen_row(row, size, channels, factor, sums, out);
}

#ifdef HAS_SIMD
AVX2 static void sharpen_avx2(const unsigned char *row, size_t size, size_t channels, float factor, uint16_t *sums,
                              unsigned char *out) {
    sharpen_row(row, size, channels, factor, sums, out);
}
#endif

static bool sharpen_all(const ImagePair *pair, float factor) {
    size_t height = (size_t)pair->in.shape[0], channels = (size_t)pair->in.shape[2];
    size_t size = (size_t)pair->in.shape[1] * channels;
    const unsigned char *in = pair->in.buf;
    unsigned char *out = pair->out.buf;
    if (height < 3 || size < 3 * channels) {
        memcpy(out, in, height * size);
        return true;
    }
    uint16_t *sums = malloc(size * sizeof *sums);
    if (!sums) {
        return false;
    }
    Sharpen *function = FASTEST_AVX2(sharpen);
    memcpy(out, in, size);
    for (size_t y = 1; y < height - 1; y++) {
        const unsigned char *row = in + y * size;
        unsigned char *to = out + y * size;
        function(row, size, channels, factor, sums, to);
        memcpy(to, row, channels);
        memcpy(to + size - channels, row + size - channels, channels);
    }
    memcpy(out + (height - 1) * size, in + (height - 1) * size, size);
    free(sums);
    return true;
}

PyObject *sharpness(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image, *target;
    ImagePair pair;
    float factor;
    if (!PyArg_ParseTuple(args, "OfO:sharpness", &image, &factor, &target) || !image_pair_open(&pair, image, target)) {
        return NULL;
    }
    if (image_pair_is_even(&pair)) {
        bool done;
        Py_BEGIN_ALLOW_THREADS
        done = sharpen_all(&pair, factor);
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
