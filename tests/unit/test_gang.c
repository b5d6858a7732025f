/* A gang is a device: of every family's fixture, 1, 2, 4 and 8 ranks, threads, processes and
 * processes that are called as on other machines, give the same bits, whether ranks gather what
 * they multiply or add up in segments; pages that one wrote, others go on from. A process gang's
 * rank that ends, ends the gang's. */
#include "device_run.h"
#include "sanitized.h"

#include "model/convert.h"

#include <math.h>
#include <sched.h>
#include <sys/resource.h>

/* How many ranks are processes, in turn: few often, for the machine has few cores. */
static const uint32_t in_turn[] = {2, 4, 2, 2, 8, 2};
static uint32_t turn;

/* Of a sample one kind of sums. */
static void check(const char *name, const char *path, sl_activations how, uint32_t kind) {
    for (uint32_t segmented = 0; segmented < 2; segmented++) {
        if ((segmented + kind) % take_one_in(2)) continue;
        run one = start(open_gang(path, 1, SL_RANKS_THREADS, segmented, how, 1));
        run moved = start(open_gang(path, 2, SL_RANKS_THREADS, segmented, how, 1));
        run gang[5];
        for (uint32_t i = 0; i < 3; i++)
            gang[i] =
                start(open_gang(path, 2u << i, SL_RANKS_THREADS, segmented, how, i == 0 ? 4 : 1));
        const uint32_t most = in_turn[turn++ % SL_LEN(in_turn)];
        gang[3] = start(open_gang(path, most, SL_RANKS_PROCESSES, segmented, how, 1));
        const servers others = serve_ranks(path, most);
        ranks_at = others.at;
        gang[4] = start(open_gang(path, most, SL_RANKS_MACHINES, segmented, how, 1));
        const uint32_t ranks[] = {2, 4, 8, most, most};
        for (uint32_t step = 0; step < STEPS; step++) {
            if (step == 1) carry_pages(&gang[1 + segmented], &gang[3]);
            if (step == 1) carry_pages(&gang[3], &gang[4]);
            if (step == 1) carry_pages(&gang[4], &moved);
            run_step(&one, step);
            gang[4].inside = gang[4].d->inside && (step + kind) % 2 == 0;
            for (uint32_t i = 0; i < 5; i++) {
                run_step(&gang[i], step);
                same_bits(&one, &gang[i], name, ranks[i]);
            }
        }
        run_step(&moved, 1);
        same_bits(&one, &moved, name, 2);
        for (uint32_t i = 0; i < 5; i++) end(&gang[i]);
        served(&others);
        end(&moved);
        end(&one);
    }
}

static void check_ranks(const char *name, const char *path, uint32_t n) {
    const bool both = take_whole() || !SL_SLOW_BUILD;
    const sl_activations how = n / 2 % 2 ? SL_ACTIVATIONS_BF16 : SL_ACTIVATIONS_INT8;
    if (both || n % 2) check(name, path, SL_ACTIVATIONS_F32, n / 2);
    if (both || n % 2 == 0) check(name, path, how, n / 4);
    if (strstr(name, ".gguf")) check(name, path, SL_ACTIVATIONS_INT8, n);
}

static void ranks_give_the_same(void **state) {
    (void)state;
    assert_true(each_fixture(check_ranks) >= 12);
}

#define ONE_FIXTURE GOLDEN "qwen3moe-tiny"

/* A thread whose gang had each rank on cores of its own has all of its cores again after it: the
 * next gang of it, of a worker that joins once more, takes as many. */
static void cores_come_back(void **state) {
    (void)state;
    for (uint32_t kind = 0; kind < 2; kind++) {
        sl_device_opts o = options_of(ONE_FIXTURE, 2, kind ? SL_RANKS_PROCESSES : SL_RANKS_THREADS);
        o.threads = 2;
        o.apart = true;
        cpu_set_t before, meanwhile, after;
        sl_device *d = NULL;
        sl_err err;
        assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
        if (sl_device_open(&o, &d, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(sched_getaffinity(0, sizeof meanwhile, &meanwhile), 0);
        assert_int_equal(CPU_COUNT(&meanwhile), 1);
        sl_device_close(d);
        assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
        assert_true(CPU_EQUAL(&before, &after));
    }
}

/* Experts that a gang of that kind did not have at first: of three one, or none, and room for so
 * many pairs. */
static void host_later(sl_rank_kind kind, uint32_t of_three, uint32_t max_pairs) {
    sl_model_spec m;
    sl_hosting left;
    sl_err err;
    const servers others = serve_ranks(ONE_FIXTURE, kind == SL_RANKS_MACHINES ? 2 : 1);
    ranks_at = others.at;
    assert_int_equal(sl_model_read_spec(ONE_FIXTURE, &m, NULL, &err), SL_OK);
    uint8_t *hosted = calloc((size_t)m.n_moe, m.n_experts);
    assert_non_null(hosted);
    for (uint32_t i = 0; of_three && i < m.n_moe * m.n_experts; i += 3) hosted[i] = 1;
    sl_device_opts o = options_of(ONE_FIXTURE, 2, kind);
    o.hosts.hosted = hosted;
    o.hosts.segmented = o.exact = true;
    o.max_pairs = max_pairs;
    run one = start(open_gang(ONE_FIXTURE, 1, SL_RANKS_THREADS, true, o.activations, 1));
    run gang = start(open_device(&o));
    memset(hosted, 1, (size_t)m.n_moe * m.n_experts);
    do assert_int_equal(sl_device_host(gang.d, hosted, PAIRS, true, &left, &err), SL_OK);
    while (left != SL_HOSTING_DONE);
    run_step(&one, 0);
    run_step(&gang, 0);
    same_bits(&one, &gang, "hosted later", 2);
    end(&gang);
    served(&others);
    end(&one);
    free(hosted);
}

static void hosted_later(void **state) {
    (void)state;
    host_later(SL_RANKS_PROCESSES, 1, PAIRS);
    host_later(SL_RANKS_MACHINES, 1, PAIRS);
    host_later(SL_RANKS_MACHINES, 0, 1); /* more experts are more pairs of a call */
}

/* A call with more data than any before it, and others after it. */
static void calls_grow(void **state) {
    const uint32_t many = 20000;
    (void)state;
    run one = start(open_gang(ONE_FIXTURE, 1, SL_RANKS_THREADS, true, SL_ACTIVATIONS_F32, 1));
    run gang = start(open_gang(ONE_FIXTURE, 2, SL_RANKS_PROCESSES, true, SL_ACTIVATIONS_F32, 1));
    run *both[] = {&one, &gang};
    sl_mem rows[2];
    uint32_t *id = calloc(many, sizeof *id);
    assert_non_null(id);
    for (uint32_t i = 0; i < many; i++) id[i] = i % one.s->vocab;
    for (uint32_t i = 0; i < 2; i++) {
        sl_err err;
        run_step(both[i], 0);
        assert_int_equal(sl_device_take_rows(both[i]->d, many, &rows[i], &err), SL_OK);
        const sl_stage_call c = {.op = SL_OP_EMBED, .rows = {.n = many, .id = id, .x = rows[i]}};
        sl_device_submit(both[i]->d, &c);
        run_step(both[i], 1);
    }
    assert_memory_equal((void *)(uintptr_t)rows[0].at, (void *)(uintptr_t)rows[1].at,
                        rows[0].bytes);
    same_bits(&one, &gang, "after it", 2);
    for (uint32_t i = 0; i < 2; i++) sl_device_give(both[i]->d, rows[i]);
    free(id);
    end(&gang);
    end(&one);
}

static size_t address_space(void) {
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%zu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE);
}

/* Memory that its ranks were sent and the worker itself could not map is nobody's: the next that it
 * takes, as large, is the same at all of them. */
static void taking_may_fail(void **state) {
    const size_t large = (size_t)1 << 30;
    const uint32_t many = 64;
    struct rlimit before, low;
    uint32_t id[64];
    sl_mem rows[2];
    sl_err err;
    (void)state;
    run one = start(open_gang(ONE_FIXTURE, 1, SL_RANKS_THREADS, true, SL_ACTIVATIONS_F32, 1));
    run gang = start(open_gang(ONE_FIXTURE, 2, SL_RANKS_PROCESSES, true, SL_ACTIVATIONS_F32, 1));
    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    low = before;
    low.rlim_cur = address_space() + large / 4;
    assert_int_equal(setrlimit(RLIMIT_AS, &low), 0);
    const sl_status st = gang.d->ops->take(gang.d, large, &rows[1], &err);
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    assert_int_equal(st, SL_ERR_NOMEM);
    assert_int_equal(gang.d->ops->take(gang.d, large, &rows[1], &err), SL_OK);
    assert_int_equal(sl_device_take_rows(one.d, many, &rows[0], &err), SL_OK);
    for (uint32_t i = 0; i < many; i++) id[i] = i;
    run *both[] = {&one, &gang};
    for (uint32_t i = 0; i < 2; i++) {
        const sl_stage_call c = {.op = SL_OP_EMBED, .rows = {.n = many, .id = id, .x = rows[i]}};
        sl_device_submit(both[i]->d, &c);
    }
    assert_memory_equal((void *)(uintptr_t)rows[0].at, (void *)(uintptr_t)rows[1].at,
                        rows[0].bytes);
    for (uint32_t i = 0; i < 2; i++) sl_device_give(both[i]->d, rows[i]);
    end(&gang);
    end(&one);
}

/* The processes that this one has started. */
static uint32_t children(pid_t *pid, uint32_t most) {
    char path[64];
    uint32_t n = 0;
    int found;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (n < most && fscanf(f, "%d", &found) == 1) pid[n++] = found;
    fclose(f);
    return n;
}

/* What becomes of a process with a gang whose second rank gets that signal. */
static int without_a_rank(int sig) {
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        pid_t rank[8];
        run gang =
            start(open_gang(ONE_FIXTURE, 4, SL_RANKS_PROCESSES, true, SL_ACTIVATIONS_F32, 1));
        if (children(rank, 8) != 3) _exit(7);
        run_step(&gang, 0);
        kill(rank[1], sig);
        run_step(&gang, 1);
        _exit(8);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

static void a_rank_that_ends_ends_the_gang(void **state) {
    (void)state;
    int status = without_a_rank(SIGKILL);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    status = without_a_rank(SIGABRT); /* its own fault is its worker's */
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

/* A rank on another machine that ends, and one that was never there. */
static void a_machine_that_is_gone_is_named(void **state) {
    (void)state;
    servers others = serve_ranks(ONE_FIXTURE, 4);
    ranks_at = others.at;
    int status;
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        run gang =
            start(open_gang(ONE_FIXTURE, 4, SL_RANKS_MACHINES, false, SL_ACTIVATIONS_F32, 1));
        run_step(&gang, 0);
        kill(others.pid[1], SIGKILL);
        run_step(&gang, 1);
        _exit(8);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 1);
    for (uint32_t i = 0; i < others.n; i++) { /* the other two hear of it, and begin anew */
        assert_int_equal(waitpid(others.pid[i], &status, 0), others.pid[i]);
        if (i != 1) assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 3);
    }
}

/* Of another model, of another secret, and fewer addresses than ranks. */
static void strangers_are_refused(void **state) {
    (void)state;
    const servers others = serve_ranks(GOLDEN "qwen2moe-tiny", 2);
    ranks_at = others.at;
    sl_device_opts o = options_of(ONE_FIXTURE, 2, SL_RANKS_MACHINES);
    sl_device *d = NULL;
    sl_err err;
    assert_int_not_equal(sl_device_open(&o, &d, &err), SL_OK);
    assert_non_null(strstr(err.msg, "another model"));
    o.secret = (sl_span){(const uint8_t *)"another secret of it", 20};
    assert_int_not_equal(sl_device_open(&o, &d, &err), SL_OK);
    assert_non_null(strstr(err.msg, "secret"));
    o.ranks = 4;
    assert_int_equal(sl_device_open(&o, &d, &err), SL_ERR_ARG);
    assert_string_equal(err.msg, "fewer addresses than the 3 of ranks beside the first");
    kill(others.pid[0], SIGKILL);
    assert_int_equal(waitpid(others.pid[0], NULL, 0), others.pid[0]);
}

/* Another worker calls a rank that is in a gang: it is refused, calls again, and has it when the
 * first gang is closed and the next process waits there. */
static void the_next_worker_finds_a_busy_rank(void **state) {
    (void)state;
    servers first = serve_ranks(ONE_FIXTURE, 2);
    ranks_at = first.at;
    run gang = start(open_gang(ONE_FIXTURE, 2, SL_RANKS_MACHINES, false, SL_ACTIVATIONS_F32, 1));
    run_step(&gang, 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        run next =
            start(open_gang(ONE_FIXTURE, 2, SL_RANKS_MACHINES, false, SL_ACTIVATIONS_F32, 1));
        run_step(&next, 0);
        end(&next);
        _exit(0);
    }
    usleep(700000); /* it calls in vain meanwhile */
    run_step(&gang, 1);
    end(&gang);
    served(&first);
    const char *port = strrchr(first.at, ':') + 1;
    servers second = {0};
    serve_at(&second, ONE_FIXTURE, (uint16_t)atoi(port));
    int status;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    served(&second);
}

/* What ends it says so to nobody: its ranks see it. */
static void ranks_end_with_the_gang(void **state) {
    int tell[2];
    pid_t rank[8] = {0};
    (void)state;
    assert_int_equal(pipe(tell), 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        run gang =
            start(open_gang(ONE_FIXTURE, 4, SL_RANKS_PROCESSES, true, SL_ACTIVATIONS_F32, 1));
        run_step(&gang, 0);
        const uint32_t n = children(rank, 8);
        if (write(tell[1], rank, sizeof rank) != sizeof rank || n != 3) _exit(7);
        pause();
    }
    assert_int_equal(read(tell[0], rank, sizeof rank), sizeof rank);
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(rank[i] > 0);
        uint32_t ms = 0;
        while (kill(rank[i], 0) == 0 && ms++ < 30000) usleep(1000);
        assert_int_not_equal(kill(rank[i], 0), 0);
    }
    close(tell[0]), close(tell[1]);
}

static int as_rank(int fd) {
    sl_err err;
    if (sl_gang_run_rank(fd, &err) == SL_OK) return 0;
    fprintf(stderr, "%s\n", err.msg);
    return 1;
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[2], "--rank-fd") == 0) return as_rank(atoi(argv[3]));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_give_the_same),
        cmocka_unit_test(hosted_later),
        cmocka_unit_test(cores_come_back),
        cmocka_unit_test(calls_grow),
        cmocka_unit_test(taking_may_fail),
        cmocka_unit_test(a_rank_that_ends_ends_the_gang),
        cmocka_unit_test(ranks_end_with_the_gang),
        cmocka_unit_test(a_machine_that_is_gone_is_named),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(the_next_worker_finds_a_busy_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
