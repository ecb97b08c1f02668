/* Hashes of keys, as docs/format-splits.md specifies them, and whether two of many hashes are the same. */

#include "functions.h"

#include "arguments.h"
#include "errors.h"

#include <string.h>

#define WORD 8
#define STEP 0x9E3779B97F4A7C15u
/* Hashes that are compared at once: their table is to stay in the cache of a core. */
#define BUCKET_BITS 13
#define MOST_BITS 16

/* Takes one more number into a hash. The generator is splitmix64 (Steele, Lea, Flood, OOPSLA 2014). */
static inline uint64_t taken_in(uint64_t hash, uint64_t number) {
    uint64_t state = (hash ^ number) + STEP;
    state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9u;
    state = (state ^ state >> 27) * 0x94D049BB133111EBu;
    return state ^ state >> 31;
}

static inline uint64_t word_at(const unsigned char *text, int64_t bytes) {
    uint64_t word = 0;
    if (bytes >= WORD) {
        memcpy(&word, text, WORD);
    } else {
        memcpy(&word, text, (size_t)bytes);
    }
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    word = __builtin_bswap64(word);
#endif
    return word;
}

/* False if the offsets do not ascend, or lead out of the texts. */
static bool hash_all(const int64_t *offsets, Py_ssize_t count, const Py_buffer *texts, uint64_t begin, uint64_t *out) {
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t start = offsets[i], stop = offsets[i + 1];
        if (start < 0 || stop < start || stop > texts->len) {
            return false;
        }
        uint64_t hash = taken_in(begin, (uint64_t)(stop - start));
        const unsigned char *text = texts->buf;
        for (int64_t at = start; at < stop; at += WORD) {
            hash = taken_in(hash, word_at(text + at, stop - at));
        }
        out[i] = hash;
    }
    return true;
}

static bool is_aligned(const Py_buffer *view) {
    return view->len % (Py_ssize_t)sizeof(uint64_t) == 0 && (uintptr_t)view->buf % _Alignof(uint64_t) == 0;
}

PyObject *hash_keys(PyObject *module, PyObject *args) {
    (void)module;
    Py_buffer offsets, texts, out;
    unsigned long long seed, number;
    if (!PyArg_ParseTuple(args, "y*y*KKO&:hash_keys", &offsets, &texts, &seed, &number, take_output, &out)) {
        return NULL;
    }
    Py_ssize_t count = out.len / (Py_ssize_t)sizeof(uint64_t);
    if (!is_aligned(&offsets) || !is_aligned(&out) || offsets.len != (count + 1) * (Py_ssize_t)sizeof(int64_t)) {
        set_error(INPUT_ERROR, "the offsets are not one more than the hashes");
    } else if (meets(offsets.buf, offsets.len, &out) || meets(texts.buf, texts.len, &out)) {
        set_error(INPUT_ERROR, "the offsets or the texts and the output overlap");
    } else {
        bool sound;
        Py_BEGIN_ALLOW_THREADS
        sound = hash_all(offsets.buf, count, &texts, taken_in(taken_in(0, seed), number), out.buf);
        Py_END_ALLOW_THREADS
        if (!sound) {
            set_error(INPUT_ERROR, "the offsets do not ascend, or lead out of the texts");
        }
    }
    PyBuffer_Release(&offsets);
    PyBuffer_Release(&texts);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Whether two of `count` hashes are the same; `table` has room for `slots` of them, a power of two that is larger. */
static bool repeats_in(const uint64_t *hashes, size_t count, uint64_t *table, size_t slots) {
    memset(table, 0, slots * sizeof(uint64_t));
    size_t zeros = 0;
    for (size_t i = 0; i < count; i++) {
        uint64_t hash = hashes[i];
        if (!hash) { /* An empty slot holds 0. */
            zeros++;
            continue;
        }
        /* Numbers that end with the same bits lie apart, too. */
        size_t slot = (size_t)(hash * STEP >> 32) & (slots - 1);
        while (table[slot] && table[slot] != hash) {
            slot = (slot + 1) & (slots - 1);
        }
        if (table[slot]) {
            return true;
        }
        table[slot] = hash;
    }
    return zeros > 1;
}

/* The bucket of a hash: its highest bits. */
static inline size_t bucket_of(uint64_t hash, int bits) { return bits ? (size_t)(hash >> (64 - bits)) : 0; }

/* Sorts hashes into buckets; `ends` has one place more than there are, all 0, and gets where each ends. Returns the
   size of the largest one. */
static size_t sort_into_buckets(const uint64_t *hashes, size_t count, int bits, size_t *ends, uint64_t *sorted) {
    size_t buckets = (size_t)1 << bits, most = 0;
    for (size_t i = 0; i < count; i++) {
        ends[bucket_of(hashes[i], bits) + 1]++;
    }
    for (size_t bucket = 0; bucket < buckets; bucket++) {
        most = ends[bucket + 1] > most ? ends[bucket + 1] : most;
        ends[bucket + 1] += ends[bucket];
    }
    for (size_t i = 0; i < count; i++) {
        sorted[ends[bucket_of(hashes[i], bits)]++] = hashes[i];
    }
    return most;
}

/* 1 if two hashes are the same, 0 if not, -1 if there is not enough memory. */
static int find_repeat(const uint64_t *input, size_t count) {
    int bits = 0;
    while (bits < MOST_BITS && count >> (bits + BUCKET_BITS)) {
        bits++;
    }
    size_t bytes = count * sizeof(uint64_t), *ends = PyMem_RawCalloc(((size_t)1 << bits) + 1, sizeof *ends);
    uint64_t *hashes = PyMem_RawMalloc(bytes), *sorted = PyMem_RawMalloc(bytes), *table = NULL;
    size_t slots = 1;
    if (ends && hashes && sorted) {
        /* The input may change between two looks at it. */
        memcpy(hashes, input, bytes);
        size_t most = sort_into_buckets(hashes, count, bits, ends, sorted);
        while (slots <= 2 * most) {
            slots *= 2;
        }
        table = PyMem_RawMalloc(slots * sizeof *table);
    }
    int found = table ? 0 : -1;
    for (size_t bucket = 0, start = 0; table && bucket >> bits == 0 && !found; start = ends[bucket++]) {
        found = repeats_in(sorted + start, ends[bucket] - start, table, slots);
    }
    PyMem_RawFree(ends);
    PyMem_RawFree(hashes);
    PyMem_RawFree(sorted);
    PyMem_RawFree(table);
    return found;
}

PyObject *has_repeats(PyObject *module, PyObject *array) {
    (void)module;
    Py_buffer hashes;
    if (!take_buffer(array, &hashes, PyBUF_SIMPLE, "the hashes are not contiguous")) {
        return NULL;
    }
    int found = -1;
    if (!is_aligned(&hashes)) {
        set_error(INPUT_ERROR, "the hashes are not numbers of 64 bits");
    } else {
        Py_BEGIN_ALLOW_THREADS
        found = find_repeat(hashes.buf, (size_t)hashes.len / sizeof(uint64_t));
        Py_END_ALLOW_THREADS
        if (found < 0) {
            set_error(MEMORY_ERROR, NULL);
        }
    }
    PyBuffer_Release(&hashes);
    return found < 0 ? NULL : PyBool_FromLong(found);
}
