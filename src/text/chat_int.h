/* Inside of chat templates: chat_open.c finds and reads them, chat.c renders, chat_tools.c writes
 * tools and calls where a template does not. */
#ifndef SL_TEXT_CHAT_INT_H
#define SL_TEXT_CHAT_INT_H

#include "jinja/jinja.h"
#include "text/chat.h"

/* What is written for templates that know no tools. */
typedef enum sl_chat_fragment {
    SL_CHAT_TOOLS,  /* of `tools` */
    SL_CHAT_CALLS,  /* `content` and `calls` of an answer */
    SL_CHAT_RESULT, /* `content` of a call's result, behind `before` */
    SL_CHAT_JOIN,   /* `first` and `second` */
    SL_CHAT_FRAGMENTS,
} sl_chat_fragment;

struct sl_chat {
    sl_jinja *plain;
    sl_jinja *with_tools; /* a template of its own for conversations with tools, or NULL */
    char *source[2];      /* their texts; NULL: none */
    size_t n_source[2];
    sl_jinja *fragment[SL_CHAT_FRAGMENTS];
    sl_json_doc *tokens;   /* the special tokens a template may name, as an object of strings */
    bool text_arguments;   /* arguments of tool calls as JSON text, not as values */
    bool null_content;     /* an assistant's call without content: none, not "" */
    bool shows_calls;      /* calls and their results come out */
    bool shows_tools;      /* tools do */
    bool wants_said;       /* of tools it wants a description, be it empty */
    bool takes_system;     /* a message of the system does */
    sl_answer_style style; /* `generic` is set */
    const char *thinking;  /* the variable that turns reasoning on and off; NULL: none */
    bool takes_effort;     /* it knows reasoning_effort */
    const char *thoughts;  /* the field of a message that has its reasoning; NULL: none */
};

/* JSON that was text inside JSON; strings of the run point into it. */
typedef struct sl_chat_parsed {
    struct sl_chat_parsed *next;
    sl_json_doc *doc;
} sl_chat_parsed;

typedef struct sl_chat_rendering {
    const sl_chat *chat;
    sl_jrun *run;
    sl_chat_parsed *parsed;
    sl_chat_options options;
    sl_err *err;
    sl_status st;   /* of the fragments */
    sl_jv told;     /* what is said of tools, for message told_at */
    size_t told_at; /* SIZE_MAX: none */
    sl_jv results;  /* the message that holds results of calls, while they come */
} sl_chat_rendering;

sl_status sl_chat_parse_fragments(sl_chat *chat, sl_err *err) SL_MUST_CHECK;

/* For a template that shows no tools: says where they are told of, and pushes a message if it takes
 * one of its own. */
void sl_chat_tell_tools(sl_chat_rendering *g, const sl_chat_message *m, size_t n, sl_jv list);
void sl_chat_add_told(sl_chat_rendering *g, size_t i, sl_jv dict);
/* For one that shows no calls: into the content; a result as a user's message. */
void sl_chat_write_calls(sl_chat_rendering *g, sl_jv dict, sl_jv calls);
void sl_chat_write_result(sl_chat_rendering *g, sl_span content, sl_jv list);

#endif
