/* Any bytes as the body of a request, the first one chooses the path: it is parsed within its
 * limits or refused with an answer that is valid JSON, in its dialect. */
#include "serve/dialect.h"

#include "mutate.h"

#include <math.h>

const size_t fuzz_prefix = 1;

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const sl_api_limits limits = {
    .model = "m",
    .vocab = 100,
    .context = 50,
    .gen = {.temperature = NAN, .top_p = 0.5f, .top_k = 3},
};

static void check_json(sl_jbuf *b) {
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    SL_ASSERT(sl_json_parse("answer", (sl_span){(uint8_t *)b->data, b->len}, &doc, &err) == SL_OK);
    sl_json_doc_free(doc);
    sl_jbuf_free(b);
}

static void check_refusal(const sl_dialect *d, const sl_api_error *e) {
    sl_jbuf b = sl_jbuf_init();
    SL_ASSERT(e->http >= 400 && e->http < 600 && e->type && e->msg[0]);
    d->error(&b, e);
    check_json(&b);
}

/* What an answer repeats of its request. */
static void check_echo(const sl_api_params *p) {
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"id\":0");
    sl_jbuf_put(&b, p->extra.echo.data, p->extra.echo.len);
    sl_jbuf_put(&b, "}", 1);
    check_json(&b);
}

/* The conversation as a template with all of its turns writes it: parts that follow one another in
 * memory. */
static void check_chat(const sl_api_params *p) {
    static const char source[] =
        "{{ bos_token }}{% for t in tools or [] %}{{ t|tojson(indent=2) }}{% endfor %}"
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content|trim }}{{ m.content[1:-1] }}"
        "{% if m.tool_calls is iterable %}{% for c in m.tool_calls %}{{ c.function.name }}"
        "{% for k, v in c.function.arguments.items() %}{{ k ~ v }}{% endfor %}{% endfor %}"
        "{% endif %}{{ m.reasoning_content.split('.')[-1] if m.reasoning_content }}{% endfor %}"
        "{% if enable_thinking is false %}</think>{% endif %}";
    static sl_chat *chat;
    sl_chat_text text = {0};
    sl_err err = {0};
    const sl_span t = {(const uint8_t *)source, sizeof source - 1};
    if (!chat) SL_ASSERT(sl_chat_parse("t", t, (sl_json){0}, &chat, &err) == SL_OK);
    const sl_chat_options o = {.add_generation_prompt = !p->no_generation,
                               .tools = p->tools,
                               .kwargs = p->template_kwargs,
                               .now_s = 1};
    if (sl_chat_render(chat, p->messages, p->n_messages, o, &text, &err) != SL_OK) {
        SL_ASSERT(err.msg[0]);
        return;
    }
    size_t n = 0;
    for (size_t j = 0; j < text.n_parts; j++) {
        SL_ASSERT((const char *)text.parts[j].text.data == text.bytes + n);
        n += text.parts[j].text.len;
    }
    SL_ASSERT(n == text.n_bytes);
    sl_chat_text_free(&text);
}

static void check_params(const sl_api_params *p) {
    sl_err err = {0};
    SL_ASSERT(sl_sampling_check(&p->sampling, limits.vocab, &err) == SL_OK);
    SL_ASSERT(p->n_stop <= SL_STOP_MAX_STRINGS && p->n_stop_ids <= SL_MAX_STOP_IDS);
    sl_stop *stop = NULL;
    SL_ASSERT(sl_stop_create(p->stop, p->n_stop, &stop, &err) == SL_OK);
    sl_stop_free(stop);
    if (p->kind == SL_API_CHAT) SL_ASSERT(p->n_messages > 0 && p->messages);
    if (p->kind == SL_API_CHAT) check_chat(p);
    for (size_t i = 0; i < p->n_messages; i++) SL_ASSERT(p->messages[i].role.data);
    SL_ASSERT(p->n >= 1 && p->n * SL_MAX(p->n_prompts, 1u) <= SL_API_MAX_CHOICES);
    SL_ASSERT(p->n_files <= SL_API_MAX_FILES && (p->n_files == 0 || p->file));
    for (size_t i = 0; i < p->n_files; i++) SL_ASSERT(p->file[i].text.data);
    SL_ASSERT(p->n_bias_texts == 0 || p->bias_text);
    for (size_t i = 0; i < p->n_bias_texts; i++) SL_ASSERT(p->bias_text[i].text.len > 0);
    SL_ASSERT(!(p->suffix.len && (p->echo || p->truncate)));
    SL_ASSERT(p->n_top <= SL_MAX_LOGPROBS && (p->logprobs || p->n_top + p->n_scored == 0));
    const sl_report report = sl_api_report(p);
    SL_ASSERT(sl_report_check(&report, limits.vocab, &err) == SL_OK);
    if (p->kind == SL_API_COMPLETION) SL_ASSERT(p->n_prompts > 0);
    for (size_t i = 0; i < p->n_prompts; i++) {
        const sl_ids *ids = &p->prompts[i].ids;
        SL_ASSERT(ids->len > 0 || p->prompts[i].text.data || p->prompts[i].mixed.value);
        for (size_t j = 0; j < ids->len; j++) SL_ASSERT(ids->data[j] < limits.vocab);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0) return 0;
    sl_api_params p = {0};
    sl_api_error e = {0};
    sl_err err = {0};
    sl_span body = {data + 1, size - 1};
    sl_status st;
    static const sl_dialect_id dialects[] = {
        [0] = SL_DIALECT_COMPLETION, [1] = SL_DIALECT_CHAT,   [4] = SL_DIALECT_MESSAGES,
        [5] = SL_DIALECT_RESPONSES,  [6] = SL_DIALECT_INFILL, [7] = SL_DIALECT_CHAT};
    const sl_dialect *d = &sl_dialects[dialects[data[0] & 7]];
    switch (data[0] & 7) {
    case 0:
    case 1:
    case 4:
    case 5:
    case 6:
        st = sl_dialect_read(d, body, &limits, &p, &e);
        if (st == SL_OK) check_params(&p);
        if (st == SL_OK) check_echo(&p);
        if (st == SL_OK) SL_ASSERT(sl_api_params_forget(&p, &err) == SL_OK && !p.doc);
        break;
    case 2:
        st = sl_api_tokenize_parse(body, &limits, &p, &e);
        break;
    default:
        st = sl_api_detokenize_parse(body, &limits, &p, &e);
    }
    if (st == SL_OK)
        sl_api_params_free(&p);
    else
        check_refusal(d, &e);
    return 0;
}
