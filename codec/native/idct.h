/* The accurate inverse DCT of libjpeg-turbo ("islow"), with its results to the last bit, in AVX2. */

#ifndef PACKTRAIN_IDCT_H
#define PACKTRAIN_IDCT_H

#include "simd.h"

#ifdef HAS_X86_SIMD

#include <stddef.h>
#include <stdint.h>

/* Turns a block of coefficients (in natural order) into eight rows of eight samples. `table` is the quantisation table
   in natural order, `bands` says which bands of the block hold anything (docs/format-records.md). */
AVX2 void idct_avx2(const int16_t *block, const int16_t *table, unsigned bands, unsigned char *out, ptrdiff_t stride);

#endif
#endif
