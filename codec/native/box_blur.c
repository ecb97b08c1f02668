/* Pillow's ImageFilter.GaussianBlur: three box filters along each row, then three down.

   The arithmetic is that of Pillow's src/libImaging/BoxBlur.c, in unsigned integers of 32 bits, which may wrap. */

#include "functions.h"

#include "errors.h"
#include "image_pair.h"
#include "simd.h"
#include "warp.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define PASSES 3
/* Up to this radius a row's sums are made anew for each pixel. Beyond it, it is faster to turn the image and to go down
   its lines. */
#define SMALL 4
/* Of what registers are loaded from. */
#define ALIGNMENT 32

/* A filter takes `radius` pixels on either side with weight `inner`, and the two next to these with weight `outer`. */
typedef struct {
    int radius;
    uint32_t inner, outer;
} Box;

/* The box whose passes are like a Gaussian; false if it is too large. Floats and doubles are mixed as in Pillow. */
static bool find_box(float sigma, Box *box) {
    float variance = sigma * sigma / PASSES;
    float length = (float)sqrt(12.0 * variance + 1.0);
    float whole = (float)floor((length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    float radius = whole + part;
    if (!(radius >= 0.0f && radius < 1e9f)) {
        return false;
    }
    box->radius = (int)radius;
    box->inner = (uint32_t)((float)(uint32_t)(1 << 24) / (radius * 2 + 1));
    box->outer = ((1u << 24) - (uint32_t)(box->radius * 2 + 1) * box->inner) / 2;
    return true;
}

INLINE unsigned char weighted(const Box *box, uint32_t inner, uint32_t outer) {
    return (unsigned char)((inner * box->inner + outer * box->outer + (1u << 23)) >> 24);
}

/* A row with a small radius. `in` goes on beyond both ends. */
INLINE void small_pass(const Box *box, const unsigned char *in, size_t size, size_t channels, uint16_t *sums,
                       unsigned char *out) {
    size_t reach = (size_t)box->radius * channels, beyond = reach + channels;
    for (size_t i = 0; i < size; i++) {
        sums[i] = in[i];
    }
    for (size_t shift = channels; shift <= reach; shift += channels) {
        const unsigned char *left = in - shift, *right = in + shift;
        for (size_t i = 0; i < size; i++) {
            sums[i] = (uint16_t)(sums[i] + left[i] + right[i]);
        }
    }
    const unsigned char *left = in - beyond, *right = in + beyond;
    for (size_t i = 0; i < size; i++) {
        out[i] = weighted(box, sums[i], (uint32_t)left[i] + right[i]);
    }
}

/* One line of `count` pixels for each of `size` columns: a sum that moves along, and what is `far` at either end of
   it. */
INLINE void moved(const Box *box, uint32_t *sums, const unsigned char *leaves, const unsigned char *comes,
                  const unsigned char *next, size_t size, unsigned char *out) {
    for (size_t i = 0; i < size; i++) {
        uint32_t sum = sums[i] + comes[i] - leaves[i];
        sums[i] = sum;
        out[i] = weighted(box, sum, (uint32_t)leaves[i] + next[i]);
    }
}

/* The lines of an image that a filter goes through from one to the next: `count` lines of `size` bytes, which begin
   `stride` bytes apart. */
typedef struct {
    size_t count, size, stride;
} Lines;

/* The line at a number, or the one at the end if there is none. */
INLINE const unsigned char *line_at(const Lines *lines, const unsigned char *in, int64_t number) {
    int64_t last = (int64_t)lines->count - 1;
    return in + (size_t)(number < 0 ? 0 : number > last ? last : number) * lines->stride;
}

INLINE void pass(const Box *box, const unsigned char *in, const Lines *lines, uint32_t *sums, unsigned char *out) {
    int64_t last = (int64_t)lines->count - 1, radius = box->radius, edge = radius < last ? radius : last;
    const unsigned char *final = line_at(lines, in, last);
    for (size_t i = 0; i < lines->size; i++) {
        sums[i] = in[i] * (uint32_t)(radius + 1) + final[i] * (uint32_t)(radius - edge);
    }
    for (int64_t y = 0; y < edge; y++) {
        const unsigned char *line = line_at(lines, in, y);
        for (size_t i = 0; i < lines->size; i++) {
            sums[i] += line[i];
        }
    }
    for (int64_t y = 0; y <= last; y++) {
        moved(box, sums, line_at(lines, in, y - radius - 1), line_at(lines, in, y + radius),
              line_at(lines, in, y + radius + 1), lines->size, out + (size_t)y * lines->stride);
    }
}

typedef void SmallPass(const Box *, const unsigned char *, size_t, size_t, uint16_t *, unsigned char *);

/* The passes along a row. `rows` are two rows with room for `margin` bytes beyond both ends. */
INLINE void along(const Box *box, const unsigned char *in, size_t size, size_t channels, size_t margin,
                  unsigned char *const *rows, uint16_t *sums, unsigned char *out, SmallPass *small) {
    memcpy(rows[0] + margin, in, size);
    for (int number = 0; number < PASSES; number++) {
        unsigned char *row = rows[number % 2] + margin;
        for (size_t at = channels; at <= margin; at += channels) {
            memcpy(row - at, row, channels);
            memcpy(row + size + at - channels, row + size - channels, channels);
        }
        small(box, row, size, channels, sums, number == PASSES - 1 ? out : rows[1 - number % 2] + margin);
    }
}

typedef void Along(const Box *, const unsigned char *, size_t, size_t, size_t, unsigned char *const *, uint16_t *,
                   unsigned char *);
typedef void Pass(const Box *, const unsigned char *, const Lines *, uint32_t *, unsigned char *);

static void along_row(const Box *box, const unsigned char *in, size_t size, size_t channels, size_t margin,
                      unsigned char *const *rows, uint16_t *sums, unsigned char *out) {
    along(box, in, size, channels, margin, rows, sums, out, small_pass);
}

static void pass_down(const Box *box, const unsigned char *in, const Lines *lines, uint32_t *sums, unsigned char *out) {
    pass(box, in, lines, sums, out);
}

#ifdef HAS_SIMD
/* Up to this radius, sums of bytes fit into 15 bits. */
#define NARROW 63
#define WIDTH 32

/* The weights in halves of 15 and 9 bits, each pair for a sum and for the two pixels next to it. */
typedef struct {
    __m256i low, high;
} Halves;

AVX2 static inline Halves halves_of(const Box *box) {
    uint32_t low = (box->inner & 0x7fff) | (box->outer & 0x7fff) << 16, high = box->inner >> 15 | box->outer >> 15 << 16;
    return (Halves){_mm256_set1_epi32((int)low), _mm256_set1_epi32((int)high)};
}

AVX2 static inline __m256i load(const unsigned char *bytes) { return _mm256_loadu_si256((const __m256i *)bytes); }

/* What `weighted` gives for eight pairs, as 32 bits each. */
AVX2 static inline __m256i weigh(Halves weights, __m256i pairs) {
    __m256i low = _mm256_madd_epi16(pairs, weights.low), high = _mm256_madd_epi16(pairs, weights.high);
    __m256i sum = _mm256_add_epi32(_mm256_add_epi32(low, _mm256_slli_epi32(high, 15)), _mm256_set1_epi32(1 << 23));
    return _mm256_srli_epi32(sum, 24);
}

/* 32 numbers of 16 bits: those of the bytes that the instructions call low, and of the high ones. */
typedef struct {
    __m256i low, high;
} Sums;

AVX2 static inline Sums both(__m256i a, __m256i b) {
    const __m256i ones = _mm256_set1_epi8(1);
    return (Sums){_mm256_maddubs_epi16(_mm256_unpacklo_epi8(a, b), ones),
                  _mm256_maddubs_epi16(_mm256_unpackhi_epi8(a, b), ones)};
}

AVX2 static inline Sums plus(Sums a, Sums b) {
    return (Sums){_mm256_add_epi16(a.low, b.low), _mm256_add_epi16(a.high, b.high)};
}

AVX2 static inline Sums minus(Sums a, Sums b) {
    return (Sums){_mm256_sub_epi16(a.low, b.low), _mm256_sub_epi16(a.high, b.high)};
}

AVX2 static inline void store_weighted(Halves weights, Sums inner, Sums outer, unsigned char *out) {
    __m256i low = _mm256_packus_epi32(weigh(weights, _mm256_unpacklo_epi16(inner.low, outer.low)),
                                      weigh(weights, _mm256_unpackhi_epi16(inner.low, outer.low)));
    __m256i high = _mm256_packus_epi32(weigh(weights, _mm256_unpacklo_epi16(inner.high, outer.high)),
                                       weigh(weights, _mm256_unpackhi_epi16(inner.high, outer.high)));
    _mm256_storeu_si256((__m256i *)out, _mm256_packus_epi16(low, high));
}

AVX2 static void small_pass_avx2(const Box *box, const unsigned char *in, size_t size, size_t channels, uint16_t *sums,
                                 unsigned char *out) {
    size_t reach = (size_t)box->radius * channels, beyond = reach + channels, i = 0;
    const Halves weights = halves_of(box);
    for (; i + WIDTH <= size; i += WIDTH) {
        const unsigned char *here = in + i;
        Sums inner = both(load(here), _mm256_setzero_si256());
        for (size_t shift = channels; shift <= reach; shift += channels) {
            inner = plus(inner, both(load(here - shift), load(here + shift)));
        }
        store_weighted(weights, inner, both(load(here - beyond), load(here + beyond)), out + i);
    }
    small_pass(box, in + i, size - i, channels, sums, out + i);
}

AVX2 static void along_row_avx2(const Box *box, const unsigned char *in, size_t size, size_t channels, size_t margin,
                                unsigned char *const *rows, uint16_t *sums, unsigned char *out) {
    along(box, in, size, channels, margin, rows, sums, out, small_pass_avx2);
}

/* Adds a line to the sums so many times. */
AVX2 static void add_line(Sums *sums, const unsigned char *line, size_t size, int64_t times) {
    const __m256i zero = _mm256_setzero_si256(), factor = _mm256_set1_epi16((short)times);
    for (size_t i = 0; i < size; i += WIDTH) {
        Sums bytes = both(load(line + i), zero);
        bytes = (Sums){_mm256_mullo_epi16(bytes.low, factor), _mm256_mullo_epi16(bytes.high, factor)};
        sums[i / WIDTH] = plus(sums[i / WIDTH], bytes);
    }
}

/* As `pass`, with a radius up to NARROW and whole registers. */
AVX2 static void narrow_pass(const Box *box, const unsigned char *in, const Lines *lines, Sums *sums,
                             unsigned char *out) {
    int64_t last = (int64_t)lines->count - 1, radius = box->radius, edge = radius < last ? radius : last;
    const Halves weights = halves_of(box);
    memset(sums, 0, lines->size / WIDTH * sizeof *sums);
    add_line(sums, in, lines->size, radius + 1);
    add_line(sums, line_at(lines, in, last), lines->size, radius - edge);
    for (int64_t y = 0; y < edge; y++) {
        add_line(sums, line_at(lines, in, y), lines->size, 1);
    }
    for (int64_t y = 0; y <= last; y++) {
        const unsigned char *leaves = line_at(lines, in, y - radius - 1), *comes = line_at(lines, in, y + radius);
        const unsigned char *next = line_at(lines, in, y + radius + 1);
        unsigned char *line = out + (size_t)y * lines->stride;
        for (size_t i = 0; i < lines->size; i += WIDTH) {
            __m256i zero = _mm256_setzero_si256(), left = load(leaves + i);
            Sums inner = minus(plus(sums[i / WIDTH], both(load(comes + i), zero)), both(left, zero));
            sums[i / WIDTH] = inner;
            store_weighted(weights, inner, both(left, load(next + i)), line + i);
        }
    }
}

AVX2 static void pass_down_avx2(const Box *box, const unsigned char *in, const Lines *lines, uint32_t *sums,
                                unsigned char *out) {
    size_t even = box->radius > NARROW ? 0 : lines->size / WIDTH * WIDTH;
    if (even) {
        narrow_pass(box, in, &(Lines){lines->count, even, lines->stride}, (Sums *)sums, out);
    }
    pass(box, in + even, &(Lines){lines->count, lines->size - even, lines->stride}, sums, out + even);
}
#endif

/* All passes down the lines in `between`, which are overwritten too; the result is in `out`. */
static void blur_down(const Box *box, unsigned char *between, const Lines *lines, uint32_t *sums, unsigned char *out) {
    Pass *function = FASTEST_AVX2(pass_down);
    function(box, between, lines, sums, out);
    function(box, out, lines, sums, between);
    function(box, between, lines, sums, out);
}

static bool blur_all(const ImagePair *pair, const Box *box) {
    size_t height = (size_t)pair->in.shape[0], width = (size_t)pair->in.shape[1];
    size_t channels = (size_t)pair->in.shape[2], size = width * channels;
    bool is_small = box->radius <= SMALL;
    size_t margin = is_small ? ((size_t)box->radius + 1) * channels : 0;
    size_t longest = (is_small || width > height ? width : height) * channels * sizeof(uint32_t);
    const unsigned char *in = pair->in.buf;
    unsigned char *out = pair->out.buf, *between = malloc(height * size), *room = malloc(2 * (size + 2 * margin));
    uint32_t *sums = aligned_alloc(ALIGNMENT, (longest + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT);
    bool done = between && room && sums;
    if (done && is_small) {
        unsigned char *const rows[2] = {room, room + size + 2 * margin};
        Along *along_function = FASTEST_AVX2(along_row);
        for (size_t y = 0; y < height; y++) {
            along_function(box, in + y * size, size, channels, margin, rows, (uint16_t *)sums, between + y * size);
        }
    } else if (done) {
        transpose(in, between, (int)width, (int)height, (int)channels);
        blur_down(box, between, &(Lines){width, height * channels, height * channels}, sums, out);
        transpose(out, between, (int)height, (int)width, (int)channels);
    }
    if (done) {
        blur_down(box, between, &(Lines){height, size, size}, sums, out);
    }
    free(between);
    free(room);
    free(sums);
    return done;
}

PyObject *box_blur(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *image, *target;
    ImagePair pair;
    Box box;
    float sigma;
    if (!PyArg_ParseTuple(args, "OfO:box_blur", &image, &sigma, &target) || !image_pair_open(&pair, image, target)) {
        return NULL;
    }
    if (!find_box(sigma, &box)) {
        set_error(INPUT_ERROR, "the radius is no number, or too large");
    } else if (image_pair_is_even(&pair)) {
        bool done;
        Py_BEGIN_ALLOW_THREADS
        done = blur_all(&pair, &box);
        Py_END_ALLOW_THREADS
        if (!done) {
            set_error(MEMORY_ERROR, NULL);
        }
    }
    image_pair_close(&pair);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}
