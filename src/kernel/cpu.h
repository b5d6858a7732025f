/* What this CPU can run and the OS saves on a context switch. Thread: any. */
#ifndef SL_KERNEL_CPU_H
#define SL_KERNEL_CPU_H

#include <stdbool.h>
#include <stddef.h>

/* AVX2, FMA and F16C, with the upper register halves saved by the OS. False on other architectures.
 */
bool sl_cpu_has_avx2(void);
/* The same and AVX-512 F, BW, DQ and VL with masks and all 32 registers saved. */
bool sl_cpu_has_avx512(void);
/* The same and VNNI, products of bytes. */
bool sl_cpu_has_avx512_vnni(void);
/* The same and products of BF16. */
bool sl_cpu_has_avx512_bf16(void);
/* sl_cpu_has_avx512_vnni and tiles of integers (AMX), which this process has asked the OS for. */
bool sl_cpu_has_amx(void);
/* x86's CLFLUSHOPT: lines that leave the caches in any order. */
bool sl_cpu_has_clflushopt(void);
/* AArch64's products of bytes (FEAT_DotProd). */
bool sl_cpu_has_dotprod(void);
/* And of matrices of them (FEAT_I8MM). */
bool sl_cpu_has_i8mm(void);
/* The kind of CPU in one line of printable ASCII, as "GenuineIntel 6/207/2 Intel(R) Xeon(R)". */
void sl_cpu_describe(char *out, size_t cap);

#endif
