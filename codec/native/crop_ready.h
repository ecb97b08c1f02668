/* Crop-ready records: the only reader of their table of restart intervals. docs/format-records.md specifies them. */

#ifndef PACKTRAIN_CROP_READY_H
#define PACKTRAIN_CROP_READY_H

#include <stddef.h>
#include <stdint.h>

/* A record, parsed and checked. All but the coded data is a copy, since the record may lie in a file that changes. */
typedef struct {
    int64_t width, height;         /* of the image, in pixels */
    int64_t mcu_width, mcu_height; /* in pixels */
    int64_t step;                  /* width of an interval, in pixels */
    int64_t rows, per_row;         /* rows of MCUs, and intervals in each */
    unsigned char *header;         /* the segments of a cut: from APP14 or the first DQT to SOS */
    size_t header_size;
    size_t size_at;             /* offset in `header` of the height, which the width follows */
    size_t *ends;               /* of each interval, counted from the beginning of the coded data */
    const unsigned char *coded; /* coded data, still in the record: what is read here twice may differ */
} CropReady;

typedef enum { CROP_READY, NOT_CROP_READY, NO_MEMORY } Parsed;

/* Parses a record. If it is crop-ready, crop_ready_free must follow. */
Parsed crop_ready_parse(CropReady *record, const unsigned char *data, size_t size);

/* Where the given interval begins, counted from the beginning of the coded data. */
static inline size_t interval_start(const CropReady *record, int64_t number) {
    return number ? record->ends[number - 1] : 0;
}

void crop_ready_free(CropReady *record);

#endif
