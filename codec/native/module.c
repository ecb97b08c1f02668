/* packtrain._codec.native._extension: lossless transcoding and direct decoding of JPEGs over libjpeg. _extension.pyi says what each
   function does. */

#include "native.h"

#include <stdlib.h>
#include <string.h>

/* --- errors --- */

static void escape(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    errors->base.format_message(info, errors->message);
    longjmp(errors->escape, 1);
}

static void emit(j_common_ptr info, int level) {
    if (level < 0) {
        escape(info);
    }
}

struct jpeg_error_mgr *errors_init(Errors *errors) {
    jpeg_std_error(&errors->base);
    errors->base.error_exit = escape;
    errors->base.emit_message = emit;
    return &errors->base;
}

void errors_raise(Errors *errors, const char *message) {
    errors->base.msg_code = 0;
    strncpy(errors->message, message, sizeof errors->message - 1);
    longjmp(errors->escape, 1);
}

void errors_set(const Errors *errors) {
    bool memory = errors->base.msg_code == JERR_OUT_OF_MEMORY;
    PyErr_SetString(memory ? PyExc_MemoryError : PyExc_ValueError, errors->message);
}

static void watch(j_common_ptr info) {
    if (((j_decompress_ptr)info)->input_scan_number > MOST_SCANS) {
        errors_raise((Errors *)info->err, "too many scans");
    }
}

void limit_scans(j_decompress_ptr source, struct jpeg_progress_mgr *monitor) {
    monitor->progress_monitor = watch;
    source->progress = monitor;
}

void read_header(j_decompress_ptr source, const unsigned char *data, size_t size) {
    jpeg_mem_src(source, data, size);
    jpeg_read_header(source, TRUE);
    if ((long)source->image_width * (long)source->image_height > MOST_PIXELS) {
        errors_raise((Errors *)source->err, "too many pixels");
    }
}

void require_complete(j_decompress_ptr source) {
    for (int index = 0; source->progressive_mode && index < source->num_components; index++) {
        for (int position = 0; position < DCTSIZE2; position++) {
            if (source->coef_bits[index][position]) {
                errors_raise((Errors *)source->err, "a progressive image that is not complete");
            }
        }
    }
}

/* --- decoding --- */

typedef struct {
    struct jpeg_decompress_struct source;
    struct jpeg_progress_mgr monitor;
    Errors errors;
    Entropy *entropy;
    int left, top, width, height, channels, scale;
} Decoding;

/* Leaves out the MCU columns that the rectangle does not need. Where libjpeg interpolates chroma, the sample beside the
   rectangle counts too, and an image of at most two samples would not be interpolated: a wider one is asked for. */
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

/* Everything up to the first row. */
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
    entropy_use(source, job->entropy);
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
    job.entropy = malloc(entropy_size());
    if (!job.entropy) {
        PyErr_NoMemory();
    } else if (job.left < 0 || job.top < 0 || job.width < 1 || job.height < 1 || job.width > JPEG_MAX_DIMENSION ||
               job.height > JPEG_MAX_DIMENSION || (job.channels != 1 && job.channels != 3 && job.channels != 4) ||
               (job.scale != 1 && job.scale != 2 && job.scale != 4 && job.scale != 8)) {
        PyErr_SetString(PyExc_ValueError, "no such rectangle, number of channels, or scale");
    } else {
        Py_BEGIN_ALLOW_THREADS
        sound = start_decoding(&job, &data);
        Py_END_ALLOW_THREADS
        if (sound) {
            /* One row more than there are: Pillow asks for whole ones from the rectangle's left edge on. */
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
    free(job.entropy);
    PyBuffer_Release(&data);
    return result;
}

static PyMethodDef methods[] = {
    {"transcode", transcode, METH_VARARGS, NULL},
    {"cut", cut, METH_VARARGS, NULL},
    {"decode", decode, METH_VARARGS, NULL},
    {"rgb_to_rgbx", rgb_to_rgbx, METH_VARARGS, NULL},
    {"rgbx_to_rgb", rgbx_to_rgb, METH_VARARGS, NULL},
    {"copy_pixels", copy_pixels, METH_VARARGS, NULL},
    {"copy_records", copy_records, METH_VARARGS, NULL},
    {"resize_pixels", resize_pixels, METH_VARARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_extension", NULL, 0, methods, NULL, NULL, NULL, NULL};

#define TEXT_OF(token) #token
#define TEXT(macro) TEXT_OF(macro)

PyMODINIT_FUNC PyInit__extension(void) {
    records_init();
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddStringConstant(module, "LIBJPEG", "libjpeg-turbo " TEXT(LIBJPEG_TURBO_VERSION)) < 0) {
        Py_CLEAR(module);
    }
    return module;
}
