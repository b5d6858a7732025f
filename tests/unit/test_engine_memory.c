/* Memory that is out once while requests run: nobody waits for ever. A request ends, or a worker
 * stops and says why; a deployment that has both has not lost anybody in silence. */
#include "base/log.h"
#include "engine_steps.h"
#include "sanitized.h"

/* One of so many allocations fails. Primes: what takes memory again and again is met in all places.
 */
static uint32_t each(void) {
    return take_one_in(SL_SLOW_BUILD == 2 ? 41 : SL_SLOW_BUILD ? 17 : 7);
}

/* Whether a worker has stopped, for want of memory or since the coordinator had none for it. */
static bool somebody_stopped(const deployment *d) {
    sl_status st;
    sl_err err;
    for (uint32_t i = 0; i < d->n; i++) {
        if (!sl_worker_stopped(d->worker[i], &st, &err)) continue;
        if (st != SL_ERR_NOMEM && st != SL_ERR_PEER_DOWN)
            fail_msg("worker %u: %s: %s", i, sl_status_text(st), err.msg);
        return true;
    }
    return false;
}

/* Requests with the nth allocation failing. False: there were not as many. */
static bool run_without(uint32_t side, sl_schedule schedule, uint32_t lanes, uint32_t chunks,
                        uint64_t nth) {
    deployment d;
    sl_err err;
    uint64_t id;
    uint32_t asked = 0, i = 0;
    start(&d, side, schedule, lanes, chunks, SL_ORDER_ASAS);
    await_service(&d);
    sl_request_params p = request_of(&d);
    p.max_tokens = SL_KV_PAGE_TOKENS + NEW; /* so each is told of another page */
    const uint64_t before = sl_mem_count();
    sl_mem_fail_at(nth);
    for (uint32_t r = 0; r < REQUESTS; r++)
        asked += sl_engine_submit(d.engine, &p, &id, &err) == SL_OK;
    while (i++ < TURNS && d.ends < asked && !somebody_stopped(&d)) turn(&d);
    sl_mem_fail_at(0);
    const bool failed = sl_mem_count() - before >= nth;
    if (d.ends < asked && !somebody_stopped(&d))
        fail_msg("schedule %d, allocation %llu: %u of %u requests ended", (int)schedule,
                 (unsigned long long)nth, d.ends, asked);
    stop(&d);
    return failed;
}

static void nobody_waits_for_ever(void **state) {
    (void)state;
    static const struct {
        sl_schedule schedule;
        uint32_t lanes, chunks;
    } all[] = {{SL_SCHED_DEP, 1, 1},
               {SL_SCHED_PINGPONG, 2, 1},
               {SL_SCHED_FINDEP, 2, 2},
               {SL_SCHED_AEP, 1, 1}};
    for (size_t i = 0; i < 2 * SL_LEN(all); i++) {
        const uint32_t of = (uint32_t)i / 2, side = 1 + i % 2;
        uint64_t nth = 1;
        while (run_without(side, all[of].schedule, all[of].lanes, all[of].chunks, nth))
            nth += each();
        print_message("schedule %d, %u workers: about %llu allocations\n", (int)all[of].schedule,
                      2 * side, (unsigned long long)nth - 1);
        assert_true(nth > 10);
    }
}

int main(void) {
    sl_log_set_level(SL_LOG_ERROR);
    const struct CMUnitTest tests[] = {cmocka_unit_test(nobody_waits_for_ever)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
