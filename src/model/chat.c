#include "model/chat.h"

#include "base/mem.h"
#include "format/gguf.h"
#include "format/json.h"
#include "format/map.h"

#include <sodium.h>
#include <stdio.h>

#define MAX_TEMPLATE (1u << 20)  /* bytes of a template */
#define MAX_CONFIG   (64u << 20) /* bytes of tokenizer_config.json */
/* Most literal bytes and most parts that one message adds, whatever the row. */
#define MESSAGE_BYTES 96u
#define MESSAGE_PARTS 9u
/* What templates of the [INST] styles ask the tokenizer's configuration for. */
#define BOS "<s>"
#define EOS "</s>"

typedef enum chat_style {
    STYLE_PLAIN, /* every message as <|im_start|>role\ncontent<|im_end|>\n */
    STYLE_QWEN,  /* the same, but tool results are a user's, in <tool_response> */
    STYLE_QWEN3, /* and an assistant's thoughts are kept only after the last question */
    STYLE_INST,  /* questions in [INST], strictly in turn with answers, no system message */
    STYLE_INST_01,
    STYLE_INST_SYSTEM, /* which may begin with a system message, said with the first question */
} chat_style;

/* Around a question and an answer in the [INST] styles, from STYLE_INST on. */
static const struct {
    const char *ask, *asked, *answer, *answered;
} inst[] = {
    {"[INST] ", " [/INST]", "", EOS},
    {"[INST] ", " [/INST]", "", EOS " "},
    {" [INST] ", " [/INST]", " ", EOS},
};

struct sl_chat {
    const char *sha256; /* of the template's text, as published */
    const char *name;
    chat_style style;
    const char *system;     /* said when the conversation opens without a system message, or NULL */
    const char *opening;    /* after <|im_start|>assistant\n in a generation prompt */
    const char *unthinking; /* more opening, when the client wants no thoughts */
};

static const sl_chat table[] = {
    {"e772b6ad1ea2a9b717ead97c3d9266a75e14489ec55a751b956003420d7b4981", "ChatML", STYLE_PLAIN,
     NULL, "", ""},
    {"872be49dbb638044ad01b60388f48d469ff2980e5f0dccdc22ec907db54d0788", "SmolLM2-Instruct",
     STYLE_PLAIN, "You are a helpful AI assistant named SmolLM, trained by Hugging Face", "", ""},
    {"a55ee1b1660128b7098723e0abcd92caa0788061051c62d51cbe87d9cf1974d8", "Qwen3", STYLE_QWEN3, NULL,
     "", "<think>\n\n</think>\n\n"},
    {"64f85b198065d0fba2a81f37e10ed68161ce2c19a754c7100e67e0ca2ee9c326", "Qwen3-Instruct-2507",
     STYLE_QWEN, NULL, "", ""},
    {"3802169b2a02b81e6adb7ab4f64f91ff02db753c8c3a64a01c35192d3a61d8d7", "Qwen3-Thinking-2507",
     STYLE_QWEN3, NULL, "<think>\n", ""},
    {"cd8e9439f0570856fd70470bf8889ebd8b5d1107207f67a5efb46e342330527f", "Qwen2.5-Instruct",
     STYLE_QWEN, "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.", "", ""},
    {"26a59556925c987317ce5291811ba3b7f32ec4c647c400c6cc7e3a9993007ba7", "Mixtral-Instruct-2023",
     STYLE_INST, NULL, "", ""},
    {"7e995b379ec01747807246483647cd99030abf331653f1119e16d7ac041a3495", "Mistral-Instruct-0.1",
     STYLE_INST_01, NULL, "", ""},
    {"796853172235ab3aaa4810013ddfe2eab481bda3306dad4f700c00d436eed596", "Mixtral-Instruct",
     STYLE_INST_SYSTEM, NULL, "", ""},
};

const sl_chat *sl_chat_find(const char *sha256_hex) {
    for (size_t i = 0; i < SL_LEN(table); i++)
        if (strcmp(sha256_hex, table[i].sha256) == 0) return &table[i];
    return NULL;
}

sl_status sl_chat_recognise(const char *name, sl_span template_text, sl_chat **out, sl_err *err) {
    unsigned char hash[crypto_hash_sha256_BYTES];
    char hex[2 * sizeof hash + 1];
    crypto_hash_sha256(hash, template_text.data ? template_text.data : hash, template_text.len);
    sodium_bin2hex(hex, sizeof hex, hash, sizeof hash);
    const sl_chat *row = sl_chat_find(hex);
    if (row) {
        sl_chat *chat = sl_alloc(1, sizeof *chat);
        if (!chat) return sl_fail(err, SL_ERR_NOMEM, "%s: chat template", name);
        *chat = *row;
        *out = chat;
        return SL_OK;
    }
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "%s: chat template of %zu bytes with SHA-256 %s is not one of the %zu known ones", name,
        template_text.len, hex, SL_LEN(table));
}

static sl_span text_of(const char *s) {
    return (sl_span){(const uint8_t *)s, strlen(s)};
}

static bool same(sl_span a, const char *b) {
    return a.len == strlen(b) && memcmp(a.data, b, a.len) == 0;
}

/* The special token `key` of tokenizer_config.json, a string or an object with its content, must be
 * what the renderer writes. */
static sl_status check_special(sl_json root, const char *key, const char *want, sl_err *err) {
    sl_json v = sl_json_get(root, key);
    sl_span have;
    if (sl_json_kind_of(v) == SL_JSON_OBJECT) v = sl_json_get(v, "content");
    if (!sl_json_as_span(v, &have))
        return sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED, "missing, the template needs it");
    if (!same(have, want))
        return sl_json_fail(root, key, err, SL_ERR_UNSUPPORTED, "\"%.40s\", not \"%s\"",
                            (const char *)have.data, want);
    return SL_OK;
}

static sl_status check_config(const char *path, const sl_chat *chat, sl_err *err) {
    sl_json_doc *doc = NULL;
    if (chat->style < STYLE_INST) return SL_OK;
    sl_status st = sl_json_load(path, MAX_CONFIG, &doc, err);
    if (st == SL_ERR_NOTFOUND)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: missing, the chat template needs bos_token",
                       path);
    if (st == SL_OK) st = check_special(sl_json_root(doc), "bos_token", BOS, err);
    if (st == SL_OK) st = check_special(sl_json_root(doc), "eos_token", EOS, err);
    sl_json_doc_free(doc);
    return st;
}

static sl_status open_config(const char *path, sl_chat **out, sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_span text;
    sl_status st = sl_json_load(path, MAX_CONFIG, &doc, err);
    if (st != SL_OK) return st;
    sl_json root = sl_json_root(doc), v = sl_json_get(root, "chat_template");
    if (sl_json_kind_of(v) <= SL_JSON_NULL)
        st = sl_json_fail(root, "chat_template", err, SL_ERR_NOTFOUND, "the model has none");
    else if (!sl_json_as_span(v, &text))
        st = sl_json_fail(root, "chat_template", err, SL_ERR_UNSUPPORTED, "more than one template");
    else
        st = sl_chat_recognise(path, text, out, err);
    sl_json_doc_free(doc);
    return st;
}

/* The token that a key of a GGUF file names must be what the renderer writes. */
static sl_status check_gguf_special(const sl_gguf *g, const char *key, const char *want,
                                    sl_err *err) {
    const sl_gguf_kv *tokens = NULL;
    sl_span have = {0};
    uint64_t id = 0;
    size_t at = 0;
    sl_status st = sl_gguf_u64(g, key, SL_GGUF_REQUIRED, 0, UINT32_MAX, &id, err);
    if (st == SL_OK)
        st = sl_gguf_strings(g, "tokenizer.ggml.tokens", SL_GGUF_REQUIRED, &tokens, err);
    if (st != SL_OK) return st;
    bool found = id < tokens->count;
    for (uint64_t i = 0; found && i <= id; i++) found = sl_gguf_next_string(tokens, &at, &have);
    if (!found || !same(have, want))
        return sl_gguf_fail(g, key, err, SL_ERR_UNSUPPORTED,
                            "%llu is not the token \"%s\", which the chat template writes",
                            (unsigned long long)id, want);
    return SL_OK;
}

static sl_status open_gguf(const char *path, sl_chat **out, sl_err *err) {
    static const char key[] = "tokenizer.chat_template";
    sl_gguf *g = NULL;
    sl_span text = {0};
    sl_chat *chat = NULL;
    sl_status st = sl_gguf_open(path, &g, err);
    if (st == SL_OK) st = sl_gguf_string(g, key, SL_GGUF_OPTIONAL, &text, err);
    if (st == SL_OK && text.len == 0)
        st = sl_gguf_fail(g, key, err, SL_ERR_NOTFOUND, "the model has none");
    if (st == SL_OK) st = sl_chat_recognise(path, text, &chat, err);
    if (st == SL_OK && chat->style >= STYLE_INST)
        st = check_gguf_special(g, "tokenizer.ggml.bos_token_id", BOS, err);
    if (st == SL_OK && chat->style >= STYLE_INST)
        st = check_gguf_special(g, "tokenizer.ggml.eos_token_id", EOS, err);
    if (st == SL_OK)
        *out = chat;
    else
        sl_chat_free(chat);
    sl_gguf_close(g);
    return st;
}

sl_status sl_chat_open(const char *folder, sl_chat **out, sl_err *err) {
    char path[4096], config[4096];
    sl_map map = {0};
    sl_chat *chat = NULL;
    if (sl_gguf_is(folder)) return open_gguf(folder, out, err);
    if ((size_t)snprintf(config, sizeof config, "%s/tokenizer_config.json", folder) >=
        sizeof config)
        return sl_fail(err, SL_ERR_LIMIT, "%.80s...: path longer than %zu", folder, sizeof config);
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    sl_status st = sl_map_open(path, MAX_TEMPLATE, &map, err);
    if (st == SL_OK) {
        st = sl_chat_recognise(path, map.bytes, &chat, err);
        sl_map_close(&map);
    } else if (st == SL_ERR_NOTFOUND) {
        st = open_config(config, &chat, err);
    }
    if (st == SL_OK) st = check_config(config, chat, err);
    if (st == SL_OK)
        *out = chat;
    else
        sl_chat_free(chat);
    return st;
}

void sl_chat_free(sl_chat *chat) {
    sl_free(chat);
}

const char *sl_chat_name(const sl_chat *chat) {
    return chat->name;
}

static bool starts_with(sl_span s, const char *with) {
    size_t n = strlen(with);
    return s.len >= n && memcmp(s.data, with, n) == 0;
}

static bool ends_with(sl_span s, const char *with) {
    size_t n = strlen(with);
    return s.len >= n && memcmp(s.data + s.len - n, with, n) == 0;
}

/* Drops newlines, and newlines only, from the left, the right. */
static sl_span strip_left(sl_span s) {
    while (s.len && s.data[0] == '\n') s.data++, s.len--;
    return s;
}

static sl_span strip_right(sl_span s) {
    while (s.len && s.data[s.len - 1] == '\n') s.len--;
    return s;
}

/* Position of the first (or last) `what` in s, or s.len. */
static size_t find(sl_span s, const char *what, bool last) {
    size_t n = strlen(what), at = s.len;
    for (size_t i = 0; i + n <= s.len; i++) {
        if (memcmp(s.data + i, what, n) != 0) continue;
        at = i;
        if (!last) break;
    }
    return at;
}

static sl_span after(sl_span s, size_t at) {
    return (sl_span){s.data + at, s.len - at};
}

/* Appends a part, or lengthens the last one when it is of the same kind. Room was made for all. */
static void put(sl_chat_text *t, sl_span s, bool literal) {
    if (s.len == 0) return;
    memcpy(t->bytes + t->n_bytes, s.data, s.len);
    if (t->n_parts == 0 || t->parts[t->n_parts - 1].parse_special != literal) {
        sl_span at = {(const uint8_t *)t->bytes + t->n_bytes, 0};
        t->parts[t->n_parts++] = (sl_text_part){at, literal};
    }
    t->parts[t->n_parts - 1].text.len += s.len;
    t->n_bytes += s.len;
}

static void put_literal(sl_chat_text *t, const char *s) {
    put(t, text_of(s), true);
}

static void put_message(sl_chat_text *t, sl_span role, sl_span content) {
    put_literal(t, "<|im_start|>");
    put(t, role, false);
    put_literal(t, "\n");
    put(t, content, false);
    put_literal(t, "<|im_end|>\n");
}

/* Results of tools come as one user message for each run of them. */
static void put_tool(sl_chat_text *t, const sl_chat_message *m, size_t i, size_t n) {
    if (i == 0 || !same(m[i - 1].role, "tool")) put_literal(t, "<|im_start|>user");
    put_literal(t, "\n<tool_response>\n");
    put(t, m[i].content, false);
    put_literal(t, "\n</tool_response>");
    if (i + 1 == n || !same(m[i + 1].role, "tool")) put_literal(t, "<|im_end|>\n");
}

/* An assistant's message with its thoughts cut out, or set apart when it comes after the last
 * question of the user. */
static void put_thinker(sl_chat_text *t, const sl_chat_message *m, size_t i, size_t n,
                        size_t question) {
    sl_span content = m[i].content, thoughts = {content.data, 0};
    if (find(content, "</think>", false) < content.len) {
        thoughts.len = find(content, "</think>", false);
        thoughts = strip_right(thoughts);
        size_t open = find(thoughts, "<think>", true);
        if (open < thoughts.len) thoughts = after(thoughts, open + strlen("<think>"));
        thoughts = strip_left(thoughts);
        content = strip_left(after(content, find(content, "</think>", true) + strlen("</think>")));
    }
    if (i <= question || (i + 1 < n && thoughts.len == 0)) {
        put_message(t, m[i].role, content);
        return;
    }
    put_literal(t, "<|im_start|>");
    put(t, m[i].role, false);
    put_literal(t, "\n<think>\n");
    put(t, strip_right(thoughts), false);
    put_literal(t, "\n</think>\n\n");
    put(t, strip_left(content), false);
    put_literal(t, "<|im_end|>\n");
}

/* Index of the last thing the user asked (a tool's result in a user's message is no question). */
static size_t last_question(const sl_chat_message *m, size_t n) {
    for (size_t i = n; i-- > 0;)
        if (same(m[i].role, "user") && !(starts_with(m[i].content, "<tool_response>") &&
                                         ends_with(m[i].content, "</tool_response>")))
            return i;
    return n - 1;
}

/* Messages must come as the templates of the [INST] styles demand. */
static sl_status check_turns(const sl_chat *chat, const sl_chat_message *m, size_t n, sl_err *err) {
    size_t first = chat->style == STYLE_INST_SYSTEM && same(m[0].role, "system");
    for (size_t i = first; i < n; i++) {
        const char *want = (i - first) % 2 == 0 ? "user" : "assistant";
        if (!same(m[i].role, want))
            return sl_fail(err, SL_ERR_ARG,
                           "message %zu: role \"%.*s\" where the chat template of %s takes %s only",
                           i, (int)m[i].role.len, (const char *)m[i].role.data, chat->name, want);
    }
    return SL_OK;
}

static sl_status check_messages(const sl_chat *chat, const sl_chat_message *m, size_t n,
                                size_t *bytes, sl_err *err) {
    static const char *const roles[] = {"system", "user", "assistant", "tool"};
    if (n == 0) return sl_fail(err, SL_ERR_ARG, "a conversation needs at least one message");
    *bytes = MESSAGE_BYTES + strlen(chat->opening) + strlen(chat->unthinking) +
             (chat->system ? strlen(chat->system) : 0);
    for (size_t i = 0; i < n; i++) {
        bool known = false;
        for (size_t k = 0; k < SL_LEN(roles); k++) known |= same(m[i].role, roles[k]);
        if (!known)
            return sl_fail(err, SL_ERR_ARG,
                           "message %zu: role \"%.*s\" is not system, user, assistant or tool", i,
                           (int)SL_MIN(m[i].role.len, (size_t)40), (const char *)m[i].role.data);
        if (sl_utf8_valid_prefix(m[i].content) != m[i].content.len)
            return sl_fail(err, SL_ERR_ARG, "message %zu: not UTF-8 at byte %zu", i,
                           sl_utf8_valid_prefix(m[i].content));
        *bytes += MESSAGE_BYTES + m[i].role.len;
        if (m[i].content.len > SL_TOKENIZER_MAX_TEXT ||
            *bytes > SL_TOKENIZER_MAX_TEXT - m[i].content.len)
            return sl_fail(err, SL_ERR_LIMIT, "conversation longer than %u bytes",
                           SL_TOKENIZER_MAX_TEXT);
        *bytes += m[i].content.len;
    }
    return chat->style < STYLE_INST ? SL_OK : check_turns(chat, m, n, err);
}

static void put_turns(const sl_chat *chat, const sl_chat_message *m, size_t n, sl_chat_text *t) {
    size_t style = (size_t)chat->style - STYLE_INST, first = same(m[0].role, "system");
    put_literal(t, BOS);
    for (size_t i = first; i < n; i++) {
        bool asks = same(m[i].role, "user");
        put_literal(t, asks ? inst[style].ask : inst[style].answer);
        if (first && i == 1) {
            put(t, m[0].content, false);
            put_literal(t, "\n\n");
        }
        put(t, m[i].content, false);
        put_literal(t, asks ? inst[style].asked : inst[style].answered);
    }
}

static void put_all(const sl_chat *chat, const sl_chat_message *m, size_t n, sl_chat_text *t) {
    size_t question = last_question(m, n);
    if (chat->system && !same(m[0].role, "system")) {
        put_literal(t, "<|im_start|>system\n");
        put_literal(t, chat->system);
        put_literal(t, "<|im_end|>\n");
    }
    for (size_t i = 0; i < n; i++) {
        if (chat->style != STYLE_PLAIN && same(m[i].role, "tool"))
            put_tool(t, m, i, n);
        else if (chat->style == STYLE_QWEN3 && same(m[i].role, "assistant"))
            put_thinker(t, m, i, n, question);
        else
            put_message(t, m[i].role, m[i].content);
    }
}

sl_status sl_chat_render(const sl_chat *chat, const sl_chat_message *messages, size_t n,
                         sl_chat_options options, sl_chat_text *out, sl_err *err) {
    size_t bytes = 0;
    sl_status st = check_messages(chat, messages, n, &bytes, err);
    if (st != SL_OK) return st;
    sl_chat_text t = {0};
    t.bytes = sl_alloc(bytes, 1);
    t.parts = sl_alloc((n + 2) * MESSAGE_PARTS, sizeof *t.parts);
    if (!t.bytes || !t.parts) {
        sl_chat_text_free(&t);
        return sl_fail(err, SL_ERR_NOMEM, "conversation of %zu bytes", bytes);
    }
    if (chat->style >= STYLE_INST)
        put_turns(chat, messages, n, &t);
    else
        put_all(chat, messages, n, &t);
    if (options.add_generation_prompt && chat->style < STYLE_INST) {
        put_literal(&t, "<|im_start|>assistant\n");
        put_literal(&t, chat->opening);
        if (options.no_thinking) put_literal(&t, chat->unthinking);
    }
    *out = t;
    return SL_OK;
}

void sl_chat_text_free(sl_chat_text *text) {
    sl_free(text->parts);
    sl_free(text->bytes);
    *text = (sl_chat_text){0};
}

sl_status sl_chat_encode(const sl_chat *chat, const sl_tokenizer *tok,
                         const sl_chat_message *messages, size_t n, sl_chat_options options,
                         sl_ids *out, sl_err *err) {
    sl_chat_text text = {0};
    sl_status st = sl_chat_render(chat, messages, n, options, &text, err);
    if (st == SL_OK) st = sl_tokenizer_encode_parts(tok, text.parts, text.n_parts, false, out, err);
    sl_chat_text_free(&text);
    return st;
}
