/* Chat templates: a conversation as the text a model was trained on.
 *
 * Published templates are Jinja programs; src/jinja runs them. What the template writes is literal
 * (its special tokens count); what users wrote is not, so a message that spells out <|im_end|>
 * stays text, through every filter and slice. A template that uses what src/jinja does not know is
 * refused by name when it is opened, never guessed; one that raises an error for a conversation
 * (roles that do not take turns) refuses it with its message. docs/chat.md has the details.
 * A template that shows no tools gets them in a message, with calls as SL_TOOLS_HERMES has them.
 * Thread: owner for open and free; any for the rest. */
#ifndef SL_TEXT_CHAT_H
#define SL_TEXT_CHAT_H

#include "format/json.h"
#include "text/answer.h"

typedef struct sl_chat sl_chat;

/* One message; borrowed. role: system, developer, user, assistant or tool. */
typedef struct sl_chat_message {
    sl_span role;
    sl_span content; /* data == NULL: what `fields` has, or none */
    sl_json fields;  /* an object, or absent: tool_calls, tool_call_id, name, reasoning_content...;
                        its role counts for nothing, its content only without the one above */
} sl_chat_message;

typedef enum sl_chat_switch { SL_CHAT_UNSET, SL_CHAT_OFF, SL_CHAT_ON } sl_chat_switch;

typedef struct sl_chat_options {
    bool add_generation_prompt; /* end with the opening of an assistant message */
    /* Messages go to the template as they are. Otherwise the arguments of tool calls, which are
     * JSON in a string at the API, and contents that are null become what the template takes. */
    bool as_given;
    bool add_special; /* what the tokenizer begins and ends texts with comes beside what the
                         template wrote */
    bool as_shown;    /* only the template: nothing is written for it that it does not show */
    sl_json tools;    /* an array, or absent */
    sl_json kwargs;   /* an object, or absent: further variables, such as enable_thinking */
    sl_chat_switch thinking; /* sets the template's variable for it, under its name there */
    sl_span effort;          /* reasoning_effort; data == NULL: not set */
    int64_t now_s;           /* for templates that write a date, in UTC; 0: the clock's */
    size_t max_bytes;        /* of the text; 0 or more than that: SL_TOKENIZER_MAX_TEXT */
} sl_chat_options;

/* A rendered conversation: parts in order, their bytes owned by `bytes`. */
typedef struct sl_chat_text {
    sl_text_part *parts;
    size_t n_parts;
    char *bytes;
    size_t n_bytes;
} sl_chat_text;

/* Finds the template of a model: tokenizer.chat_template of a GGUF file; of a folder,
 * chat_template.jinja, else "chat_template" in chat_template.json or tokenizer_config.json (of
 * several, those named "default" and "tool_use"). The special tokens that it may name come from the
 * same GGUF file, or from tokenizer_config.json. SL_ERR_NOTFOUND: the folder
 * has none; otherwise as sl_jinja_parse. */
sl_status sl_chat_open(const char *folder, sl_chat **out, sl_err *err) SL_MUST_CHECK;

/* The same with the template of a file, whatever the model has; `file` NULL: the model's own.
 * SL_ERR_NOTFOUND: no such file. */
sl_status sl_chat_open_with(const char *folder, const char *file, sl_chat **out,
                            sl_err *err) SL_MUST_CHECK;

/* The same for a template's text; `name` stands for the file in errors; `tokens` is an object as
 * tokenizer_config.json has them ("bos_token": text or {"content": text}), or absent. */
sl_status sl_chat_parse(const char *name, sl_span template_text, sl_json tokens, sl_chat **out,
                        sl_err *err) SL_MUST_CHECK;

void sl_chat_free(sl_chat *chat); /* NULL-safe */

/* Renders n messages. SL_ERR_ARG: no message, an unknown role, bytes that are not UTF-8, arguments
 * that are not JSON, or the template refuses them (with its message); SL_ERR_LIMIT: longer than
 * SL_TOKENIZER_MAX_TEXT, or past the steps and memory a template may take. Free with
 * sl_chat_text_free. */
sl_status sl_chat_render(const sl_chat *chat, const sl_chat_message *messages, size_t n,
                         sl_chat_options options, sl_chat_text *out, sl_err *err) SL_MUST_CHECK;
void sl_chat_text_free(sl_chat_text *text);

/* Render and encode: the ids of a prompt, appended to out. */
sl_status sl_chat_encode(const sl_chat *chat, const sl_tokenizer *tok,
                         const sl_chat_message *messages, size_t n, sl_chat_options options,
                         sl_ids *out, sl_err *err) SL_MUST_CHECK;
/* The same; *opened: whether it ends with a thought that the template has opened. */
sl_status sl_chat_prompt(const sl_chat *chat, const sl_tokenizer *tok,
                         const sl_chat_message *messages, size_t n, sl_chat_options options,
                         sl_ids *out, bool *opened, sl_err *err) SL_MUST_CHECK;

/* How its models answer, by the template's text. */
sl_answer_style sl_chat_style(const sl_chat *chat);
/* Its text; of_tools: that of a template of its own for conversations with tools. data == NULL:
 * there is none. Borrowed from chat. */
sl_span sl_chat_source(const sl_chat *chat, bool of_tools);
/* Whether its text has a switch for reasoning; whether it knows reasoning_effort. */
bool sl_chat_has_switch(const sl_chat *chat);
bool sl_chat_has_effort(const sl_chat *chat);

#endif
