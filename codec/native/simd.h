/* Functions for rows of pixels, which are chosen by what the processor can do. */

#ifndef PACKTRAIN_SIMD_H
#define PACKTRAIN_SIMD_H

#include <stdbool.h>
#include <stddef.h>

#include "processor.h"

/* PACKTRAIN_WITHOUT_SIMD is for tests of what other processors run. On aarch64, SIMDe says in NEON what the instructions
   of x86 do, so that there is one source of all this, and one arithmetic. */
#if defined(PACKTRAIN_WITHOUT_SIMD)
#elif defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HAS_SIMD 1
#define HAS_X86_SIMD 1
#elif defined(__aarch64__) && __has_include(<simde/x86/avx2.h>)
#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx2.h>
#define HAS_SIMD 1
/* SIMDe wants these numbers of bits as literals, and here they may be variables of a loop. */
#undef _mm_slli_epi32
#undef _mm256_srli_epi32
#undef _mm256_srli_epi64
#define _mm_slli_epi32(a, bits) simde_mm_sll_epi32(a, simde_mm_cvtsi32_si128(bits))
#define _mm256_srli_epi32(a, bits) simde_mm256_srl_epi32(a, simde_mm_cvtsi32_si128(bits))
#define _mm256_srli_epi64(a, bits) simde_mm256_srl_epi64(a, simde_mm_cvtsi32_si128(bits))
#endif

/* What is compiled for several processors, each with its own instructions. */
#ifdef __GNUC__
#define INLINE static inline __attribute__((always_inline))
#else
#define INLINE static inline
#endif

#ifdef HAS_X86_SIMD
#define SSSE3 __attribute__((target("ssse3")))
#define AVX2 __attribute__((target("avx2")))
static inline bool has_ssse3(void) { return processor_has(HAS_SSSE3); }
static inline bool has_avx2(void) { return processor_has(HAS_AVX2); }
#elif defined(HAS_SIMD)
#define SSSE3
#define AVX2
static inline bool has_ssse3(void) { return true; }
static inline bool has_avx2(void) { return true; }
#endif

/* Reads `count` pixels and writes as many, and touches no byte beyond them. */
typedef void RowFunction(unsigned char *out, const unsigned char *in, size_t count);

/* `name`_ssse3 or `name`_avx2 where the processor has these instructions, else `name`. */
#ifdef HAS_SIMD
#define FASTEST_SSSE3(name) (has_ssse3() ? name##_ssse3 : name)
#define FASTEST_AVX2(name) (has_avx2() ? name##_avx2 : name)
#else
#define FASTEST_SSSE3(name) (name)
#define FASTEST_AVX2(name) (name)
#endif

#endif
