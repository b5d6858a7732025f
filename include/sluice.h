/* Sluice embedded: generate text from a Mixture-of-Experts checkpoint inside your own program.
 *
 *   char why[256];
 *   sluice *s = sluice_open(&(sluice_options){.model = "models/demo"}, why, sizeof why);
 *   sluice_request hello = {.prompt = "Hello", .max_tokens = 32, .on_text = print};
 *   sluice_generate(s, &hello, why, sizeof why);
 *   sluice_close(s);
 *
 * Built with the flags of `pkg-config --cflags --libs sluice`; examples/ has a whole program.
 * Workers are threads of this process. */
#ifndef SLUICE_H
#define SLUICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sluice sluice;

typedef struct sluice_options {
    const char *model;  /* Hugging Face folder */
    uint32_t attention; /* workers; 0 with experts 0: one that does all */
    uint32_t experts;   /* 0 with attention > 0: that many colocated workers */
    uint32_t threads;   /* kernel threads of one worker; 0: 1 */
    uint32_t context;   /* positions a request may take; 0: the model's, at most 4096 */
    int exact;          /* bit-identical whatever the workers */
} sluice_options;

typedef struct sluice_request {
    const char *prompt;  /* UTF-8 */
    int chat;            /* nonzero: the prompt is a user's message for the model's chat template */
    uint32_t max_tokens; /* 0: 128 */
    float temperature;   /* 0: greedy */
    float top_p;         /* 0: off */
    uint32_t top_k;      /* 0: off */
    uint64_t seed;
    /* New text as it comes, whole UTF-8 characters, no NUL; a nonzero return stops the request.
     * Called on a thread of the engine: do not block, do not call sluice_* from it. May be NULL. */
    int (*on_text)(void *ctx, const char *text, size_t len);
    void *ctx;
} sluice_request;

/* NULL on failure, with the reason in why[0..cap). */
sluice *sluice_open(const sluice_options *options, char *why, size_t cap);

/* Runs one request to its end; many threads may call it at once. Tokens generated, or -1 and why.
 */
long sluice_generate(sluice *s, const sluice_request *request, char *why, size_t cap);

void sluice_close(sluice *s); /* after all sluice_generate have returned; NULL-safe */

const char *sluice_version(void);

#ifdef __cplusplus
}
#endif

#endif
