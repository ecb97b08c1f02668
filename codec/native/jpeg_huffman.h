/* Optimal Huffman tables for the coefficients of a JPEG. */

#ifndef PACKTRAIN_JPEG_HUFFMAN_H
#define PACKTRAIN_JPEG_HUFFMAN_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <jpeglib.h>

/* How often each symbol occurs; the extra entry is that of the code that must stay free. */
typedef struct {
    uint32_t symbols[257];
} Histogram;

/* Counts the symbols of one block whose predecessor's DC coefficient is `previous`. False: a coefficient is out of the
   range that a baseline JPEG can express. */
bool count_block(const JCOEF *block, int previous, Histogram *dc, Histogram *ac);

/* Makes the optimal table for the counted symbols (ITU-T T.81, annex K.2). */
void make_table(const Histogram *histogram, JHUFF_TBL *table);

#endif
