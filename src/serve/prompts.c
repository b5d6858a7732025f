/* Prompts of completions: texts, ids, both, what is around a gap. */
#include "serve/server_int.h"

#include <inttypes.h>

/* Texts and ids that follow one another become ids. */
static sl_status encode_mixed(const sl_call *call, sl_api_prompt *p, sl_err *err) {
    const sl_tokenizer *tok = call->server->o.tokenizer;
    /* what begins texts begins one that begins with a text; a gap has it already */
    bool begins = p->text.data && !call->params.no_special && !sl_api_fills(&call->params);
    sl_status st = begins ? sl_tokenizer_begin(tok, &p->ids, err) : SL_OK;
    for (size_t i = 0; st == SL_OK && i < sl_json_count(p->mixed); i++) {
        sl_span text;
        uint64_t id = 0;
        sl_json part = sl_json_at(p->mixed, i);
        if (sl_json_as_span(part, &text))
            st = sl_tokenizer_encode(tok, text, true, false, &p->ids, err);
        else if (sl_json_as_u64(part, &id))
            st = sl_ids_push(&p->ids, (uint32_t)id, err);
    }
    return st;
}

sl_status sl_call_encode_prompt(const sl_call *call, sl_api_prompt *p, sl_ids *out, sl_err *err) {
    sl_status st = p->mixed.value ? encode_mixed(call, p, err) : SL_OK;
    if (st != SL_OK) return st;
    if (sl_api_fills(&call->params)) return sl_call_fill(call, p, out, err);
    if (p->ids.len == 0)
        return sl_tokenizer_encode(call->server->o.tokenizer, p->text, true,
                                   !call->params.no_special, out, err);
    *out = p->ids;
    p->ids = (sl_ids){0};
    return SL_OK;
}

/* Bytes of the texts in an array. */
static size_t text_of(sl_json list) {
    sl_span text;
    size_t n = 0;
    for (size_t i = 0; list.value && i < sl_json_count(list); i++)
        if (sl_json_as_span(sl_json_at(list, i), &text)) n += text.len;
    return n;
}

sl_status sl_call_check_text(const sl_call *call, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    size_t n = 0, limit = call->server->max_text_bytes;
    for (size_t i = 0; i < p->n_prompts; i++)
        n = SL_MAX(n, p->prompts[i].text.len + text_of(p->prompts[i].mixed));
    n += p->suffix.len;
    for (size_t i = 0; i < p->n_messages; i++) n += p->messages[i].content.len;
    if (n <= limit) return SL_OK;
    sl_api_error_bad(e, p->kind == SL_API_CHAT ? "messages" : "prompt",
                     "This model's maximum context length is %" PRIu32
                     " tokens (--ctx); they cannot hold a text of %zu bytes.",
                     call->server->limits.context, n);
    e->code = "context_length_exceeded";
    return SL_ERR_LIMIT;
}

sl_status sl_call_take_text(sl_call *call, sl_api_error *e) {
    sl_err err = {0};
    size_t n = 0;
    sl_ids known = {0}; /* padding of the embedding stands for no text */
    if (!call->params.verbose) return SL_OK;
    if (call->n_prompts != 1)
        return sl_api_error_bad(e, "verbose", "verbose: %zu prompts, only an answer to one has it",
                                call->n_prompts);
    const sl_tokenizer *tok = call->server->o.tokenizer;
    const sl_ids *ids = &call->prompt[0];
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < ids->len; i++)
        if (ids->data[i] < sl_tokenizer_vocab_size(tok))
            st = sl_ids_push(&known, ids->data[i], &err);
    if (st == SL_OK)
        st = sl_tokenizer_decode(tok, known.data, known.len, false, &call->prompt_text, &n, &err);
    sl_ids_free(&known);
    if (st != SL_OK) return sl_api_error_of(e, st, "verbose", err.msg);
    call->head.prompt_text = (sl_span){(const uint8_t *)call->prompt_text, n};
    return SL_OK;
}
