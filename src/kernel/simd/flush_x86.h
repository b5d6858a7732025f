/* Arithmetic of x86 in which nothing is subnormal, by its control register. */
#ifndef SL_KERNEL_SIMD_FLUSH_X86_H
#define SL_KERNEL_SIMD_FLUSH_X86_H

#include <stdbool.h>
#include <stdint.h>

static inline uint32_t v_control(void) {
    uint32_t is = 0;
    __asm__ volatile("stmxcsr %0" : "=m"(is)::"memory");
    return is;
}
/* From here to v_flush_end sums and fused multiply-adds take subnormals for zeros with their sign
 * and give none, as docs/numbers.md says of products of BF16. What is between has to be a call that
 * is not inlined: the compiler knows nothing of it. was: v_control(). */
static inline void v_flush(uint32_t was) {
    const uint32_t now = was | 0x8040; /* FTZ, DAZ */
    __asm__ volatile("ldmxcsr %0" ::"m"(now) : "memory");
}
static inline void v_flush_end(uint32_t was) {
    __asm__ volatile("ldmxcsr %0" ::"m"(was) : "memory");
}
static inline uint32_t v_flush_begin(void) {
    const uint32_t was = v_control();
    v_flush(was);
    return was;
}
/* Whether one of them may have been wrong: never. */
typedef struct v_doubt {
    char nothing;
} v_doubt;
static inline v_doubt v_sure(void) {
    return (v_doubt){0};
}
static inline bool v_doubtful(v_doubt d) {
    (void)d;
    return false;
}

#endif
