#include "jpeg_input.h"

#include "errors.h"

#include <stdint.h>

/* The most pixels of an image: twice Pillow's Image.MAX_IMAGE_PIXELS, above which Pillow takes an image for a
   decompression bomb. Progressive images need memory for all their coefficients. */
#define MOST_PIXELS (2 * ((int64_t)1024 * 1024 * 1024 / 4 / 3))

/* The most scans of an image. Each takes as long as decoding the whole image; a progressive JPEG has about ten. The
   limit is that of libjpeg-turbo's own fuzzers. An image has more than FEW_SCANS only if all of them together read no
   more than MOST_SCANNED pixels, as in codec/jpeg_markers.py. */
#define MOST_SCANS 500
#define FEW_SCANS 32
#define MOST_SCANNED ((int64_t)1 << 30)

void read_header(j_decompress_ptr source, const unsigned char *data, size_t size) {
    jpeg_mem_src(source, data, size);
    jpeg_read_header(source, TRUE);
    /* libjpeg-turbo 3 also reads images of other precisions, into samples of 16 bits. */
    if (source->data_precision != 8) {
        errors_raise((Errors *)source->err, INPUT_ERROR, "the samples do not have 8 bits");
    }
    if ((int64_t)source->image_width * (int64_t)source->image_height > MOST_PIXELS) {
        errors_raise((Errors *)source->err, INPUT_ERROR, "too many pixels");
    }
}

static void check_scans(j_common_ptr info) {
    j_decompress_ptr source = (j_decompress_ptr)info;
    int64_t scans = source->input_scan_number, pixels = (int64_t)source->image_width * (int64_t)source->image_height;
    if (scans > MOST_SCANS || (scans > FEW_SCANS && scans * pixels > MOST_SCANNED)) {
        errors_raise((Errors *)info->err, INPUT_ERROR, "too many scans");
    }
}

void limit_scans(j_decompress_ptr source, struct jpeg_progress_mgr *monitor) {
    monitor->progress_monitor = check_scans;
    source->progress = monitor;
}

void require_complete(j_decompress_ptr source) {
    for (int index = 0; source->progressive_mode && index < source->num_components; index++) {
        for (int position = 0; position < DCTSIZE2; position++) {
            if (source->coef_bits[index][position]) {
                errors_raise((Errors *)source->err, INPUT_ERROR, "the progressive image is not complete");
            }
        }
    }
}
