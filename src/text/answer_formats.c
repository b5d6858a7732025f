/* Formats of calls as tables: what opens one, the program that reads it, what shows in a template
 * that it is used. */
#include "text/answer_int.h"

#define DS_CALLS     "<｜tool▁calls▁begin｜>"
#define DS_CALLS_END "<｜tool▁calls▁end｜>"
#define DS_CALL      "<｜tool▁call▁begin｜>"
#define DS_CALL_END  "<｜tool▁call▁end｜>"

/* <tool_call>{"name": "f", "arguments": {}}</tool_call> */
static const sl_op hermes[] = {
    {SL_OP_SPACE, NULL, 0},        /* 0 */
    {SL_OP_OBJECT, NULL, 0},       /* 1 */
    {SL_OP_END, NULL, 0},          /* 2 */
    {SL_OP_SPACE, NULL, 0},        /* 3 */
    {SL_OP_IF, "</tool_call>", 5}, /* 4 */
    {SL_OP_EXIT, NULL, 0},         /* 5 */
};

/* <tool_call> <function=f> <parameter=a> 1 </parameter> </function> </tool_call>, on lines */
static const sl_op qwen3_coder[] = {
    {SL_OP_SPACE, NULL, 0},           /* 0 */
    {SL_OP_TEXT, "<function=", 0},    /* 1 */
    {SL_OP_NAME, NULL, 0},            /* 2 */
    {SL_OP_TEXT, ">", 0},             /* 3 */
    {SL_OP_BEGIN, NULL, 0},           /* 4 */
    {SL_OP_SPACE, NULL, 0},           /* 5 */
    {SL_OP_IF, "<parameter=", 10},    /* 6 */
    {SL_OP_KEY, ">", 0},              /* 7 */
    {SL_OP_LINES, "</parameter>", 0}, /* 8 */
    {SL_OP_GOTO, NULL, 5},            /* 9 */
    {SL_OP_IF, "</function>", 11},    /* 10 */
    {SL_OP_END, NULL, 0},             /* 11 */
    {SL_OP_SPACE, NULL, 0},           /* 12 */
    {SL_OP_IF, "</tool_call>", 14},   /* 13 */
    {SL_OP_EXIT, NULL, 0},            /* 14 */
};

/* calls begin, call begin, "function", sep, f, a fenced object, call end, calls end */
static const sl_op deepseek_v3[] = {
    {SL_OP_SPACE, NULL, 0},      /* 0 */
    {SL_OP_TEXT, DS_CALL, 0},    /* 1 */
    {SL_OP_SPACE, NULL, 0},      /* 2 */
    {SL_OP_TEXT, "function", 0}, /* 3 */
    {SL_OP_TEXT, SL_DS_SEP, 0},  /* 4 */
    {SL_OP_NAME, NULL, 0},       /* 5 */
    {SL_OP_SPACE, NULL, 0},      /* 6 */
    {SL_OP_TEXT, "```json", 0},  /* 7 */
    {SL_OP_SPACE, NULL, 0},      /* 8 */
    {SL_OP_JSON, NULL, 0},       /* 9 */
    {SL_OP_END, NULL, 0},        /* 10 */
    {SL_OP_SPACE, NULL, 0},      /* 11 */
    {SL_OP_IF, "```", 13},       /* 12 */
    {SL_OP_SPACE, NULL, 0},      /* 13 */
    {SL_OP_IF, DS_CALL_END, 15}, /* 14 */
    {SL_OP_EXIT, NULL, 0},       /* 15 */
};

/* calls begin, call begin, f, sep, an object, call end, calls end */
static const sl_op deepseek_v31[] = {
    {SL_OP_SPACE, NULL, 0},      /* 0 */
    {SL_OP_TEXT, DS_CALL, 0},    /* 1 */
    {SL_OP_SPACE, NULL, 0},      /* 2 */
    {SL_OP_NAME, NULL, 0},       /* 3 */
    {SL_OP_TEXT, SL_DS_SEP, 0},  /* 4 */
    {SL_OP_SPACE, NULL, 0},      /* 5 */
    {SL_OP_JSON, NULL, 0},       /* 6 */
    {SL_OP_END, NULL, 0},        /* 7 */
    {SL_OP_SPACE, NULL, 0},      /* 8 */
    {SL_OP_IF, DS_CALL_END, 10}, /* 9 */
    {SL_OP_EXIT, NULL, 0},       /* 10 */
};

/* section begin, call begin, functions.f:0, argument begin, an object, call end, section end */
static const sl_op kimi_k2[] = {
    {SL_OP_SPACE, NULL, 0},                          /* 0 */
    {SL_OP_TEXT, "<|tool_call_begin|>", 0},          /* 1 */
    {SL_OP_SPACE, NULL, 0},                          /* 2 */
    {SL_OP_NAME_ID, NULL, 0},                        /* 3 */
    {SL_OP_SPACE, NULL, 0},                          /* 4 */
    {SL_OP_TEXT, "<|tool_call_argument_begin|>", 0}, /* 5 */
    {SL_OP_SPACE, NULL, 0},                          /* 6 */
    {SL_OP_JSON, NULL, 0},                           /* 7 */
    {SL_OP_END, NULL, 0},                            /* 8 */
    {SL_OP_SPACE, NULL, 0},                          /* 9 */
    {SL_OP_IF, "<|tool_call_end|>", 11},             /* 10 */
    {SL_OP_EXIT, NULL, 0},                           /* 11 */
};

/* <tool_call>f <arg_key>a</arg_key> <arg_value>1</arg_value> </tool_call>, on lines */
static const sl_op glm_45[] = {
    {SL_OP_SPACE, NULL, 0},           /* 0 */
    {SL_OP_NAME, NULL, 0},            /* 1 */
    {SL_OP_SPACE, NULL, 0},           /* 2 */
    {SL_OP_IF, "<arg_key>", 15},      /* 3 */
    {SL_OP_BEGIN, NULL, 0},           /* 4 */
    {SL_OP_KEY, "</arg_key>", 0},     /* 5 */
    {SL_OP_SPACE, NULL, 0},           /* 6 */
    {SL_OP_TEXT, "<arg_value>", 0},   /* 7 */
    {SL_OP_VALUE, "</arg_value>", 0}, /* 8 */
    {SL_OP_SPACE, NULL, 0},           /* 9 */
    {SL_OP_IF, "<arg_key>", 12},      /* 10 */
    {SL_OP_GOTO, NULL, 5},            /* 11 */
    {SL_OP_IF, "</tool_call>", 13},   /* 12 */
    {SL_OP_END, NULL, 0},             /* 13 */
    {SL_OP_EXIT, NULL, 0},            /* 14 */
    {SL_OP_TEXT, "</tool_call>", 0},  /* 15 */
    {SL_OP_BEGIN, NULL, 0},           /* 16 */
    {SL_OP_GOTO, NULL, 13},           /* 17 */
};

/* [f(a=1), g()], or as llama_json */
static const sl_op llama_pythonic[] = {
    {SL_OP_SPACE, NULL, 0},           /* 0 */
    {SL_OP_TEXT, "[", 0},             /* 1 */
    {SL_OP_SPACE, NULL, 0},           /* 2 */
    {SL_OP_NAME, NULL, 0},            /* 3 */
    {SL_OP_KNOWN, NULL, 0},           /* 4 */
    {SL_OP_TEXT, "(", 0},             /* 5 */
    {SL_OP_PYTHON, NULL, 0},          /* 6 */
    {SL_OP_END, NULL, 0},             /* 7 */
    {SL_OP_SPACE, NULL, 0},           /* 8 */
    {SL_OP_IF, ",", 12},              /* 9 */
    {SL_OP_SPACE, NULL, 0},           /* 10 */
    {SL_OP_GOTO, NULL, 3},            /* 11 */
    {SL_OP_IF, "]", 13},              /* 12 */
    {SL_OP_SPACE, NULL, 0},           /* 13 */
    {SL_OP_IF, "<|python_end|>", 15}, /* 14 */
    {SL_OP_EXIT, NULL, 0},            /* 15 */
    {SL_OP_OBJECT, NULL, 0},          /* 16 */
    {SL_OP_END, NULL, 0},             /* 17 */
    {SL_OP_SPACE, NULL, 0},           /* 18 */
    {SL_OP_IF, ";", 13},              /* 19 */
    {SL_OP_GOTO, NULL, 13},           /* 20 */
};

/* {"name": "f", "parameters": {}}, several apart by semicolons, perhaps inside python markers */
static const sl_op llama_json[] = {
    {SL_OP_SPACE, NULL, 0},          /* 0 */
    {SL_OP_IF, "<|python_end|>", 2}, /* 1 */
    {SL_OP_SPACE, NULL, 0},          /* 2 */
    {SL_OP_OBJECT, NULL, 0},         /* 3 */
    {SL_OP_END, NULL, 0},            /* 4 */
    {SL_OP_SPACE, NULL, 0},          /* 5 */
    {SL_OP_IF, ";", 7},              /* 6 */
    {SL_OP_SPACE, NULL, 0},          /* 7 */
    {SL_OP_IF, "<|python_end|>", 9}, /* 8 */
    {SL_OP_EXIT, NULL, 0},           /* 9 */
};

/* [TOOL_CALLS][{"name": "f", "arguments": {}}], or [TOOL_CALLS]f[CALL_ID]id[ARGS]{} */
static const sl_op mistral[] = {
    {SL_OP_SPACE, NULL, 0},      /* 0 */
    {SL_OP_IF, "[", 10},         /* 1 */
    {SL_OP_SPACE, NULL, 0},      /* 2 */
    {SL_OP_OBJECT, NULL, 0},     /* 3 */
    {SL_OP_END, NULL, 0},        /* 4 */
    {SL_OP_SPACE, NULL, 0},      /* 5 */
    {SL_OP_IF, ",", 8},          /* 6 */
    {SL_OP_GOTO, NULL, 2},       /* 7 */
    {SL_OP_IF, "]", 9},          /* 8 */
    {SL_OP_EXIT, NULL, 0},       /* 9 */
    {SL_OP_NAME, NULL, 0},       /* 10 */
    {SL_OP_IF, "[CALL_ID]", 13}, /* 11 */
    {SL_OP_ID, NULL, 0},         /* 12 */
    {SL_OP_IF, "[ARGS]", 14},    /* 13 */
    {SL_OP_SPACE, NULL, 0},      /* 14 */
    {SL_OP_JSON, NULL, 0},       /* 15 */
    {SL_OP_END, NULL, 0},        /* 16 */
    {SL_OP_EXIT, NULL, 0},       /* 17 */
};

#define PROGRAM(ops) ops, SL_LEN(ops)

const sl_format sl_answer_formats[SL_TOOLS_N] = {
    [SL_TOOLS_HERMES] = {PROGRAM(hermes),
                         {{"<tool_call>", 0, false}},
                         NULL,
                         {{"<tool_call>\n{\"name\": \"", "\", \"arguments\": {"}}},
    [SL_TOOLS_QWEN3_CODER] = {PROGRAM(qwen3_coder),
                              {{"<tool_call>", 0, false}, {"<function=", 2, false}},
                              NULL,
                              {{"<tool_call>\n<function=", ">\n"}}},
    [SL_TOOLS_DEEPSEEK_V3] = {PROGRAM(deepseek_v3),
                              {{DS_CALLS, 0, false}, {DS_CALL, 2, false}},
                              DS_CALLS_END,
                              {{DS_CALLS DS_CALL "function" SL_DS_SEP, "\n```json\n{"}}},
    [SL_TOOLS_DEEPSEEK_V31] = {PROGRAM(deepseek_v31),
                               {{DS_CALLS, 0, false}, {DS_CALL, 2, false}},
                               DS_CALLS_END,
                               {{DS_CALLS DS_CALL, SL_DS_SEP "{"}}},
    [SL_TOOLS_KIMI_K2] = {PROGRAM(kimi_k2),
                          {{"<|tool_calls_section_begin|>", 0, false},
                           {"<|tool_call_begin|>", 2, false}},
                          "<|tool_calls_section_end|>",
                          {{"<|tool_calls_section_begin|><|tool_call_begin|>functions.",
                            ":#<|tool_call_argument_begin|>{"}}},
    [SL_TOOLS_GLM_45] = {PROGRAM(glm_45),
                         {{"<tool_call>", 0, false}},
                         NULL,
                         {{"<tool_call>", "\n<arg_key>"}, {"<tool_call>", "\n</tool_call>"}}},
    [SL_TOOLS_LLAMA_PYTHONIC] = {PROGRAM(llama_pythonic),
                                 {{"<|python_start|>", 0, false}, {"[", 1, true}, {"{", 16, true}},
                                 "<|python_end|>",
                                 {{"{\"name\": \"", "\", \"parameters\": {"}}},
    [SL_TOOLS_LLAMA_JSON] = {PROGRAM(llama_json),
                             {{"<|python_start|>", 0, false},
                              {"<|python_tag|>", 0, false},
                              {"{", 3, true}},
                             "<|python_end|>",
                             {{"{\"name\": \"", "\", \"parameters\": {"}}},
    [SL_TOOLS_MISTRAL] = {PROGRAM(mistral),
                          {{"[TOOL_CALLS]", 0, false}},
                          NULL,
                          {{"[TOOL_CALLS][{\"name\": \"", "\", \"arguments\": {"},
                           {"[TOOL_CALLS]", "[ARGS]{"}}},
    [SL_TOOLS_HARMONY] = {.forced = {{"<|channel|>commentary to=functions.",
                                      " <|constrain|>json<|message|>{"}}},
};

/* Marks of a family in its template; the first row whose marks are all there. */
static const struct {
    sl_tool_format format;
    const char *mark[2];
} marks[] = {
    {SL_TOOLS_HARMONY, {"<|channel|>", "<|message|>"}},
    {SL_TOOLS_DEEPSEEK_V3, {DS_CALL, "```json"}},
    {SL_TOOLS_DEEPSEEK_V31, {DS_CALL, NULL}},
    {SL_TOOLS_KIMI_K2, {"<|tool_call_begin|>", NULL}},
    {SL_TOOLS_GLM_45, {"<arg_key>", NULL}},
    {SL_TOOLS_QWEN3_CODER, {"<function=", NULL}},
    {SL_TOOLS_MISTRAL, {"[TOOL_CALLS]", NULL}},
    {SL_TOOLS_LLAMA_PYTHONIC, {"<|python_start|>", "[func_name1("}},
    {SL_TOOLS_LLAMA_JSON, {"\"parameters\": dictionary", NULL}},
    {SL_TOOLS_LLAMA_JSON, {"{\"name\": \"' +", "\"parameters\": '"}},
    {SL_TOOLS_LLAMA_JSON, {"<|python_start|>", NULL}},
    {SL_TOOLS_LLAMA_JSON, {"<|python_tag|>", NULL}},
};

static const sl_thought thoughts[] = {{"<think>", "</think>"}, {"[THINK]", "[/THINK]"}};

static const char *const names[] = {
#define SL_TOOL_FORMAT(NAME, name, help) name,
#include "text/answer_formats.def"
};

const char *sl_tool_format_name(sl_tool_format f) {
    return names[f];
}

bool sl_tool_format_find(const char *name, sl_tool_format *out) {
    for (size_t i = 0; i < SL_LEN(names); i++) {
        *out = (sl_tool_format)i;
        if (!strcmp(names[i], name)) return true;
    }
    return false;
}

static bool has(sl_span text, const char *mark) {
    return !mark || memmem(text.data, text.len, mark, strlen(mark)) != NULL;
}

sl_answer_style sl_answer_style_of(sl_span text) {
    sl_answer_style style = {.tools = SL_TOOLS_HERMES};
    for (size_t i = SL_LEN(marks); i-- > 0;)
        if (has(text, marks[i].mark[0]) && has(text, marks[i].mark[1]))
            style.tools = marks[i].format;
    for (size_t i = SL_LEN(thoughts); i-- > 0;)
        if (has(text, thoughts[i].open) || has(text, thoughts[i].close))
            style.thought = (uint8_t)(i + 1);
    return style;
}

sl_answer_style sl_answer_style_with(sl_answer_style style, const sl_tokenizer *tok) {
    const char *const *marker;
    size_t n;
    bool all = sl_answer_harmony_markers(&marker, &n);
    for (size_t i = 0; i < n && all; i++) {
        int64_t id = sl_tokenizer_find(tok, marker[i]);
        all = id >= 0 && sl_tokenizer_is_special(tok, (uint32_t)id);
    }
    if (all)
        style.tools = SL_TOOLS_HARMONY;
    else if (style.tools == SL_TOOLS_HARMONY)
        style.tools = SL_TOOLS_HERMES;
    return style;
}

const sl_thought *sl_answer_thought(const sl_answer_style *style) {
    return style->thought && style->thought <= SL_LEN(thoughts) ? &thoughts[style->thought - 1]
                                                                : NULL;
}

bool sl_answer_is_opened(const sl_answer_style *style, sl_span prompt) {
    const sl_thought *t = sl_answer_thought(style);
    if (!t || style->tools == SL_TOOLS_HARMONY) return false;
    size_t n = strlen(t->open);
    while (prompt.len && sl_answer_is_space((char)prompt.data[prompt.len - 1])) prompt.len--;
    return prompt.len >= n && memcmp(prompt.data + prompt.len - n, t->open, n) == 0;
}
