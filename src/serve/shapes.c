/* The shape of an answer (grammar/grammar.h), put together of what a request asks for and of how
 * the model's answers are made: reasoning before it, calls of tools beside it. */
#include "serve/shapes_int.h"

#include "grammar/guide.h"

#include <stdio.h>

/* White space beside a thought, which is not shown. */
#define SPACE "{\"regex\":\"[ \\\\n\\\\r\\\\t]{0,4}\"}"

/* What of a header of gpt-oss stands before the function that is called. */
#define RECIPIENT " to=functions."

/* ---- reasoning ---- */

#define LAST_TOKENS 8u /* of a prompt: a marker of a thought, and white space */

/* Whether the prompt ends with that text, but for white space. */
static bool prompt_ends_with(const sl_call *call, const char *text) {
    const sl_tokenizer *tok = call->server->o.tokenizer;
    const sl_ids ids = call->prompt[0];
    char tail[LAST_TOKENS * SL_DETOK_MAX_OUT];
    size_t n = 0, len = strlen(text);
    sl_detok d = {.started = true};
    for (size_t i = ids.len - SL_MIN(ids.len, (size_t)LAST_TOKENS); i < ids.len; i++)
        if (ids.data[i] < sl_tokenizer_vocab_size(tok))
            n += sl_detok_push(&d, tok, ids.data[i], false, tail + n);
    while (n && memchr(" \n\r\t", tail[n - 1], 4)) n--;
    return n >= len && !memcmp(tail + n - len, text, len);
}

bool sl_call_thinks(const sl_call *call, bool *opened) {
    const sl_api_params *p = &call->params;
    const char *open, *close;
    *opened = false;
    if (p->kind != SL_API_CHAT || !sl_answer_thought_marks(&call->server->style, &open, &close))
        return false;
    int given = p->go_on ? sl_call_given_thought(call) : 0;
    *opened = given > 0 || (given == 0 && prompt_ends_with(call, open));
    if (given != 0) return *opened;
    bool off = p->thinking == SL_CHAT_OFF || sl_span_is(p->effort, "none");
    return *opened || !(off || prompt_ends_with(call, close));
}

/* What comes before the answer itself, as parts of a list. */
static void put_thought(sl_jbuf *b, const sl_call *call) {
    const sl_tokenizer *tok = call->server->o.tokenizer;
    const char *open = "", *close = "";
    bool opened;
    if (!sl_call_thinks(call, &opened) ||
        !sl_answer_thought_marks(&call->server->style, &open, &close))
        return;
    if (!opened) {
        sl_shape_put(b, "{\"maybe\":{\"seq\":[" SPACE ",");
        sl_shape_text(b, tok, open);
    }
    sl_shape_marked(b, tok, "until", close);
    sl_shape_put(b, "," SPACE);
    sl_shape_put(b, opened ? "," : "]}},");
}

/* ---- the whole ---- */

static void put_described(sl_jbuf *b, const sl_api_params *p) {
    static const char *const part[] = {
        [SL_API_REGEX] = "regex", [SL_API_GBNF] = "gbnf", [SL_API_CHOICE] = "choice"};
    if (p->shape == SL_API_JSON) {
        sl_shape_put(b, "{\"json\":{\"type\":\"object\"}}");
    } else if (p->shape == SL_API_SCHEMA) {
        sl_shape_schema(b, p->shape_of, p->shape_of);
    } else {
        sl_jbuf_fmt(b, "{\"%s\":", part[p->shape]);
        sl_shape_json(b, p->shape_of);
        sl_shape_put(b, "}");
    }
}

/* Of gpt-oss: in its final channel, after what it says in others; or calls instead. */
static void put_final(sl_jbuf *b, const sl_call *call) {
    const sl_tokenizer *tok = call->server->o.tokenizer;
    bool calls = call->params.tools.value != NULL;
    sl_shape_put(b, calls ? "{\"or\":[{\"seq\":[" : "{\"seq\":[");
    sl_shape_marked(b, tok, "until", "<|channel|>final");
    sl_shape_put(b, ",");
    sl_shape_marked(b, tok, "until", "<|message|>");
    sl_shape_put(b, ",");
    put_described(b, &call->params);
    sl_shape_put(b, "]}");
    if (!calls) return;
    sl_shape_put(b, ",");
    sl_shape_marked(b, tok, "without", "<|channel|>final");
    sl_shape_put(b, "]}");
}

/* Behind a call: what closes the tag that it began with. It may be left out, but models whose
 * tokens have the end of the arguments and the beginning of this in one have to be able to say
 * them. */
static void put_closing(sl_jbuf *b, const sl_call *call, const sl_call_form *form) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyz_";
    char tag[32];
    size_t n = form->before[0] == '<' ? strspn(form->before + 1, letters) : 0;
    if (n == 0 || n > sizeof tag - 4 || form->before[n + 1] != '>') return;
    snprintf(tag, sizeof tag, "</%.*s>", (int)n, form->before + 1);
    if (strstr(form->behind, tag)) return; /* the call has it */
    sl_shape_put(b, ",{\"maybe\":{\"seq\":[" SPACE ",");
    sl_shape_text(b, call->server->o.tokenizer, tag);
    sl_shape_put(b, SPACE "]}}");
}

/* A call that has to be made. */
static sl_status put_required(sl_jbuf *b, const sl_call *call, const sl_call_form *form,
                              sl_shape_how *how, sl_api_error *e) {
    const sl_tokenizer *tok = call->server->o.tokenizer;
    sl_shape_put(b, "{\"seq\":[");
    if (call->server->style.tools == SL_TOOLS_HARMONY) {
        sl_shape_marked(b, tok, "until", RECIPIENT);
        sl_shape_put(b, ",");
    } else {
        put_thought(b, call);
        sl_shape_text(b, tok, form->before);
    }
    sl_status st = sl_shape_calls(b, call, form, how, e);
    put_closing(b, call, form);
    sl_shape_put(b, "]}");
    return st;
}

/* An answer that begins like a call is one; others are not. */
static sl_status put_first_call(sl_jbuf *b, const sl_call *call, const sl_call_form *form,
                                sl_shape_how *how, sl_api_error *e) {
    sl_shape_put(b, "{\"seq\":[");
    put_thought(b, call);
    sl_shape_put(b, "{\"or\":[{\"seq\":[" SPACE ",");
    sl_shape_text(b, call->server->o.tokenizer, form->before);
    sl_status st = sl_shape_calls(b, call, form, how, e);
    sl_shape_put(b,
                 "," SPACE
                 "]},{\"seq\":[{\"regex\":\"[^{\\\\[<| \\\\n\\\\r\\\\t]\"},{\"rest\":true}]}]}]}");
    return st;
}

/* Calls wherever the model makes one: their arguments are what strict functions take. */
static sl_status put_free_calls(sl_jbuf *b, const sl_call *call, const sl_call_form *form,
                                sl_shape_how *how, sl_api_error *e) {
    const sl_tokenizer *tok = call->server->o.tokenizer;
    const char *opening = form->opening, *before = form->before;
    if (call->server->style.tools == SL_TOOLS_HARMONY) opening = before = RECIPIENT;
    if (!opening) return put_first_call(b, call, form, how, e);
    sl_shape_put(b, "{\"seq\":[{\"many\":{\"seq\":[");
    sl_shape_marked(b, tok, "until", opening);
    sl_shape_put(b, ",");
    sl_shape_text(b, tok, strstr(before, opening) + strlen(opening));
    sl_status st = sl_shape_calls(b, call, form, how, e);
    sl_shape_put(b, "]}},");
    sl_shape_marked(b, tok, "without", opening);
    sl_shape_put(b, "]}");
    return st;
}

/* Functions whose calls the shape describes have names that stand for themselves. */
static sl_status check_names(const sl_call *call, sl_api_error *e) {
    const sl_json tools = call->params.tools;
    for (size_t i = 0; i < sl_json_count(tools); i++) {
        sl_span name = {0};
        if (!sl_json_as_span(sl_json_get(sl_tool_function(tools, i), "name"), &name) ||
            !sl_answer_is_plain_name(name))
            return sl_api_error_bad(e, "tools",
                                    "tools[%zu]: a function is called by its name only without "
                                    "white space, quotes and brackets in it",
                                    i);
    }
    return SL_OK;
}

static bool any_strict(const sl_api_params *p) {
    bool any = false;
    for (size_t i = 0; i < sl_json_count(p->tools); i++) {
        sl_json f = sl_tool_function(p->tools, i);
        if (p->forced.data &&
            !sl_json_is_text(sl_json_get(f, "name"), (const char *)p->forced.data))
            continue;
        any = any || sl_tool_is_strict(f);
    }
    return any;
}

/* Calls, of the first of which the opening is there. */
static sl_status put_behind_opening(sl_jbuf *b, const sl_call *call, const sl_call_form *form,
                                    sl_shape_how *how, sl_api_error *e) {
    const char *behind = strstr(form->before, form->opening) + strlen(form->opening);
    sl_status st = check_names(call, e);
    sl_shape_text(b, call->server->o.tokenizer, behind);
    if (st == SL_OK) st = sl_shape_calls(b, call, form, how, e);
    sl_shape_put(b, ",");
    return st == SL_OK ? put_free_calls(b, call, form, how, e) : st;
}

/* What was asked for; where there are tools, a call instead. */
static sl_status put_answer(sl_jbuf *b, const sl_call *call, sl_shape_how *how, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    const sl_tokenizer *tok = call->server->o.tokenizer;
    sl_call_form form = {0};
    if (p->kind == SL_API_CHAT && call->server->style.tools == SL_TOOLS_HARMONY) {
        put_final(b, call);
        return SL_OK;
    }
    bool opened;
    if (!p->tools.value && !sl_call_thinks(call, &opened)) {
        put_described(b, p);
        return SL_OK;
    }
    sl_shape_put(b, "{\"seq\":[");
    put_thought(b, call);
    if (!p->tools.value) {
        put_described(b, p);
        sl_shape_put(b, "]}");
        return SL_OK;
    }
    if (!sl_answer_call_form(&call->server->style, tok, &form) || !form.opening)
        return sl_api_error_bad(e, p->shape_field,
                                "%s: not beside tools in the format \"%s\": an answer that has a "
                                "shape cannot be told from a call",
                                p->shape_field, sl_tool_format_name(call->server->style.tools));
    sl_shape_put(b, "{\"or\":[");
    put_described(b, p);
    sl_shape_put(b, ",{\"seq\":[" SPACE ",");
    sl_shape_text(b, tok, form.opening);
    sl_status st = put_behind_opening(b, call, &form, how, e);
    sl_shape_put(b, "]}]}]}");
    return st;
}

static sl_status put_tools(sl_jbuf *b, const sl_call *call, sl_shape_how *how, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    sl_call_form form = {0};
    sl_status st = check_names(call, e);
    if (st != SL_OK) return st;
    bool has_to = p->required || p->forced.data;
    if (!sl_answer_call_form(&call->server->style, call->server->o.tokenizer, &form) ||
        (!has_to && call->server->style.tools == SL_TOOLS_LLAMA_PYTHONIC))
        return sl_api_error_bad(e, has_to ? "tool_choice" : "tools",
                                "%s: calls in the format \"%s\" cannot be held to a schema",
                                has_to ? "tool_choice" : "tools: strict",
                                sl_tool_format_name(call->server->style.tools));
    return has_to ? put_required(b, call, &form, how, e) : put_free_calls(b, call, &form, how, e);
}

/* Compiled here, so that who asks for what cannot be is told at once; the workers compile it again.
 * One at a time: hostile ones wait for each other. */
static sl_status check(sl_call *call, const char *field, sl_api_error *e) {
    sl_server *s = call->server;
    sl_err err = {0};
    sl_status st = SL_OK;
    pthread_mutex_lock(&s->guides_lock);
    if (!s->guides) {
        const sl_model_spec *spec = sl_engine_spec(s->o.engine);
        const sl_guides_opts o = {.tok = s->o.tokenizer,
                                  .vocab = spec->vocab,
                                  .ends = spec->eos,
                                  .n_ends = spec->n_eos,
                                  .at_once = true};
        st = sl_guides_create(&o, &s->guides, &err);
    }
    sl_guide *g = st == SL_OK ? sl_guides_ask(s->guides, sl_shared_bytes(call->shape)) : NULL;
    if (st == SL_OK && !g) st = sl_fail(&err, SL_ERR_NOMEM, "structured output");
    if (st == SL_OK) st = sl_guide_state(g, &err);
    sl_guide_let_go(g);
    pthread_mutex_unlock(&s->guides_lock);
    return st == SL_OK ? st : sl_api_error_of(e, st, field, err.msg);
}

/* The shape of calls, or of what is described, as `how` says; in the place of one that was tried.
 */
static sl_status try_shape(sl_call *call, const char *field, sl_shape_how *how, sl_api_error *e) {
    bool calls = call->params.shape == SL_API_ANY;
    sl_jbuf b = sl_jbuf_init();
    sl_shared_let_go(call->shape);
    call->shape = NULL;
    *e = (sl_api_error){0}; /* what was said of another one */
    if (call->params.compact) sl_shape_put(&b, "{\"compact\":");
    sl_status st = calls ? put_tools(&b, call, how, e) : put_answer(&b, call, how, e);
    if (call->params.compact) sl_shape_put(&b, "}");
    if (st == SL_OK && b.ok && b.len > SL_MAX_SHAPE)
        st = sl_api_error_bad(e, field, "%s: %zu bytes of structured output, limit %u", field,
                              b.len, SL_MAX_SHAPE);
    if (st == SL_OK && b.ok)
        call->shape = sl_shared_create((sl_span){(const uint8_t *)b.data, b.len});
    sl_jbuf_free(&b);
    if (st == SL_OK && !call->shape) st = sl_api_error_of(e, SL_ERR_NOMEM, NULL, NULL);
    return st == SL_OK ? check(call, field, e) : st;
}

/* Arguments of calls that have to be made are those of their functions where that can be enforced,
 * and where it was asked for. */
static sl_status choose_shape(sl_call *call, const char *field, bool held, sl_api_error *e) {
    sl_shape_how how = {.held = held}, least = {0};
    const sl_status st = try_shape(call, field, &how, e);
    return st != SL_OK && how.changed ? try_shape(call, field, &least, e) : st;
}

sl_status sl_call_take_shape(sl_call *call, sl_api_error *e) {
    const sl_api_params *p = &call->params;
    bool has_to = p->required || p->forced.data;
    bool calls = p->shape == SL_API_ANY && p->tools.value && (has_to || any_strict(p));
    bool begins = calls && p->forced.data && !any_strict(p); /* where there can be none */
    const char *field = calls ? (p->required ? "tool_choice" : "tools") : p->shape_field;
    if (p->shape == SL_API_ANY && !calls) return SL_OK;
    if (begins &&
        (p->ignore_eos || p->min_tokens || call->server->style.tools == SL_TOOLS_LLAMA_PYTHONIC))
        return SL_OK;
    if (p->ignore_eos || p->min_tokens)
        return sl_api_error_bad(e, p->ignore_eos ? "ignore_eos" : "min_tokens",
                                "%s: not with %s, which says where the answer may end",
                                p->ignore_eos ? "ignore_eos" : "min_tokens", field);
    if (p->shape != SL_API_ANY && any_strict(p) && call->server->style.tools == SL_TOOLS_HARMONY)
        return sl_api_error_bad(e, "tools",
                                "tools: strict functions beside %s are not supported in the format "
                                "\"harmony\"",
                                field);
    sl_status st = choose_shape(call, field, calls && has_to, e);
    if (!begins || st == SL_OK || st == SL_ERR_NOMEM) return st;
    sl_shared_let_go(call->shape);
    call->shape = NULL;
    *e = (sl_api_error){0};
    return SL_OK;
}

bool sl_call_may_shape(sl_span body) {
    static const char *const words[] = {"\"response_format\"",
                                        "\"structured_outputs\"",
                                        "\"guided_",
                                        "\"grammar\"",
                                        "\"json_schema\"",
                                        "\"json_object\"",
                                        "\"strict\"",
                                        "\"required\"",
                                        "\"any\"",
                                        "\"tool_choice\"",
                                        "\\u005",
                                        "\\u006",
                                        "\\u007"}; /* which may spell any of these */
    for (size_t i = 0; body.len > 0 && i < SL_LEN(words); i++)
        if (memmem(body.data, body.len, words[i], strlen(words[i]))) return true;
    return false;
}
