/* Ends of local workers, children and threads: each is told once, soon, whoever noticed it first;
 * and another one takes the place. What is started here instead of a worker is a script. */
#include "engine_peers.h"

#include "engine/coord/coord_int.h"
#include "net/transports.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#define N       4u
#define WAIT_US 10000000u
#define NOBODY  UINT32_MAX

typedef struct scene {
    sl_engine *e;
    char folder[64], program[96], out[96];
} scene;

static void write_program(scene *s, const char *text) {
    snprintf(s->folder, sizeof s->folder, "/tmp/sluice-spawn-XXXXXX");
    assert_non_null(mkdtemp(s->folder));
    snprintf(s->program, sizeof s->program, "%s/worker", s->folder);
    snprintf(s->out, sizeof s->out, "%s/out", s->folder);
    FILE *f = fopen(s->program, "we");
    assert_non_null(f);
    fprintf(f, "#!/bin/sh\n%s\n", text);
    assert_int_equal(fclose(f), 0);
    assert_int_equal(chmod(s->program, 0700), 0);
}

static void remove_program(scene *s) {
    unlink(s->program);
    unlink(s->out);
    rmdir(s->folder);
}

static sl_engine_opts options(const char *transport) {
    sl_err err = {0};
    sl_model_spec spec;
    sl_engine_opts o = {.model_folder = FIXTURE,
                        .transport = transport,
                        .host = "127.0.0.1",
                        .spawn = SL_SPAWN_NONE,
                        .secret = {(const uint8_t *)SECRET, sizeof SECRET - 1}};
    assert_int_equal(sl_model_read_spec(FIXTURE, &spec, NULL, &err), SL_OK);
    assert_int_equal(sl_plan_local(&spec, 1, N - 1, &o.plan, &err), SL_OK);
    return o;
}

/* An engine whose loop is the test's, with N children of `text`, or threads. */
static void begin(scene *s, const char *transport, const char *text) {
    sl_err err = {0};
    sl_engine_opts o = options(transport);
    *s = (scene){0};
    if (text) write_program(s, text);
    o.program = s->program;
    if (sl_engine_create_stepped(&o, sl_clock_real(), &s->e, &err) != SL_OK)
        fail_msg("%s", err.msg);
    sl_plan_free(&o.plan);
    s->e->o.spawn = text ? SL_SPAWN_PROCESSES : SL_SPAWN_THREADS;
    for (uint32_t i = 0; i < N; i++) s->e->recover.place[i].can_start = true;
    if (sl_spawn_start(s->e, &err) != SL_OK) fail_msg("%s", err.msg);
}

static void end(scene *s) {
    for (uint32_t i = 0; i < N; i++) sl_spawn_kill(s->e, i);
    sl_engine_free(s->e);
    if (s->program[0]) remove_program(s);
}

/* Bits: who was told to have ended, until all of `want` are. Nobody twice. */
static uint32_t told(scene *s, uint32_t want) {
    uint32_t seen = 0;
    uint64_t until_ns = sl_now_ns() + 1000ull * WAIT_US;
    while ((seen & want) != want && sl_now_ns() < until_ns) {
        for (uint32_t id; (id = sl_spawn_next_ended(s->e)) != NOBODY;) {
            assert_true(id < N && !(seen & 1u << id));
            seen |= 1u << id;
        }
        if ((seen & want) != want) sl_net_wait(s->e->net, 20000);
    }
    return seen;
}

/* The broken connection of one asks first why: nobody's end is lost by it, nor told twice. */
static void every_end_is_told_once(void **state) {
    (void)state;
    static const char *const transports[] = {"shm", "tcp", "ucx"};
    for (size_t t = 0; t < SL_LEN(transports); t++) {
        scene s;
        if (sl_transport_find(transports[t], false, NULL)->needs) continue;
        begin(&s, transports[t], "exec sleep 600");
        assert_int_equal(sl_spawn_next_ended(s.e), NOBODY);
        for (uint32_t i = 1; i < N; i++) sl_spawn_kill(s.e, i);
        while (!sl_spawn_why(s.e, 2)) sl_net_wait(s.e->net, 1000);
        assert_non_null(strstr(sl_spawn_why(s.e, 2), "signal 9"));
        assert_int_equal(told(&s, 0xE), 0xE);
        assert_int_equal(sl_spawn_next_ended(s.e), NOBODY);
        assert_null(sl_spawn_why(s.e, 0));
        end(&s);
    }
}

/* The wait ends with the child; by itself it ends after half a second. */
static void an_end_wakes_the_net(void **state) {
    (void)state;
    static const char *const transports[] = {"shm", "tcp", "ucx"};
    for (size_t t = 0; t < SL_LEN(transports); t++) {
        scene s;
        if (sl_transport_find(transports[t], false, NULL)->needs) continue;
        begin(&s, transports[t], "sleep 0.1");
        if (s.e->ends.blind) {
            print_message("no pidfd here\n");
            end(&s);
            skip();
        }
        struct pollfd ends = {.fd = s.e->ends.fd, .events = POLLIN};
        assert_int_equal(poll(&ends, 1, WAIT_US / 1000), 1);
        uint64_t least_ns = UINT64_MAX;
        for (int i = 0; i < 5; i++) {
            uint64_t begin_ns = sl_now_ns();
            sl_net_wait(s.e->net, WAIT_US);
            least_ns = SL_MIN(least_ns, sl_now_ns() - begin_ns);
        }
        assert_true(least_ns < 250000000u);
        assert_int_equal(told(&s, 0xF), 0xF);
        end(&s);
    }
}

/* As on a kernel without pidfd. */
static void ends_are_looked_for_where_nothing_tells(void **state) {
    (void)state;
    scene s;
    begin(&s, "shm", "exec sleep 600");
    close(s.e->ends.fd);
    s.e->ends.fd = -1;
    s.e->ends.blind = true;
    for (uint32_t i = 0; i < N; i++) sl_spawn_kill(s.e, i);
    assert_int_equal(told(&s, 0xF), 0xF);
    end(&s);
}

/* As under a parent that ignores SIGCHLD, which programs inherit. */
static void ends_that_leave_nothing_are_noticed(void **state) {
    (void)state;
    scene s;
    signal(SIGCHLD, SIG_IGN);
    begin(&s, "shm", "exec sleep 600");
    for (uint32_t i = 0; i < N; i++) sl_spawn_kill(s.e, i);
    assert_int_equal(told(&s, 0xF), 0xF);
    assert_non_null(sl_spawn_why(s.e, 0));
    end(&s);
    signal(SIGCHLD, SIG_DFL);
}

static void a_place_is_taken_again(void **state) {
    (void)state;
    scene s;
    sl_err err = {0};
    begin(&s, "shm", "exec sleep 600");
    int64_t first = s.e->worker[1].stats.pid;
    sl_spawn_kill(s.e, 1);
    sl_spawn_kill(s.e, 2);
    assert_int_equal(told(&s, 0x2) & 0x2, 0x2);
    assert_int_equal(sl_spawn_again(s.e, 1, &err), SL_OK);
    assert_true(s.e->worker[1].stats.pid > 0 && s.e->worker[1].stats.pid != first);
    assert_null(sl_spawn_why(s.e, 1));
    /* Its end was noticed, not told: the place is somebody else's by now. */
    while (!sl_spawn_why(s.e, 2)) sl_net_wait(s.e->net, 1000);
    assert_int_equal(sl_spawn_again(s.e, 2, &err), SL_OK);
    assert_int_equal(sl_spawn_next_ended(s.e), NOBODY);
    /* Who hangs is not waited for. */
    first = s.e->worker[1].stats.pid;
    assert_int_equal(kill((pid_t)first, SIGSTOP), 0);
    sl_status st = SL_ERR_AGAIN;
    for (int i = 0; i < 100 && st == SL_ERR_AGAIN; i++) st = sl_spawn_again(s.e, 1, &err);
    assert_int_equal(st, SL_OK);
    assert_int_equal(kill((pid_t)first, 0), -1);
    assert_int_equal(sl_spawn_next_ended(s.e), NOBODY);
    sl_spawn_kill(s.e, 1);
    assert_int_equal(told(&s, 0x2), 0x2);
    s.e->o.spawn = SL_SPAWN_NONE;
    assert_int_equal(sl_spawn_again(s.e, 1, &err), SL_ERR_UNSUPPORTED);
    end(&s);
}

/* Clients and files of a coordinator that serves are none of theirs. */
static void children_inherit_no_files(void **state) {
    (void)state;
    scene s;
    char line[256] = "";
    int open_fd = open("/dev/null", O_RDONLY), high = dup2(open_fd, 77); /* not close-on-exec */
    assert_int_equal(high, 77);
    begin(&s, "shm", "ls /proc/self/fd > $0.$$; mv $0.$$ ${0%/*}/out; exec sleep 600");
    for (int i = 0; i < 1000 && access(s.out, R_OK) != 0; i++) usleep(10000);
    FILE *f = fopen(s.out, "re");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) assert_true(atoi(line) < 10);
    fclose(f);
    close(open_fd);
    close(high);
    end(&s);
}

static void threads_are_started_again(void **state) {
    (void)state;
    scene s;
    sl_err err = {0};
    begin(&s, "loop", NULL);
    uint64_t until_ns = sl_now_ns() + WAIT_NS;
    while (!s.e->serving && sl_now_ns() < until_ns)
        if (!sl_engine_step(s.e)) sl_net_wait(s.e->net, 1000);
    assert_true(s.e->serving);
    assert_int_equal(sl_spawn_again(s.e, 1, &err), SL_ERR_AGAIN);
    sl_net_close(s.e->net, s.e->worker[1].conn, SL_ERR_PROTOCOL, "enough");
    while (s.e->roster.worker[1].state != SL_ROSTER_GONE || !sl_spawn_why(s.e, 1)) {
        assert_true(sl_now_ns() < until_ns);
        if (!sl_net_progress(s.e->net)) sl_net_wait(s.e->net, 1000);
    }
    assert_non_null(strstr(sl_spawn_why(s.e, 1), "enough"));
    assert_int_equal(sl_spawn_again(s.e, 1, &err), SL_OK);
    sl_roster_reopen(&s.e->roster, 1);
    while (s.e->roster.worker[1].state != SL_ROSTER_JOINING) {
        assert_true(sl_now_ns() < until_ns);
        if (!sl_net_progress(s.e->net)) sl_net_wait(s.e->net, 1000);
    }
    end(&s);
}

/* A whole engine: who ends before it has joined is missed at once, not after the join timeout. */
static void who_never_joins_is_missed_at_once(void **state) {
    (void)state;
    scene s = {0};
    sl_err err = {0};
    sl_engine_opts o = options("shm");
    write_program(&s, "exit 3");
    o.spawn = SL_SPAWN_PROCESSES;
    o.program = s.program;
    uint64_t begin_ns = sl_now_ns();
    assert_int_equal(sl_engine_create(&o, &s.e, &err), SL_ERR_WORKER_LOST);
    assert_non_null(strstr(err.msg, "ended with status 3"));
    assert_true(sl_now_ns() - begin_ns < WAIT_NS);
    sl_plan_free(&o.plan);
    remove_program(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_end_is_told_once),
        cmocka_unit_test(an_end_wakes_the_net),
        cmocka_unit_test(ends_are_looked_for_where_nothing_tells),
        cmocka_unit_test(ends_that_leave_nothing_are_noticed),
        cmocka_unit_test(a_place_is_taken_again),
        cmocka_unit_test(children_inherit_no_files),
        cmocka_unit_test(threads_are_started_again),
        cmocka_unit_test(who_never_joins_is_missed_at_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
