/* The quantised coefficients of a JPEG, whatever its entropy coding, or of a coefficient record. */

#ifndef PACKTRAIN_JPEG_COEFFICIENTS_H
#define PACKTRAIN_JPEG_COEFFICIENTS_H

#include "coefficient_input.h"
#include "errors.h"
#include "huffman_decoder.h"

/* `source` must be created, and its error manager that of an `Errors`, before it is read. */
typedef struct {
    struct jpeg_decompress_struct source;
    struct jpeg_progress_mgr monitor;
    HuffmanDecoder *huffman; /* for a JPEG */
    CoefficientInput input;  /* for a record */
    size_t coded;            /* bytes after the first scan header of a JPEG, or of a record's groups */
    jvirt_barray_ptr *arrays;
} JpegCoefficients;

/* Reads a record, or a JPEG of 8 bits whose colours are grey, YCbCr or RGB, and which a baseline JPEG can have. Its EXIF
   and ICC segments are kept in the list of markers. Leaves through the `Errors` where it refuses the image. */
void read_coefficients(JpegCoefficients *jpeg, const unsigned char *data, size_t size);

/* Reads the MCUs of a record that a rectangle needs (left, top, width, height), without its EXIF and ICC segments. */
void read_part_of_record(JpegCoefficients *jpeg, const unsigned char *data, size_t size, const int box[4]);

/* Frees all that has been read, also if that was not finished. */
void free_coefficients(JpegCoefficients *jpeg);

/* Whether a segment holds EXIF or ICC data. */
boolean is_metadata(jpeg_saved_marker_ptr marker);

/* Rows of blocks `row` to `row + count` of a component. */
JBLOCKARRAY coefficient_rows(JpegCoefficients *jpeg, int component, int row, int count);

#endif
