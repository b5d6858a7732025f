/* Gangs of a plan: text, JSON and limits. */
#include "format/plan_ranks.h"

#include "format/json.h"
#include "spec/schedules.h"

#include <string.h>

static const char *const rank_kind_names[SL_RANK_KIND_COUNT] = {"threads", "processes", "machines"};

sl_status sl_rank_kind_parse(const char *name, sl_rank_kind *out, sl_err *err) {
    size_t i;
    sl_status st = sl_name_parse("ranks", rank_kind_names, SL_LEN(rank_kind_names), name, &i, err);
    if (st == SL_OK) *out = (sl_rank_kind)i;
    return st;
}

/* ---- where they answer ---- */

/* Of one worker, as it stands. */
static sl_status set_ranks(sl_plan_worker *w, const char *text, size_t len, sl_err *err) {
    if (len >= sizeof w->ranks)
        return sl_fail(err, SL_ERR_LIMIT, "addresses of ranks of %zu bytes, %zu are possible", len,
                       sizeof w->ranks - 1);
    memcpy(w->ranks, text, len);
    w->ranks[len] = 0;
    return SL_OK;
}

sl_status sl_rank_hosts_parse(const char *text, sl_plan *p, sl_err *err) {
    uint32_t i = 0;
    sl_status st = SL_OK;
    for (const char *at = text; st == SL_OK; i++) {
        const size_t len = strcspn(at, ";");
        if (i == p->n_workers)
            return sl_fail(err, SL_ERR_ARG, "--rank-hosts: more than the plan's %u workers",
                           p->n_workers);
        st = set_ranks(&p->worker[i], at, len, err);
        if (!at[len]) break;
        at += len + 1;
    }
    p->rank_kind = SL_RANKS_MACHINES;
    return st == SL_OK ? SL_OK : sl_err_prefix(err, "--rank-hosts");
}

sl_status sl_ranks_of_worker(sl_json row, sl_plan_worker *w, sl_err *err) {
    sl_json list = {0};
    size_t at = 0;
    sl_status st = sl_json_array(row, "ranks", SL_JSON_OPTIONAL, &list, err);
    for (size_t i = 0; st == SL_OK && list.value && i < sl_json_count(list); i++) {
        sl_span s;
        if (!sl_json_as_span(sl_json_at(list, i), &s) || s.len == 0 || memchr(s.data, ',', s.len) ||
            memchr(s.data, 0, s.len))
            return sl_json_fail(row, "ranks", err, SL_ERR_ARG, "an address, HOST:PORT, is wanted");
        if (at + s.len + 2 > sizeof w->ranks)
            return sl_json_fail(row, "ranks", err, SL_ERR_LIMIT, "over %zu bytes",
                                sizeof w->ranks - 1);
        if (i) w->ranks[at++] = ',';
        memcpy(w->ranks + at, s.data, s.len);
        w->ranks[at += s.len] = 0;
    }
    return st;
}

void sl_ranks_print_worker(const sl_plan_worker *w, json_t *row) {
    json_t *list = w->ranks[0] ? json_array() : NULL;
    const char *at;
    size_t len;
    for (uint32_t i = 0; list && (at = sl_rank_address(w->ranks, i, &len)); i++)
        json_array_append_new(list, json_stringn(at, len));
    if (list) json_object_set_new(row, "ranks", list);
}

/* ---- how many ---- */

/* Ranks of the pipelines that all workers are. */
static sl_status pipeline_from_json(sl_json v, bool kind_said, sl_plan *p, sl_err *err) {
    static const char *const keys[] = {"degree", "ranks"};
    const char *ranks = NULL;
    sl_rank_kind kind = p->rank_kind;
    sl_json pp = {0};
    sl_status st = sl_json_object(v, "pp", SL_JSON_OPTIONAL, &pp, err);
    if (st != SL_OK || !pp.value) return st;
    st = sl_json_only(pp, keys, SL_LEN(keys), err);
    if (st == SL_OK) st = sl_json_u32(pp, keys[0], SL_JSON_REQUIRED, 1, SL_MAX_RANKS, &p->pp, err);
    if (st == SL_OK) st = sl_json_string(pp, keys[1], SL_JSON_OPTIONAL, &ranks, err);
    if (st == SL_OK && ranks)
        st = sl_json_says(pp, keys[1], sl_rank_kind_parse(ranks, &kind, err), err);
    if (st == SL_OK && kind_said && kind != p->rank_kind)
        return sl_json_fail(pp, keys[1], err, SL_ERR_ARG, "%s, and \"tp\" says %s",
                            rank_kind_names[kind], rank_kind_names[p->rank_kind]);
    p->rank_kind = kind;
    return st;
}

/* Ranks of the workers of either side. */
sl_status sl_ranks_from_json(sl_json v, sl_plan *p, sl_err *err) {
    static const char *const keys[] = {"attention", "expert", "ranks"};
    const char *ranks = NULL;
    sl_json tp = {0};
    sl_status st = sl_json_object(v, "tp", SL_JSON_OPTIONAL, &tp, err);
    if (st == SL_OK && !tp.value) return pipeline_from_json(v, false, p, err);
    if (st != SL_OK) return st;
    st = sl_json_only(tp, keys, SL_LEN(keys), err);
    if (st == SL_OK)
        st = sl_json_u32(tp, keys[0], SL_JSON_OPTIONAL, 1, SL_MAX_RANKS, &p->attention_tp, err);
    if (st == SL_OK)
        st = sl_json_u32(tp, keys[1], SL_JSON_OPTIONAL, 1, SL_MAX_RANKS, &p->expert_tp, err);
    if (st == SL_OK) st = sl_json_string(tp, keys[2], SL_JSON_OPTIONAL, &ranks, err);
    p->rank_kind = SL_RANKS_THREADS;
    if (st == SL_OK && ranks)
        st = sl_json_says(tp, keys[2], sl_rank_kind_parse(ranks, &p->rank_kind, err), err);
    return st == SL_OK ? pipeline_from_json(v, ranks != NULL, p, err) : st;
}

void sl_pipeline_print(const sl_plan *p, json_t *doc) {
    if (sl_plan_pipeline(p) == 1) return;
    json_object_set_new(
        doc, "pp",
        json_pack("{s:i, s:s}", "degree", (int)p->pp, "ranks", rank_kind_names[p->rank_kind]));
}

json_t *sl_ranks_json(const sl_plan *p) {
    return json_pack("{s:i, s:i, s:s}", "attention", (int)sl_plan_ranks(p, SL_ROLE_ATTENTION),
                     "expert", (int)sl_plan_ranks(p, SL_ROLE_EXPERT), "ranks",
                     rank_kind_names[p->rank_kind]);
}

/* ---- checks ---- */

static uint32_t addresses_of(const sl_plan_worker *w) {
    size_t len;
    uint32_t n = 0;
    while (sl_rank_address(w->ranks, n, &len)) n++;
    return n;
}

/* How often the worker has that address. */
static uint32_t times_at(const sl_plan_worker *w, const char *address, size_t len) {
    const char *at;
    size_t its;
    uint32_t n = 0;
    for (uint32_t i = 0; (at = sl_rank_address(w->ranks, i, &its)); i++)
        n += its == len && memcmp(at, address, len) == 0;
    return n;
}

/* A rank is of one gang. */
static sl_status check_once(const sl_plan *p, uint32_t worker, sl_err *err) {
    const char *at;
    size_t len;
    for (uint32_t k = 0; (at = sl_rank_address(p->worker[worker].ranks, k, &len)); k++) {
        uint32_t n = 0;
        for (uint32_t i = 0; i < p->n_workers; i++) n += times_at(&p->worker[i], at, len);
        if (n > 1)
            return sl_fail(err, SL_ERR_ARG,
                           "plan: %u ranks are at %.*s, where one can be (workers.ranks, "
                           "--rank-hosts)",
                           n, (int)len, at);
    }
    return SL_OK;
}

/* As many addresses as ranks beside the first, of ranks that are machines; else none. */
static sl_status check_addresses(const sl_plan *p, sl_err *err) {
    const bool machines = p->rank_kind == SL_RANKS_MACHINES;
    for (uint32_t i = 0; i < p->n_workers; i++) {
        const sl_plan_worker *w = &p->worker[i];
        const uint32_t wanted = sl_plan_all_ranks(p, w->roles) - 1;
        const uint32_t have = addresses_of(w);
        if (w->roles == 0) continue; /* it is not there */
        if (!machines && have)
            return sl_fail(err, SL_ERR_ARG,
                           "plan: worker %u has addresses of ranks, which are not machines "
                           "(tp.ranks, --tp-ranks)",
                           i);
        if (machines && have != wanted)
            return sl_fail(err, SL_ERR_ARG,
                           "plan: worker %u has %u addresses of ranks, %u are wanted: one of each "
                           "rank beside the first (workers.ranks, --rank-hosts)",
                           i, have, wanted);
        sl_status st = check_once(p, i, err);
        if (st != SL_OK) return st;
    }
    return SL_OK;
}

/* What pipelines cannot be, or not yet. */
static sl_status check_pipeline(const sl_plan *p, sl_err *err) {
    const uint32_t n = sl_plan_pipeline(p);
    if (n == 1) return SL_OK;
    if (n > SL_MAX_RANKS)
        return sl_fail(err, SL_ERR_ARG, "plan: pipelines of %u ranks: 1 to %u are possible", n,
                       SL_MAX_RANKS);
    if (sl_plan_has_gangs(p) && p->rank_kind != SL_RANKS_THREADS)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: pipelines of %u ranks (pp, --pp) whose ranks are gangs (tp, --tp) "
                       "are of threads (--tp-ranks)",
                       n);
    if (p->rank_kind == SL_RANKS_PROCESSES)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: ranks of pipelines (--pp) are threads or machines (--tp-ranks)");
    return SL_OK;
}

/* What gangs have to be to have rails. */
static sl_status check_rails(const sl_plan *p, sl_err *err) {
    if (p->schedule != SL_SCHED_HYBRID) return SL_OK;
    if (sl_plan_rails(p) == 1)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: schedule hybrid is of gangs: tp (--tp) 1, 2 is the least");
    if (sl_plan_pipeline(p) > 1)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "plan: schedule hybrid between pipelines (pp, --pp %u)",
                       sl_plan_pipeline(p));
    return SL_OK;
}

/* How many ranks a worker can be, and what gangs cannot do. */
sl_status sl_ranks_check(const sl_plan *p, sl_err *err) {
    const uint32_t attention = sl_plan_ranks(p, SL_ROLE_ATTENTION);
    const uint32_t expert = sl_plan_ranks(p, SL_ROLE_EXPERT),
                   both = SL_ROLE_ATTENTION | SL_ROLE_EXPERT;
    if (!sl_ranks_can_be(attention) || !sl_ranks_can_be(expert))
        return sl_fail(
            err, SL_ERR_ARG,
            "plan: %u ranks of attention workers, %u of expert workers: 1, 2, 4 or 8 are "
            "possible",
            attention, expert);
    for (uint32_t i = 0; i < p->n_workers; i++)
        if (p->worker[i].roles == both && attention != expert)
            return sl_fail(err, SL_ERR_ARG,
                           "plan: worker %u has both roles and is one gang: %u ranks for attention "
                           "and %u for experts are not possible",
                           i, attention, expert);
    if (p->segments && !p->exact)
        return sl_fail(err, SL_ERR_ARG, "plan: segments are a part of exact, which is off");
    sl_status st = check_pipeline(p, err);
    if (st == SL_OK) st = check_rails(p, err);
    if (st != SL_OK) return st;
    if (attention == 1 && expert == 1 && sl_plan_pipeline(p) == 1) return check_addresses(p, err);
    if (sl_device_is_modelled(&p->device) && p->rank_kind != SL_RANKS_THREADS)
        return sl_fail(err, SL_ERR_ARG,
                       "plan: ranks of emulated devices are no %s (tp.ranks, --tp-ranks)",
                       rank_kind_names[p->rank_kind]);
    return check_addresses(p, err);
}

/* Which options may say, too. */
sl_status sl_ranks_check_link(const sl_plan *p, sl_err *err) {
    const sl_link_cost *link = &p->device.rank_link;
    const uint32_t attention = sl_plan_ranks(p, SL_ROLE_ATTENTION),
                   expert = sl_plan_ranks(p, SL_ROLE_EXPERT);
    const uint32_t pipeline = sl_plan_pipeline(p);
    if (!sl_device_is_modelled(&p->device) || (attention == 1 && expert == 1 && pipeline == 1))
        return SL_OK;
    if (link->alpha_us > 0 || link->byte_us > 0) return SL_OK;
    return sl_fail(err, SL_ERR_ARG,
                   "plan: gangs (%u ranks for attention, %u for experts) and pipelines (%u) of "
                   "emulated devices need device.rank_link (--rank-link), the link between ranks",
                   attention, expert, pipeline);
}
