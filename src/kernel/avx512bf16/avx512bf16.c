/* Products in BF16 by the instruction for them, the rounding of rows to BF16 by its companion, and
 * nothing else: the table's other slots are those of AVX-512. */
#include "kernel/avx512bf16/tile.h"
#include "kernel/cpu.h"

/* ---- rows ---- */

static void to_bf16_row(const float *x, uint32_t k, sl_act_kind kind, uint8_t *row) {
    uint16_t *h = (uint16_t *)row;
    uint32_t i = 0;
    (void)kind;
    for (; i + 16 <= k; i += 16)
        _mm256_storeu_si256((__m256i *)(h + i),
                            (__m256i)_mm512_cvtneps_pbh(_mm512_loadu_ps(x + i)));
    for (; i < k; i++) h[i] = sl_bf16_round(x[i]);
}

static void rms_to_bf16_row(const float *x, const float *w, float inv, const sl_act_part *to) {
    uint16_t *h = (uint16_t *)to->row + to->at;
    const __m512 by = _mm512_set1_ps(inv);
    uint32_t i = 0;
    for (; i + 16 <= to->n; i += 16) {
        __m512 v = _mm512_mul_ps(_mm512_mul_ps(_mm512_loadu_ps(x + i), by), _mm512_loadu_ps(w + i));
        _mm256_storeu_si256((__m256i *)(h + i), (__m256i)_mm512_cvtneps_pbh(v));
    }
    for (; i < to->n; i++) h[i] = sl_bf16_round(x[i] * inv * w[i]);
}

const sl_kernels sl_kernels_avx512bf16 = {.name = "avx512bf16",
                                          .supported = sl_cpu_has_avx512_bf16,
                                          .by_merit = true,
                                          .bf16_tile = SL_EVERY_AMOUNT(bf16_tile),
                                          .quantise = {NULL, NULL, to_bf16_row},
                                          .rms_quantise = {NULL, NULL, rms_to_bf16_row}};
