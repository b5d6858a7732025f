/* What stages cost in a simulated deployment: weights that still lie in a cache. */
#include "sim_scene.h"

#include <math.h>
#include <stdio.h>

/* Two lanes go through a block one right after the other, and a step later a cache that is smaller
 * than the model has none of it any more. */
static void the_second_lane_finds_weights_in_a_cache(void **state) {
    (void)state;
    static const struct {
        double cache_bytes, beside, layer_us;
    } rows[] = {{0, 0, 20000}, {1e5, 1, 16000}, {1e5, 0, 16000}, {1e12, 1, 12000}};
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        static scene x;
        model_of(&x.m, 8, 0, 8, 8);
        x.c = (sl_costs){
            .stage = {[SL_COST_ATTENTION] = {.fixed_us = 8000, .floor_us = 2000, .again_us = 4000},
                      [SL_COST_EXPERT] = {.fixed_us = 500, .again_us = 250}},
            .bytes = {[SL_COST_ATTENTION] = 1e6, [SL_COST_EXPERT] = 10},
            .cache_bytes = rows[i].cache_bytes};
        for (int k = 0; k < SL_COST_COUNT; k++) x.c.beside[k] = rows[i].beside;
        scene_init(&x, 1, 1, SL_SCHED_PINGPONG);
        x.p.lanes = 2;
        lengths(&x, 1, 1, 200, 300);
        closed(&x, 48);
        x.s.warmup_us = 2e7;
        x.s.measure_us = 4e7;
        sl_sim_result r = run(&x);
        double layer = 48 * 1e6 / r.tokens_per_s / 8;
        printf("a cache of %g bytes: a layer takes %.1f us, law %.1f\n", rows[i].cache_bytes, layer,
               rows[i].layer_us);
        assert_true(fabs(layer / rows[i].layer_us - 1) < 0.01);
        sl_sim_result_free(&r);
        scene_free(&x);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_second_lane_finds_weights_in_a_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
