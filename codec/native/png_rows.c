/* The rows of a PNG with one byte per pixel, as they come out of zlib: each begins with the number of the filter that
   it was written with. https://www.w3.org/TR/png-3/#9Filters */

#include "functions.h"

#include "arguments.h"
#include "errors.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned char Byte;

static Byte paeth(int left, int up, int corner) {
    int estimate = left + up - corner;
    int a = abs(estimate - left), b = abs(estimate - up), c = abs(estimate - corner);
    return (Byte)(a <= b && a <= c ? left : b <= c ? up : corner);
}

/* Writes a row. `above` is the row before it, which is zeros for the first. Returns whether there is such a filter. */
static bool unfilter_row(Byte filter, const Byte *in, const Byte *above, Byte *out, Py_ssize_t width) {
    Byte left = 0, corner = 0;
    switch (filter) {
    case 0:
        memcpy(out, in, (size_t)width);
        return true;
    case 1:
        for (Py_ssize_t x = 0; x < width; x++) {
            out[x] = left = (Byte)(in[x] + left);
        }
        return true;
    case 2:
        for (Py_ssize_t x = 0; x < width; x++) {
            out[x] = (Byte)(in[x] + above[x]);
        }
        return true;
    case 3:
        for (Py_ssize_t x = 0; x < width; x++) {
            out[x] = left = (Byte)(in[x] + (left + above[x]) / 2);
        }
        return true;
    case 4:
        for (Py_ssize_t x = 0; x < width; x++) {
            Byte up = above[x];
            out[x] = left = (Byte)(in[x] + paeth(left, up, corner));
            corner = up;
        }
        return true;
    default:
        return false;
    }
}

PyObject *unfilter(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer rows, out;
    Py_ssize_t width;
    if (!PyArg_ParseTuple(args, "y*nO&:unfilter", &rows, &width, take_output, &out)) {
        return NULL;
    }
    Byte *nothing = NULL;
    if (!is_side(width) || rows.len % (width + 1) || out.len != rows.len / (width + 1) * width) {
        set_error(INPUT_ERROR, "the rows, or the output, do not have one byte per pixel");
    } else if (meets(rows.buf, rows.len, &out)) {
        set_error(INPUT_ERROR, "the rows and the output overlap");
    } else if (!(nothing = calloc((size_t)width, 1))) {
        set_error(MEMORY_ERROR, NULL);
    } else {
        const Byte *in = rows.buf, *above = nothing;
        Byte *to = out.buf;
        bool sound = true;
        Py_BEGIN_ALLOW_THREADS
        for (Py_ssize_t left = rows.len / (width + 1); left && sound; left--, in += width + 1, to += width) {
            sound = unfilter_row(in[0], in + 1, above, to, width);
            above = to;
        }
        Py_END_ALLOW_THREADS
        if (!sound) {
            set_error(INPUT_ERROR, "a row has an unknown filter");
        }
    }
    free(nothing);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
