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

/* Whether an image with dense rows, whose order in memory may be upside down, shares memory with `out`. */
static inline bool overlaps(const Py_buffer *image, const Py_buffer *out) {
    Py_ssize_t rows = image->shape[0], last = (rows - 1) * image->strides[0], size = image->shape[1] * image->shape[2];
    if (rows < 1 || size < 1) {
        return false;
    }
    uintptr_t start = (uintptr_t)image->buf + (uintptr_t)(last < 0 ? last : 0), other = (uintptr_t)out->buf;
    uintptr_t end = (uintptr_t)image->buf + (uintptr_t)(last < 0 ? 0 : last) + (uintptr_t)size;
    return start < other + (uintptr_t)out->len && other < end;
}

/* Takes an image that is to be changed in place: uint8 [height, width, channels] with one or three channels, writable
   and contiguous. For anything else false, with a Python exception. */
static inline bool take_pixels(PyObject *array, Py_buffer *view) {
    if (PyObject_GetBuffer(array, view, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_C_CONTIGUOUS) != 0) {
        if (PyErr_ExceptionMatches(PyExc_BufferError)) {
            PyErr_Clear();
            set_error(INPUT_ERROR, "the image is not contiguous and writable");
        }
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
