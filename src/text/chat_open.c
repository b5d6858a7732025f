/* Finds and reads chat templates, what their texts say of the models, and what they show. */
#include "base/mem.h"
#include "format/gguf.h"
#include "format/map.h"
#include "text/chat_int.h"

#include <stdio.h>

#define MAX_CONFIG (64u << 20) /* bytes of tokenizer_config.json */

/* Appends a JSON string. */
static void put_string(char *to, size_t *n, size_t cap, sl_span s) {
    if (*n < cap) to[*n] = '"';
    ++*n;
    for (size_t i = 0; i < s.len; i++) {
        uint8_t c = s.data[i];
        char text[8];
        int k = c < 0x20 || c == '"' || c == '\\' ? snprintf(text, sizeof text, "\\u%04x", c)
                                                  : snprintf(text, sizeof text, "%c", c);
        for (int j = 0; j < k; j++, ++*n)
            if (*n < cap) to[*n] = text[j];
    }
    if (*n < cap) to[*n] = '"';
    ++*n;
}

/* What a template may name, as tokenizer_config.json and as GGUF files call it. */
static const struct {
    const char *name, *id_key;
} special[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
               {"eos_token", "tokenizer.ggml.eos_token_id"},
               {"unk_token", "tokenizer.ggml.unknown_token_id"},
               {"sep_token", "tokenizer.ggml.seperator_token_id"}, /* spelled so in the format */
               {"pad_token", "tokenizer.ggml.padding_token_id"},
               {"cls_token", "tokenizer.ggml.cls_token_id"},
               {"mask_token", "tokenizer.ggml.mask_token_id"}};
#define N_SPECIAL SL_LEN(special)

/* {"bos_token":"<s>",...}, of those that have data: n is what it takes, whatever fits is written.
 */
static void put_tokens(const sl_span token[N_SPECIAL], char *to, size_t *n, size_t cap) {
    bool first = true;
    *n = 0;
    if (cap) to[0] = '{';
    ++*n;
    for (size_t i = 0; i < N_SPECIAL; i++) {
        if (!token[i].data) continue;
        if (!first && *n < cap) to[*n] = ',';
        *n += !first;
        first = false;
        put_string(to, n, cap,
                   (sl_span){(const uint8_t *)special[i].name, strlen(special[i].name)});
        if (*n < cap) to[*n] = ':';
        ++*n;
        put_string(to, n, cap, token[i]);
    }
    if (*n < cap) to[*n] = '}';
    ++*n;
}

static sl_status keep_tokens(sl_chat *chat, const sl_span token[N_SPECIAL], sl_err *err) {
    size_t n = 0, cap;
    put_tokens(token, NULL, &n, 0);
    cap = n;
    char *text = sl_alloc(cap, 1);
    if (!text) return sl_fail(err, SL_ERR_NOMEM, "special tokens of a chat template");
    put_tokens(token, text, &n, cap);
    sl_status st =
        sl_json_parse("special tokens", (sl_span){(const uint8_t *)text, n}, &chat->tokens, err);
    sl_free(text);
    return st;
}

static sl_status read_tokens(sl_chat *chat, sl_json config, sl_err *err) {
    sl_span token[N_SPECIAL] = {{0}};
    for (size_t i = 0; i < N_SPECIAL; i++) {
        sl_json v = sl_json_get(config, special[i].name);
        if (sl_json_kind_of(v) == SL_JSON_OBJECT) v = sl_json_get(v, "content");
        (void)sl_json_as_span(v, &token[i]);
    }
    return keep_tokens(chat, token, err);
}

static sl_status read_gguf_tokens(sl_chat *chat, const sl_gguf *g, sl_err *err) {
    sl_span token[N_SPECIAL] = {{0}}, text = {0};
    uint64_t id[N_SPECIAL];
    const sl_gguf_kv *tokens = NULL;
    size_t at = 0;
    sl_status st = sl_gguf_strings(g, "tokenizer.ggml.tokens", SL_GGUF_OPTIONAL, &tokens, err);
    for (size_t i = 0; st == SL_OK && i < N_SPECIAL; i++) {
        id[i] = UINT64_MAX;
        st = sl_gguf_u64(g, special[i].id_key, SL_GGUF_OPTIONAL, 0, UINT32_MAX, &id[i], err);
    }
    for (uint64_t k = 0; st == SL_OK && tokens && k < tokens->count; k++) {
        if (!sl_gguf_next_string(tokens, &at, &text)) break;
        for (size_t i = 0; i < N_SPECIAL; i++)
            if (id[i] == k) token[i] = text;
    }
    return st == SL_OK ? keep_tokens(chat, token, err) : st;
}

static bool names(sl_span text, const char *word) {
    return memmem(text.data, text.len, word, strlen(word)) != NULL;
}

/* What the template's text says of its models: how they answer, what it can be told. */
static void note(sl_chat *chat, sl_span text, bool of_tools) {
    sl_answer_style style = sl_answer_style_of(text);
    if (of_tools || !chat->with_tools) chat->style.tools = style.tools;
    if (style.thought) chat->style.thought = style.thought;
    if (names(text, "enable_thinking"))
        chat->thinking = "enable_thinking";
    else if (!chat->thinking && names(text, "thinking is defined"))
        chat->thinking = "thinking";
    chat->takes_effort = chat->takes_effort || names(text, "reasoning_effort");
    if (names(text, "reasoning_content"))
        chat->thoughts = "reasoning_content";
    else if (!chat->thoughts && names(text, "message.thinking"))
        chat->thoughts = "thinking";
}

static sl_status read_text(sl_chat *chat, const char *name, sl_span text, bool of_tools,
                           sl_err *err) {
    sl_status st = sl_jinja_parse(name, text, of_tools ? &chat->with_tools : &chat->plain, err);
    if (st != SL_OK) return st;
    note(chat, text, of_tools);
    char *copy = sl_alloc(text.len + 1, 1);
    if (!copy) return sl_fail(err, SL_ERR_NOMEM, "%s: %zu bytes", name, text.len);
    if (text.len) memcpy(copy, text.data, text.len);
    chat->source[of_tools] = copy;
    chat->n_source[of_tools] = text.len;
    return SL_OK;
}

/* ---- what a template shows ---- */

/* Whether the text of `messages` has all of the words. */
static bool shows(const sl_chat *chat, sl_json messages, sl_json tools, const char *const *word,
                  size_t n) {
    sl_chat_message m[4] = {{{0}}};
    sl_chat_text text = {0};
    sl_err err = {0};
    size_t n_messages = sl_json_count(messages);
    const sl_chat_options options = {.now_s = 1, .tools = tools, .as_shown = true};
    for (size_t i = 0; i < n_messages; i++) {
        m[i].fields = sl_json_at(messages, i);
        if (!sl_json_as_span(sl_json_get(m[i].fields, "role"), &m[i].role)) return false;
        (void)sl_json_as_span(sl_json_get(m[i].fields, "content"), &m[i].content);
    }
    bool all = sl_chat_render(chat, m, n_messages, options, &text, &err) == SL_OK;
    for (size_t i = 0; i < n && all; i++)
        all = memmem(text.bytes, text.n_bytes, word[i], strlen(word[i])) != NULL;
    if (all) all = !memmem(text.bytes, text.n_bytes, "None", 4);
    sl_chat_text_free(&text);
    return all;
}

/* Templates differ in what they take for the arguments of a call and for a missing content. */
static void try_calls(sl_chat *chat, sl_json messages) {
    static const char *const words[] = {"look_up", "harbour"};
    for (unsigned i = 0; i < 4 && !chat->shows_calls; i++) {
        chat->text_arguments = i & 2;
        chat->null_content = i & 1;
        chat->shows_calls = shows(chat, messages, (sl_json){0}, words, SL_LEN(words));
    }
    if (!chat->shows_calls) chat->text_arguments = chat->null_content = false;
}

static sl_status try_template(sl_chat *chat, sl_err *err) {
    static const char text[] =
        "{\"calls\":[{\"role\":\"user\",\"content\":\"where\"},{\"role\":\"assistant\",\"content\":"
        "null,\"tool_calls\":[{\"id\":\"abcdefghi\",\"type\":\"function\",\"function\":{\"name\":"
        "\"look_up\",\"arguments\":\"{\\\"place\\\":\\\"harbour\\\"}\"}}]},{\"role\":\"tool\","
        "\"tool_call_id\":\"abcdefghi\",\"name\":\"look_up\",\"content\":\"here\"}],"
        "\"system\":[{\"role\":\"system\",\"content\":\"be brief\"},"
        "{\"role\":\"user\",\"content\":\"where\"}],"
        "\"user\":[{\"role\":\"user\",\"content\":\"where\"}],"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"description\":"
        "\"finds\",\"parameters\":{\"type\":\"object\",\"properties\":{\"place\":{\"type\":"
        "\"string\",\"description\":\"harbour\"}},\"required\":[\"place\"]}}}],"
        "\"silent\":[{\"type\":\"function\",\"function\":{\"name\":\"look_up\",\"parameters\":{"
        "\"type\":\"object\",\"properties\":{\"place\":{\"type\":\"string\"}}}}}]}";
    static const char *const tool[] = {"look_up", "place"}, *const system[] = {"be brief"};
    sl_json_doc *doc = NULL;
    sl_status st =
        sl_json_parse("chat", (sl_span){(const uint8_t *)text, sizeof text - 1}, &doc, err);
    if (st != SL_OK) return st;
    sl_json root = sl_json_root(doc);
    try_calls(chat, sl_json_get(root, "calls"));
    chat->shows_tools =
        shows(chat, sl_json_get(root, "user"), sl_json_get(root, "tools"), tool, SL_LEN(tool));
    chat->wants_said = chat->shows_tools && !shows(chat, sl_json_get(root, "user"),
                                                   sl_json_get(root, "silent"), tool, SL_LEN(tool));
    chat->takes_system =
        shows(chat, sl_json_get(root, "system"), (sl_json){0}, system, SL_LEN(system));
    sl_json_doc_free(doc);
    return SL_OK;
}

static sl_status finish(sl_status st, sl_chat *chat, sl_chat **out, sl_err *err) {
    if (st == SL_OK) st = sl_chat_parse_fragments(chat, err);
    if (st == SL_OK) st = try_template(chat, err);
    chat->style.generic = !chat->shows_tools;
    if (st == SL_OK)
        *out = chat;
    else
        sl_chat_free(chat);
    return st;
}

sl_status sl_chat_parse(const char *name, sl_span template_text, sl_json tokens, sl_chat **out,
                        sl_err *err) {
    sl_chat *chat = sl_alloc(1, sizeof *chat);
    if (!chat) return sl_fail(err, SL_ERR_NOMEM, "%s: chat template", name);
    sl_status st = read_text(chat, name, template_text, false, err);
    if (st == SL_OK) st = read_tokens(chat, tokens, err);
    return finish(st, chat, out, err);
}

/* A list of {"name", "template"}: those that transformers would choose. */
static sl_status read_several(const char *path, sl_json list, sl_chat *chat, sl_err *err) {
    sl_status st = SL_OK;
    for (size_t i = 0; i < sl_json_count(list) && st == SL_OK; i++) {
        sl_span name, text;
        sl_json one = sl_json_at(list, i);
        if (!sl_json_as_span(sl_json_get(one, "name"), &name) ||
            !sl_json_as_span(sl_json_get(one, "template"), &text))
            return sl_json_fail(one, NULL, err, SL_ERR_FORMAT, "not a name with a template");
        bool plain = !strcmp((const char *)name.data, "default");
        bool tools = !strcmp((const char *)name.data, "tool_use");
        if (!plain && !tools) continue;
        if (plain ? chat->plain : chat->with_tools)
            return sl_json_fail(one, NULL, err, SL_ERR_FORMAT, "a second one of this name");
        st = read_text(chat, path, text, tools, err);
    }
    if (st == SL_OK && !chat->plain)
        st = sl_json_fail(list, NULL, err, SL_ERR_UNSUPPORTED, "no template named \"default\"");
    return st;
}

/* "chat_template" of a JSON file. SL_ERR_NOTFOUND: it has none. */
static sl_status read_config(const char *path, sl_json root, sl_chat *chat, sl_err *err) {
    sl_json v = sl_json_get(root, "chat_template");
    sl_span text;
    if (sl_json_as_span(v, &text)) return read_text(chat, path, text, false, err);
    if (sl_json_kind_of(v) == SL_JSON_ARRAY) return read_several(path, v, chat, err);
    if (sl_json_kind_of(v) <= SL_JSON_NULL)
        return sl_json_fail(root, "chat_template", err, SL_ERR_NOTFOUND, "the model has none");
    return sl_json_fail(root, "chat_template", err, SL_ERR_FORMAT, "neither text nor a list");
}

/* A file that is a template. */
static sl_status read_file(const char *path, sl_chat *chat, sl_err *err) {
    sl_map map = {0};
    sl_status st = sl_map_open(path, SL_JINJA_MAX_SOURCE, &map, err);
    if (st != SL_OK) return st;
    st = read_text(chat, path, map.bytes, false, err);
    sl_map_close(&map);
    return st;
}

static sl_status find_template(const char *folder, const char *config, sl_json root, sl_chat *chat,
                               sl_err *err) {
    char path[4096];
    sl_json_doc *doc = NULL;
    snprintf(path, sizeof path, "%s/chat_template.jinja", folder);
    sl_status st = read_file(path, chat, err);
    if (st != SL_ERR_NOTFOUND) return st;
    snprintf(path, sizeof path, "%s/chat_template.json", folder);
    st = sl_json_load(path, MAX_CONFIG, &doc, err);
    if (st == SL_OK) st = read_config(path, sl_json_root(doc), chat, err);
    sl_json_doc_free(doc);
    return st == SL_ERR_NOTFOUND ? read_config(config, root, chat, err) : st;
}

static sl_status open_gguf(const char *path, const char *file, sl_chat **out, sl_err *err) {
    static const char key[] = "tokenizer.chat_template";
    sl_gguf *g = NULL;
    sl_span text = {0};
    sl_chat *chat = sl_alloc(1, sizeof *chat);
    if (!chat) return sl_fail(err, SL_ERR_NOMEM, "%s: chat template", path);
    sl_status st = sl_gguf_open(path, &g, err);
    if (st == SL_OK && !file) st = sl_gguf_string(g, key, SL_GGUF_OPTIONAL, &text, err);
    if (st == SL_OK && !file && text.len == 0)
        st = sl_gguf_fail(g, key, err, SL_ERR_NOTFOUND, "the model has none");
    if (st == SL_OK)
        st = file ? read_file(file, chat, err) : read_text(chat, path, text, false, err);
    if (st == SL_OK) st = read_gguf_tokens(chat, g, err);
    sl_gguf_close(g);
    return finish(st, chat, out, err);
}

sl_status sl_chat_open(const char *folder, sl_chat **out, sl_err *err) {
    return sl_chat_open_with(folder, NULL, out, err);
}

sl_status sl_chat_open_with(const char *folder, const char *file, sl_chat **out, sl_err *err) {
    char config[4096];
    sl_json_doc *doc = NULL;
    if (sl_gguf_is(folder)) return open_gguf(folder, file, out, err);
    sl_chat *chat = sl_alloc(1, sizeof *chat);
    if (!chat) return sl_fail(err, SL_ERR_NOMEM, "%s: chat template", folder);
    sl_status st = SL_OK;
    if ((size_t)snprintf(config, sizeof config, "%s/tokenizer_config.json", folder) >=
        sizeof config)
        st = sl_fail(err, SL_ERR_LIMIT, "%.80s...: path longer than %zu", folder, sizeof config);
    if (st == SL_OK) st = sl_json_load(config, MAX_CONFIG, &doc, err);
    if (st == SL_ERR_NOTFOUND)
        st = sl_json_parse(config, (sl_span){(const uint8_t *)"{}", 2}, &doc, err);
    sl_json root = st == SL_OK ? sl_json_root(doc) : (sl_json){0};
    if (st == SL_OK)
        st = file ? read_file(file, chat, err) : find_template(folder, config, root, chat, err);
    if (st == SL_OK) st = read_tokens(chat, root, err);
    st = finish(st, chat, out, err);
    sl_json_doc_free(doc);
    return st;
}

void sl_chat_free(sl_chat *chat) {
    if (!chat) return;
    sl_jinja_free(chat->plain);
    sl_jinja_free(chat->with_tools);
    for (size_t i = 0; i < SL_LEN(chat->source); i++) sl_free(chat->source[i]);
    for (size_t i = 0; i < SL_CHAT_FRAGMENTS; i++) sl_jinja_free(chat->fragment[i]);
    sl_json_doc_free(chat->tokens);
    sl_free(chat);
}
