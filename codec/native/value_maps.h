/* Maps from bytes to bytes. */

#ifndef PACKTRAIN_VALUE_MAPS_H
#define PACKTRAIN_VALUE_MAPS_H

#include <stddef.h>

typedef struct {
    unsigned char of[256];
} ValueMap;

/* Replaces each of `size` bytes by what `map` has for it. */
void map_bytes(unsigned char *bytes, size_t size, const ValueMap *map);

/* The same with one map for each of three channels. */
void map_channels(unsigned char *pixels, size_t count, const ValueMap maps[3]);

#endif
