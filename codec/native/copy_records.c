/* Crops of raw records, a whole batch in one call. Each record is checked and copied in one pass. */

#include "functions.h"

#include "arguments.h"
#include "copy_pixels.h"
#include "errors.h"
#include "processor.h"
#include "resize.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Words and bytes are added to a checksum by an instruction of the processor. */
#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_CRC32C 1
/* To clang, the instruction is no part of SSE 4.2 if it was told so, as zig cc tells it. gcc 10 has no name for it. */
#if defined(__clang__) && __clang_major__ >= 14
#define CRC32C __attribute__((target("sse4.2,crc32")))
#else
#define CRC32C __attribute__((target("sse4.2")))
#endif
#define ADD_WORD(crc, word) _mm_crc32_u64(crc, word)
#define ADD_BYTE(crc, byte) _mm_crc32_u8(crc, byte)
static bool has_crc32c(void) { return processor_has(HAS_SSE42); }
#elif defined(__aarch64__) && defined(__linux__)
#include <arm_acle.h>
#define HAS_CRC32C 1
#ifdef __clang__
#define CRC32C __attribute__((target("crc")))
#else
#define CRC32C __attribute__((target("+crc")))
#endif
#define ADD_WORD(crc, word) __crc32cd((uint32_t)(crc), word)
#define ADD_BYTE(crc, byte) __crc32cb(crc, byte)
static bool has_crc32c(void) { return processor_has(HAS_CRC32); }
#endif

#define NPY_HEADER 128
/* The crc32c instruction takes three cycles, and a new one can start in every cycle. Three lanes of LANE bytes are
   therefore summed up side by side. Memory is prefetched AHEAD bytes in advance. These values are the fastest of lanes
   from 256 bytes to 8 KiB. */
#define LANE 1024
#define AHEAD 3072

/* The fields of PLACE in places.py, which says what they mean. All are int64. */
#define PLACE_FIELDS(FIELD)                                                                                            \
    FIELD(target)                                                                                                      \
    FIELD(row)                                                                                                         \
    FIELD(shard)                                                                                                       \
    FIELD(offset)                                                                                                      \
    FIELD(length)                                                                                                      \
    FIELD(crc32c)                                                                                                      \
    FIELD(width)                                                                                                       \
    FIELD(height)                                                                                                      \
    FIELD(crop_left)                                                                                                   \
    FIELD(crop_top)                                                                                                    \
    FIELD(crop_width)                                                                                                  \
    FIELD(crop_height)                                                                                                 \
    FIELD(new_width)                                                                                                   \
    FIELD(new_height)                                                                                                  \
    FIELD(new_left)                                                                                                    \
    FIELD(new_top)                                                                                                     \
    FIELD(mirrored)

#define AS_MEMBER(name) int64_t name;
typedef struct {
    PLACE_FIELDS(AS_MEMBER)
} Place;
_Static_assert(sizeof(Place) == 17 * 8, "Place must have the size of PLACE in places.py");

/* The same in the notation of the buffer protocol, as numpy describes PLACE. */
#if LONG_MAX == INT64_MAX
#define AS_FORMAT(name) "l:" #name ":"
#else
#define AS_FORMAT(name) "q:" #name ":"
#endif
static const char PLACE_FORMAT[] = "T{" PLACE_FIELDS(AS_FORMAT) "}";

typedef struct {
    Py_ssize_t width, height, channels;
} Shape;

/* The rows of a crop that have not been copied yet. */
typedef struct {
    const unsigned char *in;
    unsigned char *out, *spare;
    size_t step;
    Py_ssize_t rows;
    const Shape *shape;
    bool mirrored;
} Copy;

/* Copies the rows that end at or before `end`. */
static void copy_until(Copy *copy, const unsigned char *end) {
    size_t pixels = (size_t)copy->shape->width, channels = (size_t)copy->shape->channels, size = pixels * channels;
    for (; copy->rows && copy->in + size <= end; copy->rows--, copy->in += copy->step, copy->out += size) {
        copy_row(copy->out, copy->in, pixels, channels, copy->mirrored, true, copy->spare);
    }
}

#ifdef HAS_CRC32C
/* How LANE bytes of zeros change a checksum, for each value of each of its bytes, as in zlib's crc32_combine. */
static uint32_t zeros[4][256];

CRC32C static void make_zeros(void) {
    for (int byte = 0; byte < 4; byte++) {
        for (uint32_t value = 1; value < 256; value++) {
            uint64_t crc = value << 8 * byte;
            for (int count = 0; count < LANE; count += 8) {
                crc = ADD_WORD(crc, 0);
            }
            zeros[byte][value] = (uint32_t)crc;
        }
    }
}

static uint32_t after_zeros(uint32_t crc) {
    return zeros[0][crc & 255] ^ zeros[1][crc >> 8 & 255] ^ zeros[2][crc >> 16 & 255] ^ zeros[3][crc >> 24];
}

static uint64_t word(const unsigned char *data) {
    uint64_t value;
    memcpy(&value, data, sizeof value);
    return value;
}

/* The checksum after 3 * LANE more bytes. */
CRC32C static uint32_t lanes(uint32_t crc, const unsigned char *data) {
    uint64_t first = crc, second = 0, third = 0;
    for (size_t at = 0; at < LANE; at += 64) {
        for (size_t line = 0; line < 3; line++) {
            __builtin_prefetch(data + 3 * at + 64 * line + AHEAD);
        }
        for (size_t end = at + 64, i = at; i < end; i += 8) {
            first = ADD_WORD(first, word(data + i));
            second = ADD_WORD(second, word(data + LANE + i));
            third = ADD_WORD(third, word(data + 2 * LANE + i));
        }
    }
    return after_zeros(after_zeros((uint32_t)first) ^ (uint32_t)second) ^ (uint32_t)third;
}

/* The checksum of a record. Copies each piece right after it has been summed up, while it is still in the cache. */
CRC32C static uint32_t checked_copy(const unsigned char *data, size_t size, Copy *copy) {
    uint32_t crc = ~0u;
    const unsigned char *end = data + size;
    for (; end - data >= 3 * LANE; copy_until(copy, data)) {
        crc = lanes(crc, data);
        data += 3 * LANE;
    }
    for (; end - data >= 8; data += 8) {
        crc = (uint32_t)ADD_WORD(crc, word(data));
    }
    for (; data < end; data++) {
        crc = ADD_BYTE(crc, *data);
    }
    return ~crc;
}

#else
static void make_zeros(void) {}
static uint32_t checked_copy(const unsigned char *data, size_t size, Copy *copy) {
    (void)data, (void)size, (void)copy;
    return 0;
}
static bool has_crc32c(void) { return false; }
#endif

void copy_records_init(void) {
    if (has_crc32c()) {
        make_zeros();
    }
}

/* Whether `data` begins with the .npy header of an image of this size, as core/npy.py writes it. */
static bool has_header(const unsigned char *data, const Place *place, Py_ssize_t channels) {
    char header[NPY_HEADER + 1];
    memset(header, ' ', sizeof header);
    int written = snprintf(header + 10, sizeof header - 10,
                           "{'descr': '|u1', 'fortran_order': False, 'shape': (%lld, %lld, %lld), }",
                           (long long)place->height, (long long)place->width, (long long)channels);
    if (written < 0 || written >= NPY_HEADER - 10) {
        return false;
    }
    header[10 + written] = ' ';
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10);
    header[NPY_HEADER - 1] = '\n';
    return memcmp(data, header, NPY_HEADER) == 0;
}

/* What all records of a batch have in common. */
typedef struct {
    Shape shape;
    bool check;
    Filter filter;
    Resizer *resizer; /* NULL if crops cannot be resized */
    unsigned char *spare;
} Task;

/* Whether the record lies in its shard, the crop in the image, and the output in the resized crop. */
static bool is_inside(const Place *place, const Py_buffer *shard, const Shape *shape) {
    return place->offset >= 0 && place->length >= 0 && place->offset <= shard->len - place->length &&
           is_side(place->width) && is_side(place->height) && is_side(place->crop_width) &&
           is_side(place->crop_height) && place->crop_left >= 0 && place->crop_top >= 0 &&
           place->crop_left <= place->width - place->crop_width &&
           place->crop_top <= place->height - place->crop_height && is_side(place->new_width) &&
           is_side(place->new_height) && place->new_left >= 0 && place->new_top >= 0 &&
           place->new_left <= place->new_width - shape->width && place->new_top <= place->new_height - shape->height;
}

/* What became of a record; NOT_COPIED: it is not valid, or would have to be resized and cannot be. */
typedef enum { COPIED, NOT_COPIED, OUT_OF_MEMORY } Copied;

static Copied copy_record(const Py_buffer *shard, const Place *place, const Task *task, unsigned char *out) {
    const Shape *shape = &task->shape;
    bool resized = place->crop_width != place->new_width || place->crop_height != place->new_height;
    if (!is_inside(place, shard, shape) || (resized && !task->resizer)) {
        return NOT_COPIED;
    }
    const unsigned char *data = (const unsigned char *)shard->buf + place->offset;
    int64_t row = place->width * shape->channels, size = row * place->height;
    bool header = place->length == size + NPY_HEADER;
    if ((!header && place->length != size) || (header && !has_header(data, place, shape->channels))) {
        return NOT_COPIED;
    }
    const unsigned char *pixels = data + (header ? NPY_HEADER : 0);
    pixels += place->crop_top * row + place->crop_left * shape->channels;
    if (!resized) {
        pixels += place->new_top * row + place->new_left * shape->channels;
    }
    Copy copy = {.in = pixels,
                 .out = out,
                 .spare = task->spare,
                 .step = (size_t)row,
                 .rows = resized ? 0 : shape->height,
                 .shape = shape,
                 .mirrored = place->mirrored != 0};
    if (task->check && checked_copy(data, (size_t)place->length, &copy) != place->crc32c) {
        return NOT_COPIED;
    }
    copy_until(&copy, data + place->length);
    if (resized) {
        Side across = {.source = (int)place->crop_width, .length = (int)place->crop_width,
                       .target = (int)place->new_width, .first = (int)place->new_left, .count = (int)shape->width};
        Side down = {.source = (int)place->crop_height, .length = (int)place->crop_height,
                     .target = (int)place->new_height, .first = (int)place->new_top, .count = (int)shape->height};
        if (resize(task->resizer, &task->filter, pixels, data + place->length, (size_t)row, &across, &down, out,
                   place->mirrored != 0, true) != RESIZED) {
            return OUT_OF_MEMORY;
        }
    }
    return COPIED;
}

/* Copies the records one after the other, up to the first that cannot be copied. */
static Copied copy_all(const Py_buffer *shards, Py_ssize_t shard_count, const Py_buffer *places, const Py_buffer *out,
                       const Task *task, volatile int64_t *current) {
    const Place *at = places->buf, *end = at + places->len / (Py_ssize_t)sizeof *at;
    Py_ssize_t size = task->shape.width * task->shape.height * task->shape.channels;
    Copied done = COPIED;
    for (; done == COPIED && at < end; at++) {
        /* A copy: what is checked is what is used, even if `current` or `out` overlaps the places, or a thread writes
           to them. */
        const Place place = *at;
        if (place.shard < 0 || place.shard >= shard_count || place.target < 0 || place.target >= out->shape[0]) {
            done = NOT_COPIED;
        } else {
            *current = place.row;
            done = copy_record(&shards[place.shard], &place, task, (unsigned char *)out->buf + place.target * size);
        }
    }
    past_caches_done();
    return done;
}

/* Whether `view` is a one-dimensional array of PLACE. */
static bool has_places(const Py_buffer *view) {
    return view->itemsize == sizeof(Place) && view->ndim == 1 && (uintptr_t)view->buf % _Alignof(Place) == 0 &&
           view->format && strcmp(view->format, PLACE_FORMAT) == 0;
}

static bool has_shape(const Py_buffer *out, Shape *shape) {
    if (out->ndim != 4 || out->itemsize != 1) {
        return false;
    }
    *shape = (Shape){.height = out->shape[1], .width = out->shape[2], .channels = out->shape[3]};
    return (shape->channels == 1 || shape->channels == 3) && is_side(shape->width) && is_side(shape->height);
}

PyObject *copy_records(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *objects, *rows, *output, *sequence = NULL, *result = NULL;
    Py_buffer places = {0}, out = {0}, current, *shards = NULL;
    Py_ssize_t shard_count = 0;
    int check, resample, style;
    if (!PyArg_ParseTuple(args, "OOpiiOO&:copy_records", &objects, &rows, &check, &resample, &style, &output,
                          take_output, &current)) {
        return NULL;
    }
    Task task = {.check = check};
    if (PyObject_GetBuffer(rows, &places, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0 ||
        PyObject_GetBuffer(output, &out, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS) != 0) {
        goto end;
    }
    if (!has_places(&places)) {
        set_error(INPUT_ERROR, "places: expected a one-dimensional array of dtype PLACE");
        goto end;
    }
    if (!has_shape(&out, &task.shape)) {
        set_error(INPUT_ERROR, "out: expected uint8 [any, height, width, 1 or 3], and no side of 0");
        goto end;
    }
    if (current.len != sizeof(int64_t) || (uintptr_t)current.buf % _Alignof(int64_t)) {
        set_error(INPUT_ERROR, "current: expected int64 [1]");
        goto end;
    }
    /* A tuple: a list could be changed by whoever hands out a shard's memory. */
    sequence = PySequence_Tuple(objects);
    if (!sequence) {
        goto end;
    }
    Py_ssize_t wanted = PyTuple_Size(sequence);
    bool resizes = find_filter(resample, style, &task.filter) && task.shape.channels == 3;
    shards = PyMem_Calloc((size_t)wanted + 1, sizeof *shards);
    task.spare = PyMem_Malloc((size_t)(task.shape.width * task.shape.channels) + 16);
    task.resizer = resizes ? resizer_new() : NULL;
    if (!shards || !task.spare || (resizes && !task.resizer)) {
        set_error(MEMORY_ERROR, NULL);
        goto end;
    }
    for (; shard_count < wanted; shard_count++) {
        PyObject *shard = PyTuple_GetItem(sequence, shard_count);
        if (PyObject_GetBuffer(shard, &shards[shard_count], PyBUF_SIMPLE) != 0) {
            goto end;
        }
        if (meets(shards[shard_count].buf, shards[shard_count].len, &out)) {
            PyBuffer_Release(&shards[shard_count]);
            set_error(INPUT_ERROR, "out: overlaps a shard");
            goto end;
        }
    }
    Copied done = NOT_COPIED;
    if (!check || has_crc32c()) {
        Py_BEGIN_ALLOW_THREADS
        done = copy_all(shards, shard_count, &places, &out, &task, current.buf);
        Py_END_ALLOW_THREADS
    }
    result = done == OUT_OF_MEMORY ? set_error(MEMORY_ERROR, NULL) : PyBool_FromLong(done == COPIED);
end:
    while (shard_count) {
        PyBuffer_Release(&shards[--shard_count]);
    }
    resizer_free(task.resizer);
    PyMem_Free(task.spare);
    PyMem_Free(shards);
    Py_XDECREF(sequence);
    PyBuffer_Release(&places);
    PyBuffer_Release(&out);
    PyBuffer_Release(&current);
    return result;
}
