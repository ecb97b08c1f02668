#include "crop_ready.h"

#include "frame_header.h"
#include "interval_table.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define APP0 0xe0
#define APP1 0xe1
#define APP2 0xe2
#define APP14 0xee
#define SOF0 0xc0
#define SOF1 0xc1
#define DHT 0xc4
#define DQT 0xdb
#define DRI 0xdd
#define SOS 0xda

/* What the table says, apart from the lengths themselves. */
typedef struct {
    bool jfif;            /* whether JFIF's segment precedes it */
    size_t lengths;       /* offset of the lengths */
    size_t count;         /* of lengths */
    uint32_t wide;        /* bytes of a length */
    uint32_t head, frame, scan, interval;
} Table;

static uint32_t little(const unsigned char *at, int bytes) {
    uint32_t value = 0;
    for (int index = bytes - 1; index >= 0; index--) {
        value = value << 8 | at[index];
    }
    return value;
}

static int64_t big(const unsigned char *at) { return at[0] << 8 | at[1]; }

static int64_t ceiling(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

/* Copies the marker and the length of the segment at `at`; false if it does not lie in the data. */
static bool read_segment(unsigned char segment[4], const unsigned char *data, size_t size, size_t at) {
    if (at > size || size - at < 4) {
        return false;
    }
    memcpy(segment, data + at, 4);
    return segment[0] == 0xff && big(segment + 2) >= 2 && size - at - 2 >= (size_t)big(segment + 2);
}

/* Whether nothing but EXIF and ICC segments lies between two offsets. */
static bool has_only_metadata(const unsigned char *data, size_t at, size_t end) {
    unsigned char segment[4];
    while (at < end) {
        if (!read_segment(segment, data, end, at) || (segment[1] != APP1 && segment[1] != APP2)) {
            return false;
        }
        at += 2 + (size_t)big(segment + 2);
    }
    return at == end;
}

/* Copies what the frame header says; false if records have no such header. */
static bool read_frame(CropReady *record, const unsigned char *body, int64_t length) {
    FrameHeader frame;
    if (!read_frame_header(&frame, body, length)) {
        return false;
    }
    record->width = frame.width;
    record->height = frame.height;
    record->mcu_width = frame.mcu_width;
    record->mcu_height = frame.mcu_height;
    record->rows = ceiling(record->height, record->mcu_height);
    return true;
}

/* Whether a scan header names all components of the frame header, and is that of a sequential image. */
static bool is_whole_scan(const unsigned char *body, int64_t length, const unsigned char *frame) {
    int64_t components = frame[5];
    if (length != 4 + 2 * components || body[0] != components) {
        return false;
    }
    for (int64_t index = 0; index < components; index++) {
        if (body[1 + 2 * index] != index + 1) {
            return false;
        }
    }
    return memcmp(body + length - 3, "\0\x3f\0", 3) == 0;
}

/* Reads the copied header, which must consist of exactly the segments that docs/format-records.md lists. */
static bool read_header(CropReady *record, const Table *table) {
    unsigned char segment[4];
    const unsigned char *frame = NULL;
    bool restarts = false;
    for (size_t at = 0; read_segment(segment, record->header, record->header_size, at);) {
        const unsigned char *body = record->header + at + 4;
        int64_t length = big(segment + 2) - 2;
        if (at == 0 && segment[1] != DQT && (segment[1] != APP14 || table->jfif)) {
            return false;
        }
        switch (segment[1]) {
        case APP14:
            if (at) {
                return false;
            }
            break;
        case DQT:
        case DHT:
            break;
        case SOF0:
        case SOF1:
            if (frame || at != table->frame - table->head || !read_frame(record, body, length)) {
                return false;
            }
            frame = body;
            record->size_at = at + 5;
            break;
        case DRI:
            if (restarts || length != 2 || big(body) != table->interval) {
                return false;
            }
            restarts = true;
            break;
        case SOS:
            return frame && restarts && at + 4 + (size_t)length == record->header_size &&
                   is_whole_scan(body, length, frame);
        default:
            return false;
        }
        at += 4 + (size_t)length;
    }
    return false;
}

/* Adds up the lengths of the intervals, each of which is read once; false if they do not fill the coded data. */
static bool read_lengths(size_t *ends, const Table *table, const unsigned char *data, size_t coded) {
    const unsigned char *at = data + table->lengths;
    uint64_t total = 0;
    for (size_t number = 0; number < table->count; number++, at += table->wide) {
        total += table->wide == 2 ? little(at, 2) : little(at, 4);
        ends[number] = (size_t)total;
    }
    return total == coded;
}

/* Finds the table, and copies what it says; false if there is none, or if it points outside the record. */
static bool read_table(Table *table, const unsigned char *data, size_t size) {
    unsigned char segment[4], fields[TABLE_HEADER];
    size_t at = 2;
    if (size < 2 || data[0] != 0xff || data[1] != 0xd8 || !read_segment(segment, data, size, at)) {
        return false;
    }
    table->jfif = segment[1] == APP0;
    if (table->jfif) {
        at += 2 + (size_t)big(segment + 2);
        if (!read_segment(segment, data, size, at)) {
            return false;
        }
    }
    if (segment[1] != TABLE_MARKER || big(segment + 2) < 2 + TABLE_HEADER) {
        return false;
    }
    memcpy(fields, data + at + 4, sizeof fields);
    size_t end = at + 2 + (size_t)big(segment + 2);
    table->lengths = at + 4 + TABLE_HEADER;
    table->wide = little(fields + 10, 2);
    table->head = little(fields + 12, 4);
    table->frame = little(fields + 16, 4);
    table->scan = little(fields + 20, 4);
    table->interval = little(fields + 24, 4);
    if (memcmp(fields, TABLE_NAME, sizeof TABLE_NAME) != 0 || (table->wide != 2 && table->wide != 4) ||
        (end - table->lengths) % table->wide) {
        return false;
    }
    table->count = (end - table->lengths) / table->wide;
    return end <= table->head && table->head <= table->frame && table->frame <= table->scan && table->scan <= size &&
           has_only_metadata(data, end, table->head);
}

/* Reads the header and the lengths of the intervals; false if they do not fit together. */
static bool read_record(CropReady *record, const Table *table, const unsigned char *data, size_t size) {
    record->coded = data + table->scan;
    memcpy(record->header, data + table->head, record->header_size);
    if (!read_header(record, table)) {
        return false;
    }
    int64_t columns = ceiling(record->width, record->mcu_width), interval = table->interval;
    if (interval < 1 || interval > columns || columns % interval) {
        return false;
    }
    record->step = interval * record->mcu_width;
    record->per_row = columns / interval;
    return table->count == (size_t)(record->rows * record->per_row) &&
           read_lengths(record->ends, table, data, size - table->scan);
}

Parsed crop_ready_parse(CropReady *record, const unsigned char *data, size_t size) {
    Table table;
    if (!read_table(&table, data, size)) {
        return NOT_CROP_READY;
    }
    record->header_size = table.scan - table.head;
    record->ends = malloc(table.count * sizeof *record->ends + record->header_size + 1);
    if (!record->ends) {
        return NO_MEMORY;
    }
    record->header = (unsigned char *)(record->ends + table.count);
    if (!read_record(record, &table, data, size)) {
        crop_ready_free(record);
        return NOT_CROP_READY;
    }
    return CROP_READY;
}

void crop_ready_free(CropReady *record) { free(record->ends); }
