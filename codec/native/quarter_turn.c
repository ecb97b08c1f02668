/* Quarter turns: a row of the output runs down a column of the input, or up. */

#include "warp.h"

#include "simd.h"

#include <math.h>
#include <string.h>

/* Turned as a whole, so that the lines of the input that it touches stay in the cache. */
#define BLOCK 32

/* Where pixels come from: how many bytes of the input lie between the neighbours in a row and in a column of the output,
   which may be negative. */
typedef struct {
    const unsigned char *first, *end;
    ptrdiff_t across, down;
} Turn;

/* The part of the output from (left, top) to (right, bottom). */
INLINE void turn_pixels(const Warp *warp, const Turn *turn, int left, int top, int right, int bottom, int channels) {
    for (int y = top; y < bottom; y++) {
        unsigned char *out = warp->out + ((size_t)y * (size_t)warp->out_width + (size_t)left) * (size_t)channels;
        const unsigned char *in = turn->first + left * turn->across + y * turn->down;
        for (int x = left; x < right; x++, out += channels, in += turn->across) {
            warp_copy(out, in, channels);
        }
    }
}

typedef void Part(const Warp *, const Turn *, int, int, int, int);

static void turn_part(const Warp *warp, const Turn *turn, int left, int top, int right, int bottom) {
    if (warp->channels == 1) {
        turn_pixels(warp, turn, left, top, right, bottom, 1);
    } else if (warp->channels == 3) {
        turn_pixels(warp, turn, left, top, right, bottom, 3);
    } else {
        turn_pixels(warp, turn, left, top, right, bottom, 4);
    }
}

#ifdef HAS_SIMD
/* Four times four pixels of three bytes; writes no byte beyond them. The registers read four bytes more than that. */
SSSE3 static void turn_four(unsigned char *out, size_t row, const unsigned char *in, ptrdiff_t across, __m128i order) {
    const __m128i narrow = _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -1, -1, -1, -1);
    __m128i lines[4], pixels[4];
    for (int x = 0; x < 4; x++) {
        lines[x] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(in + x * across)), order);
    }
    __m128i a = _mm_unpacklo_epi32(lines[0], lines[1]), b = _mm_unpacklo_epi32(lines[2], lines[3]);
    __m128i c = _mm_unpackhi_epi32(lines[0], lines[1]), d = _mm_unpackhi_epi32(lines[2], lines[3]);
    pixels[0] = _mm_unpacklo_epi64(a, b), pixels[1] = _mm_unpackhi_epi64(a, b);
    pixels[2] = _mm_unpacklo_epi64(c, d), pixels[3] = _mm_unpackhi_epi64(c, d);
    for (int y = 0; y < 4; y++, out += row) {
        __m128i bytes = _mm_shuffle_epi8(pixels[y], narrow);
        int last = _mm_cvtsi128_si32(_mm_srli_si128(bytes, 8));
        _mm_storel_epi64((__m128i *)out, bytes);
        memcpy(out + 8, &last, sizeof last);
    }
}

SSSE3 static void turn_part_ssse3(const Warp *warp, const Turn *turn, int left, int top, int right, int bottom) {
    const __m128i rising = _mm_setr_epi8(0, 1, 2, -1, 3, 4, 5, -1, 6, 7, 8, -1, 9, 10, 11, -1);
    const __m128i falling = _mm_setr_epi8(9, 10, 11, -1, 6, 7, 8, -1, 3, 4, 5, -1, 0, 1, 2, -1);
    if (warp->channels != 3) {
        turn_part(warp, turn, left, top, right, bottom);
        return;
    }
    size_t row = (size_t)warp->out_width * 3;
    int y = top, x = left;
    for (; y + 4 <= bottom; y += 4) {
        /* The leftmost of four neighbours in a line of the input. */
        const unsigned char *in = turn->first + y * turn->down + (turn->down < 0 ? 3 * turn->down : 0);
        for (x = left; x + 4 <= right; x += 4) {
            const unsigned char *from = in + x * turn->across, *last = from + (turn->across > 0 ? 3 * turn->across : 0);
            if (turn->end - last < 16) {
                turn_part(warp, turn, x, y, x + 4, y + 4);
            } else {
                turn_four(warp->out + (size_t)y * row + (size_t)x * 3, row, from, turn->across,
                          turn->down > 0 ? rising : falling);
            }
        }
        turn_part(warp, turn, x, y, right, y + 4);
    }
    turn_part(warp, turn, left, y, right, bottom);
}
#endif

bool warp_turned(const Warp *warp) {
    const double *a = warp->a;
    if (a[0] != 0 || a[4] != 0 || fabs(a[1]) != 1 || fabs(a[3]) != 1) {
        return false;
    }
    /* Halves below 2^15 are exact, and so is their rounding to 16 bits after the binary point. */
    double column = floor(a[2] + a[1] * 0.5), line = floor(a[5] + a[3] * 0.5);
    double last_column = column + a[1] * (warp->out_height - 1), last_line = line + a[3] * (warp->out_width - 1);
    if (fmod(a[2], 0.5) != 0 || fmod(a[5], 0.5) != 0 || fmin(column, last_column) < 0 || fmin(line, last_line) < 0 ||
        fmax(column, last_column) >= warp->width || fmax(line, last_line) >= warp->height) {
        return false;
    }
    ptrdiff_t step = (ptrdiff_t)warp_step(warp), channels = warp->channels;
    Turn turn = {
        .first = warp->in + (ptrdiff_t)line * step + (ptrdiff_t)column * channels,
        .end = warp->in + step * warp->height,
        .across = a[3] > 0 ? step : -step,
        .down = a[1] > 0 ? channels : -channels,
    };
    Part *part = FASTEST_SSSE3(turn_part);
    for (int left = 0; left < warp->out_width; left += BLOCK) {
        int right = warp->out_width - left < BLOCK ? warp->out_width : left + BLOCK;
        for (int top = 0; top < warp->out_height; top += BLOCK) {
            int bottom = warp->out_height - top < BLOCK ? warp->out_height : top + BLOCK;
            part(warp, &turn, left, top, right, bottom);
        }
    }
    return true;
}

void transpose(const unsigned char *in, unsigned char *out, int width, int height, int channels) {
    warp_turned(&(Warp){.in = in, .out = out, .width = width, .height = height, .out_width = height, .out_height = width,
                        .channels = channels, .a = {0, 1, 0, 1, 0, 0}});
}
