/* Digests of files while they arrive: one thread reads what has come and hashes it, so that a file
 * is known to be right soon after its last byte. Thread: owner, but for the thread inside. */
#ifndef SL_HUB_CURL_CHECK_H
#define SL_HUB_CURL_CHECK_H

#include "hub/hub_int.h"

typedef struct sl_hub_checker sl_hub_checker;

/* For up to `most` files at once. */
sl_status sl_hub_checker_create(uint32_t most, sl_hub_checker **out, sl_err *err) SL_MUST_CHECK;
void sl_hub_checker_free(sl_hub_checker *c); /* NULL-safe; ends the thread */
/* Takes a place for a file whose `fd` stays open until sl_hub_checker_leave. */
sl_status sl_hub_checker_join(sl_hub_checker *c, int fd, uint64_t bytes, const char *id,
                              uint32_t *place, sl_err *err) SL_MUST_CHECK;
void sl_hub_checker_leave(sl_hub_checker *c, uint32_t place);
/* Bytes of the file that are there without a gap; never fewer than before. */
void sl_hub_checker_front(sl_hub_checker *c, uint32_t place, uint64_t bytes);
uint64_t sl_hub_checker_hashed(sl_hub_checker *c, uint32_t place); /* bytes of it so far */
/* True when the file has been read to its end and is on the disk: *st tells how that went, and
 * `id` its digest. */
bool sl_hub_checker_ended(sl_hub_checker *c, uint32_t place, char id[SL_HUB_ID + 1], sl_status *st,
                          sl_err *err);

#endif
