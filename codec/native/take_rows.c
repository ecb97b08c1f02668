/* Entries of columns, each of which lies in as many arrays as a dataset has parts. */

#include "functions.h"

#include "arguments.h"
#include "errors.h"

#include <string.h>

/* Copies `count` entries of `size` bytes. False if one lies outside the column. */
static bool take_entries(const Py_buffer *column, const int64_t *rows, Py_ssize_t count, Py_ssize_t size,
                         unsigned char *out) {
    int64_t entries = column->len / size;
    for (Py_ssize_t i = 0; i < count; i++, out += size) {
        int64_t row = rows[i];
        if (row < 0 || row >= entries) {
            return false;
        }
        memcpy(out, (const unsigned char *)column->buf + row * size, (size_t)size);
    }
    return true;
}

/* Whether `view` holds int64 numbers, and may be read as such. */
static bool has_numbers(const Py_buffer *view) {
    return view->len % (Py_ssize_t)sizeof(int64_t) == 0 && (uintptr_t)view->buf % _Alignof(int64_t) == 0;
}

static bool take_all(PyObject *columns, const Py_buffer *counts, const Py_buffer *rows, const Py_buffer *out) {
    Py_ssize_t total = rows->len / (Py_ssize_t)sizeof(int64_t), done = 0;
    Py_ssize_t size = total ? out->len / total : 0;
    if (size * total != out->len || (total && !size)) {
        return set_error(INPUT_ERROR, "out: expected as many entries as there are rows");
    }
    for (Py_ssize_t part = 0; part < PyTuple_Size(columns); part++) {
        int64_t count = ((const int64_t *)counts->buf)[part];
        if (count < 0 || count > total - done) {
            return set_error(INPUT_ERROR, "counts: expected numbers whose sum is the number of rows");
        }
        Py_buffer column;
        if (!take_buffer(PyTuple_GetItem(columns, part), &column, PyBUF_SIMPLE, "a column is not contiguous")) {
            return false;
        }
        bool sound = !meets(column.buf, column.len, out) && (!count || column.len % size == 0);
        sound = sound && (!count || take_entries(&column, (const int64_t *)rows->buf + done, count, size,
                                                 (unsigned char *)out->buf + done * size));
        PyBuffer_Release(&column);
        if (!sound) {
            return set_error(INPUT_ERROR, "a column has entries of another size, lacks a row, or overlaps the output");
        }
        done += count;
    }
    return done == total || set_error(INPUT_ERROR, "counts: expected numbers whose sum is the number of rows");
}

PyObject *take_rows(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects;
    Py_buffer counts, rows, out;
    if (!PyArg_ParseTuple(args, "Oy*y*O&:take_rows", &objects, &counts, &rows, take_output, &out)) {
        return NULL;
    }
    /* A tuple: a list could be changed by whoever hands out a column's memory. */
    PyObject *columns = PySequence_Tuple(objects);
    bool taken = false;
    if (columns) {
        if (!has_numbers(&counts) || !has_numbers(&rows) ||
            counts.len / (Py_ssize_t)sizeof(int64_t) != PyTuple_Size(columns)) {
            set_error(INPUT_ERROR, "counts and rows: expected int64, and a count for each column");
        } else if (meets(counts.buf, counts.len, &out) || meets(rows.buf, rows.len, &out)) {
            set_error(INPUT_ERROR, "out: overlaps counts or rows");
        } else {
            taken = take_all(columns, &counts, &rows, &out);
        }
    }
    Py_XDECREF(columns);
    PyBuffer_Release(&counts);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    if (!taken) {
        return NULL;
    }
    Py_RETURN_NONE;
}
