#include "coefficient_groups.h"

#include "simd.h"
#include "zigzag.h"

#include <string.h>

/* A band is eight positions in zigzag order. Its class says how its values are stored. */
enum {
    SINGLE = 0,       /* one value, 1 or -1: three bits for its place, one for its sign */
    MASKED = 1,       /* 1 to 7: a mask of the places, then values of so many bits */
    MASKED_WIDE = 8,  /* the same with 16 bits */
    DENSE = 9,        /* 9 to 14: values of 3 to 8 bits at all places */
    DENSE_WIDE = 15,  /* the same with 16 bits */
    CLASSES = 16,
};
#define BANDS 8
#define WIDEST_MASKED 7
#define NARROWEST_DENSE 3
#define WIDEST_DENSE 8
#define WIDE 16
#define ESCAPE (-128) /* in place of a difference of DC coefficients */

/* Bits of a value of each class. */
static const unsigned char WIDTH[CLASSES] = {4, 1, 2, 3, 4, 5, 6, 7, WIDE, 3, 4, 5, 6, 7, 8, WIDE};

/* Which bands of a block hold anything, a bit each: the commonest by number. OTHER_BANDS: a byte says it. */
#define OTHER_BANDS 15
static const unsigned char COMMON_BANDS[OTHER_BANDS] = {0x00, 0x01, 0x03, 0x07, 0x0f, 0x1f, 0x3f, 0x7f,
                                                        0xff, 0x0b, 0x17, 0x2f, 0x5f, 0xbf, 0x6f};

static inline bool has_mask(int class) { return class >= MASKED && class <= MASKED_WIDE; }

/* --- writing --- */

static inline uint64_t load_64(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

typedef struct {
    unsigned char *out; /* may be written eight bytes beyond */
    uint64_t bits;
    unsigned count; /* of bits that wait, less than 8 */
} BitWriter;

static inline void store_64(unsigned char *at, uint64_t word) {
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    memcpy(at, &word, sizeof word);
}

/* Appends the `width` bits of `value`, which has no others; at most 64. */
static inline void put_bits(BitWriter *writer, uint64_t value, unsigned width) {
    unsigned waiting = writer->count, count = waiting + width;
    uint64_t word = writer->bits | value << waiting;
    store_64(writer->out, word);
    if (count < 64) {
        writer->out += count >> 3;
        writer->bits = word >> (count & ~7u);
        writer->count = count & 7;
    } else {
        writer->out += 8;
        writer->bits = waiting ? value >> (64 - waiting) : 0;
        writer->count = count - 64;
    }
}

static void put_16(unsigned char **out, int value) {
    *(*out)++ = (unsigned char)value;
    *(*out)++ = (unsigned char)(value >> 8);
}

/* Bits of the narrowest two's complement that holds values whose magnitudes (of negative ones, the complement) have
   these bits between them. */
static inline int width_of(unsigned magnitudes) { return magnitudes ? 33 - __builtin_clz(magnitudes) : 1; }

/* No value behind a mask is 0, so that positive ones are stored less 1. */
static int without_zero(int value) { return value > 0 ? value - 1 : value; }

/* What there is to know of a band in order to store it. */
typedef struct {
    int mask, count, masked_width, dense_width;
} Band;

/* `band` is eight coefficients in zigzag order, of which the very first is 0 in place of DC. */
static inline Band look_at(const int16_t *band) {
    Band found = {0, 0, 1, NARROWEST_DENSE};
    unsigned masked = 0, dense = 0;
    for (int place = 0; place < 8; place++) {
        int value = band[place], less = without_zero(value);
        found.mask |= (value != 0) << place;
        masked |= (unsigned)(less ^ (less >> 31));
        dense |= (unsigned)(value ^ (value >> 31));
    }
    found.count = __builtin_popcount((unsigned)found.mask);
    found.masked_width = width_of(masked);
    found.dense_width = width_of(dense) < NARROWEST_DENSE ? NARROWEST_DENSE : width_of(dense);
    found.masked_width = found.masked_width > WIDEST_MASKED ? WIDE : found.masked_width;
    found.dense_width = found.dense_width > WIDEST_DENSE ? WIDE : found.dense_width;
    return found;
}

/* The class that takes the fewest bits. */
static int class_of(const Band *found, int band) {
    if (found->count == 1 && found->masked_width == 1) {
        return SINGLE;
    }
    int places = band ? 8 : 7;
    if (8 + found->count * found->masked_width <= places * found->dense_width) {
        return found->masked_width == WIDE ? MASKED_WIDE : MASKED - 1 + found->masked_width;
    }
    return found->dense_width == WIDE ? DENSE_WIDE : DENSE - NARROWEST_DENSE + found->dense_width;
}

static void put_values(BitWriter *writer, const int16_t *values, int class, int mask, bool first) {
    unsigned width = WIDTH[class], kept = width == WIDE ? 0xffff : (1u << width) - 1;
    if (class == SINGLE) {
        int place = __builtin_ctz((unsigned)mask);
        put_bits(writer, (unsigned)(place << 1 | (values[place] < 0)), width);
        return;
    }
    bool masked = has_mask(class);
    unsigned places = masked ? (unsigned)mask : first ? 0xfe : 0xff;
    for (; places; places &= places - 1) {
        int value = values[__builtin_ctz(places)];
        put_bits(writer, (unsigned)(masked ? without_zero(value) : value) & kept, width);
    }
}

static unsigned char *put_dc(unsigned char *out, const int16_t (*blocks)[BLOCK_COEFFICIENTS], int count) {
    unsigned char *escaped = out + 2 + count - 1;
    put_16(&out, blocks[0][0]);
    for (int number = 1; number < count; number++) {
        int difference = blocks[number][0] - blocks[number - 1][0];
        if (difference > ESCAPE && difference <= 127) {
            *out++ = (unsigned char)difference;
        } else {
            *out++ = (unsigned char)ESCAPE;
            put_16(&escaped, blocks[number][0]);
        }
    }
    return escaped;
}

/* Two numbers of four bits in each byte. */
static unsigned char *put_nibbles(unsigned char *out, const unsigned char *numbers, int count) {
    for (int index = 0; index < count; index += 2) {
        *out++ = (unsigned char)(numbers[index] | (index + 1 < count ? numbers[index + 1] << 4 : 0));
    }
    return out;
}

static unsigned char *put_bands(unsigned char *out, const unsigned char *bands, int count) {
    unsigned char numbers[GROUP], others[GROUP];
    int other = 0;
    for (int number = 0; number < count; number++) {
        const unsigned char *found = memchr(COMMON_BANDS, bands[number], sizeof COMMON_BANDS);
        numbers[number] = found ? (unsigned char)(found - COMMON_BANDS) : OTHER_BANDS;
        if (!found) {
            others[other++] = bands[number];
        }
    }
    out = put_nibbles(out, numbers, count);
    memcpy(out, others, (size_t)other);
    return out + other;
}

size_t write_group(unsigned char *out, const int16_t (*blocks)[BLOCK_COEFFICIENTS], int count) {
    unsigned char bands[GROUP] = {0}, classes[GROUP * BANDS], masks[GROUP * BANDS];
    unsigned char values[GROUP * BLOCK_COEFFICIENTS * 2 + 8], *start = out;
    BitWriter writer = {values, 0, 0};
    int classed = 0, masked = 0;
    for (int number = 0; number < count; number++) {
        int16_t zigzag[BLOCK_COEFFICIENTS];
        for (int position = 1; position < BLOCK_COEFFICIENTS; position++) {
            zigzag[position] = blocks[number][NATURAL[position]];
        }
        zigzag[0] = 0;
        for (int band = 0; band < BANDS; band++) {
            const int16_t *here = zigzag + 8 * band;
            if (!(load_64((const unsigned char *)here) | load_64((const unsigned char *)(here + 4)))) {
                continue;
            }
            Band found = look_at(here);
            int class = class_of(&found, band);
            bands[number] |= (unsigned char)(1 << band);
            classes[classed++] = (unsigned char)class;
            if (has_mask(class)) {
                masks[masked++] = (unsigned char)found.mask;
            }
            put_values(&writer, here, class, found.mask, band == 0);
        }
    }
    put_bits(&writer, 0, -writer.count & 7);
    out = put_bands(put_dc(out, blocks, count), bands, count);
    out = put_nibbles(out, classes, classed);
    memcpy(out, masks, (size_t)masked);
    out += masked;
    memcpy(out, values, (size_t)(writer.out - values));
    return (size_t)(out + (writer.out - values) - start);
}

/* --- reading --- */

/* The parts of a group, and how far they have been read. */
typedef struct {
    const unsigned char *classes, *masks, *values;
    unsigned class_at; /* the next class */
    unsigned bit;      /* the next bit of the values */
    bool sound;        /* whether what has been read is as it must be */
    int16_t dc[GROUP];
    unsigned char bands[GROUP];
} Parts;

static inline int load_16(const unsigned char *at) { return (int16_t)(at[0] | at[1] << 8); }

/* The eight bits of a byte as eight bytes, each 0 or 255. */
static uint64_t spread[256];

/* How many of `count` classes have masks, of which two share a byte. */
static inline int count_masks(const unsigned char *classes, int count) {
    const uint64_t ones = 0x0101010101010101, low = 0x0f0f0f0f0f0f0f0f;
    int found = 0;
    for (int at = 0; 2 * at < count; at += 8) {
        uint64_t word = load_64(classes + at);
        int left = count - 2 * at;
        word = left < 16 ? word & (((uint64_t)1 << 4 * left) - 1) : word;
        /* Less one, of a byte that borrows from bit 4: bit 4 stays where a class is not 0, bit 3 comes where it is 9 or
           more. */
        uint64_t even = ((word & low) | ones << 4) - ones, odd = ((word >> 4 & low) | ones << 4) - ones;
        found += __builtin_popcountll(even >> 4 & ~(even >> 3) & ones);
        found += __builtin_popcountll(odd >> 4 & ~(odd >> 3) & ones);
    }
    return found;
}

/* Reads the DC coefficients, each of which must have 16 bits; returns where they end. */
static inline const unsigned char *read_dc(Parts *parts, const unsigned char *in, int count) {
    const unsigned char *differences = in + 2, *escaped = differences + count - 1;
    int value = load_16(in);
    unsigned beyond = 0;
    parts->dc[0] = (int16_t)value;
    for (int number = 1; number < count; number++) {
        int difference = (int8_t)differences[number - 1];
        if (difference == ESCAPE) {
            value = load_16(escaped);
            escaped += 2;
        } else {
            value += difference;
        }
        beyond |= (unsigned)(value - INT16_MIN);
        parts->dc[number] = (int16_t)value;
    }
    parts->sound = !(beyond >> 16);
    return escaped;
}

/* Reads which bands each block has, and counts them; returns where that ends. */
static inline const unsigned char *read_bands(Parts *parts, int *bands_count, const unsigned char *in, int count) {
    uint64_t numbers = load_64(in);
    const unsigned char *others = in + (count + 1) / 2;
    int found = 0;
    for (int index = 0; index < count; index++, numbers >>= 4) {
        int number = numbers & 15;
        parts->bands[index] = number == OTHER_BANDS ? *others++ : COMMON_BANDS[number];
        found += __builtin_popcount(parts->bands[index]);
    }
    parts->sound &= !(count & 1 && numbers & 15);
    *bands_count = found;
    return others;
}

/* Reads what comes before the coefficients of the bands. */
static inline void begin(Parts *parts, const unsigned char *in, int count) {
    int bands;
    if (count > GROUP) {
        __builtin_unreachable(); /* Otherwise gcc warns that `parts` has no room for more. */
    }
    parts->classes = read_bands(parts, &bands, read_dc(parts, in, count), count);
    parts->sound &= !(bands & 1 && parts->classes[bands / 2] >> 4);
    parts->masks = parts->classes + (bands + 1) / 2;
    parts->values = parts->masks + count_masks(parts->classes, bands);
    parts->class_at = parts->bit = 0;
}

/* Whether a group is sound, has been read up to its end, and all that fills up its last byte is 0. */
static inline bool ends_at(const Parts *parts, const unsigned char *end) {
    unsigned used = parts->bit & 7;
    return parts->sound && parts->values + ((parts->bit + 7) >> 3) == end && !(used && end[-1] >> used);
}

static inline int next_value(Parts *parts, int width) {
    uint64_t word = load_64(parts->values + (parts->bit >> 3)) >> (parts->bit & 7);
    int sign = 1 << (width - 1);
    parts->bit += (unsigned)width;
    return (int)((word & (((uint64_t)1 << width) - 1)) ^ (uint64_t)sign) - sign;
}

/* The values of one band, at `natural` positions. */
static inline void read_band(Parts *parts, int class, int16_t *block, const unsigned char *natural, bool first) {
    int width = WIDTH[class];
    if (class == SINGLE) {
        int found = next_value(parts, width) & 15;
        block[natural[found >> 1]] = found & 1 ? -1 : 1;
    } else if (has_mask(class)) {
        for (unsigned mask = *parts->masks++; mask; mask &= mask - 1) {
            int value = next_value(parts, width);
            block[natural[__builtin_ctz(mask)]] = (int16_t)(value + (value >= 0));
        }
    } else {
        for (int place = first; place < 8; place++) {
            block[natural[place]] = (int16_t)next_value(parts, width);
        }
    }
}

/* All of a block but its DC coefficient. */
static inline void read_block(Parts *parts, unsigned bands, int16_t *block) {
    memset(block, 0, BLOCK_COEFFICIENTS * sizeof *block);
    for (; bands; bands &= bands - 1, parts->class_at++) {
        int band = __builtin_ctz(bands), class = parts->classes[parts->class_at >> 1] >> (parts->class_at & 1) * 4 & 15;
        read_band(parts, class, block, NATURAL + 8 * band, band == 0);
    }
}

static bool read_group(const unsigned char *in, size_t size, int16_t (*blocks)[BLOCK_COEFFICIENTS],
                       unsigned char *bands, int count) {
    Parts parts;
    begin(&parts, in, count);
    for (int number = 0; number < count; number++) {
        read_block(&parts, parts.bands[number], blocks[number]);
        blocks[number][0] = parts.dc[number];
    }
    memcpy(bands, parts.bands, (size_t)count);
    return ends_at(&parts, in + size);
}

#ifdef HAS_X86_SIMD

#define BMI2 __attribute__((target("bmi,bmi2,popcnt,sse4.1")))
#define AVX512                                                                                                         \
    __attribute__((target("bmi,bmi2,popcnt,avx512f,avx512bw,avx512vl,avx512vbmi,avx512vbmi2,avx512bitalg")))

/* For each class, eight times: a value's bits, its sign, and where in the values it begins. Zero for the wide ones. */
static uint64_t bits_of[CLASSES], sign_of[CLASSES], starts_of[CLASSES];

/* A band at a time: `pdep` gives each value a byte, then its place. */
BMI2 static bool read_group_bmi2(const unsigned char *in, size_t size, int16_t (*blocks)[BLOCK_COEFFICIENTS],
                       unsigned char *bands, int count) {
    Parts parts;
    begin(&parts, in, count);
    for (int number = 0; number < count; number++) {
        int16_t *block = blocks[number];
        unsigned left = parts.bands[number];
        uint64_t classes = load_64(parts.classes + (parts.class_at >> 1)) >> (parts.class_at & 1) * 4;
        parts.class_at += (unsigned)__builtin_popcount(left);
        memset(block, 0, sizeof *blocks);
        for (; left; left &= left - 1, classes >>= 4) {
            int band = __builtin_ctz(left), class = classes & 15, width = WIDTH[class];
            const unsigned char *natural = NATURAL + 8 * band;
            if (class == SINGLE || width == WIDE) {
                read_band(&parts, class, block, natural, band == 0);
                continue;
            }
            bool masked = has_mask(class);
            uint64_t there = masked ? spread[*parts.masks++] : band ? ~(uint64_t)0 : ~(uint64_t)255;
            const unsigned char *at = parts.values + (parts.bit >> 3);
            unsigned skipped = parts.bit & 7;
            uint64_t word = load_64(at) >> skipped | (uint64_t)at[8] << 1 << (63 - skipped);
            parts.bit += (unsigned)(width * (__builtin_popcountll(there) >> 3));
            uint64_t packed = _pdep_u64(_pdep_u64(word, bits_of[class]), there);
            __m128i value = _mm_cvtsi64_si128((long long)packed);
            __m128i sign = _mm_cvtsi64_si128((long long)(sign_of[class] & there));
            value = _mm_cvtepi8_epi16(_mm_sub_epi8(_mm_xor_si128(value, sign), sign));
            if (masked) {
                __m128i one = _mm_cvtepi8_epi16(_mm_cvtsi64_si128((long long)there));
                value = _mm_sub_epi16(value, _mm_andnot_si128(_mm_srai_epi16(value, 15), one));
            }
            block[natural[0]] = (int16_t)_mm_extract_epi16(value, 0);
            block[natural[1]] = (int16_t)_mm_extract_epi16(value, 1);
            block[natural[2]] = (int16_t)_mm_extract_epi16(value, 2);
            block[natural[3]] = (int16_t)_mm_extract_epi16(value, 3);
            block[natural[4]] = (int16_t)_mm_extract_epi16(value, 4);
            block[natural[5]] = (int16_t)_mm_extract_epi16(value, 5);
            block[natural[6]] = (int16_t)_mm_extract_epi16(value, 6);
            block[natural[7]] = (int16_t)_mm_extract_epi16(value, 7);
        }
        block[0] = parts.dc[number];
    }
    memcpy(bands, parts.bands, (size_t)count);
    return ends_at(&parts, in + size);
}

/* For each natural position, its position in zigzag order. */
static uint16_t zigzag[BLOCK_COEFFICIENTS];

/* The values of all bands of a block at once, one band in each 64-bit lane. */
AVX512 INLINE void read_block_avx512(Parts *parts, unsigned bands, int16_t *block) {
    const uint64_t low_bits = 0x0101010101010101, low_half = 0x0f0f0f0f0f0f0f0f;
    int count = __builtin_popcount(bands);
    uint64_t there = _pdep_u64(bands, low_bits) * 255; /* of each band, a byte */
    uint64_t nibbles = load_64(parts->classes + (parts->class_at >> 1)) >> (parts->class_at & 1) * 4;
    uint64_t by_band = _pdep_u64(_pdep_u64(_bzhi_u64(nibbles, 4 * (unsigned)count), low_half), there);
    __m128i class = _mm_cvtsi64_si128((long long)by_band), is_there = _mm_cvtsi64_si128((long long)there);
    __m128i is_wide = _mm_or_si128(_mm_cmpeq_epi8(class, _mm_set1_epi8(MASKED_WIDE)),
                                   _mm_cmpeq_epi8(class, _mm_set1_epi8(DENSE_WIDE)));
    if (__builtin_expect(_mm_movemask_epi8(is_wide), 0)) {
        read_block(parts, bands, block);
        return;
    }
    parts->class_at += (unsigned)count;
    __m128i is_dense = _mm_cmpgt_epi8(class, _mm_set1_epi8(MASKED_WIDE));
    __m128i is_single = _mm_and_si128(_mm_cmpeq_epi8(class, _mm_setzero_si128()), is_there);
    uint64_t dense = (uint64_t)_mm_cvtsi128_si64(is_dense) & ~(uint64_t)1; /* one place less for the DC coefficient */
    uint64_t masked = (uint64_t)_mm_cvtsi128_si64(_mm_andnot_si128(_mm_or_si128(is_dense, is_single), is_there));
    uint64_t masks = _pdep_u64(load_64(parts->masks), masked);
    parts->masks += __builtin_popcountll(masked) >> 3;

    /* Where the values of each band begin. A single one counts as one value of four bits. */
    uint64_t places = masks | dense;
    __m128i values = _mm_sub_epi8(_mm_popcnt_epi8(_mm_cvtsi64_si128((long long)places)), is_single);
    __m128i widths = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)WIDTH), class);
    __m128i lengths = _mm_mullo_epi16(_mm_cvtepu8_epi16(values), _mm_cvtepu8_epi16(widths));
    __m128i ends = _mm_add_epi16(lengths, _mm_slli_si128(lengths, 2));
    ends = _mm_add_epi16(ends, _mm_slli_si128(ends, 4));
    ends = _mm_add_epi16(ends, _mm_slli_si128(ends, 8));
    __m512i starts = _mm512_add_epi64(_mm512_cvtepu16_epi64(_mm_sub_epi16(ends, lengths)),
                                      _mm512_set1_epi64(parts->bit & 7));
    const unsigned char *at = parts->values + (parts->bit >> 3);
    parts->bit += (unsigned)_mm_extract_epi16(ends, 7);

    /* The 64 bits from there: they and the byte behind lie in the 64 bytes, as no more than 7 + 63 * 8 bits are used,
       of which the last band has at least as many as it wants. */
    __m512i bytes = _mm512_srli_epi64(starts, 3), window = _mm512_loadu_si512(at);
    __m512i first = _mm512_shuffle_epi8(bytes, _mm512_set4_epi32(0x08080808, 0x08080808, 0, 0));
    __m512i here = _mm512_permutexvar_epi8(_mm512_add_epi8(first, _mm512_set1_epi64(0x0706050403020100)), window);
    __m512i behind = _mm512_permutexvar_epi8(_mm512_add_epi8(first, _mm512_set1_epi8(8)), window);
    __m512i words = _mm512_shrdv_epi64(here, behind, _mm512_and_si512(starts, _mm512_set1_epi64(7)));

    /* A byte for each value, with its sign. */
    __m512i by_lane = _mm512_cvtepu8_epi64(class);
#define LOOKED_UP(table)                                                                                               \
    _mm512_permutex2var_epi64(_mm512_loadu_si512(table), by_lane, _mm512_loadu_si512((table) + 8))
    __m512i sign = LOOKED_UP(sign_of);
    __m512i found = _mm512_and_si512(_mm512_multishift_epi64_epi8(LOOKED_UP(starts_of), words), LOOKED_UP(bits_of));
#undef LOOKED_UP
    found = _mm512_sub_epi8(_mm512_xor_si512(found, sign), sign);

    /* Each value at its place. */
    const __m512i one = _mm512_set1_epi64(1);
    __m512i used = _mm512_sub_epi64(
        _mm512_sllv_epi64(one, _mm512_slli_epi64(_mm512_cvtepu8_epi64(values), 3)), one);
    __mmask64 single = _mm512_movepi8_mask(_mm512_cvtepi8_epi64(is_single));
    found = _mm512_maskz_compress_epi8(_mm512_movepi8_mask(used) & ~single, found);
    found = _mm512_maskz_expand_epi8((__mmask64)places, found);
    __mmask64 positive = (__mmask64)masks & ~_mm512_movepi8_mask(found);
    found = _mm512_mask_sub_epi8(found, positive, found, _mm512_set1_epi8(-1));
    __m512i minus = _mm512_sub_epi64(_mm512_setzero_si512(), _mm512_and_si512(words, one));
    __m512i unit = _mm512_and_si512(_mm512_or_si512(minus, one), _mm512_set1_epi64(255));
    __m512i place = _mm512_and_si512(_mm512_slli_epi64(words, 2), _mm512_set1_epi64(7 * 8));
    found = _mm512_mask_mov_epi8(found, single, _mm512_sllv_epi64(unit, place));

    __m512i low = _mm512_cvtepi8_epi16(_mm512_castsi512_si256(found));
    __m512i high = _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(found, 1));
    __m512i upper = _mm512_loadu_si512(zigzag), lower = _mm512_loadu_si512(zigzag + 32);
    _mm512_storeu_si512(block, _mm512_permutex2var_epi16(low, upper, high));
    _mm512_storeu_si512(block + 32, _mm512_permutex2var_epi16(low, lower, high));
}

AVX512 static bool read_group_avx512(const unsigned char *in, size_t size, int16_t (*blocks)[BLOCK_COEFFICIENTS],
                       unsigned char *bands, int count) {
    Parts parts;
    begin(&parts, in, count);
    for (int number = 0; number < count; number++) {
        read_block_avx512(&parts, parts.bands[number], blocks[number]);
        blocks[number][0] = parts.dc[number];
    }
    memcpy(bands, parts.bands, (size_t)count);
    return ends_at(&parts, in + size);
}

static void init_simd(void) {
    for (int class = 0; class < CLASSES; class++) {
        for (unsigned byte = 0; byte < 8 && WIDTH[class] < WIDE; byte++) {
            unsigned width = WIDTH[class];
            bits_of[class] |= (uint64_t)((1u << width) - 1) << 8 * byte;
            sign_of[class] |= (uint64_t)(1u << (width - 1)) << 8 * byte;
            starts_of[class] |= (uint64_t)(byte * width & 63) << 8 * byte;
        }
    }
    for (int position = 0; position < BLOCK_COEFFICIENTS; position++) {
        zigzag[NATURAL[position]] = (uint16_t)position;
    }
}

#endif

ReadGroup *named_read_group(const char *name) {
#ifdef HAS_X86_SIMD
    if (strcmp(name, "avx512") == 0) {
        return processor_has(HAS_AVX512) ? read_group_avx512 : NULL;
    }
    if (strcmp(name, "bmi2") == 0) {
        return processor_has(HAS_BMI2) ? read_group_bmi2 : NULL;
    }
#endif
    return strcmp(name, "plain") == 0 ? read_group : NULL;
}

static ReadGroup *fastest = read_group;

ReadGroup *fastest_read_group(void) { return fastest; }

void coefficient_groups_init(void) {
    for (unsigned byte = 0; byte < 256; byte++) {
        for (unsigned bit = 0; bit < 8; bit++) {
            spread[byte] |= (uint64_t)(byte >> bit & 1 ? 255 : 0) << 8 * bit;
        }
    }
#ifdef HAS_X86_SIMD
    init_simd();
#endif
    ReadGroup *avx512 = named_read_group("avx512");
    ReadGroup *bmi2 = processor_has(HAS_FAST_PDEP) ? named_read_group("bmi2") : NULL;
    fastest = avx512 ? avx512 : bmi2 ? bmi2 : read_group;
}
