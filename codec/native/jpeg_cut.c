/* What codec/cut.py does in Python, with the same result byte for byte. */

#include "functions.h"

#include "coefficient_record.h"
#include "crop_ready.h"
#include "errors.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

typedef struct {
    long long left, top, width, height;
} Box;

/* Which intervals of which MCU rows are cut out. */
typedef struct {
    int64_t first_interval, last_interval, first_row, last_row;
    size_t bytes; /* of the chosen intervals */
} Choice;

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

static int64_t ceiling(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

/* The intervals that are needed to decode `box`. Where chroma has fewer samples than luma, libjpeg interpolates between
   neighbours, so one more sample is needed on each side. It does so only in images that are wider than two samples, so
   a cut must be wider too. */
static Choice choose(const CropReady *record, const Box *box) {
    int64_t beside = record->mcu_width > 8 ? record->mcu_width / 8 : 0;
    int64_t above = record->mcu_height > 8 ? record->mcu_height / 8 : 0;
    int64_t left = box->left > beside ? box->left - beside : 0, top = box->top > above ? box->top - above : 0;
    int64_t right = box->left + box->width + beside, bottom = box->top + box->height + above;
    Choice choice = {
        .first_interval = left / record->step,
        .last_interval = ceiling(least(right, record->width), record->step),
        .first_row = top / record->mcu_height,
        .last_row = ceiling(least(bottom, record->height), record->mcu_height),
    };
    if (beside && choice.first_interval && record->width - choice.first_interval * record->step < record->mcu_width) {
        choice.first_interval--;
    }
    for (int64_t row = choice.first_row; row < choice.last_row; row++) {
        int64_t number = row * record->per_row;
        choice.bytes += record->ends[number + choice.last_interval - 1] -
                        interval_start(record, number + choice.first_interval);
    }
    return choice;
}

static void put_big(unsigned char *at, int64_t value) {
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}

/* Writes the cut; false if a restart marker is not where the table says it is. */
static bool write_cut(const CropReady *record, const Choice *choice, unsigned char *out) {
    int64_t right = choice->last_interval * record->step, bottom = choice->last_row * record->mcu_height;
    int64_t last = record->rows * record->per_row - 1;
    unsigned marker = 0;
    *out++ = 0xff;
    *out++ = 0xd8;
    memcpy(out, record->header, record->header_size);
    put_big(out + record->size_at, least(bottom, record->height) - choice->first_row * record->mcu_height);
    put_big(out + record->size_at + 2, least(right, record->width) - choice->first_interval * record->step);
    out += record->header_size;
    for (int64_t row = choice->first_row; row < choice->last_row; row++) {
        int64_t number = row * record->per_row + choice->first_interval;
        int64_t beyond = row * record->per_row + choice->last_interval;
        size_t start = interval_start(record, number);
        memcpy(out, record->coded + start, record->ends[beyond - 1] - start);
        for (; number < beyond; number++) {
            size_t length = record->ends[number] - interval_start(record, number);
            out += length;
            /* The copy is looked at, not the record, which may have changed. */
            if (length < 2 || out[-2] != 0xff || out[-1] != (number == last ? 0xd9 : 0xd0 | (number & 7))) {
                return false;
            }
            out[-1] = (unsigned char)(0xd0 | (marker++ & 7));
        }
    }
    out[-1] = 0xd9;
    return true;
}

static PyObject *cut_out(const CropReady *record, const Box *box) {
    if (box->left < 0 || box->top < 0 || box->width < 1 || box->height < 1 || box->left > record->width - box->width ||
        box->top > record->height - box->height) {
        char message[100];
        snprintf(message, sizeof message, "the rectangle is not inside an image of %d x %d pixels", (int)record->width,
                 (int)record->height);
        return set_error(INPUT_ERROR, message);
    }
    Choice choice = choose(record, box);
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(2 + record->header_size + choice.bytes));
    if (!bytes) {
        return NULL;
    }
    if (!write_cut(record, &choice, (unsigned char *)PyBytes_AsString(bytes))) {
        Py_DECREF(bytes);
        return Py_NewRef(Py_None);
    }
    return Py_BuildValue("(NLL)", bytes, (long long)(choice.first_interval * record->step),
                         (long long)(choice.first_row * record->mcu_height));
}

static bool fits_int(long long number) { return number >= INT_MIN && number <= INT_MAX; }

static PyObject *cut_out_of_coefficients(const Py_buffer *record, const Box *box) {
    if (!fits_int(box->left) || !fits_int(box->top) || !fits_int(box->width) || !fits_int(box->height)) {
        return set_error(INPUT_ERROR, "the rectangle is not inside the image");
    }
    const int sides[4] = {(int)box->left, (int)box->top, (int)box->width, (int)box->height};
    return transcode_part(record, sides);
}

PyObject *cut(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    Box box;
    if (!PyArg_ParseTuple(args, "y*(LLLL):cut", &data, &box.left, &box.top, &box.width, &box.height)) {
        return NULL;
    }
    if (is_coefficient_record(data.buf, (size_t)data.len)) {
        PyObject *part = cut_out_of_coefficients(&data, &box);
        PyBuffer_Release(&data);
        return part;
    }
    CropReady record;
    PyObject *result = NULL;
    switch (crop_ready_parse(&record, data.buf, (size_t)data.len)) {
    case CROP_READY:
        result = cut_out(&record, &box);
        crop_ready_free(&record);
        break;
    case NOT_CROP_READY:
        result = Py_NewRef(Py_None);
        break;
    case NO_MEMORY:
        set_error(MEMORY_ERROR, NULL);
        break;
    }
    PyBuffer_Release(&data);
    return result;
}
