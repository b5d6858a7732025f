/* All-reduce by an MPI library, each rank on a CPU of its own, for bench/collectives.py.
 * usage: collectives_mpi CALLS BYTES ...
 * One CSV line a size, by rank 0: bytes and the median of the calls in microseconds. */
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UP 100

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The i-th CPU that this process may use, as build/bench_collective takes it. */
static void take_cpu(int i) {
    cpu_set_t may, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof may, &may) != 0) return;
    int n = i % CPU_COUNT(&may);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &may) || n--) continue;
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0) perror("sched_setaffinity");
        return;
    }
}

/* Median of so many sums of those bytes, in place. */
static double measure(float *y, size_t bytes, int calls, double *us) {
    for (int i = 0; i < calls + WARM_UP; i++) {
        const double began = MPI_Wtime();
        MPI_Allreduce(MPI_IN_PLACE, y, (int)(bytes / sizeof *y), MPI_FLOAT, MPI_SUM,
                      MPI_COMM_WORLD);
        if (i >= WARM_UP) us[i - WARM_UP] = (MPI_Wtime() - began) * 1e6;
    }
    qsort(us, (size_t)calls, sizeof *us, compare);
    return us[calls / 2];
}

int main(int argc, char **argv) {
    int rank = 0, bad = 0;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    const int calls = argc > 2 ? atoi(argv[1]) : 0;
    double *us = calls > 0 ? calloc((size_t)calls, sizeof *us) : NULL;
    if (!us) {
        fprintf(stderr, "usage: collectives_mpi CALLS BYTES ...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    take_cpu(rank);
    for (int i = 2; i < argc && !bad; i++) {
        const size_t bytes = (size_t)atol(argv[i]) / 64 * 64;
        float *y = bytes ? aligned_alloc(64, bytes) : NULL;
        bad = !y;
        if (bad) break;
        memset(y, 0, bytes);
        MPI_Barrier(MPI_COMM_WORLD);
        const double median = measure(y, bytes, calls, us);
        if (rank == 0) printf("%zu,%.2f\n", bytes, median);
        free(y);
    }
    free(us);
    if (bad) MPI_Abort(MPI_COMM_WORLD, 1);
    MPI_Finalize();
    return 0;
}
