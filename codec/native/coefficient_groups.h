/* Groups of blocks in a coefficient record: up to 16 blocks of one row of one component.
   docs/format-records.md specifies them.
   This is the only writer and the only reader of a group. */

#ifndef PACKTRAIN_COEFFICIENT_GROUPS_H
#define PACKTRAIN_COEFFICIENT_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define GROUP 16        /* blocks in a group, but for the last of a row */
#define GROUP_MOST 2400 /* no group has more bytes */
#define BLOCK_COEFFICIENTS 64

/* Writes the group of `count` blocks, whose coefficients are in natural order. Returns the bytes that it takes.
   There must be room for GROUP_MOST bytes. */
size_t write_group(unsigned char *out, const int16_t (*blocks)[BLOCK_COEFFICIENTS], int count);

/* Reads a group of `size` bytes into `count` blocks, and which bands of each hold anything, one bit each; false if it
   does not have exactly that size, what fills up a byte is not 0, or a DC coefficient does not fit 16 bits. Whatever the
   bytes are, no more than GROUP_MOST bytes are read; so many must be readable, even if `size` is less. */
typedef bool ReadGroup(const unsigned char *in, size_t size, int16_t (*blocks)[BLOCK_COEFFICIENTS],
                       unsigned char *bands, int count);

/* The fastest that this processor can run. */
ReadGroup *fastest_read_group(void);

/* One of them by name, for tests: "plain", "bmi2" or "avx512"; NULL if this processor cannot run it. */
ReadGroup *named_read_group(const char *name);

/* Prepares the tables, and chooses the fastest reader; call it once, before anything else. */
void coefficient_groups_init(void);

#endif
