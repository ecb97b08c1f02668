/* Pillow's antialiased resize. */

#ifndef PACKTRAIN_RESIZE_H
#define PACKTRAIN_RESIZE_H

#include <stdbool.h>
#include <stddef.h>

/* A filter of Pillow's. */
typedef struct {
    bool bicubic;    /* not bilinear */
    bool wide;       /* weights have 22 bits, as in Pillow; otherwise 16, as in pillow-simd */
    bool tall_first; /* columns come before rows in images that become much lower, as since Pillow 13 */
} Filter;

/* The filter for the arguments `resample` and `style`; false if there is none, or not on this processor. */
bool find_filter(int resample, int style, Filter *filter);

/* Working memory of `resize`, to be used for one image after another. */
typedef struct Resizer Resizer;
Resizer *resizer_new(void);
void resizer_free(Resizer *resizer);

/* Resizes an image with three bytes per pixel and writes it as copy_row does; false if there is not enough memory.
   Reads nothing at `end` or beyond it. */
bool resize(Resizer *resizer, const Filter *filter, const unsigned char *in, const unsigned char *end, size_t in_step,
            int width, int height, unsigned char *out, int new_width, int new_height, bool mirrored, bool past_caches);

#endif
