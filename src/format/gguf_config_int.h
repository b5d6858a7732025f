/* Inside of reading GGUF metadata: what gguf_config.c and gguf_attention.c share. Thread: any. */
#ifndef SL_FORMAT_GGUF_CONFIG_INT_H
#define SL_FORMAT_GGUF_CONFIG_INT_H

#include "format/family.h"

typedef struct sl_gguf_reading {
    const sl_gguf *g;
    const sl_family *family;
    const sl_gguf_arch *arch; /* of it */
    sl_model_spec *m;
    char key[128]; /* the last one asked for */
} sl_gguf_reading;

/* The architecture's key of that name; valid until the next call. */
const char *sl_gguf_key(sl_gguf_reading *r, const char *name);
/* *out keeps its value when an optional key is absent. */
sl_status sl_gguf_read_u32(sl_gguf_reading *r, const char *name, sl_gguf_need need, uint32_t min,
                           uint32_t max, uint32_t *out, sl_err *err) SL_MUST_CHECK;
sl_status sl_gguf_read_f64(sl_gguf_reading *r, const char *name, sl_gguf_need need, double min,
                           double max, double *out, sl_err *err) SL_MUST_CHECK;
/* A key that may only say what `want` says. */
sl_status sl_gguf_expect(sl_gguf_reading *r, const char *name, uint32_t want,
                         sl_err *err) SL_MUST_CHECK;

/* Heads, latents, rotation, windows: everything of attention. Sizes are known. */
sl_status sl_gguf_read_attention(sl_gguf_reading *r, sl_err *err) SL_MUST_CHECK;

#endif
