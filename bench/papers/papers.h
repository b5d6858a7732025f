/* Our side of the tables of docs/reproduction.md: every figure is printed as one CSV line
 * "table,key,metric,value"; bench/papers.py puts the published one beside it. */
#ifndef SL_BENCH_PAPERS_H
#define SL_BENCH_PAPERS_H

#include <stdio.h>

void papers_findep(FILE *out);
void papers_megascale(FILE *out);
void papers_mixserve(FILE *out);
void papers_eps(FILE *out);
void papers_amoe(FILE *out);              /* simulates: minutes */
int papers_costs(FILE *out, char **argv); /* five words; an exit status */

/* key is a format; metric and value follow its arguments. */
#define PAPERS_ROW(out, table, metric, value, ...)                                                 \
    do {                                                                                           \
        fprintf(out, "%s,", table);                                                                \
        fprintf(out, __VA_ARGS__);                                                                 \
        fprintf(out, ",%s,%.8g\n", metric, value);                                                 \
    } while (0)

#endif
