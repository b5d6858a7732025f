/* Sides of a plan (format/plan_sides.h): what is read is what is printed, what either side sees,
 * who of them is left when somebody is lost, and what is refused. */
#include "base/mem.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "format/plan_sides.h"
#include "plan_model.h"
#include "spec/buddy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#define BOTH (SL_ROLE_ATTENTION | SL_ROLE_EXPERT)

/* One attention and two expert workers, and as many for prompts: 3, and 4 and 5. */
static void apart(sl_plan *p) {
    sl_err err;
    assert_int_equal(sl_plan_local(&plan_model, 1, 2, p, &err), SL_OK);
    assert_int_equal(sl_plan_add_prefill(1, 2, false, p, &err), SL_OK);
    assert_int_equal(sl_plan_check(p, &plan_model, &err), SL_OK);
}

static void places(void **state) {
    (void)state;
    sl_plan p;
    apart(&p);
    assert_int_equal(p.n_workers, 6);
    assert_true(sl_plan_has_prefill(&p) && sl_plan_sides_apart(&p));
    assert_int_equal(p.worker[3].roles, SL_ROLE_ATTENTION);
    for (uint32_t e = 0; e < 8; e++) {
        assert_int_equal(p.place.host[e].worker, e < 4 ? 1 : 2);
        assert_int_equal(p.prefill_place.host[e].worker, e < 4 ? 4 : 5);
        for (uint32_t w = 0; w < 6; w++) /* each by its side */
            assert_int_equal(sl_plan_is_host(&p, 0, e, w), w % 3 == (e < 4 ? 1u : 2u));
    }
    sl_plan_free(&p);
}

static void together(void **state) {
    (void)state;
    sl_plan p;
    sl_err err;
    assert_int_equal(sl_plan_local(&plan_model, 2, 0, &p, &err), SL_OK);
    assert_int_equal(sl_plan_add_prefill(1, 1, false, &p, &err), SL_ERR_ARG);
    assert_int_equal(sl_plan_add_prefill(1, 0, false, &p, &err), SL_OK);
    assert_int_equal(p.worker[2].roles, BOTH);
    assert_int_equal(p.prefill_place.host[7].worker, 2);
    assert_int_equal(sl_plan_check(&p, &plan_model, &err), SL_OK);
    sl_plan_free(&p);
}

/* Workers for prompts that have both roles beside others that have one. */
static void together_beside_apart(void **state) {
    (void)state;
    sl_plan p;
    sl_err err;
    assert_int_equal(sl_plan_local(&plan_model, 1, 2, &p, &err), SL_OK);
    assert_int_equal(p.schedule, SL_SCHED_DEP);
    assert_int_equal(sl_plan_add_prefill(1, 1, true, &p, &err), SL_ERR_ARG);
    assert_int_equal(sl_plan_add_prefill(2, 0, true, &p, &err), SL_OK);
    for (uint32_t i = 3; i < 5; i++) assert_int_equal(p.worker[i].roles, BOTH);
    for (uint32_t e = 0; e < 8; e++) {
        assert_int_equal(p.place.host[e].worker, e < 4 ? 1 : 2);
        assert_int_equal(p.prefill_place.host[e].worker, e < 4 ? 3 : 4);
    }
    assert_int_equal(sl_plan_check(&p, &plan_model, &err), SL_OK);
    for (uint32_t prompts = 0; prompts < 2; prompts++) { /* each side's is one of its roles */
        sl_plan side, q;
        assert_int_equal(sl_plan_view(&p, prompts, &side, &err), SL_OK);
        assert_int_equal(side.schedule, prompts ? SL_SCHED_EP : SL_SCHED_DEP);
        char *text = sl_plan_print(&side);
        assert_non_null(text);
        sl_json_doc *doc = NULL;
        const sl_span bytes = {(const uint8_t *)text, strlen(text)};
        assert_int_equal(sl_json_parse("message", bytes, &doc, &err), SL_OK);
        assert_int_equal(sl_plan_from_message(sl_json_root(doc), &plan_model, &q, &err), SL_OK);
        sl_json_doc_free(doc);
        sl_free(text);
        sl_plan_free(&q);
        sl_plan_free(&side);
    }
    p.worker[0].roles = BOTH; /* of those who decode */
    assert_int_equal(sl_plan_check(&p, &plan_model, &err), SL_ERR_ARG);
    sl_plan_free(&p);
}

static void read_and_printed(void **state) {
    (void)state;
    sl_plan p, q;
    sl_err err;
    apart(&p);
    p.prefill_rows = 77;
    char *text = sl_plan_print(&p), *again;
    assert_non_null(text);
    assert_int_equal(plan_parse(text, &q, &err), SL_OK);
    assert_int_equal(q.prefill_rows, 77);
    assert_true(q.worker[3].prefill && !q.worker[2].prefill);
    assert_memory_equal(q.prefill_place.host, p.prefill_place.host, 8 * sizeof(sl_host));
    again = sl_plan_print(&q);
    assert_string_equal(text, again);
    sl_free(text);
    sl_free(again);
    sl_plan_free(&p);
    sl_plan_free(&q);
}

/* Rounds and hosts are those of its side; pages alone cross. */
static void what_a_side_sees(void **state) {
    (void)state;
    sl_plan p, view[2];
    sl_err err;
    apart(&p);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(sl_plan_view(&p, i, &view[i], &err), SL_OK);
        assert_int_equal(view[i].place.host[0].worker, i ? 4 : 1);
        for (uint32_t w = 0; w < 6; w++) {
            assert_int_equal(view[i].worker[w].roles,
                             p.worker[w].prefill == i ? p.worker[w].roles : 0);
            assert_int_equal(view[i].worker[w].pages, w == (i ? 0u : 3u));
        }
        assert_true(sl_plan_move_pages(&view[i], 0, 3) && sl_plan_move_pages(&view[i], 3, 0));
        assert_false(sl_plan_move_pages(&view[i], 0, 4) || sl_plan_move_pages(&view[i], 1, 3));
    }
    for (int i = 0; i < 2; i++) {
        char *text = sl_plan_print_view(&p, i);
        sl_json_doc *doc = NULL;
        sl_plan q;
        assert_int_equal(
            sl_json_parse("message", (sl_span){(const uint8_t *)text, strlen(text)}, &doc, &err),
            SL_OK);
        assert_int_equal(sl_plan_from_message(sl_json_root(doc), &plan_model, &q, &err), SL_OK);
        assert_false(sl_plan_has_prefill(&q));
        assert_int_equal(q.worker[i ? 0 : 3].pages, true);
        sl_json_doc_free(doc);
        sl_free(text);
        sl_plan_free(&q);
        sl_plan_free(&view[i]);
    }
    sl_plan_free(&p);
}

/* The same experts for both: each sees all. */
static void shared_experts(void **state) {
    (void)state;
    sl_plan p, view;
    sl_err err;
    assert_int_equal(sl_plan_local(&plan_model, 1, 2, &p, &err), SL_OK);
    assert_int_equal(sl_plan_add_prefill(1, 0, false, &p, &err), SL_OK);
    assert_int_equal(sl_plan_check(&p, &plan_model, &err), SL_ERR_UNSUPPORTED); /* dep */
    sl_plan_set_schedule(&p, SL_SCHED_AEP);
    assert_int_equal(sl_plan_check(&p, &plan_model, &err), SL_OK);
    assert_false(sl_plan_sides_apart(&p));
    assert_int_equal(sl_plan_view(&p, true, &view, &err), SL_OK);
    assert_int_equal(view.worker[0].roles, SL_ROLE_ATTENTION);
    assert_true(view.worker[0].pages && !view.worker[3].pages);
    assert_int_equal(view.place.host[7].worker, 2);
    sl_plan_free(&view);
    sl_plan_free(&p);
}

static void those_who_are_there(void **state) {
    (void)state;
    sl_plan home, p;
    sl_err err;
    uint8_t there[6] = {1, 0, 1, 1, 0, 1};
    uint32_t added[6];
    apart(&home);
    assert_int_equal(sl_plan_among(&home, there, &p, &err), SL_OK);
    for (uint32_t e = 0; e < 8; e++) {
        assert_int_equal(p.place.host[e].worker, 2);
        assert_int_equal(p.prefill_place.host[e].worker, 5);
    }
    sl_placement_added(&home, &p, 3, added);
    assert_int_equal(added[2], 3 * 4);
    assert_int_equal(added[5], 3 * 4);
    sl_plan_free(&p);
    there[3] = 0; /* no attention for prompts: the side is left out */
    assert_int_equal(sl_plan_among(&home, there, &p, &err), SL_OK);
    assert_int_equal(p.worker[5].roles, 0);
    assert_int_equal(p.worker[2].roles, SL_ROLE_EXPERT);
    sl_plan_free(&p);
    there[2] = 0;
    assert_int_equal(sl_plan_among(&home, there, &p, &err), SL_ERR_INFEASIBLE);
    there[0] = 0;
    there[2] = there[3] = 1;
    assert_int_equal(sl_plan_among(&home, there, &p, &err), SL_ERR_INFEASIBLE);
    sl_plan_free(&home);
}

static void covered(void **state) {
    (void)state;
    sl_plan p;
    uint8_t lost[6] = {0};
    apart(&p);
    assert_true(sl_plan_is_covered(&p, lost));
    lost[4] = 1;
    assert_false(sl_plan_is_covered(&p, lost));
    lost[3] = 1; /* nobody there asks for them */
    assert_true(sl_plan_is_covered(&p, lost));
    lost[1] = 1;
    assert_false(sl_plan_is_covered(&p, lost));
    sl_plan_free(&p);
}

static void refused(const char *workers, const char *why) {
    char text[600];
    sl_plan p;
    sl_err err;
    snprintf(text, sizeof text, "{\"version\":1,\"schedule\":\"dep\",\"workers\":[%s]}", workers);
    if (plan_parse(text, &p, &err) == SL_OK) fail_msg("accepted: %s", text);
    if (!strstr(err.msg, why)) fail_msg("'%s', expected '%s', for %s", err.msg, why, text);
}

static void what_is_refused(void **state) {
    (void)state;
#define A "{\"roles\":[\"attention\"]"
#define E "{\"roles\":[\"expert\"]"
    refused(A "}," E "}," A ",\"prefill\":true}", "experts of their own");
    refused(A "}," E "}," E ",\"prefill\":true}", "none of them has attention");
    refused(A ",\"prefill\":true}," E "}", "0 attention and 1 expert workers");
    refused(A "}," E ",\"prefill\":true}", "1 attention and 0 expert workers");
    refused(A "}," E "}," A ",\"prefill\":true,\"spare\":true}", "is there at first");
    refused(A "}," E "}," A ",\"prefill\":1}", "prefill");
    refused(A ",\"pages\":true}," E "}", "the coordinator says that");
    refused(A "}," E "}," A ",\"prefill\":true}," E ",\"prefill\":true,\"experts\":[0]}",
            "spread evenly");
    refused(A "}," E "}," A
              ",\"prefill\":true},{\"roles\":[\"attention\",\"expert\"],\"prefill\":true}",
            "keeps roles apart");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places),
        cmocka_unit_test(together),
        cmocka_unit_test(together_beside_apart),
        cmocka_unit_test(read_and_printed),
        cmocka_unit_test(what_a_side_sees),
        cmocka_unit_test(shared_experts),
        cmocka_unit_test(those_who_are_there),
        cmocka_unit_test(covered),
        cmocka_unit_test(what_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
