/* The set of keys: read from lines, compared, replaced as a whole. */
#include "serve/keys.h"

#include "base/mem.h"

#include <string.h>

#define MAX_KEYS  4096u
#define MIN_BYTES 8u /* of a key in a file */
#define MAX_BYTES 256u

void sl_keys_init(sl_keys *k) {
    *k = (sl_keys){0};
    pthread_mutex_init(&k->lock, NULL);
}

static void drop(char **key, size_t n) {
    for (size_t i = 0; i < n; i++) sl_free(key[i]);
    sl_free(key);
}

void sl_keys_free(sl_keys *k) {
    drop(k->key, k->n);
    pthread_mutex_destroy(&k->lock);
}

static bool is_key(const char *text, size_t n) {
    bool fine = n >= MIN_BYTES && n <= MAX_BYTES;
    for (size_t i = 0; i < n && fine; i++) fine = text[i] > ' ' && text[i] <= '~';
    return fine;
}

/* Adds the keys of the lines to key[*n]; there is room for MAX_KEYS and one. */
static sl_status read_lines(const char *lines, char **key, size_t *n, sl_err *err) {
    size_t had = *n;
    for (size_t number = 1; *lines; number++) {
        size_t whole = strcspn(lines, "\n"), len = whole;
        const char *text = lines;
        while (len > 0 && strchr(" \t\r", text[len - 1])) len--;
        while (len > 0 && strchr(" \t", *text)) text++, len--;
        lines += whole + (lines[whole] == '\n');
        if (len == 0 || *text == '#') continue;
        if (!is_key(text, len))
            return sl_fail(err, SL_ERR_ARG,
                           "line %zu: a key has %u to %u printable characters of ASCII and no "
                           "spaces, this one has %zu bytes",
                           number, MIN_BYTES, MAX_BYTES, len);
        if (*n - had == MAX_KEYS)
            return sl_fail(err, SL_ERR_LIMIT, "line %zu: more than %u keys", number, MAX_KEYS);
        key[*n] = sl_strndup(text, len);
        if (!key[*n]) return sl_fail(err, SL_ERR_NOMEM, "keys: out of memory");
        ++*n;
    }
    return *n > had ? SL_OK : sl_fail(err, SL_ERR_ARG, "there is no key in it");
}

sl_status sl_keys_set(sl_keys *k, const char *one, const char *lines, sl_err *err) {
    size_t n = 0;
    sl_status st = SL_OK;
    char **key = sl_alloc(MAX_KEYS + 1, sizeof *key);
    if (!key) return sl_fail(err, SL_ERR_NOMEM, "keys: out of memory");
    if (one) {
        key[0] = sl_strdup(one);
        if (!key[0]) st = sl_fail(err, SL_ERR_NOMEM, "keys: out of memory");
        n = key[0] ? 1 : 0;
    }
    if (st == SL_OK && lines) st = read_lines(lines, key, &n, err);
    if (st != SL_OK) {
        drop(key, n);
        return st;
    }
    pthread_mutex_lock(&k->lock);
    char **old = k->key;
    size_t n_old = k->n;
    k->key = key;
    k->n = n;
    pthread_mutex_unlock(&k->lock);
    drop(old, n_old);
    return SL_OK;
}

/* Takes the same time wherever they differ. */
bool sl_key_matches(const char *given, const char *key) {
    size_t n = strlen(key), m = strlen(given);
    unsigned differ = n != m;
    for (size_t i = 0; i < m; i++) differ |= (unsigned char)(given[i] ^ key[n ? i % n : 0]);
    return differ == 0;
}

bool sl_keys_has(sl_keys *k, const char *given) {
    bool has = false;
    pthread_mutex_lock(&k->lock);
    for (size_t i = 0; i < k->n; i++) has |= sl_key_matches(given, k->key[i]);
    pthread_mutex_unlock(&k->lock);
    return has;
}
