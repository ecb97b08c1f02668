/* Checks of the functions' arguments. */

#ifndef PACKTRAIN_ARGUMENTS_H
#define PACKTRAIN_ARGUMENTS_H

#include <Python.h>

#include <limits.h>
#include <stdbool.h>

/* Whether an image may have a side of this many pixels. Sums over the bytes of a few rows then fit into an int. */
static inline bool is_side(Py_ssize_t pixels) { return pixels >= 1 && pixels <= INT_MAX / 64; }

/* Whether `view` is height x width x channels bytes, with no gaps between the channels of a pixel or the pixels of a
   row. */
static inline bool has_dense_rows(const Py_buffer *view) {
    return view->itemsize == 1 && view->ndim == 3 && view->strides[2] == 1 && view->strides[1] == view->shape[2];
}

#endif
