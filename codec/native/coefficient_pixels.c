#include "coefficient_pixels.h"

#include "idct.h"
#include "zigzag.h"

#include <stdlib.h>
#include <string.h>

/* What libjpeg does to the coefficients of an image, for the samplings that photographs have: inverse DCT, interpolation
   of chroma ("fancy upsampling", jdsample.c), and conversion of colours (jdcolor.c). It does so row by row of MCUs, so
   that samples stay in the processor's caches until they are pixels. */

#ifdef HAS_X86_SIMD

/* Rows of MCUs whose samples are kept: interpolation needs those above and below. */
#define KEPT 3
/* Vectors may read and write so many bytes beyond a row. */
#define BEYOND 64

typedef struct {
    unsigned char *samples; /* KEPT times the rows of a row of MCUs */
    int16_t table[64];      /* of quantisation, in natural order */
    ptrdiff_t stride;
    int64_t width, height;  /* samples of the image from the first chosen column of MCUs, and in all rows */
    int across, down;
} Plane;

typedef struct {
    CoefficientInput *input;
    Plane planes[3];
    int components;
    unsigned char *chroma; /* two rows as wide as luma, and one of 16 bits */
    ptrdiff_t chroma_stride;
} Pixels;

static int64_t ceiling(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

static bool fits(const FrameHeader *frame) {
    if (frame->components == 1) {
        return true;
    }
    int across = frame->component[0].across, down = frame->component[0].down;
    bool whole = across == 1 && down == 1, half = across == 2 && (down == 1 || down == 2);
    for (int index = 1; index < 3; index++) {
        if (frame->component[index].across != 1 || frame->component[index].down != 1) {
            return false;
        }
    }
    return whole || half;
}

bool can_decode_pixels(const CoefficientRecord *record, int channels) {
    return has_avx2() && fits(&record->frame) && !record->rgb &&
           (channels != 1 || record->frame.components == 1);
}

/* --- samples --- */

static unsigned char *sample_row(const Plane *plane, int64_t row) {
    int64_t rows = 8 * plane->down;
    return plane->samples + plane->stride * (row / rows % KEPT * rows + row % rows);
}

/* Reads the table of quantisation with a number from the segments of the head. */
static void read_table(int16_t *table, const CoefficientRecord *record, int number) {
    for (size_t at = 0; at + 4 < record->head_size;) {
        const unsigned char *segment = record->head + at, *body = segment + 4;
        if (segment[1] == 0xdb && (body[0] & 15) == number) {
            for (int index = 0; index < 64; index++) {
                table[NATURAL[index]] = (int16_t)(body[0] >> 4 ? body[1 + 2 * index] << 8 | body[2 + 2 * index]
                                                               : body[1 + index]);
            }
        }
        at += 2 + (size_t)(segment[2] << 8 | segment[3]);
    }
}

static bool open_planes(Pixels *pixels) {
    const CoefficientRecord *record = &pixels->input->record;
    const RowReader *reader = &pixels->input->reader;
    const FrameHeader *frame = &record->frame;
    int64_t width = frame->width - reader->first * frame->mcu_width;
    pixels->components = frame->components;
    for (int index = 0; index < frame->components; index++) {
        Plane *plane = &pixels->planes[index];
        plane->across = frame->component[index].across;
        plane->down = frame->component[index].down;
        plane->width = ceiling(width * plane->across * 8, frame->mcu_width);
        plane->height = ceiling(frame->height * plane->down * 8, frame->mcu_height);
        plane->stride = (ptrdiff_t)((reader->last - reader->first) * plane->across * 8 + BEYOND);
        plane->samples = calloc((size_t)(KEPT * 8 * plane->down) * (size_t)plane->stride + BEYOND, 1);
        if (!plane->samples) {
            return false;
        }
        read_table(plane->table, record, frame->component[index].table);
    }
    pixels->chroma_stride = 2 * pixels->planes[0].stride;
    pixels->chroma = calloc(4 * (size_t)pixels->chroma_stride, 1);
    return pixels->chroma != NULL;
}

static void close_planes(Pixels *pixels) {
    for (int index = 0; index < 3; index++) {
        free(pixels->planes[index].samples);
    }
    free(pixels->chroma);
}

/* Turns a row of MCUs into samples. */
AVX2 static bool transform_row(Pixels *pixels, int64_t row) {
    const CoefficientRecord *record = &pixels->input->record;
    RowReader *reader = &pixels->input->reader;
    if (!row_reader_read(reader, record, row)) {
        return false;
    }
    for (int index = 0; index < pixels->components; index++) {
        const Plane *plane = &pixels->planes[index];
        int64_t columns = (reader->last - reader->first) * plane->across, left = ceiling(plane->width, 8);
        columns = columns < left ? columns : left;
        for (int line = 0; line < plane->down; line++) {
            unsigned char *out = sample_row(plane, (row * plane->down + line) * 8);
            int64_t number = row_reader_block(reader, record, index, line, 0);
            for (int64_t column = 0; column < columns; column++, number++) {
                idct_avx2(reader->blocks[number], plane->table, reader->bands[number], out + 8 * column, plane->stride);
            }
        }
    }
    return true;
}

/* --- chroma --- */

/* Interpolates a row of `count` samples to twice as many: of each sample three quarters, and one of its neighbour. */
AVX2 static void widen_h2v1(const unsigned char *in, int64_t count, unsigned char *out) {
    const __m256i one = _mm256_set1_epi16(1), two = _mm256_set1_epi16(2), three = _mm256_set1_epi16(3);
    int64_t at = 1;
    for (; at + 17 <= count; at += 16) {
        __m256i here = _mm256_mullo_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(in + at))), three);
        __m256i before = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(in + at - 1)));
        __m256i after = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(in + at + 1)));
        before = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, before), one), 2);
        after = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, after), two), 2);
        _mm256_storeu_si256((__m256i *)(out + 2 * at), _mm256_or_si256(before, _mm256_slli_epi16(after, 8)));
    }
    for (; at + 1 < count; at++) {
        out[2 * at] = (unsigned char)((3 * in[at] + in[at - 1] + 1) >> 2);
        out[2 * at + 1] = (unsigned char)((3 * in[at] + in[at + 1] + 2) >> 2);
    }
    out[0] = in[0];
    out[1] = (unsigned char)((3 * in[0] + in[1] + 2) >> 2);
    out[2 * count - 2] = (unsigned char)((3 * in[count - 1] + in[count - 2] + 1) >> 2);
    out[2 * count - 1] = in[count - 1];
}

/* The same for a row of sums, which are sixteenths in the end. */
AVX2 static void widen_h2v2(const int16_t *in, int64_t count, unsigned char *out) {
    const __m256i seven = _mm256_set1_epi16(7), eight = _mm256_set1_epi16(8), three = _mm256_set1_epi16(3);
    int64_t at = 1;
    for (; at + 17 <= count; at += 16) {
        __m256i here = _mm256_mullo_epi16(_mm256_loadu_si256((const __m256i *)(in + at)), three);
        __m256i before = _mm256_loadu_si256((const __m256i *)(in + at - 1));
        __m256i after = _mm256_loadu_si256((const __m256i *)(in + at + 1));
        before = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, before), eight), 4);
        after = _mm256_srli_epi16(_mm256_add_epi16(_mm256_add_epi16(here, after), seven), 4);
        _mm256_storeu_si256((__m256i *)(out + 2 * at), _mm256_or_si256(before, _mm256_slli_epi16(after, 8)));
    }
    for (; at + 1 < count; at++) {
        out[2 * at] = (unsigned char)((3 * in[at] + in[at - 1] + 8) >> 4);
        out[2 * at + 1] = (unsigned char)((3 * in[at] + in[at + 1] + 7) >> 4);
    }
    out[0] = (unsigned char)((4 * in[0] + 8) >> 4);
    out[1] = (unsigned char)((3 * in[0] + in[1] + 7) >> 4);
    out[2 * count - 2] = (unsigned char)((3 * in[count - 1] + in[count - 2] + 8) >> 4);
    out[2 * count - 1] = (unsigned char)((4 * in[count - 1] + 7) >> 4);
}

/* Three times a row of chroma and once its neighbour. */
AVX2 static void add_rows(const unsigned char *near, const unsigned char *far, int64_t count, int16_t *out) {
    const __m256i three = _mm256_set1_epi16(3);
    for (int64_t at = 0; at < count; at += 16) {
        __m256i one = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(near + at)));
        __m256i other = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)(far + at)));
        _mm256_storeu_si256((__m256i *)(out + at), _mm256_add_epi16(_mm256_mullo_epi16(one, three), other));
    }
}

/* A row of chroma that is as wide as luma. */
AVX2 static const unsigned char *chroma_row(Pixels *pixels, int index, int64_t row) {
    const Plane *luma = &pixels->planes[0], *plane = &pixels->planes[index];
    if (luma->across == 1) {
        return sample_row(plane, row);
    }
    unsigned char *out = pixels->chroma + (index - 1) * pixels->chroma_stride;
    int64_t shown = plane->stride - BEYOND, count = plane->width < shown ? plane->width : shown;
    if (count <= 2) {
        /* libjpeg does not interpolate rows of one or two samples, nor then from row to row. */
        const unsigned char *in = sample_row(plane, row / luma->down);
        for (int64_t at = 0; at < 2 * count; at++) {
            out[at] = in[at / 2];
        }
        return out;
    }
    if (luma->down == 1) {
        widen_h2v1(sample_row(plane, row), count, out);
        return out;
    }
    int64_t near = row / 2, far = row % 2 ? near + 1 : near - 1;
    far = far < 0 ? 0 : far < plane->height ? far : plane->height - 1;
    int16_t *sums = (int16_t *)(pixels->chroma + 2 * pixels->chroma_stride);
    add_rows(sample_row(plane, near), sample_row(plane, far), count, sums);
    widen_h2v2(sums, count, out);
    return out;
}

/* --- colours --- */

#define PAIR(one, other) (int)((unsigned)(other) << 16 | ((unsigned)(one) & 0xffff))
/* The factors of jdcolor.c in 65536ths: 1.402 less 1, 1.772 less 2, -0.34414, and 1 less 0.71414. */
#define RED 26345
#define BLUE (-14942)
#define GREEN_OF_BLUE (-22554)
#define GREEN_OF_RED 18734

/* Two factors in 65536ths, times x and y, rounded: for sixteen pairs. */
AVX2 INLINE __m256i weighted(__m256i x, __m256i y, int weights) {
    const __m256i factors = _mm256_set1_epi32(weights), half = _mm256_set1_epi32(32768);
    __m256i low = _mm256_madd_epi16(_mm256_unpacklo_epi16(x, y), factors);
    __m256i high = _mm256_madd_epi16(_mm256_unpackhi_epi16(x, y), factors);
    return _mm256_packs_epi32(_mm256_srai_epi32(_mm256_add_epi32(low, half), 16),
                              _mm256_srai_epi32(_mm256_add_epi32(high, half), 16));
}

/* Sixteen values of 16 bits as bytes, clamped. */
AVX2 INLINE __m128i clamped(__m256i values) {
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi16(values, values), 0x08);
    return _mm256_castsi256_si128(packed);
}

/* Three rows of sixteen bytes, one pixel after the other. */
AVX2 INLINE void store_rgb(unsigned char *out, __m128i red, __m128i green, __m128i blue) {
    const __m128i r0 = _mm_setr_epi8(0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1, 5);
    const __m128i g0 = _mm_setr_epi8(-1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1, -1);
    const __m128i b0 = _mm_setr_epi8(-1, -1, 0, -1, -1, 1, -1, -1, 2, -1, -1, 3, -1, -1, 4, -1);
    const __m128i r1 = _mm_setr_epi8(-1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10, -1);
    const __m128i g1 = _mm_setr_epi8(5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1, 10);
    const __m128i b1 = _mm_setr_epi8(-1, 5, -1, -1, 6, -1, -1, 7, -1, -1, 8, -1, -1, 9, -1, -1);
    const __m128i r2 = _mm_setr_epi8(-1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1, -1);
    const __m128i g2 = _mm_setr_epi8(-1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15, -1);
    const __m128i b2 = _mm_setr_epi8(10, -1, -1, 11, -1, -1, 12, -1, -1, 13, -1, -1, 14, -1, -1, 15);
#define MIXED(r, g, b)                                                                                                 \
    _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(red, r), _mm_shuffle_epi8(green, g)), _mm_shuffle_epi8(blue, b))
    _mm_storeu_si128((__m128i *)out, MIXED(r0, g0, b0));
    _mm_storeu_si128((__m128i *)(out + 16), MIXED(r1, g1, b1));
    _mm_storeu_si128((__m128i *)(out + 32), MIXED(r2, g2, b2));
#undef MIXED
}

AVX2 INLINE void store_rgbx(unsigned char *out, __m128i red, __m128i green, __m128i blue) {
    const __m128i full = _mm_set1_epi8(-1);
    __m128i low = _mm_unpacklo_epi8(red, green), high = _mm_unpackhi_epi8(red, green);
    __m128i low_2 = _mm_unpacklo_epi8(blue, full), high_2 = _mm_unpackhi_epi8(blue, full);
    _mm_storeu_si128((__m128i *)out, _mm_unpacklo_epi16(low, low_2));
    _mm_storeu_si128((__m128i *)(out + 16), _mm_unpackhi_epi16(low, low_2));
    _mm_storeu_si128((__m128i *)(out + 32), _mm_unpacklo_epi16(high, high_2));
    _mm_storeu_si128((__m128i *)(out + 48), _mm_unpackhi_epi16(high, high_2));
}

/* Sixteen pixels. */
AVX2 INLINE void convert_16(const unsigned char *y, const unsigned char *cb, const unsigned char *cr, int channels,
                            unsigned char *out) {
    const __m256i centre = _mm256_set1_epi16(128), zero = _mm256_setzero_si256();
    __m256i luma = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)y));
    __m256i blue = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cb)), centre);
    __m256i red = _mm256_sub_epi16(_mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)cr)), centre);
    __m256i r = _mm256_add_epi16(_mm256_add_epi16(luma, red), weighted(red, zero, PAIR(RED, 0)));
    __m256i b = _mm256_add_epi16(_mm256_add_epi16(luma, _mm256_add_epi16(blue, blue)),
                                 weighted(blue, zero, PAIR(BLUE, 0)));
    __m256i g = _mm256_add_epi16(_mm256_sub_epi16(luma, red), weighted(blue, red, PAIR(GREEN_OF_BLUE, GREEN_OF_RED)));
    if (channels == 3) {
        store_rgb(out, clamped(r), clamped(g), clamped(b));
    } else {
        store_rgbx(out, clamped(r), clamped(g), clamped(b));
    }
}

AVX2 INLINE void convert_row(const unsigned char *y, const unsigned char *cb, const unsigned char *cr, int64_t width,
                             int channels, unsigned char *out) {
    int64_t at = 0;
    for (; at + 16 <= width; at += 16) {
        convert_16(y + at, cb + at, cr + at, channels, out + channels * at);
    }
    if (at < width) {
        unsigned char last[64];
        convert_16(y + at, cb + at, cr + at, channels, last);
        memcpy(out + channels * at, last, (size_t)(channels * (width - at)));
    }
}

static void repeat_grey(const unsigned char *y, int64_t width, int channels, unsigned char *out) {
    for (int64_t at = 0; at < width; at++, out += channels) {
        memset(out, y[at], 3);
        if (channels == 4) {
            out[3] = 255;
        }
    }
}

/* --- the rectangle --- */

AVX2 static void convert(Pixels *pixels, int64_t row, int64_t left, int64_t width, int channels, unsigned char *out) {
    const unsigned char *y = sample_row(&pixels->planes[0], row) + left;
    if (channels == 1) {
        memcpy(out, y, (size_t)width);
    } else if (pixels->components == 1) {
        repeat_grey(y, width, channels, out);
    } else {
        const unsigned char *cb = chroma_row(pixels, 1, row) + left, *cr = chroma_row(pixels, 2, row) + left;
        if (channels == 3) {
            convert_row(y, cb, cr, width, 3, out);
        } else {
            convert_row(y, cb, cr, width, 4, out);
        }
    }
}

static bool decode_rows(Pixels *pixels, const int box[4], int channels, unsigned char *out) {
    const CoefficientInput *input = pixels->input;
    const FrameHeader *frame = &input->record.frame;
    int64_t left = box[0] - input->reader.first * frame->mcu_width, next = box[1], end = box[1] + box[3];
    /* Rows of luma that wait for the row of MCUs below. */
    int64_t waiting = frame->mcu_height == 16 ? 1 : 0;
    for (int64_t row = input->first_row; row < input->last_row; row++) {
        if (!transform_row(pixels, row)) {
            return false;
        }
        int64_t ready = row + 1 < input->last_row ? (row + 1) * frame->mcu_height - waiting : end;
        for (; next < end && next < ready; next++, out += (size_t)box[2] * (size_t)channels) {
            convert(pixels, next, left, box[2], channels, out);
        }
    }
    return true;
}

void decode_pixels(CoefficientInput *input, const int box[4], int channels, unsigned char *out, Errors *errors) {
    Pixels pixels = {.input = input};
    bool opened = open_planes(&pixels), sound = opened && decode_rows(&pixels, box, channels, out);
    close_planes(&pixels);
    if (!sound) {
        errors_raise(errors, opened ? INPUT_ERROR : MEMORY_ERROR, opened ? "the coefficient record is damaged" : NULL);
    }
}

#else

bool can_decode_pixels(const CoefficientRecord *record, int channels) {
    (void)record, (void)channels;
    return false;
}

void decode_pixels(CoefficientInput *input, const int box[4], int channels, unsigned char *out, Errors *errors) {
    (void)input, (void)box, (void)channels, (void)out;
    errors_raise(errors, LIBRARY_ERROR, "this processor has no AVX2");
}

#endif
