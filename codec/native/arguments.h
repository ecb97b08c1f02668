/* Checks of the functions' arguments. */

#ifndef PACKTRAIN_ARGUMENTS_H
#define PACKTRAIN_ARGUMENTS_H

#include <Python.h>

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "errors.h"

/* Whether an image may have a side of this many pixels. Sums over the bytes of a few rows then fit into an int. */
static inline bool is_side(Py_ssize_t pixels) { return pixels >= 1 && pixels <= INT_MAX / 64; }

/* Whether `view` is height x width x channels bytes, with no gaps between the channels of a pixel or the pixels of a
   row. */
static inline bool has_dense_rows(const Py_buffer *view) {
    return view->itemsize == 1 && view->ndim == 3 && view->strides[2] == 1 && view->strides[1] == view->shape[2];
}

/* Whether `size` bytes from `start` on share memory with `out`. No function may write to what it reads, not even in the
   same place: what changes an image in place takes it once. */
static inline bool meets(const void *start, Py_ssize_t size, const Py_buffer *out) {
    uintptr_t one = (uintptr_t)start, other = (uintptr_t)out->buf;
    return size > 0 && out->len > 0 && one < other + (uintptr_t)out->len && other < one + (uintptr_t)size;
}

/* Bytes of a row of an image with dense rows; 0 if the image has none. Its sides may be of any size before that is known:
   an image without rows may have any width. */
static inline Py_ssize_t row_bytes(const Py_buffer *image) { return image->len ? image->shape[1] * image->shape[2] : 0; }

/* Whether an image with dense rows, whose order in memory may be upside down, shares memory with `out`. */
static inline bool overlaps(const Py_buffer *image, const Py_buffer *out) {
    if (!image->len) {
        return false;
    }
    Py_ssize_t last = (image->shape[0] - 1) * image->strides[0];
    return meets((const char *)image->buf + (last < 0 ? last : 0), (last < 0 ? -last : last) + row_bytes(image), out);
}

/* Takes the memory of an object. For an object whose memory is not such, a ValueError with this message; other errors
   stay as they are. */
static inline bool take_buffer(PyObject *object, Py_buffer *view, int flags, const char *message) {
    if (PyObject_GetBuffer(object, view, flags) == 0) {
        return true;
    }
    if (PyErr_ExceptionMatches(PyExc_BufferError)) {
        PyErr_Clear();
        set_error(INPUT_ERROR, message);
    }
    return false;
}

/* Takes memory to write to, as a converter ("O&") of PyArg_ParseTuple. Its own "w*" makes every error a TypeError. */
static inline int take_output(PyObject *object, void *view) {
    if (!object) {
        PyBuffer_Release(view); /* a later argument was refused */
        return 1;
    }
    bool taken = take_buffer(object, view, PyBUF_WRITABLE, "the memory to write to is not contiguous and writable");
    return taken ? Py_CLEANUP_SUPPORTED : 0;
}

/* Takes an image that is to be changed in place: uint8 [height, width, channels] with one or three channels, writable
   and contiguous. For anything else false, with a Python exception. */
static inline bool take_pixels(PyObject *array, Py_buffer *view) {
    if (!take_buffer(array, view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS,
                     "the image is not contiguous and writable")) {
        return false;
    }
    if (view->ndim == 3 && strcmp(view->format, "B") == 0 && is_side(view->shape[0]) && is_side(view->shape[1]) &&
        (view->shape[2] == 1 || view->shape[2] == 3)) {
        return true;
    }
    PyBuffer_Release(view);
    set_error(INPUT_ERROR, "the image is not uint8 [height, width, channels] with one or three channels");
    return false;
}

#endif
