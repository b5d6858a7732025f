/* Who hosts which expert: from owners, shares, a table or popularity, or from another placement for
 * those who are there. */
#include "format/placement.h"

#include "base/mem.h"

#include <math.h>
#include <string.h>

#define MAX_POPULARITY_BYTES (64u << 20)

static size_t n_entries(const sl_placement *p, uint32_t n_experts) {
    return (size_t)p->n_layers * n_experts;
}

static sl_status create(uint32_t n_layers, uint32_t n_experts, size_t n_hosts, sl_placement *out,
                        sl_err *err) {
    *out = (sl_placement){.n_layers = n_layers};
    out->first = sl_alloc((size_t)n_layers * n_experts + 1, sizeof *out->first);
    out->host = sl_alloc(n_hosts, sizeof *out->host);
    if (out->first && out->host) return SL_OK;
    sl_placement_free(out);
    return sl_fail(err, SL_ERR_NOMEM, "placement of %u experts", n_experts);
}

void sl_placement_free(sl_placement *p) {
    sl_free(p->first);
    sl_free(p->host);
    *p = (sl_placement){0};
}

/* Of one placement of `to`, whose hosts all take part in it. */
static void add_new(const sl_plan *from, const sl_plan *to, const sl_placement *place,
                    uint32_t n_moe, uint32_t *added) {
    for (size_t i = 0; i < (size_t)n_moe * to->n_experts; i++) {
        const uint32_t l = (uint32_t)(i / to->n_experts), e = (uint32_t)(i % to->n_experts);
        const size_t at = place->n_layers == 1 ? e : i;
        for (uint32_t h = place->first[at]; h < place->first[at + 1]; h++)
            added[place->host[h].worker] += !sl_plan_is_host(from, l, e, place->host[h].worker);
    }
}

void sl_placement_added(const sl_plan *from, const sl_plan *to, uint32_t n_moe, uint32_t *added) {
    memset(added, 0, to->n_workers * sizeof *added);
    add_new(from, to, &to->place, n_moe, added);
    if (!sl_plan_sides_apart(to)) return;
    add_new(from, to, &to->prefill_place, n_moe, added);
    for (uint32_t i = 0; i < to->n_workers; i++) /* a side that is left out gets nothing */
        if (to->worker[i].prefill && !to->worker[i].roles) added[i] = 0;
}

void sl_placement_mark(const sl_plan *p, uint32_t n_moe, uint32_t worker, uint8_t *hosted) {
    for (uint32_t l = 0; l < n_moe; l++)
        for (uint32_t e = 0; e < p->n_experts; e++)
            if (sl_plan_is_host(p, l, e, worker)) hosted[(size_t)l * p->n_experts + e] = 1;
}

sl_status sl_placement_of_owners(const uint32_t *owner, uint32_t n_experts, sl_placement *out,
                                 sl_err *err) {
    sl_status st = create(1, n_experts, n_experts, out, err);
    for (uint32_t e = 0; st == SL_OK && e < n_experts; e++) {
        out->first[e + 1] = e + 1;
        out->host[e] = (sl_host){owner[e], UINT32_MAX};
    }
    return st;
}

/* Where the keys of host j of n end, who begin at `from`: each has one at least, however little its
 * share is, as an empty one is none that a plan can be told in. */
static uint32_t end_of_keys(double below, uint64_t from, uint32_t j, uint32_t n) {
    if (j + 1 == n) return UINT32_MAX; /* and that key, too */
    uint64_t most = (1ull << 32) - (n - 1 - j);
    uint64_t end = below >= 1 ? most : (uint64_t)(below * 4294967296.0);
    return (uint32_t)SL_MIN(SL_MAX(end, from + 1), most);
}

sl_status sl_placement_of_shares(const sl_share *shares, const uint32_t *n, uint32_t n_layers,
                                 uint32_t n_experts, sl_placement *out, sl_err *err) {
    size_t entries = (size_t)n_layers * n_experts, hosts = 0;
    for (size_t i = 0; i < entries; i++) hosts += n[i];
    sl_status st = create(n_layers, n_experts, hosts, out, err);
    if (st != SL_OK) return st;
    uint32_t at = 0;
    for (size_t i = 0; i < entries; i++) {
        double below = 0;
        uint32_t until = 0;
        for (uint32_t j = 0; j < n[i]; j++, at++) {
            below += shares[at].share;
            until = end_of_keys(below, until, j, n[i]);
            out->host[at] = (sl_host){shares[at].worker, until};
        }
        out->first[i + 1] = at;
    }
    return SL_OK;
}

sl_status sl_placement_set_shares(const sl_share *shares, const uint32_t *n, uint32_t n_layers,
                                  sl_plan *p, sl_err *err) {
    sl_placement made;
    sl_status st = sl_placement_of_shares(shares, n, n_layers, p->n_experts, &made, err);
    if (st != SL_OK) return st;
    sl_placement_free(&p->place);
    p->place = made;
    return SL_OK;
}

sl_status sl_placement_copy(const sl_placement *p, uint32_t n_experts, sl_placement *out,
                            sl_err *err) {
    size_t entries = n_entries(p, n_experts), hosts = p->first[entries];
    sl_status st = create(p->n_layers, n_experts, hosts, out, err);
    if (st != SL_OK) return st;
    memcpy(out->first, p->first, (entries + 1) * sizeof *p->first);
    memcpy(out->host, p->host, hosts * sizeof *p->host);
    return SL_OK;
}

/* ---- even shares ---- */

uint32_t *sl_placement_expert_workers(const sl_plan *p, uint32_t *n) {
    uint32_t *ids = sl_alloc(p->n_workers, sizeof *ids);
    *n = 0;
    for (uint32_t i = 0; ids && i < p->n_workers; i++) {
        const sl_plan_worker *w = &p->worker[i];
        if ((w->roles & SL_ROLE_EXPERT) && !w->spare && !w->prefill) ids[(*n)++] = i;
    }
    return ids;
}

sl_status sl_placement_spread(bool round_robin, sl_plan *p, sl_err *err) {
    uint32_t n, *ids = sl_placement_expert_workers(p, &n);
    uint32_t *owner = sl_alloc(p->n_experts, sizeof *owner);
    sl_status st =
        ids && owner ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "placement of %u experts", p->n_experts);
    for (uint32_t e = 0; st == SL_OK && e < p->n_experts; e++)
        owner[e] = ids[round_robin ? e % n : (uint32_t)((uint64_t)e * n / p->n_experts)];
    sl_placement made;
    if (st == SL_OK) st = sl_placement_of_owners(owner, p->n_experts, &made, err);
    if (st == SL_OK) {
        sl_placement_free(&p->place);
        p->place = made;
    }
    sl_free(ids);
    sl_free(owner);
    return st;
}

/* ---- those who are there ---- */

#define NOBODY UINT32_MAX

/* Keys, of 2^32, whose rows host i of n takes. */
static uint64_t width(const sl_host *h, uint32_t i, uint32_t n) {
    uint64_t end = i + 1 == n ? 1ull << 32 : h[i].until;
    return end - (i ? h[i - 1].until : 0);
}

/* The living of an expert's n hosts, the keys of all divided as they shared theirs; how many. */
static uint32_t keep_living(const sl_host *h, uint32_t n, const uint8_t *there, sl_host *out) {
    uint64_t total = 0, below = 0;
    uint32_t left = 0, kept = 0;
    for (uint32_t i = 0; i < n; i++) {
        left += there[h[i].worker] != 0;
        total += there[h[i].worker] ? width(h, i, n) : 0;
    }
    for (uint32_t i = 0; i < n; i++) {
        if (!there[h[i].worker]) continue;
        below += width(h, i, n);
        uint64_t until = (below << 32) / SL_MAX(total, 1u); /* below is 2^32 for the last alone */
        bool last = kept + 1 == left;
        out[kept++] = (sl_host){h[i].worker,
                                last ? UINT32_MAX : (uint32_t)SL_MIN(until, (uint64_t)UINT32_MAX)};
    }
    return kept;
}

typedef struct moving {
    const uint32_t *ids; /* [n] of the expert workers that are there, ascending */
    uint32_t n;
    uint64_t *block, *all; /* by worker: keys of this block's experts that it takes; of all's */
} moving;

static void add_loads(const sl_placement *p, size_t first, size_t end, uint64_t *load) {
    for (size_t i = first; i < end; i++) {
        const sl_host *h = p->host + p->first[i];
        uint32_t n = p->first[i + 1] - p->first[i];
        for (uint32_t j = 0; h[0].worker != NOBODY && j < n; j++)
            load[h[j].worker] += width(h, j, n);
    }
}

static uint32_t idlest(const moving *m) {
    uint32_t best = m->ids[0];
    for (uint32_t i = 1; i < m->n; i++) {
        uint32_t w = m->ids[i];
        if (m->block[w] < m->block[best] ||
            (m->block[w] == m->block[best] && m->all[w] < m->all[best]))
            best = w;
    }
    return best;
}

/* Hosts for the experts of entries first to end - 1, a block, that have none. */
static void move_block(moving *m, uint32_t n_workers, size_t first, size_t end, sl_placement *p) {
    memset(m->block, 0, n_workers * sizeof *m->block);
    add_loads(p, first, end, m->block);
    for (size_t i = first; i < end; i++) {
        sl_host *h = p->host + p->first[i];
        if (h->worker != NOBODY) continue;
        *h = (sl_host){idlest(m), UINT32_MAX};
        m->block[h->worker] += 1ull << 32;
        m->all[h->worker] += 1ull << 32;
    }
}

static void rehost(const sl_plan *home, const uint8_t *there, moving *m, sl_placement *out) {
    size_t entries = n_entries(&home->place, home->n_experts);
    const uint32_t *first = home->place.first;
    for (size_t i = 0; i < entries; i++) {
        sl_host *h = out->host + out->first[i];
        uint32_t n = keep_living(home->place.host + first[i], first[i + 1] - first[i], there, h);
        if (n == 0) h[n++] = (sl_host){NOBODY, UINT32_MAX};
        out->first[i + 1] = out->first[i] + n;
    }
    add_loads(out, 0, entries, m->all);
    for (size_t i = 0; i < entries; i += home->n_experts)
        move_block(m, home->n_workers, i, i + home->n_experts, out);
}

sl_status sl_placement_rehost(const sl_plan *home, const uint8_t *there, sl_placement *out,
                              sl_err *err) {
    uint32_t n_experts, n = 0, *ids = sl_placement_expert_workers(home, &n_experts);
    uint64_t *load = sl_alloc(2 * (size_t)home->n_workers, sizeof *load);
    sl_status st = ids && load
                       ? SL_OK
                       : sl_fail(err, SL_ERR_NOMEM, "placement of %u experts", home->n_experts);
    for (uint32_t i = 0; st == SL_OK && i < n_experts; i++)
        if (there[ids[i]]) ids[n++] = ids[i];
    if (st == SL_OK && n == 0)
        st = sl_fail(err, SL_ERR_INFEASIBLE,
                     "placement: none of the plan's %u expert workers is there", n_experts);
    size_t hosts = home->place.first[n_entries(&home->place, home->n_experts)];
    if (st == SL_OK) st = create(home->place.n_layers, home->n_experts, hosts, out, err);
    moving m = {.ids = ids, .n = n, .block = load, .all = load + home->n_workers};
    if (st == SL_OK) rehost(home, there, &m, out);
    sl_free(load);
    sl_free(ids);
    return st;
}

/* ---- one more ---- */

/* The widest host entry of worker `from` that `to`, which does not host the expert, has room for;
 * NULL: none. */
static sl_host *find_gift(const sl_placement *p, size_t first, size_t end, uint32_t from,
                          uint32_t to, uint64_t room) {
    sl_host *best = NULL;
    uint64_t most = 0;
    for (size_t i = first; i < end; i++) {
        sl_host *h = p->host + p->first[i], *at = NULL;
        uint32_t n = p->first[i + 1] - p->first[i];
        uint64_t keys = 0;
        bool has = false;
        for (uint32_t j = 0; j < n; j++) {
            has |= h[j].worker == to;
            if (h[j].worker != from) continue;
            at = &h[j];
            keys = width(h, j, n);
        }
        if (!at || has || keys > room || keys <= most) continue;
        best = at;
        most = keys;
    }
    return best;
}

static uint32_t busiest(const uint32_t *ids, uint32_t n, const uint64_t *load) {
    uint32_t best = ids[0];
    for (uint32_t i = 1; i < n; i++)
        if (load[ids[i]] > load[best]) best = ids[i];
    return best;
}

sl_status sl_placement_level(uint32_t to, sl_plan *p, sl_err *err) {
    uint32_t n, *ids = sl_placement_expert_workers(p, &n);
    uint64_t *load = sl_alloc(p->n_workers, sizeof *load);
    sl_status st =
        ids && load ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "placement of %u experts", p->n_experts);
    size_t entries = st == SL_OK ? n_entries(&p->place, p->n_experts) : 0;
    for (size_t i = 0; i < entries; i += p->n_experts) {
        const size_t end = i + p->n_experts;
        const uint64_t share = ((uint64_t)p->n_experts << 32) / n;
        memset(load, 0, p->n_workers * sizeof *load);
        add_loads(&p->place, i, end, load);
        while (load[to] < share) {
            uint32_t from = busiest(ids, n, load);
            uint64_t before = load[to];
            sl_host *gift = find_gift(&p->place, i, end, from, to, share - before);
            if (!gift) break;
            gift->worker = to;
            memset(load, 0, p->n_workers * sizeof *load);
            add_loads(&p->place, i, end, load);
            SL_ASSERT(load[to] > before);
        }
    }
    sl_free(ids);
    sl_free(load);
    return st;
}

/* ---- JSON ---- */

typedef struct reading {
    const sl_plan *p;
    sl_share *share; /* grows */
    size_t n, cap;
    uint32_t *count; /* [n_moe * n_experts] */
} reading;

static sl_status add_share(reading *r, sl_json at, uint64_t worker, double share, size_t first,
                           sl_err *err) {
    if (worker >= r->p->n_workers || r->p->worker[worker].spare ||
        !(r->p->worker[worker].roles & SL_ROLE_EXPERT))
        return sl_json_fail(at, NULL, err, SL_ERR_ARG, "worker %llu of %u has no expert role",
                            (unsigned long long)worker, r->p->n_workers);
    for (size_t i = first; i < r->n; i++) {
        if (r->share[i].worker == worker)
            return sl_json_fail(at, NULL, err, SL_ERR_ARG, "worker %llu is named twice",
                                (unsigned long long)worker);
    }
    if (r->n == r->cap) {
        size_t cap = SL_MAX(2 * r->cap, 64u);
        sl_share *bigger = sl_grow(r->share, r->cap, cap, sizeof *bigger);
        if (!bigger) return sl_fail(err, SL_ERR_NOMEM, "placement of %zu hosts", cap);
        r->share = bigger;
        r->cap = cap;
    }
    r->share[r->n++] = (sl_share){(uint32_t)worker, share};
    return SL_OK;
}

/* A worker id, or [[worker, share], ...]. */
static sl_status read_entry(reading *r, sl_json v, uint32_t *count, sl_err *err) {
    size_t first = r->n, n = sl_json_count(v);
    uint64_t worker;
    double share, sum = 0;
    if (sl_json_as_u64(v, &worker)) {
        *count = 1;
        return add_share(r, v, worker, 1, first, err);
    }
    for (size_t i = 0; i < n; i++) {
        sl_json pair = sl_json_at(v, i);
        if (sl_json_count(pair) != 2 || !sl_json_as_u64(sl_json_at(pair, 0), &worker) ||
            !sl_json_as_f64(sl_json_at(pair, 1), &share) || !(share > 0) || !(share <= 1))
            return sl_json_fail(pair, NULL, err, SL_ERR_ARG,
                                "a replica is [worker, share], 0 < share <= 1");
        sl_status st = add_share(r, pair, worker, share, first, err);
        if (st != SL_OK) return st;
        sum += share;
    }
    if (n == 0 || fabs(sum - 1) > 1e-6)
        return sl_json_fail(v, NULL, err, SL_ERR_ARG,
                            "an expert has a worker, or [worker, share] pairs whose shares add up "
                            "to 1, not %.9g",
                            sum);
    *count = (uint32_t)n;
    return SL_OK;
}

/* Whether a list is by expert (true), or by block. */
static bool is_by_expert(sl_json v) {
    sl_json first = sl_json_at(v, 0), inner;
    uint64_t id;
    if (sl_json_as_u64(first, &id)) return true;
    inner = sl_json_at(first, 0); /* [worker, share] begins with a list, a block with an entry */
    return sl_json_count(inner) == 2 && sl_json_as_u64(sl_json_at(inner, 0), &id) &&
           !sl_json_as_u64(inner, &id) && sl_json_count(sl_json_at(inner, 0)) == 0;
}

static sl_status read_block(reading *r, sl_json v, uint32_t *count, sl_err *err) {
    sl_status st = SL_OK;
    if (sl_json_count(v) != r->p->n_experts)
        return sl_json_fail(v, NULL, err, SL_ERR_ARG, "%zu entries for %u experts",
                            sl_json_count(v), r->p->n_experts);
    for (uint32_t e = 0; st == SL_OK && e < r->p->n_experts; e++)
        st = read_entry(r, sl_json_at(v, e), &count[e], err);
    return st;
}

sl_status sl_placement_from_json(sl_json v, uint32_t n_moe, const sl_plan *p, sl_placement *out,
                                 sl_err *err) {
    size_t n = sl_json_count(v);
    uint32_t layers = n && is_by_expert(v) ? 1 : (uint32_t)SL_MIN(n, n_moe + 1u);
    if (layers != 1 && layers != n_moe)
        return sl_json_fail(v, NULL, err, SL_ERR_ARG, "%zu lists for %u MoE blocks", n, n_moe);
    reading r = {.p = p, .count = sl_alloc((size_t)layers * p->n_experts, sizeof *r.count)};
    sl_status st = r.count ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "placement of %u blocks", layers);
    if (st == SL_OK && n && is_by_expert(v)) {
        st = read_block(&r, v, r.count, err);
    } else {
        for (uint32_t l = 0; st == SL_OK && l < layers; l++)
            st = read_block(&r, sl_json_at(v, l), r.count + (size_t)l * p->n_experts, err);
    }
    if (st == SL_OK) st = sl_placement_of_shares(r.share, r.count, layers, p->n_experts, out, err);
    sl_free(r.share);
    sl_free(r.count);
    return st;
}

static json_t *entry_json(const sl_host *h, uint32_t n) {
    if (n == 1) return json_integer(h->worker);
    json_t *list = json_array();
    double below = 0;
    for (uint32_t i = 0; i < n; i++) {
        double until = i + 1 == n ? 1 : h[i].until / 4294967296.0;
        json_array_append_new(list, json_pack("[i, f]", (int)h[i].worker, until - below));
        below = until;
    }
    return list;
}

json_t *sl_placement_json(const sl_plan *p) {
    size_t entries = n_entries(&p->place, p->n_experts);
    if (p->place.n_layers == 1 && p->place.first[entries] == entries) return NULL;
    json_t *all = json_array();
    for (uint32_t l = 0; l < p->place.n_layers; l++) {
        json_t *block = p->place.n_layers == 1 ? all : json_array();
        for (uint32_t e = 0; e < p->n_experts; e++) {
            uint32_t n;
            const sl_host *h = sl_plan_hosts(p, l, e, &n);
            json_array_append_new(block, entry_json(h, n));
        }
        if (block != all) json_array_append_new(all, block);
    }
    return all;
}

/* ---- popularity ---- */

sl_status sl_placement_read_popularity(const char *path, const sl_model_spec *m, double *a,
                                       sl_err *err) {
    sl_json_doc *doc = NULL;
    sl_json rows = {0};
    sl_status st = sl_json_load(path, MAX_POPULARITY_BYTES, &doc, err);
    if (st == SL_OK) st = sl_json_array(sl_json_root(doc), "rows", SL_JSON_REQUIRED, &rows, err);
    if (st == SL_OK && sl_json_count(rows) != m->n_moe)
        st = sl_json_fail(rows, NULL, err, SL_ERR_ARG, "%zu lists for %u MoE blocks",
                          sl_json_count(rows), m->n_moe);
    for (uint32_t l = 0; st == SL_OK && l < m->n_moe; l++) {
        sl_json row = sl_json_at(rows, l);
        if (sl_json_count(row) != m->n_experts)
            st = sl_json_fail(row, NULL, err, SL_ERR_ARG, "%zu numbers for %u experts",
                              sl_json_count(row), m->n_experts);
        for (uint32_t e = 0; st == SL_OK && e < m->n_experts; e++) {
            double *v = &a[(size_t)l * m->n_experts + e];
            if (!sl_json_as_f64(sl_json_at(row, e), v) || !(*v >= 0))
                st = sl_json_fail(sl_json_at(row, e), NULL, err, SL_ERR_ARG,
                                  "rows of an expert are a number, 0 at least");
        }
    }
    sl_json_doc_free(doc);
    return st;
}
