/* The smallest program around Sluice: opens a model, generates text for a prompt, prints it as it
 * comes, closes. examples/README.md says how to build it.
 *
 *   generate MODEL PROMPT [TOKENS [ATTENTION-WORKERS [EXPERT-WORKERS]]] */
#include <sluice.h>

#include <stdio.h>
#include <stdlib.h>

static int print(void *ctx, const char *text, size_t len) {
    (void)ctx;
    fwrite(text, 1, len, stdout);
    fflush(stdout);
    return 0; /* anything else ends the request */
}

static uint32_t number(int argc, char **argv, int i) {
    return i < argc ? (uint32_t)strtoul(argv[i], NULL, 10) : 0;
}

int main(int argc, char **argv) {
    char why[256];
    if (argc < 3) {
        fprintf(stderr, "usage: %s MODEL PROMPT [TOKENS [ATTENTION [EXPERTS]]]\n", argv[0]);
        return 2;
    }
    const sluice_options options = {
        .model = argv[1], .attention = number(argc, argv, 4), .experts = number(argc, argv, 5)};
    sluice *s = sluice_open(&options, why, sizeof why);
    if (!s) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    const sluice_request request = {
        .prompt = argv[2], .max_tokens = number(argc, argv, 3), .on_text = print};
    long tokens = sluice_generate(s, &request, why, sizeof why);
    sluice_close(s);
    if (tokens < 0) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    fprintf(stderr, "\n%ld tokens\n", tokens);
    return 0;
}
