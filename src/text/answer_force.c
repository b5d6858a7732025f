/* The beginning of a call, put behind a prompt: the answer goes on with the arguments. */
#include "text/answer_int.h"

#include <stdio.h>

#define MAX_FORCED 512u /* bytes of it, without the name */

bool sl_answer_is_plain_name(sl_span name) {
    for (size_t i = 0; i < name.len; i++) {
        uint8_t c = name.data[i];
        if (c <= 0x20 || c == 0x7F || strchr("<>[](){}\"'`,;=|\\", c)) return false;
    }
    return name.len > 0 && name.len <= SL_ANSWER_MAX_NAME;
}

static bool is_special(const sl_tokenizer *tok, const char *text) {
    int64_t id = sl_tokenizer_find(tok, text);
    return id >= 0 && sl_tokenizer_is_special(tok, (uint32_t)id);
}

/* What stands before the name and behind it. */
static bool find_forced(const sl_answer_style *style, const sl_tokenizer *tok, bool has_parameters,
                        const char **before, const char **behind) {
    bool newer = style->tools == SL_TOOLS_MISTRAL && is_special(tok, "[ARGS]");
    const sl_forced *f = &sl_answer_formats[style->tools].forced[newer || !has_parameters];
    if (!f->before) f = &sl_answer_formats[style->tools].forced[0];
    *before = f->before;
    *behind = f->behind;
    return f->before != NULL;
}

sl_status sl_answer_force(const sl_answer_style *style, const sl_tokenizer *tok,
                          const sl_tool_set *tools, sl_span name, bool opened, uint32_t n_calls,
                          sl_ids *out, sl_err *err) {
    char text[2][MAX_FORCED];
    const char *before, *behind;
    const sl_thought *t = opened ? sl_answer_thought(style) : NULL;
    if (!find_forced(style, tok, sl_tool_set_takes(tools, name), &before, &behind))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "no call can be begun in the format \"%s\"",
                       sl_tool_format_name(style->tools));
    if (!sl_answer_is_plain_name(name))
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "a function is called by its name only without white space, quotes and "
                       "brackets in it");
    snprintf(text[0], sizeof text[0], "%s%s%s", t ? t->close : "", t ? "\n\n" : "", before);
    const char *number = strchr(behind, '#'); /* how many calls there were */
    if (number)
        snprintf(text[1], sizeof text[1], "%.*s%u%s", (int)(number - behind), behind, n_calls,
                 number + 1);
    else
        snprintf(text[1], sizeof text[1], "%s", behind);
    const sl_text_part parts[] = {{{(const uint8_t *)text[0], strlen(text[0])}, true},
                                  {name, false},
                                  {{(const uint8_t *)text[1], strlen(text[1])}, true}};
    return sl_tokenizer_encode_parts(tok, parts, SL_LEN(parts), false, out, err);
}

bool sl_answer_thought_marks(const sl_answer_style *style, const char **open, const char **close) {
    const sl_thought *t = style->tools == SL_TOOLS_HARMONY ? NULL : sl_answer_thought(style);
    if (!t) return false;
    *open = t->open;
    *close = t->close;
    return true;
}

bool sl_answer_call_form(const sl_answer_style *style, const sl_tokenizer *tok, sl_call_form *out) {
    static const struct {
        sl_tool_format format;
        bool newer;
        sl_call_form form;
    } forms[] = {
        {SL_TOOLS_HERMES, false, {.between = "\", \"arguments\": ", .behind = "}"}},
        {SL_TOOLS_QWEN3_CODER,
         false,
         {.between = ">\n",
          .behind = "</function>",
          .key = "<parameter=",
          .value = ">\n",
          .next = "\n</parameter>\n",
          .closing = "</parameter>"}},
        {SL_TOOLS_GLM_45,
         false,
         {.between = "\n",
          .behind = "</tool_call>",
          .key = "<arg_key>",
          .value = "</arg_key>\n<arg_value>",
          .next = "</arg_value>\n",
          .closing = "</arg_value>"}},
        {SL_TOOLS_LLAMA_JSON, false, {.between = "\", \"parameters\": ", .behind = "}"}},
        {SL_TOOLS_LLAMA_PYTHONIC, false, {.between = "\", \"parameters\": ", .behind = "}"}},
        {SL_TOOLS_MISTRAL, false, {.between = "\", \"arguments\": ", .behind = "}]"}},
        {SL_TOOLS_MISTRAL, true, {.between = "[ARGS]", .behind = ""}},
        {SL_TOOLS_DEEPSEEK_V3, false, {.between = "\n```json\n", .behind = ""}},
        {SL_TOOLS_DEEPSEEK_V31, false, {.between = SL_DS_SEP, .behind = ""}},
        {SL_TOOLS_KIMI_K2, false, {.between = ":#<|tool_call_argument_begin|>", .behind = ""}},
        {SL_TOOLS_HARMONY, false, {.between = "<|message|>", .behind = ""}},
    };
    bool newer = style->tools == SL_TOOLS_MISTRAL && is_special(tok, "[ARGS]");
    const sl_format *format = &sl_answer_formats[style->tools];
    const char *before, *behind;
    for (size_t i = 0; i < SL_LEN(forms); i++) {
        if (forms[i].format != style->tools || forms[i].newer != newer) continue;
        if (!find_forced(style, tok, true, &before, &behind)) return false;
        *out = forms[i].form;
        out->before = before;
        for (size_t k = 0; k < SL_LEN(format->opening) && format->opening[k].text; k++)
            if (!format->opening[k].first && strstr(before, format->opening[k].text))
                out->opening = format->opening[k].text; /* the innermost one */
        return true;
    }
    return false;
}
