/* GET /tokenizer_info: the tokenizer in the words of tokenizer_config.json, as vLLM answers it. All
 * of it is in the model's files; where they lie is not said. */
#include "serve/server_int.h"

#include <inttypes.h>

static void put_token(sl_jbuf *b, const sl_server *s, const char *name, int64_t id) {
    sl_span text = id >= 0 ? sl_tokenizer_piece(s->o.tokenizer, (uint32_t)id) : (sl_span){0};
    sl_jbuf_fmt(b, ",\"%s\":", name);
    if (text.len)
        sl_jbuf_string(b, (const char *)text.data, text.len);
    else
        sl_jbuf_cstring(b, NULL);
}

static const char *said(bool on) {
    return on ? "true" : "false";
}

static void put_added(sl_jbuf *b, const sl_tokenizer *tok) {
    sl_tokenizer_added a;
    sl_jbuf_fmt(b, ",\"added_tokens_decoder\":{");
    for (size_t i = 0; sl_tokenizer_added_at(tok, i, &a); i++) {
        sl_jbuf_fmt(b, "%s\"%" PRIu32 "\":{\"content\":", i ? "," : "", a.id);
        sl_jbuf_string(b, (const char *)a.content.data, a.content.len);
        sl_jbuf_fmt(b,
                    ",\"lstrip\":%s,\"normalized\":%s,\"rstrip\":%s,\"single_word\":%s,"
                    "\"special\":%s}",
                    said(a.lstrip), said(a.normalized), said(a.rstrip), said(a.single_word),
                    said(a.special));
    }
    sl_jbuf_fmt(b, "},\"additional_special_tokens\":[");
    const char *comma = "";
    for (size_t i = 0; sl_tokenizer_added_at(tok, i, &a); i++) {
        if (!a.special) continue;
        sl_jbuf_fmt(b, "%s", comma);
        sl_jbuf_string(b, (const char *)a.content.data, a.content.len);
        comma = ",";
    }
    sl_jbuf_put(b, "]", 1);
}

enum MHD_Result sl_vocabulary_answer(sl_call *call, const char *rest) {
    (void)rest;
    const sl_server *s = call->server;
    const sl_tokenizer *tok = s->o.tokenizer;
    const sl_model_spec *m = sl_engine_spec(s->o.engine);
    int64_t first = sl_tokenizer_begins_with(tok);
    sl_span source = s->o.chat ? sl_chat_source(s->o.chat, false) : (sl_span){0};
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b,
                "{\"tokenizer_class\":\"%s\",\"vocab_size\":%" PRIu32
                ",\"model_max_length\":%" PRIu32 ",\"add_bos_token\":%s",
                sl_tokenizer_is_sentencepiece(tok) ? "SentencePieceBPE" : "ByteLevelBPE",
                sl_tokenizer_vocab_size(tok), s->limits.context, said(first >= 0));
    put_token(&b, s, "bos_token", first);
    put_token(&b, s, "eos_token", m->n_eos ? (int64_t)m->eos[0] : -1);
    put_added(&b, tok);
    sl_jbuf_fmt(&b, ",\"fim_format\":");
    sl_jbuf_cstring(&b, s->fim.name);
    sl_jbuf_fmt(&b, ",\"chat_template\":");
    if (source.data)
        sl_jbuf_string(&b, (const char *)source.data, source.len);
    else
        sl_jbuf_cstring(&b, NULL);
    sl_jbuf_put(&b, "}", 1);
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &b);
}
