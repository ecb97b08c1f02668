#include "coefficient_record.h"

#include <stdlib.h>
#include <string.h>

#define APP0 0xe0
#define APP1 0xe1
#define APP2 0xe2
#define APP14 0xee
#define DQT 0xdb
#define SOF0 0xc0
#define SOF1 0xc1

static uint32_t little(const unsigned char *at, int bytes) {
    uint32_t value = 0;
    for (int index = bytes - 1; index >= 0; index--) {
        value = value << 8 | at[index];
    }
    return value;
}

static int64_t ceiling(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

bool is_coefficient_record(const unsigned char *data, size_t size) {
    return size >= RECORD_HEADER && memcmp(data, RECORD_MAGIC, RECORD_MAGIC_BYTES) == 0;
}

/* Whether the metadata consists of segments that docs/format-records.md lists. Any other one could begin another image, or
   change how this one is decoded. What lies in a file may differ when it is read again: that a decoder takes the record
   for the image of `frame` has to be checked there. */
static bool has_only_metadata(const unsigned char *data, size_t size, bool rgb) {
    for (size_t at = 0; at < size;) {
        unsigned char segment[4];
        if (size - at < sizeof segment) {
            return false;
        }
        memcpy(segment, data + at, sizeof segment);
        size_t length = 2 + (size_t)(segment[2] << 8 | segment[3]);
        bool jfif = segment[1] == APP0 && at == 0 && !rgb;
        if (segment[0] != 0xff || (segment[1] != APP1 && segment[1] != APP2 && !jfif) || length < sizeof segment ||
            length > size - at) {
            return false;
        }
        at += length;
    }
    return true;
}

/* Whether a segment APP14 says that the colours are not transformed. */
static bool has_no_transform(const unsigned char *body, int64_t length) {
    return length >= 12 && memcmp(body, "Adobe", 5) == 0 && body[11] == 0;
}

/* Reads the copied head, which must consist of the segments that docs/format-records.md lists. */
static bool read_head(CoefficientRecord *record) {
    bool tables[4] = {false};
    for (size_t at = 0; record->head_size - at >= 4;) {
        const unsigned char *segment = record->head + at, *body = segment + 4;
        int64_t length = (int64_t)(segment[2] << 8 | segment[3]) - 2;
        if (segment[0] != 0xff || length < 1 || (size_t)length > record->head_size - at - 4) {
            return false;
        }
        if (segment[1] == SOF0 || segment[1] == SOF1) {
            record->size_at = at + 5;
            if (at + 4 + (size_t)length != record->head_size ||
                !read_frame_header(&record->frame, body, length)) {
                return false;
            }
            record->rgb = record->head[1] == APP14;
            if (record->rgb && record->frame.components == 1) {
                return false;
            }
            for (int index = 0; index < record->frame.components; index++) {
                int table = record->frame.component[index].table;
                if (table > 3 || !tables[table]) {
                    return false;
                }
            }
            return true;
        }
        if (segment[1] == DQT && body[0] >> 4 <= 1 && (body[0] & 15) <= 3 && length == 1 + (64 << (body[0] >> 4))) {
            tables[body[0] & 15] = true;
        } else if (segment[1] != APP14 || at || !has_no_transform(body, length)) {
            return false;
        }
        at += 4 + (size_t)length;
    }
    return false;
}

/* Counts MCUs and groups. */
static void lay_out(CoefficientRecord *record) {
    const FrameHeader *frame = &record->frame;
    record->columns = ceiling(frame->width, frame->mcu_width);
    record->rows = ceiling(frame->height, frame->mcu_height);
    record->groups_in_row = 0;
    for (int index = 0; index < frame->components; index++) {
        int64_t blocks = ceiling(frame->width * frame->component[index].across, frame->mcu_width);
        record->groups[index] = ceiling(blocks, GROUP);
        record->groups_in_row += record->groups[index] * frame->component[index].down;
    }
}

/* Lines of blocks of a component in a row of MCUs: fewer in the last one, if the image ends there. */
static int lines_in_row(const CoefficientRecord *record, int component, int64_t row) {
    const FrameHeader *frame = &record->frame;
    int64_t down = frame->component[component].down, all = ceiling(frame->height * down, frame->mcu_height);
    return (int)(all - row * down < down ? all - row * down : down);
}

static int64_t all_groups(const CoefficientRecord *record) {
    int64_t count = record->groups_in_row * (record->rows - 1);
    for (int index = 0; index < record->frame.components; index++) {
        count += record->groups[index] * lines_in_row(record, index, record->rows - 1);
    }
    return count;
}

bool coefficient_record_parse(CoefficientRecord *record, const unsigned char *data, size_t size) {
    unsigned char header[RECORD_HEADER];
    if (!is_coefficient_record(data, size)) {
        return false;
    }
    memcpy(header, data, sizeof header);
    size_t head = little(header + 12, 4), ends = little(header + 16, 4), lengths = little(header + 20, 4);
    size_t coded = little(header + 24, 4);
    if (little(header + 8, 4) != RECORD_VERSION || head < RECORD_HEADER || ends < head || lengths < ends ||
        coded < lengths || coded > size || ends - head > HEAD_MOST) {
        return false;
    }
    record->head_size = ends - head;
    memcpy(record->head, data + head, record->head_size);
    if (!read_head(record) || !has_only_metadata(data + RECORD_HEADER, head - RECORD_HEADER, record->rgb)) {
        return false;
    }
    lay_out(record);
    record->metadata = data + RECORD_HEADER;
    record->metadata_size = head - RECORD_HEADER;
    record->ends = data + ends;
    record->lengths = data + lengths;
    record->coded = data + coded;
    record->coded_size = size - coded;
    return lengths - ends == 4 * (size_t)record->rows && coded - lengths == 2 * (size_t)all_groups(record);
}

bool row_reader_open(RowReader *reader, const CoefficientRecord *record, int64_t first, int64_t last) {
    size_t blocks = 0;
    reader->first = first;
    reader->last = last;
    for (int index = 0; index < record->frame.components; index++) {
        int across = record->frame.component[index].across;
        reader->begin[index] = first * across / GROUP;
        reader->stride[index] = (ceiling(last * across, GROUP) - reader->begin[index]) * GROUP;
        blocks += (size_t)(reader->stride[index] * record->frame.component[index].down);
    }
    reader->blocks = calloc(blocks, sizeof *reader->blocks);
    reader->bands = calloc(blocks, 1);
    reader->group = calloc(1, GROUP_MOST);
    reader->read_group = fastest_read_group();
    return reader->blocks && reader->bands && reader->group;
}

void row_reader_close(RowReader *reader) {
    free(reader->blocks);
    free(reader->bands);
    free(reader->group);
}

/* The number of the first block of a line that is kept. */
static int64_t line_start(const RowReader *reader, const CoefficientRecord *record, int component, int line) {
    int64_t number = reader->stride[component] * line;
    for (int index = 0; index < component; index++) {
        number += reader->stride[index] * record->frame.component[index].down;
    }
    return number;
}

int64_t row_reader_block(const RowReader *reader, const CoefficientRecord *record, int component, int line,
                         int64_t block) {
    int64_t before = reader->first * record->frame.component[component].across - reader->begin[component] * GROUP;
    return line_start(reader, record, component, line) + before + block;
}

/* Reads the groups of one line of blocks. `at` is where they begin, and becomes where they end. */
static bool read_line(RowReader *reader, const CoefficientRecord *record, int component, int line, size_t limit,
                      size_t *at, const unsigned char *lengths) {
    const FrameHeader *frame = &record->frame;
    int64_t begin = reader->begin[component], end = begin + reader->stride[component] / GROUP;
    int64_t blocks = ceiling(frame->width * frame->component[component].across, frame->mcu_width);
    int64_t start = line_start(reader, record, component, line);
    for (int64_t number = 0; number < record->groups[component]; number++) {
        size_t size = little(lengths + 2 * number, 2);
        if (size > limit - *at) {
            return false;
        }
        if (number >= begin && number < end) {
            int64_t left = blocks - number * GROUP;
            if (size > GROUP_MOST) {
                return false;
            }
            /* A copy: the record may lie in a file that changes, and the reader may look beyond the end of the group. */
            memcpy(reader->group, record->coded + *at, size);
            int64_t here = start + (number - begin) * GROUP;
            if (!reader->read_group(reader->group, size, reader->blocks + here, reader->bands + here,
                                    (int)(left < GROUP ? left : GROUP))) {
                return false;
            }
        }
        *at += size;
    }
    return true;
}

bool row_reader_read(RowReader *reader, const CoefficientRecord *record, int64_t row) {
    size_t at = row ? little(record->ends + 4 * (row - 1), 4) : 0, end = little(record->ends + 4 * row, 4);
    const unsigned char *lengths = record->lengths + 2 * row * record->groups_in_row;
    if (at > end || end > record->coded_size) {
        return false;
    }
    for (int component = 0; component < record->frame.components; component++) {
        int lines = lines_in_row(record, component, row), down = record->frame.component[component].down;
        for (int line = 0; line < lines; line++) {
            if (!read_line(reader, record, component, line, end, &at, lengths)) {
                return false;
            }
            lengths += 2 * record->groups[component];
        }
        for (int line = lines; line < down; line++) {
            int64_t start = line_start(reader, record, component, line);
            memset(reader->blocks + start, 0, (size_t)reader->stride[component] * sizeof *reader->blocks);
            memset(reader->bands + start, 0, (size_t)reader->stride[component]);
        }
    }
    return at == end;
}
