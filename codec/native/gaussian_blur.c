/* A convolution with a kernel that is symmetric and separable, over an image mirrored at its edges.

   Floats are added in a fixed order, from the center of the kernel outwards, so that all processors give the same
   pixels. */

#include "functions.h"

#include "arguments.h"
#include "errors.h"
#include "image_pair.h"
#include "simd.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* Values that are computed at once. */
#define LANES 8
#define BLOCK (4 * LANES)

#ifdef __GNUC__
#pragma GCC diagnostic ignored "-Wpsabi" /* All functions that return such vectors are inlined. */
#endif

typedef float Floats __attribute__((vector_size(LANES * sizeof(float))));
typedef int32_t Ints __attribute__((vector_size(LANES * sizeof(int32_t))));
typedef int16_t Shorts __attribute__((vector_size(LANES * sizeof(int16_t))));
typedef unsigned char Bytes __attribute__((vector_size(LANES)));

/* One half of a kernel: the weight of the center, then those of `reach` pixels on either side. */
typedef struct {
    const float *weights;
    size_t reach;
} Kernel;

INLINE Shorts shorts(const unsigned char *from) {
    Bytes bytes;
    memcpy(&bytes, from, sizeof bytes);
    return __builtin_convertvector(bytes, Shorts);
}

INLINE Floats floats(const float *from) {
    Floats values;
    memcpy(&values, from, sizeof values);
    return values;
}

INLINE Floats as_floats(Shorts values) {
    return __builtin_convertvector(__builtin_convertvector(values, Ints), Floats);
}

/* Columns of bytes around rows[0]; rows[2 * k - 1] and rows[2 * k] are the rows above and below it. */
INLINE void down_block(const Kernel *kernel, const unsigned char *const *rows, size_t at, float *out) {
    Floats sums[4];
    for (int j = 0; j < 4; j++) {
        sums[j] = kernel->weights[0] * as_floats(shorts(rows[0] + at + LANES * j));
    }
    for (size_t k = 1; k <= kernel->reach; k++) {
        const unsigned char *above = rows[2 * k - 1] + at, *below = rows[2 * k] + at;
        for (int j = 0; j < 4; j++) {
            sums[j] += kernel->weights[k] * as_floats(shorts(above + LANES * j) + shorts(below + LANES * j));
        }
    }
    memcpy(out + at, sums, sizeof sums);
}

INLINE void down(const Kernel *kernel, const unsigned char *const *rows, size_t size, float *out) {
    size_t at = 0;
    for (; at + BLOCK <= size; at += BLOCK) {
        down_block(kernel, rows, at, out);
    }
    if (at < size && size >= BLOCK) {
        down_block(kernel, rows, size - BLOCK, out);
        return;
    }
    for (; at < size; at++) {
        float sum = kernel->weights[0] * rows[0][at];
        for (size_t k = 1; k <= kernel->reach; k++) {
            sum += kernel->weights[k] * (float)(rows[2 * k - 1][at] + rows[2 * k][at]);
        }
        out[at] = sum;
    }
}

INLINE unsigned char rounded(float sum) {
    /* Adding this number leaves no bits after the binary point, and rounds as rint does. */
    const float shift = 12582912.0f;
    float whole = (sum + shift) - shift;
    return (unsigned char)(int)(whole > 0.0f ? whole < 255.0f ? whole : 255.0f : 0.0f);
}

INLINE void across_block(const Kernel *kernel, const float *row, size_t channels, float *out) {
    Floats sums[4];
    for (int j = 0; j < 4; j++) {
        sums[j] = kernel->weights[0] * floats(row + LANES * j);
    }
    for (size_t k = 1; k <= kernel->reach; k++) {
        const float *left = row - k * channels, *right = row + k * channels;
        for (int j = 0; j < 4; j++) {
            sums[j] += kernel->weights[k] * (floats(left + LANES * j) + floats(right + LANES * j));
        }
    }
    memcpy(out, sums, sizeof sums);
}

/* Sums along a row, which goes on beyond both ends. */
INLINE void across(const Kernel *kernel, const float *row, size_t size, size_t channels, unsigned char *out) {
    size_t at = 0;
    for (; at < size && size >= BLOCK; at += BLOCK) {
        float sums[BLOCK];
        at = at + BLOCK <= size ? at : size - BLOCK;
        across_block(kernel, row + at, channels, sums);
        for (int j = 0; j < BLOCK; j++) {
            out[at + (size_t)j] = rounded(sums[j]);
        }
    }
    for (; at < size; at++) {
        float sum = kernel->weights[0] * row[at];
        for (size_t k = 1; k <= kernel->reach; k++) {
            sum += kernel->weights[k] * (row[at - k * channels] + row[at + k * channels]);
        }
        out[at] = rounded(sum);
    }
}

/* One row: down into `line`, which has room for `kernel` beyond both ends, then across. */
INLINE void blur_row(const Kernel *kernels, const unsigned char *const *rows, size_t size, size_t channels, float *line,
                     unsigned char *out) {
    down(&kernels[1], rows, size, line);
    for (size_t k = 1; k <= kernels[0].reach; k++) {
        memcpy(line - k * channels, line + k * channels, channels * sizeof *line);
        memcpy(line + size + (k - 1) * channels, line + size - (k + 1) * channels, channels * sizeof *line);
    }
    across(&kernels[0], line, size, channels, out);
}

typedef void BlurRow(const Kernel *, const unsigned char *const *, size_t, size_t, float *, unsigned char *);

static void blur(const Kernel *kernels, const unsigned char *const *rows, size_t size, size_t channels, float *line,
                 unsigned char *out) {
    blur_row(kernels, rows, size, channels, line, out);
}

#ifdef HAS_SIMD
AVX2 static void blur_avx2(const Kernel *kernels, const unsigned char *const *rows, size_t size, size_t channels,
                           float *line, unsigned char *out) {
    blur_row(kernels, rows, size, channels, line, out);
}
#endif

static bool blur_all(const ImagePair *pair, const Kernel *kernels) {
    size_t height = (size_t)pair->in.shape[0], channels = (size_t)pair->in.shape[2];
    size_t size = (size_t)pair->in.shape[1] * channels, margin = kernels[0].reach * channels, reach = kernels[1].reach;
    const unsigned char *in = pair->in.buf, **rows = malloc((2 * reach + 1) * sizeof *rows);
    float *line = malloc((size + 2 * margin) * sizeof *line);
    bool done = rows && line;
    BlurRow *function = FASTEST_AVX2(blur);
    for (size_t y = 0; done && y < height; y++) {
        rows[0] = in + y * size;
        for (size_t k = 1; k <= reach; k++) {
            size_t under = y + k < height ? y + k : 2 * (height - 1) - y - k;
            rows[2 * k - 1] = in + (y >= k ? y - k : k - y) * size;
            rows[2 * k] = in + under * size;
        }
        function(kernels, rows, size, channels, line + margin, (unsigned char *)pair->out.buf + y * size);
    }
    free(rows);
    free(line);
    return done;
}

static bool read_kernel(const Py_buffer *weights, Py_ssize_t side, const Py_buffer *out, Kernel *kernel) {
    Py_ssize_t count = weights->len / (Py_ssize_t)sizeof(float);
    if (weights->itemsize != sizeof(float) || !weights->format || strcmp(weights->format, "f") != 0 || count < 1) {
        return set_error(INPUT_ERROR, "the weights are not float32");
    }
    if (count > side) {
        return set_error(INPUT_ERROR, "the kernel reaches further than the image");
    }
    if (meets(weights->buf, weights->len, out)) {
        return set_error(INPUT_ERROR, "the weights and the output overlap");
    }
    *kernel = (Kernel){weights->buf, (size_t)count - 1};
    return true;
}

PyObject *gaussian_blur(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image, *target, *weights[2];
    Py_buffer views[2] = {0};
    ImagePair pair;
    Kernel kernels[2];
    if (!PyArg_ParseTuple(args, "OOOO:gaussian_blur", &image, &weights[0], &weights[1], &target) ||
        !image_pair_open(&pair, image, target)) {
        return NULL;
    }
    if (PyObject_GetBuffer(weights[0], &views[0], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0 &&
        PyObject_GetBuffer(weights[1], &views[1], PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) == 0 &&
        image_pair_is_even(&pair) && read_kernel(&views[0], pair.in.shape[1], &pair.out, &kernels[0]) &&
        read_kernel(&views[1], pair.in.shape[0], &pair.out, &kernels[1])) {
        bool done;
        Py_BEGIN_ALLOW_THREADS
        done = blur_all(&pair, kernels);
        Py_END_ALLOW_THREADS
        if (!done) {
            set_error(MEMORY_ERROR, NULL);
        }
    }
    PyBuffer_Release(&views[0]);
    PyBuffer_Release(&views[1]);
    image_pair_close(&pair);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
