/* Biases of texts: the tokens that a text has. */
#include "serve/server_int.h"

static sl_status refuse(const sl_api_bias *text, sl_status why, uint32_t id, sl_api_error *e) {
    int n = (int)SL_MIN(text->text.len, (size_t)40);
    const char *s = (const char *)text->text.data;
    if (why == SL_ERR_ARG)
        return sl_api_error_bad(
            e, "logit_bias", "logit_bias: token %u of \"%.*s\" has another bias already", id, n, s);
    if (why == SL_ERR_LIMIT)
        return sl_api_error_bad(e, "logit_bias",
                                "logit_bias: more than %u tokens with those of \"%.*s\"",
                                SL_MAX_LOGIT_BIAS, n, s);
    return sl_api_error_of(e, why, "logit_bias", NULL);
}

sl_status sl_call_take_bias(sl_call *call, sl_api_error *e) {
    sl_api_params *p = &call->params;
    const sl_tokenizer *tok = call->server->o.tokenizer;
    sl_ids ids = {0};
    sl_status st = SL_OK;
    for (size_t i = 0; st == SL_OK && i < p->n_bias_texts; i++) {
        const sl_api_bias *text = &p->bias_text[i];
        sl_err err = {0};
        ids.len = 0;
        st = sl_tokenizer_encode(tok, text->text, true, false, &ids, &err);
        if (st != SL_OK) sl_api_error_of(e, st, "logit_bias", err.msg);
        for (size_t k = 0; st == SL_OK && k < ids.len; k++) {
            st = sl_api_add_bias(p, ids.data[k], text->bias);
            if (st != SL_OK) refuse(text, st, ids.data[k], e);
        }
    }
    sl_ids_free(&ids);
    return st;
}
