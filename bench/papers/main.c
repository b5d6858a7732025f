#include "papers.h"

int main(void) {
    printf("table,key,metric,value\n");
    papers_findep(stdout);
    papers_megascale(stdout);
    papers_mixserve(stdout);
    papers_eps(stdout);
    papers_amoe(stdout);
    return 0;
}
