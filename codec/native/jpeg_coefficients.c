#include "jpeg_coefficients.h"

#include "jpeg_input.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static boolean no_data_yet(j_decompress_ptr source) {
    (void)source;
    return FALSE;
}

/* jpeg_read_coefficients with a decoder of ours. libjpeg sets up its own decoder and begins to read at once. It therefore
   gets no data in the first call, which makes it return before it has decoded anything. */
static jvirt_barray_ptr *read_arrays(JpegCoefficients *jpeg, bool is_record) {
    j_decompress_ptr source = &jpeg->source;
    if (!source->progressive_mode && !source->arith_code) {
        struct jpeg_source_mgr given = *source->src;
        source->src->bytes_in_buffer = 0;
        source->src->fill_input_buffer = no_data_yet;
        jpeg_read_coefficients(source);
        *source->src = given;
        if (is_record) {
            coefficient_input_use(&jpeg->input, source);
        } else {
            huffman_decoder_use(source, jpeg->huffman);
        }
    }
    return jpeg_read_coefficients(source);
}

static void require(j_decompress_ptr source, bool condition, const char *message) {
    if (!condition) {
        errors_raise((Errors *)source->err, INPUT_ERROR, message);
    }
}

static void read_from_record(JpegCoefficients *jpeg, const int box[4], bool metadata) {
    coefficient_input_choose(&jpeg->input, (Errors *)jpeg->source.err, box, 1);
    coefficient_input_read_header(&jpeg->input, &jpeg->source, metadata);
    jpeg->coded = jpeg->input.record.coded_size;
    jpeg->arrays = read_arrays(jpeg, true);
}

void read_part_of_record(JpegCoefficients *jpeg, const unsigned char *data, size_t size, const int box[4]) {
    coefficient_input_open(&jpeg->input, (Errors *)jpeg->source.err, data, size);
    read_from_record(jpeg, box, false);
}

static void read_jpeg(JpegCoefficients *jpeg, const unsigned char *data, size_t size) {
    j_decompress_ptr source = &jpeg->source;
    if (!(jpeg->huffman = malloc(huffman_decoder_size()))) {
        errors_raise((Errors *)source->err, MEMORY_ERROR, NULL);
    }
    read_header(source, data, size);
    jpeg->coded = source->src->bytes_in_buffer;
    J_COLOR_SPACE space = source->jpeg_color_space;
    require(source, space == JCS_GRAYSCALE || space == JCS_YCbCr || space == JCS_RGB,
            "the colour space is not grey, YCbCr or RGB");
    int blocks = 0;
    for (int index = 0; index < source->num_components; index++) {
        jpeg_component_info *component = &source->comp_info[index];
        blocks += component->h_samp_factor * component->v_samp_factor;
    }
    require(source, source->num_components == 1 || blocks <= D_MAX_BLOCKS_IN_MCU, "more than 10 blocks per MCU");
    limit_scans(source, &jpeg->monitor);
    jpeg->arrays = read_arrays(jpeg, false);
    require_complete(source);
}

void read_coefficients(JpegCoefficients *jpeg, const unsigned char *data, size_t size) {
    jpeg_save_markers(&jpeg->source, JPEG_APP0 + 1, 0xffff);
    jpeg_save_markers(&jpeg->source, JPEG_APP0 + 2, 0xffff);
    if (is_coefficient_record(data, size)) {
        coefficient_input_open(&jpeg->input, (Errors *)jpeg->source.err, data, size);
        const FrameHeader *frame = &jpeg->input.record.frame;
        const int box[4] = {0, 0, (int)frame->width, (int)frame->height};
        read_from_record(jpeg, box, true);
    } else {
        read_jpeg(jpeg, data, size);
    }
}

void free_coefficients(JpegCoefficients *jpeg) {
    jpeg_destroy_decompress(&jpeg->source);
    coefficient_input_close(&jpeg->input);
    free(jpeg->huffman);
}

static bool starts_with(jpeg_saved_marker_ptr marker, const char *name, size_t length) {
    return marker->data_length >= length && memcmp(marker->data, name, length) == 0;
}

boolean is_metadata(jpeg_saved_marker_ptr marker) {
    return marker->marker == JPEG_APP0 + 1 ? starts_with(marker, "Exif\0", 6) : starts_with(marker, "ICC_PROFILE", 12);
}

JBLOCKARRAY coefficient_rows(JpegCoefficients *jpeg, int component, int row, int count) {
    j_decompress_ptr source = &jpeg->source;
    return source->mem->access_virt_barray((j_common_ptr)source, jpeg->arrays[component], (JDIMENSION)row,
                                           (JDIMENSION)count, FALSE);
}
