/* Prompts at ranks on machines: rows pass in parts, the next of which is computed while what one
 * needs of the other ranks travels. Of every family's fixture 2 and 4 ranks give the bits of one
 * device, by blocks inside and stage by stage. */
/* Five parts of attention, several slices of pairs; the last of each is a short one. */
#define ROWS  290u
#define PAGES 24u
#include "device_run.h"
#include "sanitized.h"

static void check(const char *name, const char *path, uint32_t ranks, bool segmented,
                  sl_activations how) {
    const servers others = serve_ranks(path, ranks);
    ranks_at = others.at;
    run one = start(open_gang(path, 1, SL_RANKS_THREADS, segmented, how, 1));
    run gang = start(open_gang(path, ranks, SL_RANKS_MACHINES, segmented, how, 1));
    for (uint32_t step = 0; step < STEPS; step++) {
        gang.inside = gang.d->inside && (step + ranks / 2) % 2;
        run_step(&one, step);
        run_step(&gang, step);
        same_bits(&one, &gang, name, ranks);
    }
    end(&gang);
    served(&others);
    end(&one);
}

static void check_parts(const char *name, const char *path, uint32_t n) {
    const sl_activations how = (n + 1) % 3 ? SL_ACTIVATIONS_INT8 : SL_ACTIVATIONS_F32;
    if (n % take_one_in(2)) return;
    check(name, path, 2, false, how);
    check(name, path, (n + 1) % 4 ? 2 : 4, (n + 1) % 2, how);
}

static void parts_give_the_same(void **state) {
    (void)state;
    assert_true(each_fixture(check_parts) >= 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(parts_give_the_same)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
