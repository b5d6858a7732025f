/* What numbers of KV pages are kept as: a fact of the plan, the same for all workers, because it
 * decides bits (docs/numbers.md, "KV in fewer bytes"). Values of a row are kept in parts that were
 * rounded together: a head's, or of latent attention the latent and then the rotated key. */
#ifndef SL_SPEC_KV_TYPE_H
#define SL_SPEC_KV_TYPE_H

#include "base/fn.h"

#include <stddef.h>
#include <stdint.h>

typedef enum sl_kv_type {
    SL_KV_F32,
    SL_KV_F16,  /* nearest even; finite values beyond 65504 become that */
    SL_KV_BF16, /* nearest even */
    SL_KV_Q8_0, /* blocks of 32, the last one filled with zeros: an f16 scale, 32 codes */
    SL_KV_FP8, /* a part's scale, a power of two as f32, its codes of E4M3, zeros to a multiple of 4
                */
    SL_KV_TYPES,
    SL_KV_AUTO = SL_KV_TYPES /* of a plan that says none: sl_plan_kv_type decides */
} sl_kv_type;

/* By sl_kv_type, AUTO's too. */
extern const char *const sl_kv_type_names[SL_KV_TYPES + 1];

/* What AUTO is where attention runs on CPUs: the type of 16 bits that is nearest to f32, within
 * 0.11 % of its perplexity in all families (docs/numbers.md), and nowhere slower at long contexts.
 * On other processors nobody measured that. */
#if defined(__x86_64__)
#define SL_KV_AUTO_ON_CPUS SL_KV_F16
#else
#define SL_KV_AUTO_ON_CPUS SL_KV_F32
#endif

#define SL_KV_Q8_BLOCK 32u /* values, */
#define SL_KV_Q8_BYTES 34u /* and bytes that they take */
#define SL_KV_FP8_HEAD 4u  /* bytes before the codes */

/* Bytes of a part of n values. */
SL_FN size_t sl_kv_part_bytes(sl_kv_type t, size_t n) {
    switch (t) {
    case SL_KV_F16:
    case SL_KV_BF16:
        return n * 2;
    case SL_KV_Q8_0:
        return (n + SL_KV_Q8_BLOCK - 1) / SL_KV_Q8_BLOCK * SL_KV_Q8_BYTES;
    case SL_KV_FP8:
        return (SL_KV_FP8_HEAD + n + 3) / 4 * 4;
    case SL_KV_F32:
    case SL_KV_TYPES:
        break;
    }
    return n * sizeof(float);
}

/* Of a row of n values, the first `part` of which are a part, and what is left another. */
SL_FN size_t sl_kv_row_of(sl_kv_type t, size_t part, size_t n) {
    return sl_kv_part_bytes(t, part) + (n > part ? sl_kv_part_bytes(t, n - part) : 0);
}

#endif
