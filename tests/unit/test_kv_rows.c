/* What is kept in KV pages: bounds of each type's rounding, its ends, and the bits of every table.
 */
#include "kernel_test.h"
#include "quant/fp8.h"
#include "quant/kv_rows.h"
#include "spec/kv.h"

#include <stdlib.h>

static const uint32_t widths[] = {2, 8, 12, 20, 31, 32, 33, 64, 96, 128, 512};

/* The most that a value of x may be off by in a part whose greatest magnitude is `most`. */
static double bound(sl_kv_type t, double x, double most) {
    switch (t) {
    case SL_KV_F16:
        return fmax(fabs(x) * 0x1p-11, 0x1p-25);
    case SL_KV_BF16:
        return fabs(x) * 0x1p-8;
    case SL_KV_Q8_0: /* half a step, and what the scale's own rounding makes of 127 of them */
        return most / 127 * 0.5 + most * 0x1p-11 + 127 * 0x1p-25;
    case SL_KV_FP8:
        return fmax(fabs(x) * 0x1p-4, most / 448 * 2 * 0x1p-10);
    default:
        return 0;
    }
}

static void rounding_keeps_its_bound(void **state) {
    (void)state;
    for (sl_kv_type t = SL_KV_F32; t < SL_KV_TYPES; t++)
        for (size_t w = 0; w < SL_LEN(widths); w++)
            for (int power = -6; power <= 6; power += 3) {
                const uint32_t n = widths[w];
                float *x = kt_floats(n), *y = kt_floats(n);
                const size_t bytes = sl_kv_part_bytes(t, n);
                uint8_t *kept = malloc(2 * bytes + 1), *again = kept + 1 + bytes;
                for (uint32_t i = 0; i < n; i++)
                    x[i] = ldexpf((float)((int)kt_below(2001) - 1000) / 1000, power);
                sl_kv_round(t, x, n, kept + 1); /* of any alignment */
                sl_kv_widen(t, kept + 1, n, y);
                for (uint32_t i = 0; i < n; i++) {
                    double most = 0;
                    const uint32_t block = t == SL_KV_Q8_0 ? SL_KV_Q8_BLOCK : n;
                    for (uint32_t j = i / block * block; j < SL_MIN(n, (i / block + 1) * block);
                         j++)
                        most = fmax(most, fabs((double)x[j]));
                    if (fabs((double)y[i] - (double)x[i]) > bound(t, x[i], most))
                        fail_msg("%s, %u values: %g became %g, most %g", sl_kv_type_names[t], n,
                                 (double)x[i], (double)y[i], most);
                }
                if (t != SL_KV_Q8_0) { /* whose scale would be made of a code */
                    sl_kv_round(t, y, n, again);
                    sl_kv_widen(t, again, n, x);
                    kt_same(sl_kv_type_names[t], x, y, n);
                }
                free(kept), sl_free(x), sl_free(y);
            }
}

static float kept(sl_kv_type t, float x) {
    float in[2] = {x, 0}, out[2];
    uint8_t row[64];
    sl_kv_round(t, in, 2, row);
    sl_kv_widen(t, row, 2, out);
    return out[0];
}

static void ends_are_as_documented(void **state) {
    (void)state;
    assert_true(kept(SL_KV_F16, 65504) == 65504 && kept(SL_KV_F16, 65519) == 65504);
    assert_true(kept(SL_KV_F16, 1e30f) == 65504 && kept(SL_KV_F16, -1e30f) == -65504);
    assert_true(kept(SL_KV_Q8_0, 127) == 127 && kept(SL_KV_FP8, 1e30f) > 0.9e30f);
    for (sl_kv_type t = SL_KV_F32; t < SL_KV_TYPES; t++) {
        assert_true(kept(t, 0) == 0);
        assert_true(isnan(kept(t, NAN)));
        assert_false(isfinite(kept(t, INFINITY)) || isfinite(kept(t, -INFINITY)));
    }
    for (uint32_t h = 0; h < 0x10000; h++) { /* every f16 stays itself */
        const float f = sl_f16_to_f32((uint16_t)h), g = kept(SL_KV_F16, f);
        if (!isnan(f)) assert_memory_equal(&f, &g, sizeof f);
    }
}

static void every_float_rounds_as_half_h_does(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 3000000; i++) {
        const uint32_t u = i < 1000000 ? 0x387f0000u + i : kt_bits();
        const float f = sl_f32_of_bits(u);
        const uint16_t want = sl_f32_to_f16(f);
        uint16_t got;
        sl_kv_round(SL_KV_F16, &f, 1, &got);
        const bool saturates = isfinite(f) && (want & 0x7fff) == 0x7c00;
        if (saturates)
            assert_int_equal(got & 0x7fff, 0x7bff);
        else if (isnan(f))
            assert_true((got & 0x7fff) > 0x7c00);
        else
            assert_int_equal(got, want);
    }
}

/* Rows of tiles, of heads and of latents, from every table. */
static void every_table_widens_the_same(void **state) {
    (void)state;
    static const uint32_t latent[][2] = {{0, 16}, {0, 20},  {0, 64},  {0, 96},
                                         {20, 8}, {28, 12}, {64, 32}, {96, 64}};
    for (sl_kv_type t = SL_KV_F32; t < SL_KV_TYPES; t++)
        for (size_t s = 0; s < SL_LEN(latent); s++) {
            const uint32_t lora = latent[s][0], rope = latent[s][1], dim = lora + rope;
            const sl_model_spec m = {.n_layers = 1,
                                     .n_kv_heads = 1,
                                     .head_dim = dim,
                                     .kv_lora = lora,
                                     .rope_dim = rope,
                                     .kv_type = t};
            const size_t row = sl_kv_row_bytes(&m);
            uint8_t *tile = malloc(sl_kv_tile_bytes(&m));
            float *x = kt_floats(SL_KV_PAGE_TOKENS * dim),
                  *want = kt_floats(SL_KV_PAGE_TOKENS * dim),
                  *got = kt_floats(SL_KV_PAGE_TOKENS * dim);
            for (uint32_t i = 0; i < SL_KV_PAGE_TOKENS; i++) {
                const uint32_t part = lora ? lora : dim;
                uint8_t *at = tile + i * row;
                sl_kv_round(t, x + i * dim, part, at);
                sl_kv_widen(t, at, part, want + i * dim);
                if (!lora) continue;
                at += sl_kv_column_offset(&m, lora);
                sl_kv_round(t, x + i * dim + lora, rope, at);
                sl_kv_widen(t, at, rope, want + i * dim + lora);
            }
            bool supported = false;
            for (size_t i = 0; sl_kernels_at(i, &supported); i++) {
                if (!supported) continue;
                sl_kv_rows_widen(sl_kernels_at(i, NULL), &m, tile, 3, 21, got);
                kt_same(sl_kv_type_names[t], got, want + 3 * dim, 21 * (size_t)dim);
            }
            free(tile), sl_free(x), sl_free(want), sl_free(got);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounding_keeps_its_bound),
        cmocka_unit_test(ends_are_as_documented),
        cmocka_unit_test(every_float_rounds_as_half_h_does),
        cmocka_unit_test(every_table_widens_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
