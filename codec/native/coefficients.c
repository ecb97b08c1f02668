/* Makes coefficient records of JPEGs, and JPEGs of coefficient records. No coefficient changes, and so no pixel. */

#include "functions.h"

#include "coefficient_record.h"
#include "errors.h"
#include "jpeg_coefficients.h"
#include "zigzag.h"

#include <stdlib.h>
#include <string.h>

/* --- growing bytes --- */

typedef struct {
    unsigned char *bytes;
    size_t size, room;
} Buffer;

/* Makes room for `more` bytes at the end, and returns where they go. */
static unsigned char *reserve(Errors *errors, Buffer *buffer, size_t more) {
    if (buffer->room - buffer->size < more) {
        size_t room = 2 * (buffer->size + more);
        unsigned char *bytes = realloc(buffer->bytes, room);
        if (!bytes) {
            errors_raise(errors, MEMORY_ERROR, NULL);
        }
        buffer->bytes = bytes;
        buffer->room = room;
    }
    return buffer->bytes + buffer->size;
}

static void append(Errors *errors, Buffer *buffer, const void *bytes, size_t size) {
    memcpy(reserve(errors, buffer, size), bytes, size);
    buffer->size += size;
}

static void append_little(Errors *errors, Buffer *buffer, uint64_t value, int bytes) {
    for (; bytes; bytes--, value >>= 8) {
        append(errors, buffer, &(unsigned char){(unsigned char)value}, 1);
    }
}

static void append_segment(Errors *errors, Buffer *buffer, int marker, const void *body, size_t size) {
    const unsigned char start[4] = {0xff, (unsigned char)marker, (unsigned char)((size + 2) >> 8),
                                    (unsigned char)(size + 2)};
    append(errors, buffer, start, sizeof start);
    append(errors, buffer, body, size);
}

/* --- a record of a JPEG --- */

typedef struct {
    JpegCoefficients jpeg;
    Errors errors;
    Buffer metadata, head, ends, lengths, coded;
} Making;

static void write_metadata(Making *job) {
    j_decompress_ptr source = &job->jpeg.source;
    if (source->saw_JFIF_marker && source->jpeg_color_space != JCS_RGB) {
        const unsigned char jfif[14] = {'J', 'F', 'I', 'F', 0, source->JFIF_major_version, source->JFIF_minor_version,
                                        source->density_unit, (unsigned char)(source->X_density >> 8),
                                        (unsigned char)source->X_density, (unsigned char)(source->Y_density >> 8),
                                        (unsigned char)source->Y_density, 0, 0};
        append_segment(&job->errors, &job->metadata, 0xe0, jfif, sizeof jfif);
    }
    for (jpeg_saved_marker_ptr marker = source->marker_list; marker; marker = marker->next) {
        if (is_metadata(marker)) {
            append_segment(&job->errors, &job->metadata, marker->marker, marker->data, marker->data_length);
        }
    }
}

/* Returns whether a table needs 16 bits. */
static bool write_tables(Making *job) {
    j_decompress_ptr source = &job->jpeg.source;
    const JQUANT_TBL *written[NUM_QUANT_TBLS] = {NULL};
    bool extended = false;
    for (int index = 0; index < source->num_components; index++) {
        int number = source->comp_info[index].quant_tbl_no;
        /* The table that was in force when the component's scan began. */
        const JQUANT_TBL *table = source->comp_info[index].quant_table;
        if (!table || number < 0 || number >= NUM_QUANT_TBLS) {
            errors_raise(&job->errors, INPUT_ERROR, "a quantisation table is missing");
        }
        if (written[number]) {
            if (memcmp(written[number]->quantval, table->quantval, sizeof table->quantval) != 0) {
                errors_raise(&job->errors, INPUT_ERROR, "a quantisation table changes between scans");
            }
            continue;
        }
        written[number] = table;
        bool wide = false;
        unsigned char body[1 + 2 * DCTSIZE2];
        for (int at = 0; at < DCTSIZE2; at++) {
            wide = wide || table->quantval[at] > 255;
        }
        body[0] = (unsigned char)(wide << 4 | number);
        for (int at = 0; at < DCTSIZE2; at++) {
            unsigned value = table->quantval[NATURAL[at]];
            if (wide) {
                body[1 + 2 * at] = (unsigned char)(value >> 8);
                body[2 + 2 * at] = (unsigned char)value;
            } else {
                body[1 + at] = (unsigned char)value;
            }
        }
        append_segment(&job->errors, &job->head, 0xdb, body, 1 + (size_t)(DCTSIZE2 << wide));
        extended = extended || wide;
    }
    return extended;
}

static void write_head(Making *job) {
    j_decompress_ptr source = &job->jpeg.source;
    if (source->jpeg_color_space == JCS_RGB) {
        static const unsigned char no_transform[12] = {'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 0};
        append_segment(&job->errors, &job->head, 0xee, no_transform, sizeof no_transform);
    }
    int start = write_tables(job) ? 0xc1 : 0xc0;
    unsigned char frame[15] = {8, (unsigned char)(source->image_height >> 8), (unsigned char)source->image_height,
                               (unsigned char)(source->image_width >> 8), (unsigned char)source->image_width,
                               (unsigned char)source->num_components};
    for (int index = 0; index < source->num_components; index++) {
        const jpeg_component_info *component = &source->comp_info[index];
        bool alone = source->num_components == 1;
        frame[6 + 3 * index] = (unsigned char)(index + 1);
        frame[7 + 3 * index] =
            alone ? 0x11 : (unsigned char)(component->h_samp_factor << 4 | component->v_samp_factor);
        frame[8 + 3 * index] = (unsigned char)component->quant_tbl_no;
    }
    append_segment(&job->errors, &job->head, start, frame, 6 + 3 * (size_t)source->num_components);
}

/* The largest values that baseline JPEGs code: of AC coefficients, and of DC coefficients and their differences (T.81,
   tables F.1 and F.2). */
#define MOST_AC 1023
#define MOST_DC 2047

static bool has_baseline_ac(const JCOEF *block) {
    int larger = 0;
    for (int position = 1; position < DCTSIZE2; position++) {
        larger |= block[position] > MOST_AC || block[position] < -MOST_AC;
    }
    return !larger;
}

/* Refuses what no baseline JPEG can have: it could never become one again. `lines` are those of a component in a row of
   MCUs. A JPEG of any part of the image may be wanted, and may have restart markers anywhere: then the first DC
   coefficient of an MCU is coded as it is, and otherwise as its difference from the one before in order of MCUs. */
static void require_baseline(Making *job, JBLOCKARRAY lines, int down, int count, int across) {
    int previous = 0;
    bool sound = true;
    for (int first = 0; first < count; first += across) {
        int end = count - first < across ? count : first + across;
        sound = sound && abs(lines[0][first][0]) <= MOST_DC;
        for (int line = 0; line < down; line++) {
            for (int column = first; column < end; column++) {
                int dc = lines[line][column][0];
                sound = sound && abs(dc - previous) <= MOST_DC && has_baseline_ac(lines[line][column]);
                previous = dc;
            }
        }
    }
    if (!sound) {
        errors_raise(&job->errors, INPUT_ERROR, "a coefficient is out of range");
    }
}

static void write_line(Making *job, const JBLOCKROW blocks, int count) {
    for (int first = 0; first < count; first += GROUP) {
        int here = count - first < GROUP ? count - first : GROUP;
        unsigned char *out = reserve(&job->errors, &job->coded, GROUP_MOST);
        size_t size = write_group(out, (const int16_t(*)[BLOCK_COEFFICIENTS])(blocks + first), here);
        job->coded.size += size;
        append_little(&job->errors, &job->lengths, size, 2);
    }
}

static void write_rows(Making *job) {
    j_decompress_ptr source = &job->jpeg.source;
    bool alone = source->num_components == 1;
    int mcu = alone ? DCTSIZE : DCTSIZE * source->max_v_samp_factor;
    int rows = ((int)source->image_height + mcu - 1) / mcu;
    for (int row = 0; row < rows; row++) {
        for (int index = 0; index < source->num_components; index++) {
            const jpeg_component_info *component = &source->comp_info[index];
            int down = alone ? 1 : component->v_samp_factor, last = (int)component->height_in_blocks;
            int here = last - row * down < down ? last - row * down : down;
            JBLOCKARRAY lines = coefficient_rows(&job->jpeg, index, row * down, here);
            require_baseline(job, lines, here, (int)component->width_in_blocks, alone ? 1 : component->h_samp_factor);
            for (int line = 0; line < here; line++) {
                write_line(job, lines[line], (int)component->width_in_blocks);
            }
        }
        append_little(&job->errors, &job->ends, job->coded.size, 4);
    }
}

static bool make(Making *job, const Py_buffer *data) {
    job->jpeg.source.err = errors_init(&job->errors);
    if (setjmp(job->errors.escape)) {
        return false;
    }
    jpeg_create_decompress(&job->jpeg.source);
    read_coefficients(&job->jpeg, data->buf, (size_t)data->len);
    write_metadata(job);
    write_head(job);
    write_rows(job);
    jpeg_finish_decompress(&job->jpeg.source);
    return true;
}

static PyObject *joined(const Making *job) {
    const Buffer *parts[] = {&job->metadata, &job->head, &job->ends, &job->lengths, &job->coded};
    size_t size = RECORD_HEADER;
    for (int index = 0; index < 5; index++) {
        size += parts[index]->size;
    }
    PyObject *result = size > UINT32_MAX ? set_error(INPUT_ERROR, "the record would have more than 4 GiB")
                                         : PyBytes_FromStringAndSize(NULL, (Py_ssize_t)size);
    if (!result) {
        return NULL;
    }
    unsigned char *start = (unsigned char *)PyBytes_AsString(result), *out = start + RECORD_HEADER;
    uint32_t fields[5] = {RECORD_VERSION};
    for (int index = 0; index < 5; index++) {
        if (parts[index]->size) {
            memcpy(out, parts[index]->bytes, parts[index]->size);
        }
        out += parts[index]->size;
        if (index < 4) {
            fields[index + 1] = (uint32_t)(out - start);
        }
    }
    memcpy(start, RECORD_MAGIC, RECORD_MAGIC_BYTES);
    for (int index = 0; index < 5; index++) {
        for (int byte = 0; byte < 4; byte++) {
            start[RECORD_MAGIC_BYTES + 4 * index + byte] = (unsigned char)(fields[index] >> 8 * byte);
        }
    }
    return result;
}

PyObject *coefficient_record(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "y*:coefficient_record", &data)) {
        return NULL;
    }
    Making *job = calloc(1, sizeof *job);
    PyObject *result = NULL;
    if (!job) {
        set_error(MEMORY_ERROR, NULL);
    } else {
        bool done;
        Py_BEGIN_ALLOW_THREADS
        done = make(job, &data);
        free_coefficients(&job->jpeg);
        Py_END_ALLOW_THREADS
        result = done ? joined(job) : errors_set(&job->errors);
    }
    if (job) {
        free(job->metadata.bytes);
        free(job->head.bytes);
        free(job->ends.bytes);
        free(job->lengths.bytes);
        free(job->coded.bytes);
        free(job);
    }
    PyBuffer_Release(&data);
    return result;
}

/* --- the coefficients themselves --- */

/* The coefficients of one component, int16 [rows of blocks, blocks in a row, 64], in natural order. */
static PyObject *component_bytes(JpegCoefficients *jpeg, int index) {
    const jpeg_component_info *component = &jpeg->source.comp_info[index];
    size_t row = component->width_in_blocks * sizeof(JBLOCK);
    PyObject *result = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(row * component->height_in_blocks));
    for (JDIMENSION at = 0; result && at < component->height_in_blocks; at++) {
        memcpy(PyBytes_AsString(result) + at * row, coefficient_rows(jpeg, index, (int)at, 1)[0], row);
    }
    return result;
}

static PyObject *all_coefficients(JpegCoefficients *jpeg, Errors *errors, const Py_buffer *data) {
    PyObject *volatile result = NULL;
    jpeg->source.err = errors_init(errors);
    if (setjmp(errors->escape)) {
        Py_XDECREF(result);
        return errors_set(errors);
    }
    jpeg_create_decompress(&jpeg->source);
    read_coefficients(jpeg, data->buf, (size_t)data->len);
    result = PyTuple_New(jpeg->source.num_components);
    for (int index = 0; result && index < jpeg->source.num_components; index++) {
        PyObject *component = component_bytes(jpeg, index);
        if (!component) {
            Py_CLEAR(result);
        } else {
            PyTuple_SetItem(result, index, component);
        }
    }
    return result;
}

PyObject *coefficients(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    const char *reader = "";
    if (!PyArg_ParseTuple(args, "y*|s:coefficients", &data, &reader)) {
        return NULL;
    }
    ReadGroup *read_group = *reader ? named_read_group(reader) : fastest_read_group();
    JpegCoefficients *jpeg = calloc(1, sizeof *jpeg);
    PyObject *result = NULL;
    if (!jpeg) {
        set_error(MEMORY_ERROR, NULL);
    } else if (!read_group) {
        set_error(INPUT_ERROR, "this processor has no such reader");
    } else {
        Errors errors;
        jpeg->input.read_group = read_group;
        result = all_coefficients(jpeg, &errors, &data);
        free_coefficients(jpeg);
    }
    free(jpeg);
    PyBuffer_Release(&data);
    return result;
}
