/* Pixels between three bytes, as records and tensors hold them, and four, as Pillow does in mode RGBX; and copies of
   pixels as they are. */

#include "native.h"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_SSSE3 1
#endif

/* One row of `count` pixels. Neither reads nor writes beyond it. */
typedef void Row(unsigned char *out, const unsigned char *in, size_t count);

static void widen(unsigned char *out, const unsigned char *in, size_t count) {
    for (; count; count--, out += 4, in += 3) {
        out[0] = in[0], out[1] = in[1], out[2] = in[2], out[3] = 0xff;
    }
}

static void narrow(unsigned char *out, const unsigned char *in, size_t count) {
    for (; count; count--, out += 3, in += 4) {
        out[0] = in[0], out[1] = in[1], out[2] = in[2];
    }
}

static void narrow_mirrored(unsigned char *out, const unsigned char *in, size_t count) {
    for (in += 4 * count; count; count--, out += 3) {
        in -= 4;
        out[0] = in[0], out[1] = in[1], out[2] = in[2];
    }
}

#ifdef HAS_SSSE3
/* Registers hold 16 bytes, of which 12 are three-byte pixels: the last four pixels of a row go one by one. */
__attribute__((target("ssse3"))) static void widen_ssse3(unsigned char *out, const unsigned char *in, size_t count) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m128i opaque = _mm_set1_epi32((int)0xff000000);
    for (; count >= 6; count -= 4, out += 16, in += 12) {
        __m128i pixels = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)in), order);
        _mm_storeu_si128((__m128i *)out, _mm_or_si128(pixels, opaque));
    }
    widen(out, in, count);
}

__attribute__((target("ssse3"))) static void narrow_ssse3(unsigned char *out, const unsigned char *in, size_t count) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (; count >= 6; count -= 4, out += 12, in += 16) {
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)in), order));
    }
    narrow(out, in, count);
}

__attribute__((target("ssse3"))) static void narrow_mirrored_ssse3(unsigned char *out, const unsigned char *in,
                                                                   size_t count) {
    const __m128i order = _mm_setr_epi8(12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, -1, -1, -1, -1);
    for (; count >= 6; count -= 4, out += 12) {
        __m128i pixels = _mm_loadu_si128((const __m128i *)(in + 4 * (count - 4)));
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(pixels, order));
    }
    narrow_mirrored(out, in, count);
}
#endif

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

#ifdef HAS_SSSE3
/* Five pixels in a register of 16 bytes: the one that is too much is the next pixel's, on both sides. */
__attribute__((target("ssse3"))) static void mirror_rgb_ssse3(unsigned char *out, const unsigned char *in,
                                                              size_t count) {
    const __m128i order = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
    for (; count >= 6; count -= 5, out += 15) {
        __m128i pixels = _mm_loadu_si128((const __m128i *)(in + 3 * count - 16));
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(pixels, order));
    }
    mirror_rgb(out, in, count);
}
#endif

/* Copies past the caches, to memory that another core will read: a cache line that is written as a whole need not be
   fetched first, and pushes nothing out that this core still needs. */
static void copy_past_caches(unsigned char *out, const unsigned char *in, size_t size) {
#ifdef HAS_SSSE3
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

static Row *fastest(Row *plain, Row *ssse3) {
#ifdef HAS_SSSE3
    return __builtin_cpu_supports("ssse3") ? ssse3 : plain;
#else
    (void)ssse3;
    return plain;
#endif
}

#ifdef HAS_SSSE3
#define FASTEST(name) fastest(name, name##_ssse3)
#else
#define FASTEST(name) fastest(name, NULL)
#endif

void copy_row(unsigned char *out, const unsigned char *in, size_t pixels, size_t channels, bool mirrored,
              bool past_caches, unsigned char *spare) {
    size_t size = pixels * channels;
    if (mirrored) {
        (channels == 3 ? FASTEST(mirror_rgb) : mirror_grey)(spare, in, pixels);
        in = spare;
    }
    if (past_caches) {
        copy_past_caches(out, in, size);
    } else {
        memcpy(out, in, size);
    }
}

void past_caches_done(void) {
#ifdef HAS_SSSE3
    _mm_sfence();
#endif
}

/* --- where Pillow keeps its pixels: the Arrow C data interface, https://arrow.apache.org/docs/format/CDataInterface.html --- */

typedef struct ArrowArray {
    int64_t length, null_count, offset, buffer_count, child_count;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

/* The `pixels` four-byte pixels of an image that Pillow exports as a list array of four bytes each, or NULL. */
static const unsigned char *exported(PyObject *capsule, size_t pixels) {
    ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (!array || !array->release || array->offset || array->child_count != 1 || (size_t)array->length != pixels) {
        return NULL;
    }
    ArrowArray *bytes = array->children[0];
    return bytes->offset || (size_t)bytes->length != pixels * 4 || bytes->buffer_count != 2 ? NULL : bytes->buffers[1];
}

/* --- the functions --- */

PyObject *rgb_to_rgbx(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    Py_ssize_t row_pixels, left, top, width, height;
    if (!PyArg_ParseTuple(args, "y*nnnnn:rgb_to_rgbx", &data, &row_pixels, &left, &top, &width, &height)) {
        return NULL;
    }
    PyObject *result = NULL;
    if (row_pixels < 1 || left < 0 || top < 0 || width < 1 || height < 1 || left > row_pixels - width ||
        top > data.len / 3 / row_pixels - height) {
        PyErr_SetString(PyExc_ValueError, "the rectangle is not inside the image");
    } else {
        result = PyBytes_FromStringAndSize(NULL, 4 * width * height);
    }
    if (result) {
        Row *row = FASTEST(widen);
        unsigned char *out = (unsigned char *)PyBytes_AS_STRING(result);
        const unsigned char *in = (const unsigned char *)data.buf + 3 * (top * row_pixels + left);
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t line = 0; line < height; line++, out += 4 * width, in += 3 * row_pixels) {
            row(out, in, (size_t)width);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&data);
    return result;
}

PyObject *rgbx_to_rgb(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image;
    Py_buffer out, data = {0};
    Py_ssize_t width, height;
    int mirrored;
    if (!PyArg_ParseTuple(args, "Onnpw*:rgbx_to_rgb", &image, &width, &height, &mirrored, &out)) {
        return NULL;
    }
    const unsigned char *in = NULL;
    if (width < 1 || height < 1 || width > PY_SSIZE_T_MAX / 4 / height || out.len != 3 * width * height) {
        PyErr_SetString(PyExc_ValueError, "the output is not 3 bytes per pixel");
    } else if (PyCapsule_CheckExact(image)) {
        in = exported(image, (size_t)(width * height));
    } else if (PyObject_GetBuffer(image, &data, PyBUF_SIMPLE) == 0 && data.len == 4 * width * height) {
        in = data.buf;
    }
    if (in) {
        Row *row = mirrored ? FASTEST(narrow_mirrored) : FASTEST(narrow);
        unsigned char *to = out.buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t line = 0; line < height; line++, to += 3 * width, in += 4 * width) {
            row(to, in, (size_t)width);
        }
        Py_END_ALLOW_THREADS
    } else if (!PyErr_Occurred()) {
        PyErr_SetString(PyExc_ValueError, "the image is not 4 bytes per pixel in one piece");
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

bool has_dense_rows(const Py_buffer *view) {
    return view->itemsize == 1 && view->ndim == 3 && view->strides[2] == 1 && view->strides[1] == view->shape[2];
}

PyObject *copy_pixels(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image;
    Py_buffer view, out;
    int mirrored, past_caches;
    if (!PyArg_ParseTuple(args, "Oppw*:copy_pixels", &image, &mirrored, &past_caches, &out)) {
        return NULL;
    }
    if (PyObject_GetBuffer(image, &view, PyBUF_STRIDED_RO) != 0) {
        PyBuffer_Release(&out);
        return NULL;
    }
    unsigned char *row = NULL;
    if (!has_dense_rows(&view) || out.len != view.len || (mirrored && view.shape[2] != 3 && view.shape[2] != 1)) {
        PyErr_SetString(PyExc_ValueError, "the image is not rows of dense pixels, or the output has another size");
    } else if (!(row = PyMem_Malloc((size_t)(view.shape[1] * view.shape[2]) + 16))) {
        PyErr_NoMemory();
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
