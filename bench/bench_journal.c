/* What it costs to write a record of the journal: build/bench_journal FILE, where FILE is made and
 * removed again. CPU time of the writing thread, by the tokens' form. */
#include "serve/journal.h"
#include "serve/journal_records.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define RECORDS 200000u

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double us_a_record(sl_journal *j, uint32_t stride) {
    static const sl_logprob pairs[1 + SL_MAX_LOGPROBS];
    const uint32_t id = 7;
    const sl_journal_tokens t = {.number = 1,
                                 .n = 1,
                                 .stride = stride,
                                 .ids = {(const uint8_t *)&id, sizeof id},
                                 .logprobs = {(const uint8_t *)pairs, stride * sizeof *pairs}};
    size_t n = sl_journal_tokens_bytes(&t);
    double began = cpu_s();
    for (uint32_t i = 0; i < RECORDS; i++) {
        uint8_t *at = sl_journal_begin(j, n);
        if (!at) return -1;
        sl_journal_tokens_write(&t, at);
        if (!sl_journal_commit(j, SL_JOURNAL_HERE, SL_JOURNAL_TOKENS, n, NULL)) return -1;
    }
    return 1e6 * (cpu_s() - began) / RECORDS;
}

int main(int argc, char **argv) {
    static const sl_journal_about about;
    sl_journal *j = NULL;
    sl_err err = {0};
    if (argc != 2 || access(argv[1], F_OK) == 0) {
        fprintf(stderr, "usage: bench_journal FILE (one that is not there)\n");
        return 2;
    }
    if (sl_journal_open(argv[1], &about, &j, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("log-probabilities of a token,us a token\n");
    for (uint32_t stride = 0; stride <= 1 + SL_MAX_LOGPROBS; stride += stride ? 20 : 1)
        printf("%u,%.2f\n", stride, us_a_record(j, stride));
    sl_journal_close(j);
    unlink(argv[1]);
    return 0;
}
