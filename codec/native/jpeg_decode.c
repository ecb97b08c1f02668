/* Decoding of a rectangle of a JPEG. */

#include "functions.h"

#include "coefficient_pixels.h"
#include "errors.h"
#include "huffman_decoder.h"
#include "jpeg_input.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Rows that are decoded at once: libjpeg gives no more than the rows of pixels that one row of chroma samples covers. */
#define ROWS_AT_ONCE 4
/* libjpeg-turbo writes rows past the caches if they are aligned. These rows are overwritten at once, or read again. */
#define ALIGNMENT 64
#define OFF_ALIGNMENT 8
/* The most columns beside the rectangle that stay in the result. libjpeg decodes about two MCUs of them anyway, and rows
   need not be copied then. */
#define MOST_COLUMNS_BESIDE 128

typedef struct {
    struct jpeg_decompress_struct source;
    struct jpeg_progress_mgr monitor;
    Errors errors;
    HuffmanDecoder *huffman;
    CoefficientInput *coefficients; /* NULL for a JPEG */
    bool without_libjpeg;
    unsigned char *rows; /* room for ROWS_AT_ONCE rows as libjpeg gives them */
    size_t line, apart;  /* bytes of such a row, and from one to the next */
    size_t start;        /* offset of the rectangle in the result */
    size_t stride;       /* bytes from one row of the result to the next */
    int left, top, width, height, channels, scale;
} Decoding;

#define BOX(job) (job)->left, (job)->top, (job)->width, (job)->height

/* Skips the MCU columns that the rectangle does not need. Where libjpeg interpolates chroma, it also needs the sample
   next to the rectangle. It does not interpolate rows of one or two samples, so the columns kept must be wider than
   that. */
static void skip_columns(Decoding *job) {
    j_decompress_ptr source = &job->source;
    if (source->num_components == 1 && source->max_h_samp_factor > 1) {
        /* Before version 2, libjpeg-turbo took the MCUs of such an image for as wide as those of several components. */
        return;
    }
    int sampling = source->max_h_samp_factor;
    int mcu = DCTSIZE * sampling, beside = sampling > 1 ? sampling : 0, whole = (int)source->output_width;
    int left = job->left - beside, right = job->left + job->width + beside;
    left = left > 0 ? left / mcu * mcu : 0;
    if (left && whole - left < mcu) {
        left -= mcu;
    }
    right = right < left + mcu ? left + mcu : right;
    right = right < whole ? right : whole;
    if (left || right + mcu <= whole) {
        JDIMENSION offset = (JDIMENSION)left, width = (JDIMENSION)(right - left);
        jpeg_crop_scanline(source, &offset, &width);
        job->left -= (int)offset;
        huffman_decoder_want(job->huffman, (right + mcu - 1) / mcu);
    }
}

static int scaled(JDIMENSION side, int scale) { return ((int)side + scale - 1) / scale; }

/* Does everything up to the first row. */
static bool start_decoding(Decoding *job, const Py_buffer *data) {
    j_decompress_ptr source = &job->source;
    source->err = errors_init(&job->errors);
    if (setjmp(job->errors.escape)) {
        return false;
    }
    if (job->coefficients) {
        coefficient_input_open(job->coefficients, &job->errors, data->buf, (size_t)data->len);
        coefficient_input_choose(job->coefficients, &job->errors, (const int[]){BOX(job)}, job->scale);
        job->without_libjpeg = job->scale == 1 && can_decode_pixels(&job->coefficients->record, job->channels);
    }
    if (job->without_libjpeg) {
        job->stride = (size_t)job->width * (size_t)job->channels;
        return true;
    }
    jpeg_create_decompress(source);
    if (job->coefficients) {
        coefficient_input_read_header(job->coefficients, source, false);
        job->left -= coefficient_input_left(job->coefficients, job->scale);
        job->top -= coefficient_input_top(job->coefficients, job->scale);
    } else {
        read_header(source, data->buf, (size_t)data->len);
    }
    if (job->channels == 1 && source->jpeg_color_space != JCS_GRAYSCALE) {
        errors_raise(&job->errors, INPUT_ERROR, "not a grey image");
    }
    source->out_color_space = job->channels == 1 ? JCS_GRAYSCALE : job->channels == 3 ? JCS_RGB : JCS_EXT_RGBX;
    source->scale_num = 1;
    source->scale_denom = (unsigned)job->scale;
    limit_scans(source, &job->monitor);
    jpeg_start_decompress(source);
    require_complete(source);
    /* A lossless image has only one scale. */
    if ((int)source->output_width != scaled(source->image_width, job->scale) ||
        (int)source->output_height != scaled(source->image_height, job->scale)) {
        errors_raise(&job->errors, INPUT_ERROR, "it cannot be scaled");
    }
    if (job->left > (int)source->output_width - job->width || job->top > (int)source->output_height - job->height) {
        errors_raise(&job->errors, INPUT_ERROR, "the rectangle is not inside the image");
    }
    if (job->coefficients) {
        coefficient_input_use(job->coefficients, source);
    } else {
        huffman_decoder_use(source, job->huffman);
        if (job->scale == 1) {
            skip_columns(job);
        }
    }
    bool straight = (int)source->output_width - job->width <= MOST_COLUMNS_BESIDE;
    job->line = (size_t)source->output_width * (size_t)job->channels;
    job->stride = straight ? job->line : (size_t)job->width * (size_t)job->channels;
    job->start = straight ? (size_t)job->left * (size_t)job->channels : 0;
    job->apart = (job->line + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    job->rows = malloc(OFF_ALIGNMENT + ROWS_AT_ONCE * job->apart);
    if (!job->rows) {
        errors_raise(&job->errors, MEMORY_ERROR, NULL);
    }
    return true;
}

/* Decodes down to the last row of the rectangle. Whole rows of it are written straight to `out`. */
static bool decode_rows(Decoding *job, unsigned char *out) {
    j_decompress_ptr source = &job->source;
    if (setjmp(job->errors.escape)) {
        return false;
    }
    if (job->without_libjpeg) {
        decode_pixels(job->coefficients, (const int[]){BOX(job)}, job->channels, out, &job->errors);
        return true;
    }
    JDIMENSION top = (JDIMENSION)job->top, last = (JDIMENSION)(job->top + job->height);
    bool straight = job->stride == job->line;
    while (source->output_scanline < last) {
        JSAMPROW rows[ROWS_AT_ONCE];
        JDIMENSION first = source->output_scanline;
        JDIMENSION count = last - first < ROWS_AT_ONCE ? last - first : ROWS_AT_ONCE;
        for (JDIMENSION row = 0; row < count; row++) {
            bool wanted = straight && first + row >= top;
            rows[row] = wanted ? out + job->stride * (first + row - top)
                               : job->rows + OFF_ALIGNMENT + job->apart * row;
        }
        count = jpeg_read_scanlines(source, rows, count);
        for (JDIMENSION row = 0; !straight && row < count; row++) {
            if (first + row >= top) {
                memcpy(out + job->stride * (first + row - top), rows[row] + job->left * job->channels, job->stride);
            }
        }
    }
    return true;
}

static bool is_valid(const Decoding *job) {
    return job->left >= 0 && job->top >= 0 && job->width >= 1 && job->height >= 1 &&
           job->width <= JPEG_MAX_DIMENSION && job->height <= JPEG_MAX_DIMENSION &&
           (job->channels == 1 || job->channels == 3 || job->channels == 4) &&
           (job->scale == 1 || job->scale == 2 || job->scale == 4 || job->scale == 8);
}

PyObject *decode(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer data;
    Decoding job = {0};
    if (!PyArg_ParseTuple(args, "y*(iiii)ii:decode", &data, &job.left, &job.top, &job.width, &job.height,
                          &job.channels, &job.scale)) {
        return NULL;
    }
    PyObject *pixels = NULL, *result = NULL;
    bool sound = false, has_memory = false;
    if (!is_valid(&job)) {
        set_error(INPUT_ERROR, "the rectangle, the number of channels or the scale is not valid");
        PyBuffer_Release(&data);
        return NULL;
    }
    if (is_coefficient_record(data.buf, (size_t)data.len)) {
        has_memory = (job.coefficients = calloc(1, sizeof *job.coefficients)) != NULL;
    } else {
        has_memory = (job.huffman = malloc(huffman_decoder_size())) != NULL;
    }
    if (!has_memory) {
        set_error(MEMORY_ERROR, NULL);
    } else {
        Py_BEGIN_ALLOW_THREADS
        sound = start_decoding(&job, &data);
        Py_END_ALLOW_THREADS
        if (sound) {
            /* Pillow maps whole rows that begin at the rectangle's left edge. */
            pixels = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(job.start + job.stride * (size_t)job.height));
        }
        if (pixels) {
            Py_BEGIN_ALLOW_THREADS
            sound = decode_rows(&job, (unsigned char *)PyBytes_AsString(pixels));
            Py_END_ALLOW_THREADS
        }
        if (!sound) {
            errors_set(&job.errors);
        } else if (pixels) {
            result = Py_BuildValue("(Onn)", pixels, (Py_ssize_t)job.start, (Py_ssize_t)job.stride);
        }
        jpeg_destroy_decompress(&job.source);
    }
    Py_XDECREF(pixels);
    free(job.rows);
    free(job.huffman);
    if (job.coefficients) {
        coefficient_input_close(job.coefficients);
        free(job.coefficients);
    }
    PyBuffer_Release(&data);
    return result;
}
