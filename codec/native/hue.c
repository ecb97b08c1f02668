/* Turns hues as Pillow does by way of its HSV with 8 bits, in one pass.

   Pillow computes partly with doubles. The floats here round to the same bytes for every colour and every hue: the tests
   try them all. This holds only if each operation rounds by itself, so this file must not be compiled with contraction
   of floating point operations (-ffp-contract=off). */

#include "functions.h"

#include "arguments.h"
#include "eight_pixels.h"
#include "errors.h"

static inline int most(int a, int b) { return a > b ? a : b; }
static inline int least(int a, int b) { return a < b ? a : b; }

static void turn_row(unsigned char *row, size_t count, int shift) {
    for (; count; count--, row += 3) {
        int red = row[0], green = row[1], blue = row[2];
        int high = most(red, most(green, blue)), low = least(red, least(green, blue)), range = high - low;
        if (!range) {
            continue;
        }
        /* To HSV. Of the two quotients that Pillow subtracts from each other, one is 1. */
        int base = red == high ? 0 : green == high ? 2 : 4;
        int before = red == high ? blue : green == high ? red : green;
        float part = (float)(2 * high + low - red - green - blue) / (float)range;
        float turns = (before == low ? (float)(base + 1) - part : (float)(base - 1) + part) / 6.0f;
        int hue = (int)((turns < 0.0f ? turns + 1.0f : turns) * 255.0f);
        int saturation = (int)((float)range / (float)high * 255.0f);
        /* And back. */
        int six = 6 * ((hue + shift) & 255), sector = six / 255;
        float rest = (float)(six % 255) / 255.0f, colour = (float)saturation / 255.0f, value = (float)high;
        int bottom = (int)(value * (1.0f - colour) + 0.5f);
        int middle = (int)(value * (1.0f - colour * (sector % 2 ? rest : 1.0f - rest)) + 0.5f);
        int values[] = {high, middle, bottom};
        static const unsigned char orders[][3] = {{0, 1, 2}, {1, 0, 2}, {2, 0, 1}, {2, 1, 0},
                                                  {1, 2, 0}, {0, 2, 1}, {0, 1, 2}};
        for (int channel = 0; channel < 3; channel++) {
            row[channel] = (unsigned char)values[orders[sector][channel]];
        }
    }
}

#ifdef HAS_SIMD
/* The same for eight pixels at a time. Grey ones need no exception: without saturation any hue gives the same. */
AVX2 static void turn_row_avx2(unsigned char *row, size_t count, int shift) {
    const __m256 one = _mm256_set1_ps(1.0f), half = _mm256_set1_ps(0.5f), full = _mm256_set1_ps(255.0f);
    const __m256i least_one = _mm256_set1_epi32(1);
    /* For each sector, which of the bytes high, middle and bottom are red, green and blue. */
    const __m256i orders = _mm256_setr_epi32(0x020100, 0x020001, 0x010002, 0x000102, 0x000201, 0x010200, 0x020100, 0);
    const __m256i places = _mm256_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808,
                                             0x0c0c0c0c);
    for (; count >= 8; count -= 8, row += 24) {
        __m256i pixels = load_eight(row);
        __m256i red = channel_of_eight(pixels, 0), green = channel_of_eight(pixels, 1);
        __m256i blue = channel_of_eight(pixels, 2);
        __m256i high = _mm256_max_epi32(red, _mm256_max_epi32(green, blue));
        __m256i low = _mm256_min_epi32(red, _mm256_min_epi32(green, blue));
        __m256i range = _mm256_sub_epi32(high, low);
        __m256i sum = _mm256_add_epi32(red, _mm256_add_epi32(green, blue));
        __m256i distance = _mm256_sub_epi32(_mm256_add_epi32(high, _mm256_add_epi32(high, low)), sum);

        __m256i is_red = _mm256_cmpeq_epi32(red, high), is_green = _mm256_cmpeq_epi32(green, high);
        __m256i base = _mm256_blendv_epi8(_mm256_set1_epi32(4), _mm256_set1_epi32(2), is_green);
        base = _mm256_andnot_si256(is_red, base);
        __m256i before = _mm256_blendv_epi8(_mm256_blendv_epi8(green, red, is_green), blue, is_red);
        /* Where the hue falls from base + 1; elsewhere it rises from base - 1. */
        __m256i down = _mm256_cmpeq_epi32(before, low);
        __m256 start = _mm256_cvtepi32_ps(
            _mm256_add_epi32(base, _mm256_blendv_epi8(_mm256_set1_epi32(-1), least_one, down)));
        __m256 part = _mm256_div_ps(_mm256_cvtepi32_ps(distance),
                                    _mm256_cvtepi32_ps(_mm256_max_epi32(range, least_one)));
        __m256 sign = _mm256_and_ps(_mm256_castsi256_ps(down), _mm256_set1_ps(-0.0f));
        __m256 turns = _mm256_div_ps(_mm256_add_ps(start, _mm256_xor_ps(part, sign)), _mm256_set1_ps(6.0f));
        __m256 negative = _mm256_cmp_ps(turns, _mm256_setzero_ps(), _CMP_LT_OQ);
        turns = _mm256_add_ps(turns, _mm256_and_ps(negative, one));
        __m256i hue = _mm256_cvttps_epi32(_mm256_mul_ps(turns, full));
        __m256 value = _mm256_cvtepi32_ps(high);
        __m256 ratio = _mm256_div_ps(_mm256_cvtepi32_ps(range), _mm256_max_ps(value, one));
        __m256i saturation = _mm256_cvttps_epi32(_mm256_mul_ps(ratio, full));

        hue = _mm256_and_si256(_mm256_add_epi32(hue, _mm256_set1_epi32(shift)), _mm256_set1_epi32(255));
        __m256i six = _mm256_add_epi32(_mm256_slli_epi32(hue, 2), _mm256_slli_epi32(hue, 1));
        /* six / 255 */
        __m256i sector = _mm256_add_epi32(_mm256_add_epi32(six, least_one), _mm256_srli_epi32(six, 8));
        sector = _mm256_srli_epi32(sector, 8);
        __m256i remainder = _mm256_sub_epi32(_mm256_add_epi32(six, sector), _mm256_slli_epi32(sector, 8));
        __m256 rest = _mm256_div_ps(_mm256_cvtepi32_ps(remainder), full);
        __m256 odd = _mm256_castsi256_ps(_mm256_slli_epi32(sector, 31));
        rest = _mm256_blendv_ps(_mm256_sub_ps(one, rest), rest, odd);
        __m256 colour = _mm256_div_ps(_mm256_cvtepi32_ps(saturation), full);
        __m256 bottom = _mm256_mul_ps(value, _mm256_sub_ps(one, colour));
        __m256 middle = _mm256_mul_ps(value, _mm256_sub_ps(one, _mm256_mul_ps(colour, rest)));
        __m256i bottoms = _mm256_slli_epi32(_mm256_cvttps_epi32(_mm256_add_ps(bottom, half)), 16);
        __m256i middles = _mm256_slli_epi32(_mm256_cvttps_epi32(_mm256_add_ps(middle, half)), 8);
        __m256i values = _mm256_or_si256(high, _mm256_or_si256(middles, bottoms));
        __m256i order = _mm256_add_epi32(_mm256_permutevar8x32_epi32(orders, sector), places);
        store_eight(row, _mm256_shuffle_epi8(values, order));
    }
    turn_row(row, count, shift);
}
#endif

PyObject *turn_hues(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array;
    int shift;
    Py_buffer pixels;
    if (!PyArg_ParseTuple(args, "Oi:turn_hues", &array, &shift) || !take_pixels(array, &pixels)) {
        return NULL;
    }
    if (pixels.shape[2] == 3) {
        Py_BEGIN_ALLOW_THREADS
        unsigned char *row = pixels.buf;
        for (Py_ssize_t y = 0; y < pixels.shape[0]; y++, row += 3 * pixels.shape[1]) {
            FASTEST_AVX2(turn_row)(row, (size_t)pixels.shape[1], shift & 255);
        }
        Py_END_ALLOW_THREADS
    }
    PyBuffer_Release(&pixels);
    Py_RETURN_NONE;
}
