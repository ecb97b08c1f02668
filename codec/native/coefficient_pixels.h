/* Decodes a rectangle of a coefficient record without libjpeg, to the same pixels. */

#ifndef PACKTRAIN_COEFFICIENT_PIXELS_H
#define PACKTRAIN_COEFFICIENT_PIXELS_H

#include "coefficient_input.h"

/* Whether the image is one that `decode_pixels` decodes, on this processor: grey or YCbCr, with chroma as large as luma
   or half as wide, and perhaps half as high. */
bool can_decode_pixels(const CoefficientRecord *record, int channels);

/* Decodes a rectangle inside the image (left, top, width, height, in pixels) to `out`, uint8 [height, width, channels].
   `input` has been told the MCUs that it needs. `channels` is 3 for RGB, 4 for RGBX, or 1 for a grey image. Leaves
   through `errors`. */
void decode_pixels(CoefficientInput *input, const int box[4], int channels, unsigned char *out, Errors *errors);

#endif
