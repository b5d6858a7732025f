/* Inside of chat templates: chat_open.c finds and reads them, chat.c renders. */
#ifndef SL_TEXT_CHAT_INT_H
#define SL_TEXT_CHAT_INT_H

#include "jinja/jinja.h"
#include "text/chat.h"

struct sl_chat {
    sl_jinja *plain;
    sl_jinja *with_tools; /* a template of its own for conversations with tools, or NULL */
    sl_json_doc *tokens;  /* the special tokens a template may name, as an object of strings */
    bool text_arguments;  /* arguments of tool calls as JSON text, not as values */
    bool null_content;    /* an assistant's call without content: none, not "" */
};

#endif
