/* Rows of answers that were asked of two: what became of them. */
#include "sched/twice.h"

#include "base/mem.h"

sl_status sl_twice_create(uint32_t n_workers, sl_twice *out, sl_err *err) {
    *out = (sl_twice){.n_workers = n_workers};
    out->debt = sl_alloc(n_workers, sizeof *out->debt);
    if (out->debt) return SL_OK;
    return sl_fail(err, SL_ERR_NOMEM, "debts of %u workers", n_workers);
}

void sl_twice_free(sl_twice *t) {
    sl_free(t->debt);
    *t = (sl_twice){0};
}

/* So many of the worker's are out no more. */
static uint64_t settle(sl_twice *t, uint32_t worker, uint64_t rows) {
    SL_ASSERT(worker < t->n_workers);
    rows = SL_MIN(rows, t->debt[worker].rows);
    t->debt[worker].rows -= rows;
    t->out -= rows;
    return rows;
}

void sl_twice_asked(sl_twice *t, uint32_t worker, uint32_t epoch, uint64_t rows) {
    sl_twice_serves(t, worker, epoch);
    t->debt[worker].rows += rows;
    t->debt[worker].epoch = epoch;
    t->asked += rows;
    t->out += rows;
}

void sl_twice_counted(sl_twice *t, uint32_t worker, uint64_t rows) {
    t->counted += settle(t, worker, rows);
}

void sl_twice_first(sl_twice *t, uint32_t worker, uint64_t rows) {
    t->first += rows;
    sl_twice_counted(t, worker, rows);
}

void sl_twice_late(sl_twice *t, uint32_t worker, uint64_t rows) {
    t->late += settle(t, worker, rows);
}

void sl_twice_gone(sl_twice *t, uint32_t worker) {
    t->lost += settle(t, worker, UINT64_MAX);
}

void sl_twice_serves(sl_twice *t, uint32_t worker, uint32_t epoch) {
    SL_ASSERT(worker < t->n_workers);
    if (t->debt[worker].rows > 0 && t->debt[worker].epoch != epoch) sl_twice_gone(t, worker);
}
