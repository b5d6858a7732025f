/* Any bytes as tokenizer.json, or as tiktoken.model where they begin like a line of one, and what
 * follows a NUL as tokenizer_config.json. What is accepted
 * must encode a fixed text with and without special tokens, and whatever it decodes to must be
 * UTF-8, streamed or not. */
#include "base/mem.h"
#include "text/tokenizer.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char text[] =
    "Hello  world's\n\n12345 \u00e9t\u00e9 e\u0301 \u6c49\u5b57 <|im_start|>user\r\n "
    "\tabab[MASK] x_y--z|\u2003\U0001F469\u200d\U0001F680 <|im_end|>";

static void check_decode(const sl_tokenizer *tok, const sl_ids *ids) {
    char *all = NULL, out[SL_DETOK_MAX_OUT];
    size_t len = 0, streamed = 0;
    sl_err err = {0};
    sl_detok d = {0};
    if (sl_tokenizer_decode(tok, ids->data, ids->len, false, &all, &len, &err) != SL_OK) abort();
    if (sl_utf8_valid_prefix((sl_span){(const uint8_t *)all, len}) != len) abort();
    for (size_t i = 0; i <= ids->len; i++) {
        size_t n = i < ids->len ? sl_detok_push(&d, tok, ids->data[i], false, out)
                                : sl_detok_flush(&d, out);
        if (n > sizeof out || n > len - streamed || memcmp(all + streamed, out, n) != 0) abort();
        streamed += n;
    }
    if (streamed != len) abort();
    sl_free(all);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_tokenizer *tok = NULL;
    sl_err err = {0};
    const uint8_t *nul = size > 0 ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    sl_span config = {0};
    if (nul) config = (sl_span){nul + 1, size - n - 1};
    bool lines = n > 2 && data[2] == '=';
    sl_status st = (lines ? sl_tokenizer_parse_tiktoken
                          : sl_tokenizer_parse)("fuzz", (sl_span){data, n}, config, &tok, &err);
    if (st != SL_OK) return 0;
    for (int special = 0; special < 2; special++) {
        sl_ids ids = {0};
        sl_span whole = {(const uint8_t *)text, sizeof text - 1};
        if (sl_tokenizer_encode(tok, whole, special, true, &ids, &err) == SL_OK)
            check_decode(tok, &ids);
        sl_ids_free(&ids);
    }
    sl_tokenizer_free(tok);
    return 0;
}
