/* What a rank on a machine of its own gets from whoever it takes for its worker: a job that is
 * right, with bytes of it changed. What passes the check is read as the rank would read it: lists,
 * pages, rows, and places of results. Input: a byte that says which job, then records {u16 place,
 * u8 value} of what is another byte; a record past the end cuts the job there. To jobs whose rows
 * come from the rank before this one they come: a byte at place 65535 says how many bytes, in rows
 * and one more or less, and of which job. */
#include "stage/gang/parcel.h"

#include "base/mem.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define BLOCK  4096u
#define AREA   2u
#define ROWS   4u
#define PAIRS  6u
#define PAGES  8u
#define RUNS   6u
#define ALONE  3u            /* of these: of pipelines */
#define BEFORE 7u            /* number of the job that left a run's rows */
#define HANDED 0xFFFFu       /* the place of a byte that says what rows come */
#define SPREAD (8u + RUNS)   /* the first of those with messages that are spread over ranks */
#define MTP    (SPREAD + 5u) /* the block that predicts a further token; ...and its head */
#define JOBS   (MTP + 2u)
#define WIRE   SL_WIRE_BF16

static sl_model_spec spec;
static gang_memory here, there; /* rank 0's, the rank's */
static gang_board *from, *to;
static uint64_t sum; /* of all that was read */

static void make(void) {
    if (from) return;
    spec = (sl_model_spec){.n_layers = 2,
                           .n_moe = 1,
                           .d_model = 16,
                           .d_ff_shared = 8,
                           .n_heads = 2,
                           .n_kv_heads = 2,
                           .head_dim = 4,
                           .n_experts = 4,
                           .top_k = 2,
                           .vocab = 32,
                           .max_position = 128};
    spec.ffn[0] = SL_FFN_DENSE;
    spec.ffn[1] = SL_FFN_MOE;
    from = calloc(1, gang_board_bytes(2));
    to = calloc(1, gang_board_bytes(2));
    if (!from || !to) abort();
    from->area = AREA;
    for (uint32_t i = 0; i < 3; i++) {
        here.block[i] = (gang_block){calloc(1, BLOCK), BLOCK};
        there.block[i] = (gang_block){calloc(1, BLOCK), BLOCK};
        if (!here.block[i].at || !there.block[i].at) abort();
    }
}

static sl_mem rows(uint32_t block, uint32_t first, size_t n) {
    const size_t row = spec.d_model * sizeof(float);
    return sl_mem_host(here.block[block].at + first * row, n * row);
}

/* A run, of a rank of a pipeline or of all of a gang: whose last block is inside, which ends with a
 * router, which gets its rows from a rank and hands them on, or which chooses nothing. */
static gang_job run_of(uint8_t which, const sl_stage_call *call) {
    static const gang_step inside[] = {{SL_OP_ATTEND, 0, false},
                                       {SL_OP_DENSE, 0, false},
                                       {SL_OP_ATTEND, 1, false},
                                       {SL_OP_INSIDE, 1, false}},
                           routed[] = {{SL_OP_INSIDE, 1, false},
                                       {SL_OP_ATTEND, 1, false},
                                       {SL_OP_ROUTE, 1, false}},
                           shared[] = {{SL_OP_ATTEND, 0, true},
                                       {SL_OP_DENSE, 0, true},
                                       {SL_OP_ATTEND, 1, true},
                                       {SL_OP_INSIDE, 1, true}},
                           told[] = {{SL_OP_ATTEND, 1, true}, {SL_OP_ROUTE, 1, false}},
                           dense[] = {{SL_OP_ATTEND, 0, true}, {SL_OP_DENSE, 0, false}};
    static const struct {
        const gang_step *step;
        uint32_t n;
    } of[RUNS] = {{inside, 4}, {routed, 3}, {inside, 4}, {shared, 4}, {told, 2}, {dense, 2}};
    static uint32_t chosen[ROWS * 2], last[ROWS * 2];
    static float gates[ROWS * 2];
    const bool together = which >= ALONE;
    gang_job j = {.kind = GANG_RUN,
                  .run = {.call = *call,
                          .step = of[which].step,
                          .n_steps = of[which].n,
                          .together = together,
                          .chosen = together ? NULL : chosen,
                          .before = which == 2 ? BEFORE : 0,
                          .hands_on = which == 2}};
    if (!gang_run_chooses(&j)) return j;
    j.run.call.rows.expert = last;
    j.run.call.rows.gate = gates;
    return j;
}

/* PACK of whole rows and of columns, UNPACK, MERGE, and UNPACK of no rows yet. */
static gang_job spread_of(uint8_t which) {
    static const sl_stage_op op[] = {SL_OP_PACK, SL_OP_PACK, SL_OP_UNPACK, SL_OP_MERGE,
                                     SL_OP_UNPACK};
    static const sl_stage_spread message[] = {{.is = {.number = 5, .key = 9, .cut = true},
                                               .rows = 2},
                                              {.is = {.number = 2}, .back = true, .rows = 3}},
                                 cut[] = {{.is = {.number = 5, .key = 9, .cut = true}, .rows = 2},
                                          {.is = {.number = 2, .cut = true}, .rows = 3}};
    static const gang_ref packed[ROWS] = {{0, 0}, {1, 2}, {0, 1}, {1, 0}},
                          mixed[ROWS] = {{0, 0}, {GANG_PLAIN, 1}, {0, 1}, {GANG_PLAIN, 0}},
                          pieces[ROWS * 2] = {{0, 0},          {GANG_NO_ROW, 0}, {1, 1}, {0, 1},
                                              {GANG_PLAIN, 0}, {GANG_NO_ROW, 0}, {1, 2}, {1, 0}};
    static const uint32_t row[ROWS] = {3, 1, 0, 2};
    static const uint8_t plain[2 * 2 * 16];
    const bool merges = op[which] == SL_OP_MERGE, packs = op[which] == SL_OP_PACK;
    if (which == 4)
        return (gang_job){.kind = GANG_SPREAD,
                          .spread = {.op = op[which],
                                     .wire = WIRE,
                                     .n_messages = 1,
                                     .message = message,
                                     .columns = {{0, 8}, {8, 8}}}};
    return (gang_job){.kind = GANG_SPREAD,
                      .spread = {.op = op[which],
                                 .wire = WIRE,
                                 .cut = which == 1,
                                 .n = ROWS,
                                 .n_messages = 2,
                                 .n_plain = packs ? 0 : 2,
                                 .rows = rows(0, 0, ROWS),
                                 .shared = merges ? rows(0, 8, ROWS) : (sl_mem){0},
                                 .row = merges ? NULL : row,
                                 .message = which == 1 ? cut : message,
                                 .ref = merges  ? pieces
                                        : packs ? packed
                                                : mixed,
                                 .plain = packs ? NULL : plain,
                                 .columns = {{0, 8}, {8, 8}}}};
}

/* The block that predicts a further token, of rows that it or the model has left; what it says. */
static sl_stage_call mtp_of(bool head, const sl_stage_call *call, const uint32_t *row) {
    static const uint32_t last[2] = {3, 1};
    static float logits[ROWS * 32];
    sl_stage_call c = *call;
    c.op = head ? SL_OP_HEAD : SL_OP_MTP;
    if (head)
        c.head = (sl_stage_head){
            .n = 2, .count = 20, .h = rows(1, 0, 2), .logits = logits, .made = true};
    else
        c.mtp = (sl_stage_mtp){.row = row,
                               .out = rows(1, 4, ROWS),
                               .again = true,
                               .n_last = 2,
                               .last = last,
                               .h = rows(1, 0, 2)};
    return c;
}

/* One of every kind that there is. */
static gang_job job_of(uint8_t which) {
    static const uint32_t id[ROWS] = {1, 2, 3, 4}, pos[ROWS] = {0, 17, 18, 40},
                          page[2][3] = {{1, 0, 0}, {2, 5, 7}}, row[ROWS] = {3, 0, 1, 2},
                          expert[2] = {0, 3}, first[3] = {0, 2, PAIRS},
                          pair_row[PAIRS] = {0, 1, 0, 1, 2, 3}, place[PAIRS] = {4, 0, 4, 1, 2, 3};
    static const uint32_t *const pages[ROWS] = {page[0], page[1], page[1], page[1]};
    static const float gate[PAIRS] = {1, 1, 1, 1, 1, 1};
    static const uint8_t adds[PAIRS] = {0, 1, 1, 0, 0, 0}, hosted[4] = {1, 0, 0, 1};
    static sl_stage_part part[2];
    static float logits[ROWS * 32], blocks[1024];
    const sl_stage_op op[] = {SL_OP_ATTEND, SL_OP_DENSE, SL_OP_SHARED, SL_OP_HEAD};
    gang_job j = {.kind = GANG_CALL};
    j.call.rows = (sl_rowset){.n = ROWS,
                              .id = id,
                              .pos = pos,
                              .pages = pages,
                              .x = rows(0, 0, ROWS),
                              .h = rows(0, 8, ROWS)};
    if (which < 4) {
        j.call.op = op[which];
        j.call.layer = which == 2;
        if (which == 3)
            j.call.head = (sl_stage_head){
                .n = 3, .count = 20, .row = row, .h = rows(1, 0, 3), .logits = logits};
    } else if (which == 4) {
        part[0] = (sl_stage_part){rows(1, 0, 2), 2};
        part[1] = (sl_stage_part){rows(1, 9, 3), 3};
        j.call = (sl_stage_call){.op = SL_OP_EXPERTS,
                                 .layer = 1,
                                 .experts = {.n_groups = 2,
                                             .expert = expert,
                                             .first = first,
                                             .row = pair_row,
                                             .gate = gate,
                                             .x = rows(0, 0, ROWS),
                                             .to = place,
                                             .adds = adds,
                                             .part = part,
                                             .n_parts = 2}};
    } else if (which == 5) {
        j = (gang_job){.kind = GANG_HOST, .host = {hosted, sizeof hosted, PAIRS, false}};
    } else if (which >= MTP) {
        j.call = mtp_of(which > MTP, &j.call, row);
    } else if (which >= SPREAD) {
        j = spread_of(which - SPREAD);
    } else if (which >= 8) {
        j = run_of(which - 8, &j.call);
    } else {
        j = (gang_job){
            .kind = which == 6 ? GANG_READ : GANG_WRITE,
            .page = {.page = 3, .n = 1, .blocks = blocks, .bytes = sl_kv_block_bytes(&spec)}};
    }
    return j;
}

/* Without rows, or groups of experts: what lists are of is not there. */
static void make_empty(gang_job *j) {
    if (j->kind == GANG_SPREAD && j->spread.op == SL_OP_MERGE) {
        static gang_ref none[ROWS * 2]; /* nothing came that is spread */
        memset(none, 0xFF, sizeof none);
        j->spread.n_messages = j->spread.n_plain = 0;
        j->spread.ref = none;
    }
    if (j->kind != GANG_CALL) return;
    j->call.rows.n = 0;
    if (j->call.op == SL_OP_HEAD) j->call.head.n = 0;
    if (j->call.op == SL_OP_EXPERTS) j->call.experts.n_groups = 0;
    if (j->call.op == SL_OP_MTP) j->call.mtp.n_last = 0;
}

static void read_bytes(const void *at, size_t n) {
    for (size_t i = 0; i < n; i++) sum += ((const uint8_t *)at)[i];
}

static void see_input(void *ctx, const uint8_t *at, size_t n) {
    (void)ctx;
    read_bytes(at, n);
}

static void see_result(void *ctx, float *at, size_t n) {
    (void)ctx;
    read_bytes(at, n * sizeof *at);
    memset(at, 0, n * sizeof *at);
}

/* A row of messages: what the rank has of it lies in a buffer of the message's rows. */
static void read_ref(const gang_job *j, const gang_ref *ref) {
    const size_t whole = sl_wire_row_bytes(WIRE, spec.d_model);
    if (ref->message == GANG_NO_ROW) {
        SL_ASSERT(j->spread.op == SL_OP_MERGE);
    } else if (ref->message == GANG_PLAIN) {
        read_bytes(j->spread.plain + ref->row * whole, whole);
    } else {
        SL_ASSERT(ref->message < j->spread.n_messages);
        SL_ASSERT(ref->row < j->spread.message[ref->message].rows);
    }
}

static void read_spread(const gang_job *j) {
    const bool merges = j->spread.op == SL_OP_MERGE;
    const size_t row = spec.d_model * sizeof(float);
    uint8_t *rows_at = sl_mem_ptr(j->spread.rows);
    uint32_t columns = 0;
    for (uint32_t i = 0; i < j->spread.n_messages; i++) {
        const sl_stage_spread *m = &j->spread.message[i];
        SL_ASSERT(m->rows <= ROWS * 2 && m->is.number);
        SL_ASSERT(j->spread.n || (m->is.cut && m->is.key && !m->back));
    }
    for (size_t i = 0; i < j->spread.n * (size_t)(merges ? spec.top_k : 1); i++)
        read_ref(j, &j->spread.ref[i]);
    for (uint32_t i = 0; i < j->spread.n; i++) {
        const size_t at = (j->spread.row ? j->spread.row[i] : i) * row;
        see_result(NULL, (float *)(void *)(rows_at + at), spec.d_model);
        if (j->spread.shared.bytes)
            read_bytes((const uint8_t *)sl_mem_ptr(j->spread.shared) + i * row, row);
    }
    for (uint32_t i = 0; i < 2; i++) {
        SL_ASSERT(j->spread.columns[i].first + j->spread.columns[i].n <= spec.d_model);
        columns += j->spread.columns[i].n;
    }
    SL_ASSERT(columns <= spec.d_model && j->spread.columns[1].n == 8);
}

/* What computing reads beside its rows. */
static void read_lists(const gang_job *j) {
    const sl_rowset *r = &j->call.rows;
    if (j->kind == GANG_SPREAD) read_spread(j);
    if (j->kind == GANG_HOST) read_bytes(j->host.hosted, j->host.hosted_bytes);
    if (j->kind == GANG_RUN) {
        r = &j->run.call.rows;
        for (uint32_t i = 0; i < j->run.n_steps; i++)
            SL_ASSERT(j->run.step[i].layer < spec.n_layers);
        const size_t n = (size_t)r->n * spec.top_k;
        if (gang_run_chooses(j)) see_result(NULL, (float *)(void *)r->expert, n);
        if (gang_run_chooses(j)) see_result(NULL, r->gate, n);
    } else if (j->kind != GANG_CALL || j->call.op == SL_OP_EXPERTS) {
        return;
    }
    if (r->id) read_bytes(r->id, r->n * sizeof *r->id);
    for (uint32_t i = 0; j->kind == GANG_CALL && j->call.op == SL_OP_MTP && i < r->n; i++) {
        SL_ASSERT(r->id[i] < spec.vocab);
        see_result(NULL, (float *)sl_mem_ptr(j->call.mtp.out) + (size_t)i * spec.d_model,
                   spec.d_model);
    }
    for (uint32_t i = 0; r->pages && i < r->n; i++)
        for (uint32_t p = 0; p <= r->pos[i] / SL_KV_PAGE_TOKENS; p++)
            SL_ASSERT(r->pages[i][p] < PAGES);
}

/* Rows that come from the rank before this one. */
static void hand(const gang_job *j, uint8_t how) {
    const size_t bytes = (how & 7u) * spec.d_model * sizeof(float) + (how >> 3 & 3u) - 1u;
    const size_t len = bytes == SIZE_MAX ? 0 : bytes;
    gang_inbound rows = {.data = calloc(1, SL_MAX(len, (size_t)1)), .len = len};
    sl_err err;
    if (!rows.data) abort();
    rows.number = how >> 5 ? BEFORE : how;
    if (gang_rows_take(j, &spec, &rows, &err) == SL_OK)
        SL_ASSERT(rows.number == j->run.before && len == j->run.call.rows.n * 64u);
    free(rows.data);
}

static void take(const uint8_t *data, size_t len, bool together, uint8_t handed) {
    static gang_marks marks;
    const gang_bounds b = {.spec = &spec,
                           .max_rows = ROWS,
                           .max_pairs = SL_MAX(PAIRS, ROWS * 2),
                           .kv_pages = PAGES,
                           .attention = true,
                           .experts = true,
                           .inside = true,
                           .mtp = together,
                           .together = together,
                           .spreads = together,
                           .wire = WIRE,
                           .is = {together ? 1 : 2, together ? 2 : 4},
                           .out = {8, 8},
                           .blocks = {0, 2}};
    const gang_share who = {{1, 2}, {8, 8}, {1, 1}, {0, 2}};
    gang_pointers pointers = {0};
    gang_job j;
    sl_err err;
    if (gang_parcel_take(&there, to, &b, data, len, &err) != SL_OK) return;
    const gang_job_kind kind = to->job.kind;
    if (kind == GANG_MAP || kind == GANG_UNMAP || kind == GANG_SETTLE || kind == GANG_LEAVE) return;
    if (gang_job_unpack(&there, to->area, &to->job, &pointers, &j, &err) != SL_OK) return;
    read_lists(&j);
    if (j.kind == GANG_RUN && j.run.before) hand(&j, handed);
    sl_status st = gang_each_input(&j, &spec, &marks, see_input, NULL, &err);
    if (st == SL_OK) st = gang_each_result(&j, &spec, &who, &marks, see_result, NULL, &err);
    SL_ASSERT(st == SL_OK);
    gang_pointers_free(&pointers);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static gang_marks marks;
    gang_parcel p = {0};
    sl_err err;
    if (size == 0) return 0;
    make();
    const uint8_t which = (data[0] & 63) % JOBS;
    gang_job j = job_of(which);
    if (data[0] & 64) make_empty(&j);
    gang_job_pack(&here, AREA, &j, &spec, &from->job);
    if (gang_parcel_fill(&p, &here, from, &j, &spec, &marks, NULL, &err) != SL_OK) abort();
    size_t len = p.len;
    uint8_t handed = ROWS | 1u << 3 | 1u << 5; /* right ones */
    for (size_t i = 1; i + 3 <= size; i += 3) {
        const size_t at = (size_t)(data[i] | data[i + 1] << 8);
        if (at == HANDED)
            handed = data[i + 2];
        else if (at < p.len)
            p.data[at] = data[i + 2];
        else
            len = SL_MIN(len, at % (p.len + 1));
    }
    uint8_t *exact = malloc(SL_MAX(len, (size_t)1)); /* what is read behind it is seen */
    if (!exact) abort();
    memcpy(exact, p.data, len);
    take(exact, len, which >= 8 + ALONE, handed);
    if (size == 1) SL_ASSERT(to->job.kind == j.kind); /* unchanged, it is taken */
    free(exact);
    gang_parcel_free(&p);
    return 0;
}
