/* What a fuzzer calls: any bytes go through the parser of crop-ready records, cut, decode and transcode, and through all
   readers of coefficient records.

   The first bytes of an input choose rectangles and options, the others are the JPEG. It lies in memory that ends where
   the JPEG ends, so that AddressSanitizer sees every read beyond it. matrix.py builds and runs this. */

#include <Python.h>

#include "coefficient_groups.h"
#include "crop_ready.h"
#include "functions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES 6
/* Damage makes images huge, which takes long and finds nothing. */
#define MOST_PIXELS 1000000

static void expect(int condition, const char *law) {
    if (!condition) {
        fprintf(stderr, "broken: %s\n", law);
        if (PyErr_Occurred()) {
            PyErr_Print();
        }
        abort();
    }
}

/* Calls a function of the extension, which may refuse the input. */
static PyObject *call(PyObject *function(PyObject *, PyObject *), PyObject *arguments) {
    expect(arguments != NULL, "the arguments exist");
    PyObject *result = function(NULL, arguments);
    Py_DECREF(arguments);
    if (!result) {
        expect(PyErr_ExceptionMatches(PyExc_ValueError) || PyErr_ExceptionMatches(PyExc_MemoryError),
               "an error is a ValueError or a MemoryError");
        PyErr_Clear();
    }
    return result;
}

typedef struct {
    int left, top, width, height;
} Box;

/* The pixels of a rectangle, without anything beside it. */
static PyObject *decoded(PyObject *data, Box box, int channels, int scale) {
    PyObject *result = call(decode, Py_BuildValue("(O(iiii)ii)", data, box.left, box.top, box.width, box.height,
                                                  channels, scale));
    if (!result) {
        return NULL;
    }
    PyObject *given = PyTuple_GET_ITEM(result, 0);
    Py_ssize_t start = PyLong_AsSsize_t(PyTuple_GET_ITEM(result, 1));
    Py_ssize_t stride = PyLong_AsSsize_t(PyTuple_GET_ITEM(result, 2)), size = (Py_ssize_t)box.width * channels;
    expect(start >= 0 && stride >= size && PyBytes_GET_SIZE(given) == start + box.height * stride,
           "decode gives the rectangle");
    PyObject *pixels = PyBytes_FromStringAndSize(NULL, size * box.height);
    expect(pixels != NULL, "there is memory for the pixels");
    for (int row = 0; row < box.height; row++) {
        memcpy(PyBytes_AS_STRING(pixels) + row * size, PyBytes_AS_STRING(given) + start + row * stride, (size_t)size);
    }
    Py_DECREF(result);
    return pixels;
}

static int same(PyObject *one, PyObject *other) {
    return PyBytes_GET_SIZE(one) == PyBytes_GET_SIZE(other) &&
           memcmp(PyBytes_AS_STRING(one), PyBytes_AS_STRING(other), (size_t)PyBytes_GET_SIZE(one)) == 0;
}

/* The size that the first frame header says; false if there is none that is worth the time. */
static int find_size(const unsigned char *data, size_t size, int *width, int *height) {
    for (size_t at = 2; at + 9 < size; at++) {
        if (data[at] == 0xff && data[at + 1] >= 0xc0 && data[at + 1] <= 0xcf && data[at + 1] != 0xc4 &&
            data[at + 1] != 0xc8 && data[at + 1] != 0xcc) {
            *height = data[at + 5] << 8 | data[at + 6];
            *width = data[at + 7] << 8 | data[at + 8];
            if ((long)*width * *height > MOST_PIXELS) {
                return 0;
            }
        }
    }
    return 1;
}

static Box choose(const uint8_t *choices, int width, int height) {
    width = width ? width : 1, height = height ? height : 1;
    Box box = {choices[0] * width / 256, choices[1] * height / 256, 0, 0};
    box.width = 1 + choices[2] * (width - box.left) / 256;
    box.height = 1 + choices[3] * (height - box.top) / 256;
    return box;
}

static void test_parser(const uint8_t *data, size_t size) {
    CropReady record;
    if (crop_ready_parse(&record, data, size) != CROP_READY) {
        return;
    }
    size_t before = 0, coded = size - (size_t)(record.coded - data);
    for (int64_t number = 0; number < record.rows * record.per_row; number++) {
        expect(record.ends[number] >= before && record.ends[number] <= coded, "intervals lie in the coded data");
        before = record.ends[number];
    }
    expect(before == coded && record.size_at + 4 <= record.header_size, "they fill it, and the size lies in the header");
    crop_ready_free(&record);
}

static void test_cut(PyObject *data, Box box) {
    PyObject *part = call(cut, Py_BuildValue("(O(iiii))", data, box.left, box.top, box.width, box.height));
    if (part && part != Py_None) {
        long left = PyLong_AsLong(PyTuple_GET_ITEM(part, 1)), top = PyLong_AsLong(PyTuple_GET_ITEM(part, 2));
        expect(left <= box.left && top <= box.top, "the cut contains the rectangle");
        Box inner = {box.left - (int)left, box.top - (int)top, box.width, box.height};
        PyObject *pixels = decoded(PyTuple_GET_ITEM(part, 0), inner, 3, 1);
        Py_XDECREF(pixels);
    }
    Py_XDECREF(part);
}

static void test_transcode(PyObject *data, Box box, PyObject *optimise) {
    PyObject *record = call(transcode, Py_BuildValue("(OO)", data, optimise));
    if (!record) {
        return;
    }
    PyObject *pixels = decoded(data, box, 3, 1), *again = decoded(record, box, 3, 1);
    expect(!pixels || (again && same(pixels, again)), "a record has the pixels of its source");
    PyObject *part = again ? call(cut, Py_BuildValue("(O(iiii))", record, box.left, box.top, box.width, box.height)) : NULL;
    expect(!again || (part && part != Py_None), "a record can be cut");
    if (again) {
        long left = PyLong_AsLong(PyTuple_GET_ITEM(part, 1)), top = PyLong_AsLong(PyTuple_GET_ITEM(part, 2));
        Box inner = {box.left - (int)left, box.top - (int)top, box.width, box.height};
        PyObject *cut_out = decoded(PyTuple_GET_ITEM(part, 0), inner, 3, 1);
        expect(cut_out && same(again, cut_out), "a cut has the pixels of its record");
        Py_DECREF(cut_out);
    }
    Py_XDECREF(part);
    Py_XDECREF(pixels);
    Py_XDECREF(again);
    Py_DECREF(record);
}

/* Whether the coefficients of each component are the same; NULL stands for data that is refused. */
static int same_coefficients(PyObject *one, PyObject *other) {
    if (!one || !other) {
        return one == other;
    }
    int equal = PyTuple_GET_SIZE(one) == PyTuple_GET_SIZE(other);
    for (Py_ssize_t index = 0; equal && index < PyTuple_GET_SIZE(one); index++) {
        equal = same(PyTuple_GET_ITEM(one, index), PyTuple_GET_ITEM(other, index));
    }
    return equal;
}

static void test_coefficients(PyObject *data, Box box) {
    static const char *const readers[] = {"bmi2", "avx512"};
    PyObject *expected = call(coefficients, Py_BuildValue("(Os)", data, "plain"));
    for (size_t index = 0; index < sizeof readers / sizeof *readers; index++) {
        if (named_read_group(readers[index])) {
            PyObject *found = call(coefficients, Py_BuildValue("(Os)", data, readers[index]));
            expect(same_coefficients(expected, found), "all readers of groups agree");
            Py_XDECREF(found);
        }
    }
    PyObject *record = call(coefficient_record, Py_BuildValue("(O)", data));
    if (record) {
        PyObject *again = call(coefficients, Py_BuildValue("(O)", record));
        expect(same_coefficients(expected, again), "a record has the coefficients of its source");
        PyObject *pixels = decoded(data, box, 3, 1), *theirs = decoded(record, box, 3, 1);
        expect(!pixels || (theirs && same(pixels, theirs)), "a record has the pixels of its source");
        Py_XDECREF(pixels);
        Py_XDECREF(theirs);
        Py_XDECREF(again);
        Py_DECREF(record);
    }
    Py_XDECREF(expected);
}

int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count, (void)arguments;
    Py_InitializeEx(0);
    coefficient_groups_init();
    copy_records_init();
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *input, size_t size) {
    int width = 20, height = 20;
    if (size <= CHOICES || !find_size(input + CHOICES, size - CHOICES, &width, &height)) {
        return 0;
    }
    size -= CHOICES;
    uint8_t *data = malloc(size);
    memcpy(data, input + CHOICES, size);
    PyObject *view = PyMemoryView_FromMemory((char *)data, (Py_ssize_t)size, PyBUF_READ);
    expect(view != NULL, "there is memory for a view");
    static const int channels[] = {1, 3, 4, 3};
    int scale = 1 << (input[4] & 3);
    test_parser(data, size);
    test_cut(view, choose(input, width, height));
    PyObject *pixels = decoded(view, choose(input, (width + scale - 1) / scale, (height + scale - 1) / scale),
                               channels[input[4] >> 2 & 3], scale);
    Py_XDECREF(pixels);
    test_transcode(view, choose(input, width, height), input[5] & 1 ? Py_True : Py_False);
    test_coefficients(view, choose(input, width, height));
    Py_DECREF(view);
    free(data);
    return 0;
}
