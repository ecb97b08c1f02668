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

/* One axis of a resize, in pixels: all of the image and the part of it in memory, and all of the result and the part of
   it that is wanted. */
typedef struct {
    int source, start, length;
    int target, first, count;
} Side;

/* What became of it; LACKS_PIXELS: the wanted part depends on pixels that are not in memory. */
typedef enum { RESIZED, NO_MEMORY, LACKS_PIXELS } Resized;

/* Resizes an image with three bytes per pixel and writes the wanted part as copy_row does. `in` is the first pixel in
   memory; reads nothing at `end` or beyond it. The caller has checked that the parts lie within their wholes. */
Resized resize(Resizer *resizer, const Filter *filter, const unsigned char *in, const unsigned char *end,
               size_t in_step, const Side *across, const Side *down, unsigned char *out, bool mirrored,
               bool past_caches);

#endif
