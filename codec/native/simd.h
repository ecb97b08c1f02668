/* Functions for rows of pixels, which are chosen by what the processor can do. */

#ifndef PACKTRAIN_SIMD_H
#define PACKTRAIN_SIMD_H

#include <stddef.h>

/* PACKTRAIN_WITHOUT_SIMD is for tests of what other processors run. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(PACKTRAIN_WITHOUT_SIMD)
#include <immintrin.h>
#define HAS_X86_SIMD 1
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
#endif

/* Reads `count` pixels and writes as many, and touches no byte beyond them. */
typedef void RowFunction(unsigned char *out, const unsigned char *in, size_t count);

/* `name`_ssse3 or `name`_avx2 where the processor has these instructions, else `name`. */
#ifdef HAS_X86_SIMD
#define FASTEST_SSSE3(name) (__builtin_cpu_supports("ssse3") ? name##_ssse3 : name)
#define FASTEST_AVX2(name) (__builtin_cpu_supports("avx2") ? name##_avx2 : name)
#else
#define FASTEST_SSSE3(name) (name)
#define FASTEST_AVX2(name) (name)
#endif

#endif
