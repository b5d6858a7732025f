/* plan.json: what is read is what is printed, what is left out has its default, what cannot be run
 * is refused with its reason. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/mem.h"
#include "engine/measure/place.h"
#include "format/placement.h"
#include "format/plan_json.h"
#include "net/net.h"
#include "plan_model.h"
#include "spec/buddy.h"
#include "spec/kv.h"

static sl_model_spec model(void) {
    return plan_model;
}

static void refused(const char *text, sl_status want, const char *why) {
    sl_plan p = {0};
    sl_err err = {0};
    sl_status st = plan_parse(text, &p, &err);
    if (st == SL_OK) fail_msg("accepted: %s", text);
    if (st != want || err.code != st || !strstr(err.msg, why))
        fail_msg("status %d '%s', expected %d with '%s', for %s", st, err.msg, want, why, text);
    assert_null(p.place.first);
}

#define HEAD "\"version\":1,\"schedule\":\"dep\""
#define PAIR "\"workers\":[{\"roles\":[\"attention\"]},{\"roles\":[\"expert\"]}]"

static void activations_are_read_and_printed(void **state) {
    (void)state;
    for (sl_activations a = 0; a <= SL_ACTIVATIONS_COUNT; a++) { /* the last: nothing said */
        sl_plan p = {0}, q = {0};
        sl_err err = {0};
        char json[300] = "{" HEAD "," PAIR;
        if (a < SL_ACTIVATIONS_COUNT)
            snprintf(json + strlen(json), 60, ",\"activations\":\"%s\"", sl_activations_names[a]);
        strcat(json, "}");
        if (plan_parse(json, &p, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(p.activations, a < SL_ACTIVATIONS_COUNT ? a : SL_ACTIVATIONS_DEFAULT);
        char *text = sl_plan_print(&p);
        assert_non_null(text);
        if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(q.activations, p.activations);
        sl_free(text);
        sl_plan_free(&p);
        sl_plan_free(&q);
    }
    refused("{" HEAD "," PAIR ",\"activations\":\"fp8\"}", SL_ERR_ARG,
            "f32, int8, bf16, bf16-parts");
}

static void types_of_kv_are_read_and_printed(void **state) {
    (void)state;
    for (sl_kv_type t = SL_KV_F32; t <= SL_KV_AUTO; t++) { /* the last: nothing said */
        sl_plan p = {0}, q = {0};
        sl_err err = {0};
        char json[300] = "{" HEAD "," PAIR;
        if (t < SL_KV_AUTO)
            snprintf(json + strlen(json), 60, ",\"kv_type\":\"%s\"", sl_kv_type_names[t]);
        strcat(json, "}");
        if (plan_parse(json, &p, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(p.kv_type, t);
        char *text = sl_plan_print(&p);
        assert_non_null(text);
        if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s", err.msg);
        assert_int_equal(q.kv_type, p.kv_type);
        sl_free(text);
        sl_plan_free(&p);
        sl_plan_free(&q);
    }
    refused("{" HEAD "," PAIR ",\"kv_type\":\"q4_0\"}", SL_ERR_ARG,
            "f32, f16, bf16, q8_0, fp8, auto");
}

static void ranks_are_read_and_printed(void **state) {
    static const char *const said[] = {"", ",\"ranks\":\"threads\"", ",\"ranks\":\"processes\""};
    (void)state;
    for (uint32_t i = 0; i < SL_LEN(said); i++) {
        sl_plan p = {0}, q = {0};
        sl_err err = {0};
        char json[300];
        snprintf(json, sizeof json, "{" HEAD "," PAIR ",\"tp\":{\"attention\":2,\"expert\":4%s}}",
                 said[i]);
        if (plan_parse(json, &p, &err) != SL_OK) fail_msg("%s", err.msg);
        char *text = sl_plan_print(&p);
        assert_non_null(text);
        if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s", err.msg);
        for (const sl_plan *at = &p; at; at = at == &p ? &q : NULL) {
            assert_true(at->attention_tp == 2 && at->expert_tp == 4);
            assert_int_equal(at->rank_kind, i == 2 ? SL_RANKS_PROCESSES : SL_RANKS_THREADS);
        }
        sl_free(text);
        sl_plan_free(&p);
        sl_plan_free(&q);
    }
}

/* Lanes may close then, and those that are open have all rows. */
static void resolve_is_read_and_printed(void **state) {
    (void)state;
    sl_plan p = {0}, q = {0};
    sl_err err = {0};
    if (plan_parse("{\"version\":1,\"schedule\":\"findep\",\"lanes\":4,\"resolve\":16," PAIR "}",
                   &p, &err) != SL_OK)
        fail_msg("%s", err.msg);
    char *text = sl_plan_print(&p);
    assert_non_null(text);
    if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_true(p.resolve == 16 && q.resolve == 16);
    assert_int_equal(sl_plan_lane_rows(&p), p.max_num_batched_tokens);
    p.resolve = 0;
    assert_int_equal(sl_plan_lane_rows(&p), p.max_num_batched_tokens / 4);
    sl_free(text);
    sl_plan_free(&p);
    sl_plan_free(&q);
}

static void costs_are_read_and_printed(void **state) {
    (void)state;
    sl_plan p = {0}, q = {0};
    sl_err err = {0};
    if (plan_parse("{" HEAD "," PAIR
                   ",\"costs\":{\"attention\":{\"row\":2,\"key\":0.5},\"expert\":{\"floor\":9},"
                   "\"link\":{\"alpha\":3,\"byte\":0.25,\"half_duplex\":true}}}",
                   &p, &err) != SL_OK)
        fail_msg("%s", err.msg);
    char *text = sl_plan_print(&p);
    assert_non_null(text);
    if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s", err.msg);
    for (const sl_plan *at = &p; at; at = at == &p ? &q : NULL) {
        assert_true(at->has_costs && at->costs.stage[SL_COST_ATTENTION].key_us == 0.5);
        assert_true(at->costs.stage[SL_COST_EXPERT].floor_us == 9);
        assert_true(at->costs.link.half_duplex && at->costs.link.byte_us == 0.25);
    }
    sl_free(text);
    sl_plan_free(&p);
    sl_plan_free(&q);
    refused("{" HEAD "," PAIR ",\"costs\":{}}", SL_ERR_FORMAT, "costs.link: missing");
    refused("{" HEAD "," PAIR ",\"costs\":{\"link\":{\"alpha\":-1}}}", SL_ERR_LIMIT,
            "costs.link.alpha");
    refused("{" HEAD "," PAIR ",\"costs\":{\"link\":{},\"gate\":{}}}", SL_ERR_UNSUPPORTED, "gate");
}

static void defaults(void **state) {
    (void)state;
    sl_plan p = {0};
    sl_err err = {0};
    sl_model_spec m = model();
    if (plan_parse("{" HEAD "," PAIR "}", &p, &err) != SL_OK) fail_msg("%s", err.msg);
    assert_int_equal(p.epoch, 1);
    assert_int_equal(p.lanes, 1);
    assert_int_equal(p.schedule, SL_SCHED_DEP);
    assert_int_equal(p.wire, SL_WIRE_F32);
    assert_false(p.exact);
    assert_int_equal(p.max_num_seqs, 64);
    assert_int_equal(p.max_num_batched_tokens, 512);
    assert_int_equal(p.context, 512);
    assert_int_equal(p.n_pages, 64 * sl_kv_pages_for(512));
    assert_int_equal(p.threads, 0);
    assert_int_equal(p.n_workers, 2);
    assert_int_equal(p.worker[0].roles, SL_ROLE_ATTENTION);
    assert_int_equal(p.worker[1].roles, SL_ROLE_EXPERT);
    for (uint32_t e = 0; e < m.n_experts; e++) assert_int_equal(sl_plan_host_of(&p, 0, e, 0), 1);
    sl_plan_free(&p);
    assert_null(p.place.first);
}

static void same_plan(const sl_plan *a, const sl_plan *b) {
    assert_int_equal(a->epoch, b->epoch);
    assert_int_equal(a->schedule, b->schedule);
    assert_int_equal(a->lanes, b->lanes);
    assert_int_equal(a->wire, b->wire);
    assert_int_equal(a->exact, b->exact);
    assert_int_equal(a->max_num_seqs, b->max_num_seqs);
    assert_int_equal(a->max_num_batched_tokens, b->max_num_batched_tokens);
    assert_int_equal(a->context, b->context);
    assert_int_equal(a->n_pages, b->n_pages);
    assert_int_equal(a->threads, b->threads);
    assert_int_equal(a->n_workers, b->n_workers);
    assert_int_equal(a->n_experts, b->n_experts);
    size_t entries = (size_t)a->place.n_layers * a->n_experts;
    assert_int_equal(a->place.n_layers, b->place.n_layers);
    assert_memory_equal(a->place.first, b->place.first, (entries + 1) * sizeof *a->place.first);
    assert_memory_equal(a->place.host, b->place.host,
                        a->place.first[entries] * sizeof *a->place.host);
    for (uint32_t i = 0; i < a->n_workers; i++) {
        assert_int_equal(a->worker[i].id, b->worker[i].id);
        assert_int_equal(a->worker[i].roles, b->worker[i].roles);
        assert_true(a->worker[i].incarnation == b->worker[i].incarnation);
        assert_string_equal(a->worker[i].address, b->worker[i].address);
    }
}

static void round_trip(void **state) {
    (void)state;
    sl_plan p = {0}, q = {0}, copy = {0};
    sl_err err = {0};
    if (plan_parse("{\"version\":1,\"epoch\":7,\"schedule\":\"dep\",\"lanes\":1,\"wire\":\"bf16\","
                   "\"exact\":true,\"threads\":3,\"workers\":[{\"id\":0,\"roles\":[\"attention\"],"
                   "\"address\":\"10.0.0.1:7000\"},{\"roles\":[\"expert\"],\"experts\":[0,2,4,6]},"
                   "{\"roles\":[\"expert\"],\"experts\":[7,5,3,1]}],\"limits\":{\"max_num_seqs\":5,"
                   "\"max_num_batched_tokens\":48,\"context\":300,\"kv_pages\":11}}",
                   &p, &err) != SL_OK)
        fail_msg("%s", err.msg);
    assert_int_equal(p.epoch, 7);
    assert_int_equal(p.wire, SL_WIRE_BF16);
    assert_true(p.exact);
    assert_int_equal(p.threads, 3);
    assert_int_equal(p.max_num_seqs, 5);
    assert_int_equal(p.max_num_batched_tokens, 48);
    assert_int_equal(p.context, 300);
    assert_int_equal(p.n_pages, 11);
    assert_string_equal(p.worker[0].address, "10.0.0.1:7000");
    for (uint32_t e = 0; e < 8; e++) assert_int_equal(sl_plan_host_of(&p, 0, e, 0), 1 + e % 2);
    char *text = sl_plan_print(&p);
    assert_non_null(text);
    if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s: %s", err.msg, text);
    same_plan(&p, &q);
    assert_int_equal(sl_plan_copy(&p, &copy, &err), SL_OK);
    same_plan(&p, &copy);
    assert_ptr_not_equal(p.place.host, copy.place.host);
    sl_free(text);
    sl_plan_free(&p);
    sl_plan_free(&q);
    sl_plan_free(&copy);
}

static sl_status parse_message(const char *text, sl_plan *out, sl_err *err) {
    const sl_span bytes = {(const uint8_t *)text, strlen(text)};
    sl_model_spec m = model();
    sl_json_doc *doc = NULL;
    sl_status st = sl_json_parse("message", bytes, &doc, err);
    if (st == SL_OK) st = sl_plan_from_message(sl_json_root(doc), &m, out, err);
    sl_json_doc_free(doc);
    return st;
}

/* The plan of those who are there is read from messages, and refused in files. */
static void some_are_not_there(void **state) {
    (void)state;
    static const uint32_t host[] = {2, 2, 2, 3, 3, 3, 2, 3}; /* 2 and 3 take turns at worker 4's */
    sl_plan home = {0}, p = {0}, q = {0};
    sl_err err = {0};
    sl_model_spec m = model();
    assert_int_equal(sl_plan_local(&m, 2, 3, &home, &err), SL_OK);
    home.worker[1].incarnation = SL_PLAN_MAX_INCARNATION;
    if (sl_plan_among(&home, (const uint8_t[]){0, 1, 1, 1, 0}, &p, &err) != SL_OK)
        fail_msg("%s", err.msg);
    assert_true(p.worker[0].roles == 0 && p.worker[1].roles == SL_ROLE_ATTENTION);
    assert_true(p.worker[2].roles == SL_ROLE_EXPERT && p.worker[4].roles == 0);
    for (uint32_t e = 0; e < 8; e++) assert_int_equal(sl_plan_host_of(&p, 0, e, 0), host[e]);
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "worker 0 needs a role"));
    char *text = sl_plan_print(&p);
    assert_non_null(text);
    if (parse_message(text, &q, &err) != SL_OK) fail_msg("%s: %s", err.msg, text);
    same_plan(&p, &q);
    refused(text, SL_ERR_ARG, "a worker needs a role");
    sl_free(text);
    sl_plan_free(&q);
    sl_plan_free(&p);
    uint32_t n, *ids = NULL;
    assert_int_equal(sl_plan_among(&home, (const uint8_t[]){1, 1, 1, 1, 1}, &p, &err), SL_OK);
    same_plan(&home, &p);
    p.worker[3].roles = 0;
    ids = sl_placement_expert_workers(&p, &n);
    assert_true(ids && n == 2 && ids[0] == 2 && ids[1] == 4);
    sl_free(ids);
    sl_plan_free(&p);
    assert_int_equal(sl_plan_among(&home, (const uint8_t[]){0, 0, 1, 1, 1}, &p, &err),
                     SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "no attention worker"));
    assert_int_equal(sl_plan_among(&home, (const uint8_t[]){1, 1, 0, 0, 0}, &p, &err),
                     SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "none of the plan's 3 expert workers"));
    sl_plan_free(&home);
}

/* Places where nobody is at first: behind the others, without experts, printed and read again. */
static void spare_places(void **state) {
    (void)state;
    sl_plan p = {0}, q = {0};
    sl_err err = {0};
    sl_model_spec m = model();
    assert_int_equal(sl_plan_local(&m, 1, 2, &p, &err), SL_OK);
    assert_int_equal(sl_plan_add_spares(1, 2, &p, &err), SL_OK);
    assert_true(p.n_workers == 6 && sl_plan_n_first(&p) == 3);
    assert_true(p.worker[3].spare && p.worker[3].roles == SL_ROLE_ATTENTION);
    assert_true(p.worker[5].spare && p.worker[5].roles == SL_ROLE_EXPERT);
    for (uint32_t e = 0; e < 8; e++) assert_true(sl_plan_host_of(&p, 0, e, 0) < 3);
    if (sl_plan_check(&p, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    char *text = sl_plan_print(&p);
    assert_non_null(text);
    if (parse_message(text, &q, &err) != SL_OK) fail_msg("%s: %s", err.msg, text);
    same_plan(&p, &q);
    assert_true(q.worker[5].spare && !q.worker[2].spare);
    sl_plan_free(&q);
    /* All of a role in the future are not enough. */
    for (uint32_t i = 1; i < 3; i++) p.worker[i].spare = true;
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "1 attention and 0 expert workers"));
    sl_free(text);
    assert_int_equal(sl_plan_add_spares(SL_MAX_WORKERS, 0, &p, &err), SL_ERR_ARG);
    sl_plan_free(&p);
    assert_int_equal(sl_plan_local(&m, 2, 0, &p, &err), SL_OK);
    assert_int_equal(sl_plan_add_spares(0, 1, &p, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "both roles"));
    assert_int_equal(sl_plan_add_spares(1, 0, &p, &err), SL_OK);
    assert_int_equal(p.worker[2].roles, SL_ROLE_ATTENTION | SL_ROLE_EXPERT);
    sl_plan_free(&p);
}

/* What a message says of those who are not there has to hold together, too. */
static void refused_messages(void **state) {
    (void)state;
    static const struct {
        const char *text, *why;
    } rows[] = {
        {"{" HEAD ",\"workers\":[{\"roles\":[\"attention\"]},{\"roles\":[]}]}",
         "1 attention and 0 expert workers"},
        {"{" HEAD ",\"workers\":[{\"roles\":[\"attention\"]},{\"roles\":[\"expert\"]},"
         "{\"roles\":[],\"experts\":[0]}]}",
         "worker 2 has no expert role"},
        {"{" HEAD ",\"placement\":[1,1,1,1,1,1,1,2],\"workers\":[{\"roles\":[\"attention\"]},"
         "{\"roles\":[\"expert\"]},{\"roles\":[]}]}",
         "worker 2 of 3 has no expert role"},
        {"{\"version\":1,\"schedule\":\"ep\",\"workers\":[{\"roles\":[]},{\"roles\":[\"expert\"]},"
         "{\"roles\":[\"attention\",\"expert\"]}]}",
         "1 of 2 workers do not have both roles"},
        {"{" HEAD ",\"workers\":[{\"roles\":[\"attention\"],\"incarnation\":9007199254740993}]}",
         "incarnation: 9007199254740993"},
        {"{" HEAD ",\"workers\":[{\"roles\":[\"attention\"],\"incarnation\":\"7\"}]}",
         "an integer was expected"},
    };
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        sl_plan p = {0};
        sl_err err = {0};
        if (parse_message(rows[i].text, &p, &err) == SL_OK) fail_msg("accepted: %s", rows[i].text);
        if (!strstr(err.msg, rows[i].why)) fail_msg("'%s' for %s", err.msg, rows[i].text);
    }
}

static void placements(void **state) {
    (void)state;
    sl_plan p = {0}, q = {0};
    sl_err err = {0};
    uint32_t n;
    if (plan_parse("{" HEAD ",\"placement\":[1,1,1,[[1,0.25],[2,0.75]],2,2,2,[[2,1]]],"
                   "\"workers\":[{\"roles\":[\"attention\"]},{\"roles\":[\"expert\"]},"
                   "{\"roles\":[\"expert\"]}]}",
                   &p, &err) != SL_OK)
        fail_msg("%s", err.msg);
    const sl_host *h = sl_plan_hosts(&p, 1, 3, &n); /* alike in all blocks */
    assert_true(n == 2 && h[0].worker == 1 && h[0].until == 1u << 30 && h[1].worker == 2);
    assert_int_equal(sl_plan_host_of(&p, 1, 3, (1u << 30) - 1), 1);
    assert_int_equal(sl_plan_host_of(&p, 1, 3, 1u << 30), 2);
    assert_int_equal(sl_plan_host_of(&p, 1, 3, UINT32_MAX), 2);
    assert_true(sl_plan_is_host(&p, 0, 7, 2) && !sl_plan_is_host(&p, 0, 7, 1));
    char *text = sl_plan_print(&p);
    assert_non_null(text);
    if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s: %s", err.msg, text);
    same_plan(&p, &q);
    sl_free(text);
    sl_plan_free(&q);
    uint32_t first = 0;
    for (uint32_t id = 0; id < 100; id++)
        for (uint32_t at = 0; at < 100; at++)
            first += sl_plan_host_of(&p, 0, 3, sl_plan_row_key(id, at, 0)) == 1;
    assert_true(first > 2300 && first < 2700); /* of 10,000 rows a quarter */
    sl_plan_free(&p);
#define TWO "\"workers\":[{\"roles\":[\"attention\"]},{\"roles\":[\"expert\"]}]"
    refused("{" HEAD ",\"placement\":[1,1]," TWO "}", SL_ERR_ARG, "2 entries for 8 experts");
    refused("{" HEAD ",\"placement\":[0,1,1,1,1,1,1,1]," TWO "}", SL_ERR_ARG, "worker 0 of 2");
    refused("{" HEAD ",\"placement\":[[[1,0.5]],1,1,1,1,1,1,1]," TWO "}", SL_ERR_ARG, "not 0.5");
    refused("{" HEAD ",\"placement\":[[[1,0.5],[1,0.5]],1,1,1,1,1,1,1]," TWO "}", SL_ERR_ARG,
            "named twice");
    refused("{" HEAD ",\"placement\":[[[1,2]],1,1,1,1,1,1,1]," TWO "}", SL_ERR_ARG, "share");
    refused("{" HEAD ",\"placement\":[[[1,0.999998]],1,1,1,1,1,1,1]," TWO "}", SL_ERR_ARG,
            "to 1, not 0.999998");
    refused("{" HEAD ",\"placement\":[]," TWO "}", SL_ERR_ARG, "0 lists");
}

static void made_placements(void **state) {
    (void)state;
    sl_model_spec m = model();
    sl_plan p = {0};
    sl_err err = {0};
    char path[] = "/tmp/sluice-rows-XXXXXX", how[64];
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *f = fdopen(fd, "w");
    fprintf(f, "{\"rows\": [");
    for (uint32_t l = 0; l < m.n_moe; l++)
        fprintf(f, "%s[%u,1,1,1,1,1,1,%u]", l ? "," : "", l ? 1 : 90, l ? 90 : 1);
    fprintf(f, "]}");
    fclose(f);
    assert_int_equal(sl_plan_local(&m, 1, 2, &p, &err), SL_OK);
    assert_int_equal(sl_placement_make("round-robin", &m, &p, &err), SL_OK);
    for (uint32_t e = 0; e < 8; e++) assert_int_equal(sl_plan_host_of(&p, 0, e, 0), 1 + e % 2);
    snprintf(how, sizeof how, "replicas:%s:1", path);
    if (sl_placement_make(how, &m, &p, &err) != SL_OK) fail_msg("%s", err.msg);
    for (uint32_t e = 0; e < 8; e++) { /* the hot one of each block lives twice */
        assert_int_equal(sl_plan_is_host(&p, 0, e, 1) && sl_plan_is_host(&p, 0, e, 2), e == 0);
        assert_int_equal(sl_plan_is_host(&p, 1, e, 1) && sl_plan_is_host(&p, 1, e, 2), e == 7);
    }
    snprintf(how, sizeof how, "hot-cold:%s", path);
    assert_int_equal(sl_placement_make(how, &m, &p, &err), SL_OK);
    assert_int_equal(sl_placement_make("replicas:/nowhere/rows:2", &m, &p, &err), SL_ERR_NOTFOUND);
    assert_int_equal(sl_placement_make("replicas:x:0", &m, &p, &err), SL_ERR_ARG);
    assert_int_equal(sl_placement_make("best", &m, &p, &err), SL_ERR_ARG);
    unlink(path);
    sl_plan_free(&p);
}

/* Each on so many workers: whoever is lost, others host all, and share what it had. */
static void replicas_by_number(void **state) {
    (void)state;
    sl_model_spec m = model();
    sl_plan p = {0};
    sl_err err = {0};
    assert_int_equal(sl_plan_local(&m, 1, 3, &p, &err), SL_OK);
    assert_false(sl_plan_has_replicas(&p));
    assert_true(sl_plan_is_covered(&p, (const uint8_t[]){1, 0, 0, 0}));
    assert_false(sl_plan_is_covered(&p, (const uint8_t[]){0, 0, 1, 0}));
    assert_int_equal(sl_placement_make("replicas:4", &m, &p, &err), SL_ERR_ARG);
    assert_int_equal(sl_placement_make("replicas:2", &m, &p, &err), SL_OK);
    assert_true(sl_plan_has_replicas(&p));
    for (uint32_t lost = 1; lost <= 3; lost++) {
        uint8_t gone[4] = {0};
        uint32_t takes[4] = {0};
        gone[lost] = 1;
        assert_true(sl_plan_is_covered(&p, gone));
        for (uint32_t e = 0; e < 8; e++) {
            uint32_t host = sl_plan_host_of(&p, 0, e, 7),
                     now = sl_plan_host_among(&p, 0, e, 7, gone);
            assert_true(now != lost && (host == lost || now == host));
            assert_true(sl_plan_is_host(&p, 0, e, now));
            takes[now] += host == lost;
        }
        for (uint32_t i = 1; i <= 3; i++) assert_true(i == lost || takes[i] > 0);
    }
    assert_false(sl_plan_is_covered(&p, (const uint8_t[]){0, 1, 1, 0}));
    assert_int_equal(sl_placement_make("replicas:1", &m, &p, &err), SL_OK);
    assert_false(sl_plan_has_replicas(&p));
    sl_plan_free(&p);
}

static void local_plans(void **state) {
    (void)state;
    static const struct {
        uint32_t attention, experts, workers;
        sl_schedule schedule;
    } rows[] = {{0, 0, 1, SL_SCHED_EP},
                {3, 0, 3, SL_SCHED_EP},
                {1, 1, 2, SL_SCHED_DEP},
                {0, 2, 3, SL_SCHED_DEP},
                {2, 3, 5, SL_SCHED_DEP}};
    sl_model_spec m = model();
    for (size_t i = 0; i < SL_LEN(rows); i++) {
        sl_plan p = {0}, q = {0};
        sl_err err = {0};
        uint32_t hosted[8] = {0};
        if (sl_plan_local(&m, rows[i].attention, rows[i].experts, &p, &err) != SL_OK)
            fail_msg("%s", err.msg);
        assert_int_equal(p.n_workers, rows[i].workers);
        assert_int_equal(p.schedule, rows[i].schedule);
        assert_int_equal(sl_plan_check(&p, &m, &err), SL_OK);
        for (uint32_t e = 0; e < m.n_experts; e++) {
            uint32_t host = sl_plan_host_of(&p, 0, e, 0);
            assert_true(p.worker[host].roles & SL_ROLE_EXPERT);
            if (e) assert_true(host >= sl_plan_host_of(&p, 0, e - 1, 0)); /* contiguous */
            hosted[host]++;
        }
        for (uint32_t w = 0; w < p.n_workers; w++) { /* even */
            uint32_t n = p.n_workers - (rows[i].experts ? SL_MAX(rows[i].attention, 1u) : 0);
            if (p.worker[w].roles & SL_ROLE_EXPERT)
                assert_in_range(hosted[w], m.n_experts / n, (m.n_experts + n - 1) / n);
        }
        char *text = sl_plan_print(&p);
        if (plan_parse(text, &q, &err) != SL_OK) fail_msg("%s: %s", err.msg, text);
        same_plan(&p, &q);
        sl_free(text);
        sl_plan_free(&p);
        sl_plan_free(&q);
    }
    sl_plan p = {0};
    sl_err err = {0};
    assert_int_equal(sl_plan_local(&m, 16383, 1, &p, &err), SL_OK);
    p.max_num_batched_tokens = 16384;
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_OK);
    assert_int_equal(sl_plan_check_size(&p, &m, &err), SL_OK);
    m.top_k = 17;
    assert_int_equal(sl_plan_check_size(&p, &m, &err), SL_ERR_INFEASIBLE);
    assert_non_null(
        strstr(err.msg, "4563124224 places, for 16383 attention workers with 16384 rows"));
    sl_plan_free(&p);
    assert_int_equal(sl_plan_local(&m, 16384, 1, &p, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "16385 workers, 1 to 16384"));
}

static void refusals(void **state) {
    (void)state;
    refused("{" HEAD "," PAIR, SL_ERR_FORMAT, "plan.json");
    refused("[]", SL_ERR_FORMAT, "an object was expected");
    refused("{" HEAD "}", SL_ERR_FORMAT, "workers");
    refused("{" HEAD ",\"workers\":[]}", SL_ERR_ARG, "0 workers, 1 to 16384");
    refused("{\"schedule\":\"dep\"," PAIR "}", SL_ERR_FORMAT, "version");
    refused("{\"version\":2,\"schedule\":\"dep\"," PAIR "}", SL_ERR_LIMIT, "version");
    refused("{\"version\":1," PAIR "}", SL_ERR_FORMAT, "schedule");
    refused("{\"version\":1,\"schedule\":\"magic\"," PAIR "}", SL_ERR_ARG, "schedule 'magic'");
    refused("{" HEAD ",\"shards\":3," PAIR "}", SL_ERR_UNSUPPORTED, "shards");
    refused("{" HEAD ",\"wire\":\"fp4\"," PAIR "}", SL_ERR_ARG, "wire format 'fp4'");
    refused("{" HEAD ",\"lanes\":2," PAIR "}", SL_ERR_ARG, "2 lanes, 1 to 1");
    refused("{" HEAD ",\"lanes\":17," PAIR "}", SL_ERR_LIMIT, "lanes");
    refused("{" HEAD ",\"chunks\":2," PAIR "}", SL_ERR_ARG, "2 chunks, 1 to 1");
    refused("{" HEAD ",\"policy\":\"fifo\"," PAIR "}", SL_ERR_ARG, "policy 'fifo'");
    refused("{" HEAD ",\"epoch\":0," PAIR "}", SL_ERR_LIMIT, "epoch");
    refused("{" HEAD ",\"exact\":\"yes\"," PAIR "}", SL_ERR_FORMAT, "exact");
    refused("{" HEAD ",\"threads\":257," PAIR "}", SL_ERR_LIMIT, "threads");
    refused("{" HEAD ",\"limits\":[]," PAIR "}", SL_ERR_FORMAT, "limits");
    refused("{" HEAD ",\"limits\":{\"pages\":1}," PAIR "}", SL_ERR_UNSUPPORTED, "pages");
    refused("{" HEAD ",\"limits\":{\"max_num_seqs\":0}," PAIR "}", SL_ERR_LIMIT, "max_num_seqs");
    refused("{" HEAD ",\"limits\":{\"max_num_seqs\":4097}," PAIR "}", SL_ERR_LIMIT, "4096");
    refused("{" HEAD ",\"limits\":{\"max_num_batched_tokens\":16385}," PAIR "}", SL_ERR_LIMIT,
            "max_num_batched_tokens");
    refused("{" HEAD ",\"limits\":{\"context\":0}," PAIR "}", SL_ERR_LIMIT, "context");
    refused("{" HEAD ",\"limits\":{\"kv_pages\":-1}," PAIR "}", SL_ERR_LIMIT, "kv_pages");
    refused("{" HEAD ",\"limits\":{\"context\":513}," PAIR "}", SL_ERR_ARG,
            "context 513, the model's limit is 512");
    refused("{" HEAD ",\"limits\":{\"kv_pages\":15}," PAIR "}", SL_ERR_INFEASIBLE,
            "15 KV pages of 32 positions hold no request of context 512");
}

#define FINDEP "\"version\":1,\"schedule\":\"findep\""
#define EPS    "\"version\":1,\"schedule\":\"eps\""
#define HYBRID "\"version\":1,\"schedule\":\"hybrid\""
#define BOTH                                                                                       \
    "\"workers\":[{\"roles\":[\"attention\",\"expert\"]},{\"roles\":[\"attention\",\"expert\"]}]"

static void refused_workers(void **state) {
    (void)state;
    refused("{" HEAD ",\"workers\":[3]}", SL_ERR_FORMAT, "workers[0]");
    refused("{" HEAD ",\"workers\":[{}]}", SL_ERR_FORMAT, "roles");
    refused("{" HEAD ",\"workers\":[{\"roles\":[]}]}", SL_ERR_ARG, "a worker needs a role");
    refused("{" HEAD ",\"workers\":[{\"roles\":[\"cook\"]}]}", SL_ERR_ARG,
            "\"attention\" or \"expert\"");
    refused("{" HEAD ",\"workers\":[{\"roles\":[\"attention\"],\"gpu\":1}]}", SL_ERR_UNSUPPORTED,
            "gpu");
    refused("{" HEAD ",\"workers\":[{\"roles\":[\"attention\"],\"id\":1}]}", SL_ERR_LIMIT, "id");
    refused("{" HEAD ",\"workers\":[{\"roles\":[\"attention\"]}]}", SL_ERR_ARG,
            "1 attention and 0 expert workers");
    refused("{" HEAD ",\"workers\":[{\"roles\":[\"expert\"]}]}", SL_ERR_ARG,
            "0 attention and 1 expert workers");
    refused("{" HEAD ",\"workers\":[{\"roles\":[\"attention\",\"expert\"]}]}", SL_ERR_ARG,
            "schedule dep keeps roles apart, 1 workers have both");
    refused("{" HEAD ",\"kv_replicas\":1," PAIR "}", SL_ERR_INFEASIBLE,
            "kv_replicas 1 needs two attention workers, there is 1");
    refused(
        "{" HEAD ",\"speculate\":\"often\"," PAIR "}", SL_ERR_ARG,
        "speculate 'often' is unknown: off, lookup, always, mtp, mtp-always, both, both-always");
    refused("{" HEAD ",\"speculate\":\"mtp\"," PAIR "}", SL_ERR_UNSUPPORTED,
            "no block that predicts a further token (num_nextn_predict_layers of config.json");
    refused("{" HEAD ",\"speculate\":true," PAIR "}", SL_ERR_FORMAT, "speculate");
    refused("{" HEAD ",\"speculate\":\"lookup\",\"device\":{}," PAIR "}", SL_ERR_UNSUPPORTED,
            "tokens of an emulated device");
    refused("{" HEAD ",\"kv_replicas\":2," PAIR "}", SL_ERR_LIMIT, "kv_replicas");
    refused("{" HEAD ",\"tp\":{\"expert\":3}," PAIR "}", SL_ERR_ARG, "1, 2, 4 or 8 are possible");
    refused("{" HEAD ",\"tp\":{\"expert\":16}," PAIR "}", SL_ERR_LIMIT, "expert");
    refused("{" HEAD ",\"tp\":{\"experts\":2}," PAIR "}", SL_ERR_UNSUPPORTED, "experts");
    refused("{" HEAD ",\"tp\":{\"expert\":2,\"ranks\":\"fibres\"}," PAIR "}", SL_ERR_ARG,
            "ranks 'fibres' is unknown: threads, processes");
    refused("{" HEAD ",\"segments\":true," PAIR "}", SL_ERR_ARG, "segments are a part of exact");
    refused("{" HEAD ",\"rail_bytes\":7," PAIR "}", SL_ERR_ARG, "of schedule hybrid, not dep");
    refused("{" HEAD ",\"resolve\":4," PAIR "}", SL_ERR_UNSUPPORTED,
            "resolve 4 (--resolve) is for schedules findep and eps, not dep");
    refused("{" EPS ",\"resolve\":4," BOTH "}", SL_ERR_UNSUPPORTED,
            "other groups change bits but with exact (--exact)");
    refused("{" EPS ",\"resolve\":4,\"exact\":true,\"pp\":{\"degree\":2}," BOTH "}",
            SL_ERR_UNSUPPORTED, "ranks of a pipeline (--pp 2)");
    refused("{" FINDEP ",\"resolve\":1000001," PAIR "}", SL_ERR_LIMIT, "resolve");
    refused("{" FINDEP ",\"resolve\":4," BOTH "}", SL_ERR_UNSUPPORTED,
            "worker 0 has attention and experts");
    refused("{" FINDEP ",\"resolve\":4,\"pp\":{\"degree\":2}," PAIR "}", SL_ERR_UNSUPPORTED,
            "ranks of a pipeline (--pp 2)");
    refused("{" HYBRID "," BOTH "}", SL_ERR_ARG, "tp (--tp) 1, 2 is the least");
    refused("{" HYBRID ",\"tp\":{\"attention\":2,\"expert\":2}," PAIR "}", SL_ERR_ARG,
            "schedule hybrid is colocated");
    refused("{" HYBRID ",\"tp\":{\"attention\":2,\"expert\":2},\"rail_bytes\":0," BOTH "}",
            SL_ERR_LIMIT, "rail_bytes");
    refused("{" HYBRID ",\"tp\":{\"attention\":2,\"expert\":2},\"pp\":{\"degree\":2}," BOTH "}",
            SL_ERR_UNSUPPORTED, "hybrid between pipelines");
    refused("{\"version\":1,\"schedule\":\"ep\"," PAIR "}", SL_ERR_ARG,
            "schedule ep is colocated, 2 of 2 workers do not have both roles");
#define EXPERTS(list)                                                                              \
    "{" HEAD ",\"workers\":[{\"roles\":[\"attention\"]},{\"roles\":[\"expert\"],\"experts\":" list \
    "}]}"
    refused(EXPERTS("[0,1,2,3,4,5,6]"), SL_ERR_INFEASIBLE, "no worker hosts expert 7");
    refused(EXPERTS("[0,1,2,3,4,5,6,7,7]"), SL_ERR_ARG, "expert 7 is at worker 1 already");
    refused(EXPERTS("[0,1,2,3,4,5,6,8]"), SL_ERR_ARG, "experts are 0 to 7");
    refused(EXPERTS("[0,-1]"), SL_ERR_ARG, "experts are 0 to 7");
    refused(EXPERTS("[0,1.5]"), SL_ERR_ARG, "experts are 0 to 7");
    refused(EXPERTS("{}"), SL_ERR_FORMAT, "experts");
    refused("{" HEAD ",\"workers\":[{\"roles\":[\"attention\"],\"experts\":[0]},"
            "{\"roles\":[\"expert\"]}]}",
            SL_ERR_ARG, "worker 0 has no expert role");
    char text[256];
    snprintf(text, sizeof text,
             "{" HEAD ",\"workers\":[{\"roles\":[\"attention\"],\"address\":\"%0100d\"}]}", 0);
    refused(text, SL_ERR_LIMIT, "over 95 bytes");
}

/* A step whose replies no message can carry is refused, not found out while serving. */
static void at(sl_plan *p, uint32_t id, const char *address) {
    snprintf(p->worker[id].address, sizeof p->worker[id].address, "%s", address);
}

static void who_copies_for_whom(void **state) {
    (void)state;
    sl_model_spec m = model();
    sl_plan p;
    sl_err err;
    assert_int_equal(sl_plan_local(&m, 4, 2, &p, &err), SL_OK);
    for (uint32_t i = 0; i < 6; i++) assert_int_equal(sl_plan_buddy(&p, i), SL_BUDDY_NONE);
    p.kv_replicas = 1;
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(sl_plan_buddy(&p, i), (i + 1) % 4);
    assert_int_equal(sl_plan_buddy(&p, 4), SL_BUDDY_NONE); /* of experts */
    assert_true(sl_plan_are_buddies(&p, 3, 0) && sl_plan_are_buddies(&p, 0, 3));
    assert_false(sl_plan_are_buddies(&p, 0, 2));
    at(&p, 0, "10.0.0.1:20000"); /* two of either machine: each at another one */
    at(&p, 1, "10.0.0.1:20001");
    at(&p, 2, "10.0.0.2:20000");
    at(&p, 3, "10.0.0.2:20001");
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(sl_plan_buddy(&p, i), (i + 2) % 4);
    at(&p, 3, "10.0.0.1:20002"); /* whoever there is elsewhere */
    for (uint32_t i = 0; i < 4; i++) assert_int_equal(sl_plan_buddy(&p, i), i == 2 ? 3 : 2);
    p.worker[2].roles = 0; /* it is not there */
    assert_true(sl_plan_buddy(&p, 0) == 1 && sl_plan_buddy(&p, 1) == 3);
    assert_int_equal(sl_plan_buddy(&p, 2), SL_BUDDY_NONE);
    sl_plan_free(&p);
}

static void message_limits(void **state) {
    (void)state;
    sl_model_spec m = model();
    sl_plan p = {0};
    sl_err err = {0};
    assert_int_equal(sl_plan_local(&m, 1, 1, &p, &err), SL_OK);
    p.max_num_batched_tokens = 16384;
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_OK);
    m.top_k = 8;
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "131072 rows"));
    m.top_k = 2;
    m.d_model = 4096;
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_ERR_INFEASIBLE);
    assert_non_null(strstr(err.msg, "bytes"));
    m = model();
    m.n_experts = 9;
    assert_int_equal(sl_plan_check(&p, &m, &err), SL_ERR_ARG);
    assert_non_null(strstr(err.msg, "8 experts, the model has 9"));
    sl_plan_free(&p);
}

static void from_a_file(void **state) {
    (void)state;
    sl_model_spec m = model();
    sl_plan p = {0};
    sl_err err = {0};
    char path[] = "/tmp/sluice-plan-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    const char text[] = "{" HEAD ",\"lanes\":0," PAIR "}";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    assert_int_equal(sl_plan_read(path, &m, &p, &err), SL_ERR_LIMIT);
    assert_non_null(strstr(err.msg, path));
    assert_non_null(strstr(err.msg, "lanes"));
    unlink(path);
    assert_int_equal(sl_plan_read(path, &m, &p, &err), SL_ERR_NOTFOUND);
    assert_non_null(strstr(err.msg, path));
}

static void every_allocation_fails(void **state) {
    (void)state;
    const char text[] = "{" HEAD "," PAIR "}";
    sl_err err = {0};
    sl_plan p = {0};
    for (uint64_t nth = 1;; nth++) {
        sl_mem_fail_at(nth);
        sl_status st = plan_parse(text, &p, &err);
        sl_mem_fail_at(0);
        if (st == SL_OK) break;
        assert_int_equal(st, SL_ERR_NOMEM);
        assert_true(nth < 100);
    }
    sl_mem_fail_at(1);
    assert_null(sl_plan_print(&p));
    sl_mem_fail_at(0);
    sl_plan_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(activations_are_read_and_printed),
        cmocka_unit_test(types_of_kv_are_read_and_printed),
        cmocka_unit_test(ranks_are_read_and_printed),
        cmocka_unit_test(costs_are_read_and_printed),
        cmocka_unit_test(resolve_is_read_and_printed),
        cmocka_unit_test(defaults),
        cmocka_unit_test(round_trip),
        cmocka_unit_test(some_are_not_there),
        cmocka_unit_test(spare_places),
        cmocka_unit_test(refused_messages),
        cmocka_unit_test(placements),
        cmocka_unit_test(made_placements),
        cmocka_unit_test(replicas_by_number),
        cmocka_unit_test(local_plans),
        cmocka_unit_test(refusals),
        cmocka_unit_test(refused_workers),
        cmocka_unit_test(who_copies_for_whom),
        cmocka_unit_test(message_limits),
        cmocka_unit_test(from_a_file),
        cmocka_unit_test(every_allocation_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
