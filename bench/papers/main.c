/* usage: bench_papers [PART]: findep, megascale, mixserve, eps or amoe; left out: all.
 *        bench_papers costs MODEL DEVICE BYTES RANKS RANKS */
#include "papers.h"

#include <string.h>

int main(int argc, char **argv) {
    static const struct {
        const char *name;
        void (*run)(FILE *out);
    } parts[] = {{"findep", papers_findep},
                 {"megascale", papers_megascale},
                 {"mixserve", papers_mixserve},
                 {"eps", papers_eps},
                 {"amoe", papers_amoe}};
    if (argc == 7 && strcmp(argv[1], "costs") == 0) return papers_costs(stdout, argv + 2);
    printf("table,key,metric,value\n");
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (argc < 2 || strcmp(argv[1], parts[i].name) == 0) parts[i].run(stdout);
        fflush(stdout);
    }
    return 0;
}
