/* Makes a baseline JPEG with restart markers, and a table of them, of any JPEG with 8 bits and one or three components.
   No coefficient changes, and so no pixel. docs/format-records.md specifies the result. */

#include "functions.h"

#include "errors.h"
#include "huffman_tables.h"
#include "interval_table.h"
#include "jpeg_coefficients.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* The most bytes of a segment, without its marker and length. */
#define SEGMENT_MOST 65533

/* The fewest bytes between two restart markers, on average. Each interval costs about four bytes, and a rectangle is
   decoded from whole intervals. docs/decisions has the measurements. */
#ifndef INTERVAL_BYTES
#define INTERVAL_BYTES 700
#endif

typedef struct {
    JpegCoefficients jpeg;
    struct jpeg_compress_struct target;
    struct jpeg_destination_mgr output;
    Errors errors;
    const unsigned char *data;
    size_t size;
    const int *box; /* what to transcode of a record; NULL for all of it */
    unsigned char *encoded; /* what libjpeg writes */
    size_t encoded_size;
    uint32_t *lengths;     /* of the restart intervals, in bytes */
    unsigned char *result; /* `encoded` with the table inserted */
    size_t result_size;
} Job;

/* --- reading --- */

static void require(Job *job, bool condition, const char *message) {
    if (!condition) {
        errors_raise(&job->errors, INPUT_ERROR, message);
    }
}

static void *require_memory(Job *job, void *memory) {
    if (!memory) {
        errors_raise(&job->errors, MEMORY_ERROR, NULL);
    }
    return memory;
}

/* --- restart intervals --- */

/* MCUs in a row of the target. */
static int columns_of(j_decompress_ptr source) {
    int mcu = source->num_components == 1 ? DCTSIZE : DCTSIZE * source->max_h_samp_factor;
    return ((int)source->image_width + mcu - 1) / mcu;
}

/* Rows of MCUs in the target. */
static int rows_of(j_decompress_ptr source) {
    int mcu = source->num_components == 1 ? DCTSIZE : DCTSIZE * source->max_v_samp_factor;
    return ((int)source->image_height + mcu - 1) / mcu;
}

/* MCUs between restart markers: a divisor of the columns, so that every row begins with a new interval. */
static int interval_of(int columns, int rows, size_t size) {
    for (int interval = 1; interval < columns; interval++) {
        size_t count = (size_t)rows * (size_t)(columns / interval);
        if (columns % interval == 0 && size / count >= INTERVAL_BYTES && TABLE_HEADER + 4 * count <= SEGMENT_MOST) {
            return interval;
        }
    }
    return columns;
}

/* --- Huffman tables --- */

/* Counts the symbols of all coefficients: [0] counts those of the first component, [1] those of the others. */
static void count_symbols(Job *job, int columns, int interval, Histogram dc[2], Histogram ac[2]) {
    j_compress_ptr target = &job->target;
    for (int index = 0; index < target->num_components; index++) {
        jpeg_component_info *component = &job->jpeg.source.comp_info[index];
        bool alone = target->num_components == 1;
        int across = alone ? 1 : component->h_samp_factor, down = alone ? 1 : component->v_samp_factor;
        int last_column = (int)component->width_in_blocks, last_row = (int)component->height_in_blocks;
        int rows = (last_row + down - 1) / down;
        for (int row = 0; row < rows; row++) {
            int here = last_row - row * down < down ? last_row - row * down : down;
            JBLOCKARRAY lines = coefficient_rows(&job->jpeg, index, row * down, here);
            int previous = 0;
            for (int mcu = 0; mcu < columns; mcu++) {
                previous = mcu % interval ? previous : 0;
                for (int line = 0; line < here; line++) {
                    for (int column = mcu * across; column < (mcu + 1) * across && column < last_column; column++) {
                        const JCOEF *block = lines[line][column];
                        require(job, count_block(block, previous, &dc[index > 0], &ac[index > 0]),
                                "a coefficient is out of range");
                        previous = block[0];
                    }
                }
            }
        }
    }
}

/* Makes the best tables for the image. Also refuses coefficients that no baseline JPEG can have, whose tables may be the
   usual ones: libjpeg does not always notice. */
static void set_tables(Job *job, int columns, int interval, bool optimise) {
    j_compress_ptr target = &job->target;
    Histogram dc[2] = {0}, ac[2] = {0};
    count_symbols(job, columns, interval, dc, ac);
    for (int kind = 0; optimise && kind < (target->num_components > 1 ? 2 : 1); kind++) {
        /* The last MCUs are filled up with blocks that have these symbols. */
        dc[kind].symbols[0]++;
        ac[kind].symbols[0]++;
        make_table(&dc[kind], target->dc_huff_tbl_ptrs[kind]);
        make_table(&ac[kind], target->ac_huff_tbl_ptrs[kind]);
    }
}

/* --- writing --- */

/* A destination of our own: libjpeg's frees its memory twice when memory runs out. */
static void start_output(j_compress_ptr target) {
    Job *job = target->client_data;
    job->encoded_size = job->size + 4096;
    job->encoded = require_memory(job, malloc(job->encoded_size));
    job->output.next_output_byte = job->encoded;
    job->output.free_in_buffer = job->encoded_size;
}

static boolean grow_output(j_compress_ptr target) {
    Job *job = target->client_data;
    job->encoded = require_memory(job, realloc(job->encoded, 2 * job->encoded_size));
    job->output.next_output_byte = job->encoded + job->encoded_size;
    job->output.free_in_buffer = job->encoded_size;
    job->encoded_size *= 2;
    return TRUE;
}

static void end_output(j_compress_ptr target) {
    Job *job = target->client_data;
    job->encoded_size -= job->output.free_in_buffer;
}

static void write_target(Job *job, bool optimise) {
    j_compress_ptr target = &job->target;
    j_decompress_ptr source = &job->jpeg.source;
    target->client_data = job;
    target->dest = &job->output;
    job->output.init_destination = start_output;
    job->output.empty_output_buffer = grow_output;
    job->output.term_destination = end_output;
    jpeg_copy_critical_parameters(source, target);
    /* mozjpeg's defaults are several scans, with tables of its own. */
    target->num_scans = 0;
    target->scan_info = NULL;
    target->optimize_coding = FALSE;
    target->arith_code = FALSE;
    for (int index = 0; index < target->num_components; index++) {
        jpeg_component_info *component = &target->comp_info[index];
        /* Decoders derive the colour space from these numbers or from an Adobe marker. */
        component->component_id = index + 1;
        component->dc_tbl_no = component->ac_tbl_no = index > 0;
        if (target->num_components == 1) {
            component->h_samp_factor = component->v_samp_factor = 1;
        }
    }
    int columns = columns_of(source), interval = interval_of(columns, rows_of(source), job->jpeg.coded);
    target->restart_interval = (unsigned)interval;
    target->write_JFIF_header = source->saw_JFIF_marker && source->jpeg_color_space != JCS_RGB;
    target->write_Adobe_marker = FALSE;
    set_tables(job, columns, interval, optimise);
    jpeg_write_coefficients(target, job->jpeg.arrays);
    for (jpeg_saved_marker_ptr marker = source->marker_list; marker; marker = marker->next) {
        if (is_metadata(marker)) {
            jpeg_write_marker(target, marker->marker, marker->data, marker->data_length);
        }
    }
    if (source->jpeg_color_space == JCS_RGB) {
        static const unsigned char no_transform[12] = {'A', 'd', 'o', 'b', 'e', 0, 100, 0, 0, 0, 0, 0};
        jpeg_write_marker(target, JPEG_APP0 + 14, no_transform, sizeof no_transform);
    }
    jpeg_finish_compress(target);
    jpeg_finish_decompress(source);
}

/* --- the table --- */

static void put(unsigned char **out, uint32_t value, int bytes) {
    for (; bytes; bytes--, value >>= 8) {
        *(*out)++ = (unsigned char)value;
    }
}

static size_t next_segment(const unsigned char *data, size_t position) {
    return position + 2 + ((size_t)data[position + 2] << 8 | data[position + 3]);
}

/* Offsets of the parts of the encoded image. */
typedef struct {
    size_t table; /* where the table will be inserted: after SOI and JFIF */
    size_t head, frame, scan;
} Parts;

static Parts find_parts(const unsigned char *encoded) {
    Parts parts = {2, 0, 0, 0};
    for (size_t position = 2; !parts.scan; position = next_segment(encoded, position)) {
        switch (encoded[position + 1]) {
        case 0xe0:
            parts.table = next_segment(encoded, position);
            break;
        case 0xee:
        case 0xdb:
            parts.head = parts.head ? parts.head : position;
            break;
        case 0xc0:
        case 0xc1:
            parts.frame = position;
            break;
        case 0xda:
            parts.scan = next_segment(encoded, position);
            break;
        }
    }
    return parts;
}

/* Writes the length of each of `count` restart intervals, including the marker that ends it, to `lengths`. Returns the
   largest, or 0 if there are more or fewer than `count`. */
static size_t measure_intervals(const Job *job, size_t scan, uint32_t *lengths, size_t count) {
    const unsigned char *start = job->encoded + scan, *end = job->encoded + job->encoded_size, *at = start;
    size_t found = 0, largest = 0;
    for (; (at = memchr(at, 0xff, (size_t)(end - at))); at += 2) {
        if (at[1] != 0) {
            if (found == count) {
                return 0;
            }
            size_t length = (size_t)(at + 2 - start);
            largest = length > largest ? length : largest;
            lengths[found++] = (uint32_t)length;
            start = at + 2;
        }
    }
    return found == count ? largest : 0;
}

/* Copies the encoded image to the result, and inserts the table of restart intervals. */
static void insert_table(Job *job) {
    Parts parts = find_parts(job->encoded);
    int per_row = columns_of(&job->jpeg.source) / (int)job->target.restart_interval;
    size_t count = (size_t)rows_of(&job->jpeg.source) * (size_t)per_row;
    job->lengths = require_memory(job, malloc(count * sizeof *job->lengths));
    size_t largest = measure_intervals(job, parts.scan, job->lengths, count);
    int wide = largest > 0xffff ? 4 : 2;
    size_t bytes = TABLE_HEADER + count * (size_t)wide;
    if (!largest || bytes > SEGMENT_MOST) {
        errors_raise(&job->errors, LIBRARY_ERROR, "libjpeg did not write the restart markers that it was asked for");
    }
    size_t segment = 4 + bytes;
    unsigned char *out = job->result = require_memory(job, malloc(job->encoded_size + segment));
    job->result_size = job->encoded_size + segment;
    memcpy(out, job->encoded, parts.table);
    out += parts.table;
    const unsigned char marker[4] = {0xff, TABLE_MARKER, (unsigned char)((bytes + 2) >> 8), (unsigned char)(bytes + 2)};
    memcpy(out, marker, sizeof marker);
    memcpy(out + sizeof marker, TABLE_NAME, sizeof TABLE_NAME);
    out += sizeof marker + sizeof TABLE_NAME;
    put(&out, (uint32_t)wide, 2);
    put(&out, (uint32_t)(parts.head + segment), 4);
    put(&out, (uint32_t)(parts.frame + segment), 4);
    put(&out, (uint32_t)(parts.scan + segment), 4);
    put(&out, job->target.restart_interval, 4);
    for (size_t index = 0; index < count; index++) {
        put(&out, job->lengths[index], wide);
    }
    memcpy(out, job->encoded + parts.table, job->encoded_size - parts.table);
}

static bool run(Job *job, bool optimise) {
    job->jpeg.source.err = job->target.err = errors_init(&job->errors);
    if (setjmp(job->errors.escape)) {
        return false;
    }
    jpeg_create_decompress(&job->jpeg.source);
    jpeg_create_compress(&job->target);
    if (job->box) {
        read_part_of_record(&job->jpeg, job->data, job->size, job->box);
    } else {
        read_coefficients(&job->jpeg, job->data, job->size);
    }
    write_target(job, optimise);
    insert_table(job);
    return true;
}

/* Transcodes a JPEG or a record; or, if `box` is not NULL, the part of a record that it needs: then the result says where
   in the image that part begins. */
static PyObject *transcoded(const Py_buffer *data, bool optimise, const int *box) {
    Job *job = calloc(1, sizeof *job);
    if (!job) {
        return set_error(MEMORY_ERROR, NULL);
    }
    job->data = data->buf;
    job->size = (size_t)data->len;
    job->box = box;
    bool done;
    Py_BEGIN_ALLOW_THREADS
    done = run(job, optimise);
    jpeg_destroy_compress(&job->target);
    free_coefficients(&job->jpeg);
    Py_END_ALLOW_THREADS
    PyObject *result = NULL;
    if (!done) {
        errors_set(&job->errors);
    } else {
        result = PyBytes_FromStringAndSize((const char *)job->result, (Py_ssize_t)job->result_size);
    }
    if (result && box) {
        result = Py_BuildValue("(Nii)", result, coefficient_input_left(&job->jpeg.input, 1),
                               coefficient_input_top(&job->jpeg.input, 1));
    }
    free(job->encoded);
    free(job->lengths);
    free(job->result);
    free(job);
    return result;
}

PyObject *transcode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    int optimise = 1;
    if (!PyArg_ParseTuple(args, "y*|p:transcode", &data, &optimise)) {
        return NULL;
    }
    PyObject *result = transcoded(&data, optimise, NULL);
    PyBuffer_Release(&data);
    return result;
}

PyObject *transcode_part(const Py_buffer *record, const int box[4]) { return transcoded(record, false, box); }
