/* Arguments of attention of prompts by warp groups' tensor cores (fast_prompt_wide.cu). C and
 * CUDA. */
#ifndef SL_STAGE_CUDA_ARGS_PROMPT_H
#define SL_STAGE_CUDA_ARGS_PROMPT_H

#include "stage/cuda/kernels/args_attention.h"
#include "stage/cuda/kernels/args_wide.h"

#define SL_PROMPT_THREADS      384u
#define SL_PROMPT_QUERIES      128u  /* of a block */
#define SL_PROMPT_KEYS         64u   /* positions of a step */
#define SL_PROMPT_ROOM         1024u /* bytes in front of stages */
#define SL_PROMPT_STAGES       6u
#define SL_PROMPT_KEYS_THREADS 256u

/* Pages of a request in bf16: a page a block in x, a kv head in y. Keys [kv head][span][dim],
 * values turned round, [kv head][dim][span]; positions count from `origin`, a multiple of a page,
 * zeros where they are not `from` to `to`. */
typedef struct sl_prompt_keys_args {
    const uint8_t *k, *v; /* as of sl_k_attention_args */
    uint64_t page_bytes, head_bytes;
    uint32_t type;        /* SL_KV_F32 or SL_KV_BF16 */
    const uint32_t *page; /* list */
    uint32_t from, to, origin, span, dim;
    uint16_t *keys, *values;
} sl_prompt_keys_args;

/* Walks and queries as of sl_k_attention_args; keys and values as the kernel before has made them:
 * boxes of 64 values by SL_PROMPT_KEYS positions, and of SL_PROMPT_KEYS positions by dim. */
typedef struct sl_prompt_args {
    sl_wide_map keys, values;
    sl_k_attention_args attn;
    uint16_t *o; /* the same results in bf16, for the product behind */
    uint32_t origin, span;
} sl_prompt_args;

#endif
