/* Words that an answer is not to have (bad_words): the sequences of tokens that they are, as the
 * sampler wants them (sl_sampling.bad). As vLLM has it: a word as it is, and with a space before it
 * where that is as many tokens and begins with another one. */
#include "serve/server_int.h"

#include "base/mem.h"

/* Without white space before it, which is not of the word. */
static sl_span trim(sl_span word) {
    while (word.len > 0 && (*word.data == ' ' || (*word.data >= '\t' && *word.data <= '\r')))
        word = (sl_span){word.data + 1, word.len - 1};
    return word;
}

static sl_status encode(const sl_call *call, sl_span word, bool space, sl_ids *out, sl_err *err) {
    uint8_t text[1 + SL_STOP_MAX_BYTES] = " ";
    word = trim(word);
    memcpy(text + space, word.data, word.len);
    return sl_tokenizer_encode(call->server->o.tokenizer, (sl_span){text, space + word.len}, true,
                               false, out, err);
}

/* Appends a sequence behind its length. */
static sl_status push(sl_ids *all, const sl_ids *one, sl_err *err) {
    sl_status st = sl_ids_push(all, (uint32_t)one->len, err);
    for (size_t i = 0; st == SL_OK && i < one->len; i++) st = sl_ids_push(all, one->data[i], err);
    return st;
}

/* Both forms of a word, to `all`; *n: sequences there are. */
static sl_status take_word(const sl_call *call, sl_span word, sl_ids *all, size_t *n, sl_err *err) {
    sl_ids plain = {0}, spaced = {0};
    sl_status st = encode(call, word, false, &plain, err);
    if (st == SL_OK && plain.len == 0) st = sl_fail(err, SL_ERR_ARG, "no tokens");
    if (st == SL_OK) st = push(all, &plain, err);
    if (st == SL_OK) st = encode(call, word, true, &spaced, err);
    *n += st == SL_OK;
    if (st == SL_OK && spaced.len == plain.len && spaced.data[0] != plain.data[0]) {
        st = push(all, &spaced, err);
        *n += st == SL_OK;
    }
    sl_ids_free(&plain);
    sl_ids_free(&spaced);
    return st;
}

static sl_status take_words(const sl_call *call, sl_ids *all, sl_api_error *e) {
    const sl_json words = call->params.bad_words;
    size_t n = 0;
    for (size_t i = 0; i < sl_json_count(words); i++) {
        sl_err err = {0};
        sl_span word = {0};
        (void)sl_json_as_span(sl_json_at(words, i), &word);
        const sl_status st = take_word(call, word, all, &n, &err);
        if (st == SL_ERR_ARG)
            return sl_api_error_bad(e, "bad_words", "bad_words[%zu]: no tokens", i);
        if (st != SL_OK) return sl_api_error_of(e, st, "bad_words", err.msg);
        if (n > SL_MAX_BAD_WORDS || all->len - n > SL_MAX_BAD_TOKENS)
            return sl_api_error_bad(e, "bad_words",
                                    "bad_words: %zu sequences of %zu tokens up to string %zu, "
                                    "limits %u and %u",
                                    n, all->len - n, i, SL_MAX_BAD_WORDS, SL_MAX_BAD_TOKENS);
    }
    return SL_OK;
}

sl_status sl_call_take_bad_words(sl_call *call, sl_api_error *e) {
    sl_api_params *p = &call->params;
    sl_ids all = {0};
    if (!p->bad_words.value) return SL_OK;
    sl_status st = take_words(call, &all, e);
    if (st != SL_OK) {
        sl_ids_free(&all);
        return st;
    }
    p->bad = all.data;
    p->sampling.bad = p->bad;
    p->sampling.n_bad = (uint32_t)all.len;
    return SL_OK;
}
