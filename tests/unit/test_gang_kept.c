/* Rows that ranks on machines have: which they are after each kind of call, and that a job carries
 * the others and no more. */
#include "base/mem.h"
#include "stage/gang/parcel.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#define WIDTH 16u
#define ROW   (WIDTH * sizeof(float))
#define ROWS  8u
#define HEAD  (ROWS * 4) /* rows of a block beside the first ones */

typedef struct machine {
    sl_model_spec spec;
    gang_memory memory;
    gang_board *board;
    gang_kept kept;
    gang_marks marks;
    gang_parcel out;
} machine;

static void begin(machine *m) {
    *m = (machine){.spec = {.n_layers = 3, .d_model = WIDTH, .n_experts = 4, .top_k = 2}};
    m->board = sl_alloc(1, gang_board_bytes(2));
    assert_non_null(m->board);
    m->board->area = 2;
    for (uint32_t i = 0; i < 3; i++) {
        m->memory.block[i] = (gang_block){sl_alloc(HEAD + 70, ROW), (HEAD + 70) * ROW};
        assert_non_null(m->memory.block[i].at);
    }
}

static void end(machine *m) {
    for (uint32_t i = 0; i < 3; i++) sl_free(m->memory.block[i].at);
    gang_kept_free(&m->kept);
    gang_marks_free(&m->marks);
    gang_parcel_free(&m->out);
    sl_free(m->board);
}

static sl_mem rows(const machine *m, uint32_t block, uint32_t first, uint32_t n) {
    return sl_mem_host(m->memory.block[block].at + first * ROW, n * ROW);
}

static bool has(const machine *m, uint32_t block, uint32_t row) {
    return gang_kept_has(&m->kept, block, row * ROW, ROW);
}

static void note(machine *m, uint32_t block, size_t at, size_t bytes, bool kept) {
    gang_kept_note(&m->kept, &m->memory, block, at, bytes, ROW, kept);
}

/* Whole rows are kept; part of one that is written ends all of it. */
static void whole_rows_are_kept(void **state) {
    machine m;
    (void)state;
    begin(&m);
    assert_false(has(&m, 0, 3));
    note(&m, 0, 3 * ROW, 66 * ROW, true);
    assert_true(has(&m, 0, 3) && has(&m, 0, 68));
    assert_false(has(&m, 0, 2) || has(&m, 0, 69) || has(&m, 1, 3));
    assert_false(gang_kept_has(&m.kept, 0, 3 * ROW + 4, ROW));
    note(&m, 0, 10 * ROW + 4, ROW, false);
    assert_false(has(&m, 0, 10) || has(&m, 0, 11));
    assert_true(has(&m, 0, 9) && has(&m, 0, 12));
    note(&m, 0, 10 * ROW + 4, 2 * ROW, true);
    assert_false(has(&m, 0, 10) || has(&m, 0, 12) != true);
    assert_true(has(&m, 0, 11));
    gang_kept_forget(&m.kept, 0);
    assert_false(has(&m, 0, 11));
    end(&m);
}

static gang_job run_of(const machine *m, const gang_step *step, uint32_t n) {
    gang_job j = {.kind = GANG_RUN, .run = {.step = step, .n_steps = n, .together = true}};
    j.run.call.rows = (sl_rowset){.n = ROWS, .x = rows(m, 0, 0, ROWS), .h = rows(m, 1, 0, ROWS)};
    return j;
}

/* Bytes of rows that go with the job, which all ranks then do. */
static size_t carried(machine *m, const gang_job *j) {
    sl_err err;
    const size_t lists = gang_job_filled(j, &m->spec);
    gang_job_pack(&m->memory, m->board->area, j, &m->spec, &m->board->job);
    assert_int_equal(
        gang_parcel_fill(&m->out, &m->memory, m->board, j, &m->spec, &m->marks, NULL, &err), SL_OK);
    const size_t all = m->out.len;
    assert_int_equal(
        gang_parcel_fill(&m->out, &m->memory, m->board, j, &m->spec, &m->marks, &m->kept, &err),
        SL_OK);
    gang_kept_after(&m->kept, &m->memory, &m->spec, j);
    assert_true(all > lists && m->out.len <= all);
    return all - m->out.len;
}

/* The stream goes once: what ranks tell each other need not be carried. */
static void a_shared_stream_goes_once(void **state) {
    static const gang_step shared[] = {{SL_OP_ATTEND, 0, true}, {SL_OP_DENSE, 0, true}},
                           own[] = {{SL_OP_ATTEND, 1, false}};
    machine m;
    (void)state;
    begin(&m);
    const gang_job twice = run_of(&m, shared, 2), last = run_of(&m, own, 1);
    assert_true(carried(&m, &twice) == 0);
    assert_true(has(&m, 0, 0) && has(&m, 0, ROWS - 1) && !has(&m, 0, ROWS));
    assert_true(carried(&m, &twice) > ROWS * ROW); /* and the range that they would have been in */
    assert_true(carried(&m, &last) > ROWS * ROW);
    assert_false(has(&m, 0, 0));
    assert_true(carried(&m, &last) == 0);
    assert_false(gang_job_is_answered(&twice));
    assert_true(gang_job_is_answered(&last));
    end(&m);
}

/* Of the block that predicts a further token: the rows that it reads go, what its next guess and
 * the head read of it stays. */
static void rows_of_guesses_stay(void **state) {
    static const uint32_t id[3] = {1, 2, 3}, pos[3] = {4, 5, 6}, row[3] = {0, 2, 5}, last[1] = {2};
    static const uint32_t page[1], *const pages[3] = {page, page, page};
    machine m;
    (void)state;
    begin(&m);
    gang_job j = {.kind = GANG_CALL, .call = {.op = SL_OP_MTP}};
    j.call.rows =
        (sl_rowset){.n = 3, .id = id, .pos = pos, .pages = pages, .x = rows(&m, 0, 0, ROWS)};
    j.call.mtp = (sl_stage_mtp){.row = row,
                                .out = rows(&m, 1, 0, ROWS),
                                .n_last = 1,
                                .last = last,
                                .h = rows(&m, 1, ROWS, 1)};
    assert_true(carried(&m, &j) == 0);
    assert_true(has(&m, 0, 0) && has(&m, 0, 2) && has(&m, 0, 5) && !has(&m, 0, 1));
    assert_true(has(&m, 1, 2) && has(&m, 1, ROWS) && !has(&m, 1, 0) && !has(&m, 1, 1));
    j.call.rows.n = 1; /* the next guess, of what it left */
    j.call.rows.x = j.call.mtp.out;
    j.call.mtp.row = last;
    j.call.mtp.out = rows(&m, 0, 0, ROWS);
    j.call.mtp.n_last = 0;
    assert_true(carried(&m, &j) >= ROW);
    assert_false(has(&m, 0, 0));
    const gang_job head = {
        .kind = GANG_CALL,
        .call = {.op = SL_OP_HEAD, .head = {.n = 1, .h = rows(&m, 1, ROWS, 1), .made = true}}};
    assert_true(carried(&m, &head) >= ROW);
    end(&m);
}

/* A row that rank 0 alone writes goes, the others stay. */
static void what_rank_0_writes_goes_again(void **state) {
    static const uint32_t to[] = {1, 6};
    static const gang_step shared[] = {{SL_OP_ATTEND, 0, true}};
    const sl_stage_call alone[] = {
        {.op = SL_OP_UNPACK, .pack = {.n = 2, .row = to}},
        {.op = SL_OP_MOVE, .move = {.n = 2, .to_row = to}},
        {.op = SL_OP_MERGE},
        {.op = SL_OP_EMBED},
    };
    (void)state;
    for (uint32_t i = 0; i < SL_LEN(alone); i++) {
        machine m;
        begin(&m);
        const gang_job j = run_of(&m, shared, 1);
        sl_stage_call c = alone[i];
        carried(&m, &j);
        if (c.op == SL_OP_UNPACK)
            c.pack.rows = rows(&m, 0, 0, ROWS);
        else if (c.op == SL_OP_MOVE)
            c.move.to = rows(&m, 0, 0, ROWS);
        else
            c.rows = (sl_rowset){.n = ROWS, .x = rows(&m, 0, 0, ROWS)};
        gang_kept_alone(&m.kept, &m.memory, &m.spec, &c);
        const bool some = i < 2;
        for (uint32_t r = 0; r < ROWS; r++)
            assert_int_equal(has(&m, 0, r), some && r != to[0] && r != to[1]);
        end(&m);
    }
}

/* A router of all ranks leaves what the shared expert reads, which is gone when that has run; where
 * experts' results go nobody has them whole. */
static void results_are_nobodys(void **state) {
    static const gang_step routed[] = {{SL_OP_ATTEND, 1, true}, {SL_OP_ROUTE, 1, false}};
    machine m;
    (void)state;
    begin(&m);
    const gang_job run = run_of(&m, routed, 2);
    carried(&m, &run);
    assert_true(has(&m, 0, 0) && has(&m, 1, 0) && has(&m, 1, ROWS - 1));
    gang_job j = {.kind = GANG_CALL, .call = {.op = SL_OP_SHARED, .rows = run.run.call.rows}};
    assert_true(carried(&m, &j) > ROWS * ROW);
    assert_true(has(&m, 0, 0) && !has(&m, 1, 0));
    const sl_stage_part part = {rows(&m, 0, 2, 3), 3};
    j.call = (sl_stage_call){.op = SL_OP_EXPERTS, .experts = {.part = &part, .n_parts = 1}};
    gang_kept_after(&m.kept, &m.memory, &m.spec, &j);
    assert_true(has(&m, 0, 1) && !has(&m, 0, 2) && !has(&m, 0, 4) && has(&m, 0, 5));
    j = (gang_job){.kind = GANG_UNMAP, .map = {.id = 0}};
    gang_kept_after(&m.kept, &m.memory, &m.spec, &j);
    assert_false(has(&m, 0, 1));
    end(&m);
}

/* Messages that ranks exchange themselves: PACK carries the rows that they lack, unless each has
 * its columns; what UNPACK and MERGE leave they have, and results that stay nobody hears of. */
static void messages_of_ranks(void **state) {
    static const uint32_t row[] = {5, 2};
    static const gang_ref ref[] = {{0, 0}, {0, 1}, {GANG_NO_ROW, 0}, {0, 1}};
    static const sl_stage_spread message[] = {
        {.is = {.number = 1, .key = 2, .cut = true}, .rows = 2}};
    const sl_mem none = {0};
    machine m;
    (void)state;
    begin(&m);
    gang_job j = {.kind = GANG_SPREAD,
                  .spread = {.op = SL_OP_PACK,
                             .n = 2,
                             .n_messages = 1,
                             .rows = rows(&m, 0, 0, ROWS),
                             .row = row,
                             .message = message,
                             .ref = ref}};
    assert_true(carried(&m, &j) == 0); /* both rows go */
    assert_true(has(&m, 0, 5) && has(&m, 0, 2) && !has(&m, 0, 3));
    assert_true(carried(&m, &j) > 2 * ROW);
    assert_false(gang_job_is_answered(&j));
    note(&m, 0, 0, ROWS * ROW, false);
    j.spread.cut = true;
    sl_err err;
    gang_job_pack(&m.memory, m.board->area, &j, &m.spec, &m.board->job);
    assert_int_equal(
        gang_parcel_fill(&m.out, &m.memory, m.board, &j, &m.spec, &m.marks, &m.kept, &err), SL_OK);
    assert_false(gang_parcel_carries(m.out.data, m.out.len));
    j.spread.op = SL_OP_UNPACK;
    gang_kept_after(&m.kept, &m.memory, &m.spec, &j);
    assert_true(has(&m, 0, 5) && has(&m, 0, 2) && !has(&m, 0, 0));
    j.spread.op = SL_OP_MERGE;
    j.spread.row = NULL;
    j.spread.shared = none;
    gang_kept_after(&m.kept, &m.memory, &m.spec, &j);
    assert_true(has(&m, 0, 0) && has(&m, 0, 1) && !has(&m, 0, 3));
    j = (gang_job){.kind = GANG_CALL, .call = {.op = SL_OP_SHARED, .stays = true}};
    assert_false(gang_job_is_answered(&j));
    end(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_rows_are_kept),  cmocka_unit_test(a_shared_stream_goes_once),
        cmocka_unit_test(rows_of_guesses_stay), cmocka_unit_test(what_rank_0_writes_goes_again),
        cmocka_unit_test(results_are_nobodys),  cmocka_unit_test(messages_of_ranks)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
