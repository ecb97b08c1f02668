/* What the parts of packtrain._codec.native._extension share: libjpeg's errors as return values. */

#ifndef PACKTRAIN_JPEG_H
#define PACKTRAIN_JPEG_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <limits.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <jerror.h>
#include <jpeglib.h>

/* The most pixels of an image: twice Pillow's Image.MAX_IMAGE_PIXELS, above which Pillow takes it for a decompression
   bomb. Progressive images need memory for all their coefficients. */
#define MOST_PIXELS (2L * (1024L * 1024 * 1024 / 4 / 3))

/* The most scans of an image. Each takes as long as decoding the whole; a progressive JPEG has about ten. The limit is
   the one of libjpeg-turbo's own fuzzers. */
#define MOST_SCANS 500

/* The segment that holds a crop-ready record's table of restart intervals, and its bytes before the first entry. */
#define TABLE_MARKER (JPEG_APP0 + 9)
#define TABLE_NAME "packtrain" /* with its final zero */
#define TABLE_HEADER 28

/* An error manager that jumps back to its user on errors and on warnings: libjpeg warns of data that it can only guess
   at. */
typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf escape;
    char message[JMSG_LENGTH_MAX];
} Errors;

/* Prepares `errors`; returns what belongs into cinfo.err. */
struct jpeg_error_mgr *errors_init(Errors *errors);

/* Leaves the current libjpeg call with a message of our own. */
_Noreturn void errors_raise(Errors *errors, const char *message);

/* Raises what was escaped from as a Python exception. */
void errors_set(const Errors *errors);

/* Makes the decompressor refuse more than MOST_SCANS scans; `monitor` must live as long as it. */
void limit_scans(j_decompress_ptr source, struct jpeg_progress_mgr *monitor);

/* Reads the header of a whole JPEG in memory. */
void read_header(j_decompress_ptr source, const unsigned char *data, size_t size);

/* Refuses a progressive image whose scans leave something open, once all are read: decoders smooth over that, and each
   version of libjpeg does it differently. */
void require_complete(j_decompress_ptr source);

/* A faster Huffman decoder; libjpeg's stays in use for what it does not understand. To be called after
   jpeg_start_decompress; `entropy` must live as long as the decompressor. */
typedef struct Entropy Entropy;
size_t entropy_size(void);
void entropy_use(j_decompress_ptr source, Entropy *entropy);

/* Copies a row of pixels, mirrored left to right if asked; of one or three channels then, with as much room in `spare`.
   Past the caches: to memory that another core will read; past_caches_done before anybody is told that it is there. */
void copy_row(unsigned char *out, const unsigned char *in, size_t pixels, size_t channels, bool mirrored,
              bool past_caches, unsigned char *spare);
void past_caches_done(void);

/* Whether `view` is height x width x channels bytes, the channels of a pixel and the pixels of a row side by side. */
bool has_dense_rows(const Py_buffer *view);

/* A filter of Pillow's: with weights of 22 bits as Pillow has them (`wide`) or of 16 as pillow-simd; and whether columns
   come before rows in images that become much lower (`tall_first`), as since Pillow 13. */
typedef struct {
    bool bicubic, wide, tall_first;
} Filter;

/* Memory that resizing needs, for one image after the other. */
typedef struct Resizer Resizer;
Resizer *resizer_new(void);
void resizer_free(Resizer *resizer);

/* The filter of the arguments `resample` and `style`; false if there is none. */
bool filter_of(int resample, int style, Filter *filter);

/* Whether this can be the side of an image that is resized. */
static inline bool is_side(Py_ssize_t pixels) { return pixels >= 1 && pixels <= INT_MAX / 64; }

/* Resizes an image of three bytes per pixel and writes it like copy_row; false if there is no memory for it. Nothing
   is read from `end` on. */
bool resize(Resizer *resizer, const Filter *filter, const unsigned char *in, const unsigned char *end, size_t in_step,
            int width, int height, unsigned char *out, int new_width, int new_height, bool mirrored, bool past_caches);

/* To be called once, before copy_records. */
void records_init(void);

PyObject *transcode(PyObject *module, PyObject *args);
PyObject *cut(PyObject *module, PyObject *args);
PyObject *decode(PyObject *module, PyObject *args);
PyObject *rgb_to_rgbx(PyObject *module, PyObject *args);
PyObject *rgbx_to_rgb(PyObject *module, PyObject *args);
PyObject *copy_pixels(PyObject *module, PyObject *args);
PyObject *copy_records(PyObject *module, PyObject *args);
PyObject *resize_pixels(PyObject *module, PyObject *args);

#endif
