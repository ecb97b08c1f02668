/* Optimal Huffman tables for the coefficients of a JPEG. */

#ifndef PACKTRAIN_HUFFMAN_TABLES_H
#define PACKTRAIN_HUFFMAN_TABLES_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <jpeglib.h>

/* How often each symbol occurs. The extra entry is for the code that must stay unused. */
typedef struct {
    uint32_t symbols[257];
} Histogram;

/* Counts the symbols of one block; `previous` is the DC coefficient of the block before it. False if a coefficient is
   out of the range of a baseline JPEG. */
bool count_block(const JCOEF *block, int previous, Histogram *dc, Histogram *ac);

/* Makes the optimal table for the counted symbols (ITU-T T.81, annex K.2). */
void make_table(const Histogram *histogram, JHUFF_TBL *table);

#endif
