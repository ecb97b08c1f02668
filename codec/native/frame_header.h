/* The frame header of a record: of a baseline JPEG with one or three components (T.81, B.2.2). */

#ifndef PACKTRAIN_FRAME_HEADER_H
#define PACKTRAIN_FRAME_HEADER_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    int64_t width, height;         /* of the image, in pixels */
    int64_t mcu_width, mcu_height; /* in pixels */
    int components;
    struct {
        int across, down; /* sampling factors; 1 where there is one component */
        int table;        /* of quantisation: any byte */
    } component[3];
} FrameHeader;

/* Reads the body of a frame header, without marker and length; false if records have no such header. */
bool read_frame_header(FrameHeader *frame, const unsigned char *body, int64_t length);

#endif
