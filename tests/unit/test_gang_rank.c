/* One rank of a gang that is a process. Memory comes to it by number, through its socket: what no
 * job named is passed over, what is not as the job says is refused, and no descriptor is left open.
 * A call that it cannot read is its end. */
#include "base/mem.h"
#include "base/memfd.h"
#include "stage/gang/shared.h"

#include <dirent.h>
#include <signal.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

static uint32_t open_files(void) {
    uint32_t n = 0;
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    while (readdir(dir)) n++;
    closedir(dir);
    return n;
}

static void deliver(int socket, uint64_t number, size_t bytes) {
    const gang_delivery d = {.number = number};
    sl_err err;
    int fd;
    assert_int_equal(sl_memfd_create(bytes, &fd, &err), SL_OK);
    assert_int_equal(gang_send(socket, &d, sizeof d, fd, &err), SL_OK);
    close(fd);
}

/* A rank takes the file that its job names, and no other; none is left open. */
static void blocks_come_by_number(void **state) {
    const uint32_t files = open_files();
    int pair[2], fd;
    sl_err err;
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair), 0);
    deliver(pair[0], 1, 4096);
    deliver(pair[0], 2, 4096);
    deliver(pair[0], 3, 8192);
    assert_int_equal(gang_receive_block(pair[1], 3, 8192, &fd, &err), SL_OK);
    close(fd);
    deliver(pair[0], 4, 4096);
    assert_int_equal(gang_receive_block(pair[1], 4, 8192, &fd, &err), SL_ERR_PROTOCOL);
    assert_non_null(strstr(err.msg, "4096 bytes of shared memory, 8192 expected"));
    deliver(pair[0], 6, 4096);
    assert_int_equal(gang_receive_block(pair[1], 5, 4096, &fd, &err), SL_ERR_PROTOCOL);
    assert_string_equal(err.msg, "block 6 of shared memory came, 5 is wanted");
    assert_int_equal(write(pair[0], "x", 1), 1); /* too short, and without a file */
    assert_int_equal(gang_receive_block(pair[1], 7, 4096, &fd, &err), SL_ERR_PROTOCOL);
    assert_false(gang_has_hung_up(pair[1]));
    close(pair[0]);
    assert_true(gang_has_hung_up(pair[1]));
    assert_int_equal(gang_receive_block(pair[1], 7, 4096, &fd, &err), SL_ERR_PEER_DOWN);
    close(pair[1]);
    assert_int_equal(open_files(), files);
}

static sl_status read_nothing(gang_rank *r, gang_job *out, sl_err *err) {
    (void)r, (void)out;
    return sl_fail(err, SL_ERR_NOMEM, "pointers of a call");
}

static void end(gang_rank *r, const sl_err *err) {
    (void)r;
    _exit(err->code == SL_ERR_NOMEM ? 9 : 8);
}

static sl_status open_rank(gang_rank *r, uint32_t rank, gang_board *board, sl_err *err) {
    const sl_coll_opts o = {.rank = {rank, 2}, .deadline_ms = 60000};
    *r = (gang_rank){.is = o.rank, .board = board, .read = read_nothing, .lost = end};
    return gang_rank_open(r, &o, err);
}

/* What a rank that cannot read a job of that kind ends with; -1: it waits for the next one. */
static int without_memory(gang_job_kind kind) {
    const size_t bytes = gang_board_bytes(2);
    gang_board *board =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    gang_rank own, other;
    sl_err err;
    int status = -1;
    assert_true(board != MAP_FAILED);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (open_rank(&other, 1, board, &err) != SL_OK) _exit(7);
        (void)!gang_rank_serve(&other, &err);
        _exit(6);
    }
    assert_int_equal(open_rank(&own, 0, board, &err), SL_OK);
    board->job.kind = kind;
    assert_int_equal(sl_coll_meet(own.coll, SL_COLL_SPEAKS, &err), SL_OK);
    if (kind != GANG_CALL) {
        assert_int_equal(sl_coll_meet(own.coll, SL_COLL_HEARS, &err), SL_OK);
        assert_false(board->report[1].ok);
        assert_int_equal(waitpid(pid, &status, WNOHANG), 0);
        kill(pid, SIGKILL);
    }
    for (uint32_t ms = 0; waitpid(pid, &status, WNOHANG) == 0 && ms < 30000; ms++) usleep(1000);
    if (status == -1) {
        kill(pid, SIGKILL);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
    }
    gang_rank_close(&own);
    munmap(board, bytes);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* Others would take the end of the job for its word in a sum of the call. */
static void a_call_is_read_or_the_end(void **state) {
    (void)state;
    assert_int_equal(without_memory(GANG_CALL), 9);
    assert_int_equal(without_memory(GANG_HOST), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(blocks_come_by_number),
                                       cmocka_unit_test(a_call_is_read_or_the_end)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
