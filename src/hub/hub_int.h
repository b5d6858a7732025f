/* What the files of src/hub share. */
#ifndef SL_HUB_HUB_INT_H
#define SL_HUB_HUB_INT_H

#include "base/span.h"
#include "hub/hub.h"

#define SL_HUB_MAX_FILES  100000u             /* of one revision */
#define SL_HUB_MAX_NAME   1024u               /* bytes of a file's name with its folders */
#define SL_HUB_MAX_ANSWER (32u << 20)         /* bytes of one answer of the API */
#define SL_HUB_MAX_BYTES  ((uint64_t)1 << 48) /* of a file */
#define SL_HUB_ID         64u                 /* digits of a digest: 40 (SHA-1) or 64 (SHA-256) */

/* ---- which files there are (listing.c) ---- */

typedef struct sl_hub_file {
    char *name;             /* as "config.json" or "Q4_K_M/model-00001-of-00002.gguf" */
    uint64_t bytes;         /* */
    char id[SL_HUB_ID + 1]; /* SHA-256, or SHA-1 as git makes it of a blob; "": of the cache */
    bool wanted;            /* set by sl_hub_select */
} sl_hub_file;

typedef struct sl_hub_listing {
    sl_hub_file *file;
    size_t n;
} sl_hub_listing;

void sl_hub_listing_free(sl_hub_listing *l); /* what it holds */
/* False for what is no relative path below a folder: empty parts, "." and "..", control
 * characters, backslashes, parts over 255 or names over SL_HUB_MAX_NAME bytes. */
bool sl_hub_name_is_safe(const char *name);
bool sl_hub_is_hex(const char *text, size_t digits); /* exactly so many, lower case */
/* Adds a file; the name is copied. SL_ERR_FORMAT, SL_ERR_LIMIT, SL_ERR_NOMEM. */
sl_status sl_hub_listing_add(sl_hub_listing *l, const char *name, uint64_t bytes, const char *id,
                             sl_err *err) SL_MUST_CHECK;
/* The commit in an answer about a revision. */
sl_status sl_hub_commit_parse(const char *url, sl_span text, char out[SL_HUB_COMMIT + 1],
                              sl_err *err) SL_MUST_CHECK;
/* Adds the files of one page of an answer about a tree. */
sl_status sl_hub_tree_parse(const char *url, sl_span text, sl_hub_listing *l,
                            sl_err *err) SL_MUST_CHECK;
sl_hub_file *sl_hub_listing_find(const sl_hub_listing *l, const char *name); /* NULL: none */

/* ---- which of them a model needs (select.c) ---- */

typedef struct sl_hub_choice {
    const char *open;  /* the GGUF file to open, borrowed from the listing; NULL: the folder */
    const char *index; /* lists shards, which sl_hub_select_shards adds; NULL: nothing is left */
} sl_hub_choice;

/* Marks what is wanted. SL_ERR_ARG: nothing fits the pattern, or several models do;
 * SL_ERR_NOTFOUND: no weights that are read. `what` is for errors. */
sl_status sl_hub_select(sl_hub_listing *l, const char *what, const char *pattern, sl_hub_want want,
                        sl_hub_choice *out, sl_err *err) SL_MUST_CHECK;
/* Files without which sl_hub_select takes no folder for a model: weights, or what lists them. */
bool sl_hub_is_weights(const char *name);
/* Marks the shards that the index at `path` names. SL_ERR_NOTFOUND: one is not listed. */
sl_status sl_hub_select_shards(sl_hub_listing *l, const char *path, sl_err *err) SL_MUST_CHECK;

/* ---- the cache (cache.c) ---- */

/* CACHE/models--ORG--MODEL[/...]; SL_ERR_LIMIT: too long. */
sl_status sl_hub_path(const sl_hub_settings *s, const sl_hub_name *n, char out[SL_HUB_PATH],
                      sl_err *err, const char *fmt, ...) SL_PRINTF(5, 6);
sl_status sl_hub_make_folders(const char *path, sl_err *err) SL_MUST_CHECK; /* of a file's path */
/* refs/REVISION says `commit`; nothing where the revision is the commit itself. */
sl_status sl_hub_ref_write(const sl_hub_settings *s, const sl_hub_name *n, const char *commit,
                           sl_err *err) SL_MUST_CHECK;
/* snapshots/COMMIT/FILE is a link to blobs/ID. */
sl_status sl_hub_link(const sl_hub_settings *s, const sl_hub_name *n, const char *commit,
                      const sl_hub_file *f, sl_err *err) SL_MUST_CHECK;

/* ---- digests (digest.c) ---- */

typedef struct sl_hub_digest sl_hub_digest;
/* For a file of so many bytes whose id has 40 or 64 digits; NULL: no memory. */
sl_hub_digest *sl_hub_digest_start(uint64_t bytes, const char *id) SL_MUST_CHECK;
void sl_hub_digest_add(sl_hub_digest *d, const void *bytes, size_t n);
/* Digits of the digest; frees d. */
void sl_hub_digest_end(sl_hub_digest *d, char out[SL_HUB_ID + 1]);
void sl_hub_digest_free(sl_hub_digest *d); /* NULL-safe */

#endif
