/* Any bytes as the body of POST /plan: they become arguments of the planner that name no file of
 * this machine, or are refused with an answer that is valid JSON. */
#include "serve/plan.h"

#include "format/cluster_file.h"
#include "format/json.h"
#include "format/presets.h"
#include "format/workload_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const sl_profile costs = {
    .model = "m", .machine = "a", .cores = 4, .threads = 2, .memory_bytes = 8e9, .n_links = 1};
static const sl_plan_offer offer = {
    .model = "m", .path = "/srv/m", .profile = "/srv/p", .costs = &costs, .seconds = 60};

static void check_refusal(const sl_api_error *e) {
    sl_jbuf b = sl_jbuf_init();
    sl_json_doc *doc = NULL;
    sl_err err = {0};
    SL_ASSERT(e->http >= 400 && e->http < 600 && e->type && e->msg[0]);
    sl_reply_error(&b, e);
    SL_ASSERT(sl_json_parse("answer", (sl_span){(uint8_t *)b.data, b.len}, &doc, &err) == SL_OK);
    sl_json_doc_free(doc);
    sl_jbuf_free(&b);
}

static sl_span span_of(const char *text) {
    return (sl_span){(const uint8_t *)text, strlen(text)};
}

/* The value of an option; NULL: it is not among the arguments. */
static const char *value_of(const sl_plan_request *r, const char *option) {
    for (size_t i = 3; i + 1 < r->n_args; i++)
        if (!strcmp(r->arg[i], option)) return r->arg[i + 1];
    return NULL;
}

/* What is described is what the planner reads from the files that it is given. */
static void check_described(const sl_plan_request *r) {
    sl_err err;
    sl_cluster cluster;
    sl_workload workload = {0};
    const char *c = value_of(r, "--cluster"), *w = value_of(r, "--workload");
    SL_ASSERT(c && (r->cluster ? !strcmp(c, "/dev/fd/4") : sl_preset_cluster_text(c) != NULL));
    SL_ASSERT(!w || (r->workload ? !strcmp(w, "/dev/fd/5") : sl_preset_workload_text(w) != NULL));
    if (r->cluster) {
        SL_ASSERT(sl_cluster_parse("c", "c", span_of(r->cluster), &cluster, &err) == SL_OK);
        SL_ASSERT(sl_cluster_devices(&cluster) <= SL_PLAN_MAX_DEVICES);
    }
    if (r->workload) {
        SL_ASSERT(sl_workload_parse("w", span_of(r->workload), &workload, &err) == SL_OK);
        SL_ASSERT(!workload.trace);
        sl_workload_free(&workload);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    sl_plan_request r;
    sl_api_error e = {0};
    if (sl_plan_request_parse((sl_span){data, size}, &offer, &r, &e) != SL_OK) {
        check_refusal(&e);
        return 0;
    }
    SL_ASSERT(r.n_args < SL_PLAN_MAX_ARGS && !r.arg[r.n_args] && !strcmp(r.arg[1], "plan"));
    SL_ASSERT(!strcmp(r.arg[2], offer.path) || sl_preset_model(r.arg[2]));
    const char *profile = value_of(&r, "--profile");
    SL_ASSERT(!profile || !strcmp(profile, offer.profile));
    check_described(&r);
    sl_plan_request_free(&r);
    return 0;
}
