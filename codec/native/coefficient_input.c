#include "coefficient_input.h"

#include "huffman_decoder.h"
#include "jpeg_input.h"

#include <stdlib.h>
#include <string.h>

/* libjpeg wants Huffman tables, though it does not use them: each has one code of one bit. */
#define HUFFMAN_TABLE(number) number, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
static const unsigned char HUFFMAN_TABLES[] = {0xff, 0xc4, 0, 2 + 2 * 18, HUFFMAN_TABLE(0x00), HUFFMAN_TABLE(0x10)};

static int64_t ceiling(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

static int64_t least(int64_t one, int64_t other) { return one < other ? one : other; }

/* The MCUs from `first` to `last` along one side of the image. Where chroma has fewer samples than luma, libjpeg
   interpolates between neighbours, so one more sample is needed on each side. */
static void choose(int64_t *first, int64_t *last, int64_t start, int64_t length, int scale, int64_t side, int64_t mcu) {
    int64_t beside = mcu > 8 ? mcu / 8 * scale : 0, low = start * scale - beside;
    *first = low > 0 ? low / mcu : 0;
    *last = ceiling(least((start + length) * scale + beside, side), mcu);
    /* It does not interpolate rows of one or two samples, of which a whole MCU has eight divided by the scale. */
    int64_t wanted = beside ? 2 * scale / 8 + 1 : 0;
    while (*last - *first - (*last * mcu > side) < wanted && (*first || *last * mcu < side)) {
        if (*first) {
            --*first;
        } else {
            ++*last;
        }
    }
}

static unsigned char *put(unsigned char *out, const void *bytes, size_t size) {
    memcpy(out, bytes, size);
    return out + size;
}

static void put_big(unsigned char *at, int64_t value) {
    at[0] = (unsigned char)(value >> 8);
    at[1] = (unsigned char)value;
}

/* Writes the header of a JPEG of the chosen MCUs, without coded data; returns its size. */
static size_t write_header(CoefficientInput *input, bool metadata) {
    const CoefficientRecord *record = &input->record;
    const FrameHeader *frame = &record->frame;
    const RowReader *reader = &input->reader;
    int64_t right = least(reader->last * frame->mcu_width, frame->width);
    int64_t bottom = least(input->last_row * frame->mcu_height, frame->height);
    unsigned char *out = put(input->header, "\xff\xd8", 2);
    out = put(out, record->metadata, metadata ? record->metadata_size : 0);
    unsigned char *size = out + record->size_at;
    out = put(out, record->head, record->head_size);
    put_big(size, bottom - input->first_row * frame->mcu_height);
    put_big(size + 2, right - reader->first * frame->mcu_width);
    out = put(out, HUFFMAN_TABLES, sizeof HUFFMAN_TABLES);
    const unsigned char scan[] = {0xff, 0xda, 0, (unsigned char)(6 + 2 * frame->components),
                                  (unsigned char)frame->components};
    out = put(out, scan, sizeof scan);
    for (int index = 0; index < frame->components; index++) {
        *out++ = (unsigned char)(index + 1);
        *out++ = 0;
    }
    out = put(out, "\0\x3f\0\xff\xd9", 5);
    return (size_t)(out - input->header);
}

/* Whether libjpeg has read the frame header that the coefficients are laid out for. The metadata before it may have
   changed since it was checked. */
static bool is_same_image(const CoefficientInput *input, j_decompress_ptr source) {
    const CoefficientRecord *record = &input->record;
    const FrameHeader *frame = &record->frame;
    const RowReader *reader = &input->reader;
    int64_t columns = ceiling(source->image_width, frame->mcu_width);
    int64_t rows = ceiling(source->image_height, frame->mcu_height);
    if (source->num_components != frame->components || source->comps_in_scan != frame->components ||
        source->progressive_mode || source->arith_code || columns != reader->last - reader->first ||
        rows != input->last_row - input->first_row) {
        return false;
    }
    for (int index = 0; index < frame->components && frame->components > 1; index++) {
        if (source->comp_info[index].h_samp_factor != frame->component[index].across ||
            source->comp_info[index].v_samp_factor != frame->component[index].down) {
            return false;
        }
    }
    return true;
}

void coefficient_input_open(CoefficientInput *input, Errors *errors, const unsigned char *data, size_t size) {
    if (!coefficient_record_parse(&input->record, data, size)) {
        errors_raise(errors, INPUT_ERROR, "the coefficient record is damaged");
    }
}

void coefficient_input_choose(CoefficientInput *input, Errors *errors, const int box[4], int scale) {
    const FrameHeader *frame = &input->record.frame;
    if (box[0] < 0 || box[1] < 0 || box[2] < 1 || box[3] < 1 || box[0] > ceiling(frame->width, scale) - box[2] ||
        box[1] > ceiling(frame->height, scale) - box[3]) {
        errors_raise(errors, INPUT_ERROR, "the rectangle is not inside the image");
    }
    int64_t first, last;
    choose(&first, &last, box[0], box[2], scale, frame->width, frame->mcu_width);
    choose(&input->first_row, &input->last_row, box[1], box[3], scale, frame->height, frame->mcu_height);
    if (!row_reader_open(&input->reader, &input->record, first, last)) {
        errors_raise(errors, MEMORY_ERROR, NULL);
    }
    if (input->read_group) {
        input->reader.read_group = input->read_group;
    }
    input->row = input->first_row;
    input->column = first;
}

void coefficient_input_read_header(CoefficientInput *input, j_decompress_ptr source, bool metadata) {
    input->header = malloc(input->record.metadata_size + HEAD_MOST + 120);
    if (!input->header) {
        errors_raise((Errors *)source->err, MEMORY_ERROR, NULL);
    }
    read_header(source, input->header, write_header(input, metadata));
    if (!is_same_image(input, source)) {
        errors_raise((Errors *)source->err, INPUT_ERROR, "the coefficient record is damaged");
    }
}

static boolean decode_mcu(j_decompress_ptr source, JBLOCKROW *blocks) {
    CoefficientInput *input = source->client_data;
    const CoefficientRecord *record = &input->record;
    RowReader *reader = &input->reader;
    if (input->row == input->last_row ||
        (input->column == reader->first && !row_reader_read(reader, record, input->row))) {
        errors_raise((Errors *)source->err, INPUT_ERROR, "the coefficient record is damaged");
    }
    int64_t mcu = input->column++ - reader->first;
    int number = 0;
    for (int component = 0; component < record->frame.components; component++) {
        int across = record->frame.component[component].across, down = record->frame.component[component].down;
        for (int line = 0; line < down; line++, number += across) {
            int64_t found = row_reader_block(reader, record, component, line, mcu * across);
            for (int block = 0; block < across; block++) {
                memcpy(blocks[number + block][0], reader->blocks[found + block], sizeof(JBLOCK));
            }
        }
    }
    if (input->column == reader->last) {
        input->column = reader->first;
        input->row++;
    }
    return TRUE;
}

void coefficient_input_use(CoefficientInput *input, j_decompress_ptr source) {
    if (!replace_entropy_decoder(source, decode_mcu)) {
        errors_raise((Errors *)source->err, LIBRARY_ERROR,
                     "this libjpeg does not let another decoder take the place of its own");
    }
    source->client_data = input;
}

int coefficient_input_left(const CoefficientInput *input, int scale) {
    return (int)(input->reader.first * input->record.frame.mcu_width / scale);
}

int coefficient_input_top(const CoefficientInput *input, int scale) {
    return (int)(input->first_row * input->record.frame.mcu_height / scale);
}

void coefficient_input_close(CoefficientInput *input) {
    row_reader_close(&input->reader);
    free(input->header);
}
