/* Keys that open the API: that of the options, and those of a file, which may change while the
 * server runs. Thread: any. */
#ifndef SL_SERVE_KEYS_H
#define SL_SERVE_KEYS_H

#include "base/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct sl_keys {
    pthread_mutex_t lock;
    char **key; /* [n], under the lock */
    size_t n;
} sl_keys;

void sl_keys_init(sl_keys *k);
void sl_keys_free(sl_keys *k);
/* From now on these alone open it: `one`, and those of `lines`, one a line, but for empty lines and
 * those that begin with '#'; both may be NULL, copied. On an error, which names the line and never
 * the key, all is as before. */
sl_status sl_keys_set(sl_keys *k, const char *one, const char *lines, sl_err *err) SL_MUST_CHECK;
/* Takes the same time for every key that is wrong. */
bool sl_keys_has(sl_keys *k, const char *given);
/* The same of one key. */
bool sl_key_matches(const char *given, const char *key);

#endif
