/* Placements made for a deployment. */
#include "engine/measure/place.h"

#include "base/mem.h"
#include "format/placement.h"
#include "plan/fill.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each block on its own: `copies` more experts than an even share fit on a worker. */
static sl_status place_by_popularity(const double *a, const sl_model_spec *m, uint32_t copies,
                                     sl_plan *p, sl_err *err) {
    uint32_t n, *ids = sl_placement_expert_workers(p, &n), E = m->n_experts;
    if (!ids) return sl_fail(err, SL_ERR_NOMEM, "placement on %u workers", p->n_workers);
    uint32_t slots = (E + n - 1) / n + copies;
    size_t most = (size_t)m->n_moe * (E + (size_t)n * slots), at = 0;
    sl_share *share = sl_alloc(most, sizeof *share);
    uint32_t *count = sl_alloc((size_t)m->n_moe * E, sizeof *count);
    sl_status st =
        share && count ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "placement of %u blocks", m->n_moe);
    for (uint32_t l = 0; st == SL_OK && l < m->n_moe; l++) {
        sl_fill f;
        const double *rows = a + (size_t)l * E;
        st = copies ? sl_fill_replicas(rows, E, n, slots, 0, &f, err)
                    : sl_fill_whole(rows, E, n, slots, 0, &f, err);
        for (uint32_t i = 0; st == SL_OK && i < f.n; i++) {
            share[at++] = (sl_share){ids[f.piece[i].worker], f.piece[i].share};
            count[(size_t)l * E + f.piece[i].expert]++;
        }
        if (st == SL_OK) sl_fill_free(&f);
    }
    if (st == SL_OK) st = sl_placement_set_shares(share, count, m->n_moe, p, err);
    sl_free(ids);
    sl_free(share);
    sl_free(count);
    return st;
}

/* Each expert on `copies` workers, which share its rows evenly. Those beside the first differ from
 * expert to expert, so that what a lost worker leaves is spread over all others. */
static sl_status place_everywhere(uint32_t copies, sl_plan *p, sl_err *err) {
    uint32_t n, *ids = sl_placement_expert_workers(p, &n), E = p->n_experts;
    sl_share *share = sl_alloc((size_t)E * copies, sizeof *share);
    uint32_t *count = sl_alloc(E, sizeof *count);
    sl_status st =
        ids && share && count ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "placement of %u experts", E);
    if (st == SL_OK && (copies == 0 || copies > n))
        st = sl_fail(err, SL_ERR_ARG, "%u replicas of each expert, %u expert workers", copies, n);
    for (uint32_t e = 0; st == SL_OK && e < E; e++) {
        uint32_t first = (uint32_t)((uint64_t)e * n / E);
        count[e] = copies;
        for (uint32_t i = 0; i < copies; i++) {
            uint32_t off = i == 0 ? 0 : 1 + (e + i) % (n - 1);
            share[(size_t)e * copies + i] = (sl_share){ids[(first + off) % n], 1.0 / copies};
        }
    }
    if (st == SL_OK) st = sl_placement_set_shares(share, count, 1, p, err);
    sl_free(ids);
    sl_free(share);
    sl_free(count);
    return st;
}

/* Whether it is replicas:N; otherwise it names a file. */
static bool is_number(const char *text, uint32_t *n) {
    *n = (uint32_t)SL_MIN(strtoul(text, NULL, 10), UINT32_MAX);
    return *text && text[strspn(text, "0123456789")] == '\0';
}

sl_status sl_placement_make(const char *how, const sl_model_spec *m, sl_plan *p, sl_err *err) {
    if (strcmp(how, "contiguous") == 0) return sl_placement_spread(false, p, err);
    if (strcmp(how, "round-robin") == 0) return sl_placement_spread(true, p, err);
    bool cold = strncmp(how, "hot-cold:", 9) == 0, replicas = strncmp(how, "replicas:", 9) == 0;
    if (!cold && !replicas)
        return sl_fail(err, SL_ERR_ARG,
                       "placement '%s' is unknown: contiguous, round-robin, hot-cold:FILE, "
                       "replicas:N, replicas:FILE[:COPIES]",
                       how);
    uint32_t n;
    if (replicas && is_number(how + 9, &n)) return place_everywhere(n, p, err);
    char path[4096];
    snprintf(path, sizeof path, "%s", how + 9);
    unsigned long copies = replicas ? 1 : 0;
    char *colon = strrchr(path, ':');
    if (replicas && colon) {
        char *end;
        copies = strtoul(colon + 1, &end, 10);
        if (*end || end == colon + 1 || copies == 0 || copies > m->n_experts)
            return sl_fail(err, SL_ERR_ARG, "placement '%s': COPIES is 1 to %u", how, m->n_experts);
        *colon = '\0';
    }
    double *a = sl_alloc((size_t)m->n_moe * m->n_experts, sizeof *a);
    sl_status st = a ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "popularity of %u blocks", m->n_moe);
    if (st == SL_OK) st = sl_placement_read_popularity(path, m, a, err);
    if (st == SL_OK) st = place_by_popularity(a, m, (uint32_t)copies, p, err);
    sl_free(a);
    return st;
}
