/* Lets libjpeg read a rectangle of a coefficient record: the record takes the place of the entropy decoder. */

#ifndef PACKTRAIN_COEFFICIENT_INPUT_H
#define PACKTRAIN_COEFFICIENT_INPUT_H

#include "coefficient_record.h"
#include "errors.h"

typedef struct {
    CoefficientRecord record;
    RowReader reader;
    ReadGroup *read_group; /* NULL: the fastest */
    int64_t first_row, last_row; /* of MCUs */
    int64_t row, column;         /* of the next MCU */
    unsigned char *header;       /* of a JPEG, without coded data */
} CoefficientInput;

/* Parses a record, or leaves through `errors`. coefficient_input_close must follow in any case. */
void coefficient_input_open(CoefficientInput *input, Errors *errors, const unsigned char *data, size_t size);

/* Chooses the MCUs that a rectangle needs, which is in pixels of the image divided by `scale`: left, top, width, height.
   Leaves through `errors` if it is not inside the image. */
void coefficient_input_choose(CoefficientInput *input, Errors *errors, const int box[4], int scale);

/* Makes `source` read the header of an image that consists of the chosen MCUs, with the record's EXIF and ICC segments
   if `metadata` is true. */
void coefficient_input_read_header(CoefficientInput *input, j_decompress_ptr source, bool metadata);

/* Takes the place of the entropy decoder, which libjpeg must have set up. */
void coefficient_input_use(CoefficientInput *input, j_decompress_ptr source);

/* Pixels of the image, divided by the scale, to the left of the first MCU and above it. */
int coefficient_input_left(const CoefficientInput *input, int scale);
int coefficient_input_top(const CoefficientInput *input, int scale);

void coefficient_input_close(CoefficientInput *input);

#endif
