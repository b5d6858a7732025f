/* Sluice embedded: generate text from a Mixture-of-Experts checkpoint inside your own program.
 *
 *   char why[256];
 *   sluice *s = sluice_open(&(sluice_options){.model = "models/demo"}, why, sizeof why);
 *   sluice_request hello = {.prompt = "Hello", .max_tokens = 32, .on_text = print};
 *   sluice_generate(s, &hello, why, sizeof why);
 *   sluice_close(s);
 *
 * Or fetch the text at your own pace: sluice_start, sluice_next until it has a finish,
 * sluice_stream_close. Built with the flags of `pkg-config --cflags --libs sluice`; examples/ has a
 * whole program, and the Python package a binding. Workers are threads of this process: after a
 * fork the child has none of them, and may not call anything here.
 *
 * Strings are copied unless said otherwise. Reasons are UTF-8, cut to cap, with a NUL. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sluice sluice;

typedef struct sluice_options {
    const char *model;  /* Hugging Face folder, or a GGUF file */
    uint32_t attention; /* workers; 0 with experts 0: one that does all */
    uint32_t experts;   /* 0 with attention > 0: that many colocated workers */
    uint32_t threads;   /* kernel threads of one worker; 0: 1 */
    uint32_t context;   /* positions a request may take; 0: the model's, at most 4096 */
    int exact;          /* bit-identical whatever the workers */
} sluice_options;

typedef struct sluice_request {
    const char *prompt;  /* UTF-8; NULL with ids */
    const uint32_t *ids; /* token ids in its place, taken as they are; NULL with a prompt */
    size_t n_ids;
    int chat;            /* nonzero: the prompt is a user's message for the model's chat template */
    uint32_t max_tokens; /* 0: 128 */
    float temperature;   /* 0: greedy */
    float top_p;         /* 0: off */
    uint32_t top_k;      /* 0: off */
    uint64_t seed;
    /* For sluice_generate: new text as it comes, whole UTF-8 characters, no NUL; a nonzero return
     * stops the request. On the thread that called sluice_generate. May be NULL. */
    int (*on_text)(void *ctx, const char *text, size_t len);
    void *ctx;
} sluice_request;

/* NULL on failure, with the reason in why[0..cap). The first call on a machine measures which
 * kernels are fastest there, some 50 ms, and keeps that as the program does: in "sluice" in
 * $XDG_CACHE_HOME or $HOME/.cache, where it can. Thread: any. */
sluice *sluice_open(const sluice_options *options, char *why, size_t cap);

/* Runs one request to its end; many threads may call it at once. Tokens generated, or -1 and why.
 */
long sluice_generate(sluice *s, const sluice_request *request, char *why, size_t cap);

/* A request whose text is fetched. Whoever started it closes it. */
typedef struct sluice_stream sluice_stream;

typedef enum sluice_finish {
    SLUICE_RUNNING,
    SLUICE_STOP,      /* an end-of-sequence token */
    SLUICE_LENGTH,    /* max_tokens came */
    SLUICE_CANCELLED, /* sluice_cancel */
} sluice_finish;

typedef struct sluice_piece {
    const char *text;    /* whole UTF-8 characters, no NUL; borrowed until the stream's next call */
    size_t len;          /* may be 0 */
    const uint32_t *ids; /* the tokens that came, also those without text; borrowed until close */
    size_t n_ids;
    sluice_finish finish; /* not SLUICE_RUNNING: nothing follows */
} sluice_piece;

/* Queues a request (on_text is not read). NULL and why. Thread: any; many streams may be open. */
sluice_stream *sluice_start(sluice *s, const sluice_request *request, char *why, size_t cap);

/* What came since the last call, waiting up to timeout_ms for something: 1 and *out; 0: nothing
 * came yet; -1: the request failed, and why. After its end 1 again, with nothing but the finish.
 * Thread: one at a time for a stream. */
int sluice_next(sluice_stream *t, uint32_t timeout_ms, sluice_piece *out, char *why, size_t cap);

/* The request ends soon; what came before is still to be had. Thread: any, until close. */
void sluice_cancel(sluice_stream *t);

/* Cancels a request that runs, waits for its end, frees the stream. NULL-safe. */
void sluice_stream_close(sluice_stream *t);

/* After all sluice_generate have returned and all streams were closed; NULL-safe. */
void sluice_close(sluice *s);

const char *sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif
