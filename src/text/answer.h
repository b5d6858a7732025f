/* What a chat's answer is made of: text, reasoning, calls of tools, told apart while it comes.
 *
 * Models write reasoning and calls into their text, each family in its own format, some with
 * special tokens. A parser takes tokens (or text) and gives events in order: a piece of the answer,
 * a piece of reasoning, a call begins (its name), a piece of its arguments (JSON), it ends. Every
 * shape of an API is a writer of these events. The formats are tables (answer_formats.c).
 *
 * Events are the same however the text is cut: joined by kind, parse(pieces) is parse(whole). A
 * marker that the tokenizer has as a special token counts by its id alone, so that text which only
 * looks like it stays text; other markers count in the text. A call that breaks before its name and
 * the beginning of its arguments are there is text, markers and all; later it is what came of it.
 * White space beside a call, and around reasoning, is the format's and not shown.
 * Thread: owner. */
#ifndef SL_TEXT_ANSWER_H
#define SL_TEXT_ANSWER_H

#include "format/json.h"
#include "text/tokenizer.h"

#define SL_ANSWER_MAX_NAME 256u       /* bytes of a function's name, and of a call's id */
#define SL_ANSWER_MAX_HEAD (1u << 14) /* bytes of a call before it is certain that it is one */

/* How calls are written. */
typedef enum sl_tool_format {
#define SL_TOOL_FORMAT(NAME, name, help) SL_TOOLS_##NAME,
#include "text/answer_formats.def"
    SL_TOOLS_N,
} sl_tool_format;

const char *sl_tool_format_name(sl_tool_format f);
bool sl_tool_format_find(const char *name, sl_tool_format *out);

/* How a template's models answer. */
typedef struct sl_answer_style {
    sl_tool_format tools;
    bool generic;    /* the template shows no tools: a message does, and asks for calls as HERMES */
    uint8_t thought; /* how reasoning is marked: 1 + index of its pair; 0: it is not */
} sl_answer_style;

/* What the text of a template says; `generic` stays false. */
sl_answer_style sl_answer_style_of(sl_span template_text);
/* The same with what the tokenizer has: the harmony format shows in its special tokens. */
sl_answer_style sl_answer_style_with(sl_answer_style style, const sl_tokenizer *tok);
/* Whether a prompt's text ends with an opened thought. */
bool sl_answer_is_opened(const sl_answer_style *style, sl_span prompt);

/* The markers of reasoning; false: it has none, or none of its own (harmony). Static. */
bool sl_answer_thought_marks(const sl_answer_style *style, const char **open, const char **close);

/* How a call of a function is written; special tokens stand in the texts by their names. Static. */
typedef struct sl_call_form {
    const char
        *opening; /* what in a text begins a call; NULL: only the beginning of an answer may */
    const char *before;  /* the whole of what stands before the name, the opening with it */
    const char *between; /* name and arguments; # in it: a number */
    const char *behind;  /* the arguments, until it is whole */
    /* NULL: arguments are JSON. Else they are fields: what stands before a key, between it and its
     * value, behind that; and what ends a value, which so has it nowhere. */
    const char *key, *value, *next, *closing;
} sl_call_form;
/* False: calls are not read, or cannot be begun. */
bool sl_answer_call_form(const sl_answer_style *style, const sl_tokenizer *tok, sl_call_form *out);
/* Whether the name stands for itself in every format: no white space, quotes and brackets. */
bool sl_answer_is_plain_name(sl_span name);

/* Names and parameters of the tools of a request: copied, shared by its answers, constant. */
typedef struct sl_tool_set sl_tool_set;

/* `tools` as the API has them, checked. SL_ERR_NOMEM. */
sl_status sl_tool_set_create(sl_json tools, sl_tool_set **out, sl_err *err) SL_MUST_CHECK;
void sl_tool_set_free(sl_tool_set *t); /* NULL-safe */
bool sl_tool_set_has(const sl_tool_set *t, sl_span name);

/* Appends the beginning of a call of the function, up to its arguments, to a prompt whose thought
 * may be opened: what the model says then is its arguments. The parser has to be fed these tokens
 * before the model's. n_calls: calls that the conversation has. SL_ERR_UNSUPPORTED: the format, or
 * the name, allows no such beginning. */
sl_status sl_answer_force(const sl_answer_style *style, const sl_tokenizer *tok,
                          const sl_tool_set *tools, sl_span name, bool opened, uint32_t n_calls,
                          sl_ids *out, sl_err *err) SL_MUST_CHECK;

typedef enum sl_answer_kind {
    SL_ANSWER_TEXT,
    SL_ANSWER_REASONING,
    SL_ANSWER_CALL,      /* text: the name; id: what the model calls it, or empty */
    SL_ANSWER_ARGUMENTS, /* text: a piece of the JSON */
    SL_ANSWER_CALL_END,
} sl_answer_kind;

typedef struct sl_answer_event {
    sl_answer_kind kind;
    sl_span text, id; /* borrowed until the callback returns */
} sl_answer_event;

typedef struct sl_answer_options {
    sl_answer_style style;
    const sl_tool_set *tools; /* borrowed; NULL: calls are not looked for */
    bool opened;              /* the prompt has opened a thought */
    bool one_call;            /* nothing is wanted after the first call */
    bool markers;             /* without a tokenizer: every marker comes by sl_answer_marker */
    void (*event)(void *ctx, const sl_answer_event *ev);
    void *ctx;
} sl_answer_options;

typedef struct sl_answer sl_answer;

/* `tok` is borrowed; NULL: only text is fed. SL_ERR_NOMEM. */
sl_status sl_answer_create(const sl_tokenizer *tok, const sl_answer_options *o, sl_answer **out,
                           sl_err *err) SL_MUST_CHECK;
void sl_answer_free(sl_answer *a); /* NULL-safe */

/* The next token; `id` may be any number. SL_ERR_NOMEM, also of the following. */
sl_status sl_answer_push(sl_answer *a, uint32_t id) SL_MUST_CHECK;
/* The next n bytes of text. */
sl_status sl_answer_feed(sl_answer *a, const char *text, size_t n) SL_MUST_CHECK;
/* A special token by its text; one that is no marker of the format is dropped. */
sl_status sl_answer_marker(sl_answer *a, const char *text) SL_MUST_CHECK;
/* The answer is over: what was held comes out. */
sl_status sl_answer_end(sl_answer *a) SL_MUST_CHECK;

/* With one_call: the call is whole. */
bool sl_answer_is_done(const sl_answer *a);
/* Calls that began. */
uint32_t sl_answer_calls(const sl_answer *a);

#endif
