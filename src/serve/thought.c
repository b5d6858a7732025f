/* Thoughts that may have so many tokens (max_reasoning_tokens): what begins and ends them, as the
 * sampler wants it (spec/sampling.def). */
#include "serve/server_int.h"

/* The one token that a marker is; false: it is several, or none. */
static bool is_token(const sl_tokenizer *tok, const char *marker, uint32_t *id) {
    const sl_span text = {(const uint8_t *)marker, strlen(marker)};
    sl_ids ids = {0};
    sl_err err;
    const bool one =
        sl_tokenizer_encode(tok, text, true, false, &ids, &err) == SL_OK && ids.len == 1;
    if (one) *id = ids.data[0];
    sl_ids_free(&ids);
    return one;
}

sl_status sl_call_take_budget(sl_call *call, sl_api_error *e) {
    sl_api_params *p = &call->params;
    const sl_tokenizer *tok = call->server->o.tokenizer;
    const char *open, *close;
    uint32_t first = 0, last = 0;
    bool opened;
    if (!p->budget_field) return SL_OK;
    if (!sl_answer_thought_marks(&call->server->style, &open, &close))
        return sl_api_error_bad(e, p->budget_field,
                                "%s: this model's format has no marker that ends reasoning",
                                p->budget_field);
    if (!is_token(tok, open, &first) || !is_token(tok, close, &last))
        return sl_api_error_bad(e, p->budget_field,
                                "%s: \"%s\" and \"%s\" are not one token each for this model",
                                p->budget_field, open, close);
    if (!sl_call_thinks(call, &opened)) return SL_OK;
    p->sampling.thought_most = p->budget;
    p->sampling.thought_open = opened ? 0 : first + 1;
    p->sampling.thought_close = last + 1;
    return SL_OK;
}
