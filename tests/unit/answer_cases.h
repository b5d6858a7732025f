/* Answers as models of each family write them, by the published formats, and what they say. Events
 * are one line each: "text|", "think|", "call|NAME ID", "args|", "end|"; pieces are joined. */
#ifndef SL_TESTS_ANSWER_CASES_H
#define SL_TESTS_ANSWER_CASES_H

#include "text/answer.h"

typedef struct answer_case {
    sl_tool_format format;
    int flags;
    const char *text, *want;
} answer_case;

enum { THINKS = 1, OPENED = 2, GENERIC = 4, ONE = 8, NO_TOOLS = 16, BRACKETS = 32 };

/* get_weather(city: string, days: integer, units: string or null), look_up(query: object, tags:
 * array, exact: boolean, any without a type) */
#define ANSWER_TOOLS                                                                               \
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":"     \
    "\"object\",\"properties\":{\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\"},"   \
    "\"units\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]}}}}},{\"type\":"             \
    "\"function\",\"function\":{\"name\":\"look_up\",\"parameters\":{\"type\":\"object\","         \
    "\"properties\":{\"query\":{\"type\":\"object\"},\"tags\":{\"type\":\"array\"},\"exact\":"     \
    "{\"type\":\"boolean\"},\"any\":{}}}}}]"

#define WEATHER "call|get_weather\nargs|{\"city\": \"Oslo\"}\nend|\n"

#define DS_CALLS     "<｜tool▁calls▁begin｜>"
#define DS_CALLS_END "<｜tool▁calls▁end｜>"
#define DS_CALL      "<｜tool▁call▁begin｜>"
#define DS_CALL_END  "<｜tool▁call▁end｜>"
#define DS_SEP       "<｜tool▁sep｜>"

static const answer_case answer_cases[] = {
    /* ---- reasoning ---- */
    {SL_TOOLS_HERMES, THINKS | NO_TOOLS, "<think>\nHm.\n</think>\n\nYes.",
     "think|Hm.\ntext|Yes.\n"},
    {SL_TOOLS_HERMES, THINKS | OPENED | NO_TOOLS, "Hm.\nSo.\n</think>\n\nYes.",
     "think|Hm.\nSo.\ntext|Yes.\n"},
    {SL_TOOLS_HERMES, THINKS | OPENED | NO_TOOLS, "<think>\nHm.</think>Yes.",
     "think|Hm.\ntext|Yes.\n"},
    {SL_TOOLS_HERMES, THINKS | NO_TOOLS, "<think>\n\n</think>\n\nYes. ", "text|Yes. \n"},
    {SL_TOOLS_HERMES, THINKS | NO_TOOLS, "Yes <think>no</think>", "text|Yes <think>no</think>\n"},
    {SL_TOOLS_HERMES, THINKS | NO_TOOLS, " \n<thin", "text| \n<thin\n"},
    {SL_TOOLS_HERMES, THINKS | OPENED | NO_TOOLS, "no end </thin", "think|no end </thin\n"},
    {SL_TOOLS_HERMES, THINKS | NO_TOOLS, "<think>a</think>\n\n", "think|a\n"},
    {SL_TOOLS_HERMES, THINKS | NO_TOOLS, "<think>\xC3\xA4 < b</think>\xE2\x82\xAC",
     "think|\xC3\xA4 < b\ntext|\xE2\x82\xAC\n"},
    {SL_TOOLS_MISTRAL, BRACKETS | NO_TOOLS, "[THINK]a[/THINK]b", "think|a\ntext|b\n"},
    {SL_TOOLS_HERMES, THINKS,
     "<think>\nI call <tool_call>.\n</think>\n\n<tool_call>\n{\"name\": \"get_weather\", "
     "\"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     "think|I call <tool_call>.\n" WEATHER},
    /* ---- Hermes, Qwen3 ---- */
    {SL_TOOLS_HERMES, 0,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     WEATHER},
    {SL_TOOLS_HERMES, 0,
     "Let me see.\n<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": "
     "\"Oslo\"}}\n</tool_call>\n<tool_call>\n{\"name\": \"look_up\", \"arguments\": {\"any\": "
     "[1, \"}\\\"]\", {}]}}\n</tool_call>\nDone.",
     "text|Let me see.\n" WEATHER
     "call|look_up\nargs|{\"any\": [1, \"}\\\"]\", {}]}\nend|\ntext|Done.\n"},
    {SL_TOOLS_HERMES, 0,
     "<tool_call>{\"arguments\": {\"city\": \"Oslo\"}, \"name\": \"get_weather\"}</tool_call>",
     WEATHER},
    {SL_TOOLS_HERMES, 0,
     "<tool_call>{\"name\":\"get_weather\",\"arguments\":\"{\\\"city\\\": \\\"O\\u0073lo\\\"}\"}"
     "</tool_call>",
     WEATHER},
    {SL_TOOLS_HERMES, 0, "<tool_call>{\"name\": \"now\"}</tool_call>", "call|now\nargs|{}\nend|\n"},
    {SL_TOOLS_HERMES, 0, "<tool_call>{\"name\": \"a\\u00e4\\ud83d\\ude00\", \"arguments\": {}}",
     "call|a\xC3\xA4\xF0\x9F\x98\x80\nargs|{}\nend|\n"},
    {SL_TOOLS_HERMES, 0, "<tool_call>not JSON</tool_call> and on",
     "text|<tool_call>not JSON</tool_call> and on\n"},
    {SL_TOOLS_HERMES, 0, "a <tool_call>\n{\"nam\": 1} <tool_call>{\"name\": \"now\"}</tool_call>",
     "text|a <tool_call>\n{\"nam\": 1}\ncall|now\nargs|{}\nend|\n"},
    {SL_TOOLS_HERMES, 0, "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Os",
     "call|get_weather\nargs|{\"city\": \"Os\nend|\n"},
    {SL_TOOLS_HERMES, 0, "<tool_call>{\"name\": \"get_wea",
     "text|<tool_call>{\"name\": \"get_wea\n"},
    {SL_TOOLS_HERMES, 0, "a < b <tool_cal \n", "text|a < b <tool_cal \n\n"},
    {SL_TOOLS_HERMES, NO_TOOLS, "<tool_call>{\"name\": \"now\"}</tool_call> ",
     "text|<tool_call>{\"name\": \"now\"}</tool_call> \n"},
    {SL_TOOLS_HERMES, ONE,
     "a<tool_call>{\"name\": \"now\"}</tool_call><tool_call>{\"name\": \"now\"}</tool_call>b",
     "text|a\ncall|now\nargs|{}\nend|\n"},
    /* ---- Qwen3-Coder ---- */
    {SL_TOOLS_QWEN3_CODER, 0,
     "I look.\n<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
     "text|I look.\ncall|get_weather\nargs|{\"city\": \"Oslo\", \"days\": 3}\nend|\n"},
    {SL_TOOLS_QWEN3_CODER, 0,
     "<function=look_up>\n<parameter=query>\n{\"a\": [1, 2]}\n</parameter>\n<parameter=exact>\nTrue"
     "\n</parameter>\n<parameter=any>\nplain\n</parameter>\n</function>",
     "call|look_up\nargs|{\"query\": {\"a\": [1, 2]}, \"exact\": true, \"any\": "
     "\"plain\"}\nend|\n"},
    {SL_TOOLS_QWEN3_CODER, 0,
     "<tool_call>\n<function=get_weather>\n<parameter=city>\nline \"1\"\n\n\tline 2 </param> \\ \n"
     "\n</parameter>\n<parameter=units>\nnull\n</parameter>\n</function>\n</tool_call>",
     "call|get_weather\nargs|{\"city\": \"line \\\"1\\\"\\n\\n\\tline 2 </param> \\\\ \\n\", "
     "\"units\": null}\nend|\n"},
    {SL_TOOLS_QWEN3_CODER, 0,
     "<tool_call>\n<function=now>\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=now></function></tool_call>",
     "call|now\nargs|{}\nend|\ncall|now\nargs|{}\nend|\n"},
    {SL_TOOLS_QWEN3_CODER, 0, "<tool_call>\n<func=now></func></tool_call>",
     "text|<tool_call>\n<func=now></func></tool_call>\n"},
    {SL_TOOLS_QWEN3_CODER, 0, "<function=get_weather><parameter=city>\nOs\n",
     "call|get_weather\nargs|{\"city\": \"Os\nend|\n"},
    /* ---- DeepSeek ---- */
    {SL_TOOLS_DEEPSEEK_V3, 0,
     "I look." DS_CALLS DS_CALL "function" DS_SEP
     "get_weather\n```json\n{\"city\": \"Oslo\"}\n```" DS_CALL_END "\n" DS_CALL "function" DS_SEP
     "now\n```json\n{}\n```" DS_CALL_END DS_CALLS_END,
     "text|I look.\n" WEATHER "call|now\nargs|{}\nend|\n"},
    {SL_TOOLS_DEEPSEEK_V3, THINKS | OPENED,
     "Weather.\n</think>\n\n" DS_CALLS DS_CALL "function" DS_SEP
     "get_weather\n```json\n{\"city\": \"Oslo\"}\n```" DS_CALL_END DS_CALLS_END,
     "think|Weather.\n" WEATHER},
    {SL_TOOLS_DEEPSEEK_V3, 0, "x" DS_CALLS DS_CALL "function" DS_SEP "now\n{}" DS_CALL_END,
     "text|x" DS_CALLS DS_CALL "function" DS_SEP "now\n{}" DS_CALL_END "\n"},
    {SL_TOOLS_DEEPSEEK_V31, 0,
     DS_CALLS DS_CALL "get_weather" DS_SEP "{\"city\": \"Oslo\"}" DS_CALL_END DS_CALL "now" DS_SEP
                      "{}" DS_CALL_END DS_CALLS_END "over",
     WEATHER "call|now\nargs|{}\nend|\ntext|over\n"},
    {SL_TOOLS_DEEPSEEK_V31, 0, DS_CALLS DS_CALL "get_weather" DS_SEP "{\"city\": \"Oslo\"}",
     WEATHER},
    /* ---- Kimi-K2 ---- */
    {SL_TOOLS_KIMI_K2, 0,
     "I look.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0"
     "<|tool_call_argument_begin|>{\"city\": \"Oslo\"}<|tool_call_end|><|tool_call_begin|>"
     "functions.now:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
     "text|I look.\ncall|get_weather functions.get_weather:0\nargs|{\"city\": \"Oslo\"}\nend|\n"
     "call|now functions.now:1\nargs|{}\nend|\n"},
    {SL_TOOLS_KIMI_K2, 0, "<|tool_calls_section_begin|> none",
     "text|<|tool_calls_section_begin|> "
     "none\n"},
    /* ---- GLM-4.5 ---- */
    {SL_TOOLS_GLM_45, THINKS,
     "\n<think>Oslo.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n"
     "<arg_value>Oslo</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>"
     "\n<tool_call>now\n</tool_call>",
     "think|Oslo.\ntext|I look.\ncall|get_weather\nargs|{\"city\": \"Oslo\", \"days\": 3}\nend|\n"
     "call|now\nargs|{}\nend|\n"},
    {SL_TOOLS_GLM_45, 0,
     "<tool_call>look_up\n<arg_key>any</arg_key>\n<arg_value>{\"a\": 1}</arg_value>\n<arg_key>tags"
     "</arg_key>\n<arg_value>[\"x\"]</arg_value>\n<arg_key>exact</arg_key><arg_value>no</arg_value>"
     "</tool_call>",
     "call|look_up\nargs|{\"any\": {\"a\": 1}, \"tags\": [\"x\"], \"exact\": \"no\"}\nend|\n"},
    {SL_TOOLS_GLM_45, 0, "<tool_call>get_weather is a tool",
     "text|<tool_call>get_weather is a "
     "tool\n"},
    {SL_TOOLS_GLM_45, 0, "<tool_call>get_weather<arg_key>city</arg_key><arg_value>a</arg_value>x",
     "call|get_weather\nargs|{\"city\": \"a\"}\nend|\ntext|x\n"},
    /* ---- Llama ---- */
    {SL_TOOLS_LLAMA_JSON, 0, "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}",
     WEATHER},
    {SL_TOOLS_LLAMA_JSON, 0,
     "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}; "
     "{\"name\": \"look_up\", \"parameters\": {}}",
     WEATHER "call|look_up\nargs|{}\nend|\n"},
    {SL_TOOLS_LLAMA_JSON, 0,
     "<|python_start|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}"
     "<|python_end|>",
     WEATHER},
    {SL_TOOLS_LLAMA_JSON, 0, "{\"name\": \"other\", \"parameters\": {}}",
     "text|{\"name\": \"other\", \"parameters\": {}}\n"},
    {SL_TOOLS_LLAMA_JSON, 0, "{\"answer\": 42}", "text|{\"answer\": 42}\n"},
    {SL_TOOLS_LLAMA_JSON, 0, "It is {\"name\": \"get_weather\", \"parameters\": {}}",
     "text|It is {\"name\": \"get_weather\", \"parameters\": {}}\n"},
    {SL_TOOLS_LLAMA_PYTHONIC, 0,
     "[get_weather(city=\"Oslo\"), look_up(tags=['a', \"it's\"], "
     "exact=True, any={'k': None, 'l': (1, -2.5e3)})]",
     WEATHER "call|look_up\nargs|{\"tags\": [\"a\", \"it's\"], \"exact\": true, \"any\": "
             "{\"k\": null, \"l\": [1, -2.5e3]}}\nend|\n"},
    {SL_TOOLS_LLAMA_PYTHONIC, 0,
     "<|python_start|>[get_weather(city='O\\'s\\n\"lo\\x41\\u00e4', days=3,)]<|python_end|> ok",
     "call|get_weather\nargs|{\"city\": \"O's\\n\\\"lo\\u0041\\u00e4\", \"days\": 3}\nend|\ntext|ok"
     "\n"},
    {SL_TOOLS_LLAMA_PYTHONIC, 0, "[look_up()]", "call|look_up\nargs|{}\nend|\n"},
    {SL_TOOLS_LLAMA_PYTHONIC, 0, "[1, 2, 3]", "text|[1, 2, 3]\n"},
    {SL_TOOLS_LLAMA_PYTHONIC, 0, "[look_up(1)]", "text|[look_up(1)]\n"},
    {SL_TOOLS_LLAMA_PYTHONIC, 0,
     "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Oslo\"}}", WEATHER},
    /* ---- Mistral ---- */
    {SL_TOOLS_MISTRAL, 0,
     "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}, \"id\": "
     "\"abcDEF123\"}, {\"name\": \"now\", \"arguments\": {}}]",
     WEATHER "call|now\nargs|{}\nend|\n"},
    {SL_TOOLS_MISTRAL, 0,
     "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Oslo\"}[TOOL_CALLS]now[CALL_ID]abcDEF123[ARGS]{}",
     WEATHER "call|now abcDEF123\nargs|{}\nend|\n"},
    {SL_TOOLS_MISTRAL, 0, "I look. [TOOL_CALLS]get_weather{\"city\": \"Oslo\"}",
     "text|I look.\n" WEATHER},
    {SL_TOOLS_MISTRAL, 0, "[TOOL_CALLS] [{\"name\": 5}]", "text|[TOOL_CALLS] [{\"name\": 5}]\n"},
    {SL_TOOLS_MISTRAL, 0, "[TOOL_CALLS][{\"name\": \"now\"}, {]",
     "call|now\nargs|{}\nend|\ntext|, "
     "{]\n"},
    /* ---- gpt-oss ---- */
    {SL_TOOLS_HARMONY, 0,
     "<|channel|>analysis<|message|>Oslo.<|end|><|start|>assistant<|channel|>commentary "
     "to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Oslo\"}<|call|>",
     "think|Oslo.\n" WEATHER},
    {SL_TOOLS_HARMONY, 0,
     "<|channel|>analysis<|message|>Oslo.<|end|><|start|>assistant to=functions.get_weather"
     "<|channel|>commentary json<|message|>{\"city\": \"Oslo\"}<|call|>",
     "think|Oslo.\n" WEATHER},
    {SL_TOOLS_HARMONY, 0,
     " to=functions.get_weather<|channel|>commentary json<|message|>"
     "{\"city\": \"Oslo\"}",
     WEATHER},
    {SL_TOOLS_HARMONY, 0, "<|channel|>commentary to=python<|message|>1<|call|>", "think|1\n"},
    {SL_TOOLS_HARMONY, 0, "<|channel|>commentary to=look_up<|message|>{}<|call|>",
     "call|look_up\nargs|{}\nend|\n"},
    {SL_TOOLS_HARMONY, NO_TOOLS, "<|channel|>commentary to=functions.f<|message|>{}<|call|>",
     "think|{}\n"},
    {SL_TOOLS_HARMONY, 0, " to be or not", "text| to be or not\n"},
    {SL_TOOLS_HARMONY, 0, "<|channel|>final<|message|>Yes.<|return|>", "text|Yes.\n"},
    {SL_TOOLS_HARMONY, NO_TOOLS,
     "<|channel|>analysis<|message|>I think.<|end|><|start|>assistant<|channel|>final<|message|>"
     "It is so.<|return|>",
     "think|I think.\ntext|It is so.\n"},
    {SL_TOOLS_HARMONY, NO_TOOLS, "<|channel|>analysis<|message|>Not to the e",
     "think|Not to the e\n"},
    {SL_TOOLS_HARMONY, NO_TOOLS, "<|message|>No channel.", "text|No channel.\n"},
    {SL_TOOLS_HARMONY, NO_TOOLS,
     "<|channel|>finale<|message|>a<|channel|>finally and so on, and on<|message|>b", "think|ab\n"},
    {SL_TOOLS_HARMONY, NO_TOOLS, "<|end|>nobody's<|start|>user<|message|>asks", "text|asks\n"},
    {SL_TOOLS_HARMONY, NO_TOOLS, "<|channel|><|channel|><|message|><|message|>x<|end|><|end|>",
     "text|x\n"},
    /* ---- a template that shows no tools ---- */
    {SL_TOOLS_DEEPSEEK_V3, GENERIC,
     "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_call>",
     WEATHER},
};

#endif
