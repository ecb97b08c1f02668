/* What maps each value of a channel to another one, as Pillow's ImageOps do. */

#include "functions.h"

#include "arguments.h"
#include "errors.h"
#include "value_maps.h"

#include <string.h>

#define CHANNELS 3

static ValueMap unchanged(void) {
    ValueMap map;
    for (int value = 0; value < 256; value++) {
        map.of[value] = (unsigned char)value;
    }
    return map;
}

/* Stretches the values from `low` to `high` to those from 0 to 255, in double precision as Python does. */
static ValueMap stretched(int low, int high) {
    if (high <= low) {
        return unchanged();
    }
    ValueMap map;
    double scale = 255.0 / (high - low), offset = -low * scale;
    for (int value = 0; value < 256; value++) {
        int to = (int)(value * scale + offset);
        map.of[value] = (unsigned char)(to < 0 ? 0 : to > 255 ? 255 : to);
    }
    return map;
}

static ValueMap equalized(const size_t counts[256]) {
    size_t total = 0, last = 0;
    for (int value = 0; value < 256; value++) {
        total += counts[value];
        last = counts[value] ? counts[value] : last;
    }
    size_t step = (total - last) / 255, sum = step / 2;
    if (!step) {
        return unchanged();
    }
    ValueMap map;
    for (int value = 0; value < 256; value++) {
        map.of[value] = (unsigned char)(sum / step > 255 ? 255 : sum / step);
        sum += counts[value];
    }
    return map;
}

/* How often each value occurs in each channel. Counting twice in the same place has to wait, so that neighbours count in
   places of their own. */
static void count_values(const unsigned char *bytes, size_t size, size_t channels, size_t counts[CHANNELS][256]) {
    size_t places[2 * CHANNELS][256] = {0}, i = 0;
    for (; i + 2 * CHANNELS <= size; i += 2 * CHANNELS) {
        for (size_t k = 0; k < 2 * CHANNELS; k++) {
            places[k][bytes[i + k]]++;
        }
    }
    for (size_t k = 0; i + k < size; k++) {
        places[k][bytes[i + k]]++;
    }
    for (size_t k = 0; k < 2 * CHANNELS; k++) {
        for (int value = 0; value < 256; value++) {
            counts[k % channels][value] += places[k][value];
        }
    }
}

/* The lowest and the highest value of each channel. */
static void find_limits(const unsigned char *bytes, size_t size, size_t channels, unsigned char low[CHANNELS],
                        unsigned char high[CHANNELS]) {
    /* As many as fill three registers: a whole number of pixels, whatever their channels. */
    enum { BLOCK = 32 * CHANNELS };
    unsigned char lows[BLOCK], highs[BLOCK];
    memset(lows, 255, BLOCK), memset(highs, 0, BLOCK);
    for (; size >= BLOCK; size -= BLOCK, bytes += BLOCK) {
        for (size_t k = 0; k < BLOCK; k++) {
            lows[k] = bytes[k] < lows[k] ? bytes[k] : lows[k];
            highs[k] = bytes[k] > highs[k] ? bytes[k] : highs[k];
        }
    }
    for (size_t k = 0; k < size; k++) {
        lows[k] = bytes[k] < lows[k] ? bytes[k] : lows[k];
        highs[k] = bytes[k] > highs[k] ? bytes[k] : highs[k];
    }
    memset(low, 255, CHANNELS), memset(high, 0, CHANNELS);
    for (size_t k = 0; k < BLOCK; k++) {
        size_t channel = k % channels;
        low[channel] = lows[k] < low[channel] ? lows[k] : low[channel];
        high[channel] = highs[k] > high[channel] ? highs[k] : high[channel];
    }
}

static void map_all(const Py_buffer *pixels, const ValueMap maps[CHANNELS]) {
    if (pixels->shape[2] == 1) {
        map_bytes(pixels->buf, (size_t)pixels->len, maps);
    } else {
        map_channels(pixels->buf, (size_t)pixels->len / CHANNELS, maps);
    }
}

PyObject *map_values(PyObject *module, PyObject *args) {
    (void)module;
    PyObject *array;
    Py_buffer pixels, table;
    if (!PyArg_ParseTuple(args, "Oy*:map_values", &array, &table)) {
        return NULL;
    }
    ValueMap map;
    if (table.len != sizeof map) {
        set_error(INPUT_ERROR, "the table does not have 256 bytes");
    } else if (take_pixels(array, &pixels)) {
        memcpy(&map, table.buf, sizeof map);
        Py_BEGIN_ALLOW_THREADS
        map_bytes(pixels.buf, (size_t)pixels.len, &map);
        Py_END_ALLOW_THREADS
        PyBuffer_Release(&pixels);
    }
    PyBuffer_Release(&table);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *stretch_values(PyObject *module, PyObject *array) {
    (void)module;
    Py_buffer pixels;
    if (!take_pixels(array, &pixels)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    unsigned char low[CHANNELS], high[CHANNELS];
    find_limits(pixels.buf, (size_t)pixels.len, (size_t)pixels.shape[2], low, high);
    ValueMap maps[CHANNELS];
    for (Py_ssize_t channel = 0; channel < pixels.shape[2]; channel++) {
        maps[channel] = stretched(low[channel], high[channel]);
    }
    map_all(&pixels, maps);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels);
    Py_RETURN_NONE;
}

PyObject *equalize_values(PyObject *module, PyObject *array) {
    (void)module;
    Py_buffer pixels;
    if (!take_pixels(array, &pixels)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    size_t counts[CHANNELS][256] = {0};
    count_values(pixels.buf, (size_t)pixels.len, (size_t)pixels.shape[2], counts);
    ValueMap maps[CHANNELS];
    for (Py_ssize_t channel = 0; channel < pixels.shape[2]; channel++) {
        maps[channel] = equalized(counts[channel]);
    }
    map_all(&pixels, maps);
    Py_END_ALLOW_THREADS
    PyBuffer_Release(&pixels);
    Py_RETURN_NONE;
}
