/* Answers that stand between two texts: prompts in the model's format of fill-in-the-middle, and
 * the tokens that end them. */
#include "serve/server_int.h"

/* Of the context, for the answer of a request that does not say how long it may be, where files
 * are there that could take all of it. */
#define SILENT_SHARE 4u

static sl_status refuse_format(const sl_call *call, sl_api_error *e) {
    sl_api_error_bad(e, "suffix",
                     "suffix: the tokenizer of %.200s has no tokens of fill-in-the-middle",
                     call->server->model);
    e->code = "unsupported_value";
    return SL_ERR_UNSUPPORTED;
}

sl_status sl_call_take_fill(sl_call *call, sl_api_error *e) {
    sl_api_params *p = &call->params;
    const sl_fim *f = &call->server->fim;
    p->n_own_ends = 0;
    if (!sl_api_fills(p)) {
        if (p->n_files == 0) return SL_OK;
        return sl_api_error_bad(e, "input_extra", "input_extra: only with suffix");
    }
    if (!f->name) return refuse_format(call, e);
    if (p->ignore_eos) return SL_OK;
    if (p->n_stop_ids + f->n_ends > SL_MAX_STOP_IDS)
        return sl_api_error_bad(e, "stop_token_ids",
                                "stop_token_ids: %u ids, limit %u with suffix, whose format has "
                                "%u of its own",
                                p->n_stop_ids, SL_MAX_STOP_IDS - f->n_ends, f->n_ends);
    for (uint32_t i = 0; i < f->n_ends; i++) p->stop_id[p->n_stop_ids + i] = f->end[i];
    p->n_own_ends = f->n_ends;
    return SL_OK;
}

/* The first file of which a token may be taken: those behind it fill the context. */
static size_t first_file(const sl_call *call) {
    const sl_api_params *p = &call->params;
    size_t i = p->n_files;
    for (size_t n = 0; i > 0 && n <= call->server->max_text_bytes; i--)
        n += p->file[i - 1].text.len;
    return i;
}

sl_status sl_call_fill(const sl_call *call, const sl_api_prompt *prompt, sl_ids *out, sl_err *err) {
    const sl_api_params *p = &call->params;
    const sl_server *s = call->server;
    size_t context = s->limits.context;
    size_t first = first_file(call);
    size_t answer = p->max_tokens ? p->max_tokens : context / SILENT_SHARE;
    const sl_fim_gap gap = {.before = prompt->text,
                            .ids = prompt->ids.len ? &prompt->ids : NULL,
                            .behind = p->suffix,
                            .file = p->file ? p->file + first : NULL,
                            .n_files = p->n_files - first,
                            .room = context > answer ? context - answer : 0,
                            .special = !p->no_special};
    return sl_fim_encode(&s->fim, s->o.tokenizer, &gap, out, err);
}
