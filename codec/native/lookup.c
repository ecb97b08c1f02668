/* Pixels through a table: bytes become whatever numbers the table holds for them. */

#include "functions.h"

#include "arguments.h"
#include "copy_pixels.h"
#include "errors.h"

#include <string.h>

#define VALUES 256

/* One row of pixels, with a number of type `type` for each byte; consecutive numbers of a channel lie `step` apart. */
#define DEFINE_ROW(name, type)                                                                                         \
    static void name(unsigned char *to, const unsigned char *in, const unsigned char *tables, size_t width,            \
                     size_t channels, size_t step, size_t plane) {                                                     \
        type *out = (type *)to;                                                                                        \
        const type *table = (const type *)tables;                                                                      \
        if (channels == 3) {                                                                                           \
            for (size_t x = 0; x < width; x++, in += 3, out += step) {                                                 \
                out[0] = table[in[0]];                                                                                 \
                out[plane] = table[VALUES + in[1]];                                                                    \
                out[2 * plane] = table[2 * VALUES + in[2]];                                                            \
            }                                                                                                          \
            return;                                                                                                    \
        }                                                                                                              \
        for (size_t x = 0; x < width; x++, in += channels, out += step) {                                              \
            for (size_t channel = 0; channel < channels; channel++) {                                                  \
                out[channel * plane] = table[channel * VALUES + in[channel]];                                          \
            }                                                                                                          \
        }                                                                                                              \
    }

DEFINE_ROW(row_of_16, uint16_t)
DEFINE_ROW(row_of_32, uint32_t)
DEFINE_ROW(row_of_64, uint64_t)

typedef void LookUpRow(unsigned char *out, const unsigned char *in, const unsigned char *tables, size_t width,
                       size_t channels, size_t step, size_t plane);

static LookUpRow *row_function(Py_ssize_t size) {
    return size == 2 ? row_of_16 : size == 4 ? row_of_32 : size == 8 ? row_of_64 : NULL;
}

/* Whether numbers of `size` bytes may lie there. */
static bool is_aligned(const Py_buffer *view, Py_ssize_t size) { return (uintptr_t)view->buf % (size_t)size == 0; }

/* Writes all of the image; `row` holds one row of numbers. */
static void look_up_all(const Py_buffer *image, const Py_buffer *table, Py_ssize_t size, bool planes,
                        unsigned char *out, unsigned char *row) {
    LookUpRow *look_up_row = row_function(size);
    size_t height = (size_t)image->shape[0], width = (size_t)image->shape[1], channels = (size_t)image->shape[2];
    const unsigned char *in = image->buf;
    for (size_t y = 0; y < height; y++, in += image->strides[0]) {
        if (planes) {
            look_up_row(out + y * width * (size_t)size, in, table->buf, width, channels, 1, height * width);
        } else {
            size_t bytes = width * channels * (size_t)size;
            look_up_row(row, in, table->buf, width, channels, channels, 1);
            copy_row(out + y * bytes, row, bytes, 1, false, true, NULL);
        }
    }
    past_caches_done();
}

PyObject *lookup(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image;
    Py_buffer view, table, out;
    int planes;
    if (!PyArg_ParseTuple(args, "Oy*pO&:lookup", &image, &table, &planes, take_output, &out)) {
        return NULL;
    }
    if (PyObject_GetBuffer(image, &view, PyBUF_STRIDED_RO) != 0) {
        PyBuffer_Release(&table);
        PyBuffer_Release(&out);
        return NULL;
    }
    unsigned char *row = NULL;
    bool dense = has_dense_rows(&view) && view.shape[2] >= 1;
    Py_ssize_t size = dense ? table.len / VALUES / view.shape[2] : 0;
    if (!dense || !row_function(size) || table.len != size * VALUES * view.shape[2]) {
        set_error(INPUT_ERROR, "the image does not have dense rows of pixels, or the table has a different size");
    } else if (out.len % size || out.len / size != view.len) {
        set_error(INPUT_ERROR, "the output has a different size");
    } else if (!is_aligned(&table, size) || !is_aligned(&out, size)) {
        set_error(INPUT_ERROR, "the table or the output is not aligned");
    } else if (overlaps(&view, &out) || meets(table.buf, table.len, &out)) {
        set_error(INPUT_ERROR, "the image or the table and the output overlap");
    } else if (!(row = PyMem_Malloc((size_t)(row_bytes(&view) * size) + 16))) {
        set_error(MEMORY_ERROR, NULL);
    } else {
        Py_BEGIN_ALLOW_THREADS
        look_up_all(&view, &table, size, planes, out.buf, row);
        Py_END_ALLOW_THREADS
    }
    PyMem_Free(row);
    PyBuffer_Release(&view);
    PyBuffer_Release(&table);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
