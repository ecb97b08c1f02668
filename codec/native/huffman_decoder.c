/* Huffman decoding for libjpeg. It reduces the time to decode a cut by a quarter (docs/decisions/0006).

   Most of the time to decode a JPEG goes into entropy decoding. libjpeg-turbo leaves its fast path when an image has
   restart markers (jdhuff.c, decode_mcu), and every cut has them. This decoder looks up the code, run and value of one
   or two coefficients in one step (as the fast_ac of stb_image does), and loads eight bytes at a time unless one is
   0xff. Where an image is decoded to an eighth, only the first coefficient of most blocks counts, and the others are
   passed over, several in one step.

   libjpeg has no interface for this. It calls its decoder through the first pointers of a structure that its public
   headers only declare. We replace them only if they point into libjpeg. */

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "huffman_decoder.h"

#include "errors.h"
#include "zigzag.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The beginning of the structure as libjpeg's jpegint.h defines it. */
struct jpeg_entropy_decoder {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
};

/* Bits of an index into a table. 11 bits are no faster, and 12 are slower: the tables no longer fit into the
   first-level cache. */
#define QUICK 10
#define LONGEST 16

/* An entry of a table: how many bits to drop, what they mean, the distance of the first coefficient from the one
   before, the distance of the second from the first, and the values of both. If there is only one coefficient, the
   second repeats it at distance 0. */
typedef uint64_t Entry;
#define BITS(entry) ((int)((entry)&63))
#define FIRST_BITS(entry) ((int)((entry) >> 10 & 63)) /* of the first coefficient only */
#define IS_VALUE 64   /* one or two coefficients */
#define IS_SYMBOL 128 /* a symbol whose value needs more bits, in place of the first distance */
#define IS_LAST 256   /* with IS_VALUE: followed by the end of the block */
#define STEP(entry) ((int)((entry) >> 16 & 255))
#define SECOND_STEP(entry) ((int)((entry) >> 24 & 255))
#define VALUE(entry) ((JCOEF)((entry) >> 32))
#define SECOND_VALUE(entry) ((JCOEF)((entry) >> 48))

typedef struct {
    Entry quick[1 << QUICK];
    int32_t beyond[LONGEST + 2]; /* for each length, the first code (extended to 16 bits) that is longer */
    int32_t offset[LONGEST + 1]; /* for each length, what to add to a code to get its index in `values` */
    unsigned char values[256];
} Table;

/* Bits of an index into a table for passing over coefficients. Their values need not be among them. */
#define SKIP_INDEX 11

/* An entry of such a table: how many bits several coefficients take and the first one alone, the distance of the last
   one from the one before the first, and that of the first. 0 for a code that is longer than the index. */
typedef uint32_t Skip;
#define SKIP_BITS(skip) ((int)((skip)&63))
#define SKIP_FIRST_BITS(skip) ((int)((skip) >> 6 & 31))
#define SKIP_STEP(skip) ((int)((skip) >> 11 & 255))
#define SKIP_FIRST_STEP(skip) ((int)((skip) >> 19 & 31))
#define SKIP_CODE(skip) ((int)((skip) >> 24 & 31)) /* length of the first code */
#define SKIP_IS_LAST ((Skip)1 << 29)               /* the last of them is the end of the block */
#define SKIP_IS_FALSE ((Skip)1 << 30)              /* a symbol that there must not be */

struct HuffmanDecoder {
    uint64_t bits; /* the next `count` bits, from the top */
    int count, invented;
    const unsigned char *in, *end;
    int64_t left;   /* MCUs left in the scan */
    unsigned to_go; /* MCUs left before the next restart marker */
    int marker;     /* number of that marker */
    int column;     /* of the next MCU in its row */
    int columns;    /* MCUs in a row */
    int wanted;     /* MCUs at the left of each row whose coefficients are wanted */
    bool passed;    /* whether the reader has passed over the rest of this row */
    JCOEF previous[MAX_COMPS_IN_SCAN];
    bool skips[MAX_COMPS_IN_SCAN]; /* whether only the first coefficient of each block counts */
    Table dc[NUM_HUFF_TBLS], ac[NUM_HUFF_TBLS];
    Skip skip[NUM_HUFF_TBLS][1 << SKIP_INDEX];
};

/* The value of `size` bits (T.81, F.2.2.1). */
static inline int extend(uint32_t bits, int size) {
    return (int)bits - ((((int)1 << size) - 1) & ((int)(bits >> (size - 1)) - 1));
}

/* --- tables --- */

/* False if the table is not a prefix code. Not every version of libjpeg checks that. */
static bool build(Table *table, const JHUFF_TBL *source) {
    memset(table->quick, 0, sizeof table->quick);
    memcpy(table->values, source->huffval, sizeof table->values);
    int32_t code = 0;
    int index = 0;
    for (int length = 1; length <= LONGEST; length++) {
        int count = source->bits[length];
        table->offset[length] = index - code;
        if (index + count > 256 || code + count > (int32_t)1 << length) {
            return false;
        }
        for (int number = 0; number < count; number++, code++, index++) {
            if (length > QUICK) {
                continue;
            }
            int symbol = table->values[index], size = symbol & 15, spare = QUICK - length;
            Entry *entry = table->quick + ((size_t)code << spare);
            for (uint32_t rest = 0; rest < (uint32_t)1 << spare; rest++) {
                if (size == 0 || size > spare) {
                    entry[rest] = (Entry)symbol << 16 | IS_SYMBOL | (Entry)length;
                } else {
                    Entry value = (uint16_t)extend(rest >> (spare - size), size);
                    entry[rest] = value << 48 | value << 32 | (Entry)((symbol >> 4) + 1) << 16 | IS_VALUE |
                                  (Entry)(length + size) << 10 | (Entry)(length + size);
                }
            }
        }
        table->beyond[length] = code << (LONGEST - length);
        code <<= 1;
    }
    return true;
}

/* Adds a second coefficient, or the end of the block, to the entries that have enough bits left. */
static void pair(Table *table) {
    Entry singles[1 << QUICK];
    memcpy(singles, table->quick, sizeof singles);
    for (size_t index = 0; index < 1 << QUICK; index++) {
        Entry entry = singles[index], next = singles[index << BITS(entry) & ((1 << QUICK) - 1)];
        int bits = BITS(entry) + BITS(next);
        if (!(entry & IS_VALUE) || bits > QUICK) {
            continue;
        }
        if (next & IS_VALUE) {
            table->quick[index] = (next & 0xffffull << 48) | (entry & 0xffffull << 32) | (Entry)STEP(next) << 24 |
                                  (entry & 0xfffc00) | IS_VALUE | (Entry)bits;
        } else if ((next & IS_SYMBOL) && STEP(next) == 0) {
            table->quick[index] = (entry & ~(Entry)63) | IS_LAST | (Entry)bits;
        }
    }
}

static Skip skip_of(int symbol, int length) {
    int size = symbol & 15, step = (symbol >> 4) + 1, bits = length + size;
    if (symbol == 0) {
        return (Skip)bits | (Skip)bits << 6 | (Skip)length << 24 | SKIP_IS_LAST;
    }
    if (size == 0 && symbol != 0xf0) {
        return SKIP_IS_FALSE | (Skip)length << 24;
    }
    return (Skip)bits | (Skip)bits << 6 | (Skip)step << 11 | (Skip)step << 19 | (Skip)length << 24;
}

/* Makes the table for passing over coefficients from a sound table of their codes. */
static void build_skips(Skip *skips, const Table *table, const JHUFF_TBL *source) {
    Skip singles[1 << SKIP_INDEX] = {0};
    size_t at = 0;
    int index = 0;
    for (int length = 1; length <= SKIP_INDEX; length++) {
        size_t spare = (size_t)1 << (SKIP_INDEX - length);
        for (int number = 0; number < source->bits[length]; number++, index++) {
            Skip skip = skip_of(table->values[index], length);
            for (size_t rest = 0; rest < spare; rest++) {
                singles[at++] = skip;
            }
        }
    }
    for (size_t start = 0; start < 1 << SKIP_INDEX; start++) {
        Skip skip = singles[start];
        while (skip && !(skip & (SKIP_IS_LAST | SKIP_IS_FALSE)) && SKIP_BITS(skip) < SKIP_INDEX) {
            Skip next = singles[start << SKIP_BITS(skip) & ((1 << SKIP_INDEX) - 1)];
            if (!next || (next & SKIP_IS_FALSE) || SKIP_BITS(skip) + SKIP_CODE(next) > SKIP_INDEX) {
                break;
            }
            skip += (Skip)SKIP_BITS(next) + ((Skip)SKIP_STEP(next) << 11) + (next & SKIP_IS_LAST);
        }
        skips[start] = skip;
    }
}

/* --- bits --- */

/* The position of the decoder, kept in registers while it decodes an MCU. */
typedef struct {
    uint64_t bits;
    int count, invented;
    const unsigned char *in, *end;
} Reader;

static inline uint64_t load(const unsigned char *at) {
    uint64_t word;
    memcpy(&word, at, sizeof word);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* Loads byte by byte. Skips stuffed zeros, and supplies zeros in place of a marker or the end of the data. */
__attribute__((noinline)) static Reader refill_slowly(Reader reader) {
    while (reader.count <= 56) {
        uint64_t byte = reader.in < reader.end ? *reader.in : 0xff;
        if (byte != 0xff) {
            reader.in++;
        } else if (reader.end - reader.in >= 2 && reader.in[1] == 0) {
            reader.in += 2;
        } else {
            byte = 0;
            reader.invented += 8;
        }
        reader.bits |= byte << (56 - reader.count);
        reader.count += 8;
    }
    return reader;
}

/* Makes sure that at least 56 bits are loaded. */
static inline void refill(Reader *reader) {
    if (reader->end - reader->in >= 8) {
        uint64_t word = load(reader->in), inverse = ~word;
        if (!((inverse - 0x0101010101010101) & word & 0x8080808080808080)) {
            reader->bits |= word >> reader->count;
            reader->in += (63 - reader->count) >> 3;
            reader->count |= 56;
            return;
        }
    }
    *reader = refill_slowly(*reader);
}

static inline void drop(Reader *reader, int count) {
    reader->bits <<= count;
    reader->count -= count;
}

/* The next symbol and, in bits 8 and up, the length of its code, where the code is too long for the quick lookup; -1 if
   there is no such code. */
__attribute__((noinline)) static int long_code(uint64_t bits, const Table *table) {
    int32_t code = (int32_t)(bits >> (64 - LONGEST));
    int length = QUICK + 1;
    while (length <= LONGEST && code >= table->beyond[length]) {
        length++;
    }
    if (length > LONGEST) {
        return -1;
    }
    return table->values[(code >> (LONGEST - length)) + table->offset[length]] | length << 8;
}

/* The next symbol; -1 if there is no such code. At least 16 bits must be loaded. */
static inline int next_symbol(Reader *reader, const Table *table, Entry entry) {
    if (entry & IS_SYMBOL) {
        drop(reader, BITS(entry));
        return STEP(entry);
    }
    int found = long_code(reader->bits, table);
    if (found < 0) {
        return -1;
    }
    drop(reader, found >> 8);
    return found & 255;
}

static inline int next_value(Reader *reader, int size) {
    int value = extend((uint32_t)(reader->bits >> (64 - size)), size);
    drop(reader, size);
    return value;
}

/* --- blocks --- */

/* Decodes the first coefficient of a block. */
static inline bool decode_first(Reader *reader, const Table *dc, JCOEF *previous, JCOEF *block) {
    int difference;
    refill(reader);
    Entry entry = dc->quick[reader->bits >> (64 - QUICK)];
    if (entry & IS_VALUE) {
        difference = VALUE(entry);
        drop(reader, BITS(entry));
    } else {
        int size = next_symbol(reader, dc, entry);
        if (size < 0 || size > 15) {
            return false;
        }
        difference = size ? next_value(reader, size) : 0;
    }
    *previous = (JCOEF)(*previous + difference);
    block[0] = *previous;
    return true;
}

/* Passes over all coefficients of a block but the first. */
static inline bool skip_rest(Reader *reader, const Table *ac, const Skip *skips) {
    int position = 0;
    while (position < DCTSIZE2 - 1) {
        if (reader->count < 32) {
            refill(reader);
        }
        Skip skip = skips[reader->bits >> (64 - SKIP_INDEX)];
        if (!skip) {
            int found = long_code(reader->bits, ac);
            if (found < 0) {
                return false;
            }
            skip = skip_of(found & 255, found >> 8);
        }
        if (skip & SKIP_IS_FALSE) {
            return false;
        }
        if (position + SKIP_STEP(skip) < DCTSIZE2 - 1) {
            position += SKIP_STEP(skip);
            drop(reader, SKIP_BITS(skip));
            if (skip & SKIP_IS_LAST) {
                return true;
            }
        } else {
            /* The rest of them, if any, may belong to the next block. */
            position += SKIP_FIRST_STEP(skip);
            drop(reader, SKIP_FIRST_BITS(skip));
        }
    }
    return position < DCTSIZE2;
}

static inline bool decode_block(Reader *reader, const Table *dc, const Table *ac, JCOEF *previous, JCOEF *block) {
    Entry entry;
    if (!decode_first(reader, dc, previous, block)) {
        return false;
    }
    int position = 0;
    while (position < DCTSIZE2 - 1) {
        if (reader->count < 32) {
            refill(reader);
        }
        entry = ac->quick[reader->bits >> (64 - QUICK)];
        if (entry & IS_VALUE) {
            int first = position + STEP(entry);
            position = first + SECOND_STEP(entry);
            block[NATURAL[first]] = VALUE(entry);
            block[NATURAL[position]] = SECOND_VALUE(entry);
            if (first == DCTSIZE2 - 1) {
                /* The rest of the entry, if any, belongs to the next block. */
                block[DCTSIZE2 - 1] = VALUE(entry);
                drop(reader, FIRST_BITS(entry));
                return true;
            }
            drop(reader, BITS(entry));
            if (entry & IS_LAST) {
                break;
            }
            continue;
        }
        int symbol = next_symbol(reader, ac, entry), size = symbol & 15;
        if (symbol == 0) {
            break;
        }
        position += (symbol >> 4) + 1;
        if (symbol < 0 || position >= DCTSIZE2 || (size == 0 && symbol != 0xf0)) {
            return false;
        }
        if (size) {
            block[NATURAL[position]] = (JCOEF)next_value(reader, size);
        }
    }
    return position < DCTSIZE2;
}

/* Whether the next thing to read is a marker, apart from the bits that pad the last byte. */
static bool at_marker(const Reader *reader) {
    return reader->invented <= reader->count && reader->count - reader->invented < 8 && reader->end - reader->in >= 2 &&
           reader->in[0] == 0xff;
}

/* Moves past a restart marker; false if something else comes next, or another marker. */
static bool restart(j_decompress_ptr source, HuffmanDecoder *decoder, Reader *reader) {
    if (!at_marker(reader) || reader->in[1] != (0xd0 | decoder->marker)) {
        return false;
    }
    *reader = (Reader){.in = reader->in + 2, .end = reader->end};
    memset(decoder->previous, 0, sizeof decoder->previous);
    decoder->marker = (decoder->marker + 1) & 7;
    decoder->to_go = source->restart_interval;
    return true;
}

/* At the first MCU of a row that is not wanted, moves to the marker at the end of the row; false if there is none, or
   another one before. `restart` checks it. */
static bool pass_over(j_decompress_ptr source, HuffmanDecoder *decoder) {
    unsigned rest = (unsigned)(decoder->columns - decoder->wanted);
    const unsigned char *at = decoder->in, *end = decoder->end;
    if (!source->restart_interval || decoder->to_go != rest) {
        return false;
    }
    while ((at = end - at >= 2 ? memchr(at, 0xff, (size_t)(end - at - 1)) : NULL) && at[1] == 0) {
        at += 2;
    }
    if (!at) {
        return false;
    }
    decoder->bits = 0;
    decoder->count = decoder->invented = 0;
    decoder->in = at;
    decoder->to_go = 0;
    decoder->left -= rest;
    if (decoder->left == 0) {
        source->src->next_input_byte = at;
        source->src->bytes_in_buffer = (size_t)(end - at);
    }
    return true;
}

static boolean decode_mcu(j_decompress_ptr source, JBLOCKROW *blocks) {
    HuffmanDecoder *decoder = source->client_data;
    int column = decoder->column;
    decoder->column = column + 1 < decoder->columns ? column + 1 : 0;
    if (column >= decoder->wanted) {
        decoder->passed = column == decoder->wanted ? pass_over(source, decoder) : decoder->passed;
        if (decoder->passed) {
            return TRUE;
        }
    }
    Reader reader = {decoder->bits, decoder->count, decoder->invented, decoder->in, decoder->end};
    bool sound = decoder->left-- > 0;
    if (sound && source->restart_interval && decoder->to_go-- == 0) {
        sound = restart(source, decoder, &reader);
        decoder->to_go--;
    }
    for (int number = 0; sound && number < source->blocks_in_MCU; number++) {
        int index = source->MCU_membership[number];
        const jpeg_component_info *component = source->cur_comp_info[index];
        const Table *dc = &decoder->dc[component->dc_tbl_no], *ac = &decoder->ac[component->ac_tbl_no];
        JCOEF *previous = &decoder->previous[index], *block = blocks[number][0];
        sound = decoder->skips[index] ? decode_first(&reader, dc, previous, block) &&
                                            skip_rest(&reader, ac, decoder->skip[component->ac_tbl_no])
                                      : decode_block(&reader, dc, ac, previous, block);
    }
    if (sound && decoder->left == 0) {
        sound = at_marker(&reader);
        source->src->next_input_byte = reader.in;
        source->src->bytes_in_buffer = (size_t)(reader.end - reader.in);
    }
    if (!sound || reader.invented > reader.count) {
        errors_raise((Errors *)source->err, INPUT_ERROR, "the coded data is damaged");
    }
    decoder->bits = reader.bits;
    decoder->count = reader.count;
    decoder->invented = reader.invented;
    decoder->in = reader.in;
    return TRUE;
}

/* --- libjpeg --- */

static bool is_libjpeg(void (*function)(void)) {
    Dl_info here, there;
    return dladdr((void *)(uintptr_t)function, &there) && dladdr((void *)(uintptr_t)jpeg_start_decompress, &here) &&
           here.dli_fbase == there.dli_fbase;
}

boolean replace_entropy_decoder(j_decompress_ptr source, boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *)) {
    struct jpeg_entropy_decoder *libjpeg = source->entropy;
    if (!is_libjpeg((void (*)(void))libjpeg->start_pass) || !is_libjpeg((void (*)(void))libjpeg->decode_mcu)) {
        return FALSE;
    }
    libjpeg->decode_mcu = decode_mcu;
    return TRUE;
}

size_t huffman_decoder_size(void) {
    return sizeof(HuffmanDecoder);
}

/* Whether each block becomes a single pixel. */
static bool is_shrunk_to_one(const jpeg_component_info *component) {
#if JPEG_LIB_VERSION >= 70
    return component->DCT_h_scaled_size == 1 && component->DCT_v_scaled_size == 1;
#else
    return component->DCT_scaled_size == 1;
#endif
}

void huffman_decoder_use(j_decompress_ptr source, HuffmanDecoder *decoder) {
    memset(decoder, 0, offsetof(HuffmanDecoder, dc));
    if (source->progressive_mode || source->arith_code || source->comps_in_scan != source->num_components) {
        return;
    }
    for (int index = 0; index < source->comps_in_scan; index++) {
        const jpeg_component_info *component = source->cur_comp_info[index];
        int dc = component->dc_tbl_no, ac = component->ac_tbl_no;
        const jpeg_component_info *before = index ? source->cur_comp_info[index - 1] : NULL;
        if (before && before->dc_tbl_no == dc && before->ac_tbl_no == ac) {
            continue;
        }
        if (dc < 0 || dc >= NUM_HUFF_TBLS || ac < 0 || ac >= NUM_HUFF_TBLS || !source->dc_huff_tbl_ptrs[dc] ||
            !source->ac_huff_tbl_ptrs[ac] || !build(&decoder->dc[dc], source->dc_huff_tbl_ptrs[dc]) ||
            !build(&decoder->ac[ac], source->ac_huff_tbl_ptrs[ac])) {
            return;
        }
        pair(&decoder->ac[ac]);
    }
    for (int index = 0; index < source->comps_in_scan; index++) {
        const jpeg_component_info *component = source->cur_comp_info[index];
        int ac = component->ac_tbl_no;
        decoder->skips[index] = is_shrunk_to_one(component);
        if (decoder->skips[index]) {
            build_skips(decoder->skip[ac], &decoder->ac[ac], source->ac_huff_tbl_ptrs[ac]);
        }
    }
    decoder->in = source->src->next_input_byte;
    decoder->end = decoder->in + source->src->bytes_in_buffer;
    decoder->left = (int64_t)source->MCUs_per_row * source->MCU_rows_in_scan;
    decoder->to_go = source->restart_interval;
    decoder->columns = decoder->wanted = (int)source->MCUs_per_row;
    if (replace_entropy_decoder(source, decode_mcu)) {
        source->client_data = decoder;
    }
}

void huffman_decoder_want(HuffmanDecoder *decoder, int columns) {
    decoder->wanted = columns < decoder->columns ? columns : decoder->columns;
}
