/* What the processor, and the system that it runs, can do. */

#ifndef PACKTRAIN_PROCESSOR_H
#define PACKTRAIN_PROCESSOR_H

#include <stdbool.h>

typedef enum {
    HAS_SSSE3 = 1,
    HAS_SSE42 = 2,
    HAS_AVX2 = 4,
    HAS_BMI2 = 8,    /* with BMI, POPCNT and SSE 4.1 */
    HAS_AVX512 = 16, /* with BMI2, and F, BW, VL, VBMI, VBMI2 and BITALG */
    HAS_FAST_PDEP = 32,
    HAS_CRC32 = 64, /* of aarch64 */
} Ability;

bool processor_has(Ability ability);

#endif
