/* The window of an answer's parser: text that is not certain yet, with markers in it, and the
 * events that are made of its beginning. */
#include "text/answer_int.h"

/* Bytes that UTF-8 never has: markers that are special tokens. */
static const uint8_t symbols[SL_ANSWER_MAX_SPECIAL] = {0xC0, 0xC1, 0xF5, 0xF6, 0xF7, 0xF8, 0xF9,
                                                       0xFA, 0xFB, 0xFC, 0xFD, 0xFE, 0xFF};

const char *sl_answer_symbol(size_t special) {
    return (const char *)&symbols[special];
}

sl_span sl_answer_literal(const sl_answer *a, const char *text) {
    for (size_t i = 0; i < a->n_special; i++)
        if (!strcmp(a->special[i].text, text)) return (sl_span){&symbols[i], 1};
    return (sl_span){(const uint8_t *)text, strlen(text)};
}

sl_match sl_answer_match(const sl_answer *a, size_t at, sl_span literal) {
    size_t have = SL_MIN(a->len - at, literal.len);
    if (have && memcmp(a->w + at, literal.data, have) != 0) return SL_MATCH_NONE;
    if (have == literal.len) return SL_MATCH_FULL;
    return a->last ? SL_MATCH_NONE : SL_MATCH_PART;
}

static void give(sl_answer *a, sl_answer_kind kind, const char *text, size_t n) {
    if (n == 0) return;
    const sl_answer_event ev = {.kind = kind, .text = {(const uint8_t *)text, n}};
    a->o.event(a->o.ctx, &ev);
}

void sl_answer_say(sl_answer *a, sl_answer_kind kind, const char *text, size_t n) {
    size_t from = 0;
    if (n == 0) return;
    for (size_t i = 0; i < n; i++) {
        if (!sl_answer_is_symbol(text[i])) continue;
        give(a, kind, text + from, i - from);
        for (size_t k = 0; k < a->n_special; k++)
            if (symbols[k] == (uint8_t)text[i])
                give(a, kind, a->special[k].text, strlen(a->special[k].text));
        from = i + 1;
    }
    give(a, kind, text + from, n - from);
}

void sl_answer_drop(sl_answer *a, size_t n) {
    if (n == 0) return;
    memmove(a->w, a->w + n, a->len - n);
    a->len -= n;
    a->at = a->at > n ? a->at - n : 0;
    a->n_space = SL_MIN(a->n_space, a->at);
    a->shown = a->shown > n ? a->shown - n : 0;
}

void sl_answer_begin_call(sl_answer *a, size_t drop) {
    const sl_answer_event ev = {.kind = SL_ANSWER_CALL,
                                .text = {(const uint8_t *)a->name, a->n_name},
                                .id = {(const uint8_t *)a->id, a->n_id}};
    sl_answer_drop(a, drop);
    a->begun = true;
    a->n_arguments = 0;
    a->n_calls++;
    a->o.event(a->o.ctx, &ev);
}

void sl_answer_arguments(sl_answer *a, const char *text, size_t n) {
    a->n_arguments += n;
    give(a, SL_ANSWER_ARGUMENTS, text, n);
}

void sl_answer_end_call(sl_answer *a) {
    if (a->fields && !a->value.on) sl_answer_arguments(a, "}", 1);
    if (a->n_arguments == 0) sl_answer_arguments(a, "{}", 2);
    a->begun = a->fields = false;
    a->n_name = a->n_id = 0;
    a->o.event(a->o.ctx, &(sl_answer_event){.kind = SL_ANSWER_CALL_END});
    if (a->o.one_call) a->state = SL_STATE_DONE;
}
