/* Decoding of a rectangle of a JPEG. */

#include "functions.h"

#include "errors.h"
#include "huffman_decoder.h"
#include "jpeg_input.h"

#include <stdbool.h>
#include <stdlib.h>

typedef struct {
    struct jpeg_decompress_struct source;
    struct jpeg_progress_mgr monitor;
    Errors errors;
    HuffmanDecoder *huffman;
    int left, top, width, height, channels, scale;
} Decoding;

/* Skips the MCU columns that the rectangle does not need. Where libjpeg interpolates chroma, it also needs the sample
   next to the rectangle. It does not interpolate rows of one or two samples, so the columns kept must be wider than
   that. */
static void skip_columns(Decoding *job) {
    j_decompress_ptr source = &job->source;
    int sampling = source->num_components == 1 ? 1 : source->max_h_samp_factor;
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
    }
}

/* Does everything up to the first row. */
static bool start_decoding(Decoding *job, const Py_buffer *data) {
    j_decompress_ptr source = &job->source;
    source->err = errors_init(&job->errors);
    if (setjmp(job->errors.escape)) {
        return false;
    }
    jpeg_create_decompress(source);
    read_header(source, data->buf, (size_t)data->len);
    if (job->channels == 1 && source->jpeg_color_space != JCS_GRAYSCALE) {
        errors_raise(&job->errors, "not a grey image");
    }
    source->out_color_space = job->channels == 1 ? JCS_GRAYSCALE : job->channels == 3 ? JCS_RGB : JCS_EXT_RGBX;
    source->scale_num = 1;
    source->scale_denom = (unsigned)job->scale;
    limit_scans(source, &job->monitor);
    jpeg_start_decompress(source);
    require_complete(source);
    if (job->left > (int)source->output_width - job->width || job->top > (int)source->output_height - job->height) {
        errors_raise(&job->errors, "the rectangle is not inside the image");
    }
    huffman_decoder_use(source, job->huffman);
    if (job->scale == 1) {
        skip_columns(job);
    }
    return true;
}

static bool decode_rows(Decoding *job, unsigned char *out, size_t stride) {
    j_decompress_ptr source = &job->source;
    if (setjmp(job->errors.escape)) {
        return false;
    }
    JDIMENSION last = (JDIMENSION)(job->top + job->height);
    while (source->output_scanline < last) {
        JSAMPROW rows[16];
        JDIMENSION count = 0;
        for (; count < 16 && source->output_scanline + count < last; count++) {
            rows[count] = out + stride * (source->output_scanline + count);
        }
        jpeg_read_scanlines(source, rows, count);
    }
    return true;
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
    bool sound = false;
    job.huffman = malloc(huffman_decoder_size());
    if (!job.huffman) {
        PyErr_NoMemory();
    } else if (job.left < 0 || job.top < 0 || job.width < 1 || job.height < 1 || job.width > JPEG_MAX_DIMENSION ||
               job.height > JPEG_MAX_DIMENSION || (job.channels != 1 && job.channels != 3 && job.channels != 4) ||
               (job.scale != 1 && job.scale != 2 && job.scale != 4 && job.scale != 8)) {
        PyErr_SetString(PyExc_ValueError, "the rectangle, the number of channels or the scale is not valid");
    } else {
        Py_BEGIN_ALLOW_THREADS
        sound = start_decoding(&job, &data);
        Py_END_ALLOW_THREADS
        if (sound) {
            /* One row more than there are: Pillow maps whole rows that begin at the rectangle's left edge. */
            size_t stride = (size_t)job.source.output_width * (size_t)job.channels;
            pixels = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)(stride * (size_t)(job.top + job.height + 1)));
            if (pixels) {
                Py_BEGIN_ALLOW_THREADS
                sound = decode_rows(&job, (unsigned char *)PyBytes_AS_STRING(pixels), stride);
                Py_END_ALLOW_THREADS
                size_t offset = stride * (size_t)job.top + (size_t)job.left * (size_t)job.channels;
                result = sound ? Py_BuildValue("(Onn)", pixels, (Py_ssize_t)offset, (Py_ssize_t)stride) : NULL;
            }
        }
        if (!sound) {
            errors_set(&job.errors);
        }
        jpeg_destroy_decompress(&job.source);
    }
    Py_XDECREF(pixels);
    free(job.huffman);
    PyBuffer_Release(&data);
    return result;
}
