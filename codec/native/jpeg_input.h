/* What JPEGs we accept, however they are used afterwards. */

#ifndef PACKTRAIN_JPEG_INPUT_H
#define PACKTRAIN_JPEG_INPUT_H

#include <stddef.h>
#include <stdio.h>
#include <jpeglib.h>

/* All functions expect that source->err belongs to an `Errors`, and leave through it where they refuse an image. */

/* Reads the header of a whole JPEG in memory. */
void read_header(j_decompress_ptr source, const unsigned char *data, size_t size);

/* Makes the decompressor refuse images with too many scans. `monitor` must live as long as the decompressor. */
void limit_scans(j_decompress_ptr source, struct jpeg_progress_mgr *monitor);

/* Refuses a progressive image whose scans do not determine all coefficients. Call it once all scans have been read.
   Decoders smooth over such gaps, and each version of libjpeg does so differently. */
void require_complete(j_decompress_ptr source);

#endif
