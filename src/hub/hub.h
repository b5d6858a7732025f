/* Models by name: files of a model hub in the cache that the hub's own tools use.
 *
 * A name is ORG/MODEL[@REVISION][:PATTERN]. Its files lie in CACHE/models--ORG--MODEL: blobs/ has
 * them by digest, snapshots/COMMIT/ their names as symbolic links, refs/REVISION the commit that a
 * revision was at. docs/models-by-name.md has the whole. Nothing that the hub says is trusted:
 * names of files, sizes and digests are checked before anything is written, bytes when they have
 * come. Thread: any, for different models; two processes may fetch one at once. */
#ifndef SL_HUB_HUB_H
#define SL_HUB_HUB_H

#include "base/progress.h"
#include "base/status.h"

#include <stdbool.h>

#define SL_HUB_PART     96u  /* bytes of ORG, and of MODEL */
#define SL_HUB_REVISION 200u /* and of a pattern */
#define SL_HUB_PATH     4096u
#define SL_HUB_COMMIT   40u

typedef struct sl_hub_name {
    char org[SL_HUB_PART + 1], model[SL_HUB_PART + 1];
    char revision[SL_HUB_REVISION + 1]; /* "main" where none was said */
    char pattern[SL_HUB_REVISION + 1];  /* "": none */
} sl_hub_name;

/* True where `text` has the form of a name: no path begins so (".", "/", "~"), and there is
 * ORG/MODEL before the first of "@" and ":". */
bool sl_hub_is_name(const char *text);
/* SL_ERR_ARG names the part that is wrong. */
sl_status sl_hub_name_parse(const char *text, sl_hub_name *out, sl_err *err) SL_MUST_CHECK;

/* Where the hub and its cache are, as the variables of the hub's tools say (HF_HUB_CACHE, HF_HOME,
 * HF_ENDPOINT, HF_TOKEN, HF_TOKEN_PATH, HF_HUB_OFFLINE). */
typedef struct sl_hub_settings {
    char cache[SL_HUB_PATH]; /* absolute or as it was given; no slash at its end */
    char endpoint[512];      /* http://... or https://..., no slash at its end */
    char token[512];         /* "": none */
    bool offline;
    bool verify;          /* also files that are there already are read and compared */
    uint32_t connections; /* at once, 1 to 64 */
    double retry_s;       /* for so long what may mend is tried again */
} sl_hub_settings;

/* SL_ERR_ARG: a variable that cannot be meant, by name; SL_ERR_IO: a token file that is there and
 * cannot be read. The caller may change offline, verify, connections and retry_s afterwards. */
sl_status sl_hub_settings_read(sl_hub_settings *out, sl_err *err) SL_MUST_CHECK;

typedef enum sl_hub_want {
    SL_HUB_MODEL,  /* what computing with it needs */
    SL_HUB_CONFIG, /* config.json alone, where the model has one: what planning needs */
} sl_hub_want;

typedef struct sl_hub_report {
    char commit[SL_HUB_COMMIT + 1];
    char path[SL_HUB_PATH]; /* what to open: the snapshot's folder, or a GGUF file in it */
    uint32_t files;
    uint64_t bytes;   /* of all of them */
    uint64_t fetched; /* of them that came over the network now */
} sl_hub_report;

/* What the cache has, without any network. SL_ERR_NOTFOUND: it lacks something, and err says what.
 * SL_ERR_ARG: the pattern fits none of the model's files there, or several. */
sl_status sl_hub_find(const sl_hub_settings *s, const sl_hub_name *name, sl_hub_want want,
                      sl_hub_report *out, sl_err *err) SL_MUST_CHECK;

/* Asks the hub which files the revision has now, and brings those that the cache lacks. progress
 * may be NULL; done and total are bytes. SL_ERR_NOTFOUND: no such model, revision or file;
 * SL_ERR_AUTH: a gated model, or a token that does not do; SL_ERR_UNSUPPORTED: offline, or a build
 * without libcurl; SL_ERR_LIMIT: no room on the disk; SL_ERR_FORMAT: answers or bytes that are
 * wrong; SL_ERR_IO, SL_ERR_TIMEOUT: the network or the disk. What came stays for the next try. */
sl_status sl_hub_fetch(const sl_hub_settings *s, const sl_hub_name *name, sl_hub_want want,
                       sl_progress *progress, sl_hub_report *out, sl_err *err) SL_MUST_CHECK;

#endif
