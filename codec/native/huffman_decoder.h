/* A Huffman decoder for libjpeg that is faster than its own. */

#ifndef PACKTRAIN_HUFFMAN_DECODER_H
#define PACKTRAIN_HUFFMAN_DECODER_H

#include <stddef.h>
#include <stdio.h>
#include <jpeglib.h>

typedef struct HuffmanDecoder HuffmanDecoder;

/* Bytes of a HuffmanDecoder. */
size_t huffman_decoder_size(void);

/* Replaces libjpeg's decoder where this one understands the image. Call it after jpeg_start_decompress; source->err
   must belong to an `Errors`, and `decoder` must live as long as the decompressor. */
void huffman_decoder_use(j_decompress_ptr source, HuffmanDecoder *decoder);

/* Makes libjpeg call `decode_mcu` to read the coefficients of each MCU. False if its entropy decoder is not where this
   was written for. Call it after jpeg_start_decompress. */
boolean replace_entropy_decoder(j_decompress_ptr source, boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *));

/* Only the first `columns` MCUs of each row are wanted from now on: the others may get no coefficients. Call it before
   the first row is decoded. */
void huffman_decoder_want(HuffmanDecoder *decoder, int columns);

#endif
