/* All-reduce of ranks that share memory, each a process on a CPU of its own.
 * usage: bench_collective [RANKS [ROUNDS]]
 * One CSV line a size: ranks, bytes, rounds, p10, p50, p90 of rank 0 in microseconds, and beside
 * them what the same bytes take one way, half a round trip of a copy into a slot and out of it, and
 * a memcpy of them. */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "net/collective.h"

#define WARM_UP     100u
#define MAX_BYTES   (1u << 20)
#define DEADLINE_MS 60000u
#define POLL_NS     1000000000u

static const size_t sizes[] = {1024, 8192, 16384, 65536, 262144, MAX_BYTES};

static float *own, *other;

static int compare_ns(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The i-th CPU that this process may use, and around. */
static void take_cpu(uint32_t i) {
    cpu_set_t may, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof may, &may) != 0) return;
    uint32_t n = i % (uint32_t)CPU_COUNT(&may);
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (!CPU_ISSET(cpu, &may) || n--) continue;
        CPU_SET(cpu, &one);
        if (sched_setaffinity(0, sizeof one, &one) != 0)
            fprintf(stderr, "CPU %d: %s\n", cpu, strerror(errno));
        return;
    }
}

static bool reduce(sl_coll *c, size_t bytes, sl_err *err) {
    return sl_coll_all_reduce(c, own, bytes / sizeof *own, err) == SL_OK;
}

/* Rows of rank 0 to the others and theirs back: what gathering costs, each way once. */
static bool echo(sl_coll *c, size_t bytes, sl_err *err) {
    const uint32_t n = (uint32_t)(bytes / sizeof *own);
    const bool first = own[0] >= 0;
    return sl_coll_all_gather(c, own, 1, 0, first ? n : 0, n, other, err) == SL_OK &&
           sl_coll_all_gather(c, own, 1, 0, first ? 0 : n, n, other, err) == SL_OK;
}

static bool copy(sl_coll *c, size_t bytes, sl_err *err) {
    (void)c, (void)err;
    memcpy(other, own, bytes);
    return true;
}

typedef bool (*work)(sl_coll *c, size_t bytes, sl_err *err);

static bool measure(sl_coll *c, work w, size_t bytes, uint32_t rounds, uint64_t *ns) {
    sl_err err = {0};
    for (uint32_t i = 0; i < rounds + WARM_UP; i++) {
        const uint64_t begin_ns = sl_now_ns();
        if (!w(c, bytes, &err)) {
            fprintf(stderr, "%s\n", err.msg);
            return false;
        }
        if (i >= WARM_UP) ns[i - WARM_UP] = sl_now_ns() - begin_ns;
    }
    qsort(ns, rounds, sizeof *ns, compare_ns);
    return true;
}

static int run_rank(uint32_t rank, uint32_t ranks, uint32_t rounds, void *memory) {
    const sl_coll_opts o = {.rank = {rank, ranks}, .poll_ns = POLL_NS, .deadline_ms = DEADLINE_MS};
    sl_err err = {0};
    sl_coll *c = NULL;
    uint64_t *ns = calloc(rounds, sizeof *ns);
    own = aligned_alloc(64, MAX_BYTES);
    other = aligned_alloc(64, MAX_BYTES);
    take_cpu(rank);
    if (!ns || !own || !other || sl_coll_open(&o, memory, &c, &err) != SL_OK) return 1;
    bool good = true;
    for (size_t i = 0; good && i < SL_LEN(sizes); i++) {
        double us[3] = {0}, way = 0;
        memset(own, 0, MAX_BYTES);
        memset(other, 0, MAX_BYTES);
        if (rank) own[0] = -1; /* see echo */
        good = measure(c, echo, sizes[i], rounds, ns);
        way = (double)ns[rounds / 2] / 2e3;
        own[0] = 0;
        good = good && measure(c, reduce, sizes[i], rounds, ns);
        for (uint32_t q = 0; q < 3; q++)
            us[q] = (double)ns[q == 0 ? rounds / 10 : q == 1 ? rounds / 2 : rounds / 10 * 9] / 1e3;
        good = good && measure(c, copy, sizes[i], rounds, ns);
        if (rank == 0)
            printf("%u,%zu,%u,%.2f,%.2f,%.2f,%.2f,%.2f\n", ranks, sizes[i], rounds, us[0], us[1],
                   us[2], way, (double)ns[rounds / 2] / 1e3);
    }
    sl_coll_free(c);
    free(ns), free(own), free(other);
    return !good;
}

int main(int argc, char **argv) {
    const uint32_t ranks = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    const uint32_t rounds = argc > 2 ? (uint32_t)atoi(argv[2]) : 2000;
    if (!sl_ranks_can_be(ranks) || ranks < 2 || rounds < 10)
        return fprintf(stderr, "usage: bench_collective [2|4|8 [ROUNDS]]\n"), 2;
    void *memory =
        mmap(NULL, sl_coll_bytes(ranks), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) return perror("mmap"), 1;
    printf("ranks,bytes,rounds,p10_us,p50_us,p90_us,one_way_us,memcpy_us\n");
    fflush(stdout);
    for (uint32_t i = 1; i < ranks; i++) {
        const pid_t pid = fork();
        if (pid < 0) return perror("fork"), 1;
        if (pid == 0) return run_rank(i, ranks, rounds, memory);
    }
    int bad = run_rank(0, ranks, rounds, memory), status;
    for (uint32_t i = 1; i < ranks; i++) bad |= wait(&status) < 0 || status != 0;
    return bad;
}
