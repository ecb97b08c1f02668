/* Asked for here, as not every compiler's library answers `__builtin_cpu_supports`: that of zig always says no. */

#include "processor.h"

static unsigned abilities;

bool processor_has(Ability ability) { return abilities & ability; }

#if defined(__x86_64__) && defined(__GNUC__)
#include <cpuid.h>

#define ALL(value, bits) (((value) & (bits)) == (bits))
#define BIT(number) (1u << (number))

/* Which registers the system saves when it changes from one thread to another. */
static unsigned saved_registers(void) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return low;
}

/* AMD's processors before Zen 3 take many cycles for `pdep`, depending on the mask. */
static bool has_fast_pdep(void) {
    unsigned most, vendor[3], signature, unused;
    __cpuid(0, most, vendor[0], vendor[2], vendor[1]);
    __cpuid(1, signature, unused, unused, unused);
    unsigned family = (signature >> 8 & 15) + (signature >> 20 & 255);
    return vendor[0] == signature_INTEL_ebx || family >= 0x19;
}

__attribute__((constructor)) static void ask(void) {
    unsigned eax, ebx, ecx, edx, more_ebx = 0, more_ecx = 0;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) {
        return;
    }
    __get_cpuid_count(7, 0, &eax, &more_ebx, &more_ecx, &edx);
    unsigned saved = ALL(ecx, BIT(27)) ? saved_registers() : 0; /* OSXSAVE */
    bool bmi2 = ALL(ecx, BIT(19) | BIT(23)) && ALL(more_ebx, BIT(3) | BIT(8));
    bool avx512 = bmi2 && ALL(saved, 0xe6) && ALL(more_ebx, BIT(16) | BIT(30) | BIT(31)) &&
                  ALL(more_ecx, BIT(1) | BIT(6) | BIT(12));
    abilities = (ALL(ecx, BIT(9)) ? HAS_SSSE3 : 0) | (ALL(ecx, BIT(20)) ? HAS_SSE42 : 0) |
                (ALL(saved, 6) && ALL(more_ebx, BIT(5)) ? HAS_AVX2 : 0) | (bmi2 ? HAS_BMI2 : 0) |
                (avx512 ? HAS_AVX512 : 0) | (has_fast_pdep() ? HAS_FAST_PDEP : 0);
}
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>

__attribute__((constructor)) static void ask(void) { abilities = getauxval(AT_HWCAP) & HWCAP_CRC32 ? HAS_CRC32 : 0; }
#endif
