/* The folder of --kv-disk: files of KV pages (format/kv_file.h), one for each attention worker,
 * which one process has at a time, and the salt with which a server makes its keys. What is in it
 * is of conversations: it is its owner's alone. Thread: any, not two on one lock. */
#ifndef SL_FORMAT_KV_FOLDER_H
#define SL_FORMAT_KV_FOLDER_H

#include "base/status.h"

#define SL_KV_SALT_BYTES 16u

/* It is there, or was made just now (mode 0700), and files can be written in it. SL_ERR_ARG: it is
 * no folder, another user's, or others may write in it. SL_ERR_IO: it cannot be used. */
sl_status sl_kv_folder_check(const char *folder, sl_err *err) SL_MUST_CHECK;

/* The salt of this folder, drawn by who asks first and the same from then on, so that keys of a
 * tenant are found again and no others are guessed. Errors: as above of its file; SL_ERR_FORMAT: it
 * has another size. */
sl_status sl_kv_folder_salt(const char *folder, uint8_t out[SL_KV_SALT_BYTES],
                            sl_err *err) SL_MUST_CHECK;

/* The file of worker `id`, and that no other process has it. */
typedef struct sl_kv_place {
    char *file; /* path; NULL: there is none */
    int lock;
} sl_kv_place;

/* Parts of the file that a process left which was killed are removed. SL_ERR_AGAIN: another one has
 * it; SL_ERR_ARG, SL_ERR_IO, SL_ERR_NOMEM. */
sl_status sl_kv_place_open(const char *folder, uint32_t id, sl_kv_place *out,
                           sl_err *err) SL_MUST_CHECK;
void sl_kv_place_close(sl_kv_place *p); /* zeroed is fine */

#endif
