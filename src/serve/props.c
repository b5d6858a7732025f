/* GET /props: what the server is, in the manner of llama.cpp's: facts that clients ask for before
 * they ask anything else. */
#include "serve/server_int.h"

#include "base/version.h"

#include <inttypes.h>

static void put_f32(sl_jbuf *b, float x) {
    sl_jbuf_fmt(b, "%.9g", (double)x);
}

static void put_u32(sl_jbuf *b, uint32_t x) {
    sl_jbuf_fmt(b, "%" PRIu32, x);
}

/* What a request that is silent gets, a row a field. */
static void put_sampling(sl_jbuf *b, const sl_server *s) {
    const sl_sampling standard = sl_sampling_standard(&s->limits.gen);
    const char *comma = "";
#define SL_SAMPLING(type, name, ...)                                                               \
    sl_jbuf_fmt(b, "%s\"" #name "\":", comma);                                                     \
    put_##type(b, standard.name);                                                                  \
    comma = ",";
#include "spec/sampling.def"
}

static void put_flag(sl_jbuf *b, const char *name, bool on) {
    sl_jbuf_fmt(b, "\"%s\":%s", name, on ? "true" : "false");
}

/* Its text; null: there is none. The one for tools is there where it is another one. */
static void put_source(sl_jbuf *b, const sl_chat *chat) {
    static const char *const names[] = {"chat_template", "chat_template_tool_use"};
    for (size_t i = 0; i < SL_LEN(names); i++) {
        sl_span text = chat ? sl_chat_source(chat, i > 0) : (sl_span){0};
        if (i > 0 && !text.data) continue;
        sl_jbuf_fmt(b, ",\"%s\":", names[i]);
        if (text.data)
            sl_jbuf_string(b, (const char *)text.data, text.len);
        else
            sl_jbuf_cstring(b, NULL);
    }
}

/* What its chat template says, and is known to do; null: there is none. */
static void put_template(sl_jbuf *b, const sl_server *s) {
    const sl_chat *chat = s->o.chat;
    put_source(b, chat);
    sl_jbuf_fmt(b, ",\"chat_template_caps\":");
    if (!chat) {
        sl_jbuf_cstring(b, NULL);
        return;
    }
    bool tools = s->style.tools != SL_TOOLS_NONE;
    sl_jbuf_put(b, "{", 1);
    put_flag(b, "supports_tools", tools);
    sl_jbuf_put(b, ",", 1);
    put_flag(b, "supports_tool_calls", tools);
    sl_jbuf_put(b, ",", 1);
    put_flag(b, "shows_tools", !s->style.generic);
    sl_jbuf_put(b, ",", 1);
    put_flag(b, "supports_reasoning_effort", sl_chat_has_effort(chat));
    sl_jbuf_put(b, ",", 1);
    put_flag(b, "supports_enable_thinking", sl_chat_has_switch(chat));
    sl_jbuf_fmt(b, ",\"tool_format\":");
    sl_jbuf_cstring(b, sl_tool_format_name(s->style.tools));
    sl_jbuf_put(b, "}", 1);
}

enum MHD_Result sl_props_answer(sl_call *call, const char *rest) {
    (void)rest;
    sl_server *s = call->server;
    const sl_model_spec *m = sl_engine_spec(s->o.engine);
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"model_alias\":");
    sl_jbuf_cstring(&b, s->model);
    sl_jbuf_fmt(&b, ",\"architecture\":");
    sl_jbuf_cstring(&b, m->arch);
    sl_jbuf_fmt(&b,
                ",\"n_ctx_train\":%" PRIu32 ",\"n_vocab\":%" PRIu32 ",\"n_params\":%" PRIu64
                ",\"n_params_active\":%" PRIu64 ",\"total_slots\":%" PRIu32
                ",\"default_generation_settings\":{\"n_ctx\":%" PRIu32 ",\"params\":{",
                m->max_position, m->vocab, m->n_params, m->n_params_active, sl_server_slots(s),
                s->limits.context);
    put_sampling(&b, s);
    sl_jbuf_fmt(&b, "}},\"kv_type\":\"%s\"", sl_kv_type_names[m->kv_type]);
    put_template(&b, s);
    sl_jbuf_fmt(&b, ",\"modalities\":{\"vision\":false,\"audio\":false},\"system_fingerprint\":");
    sl_jbuf_cstring(&b, s->fingerprint[0] ? s->fingerprint : NULL);
    sl_jbuf_fmt(&b, ",\"build_info\":");
    sl_jbuf_cstring(&b, sl_version());
    sl_jbuf_put(&b, "}", 1);
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &b);
}
