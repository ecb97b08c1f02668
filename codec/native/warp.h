/* Pillow's affine and perspective transforms. */

#ifndef PACKTRAIN_WARP_H
#define PACKTRAIN_WARP_H

#include <stdbool.h>
#include <stddef.h>

/* An image to be read at other places: pixel (x, y) of the output is taken from (x', y') of the input, where
   x' = (a0 x + a1 y + a2) / d and y' = (a3 x + a4 y + a5) / d, and d is 1, or (a6 x + a7 y + 1) for a perspective. */
typedef struct {
    const unsigned char *in;
    unsigned char *out;
    int width, height; /* of the input */
    int out_width, out_height;
    int channels;
    bool perspective;
    double a[8];
    unsigned char fill[4];
} Warp;

static inline size_t warp_step(const Warp *warp) { return (size_t)warp->width * (size_t)warp->channels; }

/* Where the centre of pixel (x, y) of the output lies in the input. The order of the operations is that of Pillow. */
static inline void warp_place(const Warp *warp, bool perspective, int x, int y, double *to_x, double *to_y) {
    const double *a = warp->a;
    double across = x + 0.5, down = y + 0.5;
    *to_x = a[0] * across + a[1] * down + a[2];
    *to_y = a[3] * across + a[4] * down + a[5];
    if (perspective) {
        double depth = a[6] * across + a[7] * down + 1;
        *to_x /= depth;
        *to_y /= depth;
    }
}

static inline void warp_copy(unsigned char *out, const unsigned char *in, int channels) {
    for (int channel = 0; channel < channels; channel++) {
        out[channel] = in[channel];
    }
}

/* Each pixel is made of 2 x 2 pixels, or of 4 x 4 ones; for one or three channels. */
void warp_bilinear(const Warp *warp);
void warp_bicubic(const Warp *warp);

#endif
