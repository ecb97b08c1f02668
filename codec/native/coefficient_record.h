/* Coefficient records: the quantised coefficients of a JPEG in groups of blocks, each of which can be read alone.
   docs/format-records.md specifies them. */

#ifndef PACKTRAIN_COEFFICIENT_RECORD_H
#define PACKTRAIN_COEFFICIENT_RECORD_H

#include "coefficient_groups.h"
#include "frame_header.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define RECORD_MAGIC "\x89PTC\r\n\x1a\n"
#define RECORD_MAGIC_BYTES 8
#define RECORD_VERSION 1
#define RECORD_HEADER 28 /* bytes before the metadata */
#define HEAD_MOST 600    /* bytes of the segments that a decoder needs: APP14, three DQT, SOF */

/* A record, parsed and checked. All but the tables and the coded data is a copy, since the record may lie in a file that
   changes: of these, each byte is read once. */
typedef struct {
    FrameHeader frame;
    bool rgb;                       /* three components that are not YCbCr */
    int64_t columns, rows;          /* of MCUs */
    int64_t groups[3];              /* in a row of blocks of each component */
    int64_t groups_in_row;          /* of MCUs, but for the last */
    unsigned char head[HEAD_MOST];  /* the segments of a JPEG from APP14 or the first DQT to SOF */
    size_t head_size, size_at;      /* `size_at`: offset in `head` of the height, which the width follows */
    const unsigned char *metadata, *ends, *lengths, *coded;
    size_t metadata_size, coded_size;
} CoefficientRecord;

/* Whether `data` begins as a coefficient record does. */
bool is_coefficient_record(const unsigned char *data, size_t size);

/* Parses a record; false if it is not sound. */
bool coefficient_record_parse(CoefficientRecord *record, const unsigned char *data, size_t size);

/* The blocks of some columns of one row of MCUs. */
typedef struct {
    int64_t first, last;                    /* columns of MCUs */
    int64_t begin[3], stride[3];            /* per component: the first group, and blocks from one line to the next */
    int16_t (*blocks)[BLOCK_COEFFICIENTS];  /* lines of the components, one after another */
    unsigned char *bands;                   /* of each block, those that hold anything */
    unsigned char *group;                   /* GROUP_MOST bytes */
    ReadGroup *read_group;
} RowReader;

/* Prepares to read columns `first` to `last` of MCUs; false if there is not enough memory. */
bool row_reader_open(RowReader *reader, const CoefficientRecord *record, int64_t first, int64_t last);

/* Reads one row of MCUs; false if the record is damaged. */
bool row_reader_read(RowReader *reader, const CoefficientRecord *record, int64_t row);

/* The number, in `blocks` and `bands`, of a block of a component in the row that was read last: `line` counts lines of blocks in the row of MCUs, `block` from
   the first block of the first column. Blocks beyond the image have no coefficients. */
int64_t row_reader_block(const RowReader *reader, const CoefficientRecord *record, int component, int line,
                         int64_t block);

void row_reader_close(RowReader *reader);

#endif
