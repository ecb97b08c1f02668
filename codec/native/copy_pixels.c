/* Copies of images without conversion, mirrored or not. */

#include "functions.h"

#include "arguments.h"
#include "copy_pixels.h"
#include "errors.h"
#include "simd.h"

#include <stdint.h>
#include <string.h>

static void mirror_rgb(unsigned char *out, const unsigned char *in, size_t count) {
    for (in += 3 * count; count; count--, out += 3) {
        in -= 3;
        out[0] = in[0], out[1] = in[1], out[2] = in[2];
    }
}

static void mirror_grey(unsigned char *out, const unsigned char *in, size_t count) {
    for (in += count; count; count--) {
        *out++ = *--in;
    }
}

#ifdef HAS_SIMD
/* A register of 16 bytes holds five pixels and one byte more. That byte belongs to the next pixel, in the input as in
   the output. */
SSSE3 static void mirror_rgb_ssse3(unsigned char *out, const unsigned char *in, size_t count) {
    const __m128i order = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
    for (; count >= 6; count -= 5, out += 15) {
        __m128i pixels = _mm_loadu_si128((const __m128i *)(in + 3 * count - 16));
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(pixels, order));
    }
    mirror_rgb(out, in, count);
}
#endif

/* Copies past the caches, to memory that another core will read. A cache line that is written as a whole need not be
   fetched first, and writing it evicts nothing that this core still needs. */
static void copy_past_caches(unsigned char *out, const unsigned char *in, size_t size) {
#ifdef HAS_SIMD
    size_t head = -(uintptr_t)out & 15;
    if (size >= head + 16) {
        memcpy(out, in, head);
        for (out += head, in += head, size -= head; size >= 16; out += 16, in += 16, size -= 16) {
            _mm_stream_si128((__m128i *)out, _mm_loadu_si128((const __m128i *)in));
        }
    }
#endif
    memcpy(out, in, size);
}

void mirror_row(unsigned char *out, const unsigned char *in, size_t pixels, size_t channels) {
    (channels == 3 ? FASTEST_SSSE3(mirror_rgb) : mirror_grey)(out, in, pixels);
}

void copy_row(unsigned char *out, const unsigned char *in, size_t pixels, size_t channels, bool mirrored,
              bool past_caches, unsigned char *spare) {
    size_t size = pixels * channels;
    if (mirrored) {
        mirror_row(spare, in, pixels, channels);
        in = spare;
    }
    if (past_caches) {
        copy_past_caches(out, in, size);
    } else {
        memcpy(out, in, size);
    }
}

void past_caches_done(void) {
#ifdef HAS_SIMD
    _mm_sfence();
#endif
}

PyObject *copy_pixels(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image;
    Py_buffer view, out;
    int mirrored, past_caches;
    if (!PyArg_ParseTuple(args, "OppO&:copy_pixels", &image, &mirrored, &past_caches, take_output, &out)) {
        return NULL;
    }
    if (PyObject_GetBuffer(image, &view, PyBUF_STRIDED_RO) != 0) {
        PyBuffer_Release(&out);
        return NULL;
    }
    unsigned char *row = NULL;
    if (!has_dense_rows(&view) || out.len != view.len || (mirrored && view.shape[2] != 3 && view.shape[2] != 1)) {
        set_error(INPUT_ERROR,
                        "the image does not have dense rows of pixels, or the output has a different size");
    } else if (overlaps(&view, &out)) {
        set_error(INPUT_ERROR, "the image and the output overlap");
    } else if (!(row = PyMem_Malloc((size_t)row_bytes(&view) + 16))) {
        set_error(MEMORY_ERROR, NULL);
    } else {
        size_t width = (size_t)view.shape[1], channels = (size_t)view.shape[2];
        unsigned char *to = out.buf;
        const unsigned char *in = view.buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t line = 0; line < view.shape[0]; line++, to += width * channels, in += view.strides[0]) {
            copy_row(to, in, width, channels, mirrored, past_caches, row);
        }
        past_caches_done();
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(row);
    PyBuffer_Release(&view);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
