#include "frame_header.h"

bool read_frame_header(FrameHeader *frame, const unsigned char *body, int64_t length) {
    int components = length < 6 ? 0 : body[5], across = 1, down = 1;
    if ((components != 1 && components != 3) || length != 6 + 3 * components || body[0] != 8) {
        return false;
    }
    for (int index = 0; index < components; index++) {
        const unsigned char *component = body + 6 + 3 * index;
        int wide = component[1] >> 4, high = component[1] & 15;
        /* Decoders derive the colour space from the numbers if JFIF's segment is missing, as in a cut. */
        if (component[0] != index + 1 || wide < 1 || wide > 4 || high < 1 || high > 4) {
            return false;
        }
        frame->component[index].across = components > 1 ? wide : 1;
        frame->component[index].down = components > 1 ? high : 1;
        frame->component[index].table = component[2];
        across = components > 1 && wide > across ? wide : across;
        down = components > 1 && high > down ? high : down;
    }
    frame->components = components;
    frame->height = body[1] << 8 | body[2];
    frame->width = body[3] << 8 | body[4];
    frame->mcu_width = 8 * across;
    frame->mcu_height = 8 * down;
    return frame->width > 0 && frame->height > 0;
}
