/* What codec/cut.py does in Python, with the same result byte for byte. */

#include "functions.h"

#include "interval_table.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    long left, top, width, height;
} Box;

/* A record's table of restart intervals, and the contents of its frame header. */
typedef struct {
    const unsigned char *data, *lengths;
    size_t size, head, frame, scan;
    long wide, interval, width, height, mcu_width, mcu_height, columns, rows, per_row;
} Record;

static uint32_t little(const unsigned char *at, long bytes) {
    uint32_t value = 0;
    for (long index = bytes - 1; index >= 0; index--) {
        value = value << 8 | at[index];
    }
    return value;
}

static long big(const unsigned char *at) {
    return at[0] << 8 | at[1];
}

static long ceiling(long value, long divisor) {
    return (value + divisor - 1) / divisor;
}

static size_t length_of(const Record *record, long number) {
    return little(record->lengths + number * record->wide, record->wide);
}

/* Reads the table of a record; false if there is none, or if it does not fit the record. */
static bool read_table(Record *record, const unsigned char *data, size_t size) {
    size_t at = 2;
    if (size >= 6 && data[2] == 0xff && data[3] == 0xe0) {
        at += 2 + (size_t)big(data + 4);
    }
    if (at + 4 + TABLE_HEADER > size || data[at] != 0xff || data[at + 1] != TABLE_MARKER ||
        memcmp(data + at + 4, TABLE_NAME, sizeof TABLE_NAME) != 0) {
        return false;
    }
    const unsigned char *table = data + at + 4;
    record->data = data;
    record->size = size;
    record->lengths = table + TABLE_HEADER;
    record->wide = little(table + 10, 2);
    record->head = little(table + 12, 4);
    record->frame = little(table + 16, 4);
    record->scan = little(table + 20, 4);
    uint32_t interval = little(table + 24, 4);
    size_t bytes = (size_t)big(data + at + 2);
    size_t end = at + 2 + bytes;
    if ((record->wide != 2 && record->wide != 4) || bytes < 2 + TABLE_HEADER || end > record->head ||
        record->head > record->frame || record->frame + 10 > record->scan || record->scan > size) {
        return false;
    }
    const unsigned char *frame = data + record->frame;
    long components = frame[9], across = 1, down = 1;
    if (frame[0] != 0xff || (frame[1] != 0xc0 && frame[1] != 0xc1) || (components != 1 && components != 3) ||
        record->frame + 10 + 3 * (size_t)components > record->scan) {
        return false;
    }
    for (long index = 0; components == 3 && index < components; index++) {
        long sampling = frame[11 + 3 * index];
        across = sampling >> 4 > across ? sampling >> 4 : across;
        down = (sampling & 15) > down ? sampling & 15 : down;
    }
    record->height = big(frame + 5);
    record->width = big(frame + 7);
    record->mcu_width = 8 * across;
    record->mcu_height = 8 * down;
    if (record->width < 1 || record->height < 1) {
        return false;
    }
    record->columns = ceiling(record->width, record->mcu_width);
    record->rows = ceiling(record->height, record->mcu_height);
    if (interval < 1 || interval > (uint32_t)record->columns || record->columns % (long)interval) {
        return false;
    }
    record->interval = (long)interval;
    record->per_row = record->columns / record->interval;
    long count = record->rows * record->per_row;
    if (bytes - 2 - TABLE_HEADER != (size_t)(count * record->wide)) {
        return false;
    }
    uint64_t total = record->scan;
    for (long number = 0; number < count; number++) {
        total += length_of(record, number);
    }
    return total == size;
}

/* Which intervals of which MCU rows are cut out. */
typedef struct {
    long first_interval, last_interval, first_row, last_row;
    size_t bytes; /* of the chosen intervals */
} Choice;

/* The intervals that are needed to decode `box`. Where chroma has fewer samples than luma, libjpeg interpolates between
   neighbours, so one more sample is needed on each side. It does so only in images that are wider than two samples, so
   a cut must be wider too. */
static Choice choose(const Record *record, const Box *box) {
    long step = record->interval * record->mcu_width;
    long beside = record->mcu_width > 8 ? record->mcu_width / 8 : 0;
    long above = record->mcu_height > 8 ? record->mcu_height / 8 : 0;
    long left = box->left > beside ? box->left - beside : 0, top = box->top > above ? box->top - above : 0;
    long right = box->left + box->width + beside, bottom = box->top + box->height + above;
    Choice choice = {
        .first_interval = left / step,
        .last_interval = ceiling(right < record->width ? right : record->width, step),
        .first_row = top / record->mcu_height,
        .last_row = ceiling(bottom < record->height ? bottom : record->height, record->mcu_height),
    };
    if (beside && choice.first_interval && record->width - choice.first_interval * step < record->mcu_width) {
        choice.first_interval--;
    }
    for (long row = choice.first_row; row < choice.last_row; row++) {
        for (long number = choice.first_interval; number < choice.last_interval; number++) {
            choice.bytes += length_of(record, row * record->per_row + number);
        }
    }
    return choice;
}

static void put_big(unsigned char *at, long value) {
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}

/* Writes the cut; false if a restart marker is not where the table says it is. */
static bool write_cut(const Record *record, const Choice *choice, unsigned char *out) {
    long step = record->interval * record->mcu_width;
    long right = choice->last_interval * step, bottom = choice->last_row * record->mcu_height;
    size_t header = record->scan - record->head;
    *out++ = 0xff;
    *out++ = 0xd8;
    memcpy(out, record->data + record->head, header);
    unsigned char *size = out + (record->frame - record->head) + 5;
    put_big(size, (bottom < record->height ? bottom : record->height) - choice->first_row * record->mcu_height);
    put_big(size + 2, (right < record->width ? right : record->width) - choice->first_interval * step);
    out += header;
    const unsigned char *in = record->data + record->scan, *end = record->data + record->size;
    size_t room = choice->bytes;
    long number = 0, marker = 0;
    for (; number < choice->first_row * record->per_row; number++) {
        size_t length = length_of(record, number);
        if (length > (size_t)(end - in)) {
            return false;
        }
        in += length;
    }
    for (long row = choice->first_row; row < choice->last_row; row++) {
        for (long column = 0; column < record->per_row; column++, number++) {
            size_t length = length_of(record, number);
            if (length > (size_t)(end - in)) {
                return false;
            }
            if (column >= choice->first_interval && column < choice->last_interval) {
                if (length < 2 || length > room || in[length - 2] != 0xff) {
                    return false;
                }
                memcpy(out, in, length);
                out += length;
                room -= length;
                out[-1] = (unsigned char)(0xd0 | (marker++ & 7));
            }
            in += length;
        }
    }
    out[-1] = 0xd9;
    return room == 0;
}

PyObject *cut(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    Box box;
    if (!PyArg_ParseTuple(args, "y*(llll):cut", &data, &box.left, &box.top, &box.width, &box.height)) {
        return NULL;
    }
    Record record;
    PyObject *result = NULL, *bytes = NULL;
    if (!read_table(&record, data.buf, (size_t)data.len)) {
        result = Py_NewRef(Py_None);
    } else if (box.left < 0 || box.top < 0 || box.width < 1 || box.height < 1 || box.left > record.width - box.width ||
               box.top > record.height - box.height) {
        PyErr_Format(PyExc_ValueError, "the rectangle is not inside an image of %ld x %ld pixels", record.width,
                     record.height);
    } else {
        Choice choice = choose(&record, &box);
        bytes = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(2 + record.scan - record.head + choice.bytes));
        if (bytes && write_cut(&record, &choice, (unsigned char *)PyBytes_AS_STRING(bytes))) {
            result = Py_BuildValue("(Oll)", bytes, choice.first_interval * record.interval * record.mcu_width,
                                   choice.first_row * record.mcu_height);
        } else if (bytes) {
            result = Py_NewRef(Py_None);
        }
    }
    Py_XDECREF(bytes);
    PyBuffer_Release(&data);
    return result;
}
