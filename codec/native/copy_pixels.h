/* Copies of rows of pixels. */

#ifndef PACKTRAIN_COPY_PIXELS_H
#define PACKTRAIN_COPY_PIXELS_H

#include <stdbool.h>
#include <stddef.h>

/* Copies a row of pixels. If `mirrored`, left and right are exchanged: `channels` must then be one or three, and
   `spare` must have room for the row. `past_caches` writes straight to memory, for another core to read; call
   past_caches_done before telling that core about it. */
void copy_row(unsigned char *out, const unsigned char *in, size_t pixels, size_t channels, bool mirrored,
              bool past_caches, unsigned char *spare);

/* Copies a row of pixels, left and right exchanged; `channels` must be one or three. Touches no byte beyond them. */
void mirror_row(unsigned char *out, const unsigned char *in, size_t pixels, size_t channels);

/* Makes rows that were written past the caches visible to other cores. */
void past_caches_done(void);

#endif
