/* Conversions between three bytes per pixel, as in records and tensors, and four, as in Pillow's RGBX images. */

#include "functions.h"

#include "arguments.h"
#include "errors.h"
#include "simd.h"

#include <stdint.h>

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

#ifdef HAS_SIMD
/* Four pixels at a time. A register holds 16 bytes, four more than their 12 with three bytes per pixel, so the last
   pixels of a row are converted one by one. */
SSSE3 static void widen_ssse3(unsigned char *out, const unsigned char *in, size_t count) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m128i opaque = _mm_set1_epi32((int)0xff000000);
    for (; count >= 6; count -= 4, out += 16, in += 12) {
        __m128i pixels = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)in), order);
        _mm_storeu_si128((__m128i *)out, _mm_or_si128(pixels, opaque));
    }
    widen(out, in, count);
}

SSSE3 static void narrow_ssse3(unsigned char *out, const unsigned char *in, size_t count) {
    const __m128i order = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    for (; count >= 6; count -= 4, out += 12, in += 16) {
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)in), order));
    }
    narrow(out, in, count);
}

SSSE3 static void narrow_mirrored_ssse3(unsigned char *out, const unsigned char *in, size_t count) {
    const __m128i order = _mm_setr_epi8(12, 13, 14, 8, 9, 10, 4, 5, 6, 0, 1, 2, -1, -1, -1, -1);
    for (; count >= 6; count -= 4, out += 12) {
        __m128i pixels = _mm_loadu_si128((const __m128i *)(in + 4 * (count - 4)));
        _mm_storeu_si128((__m128i *)out, _mm_shuffle_epi8(pixels, order));
    }
    narrow_mirrored(out, in, count);
}
#endif

/* The array of the Arrow C data interface: https://arrow.apache.org/docs/format/CDataInterface.html */
typedef struct ArrowArray {
    int64_t length, null_count, offset, buffer_count, child_count;
    const void **buffers;
    struct ArrowArray **children;
    struct ArrowArray *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

/* The pixels of an image that Pillow exports as an array of `pixels` lists of four bytes; NULL for any other array. */
static const unsigned char *exported_pixels(PyObject *capsule, size_t pixels) {
    ArrowArray *array = PyCapsule_GetPointer(capsule, "arrow_array");
    if (!array || !array->release || array->offset || array->child_count != 1 || (size_t)array->length != pixels) {
        return NULL;
    }
    ArrowArray *bytes = array->children[0];
    return bytes->offset || (size_t)bytes->length != pixels * 4 || bytes->buffer_count != 2 ? NULL : bytes->buffers[1];
}

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
        set_error(INPUT_ERROR, "the rectangle is not inside the image");
    } else {
        result = PyBytes_FromStringAndSize(NULL, 4 * width * height);
    }
    if (result) {
        RowFunction *row = FASTEST_SSSE3(widen);
        unsigned char *out = (unsigned char *)PyBytes_AsString(result);
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
    if (!PyArg_ParseTuple(args, "OnnpO&:rgbx_to_rgb", &image, &width, &height, &mirrored, take_output, &out)) {
        return NULL;
    }
    const unsigned char *in = NULL;
    if (width < 1 || height < 1 || width > PY_SSIZE_T_MAX / 4 / height || out.len != 3 * width * height) {
        set_error(INPUT_ERROR, "the output does not have 3 bytes per pixel");
    } else if (PyCapsule_CheckExact(image)) {
        in = exported_pixels(image, (size_t)(width * height));
    } else if (PyObject_GetBuffer(image, &data, PyBUF_SIMPLE) == 0 && data.len == 4 * width * height) {
        in = data.buf;
    }
    if (in && meets(in, 4 * width * height, &out)) {
        set_error(INPUT_ERROR, "the image and the output overlap");
    } else if (in) {
        RowFunction *row = mirrored ? FASTEST_SSSE3(narrow_mirrored) : FASTEST_SSSE3(narrow);
        unsigned char *to = out.buf;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t line = 0; line < height; line++, to += 3 * width, in += 4 * width) {
            row(to, in, (size_t)width);
        }
        Py_END_ALLOW_THREADS
    } else if (!PyErr_Occurred()) {
        set_error(INPUT_ERROR, "the image does not have 4 bytes per pixel in one piece");
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
