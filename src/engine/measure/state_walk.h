/* Rows for measuring linear attention: requests that go on from call to call, as rows of decoding
 * do, and prompts. Of more rows than requests some are of one request. Thread: owner. */
#ifndef SL_ENGINE_STATE_WALK_H
#define SL_ENGINE_STATE_WALK_H

#include "base/status.h"
#include "spec/gang.h"
#include "spec/kv.h"

typedef struct sl_state_walk {
    uint32_t n;                   /* requests; 0: the model has no linear attention */
    uint32_t *taken, *version;    /* [n] tokens of a request, and which of its states they left */
    uint32_t *pos, *state, *done; /* [most] of the next call, as of sl_rowset */
} sl_state_walk;

/* Calls of up to `most` rows for these blocks. SL_ERR_NOMEM; *out can be closed then, too. */
sl_status sl_state_walk_open(const sl_model_spec *m, sl_extent blocks, uint32_t most,
                             sl_state_walk *out, sl_err *err) SL_MUST_CHECK;
void sl_state_walk_close(sl_state_walk *w); /* zeroed is fine */
/* Fills pos, state and done for `rows` rows, one block of the model after the other; prompt: they
 * are one, from its beginning. */
void sl_state_walk_place(const sl_state_walk *w, uint32_t rows, bool prompt);
/* All blocks have had those rows. */
void sl_state_walk_pass(sl_state_walk *w, uint32_t rows, bool prompt);

#endif
