/* Inside of the parser of answers: answer_window.c holds the text that is not certain yet; answer.c
 * tells text, reasoning and calls apart; answer_call.c runs the program of a call's format;
 * answer_args.c reads arguments that are no JSON yet; answer_harmony.c follows channels;
 * answer_formats.c has the tables, answer_tools.c what a request's tools are. */
#ifndef SL_TEXT_ANSWER_INT_H
#define SL_TEXT_ANSWER_INT_H

#include "text/answer.h"

#define SL_ANSWER_MAX_SPECIAL 13u              /* markers that are special tokens, of one format */
#define SL_DS_SEP             "<｜tool▁sep｜>" /* DeepSeek: between a call's kind, name and arguments */
#define SL_ANSWER_MAX_OPEN    8u
#define SL_ANSWER_MAX_NESTED  64u /* brackets in one another, in Python's notation */

/* What the program of a format does with the text of a call. Literals are markers; `to` is where
 * it goes on when a literal is not there. */
typedef enum sl_op_kind {
    SL_OP_SPACE,   /* skips white space */
    SL_OP_TEXT,    /* has to be there */
    SL_OP_IF,      /* may be there, else `to` */
    SL_OP_NAME,    /* a function's name */
    SL_OP_NAME_ID, /* functions.NAME:N, which is the call's id, too */
    SL_OP_ID,      /* a call's id */
    SL_OP_KNOWN,   /* the name is one of the request's tools */
    SL_OP_BEGIN,   /* the call begins, its arguments come in fields */
    SL_OP_JSON,    /* it begins where an object does: its arguments */
    SL_OP_OBJECT,  /* {"name": NAME, "arguments": {...}}: it begins inside */
    SL_OP_KEY,     /* a field's name up to the literal */
    SL_OP_VALUE,   /* its value up to the literal */
    SL_OP_LINES,   /* the same, on lines of its own */
    SL_OP_PYTHON,  /* it begins: arguments of a call in Python up to its bracket */
    SL_OP_END,     /* it is whole */
    SL_OP_GOTO,
    SL_OP_EXIT, /* text again */
} sl_op_kind;

typedef struct sl_op {
    sl_op_kind kind;
    const char *text;
    uint8_t to;
} sl_op;

/* What begins a call in the text. */
typedef struct sl_opening {
    const char *text; /* NULL: no more */
    uint8_t at;       /* in the program */
    bool first;       /* only where no text came before; it is read again by the program */
} sl_opening;

/* How a call begins up to its arguments, before and behind its function's name; # in it: how many
 * calls there were. */
typedef struct sl_forced {
    const char *before, *behind;
} sl_forced;

typedef struct sl_format {
    const sl_op *program;
    size_t n; /* operations */
    sl_opening opening[4];
    const char *closing; /* dropped after a call; NULL: none */
    sl_forced forced[2]; /* the second one of a function without parameters, of Mistral's newer
                            form; without: the first */
} sl_format;

extern const sl_format sl_answer_formats[SL_TOOLS_N];

/* A pair of markers of reasoning. */
typedef struct sl_thought {
    const char *open, *close;
} sl_thought;
const sl_thought *sl_answer_thought(const sl_answer_style *style); /* NULL: none */

/* A marker that is a special token: in the window it is one byte that UTF-8 never has. */
typedef struct sl_special {
    const char *text;
    int64_t id; /* -1: without a tokenizer */
} sl_special;

typedef enum sl_answer_state {
    SL_STATE_BEGIN, /* a thought may be opened */
    SL_STATE_THOUGHT,
    SL_STATE_TEXT,
    SL_STATE_CALL,
    SL_STATE_HEADER, /* harmony: before <|message|> */
    SL_STATE_BODY,   /* harmony: after it */
    SL_STATE_DONE,
} sl_answer_state;

typedef enum sl_match { SL_MATCH_NONE, SL_MATCH_PART, SL_MATCH_FULL } sl_match;

/* Of an operation; FAIL leaves `at` where it cannot go on. */
typedef enum sl_op_result { SL_OP_MORE, SL_OP_DONE, SL_OP_ELSE, SL_OP_FAIL } sl_op_result;

/* A JSON string, decoded byte by byte. */
typedef struct sl_unescape {
    uint8_t escape; /* 1: after a backslash; 2..5: digits of \u to come + 1 */
    uint32_t code, high;
} sl_unescape;

typedef struct sl_open_marker {
    sl_span text;
    const sl_format *format; /* NULL: a closing marker */
    uint8_t at;
    bool first;
} sl_open_marker;

typedef struct sl_object_state {
    uint8_t where;
    char key[16];
    size_t n_key;
    bool has_name, has_arguments;
    size_t from, to; /* arguments in the window that came before the name */
    sl_unescape string;
} sl_object_state;

typedef struct sl_value_state {
    bool on;        /* from its key to its end */
    bool shows;     /* it is text, which is shown as it comes */
    bool begun;     /* its opening quote is out, its first newline gone */
    bool any;       /* a field came before */
    unsigned kinds; /* that it may have, 0: any */
} sl_value_state;

typedef struct sl_python_state {
    uint8_t where;
    char stack[SL_ANSWER_MAX_NESTED]; /* closing brackets that are awaited */
    uint32_t depth;
    bool comma; /* one is due before what comes next */
    bool key;   /* what comes next is a dict's key */
    char quote;
    char word[64];
    uint32_t n_word;
    uint32_t digits; /* of an escape, to come */
} sl_python_state;

struct sl_answer {
    const sl_tokenizer *tok;
    sl_detok detok;
    sl_answer_options o;
    sl_special special[SL_ANSWER_MAX_SPECIAL];
    size_t n_special;
    sl_open_marker open[SL_ANSWER_MAX_OPEN];
    size_t n_open;
    const sl_thought *thought;

    /* what came and is not certain; [0..at) is read */
    char *w;
    size_t len, cap, at;
    size_t n_space; /* of these the last that are white space, while text is read */
    size_t shown;   /* first bytes whose special tokens are written out: of a broken call */
    bool last;      /* nothing follows */
    bool nomem;

    sl_answer_state state;
    bool after; /* white space that comes is the format's */
    bool fresh; /* no text came, but before calls */
    uint32_t n_calls;

    /* the call that is read */
    const sl_format *format;
    uint8_t pc;
    size_t n_open_bytes; /* of the window: what opened it */
    bool known;          /* its name has to be that of a tool */
    bool begun;          /* its event is out */
    bool fields;         /* its arguments come one by one */
    size_t n_arguments;
    char name[SL_ANSWER_MAX_NAME + 1], id[SL_ANSWER_MAX_NAME + 1];
    size_t n_name, n_id;
    /* of the operation under way, cleared between two */
    uint64_t depth; /* of brackets in JSON */
    bool in_string, escaped;
    sl_object_state object;
    sl_value_state value;
    sl_python_state python;

    sl_answer_kind body; /* harmony: whose text comes; CALL: arguments */
    bool opening;        /* harmony: no marker came */
};

/* answer_window.c */
static inline bool sl_answer_is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}
static inline bool sl_answer_is_symbol(char c) {
    uint8_t b = (uint8_t)c;
    return b == 0xC0 || b == 0xC1 || b >= 0xF5;
}
/* The byte of a->special[special]. */
const char *sl_answer_symbol(size_t special);
/* The marker as it stands in the window. */
sl_span sl_answer_literal(const sl_answer *a, const char *text);
sl_match sl_answer_match(const sl_answer *a, size_t at, sl_span literal);
/* Gives text of the window; symbols are written out. */
void sl_answer_say(sl_answer *a, sl_answer_kind kind, const char *text, size_t n);
void sl_answer_drop(sl_answer *a, size_t n); /* of the window's beginning */
/* The call with a->name begins; what was read is dropped. */
void sl_answer_begin_call(sl_answer *a, size_t drop);
void sl_answer_arguments(sl_answer *a, const char *text, size_t n);
void sl_answer_end_call(sl_answer *a);

/* answer_call.c: false when it needs more */
bool sl_answer_call_step(sl_answer *a);

/* answer_args.c */
sl_op_result sl_answer_key(sl_answer *a, sl_span literal);
sl_op_result sl_answer_value(sl_answer *a, sl_span literal, bool lines);
sl_op_result sl_answer_python(sl_answer *a);

/* answer_harmony.c */
bool sl_answer_header_step(sl_answer *a);
bool sl_answer_body_step(sl_answer *a);
bool sl_answer_harmony_markers(const char *const **out, size_t *n);

/* answer_tools.c: whether the tool has parameters */
bool sl_tool_set_takes(const sl_tool_set *t, sl_span tool);
/* Kinds that a parameter may have, as 1 << sl_json_kind; 0: any */
unsigned sl_tool_set_kinds(const sl_tool_set *t, sl_span tool, sl_span parameter);

#endif
