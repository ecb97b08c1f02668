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

static inline void warp_copy(unsigned char *out, const unsigned char *in, int channels) {
    for (int channel = 0; channel < channels; channel++) {
        out[channel] = in[channel];
    }
}

/* Each pixel is made of `taps` x `taps` pixels: 1 for the nearest pixel, only for perspectives; 2 for bilinear, 4 for
   bicubic filters, only for one or three channels. */
void warp_interpolated(const Warp *warp, int taps);

/* The nearest pixels of an affine map whose coordinates stay below 32768, if it is a quarter turn, perhaps mirrored, that
   stays inside the image; false for any other map. */
bool warp_turned(const Warp *warp);

/* Exchanges rows and columns of an image; `out` has `width` rows of `height` pixels. */
void transpose(const unsigned char *in, unsigned char *out, int width, int height, int channels);

#endif
