/* Weighted means and blends of images, in single precision: each operation rounds by itself, as in numpy and Pillow. So
   this file must not be compiled with contraction of floating point operations (-ffp-contract=off). */

#include "functions.h"

#include "arguments.h"
#include "errors.h"
#include "image_pair.h"
#include "simd.h"

/* Bytes whose sums are kept in registers. */
#define BLOCK 32

INLINE unsigned char whole(float value) {
    value = value > 0.0f ? value : 0.0f;
    value = value < 255.0f ? value : 255.0f;
    return (unsigned char)(int)value;
}

/* `count` images of `size` bytes, one after the other. */
INLINE void add_up(const unsigned char *in, size_t size, size_t first, size_t last, const float *weights, size_t count,
                   unsigned char *out) {
    float sums[BLOCK] = {0};
    for (size_t number = 0; number < count; number++) {
        const unsigned char *image = in + number * size + first;
        for (size_t i = 0; i < last - first; i++) {
            sums[i] += weights[number] * (float)image[i];
        }
    }
    for (size_t i = 0; i < last - first; i++) {
        out[first + i] = whole(sums[i]);
    }
}

INLINE void mean_of(const unsigned char *in, size_t size, const float *weights, size_t count, unsigned char *out) {
    size_t at = 0;
    for (; at + BLOCK <= size; at += BLOCK) {
        add_up(in, size, at, at + BLOCK, weights, count, out);
    }
    add_up(in, size, at, size, weights, count, out);
}

INLINE void blend_bytes(unsigned char *bytes, const unsigned char *other, size_t size, float share) {
    for (size_t i = 0; i < size; i++) {
        bytes[i] = whole((float)bytes[i] + share * (float)(other[i] - bytes[i]));
    }
}

static void mean(const unsigned char *in, size_t size, const float *weights, size_t count, unsigned char *out) {
    mean_of(in, size, weights, count, out);
}

static void blend(unsigned char *bytes, const unsigned char *other, size_t size, float share) {
    blend_bytes(bytes, other, size, share);
}

#ifdef HAS_SIMD
AVX2 static void mean_avx2(const unsigned char *in, size_t size, const float *weights, size_t count,
                           unsigned char *out) {
    mean_of(in, size, weights, count, out);
}

AVX2 static void blend_avx2(unsigned char *bytes, const unsigned char *other, size_t size, float share) {
    blend_bytes(bytes, other, size, share);
}
#endif

typedef void Mean(const unsigned char *, size_t, const float *, size_t, unsigned char *);
typedef void Blend(unsigned char *, const unsigned char *, size_t, float);

PyObject *mean_of_images(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer images, weights, out;
    if (!PyArg_ParseTuple(args, "y*y*O&:mean_of_images", &images, &weights, take_output, &out)) {
        return NULL;
    }
    Py_ssize_t count = weights.len / (Py_ssize_t)sizeof(float);
    if (weights.len % (Py_ssize_t)sizeof(float) || (uintptr_t)weights.buf % sizeof(float)) {
        set_error(INPUT_ERROR, "the weights are not float32");
    } else if (out.len < 1 || images.len % out.len || images.len / out.len != count) {
        set_error(INPUT_ERROR, "there are more or fewer images than weights, or the output has another size");
    } else if (meets(images.buf, images.len, &out) || meets(weights.buf, weights.len, &out)) {
        set_error(INPUT_ERROR, "the images or the weights and the output overlap");
    } else {
        Mean *function = FASTEST_AVX2(mean);
        Py_BEGIN_ALLOW_THREADS
        function(images.buf, (size_t)out.len, weights.buf, (size_t)count, out.buf);
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&images);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *blend_images(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array, *other;
    float share;
    ImagePair pair;
    if (!PyArg_ParseTuple(args, "OOf:blend_images", &array, &other, &share) || !image_pair_open(&pair, other, array)) {
        return NULL;
    }
    if (image_pair_is_even(&pair)) {
        Blend *function = FASTEST_AVX2(blend);
        Py_BEGIN_ALLOW_THREADS
        function(pair.out.buf, pair.in.buf, (size_t)pair.out.len, share);
        Py_END_ALLOW_THREADS
    }
    image_pair_close(&pair);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
