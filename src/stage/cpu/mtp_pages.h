/* KV of the block that predicts a further token: a pool of pages beside the model's, by the same
 * numbers, which a device fills for guesses alone. Nobody moves, copies or keeps them: a page has
 * rows here from the first to the last that were computed one after the other, the others are as
 * good as not there. Rows of the block see those that are there without a gap before them. Thread:
 * owner. */
#ifndef SL_STAGE_CPU_MTP_PAGES_H
#define SL_STAGE_CPU_MTP_PAGES_H

#include "base/mem.h"
#include "spec/kv.h"

/* Rows from .. to - 1 of a page. */
typedef struct sl_mtp_page {
    uint8_t from, to;
} sl_mtp_page;

typedef struct sl_mtp_pages {
    uint8_t *base;      /* where they lie; NULL: there are none, or nothing is in them */
    sl_mtp_page *known; /* [n] */
    sl_kv_pool kv;
    uint32_t n;
} sl_mtp_pages;

/* n pages of the block of `m`, a rank's of the heads that it has. SL_ERR_NOMEM, SL_ERR_LIMIT; *out
 * can be freed then, too. */
sl_status sl_mtp_pages_open(const sl_model_spec *m, uint32_t n, sl_mtp_pages *out,
                            sl_err *err) SL_MUST_CHECK;
void sl_mtp_pages_close(sl_mtp_pages *p); /* zeroed is fine */

/* The model's own rows at these positions are written: what was here of them and behind them in
 * their pages was of others. */
void sl_mtp_pages_forget(sl_mtp_pages *p, const uint32_t *pos, const uint32_t *const *pages,
                         uint32_t n);
/* The same of a whole page. */
void sl_mtp_pages_drop(sl_mtp_pages *p, uint32_t page);
/* Rows at these positions are written now, those of one request in ascending order; low[i]: the
 * first position that row i sees. */
void sl_mtp_pages_write(sl_mtp_pages *p, const uint32_t *pos, const uint32_t *const *pages,
                        uint32_t n, uint32_t *low);

#endif
