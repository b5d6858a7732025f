/* Functions of headers that CUDA kernels share with the CPU's: one text, so that both compute the
 * same. What uses SL_FN is C11 and C++17 at once: no designated initialisers, no void * that
 * becomes another pointer by itself. */
#ifndef SL_BASE_FN_H
#define SL_BASE_FN_H

#ifdef __CUDACC__
#define SL_FN static __host__ __device__ inline
#else
#define SL_FN static inline
#endif

#endif
