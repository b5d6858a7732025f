/* Experts drawn by a given popularity in place of the router's, for experiments. */
#include "model/skew.h"

#include "base/mem.h"
#include "base/rng.h"
#include "kernel/kernel.h"

#include <string.h>

/* Domains of the counter-based generator: draws and permutations never share a number. */
enum { DOMAIN_DRAW = 0x736b6577, DOMAIN_PERMUTE = 0x7065726d };

struct sl_skew {
    uint32_t n, k, n_moe;
    uint64_t seed;
    double *weight;   /* [n] by rank */
    double total;     /* of weight */
    uint32_t *expert; /* [n_moe][n] rank -> expert */
};

/* 53 bits of uniform in [0, 1). */
static double uniform(const sl_skew *s, uint32_t domain, uint32_t a, uint32_t b, uint32_t c) {
    const uint32_t ctr[4] = {a, b, c, domain};
    const uint32_t key[2] = {(uint32_t)s->seed, (uint32_t)(s->seed >> 32)};
    sl_philox r = sl_philox4x32(ctr, key);
    return (double)(((uint64_t)r.v[0] << 32 | r.v[1]) >> 11) * 0x1.0p-53;
}

static void permute(sl_skew *s, uint32_t moe) {
    uint32_t *p = s->expert + (size_t)moe * s->n;
    for (uint32_t i = s->n - 1; i > 0; i--) {
        uint32_t j = (uint32_t)(uniform(s, DOMAIN_PERMUTE, i, 0, moe) * (i + 1));
        uint32_t at_i = p[i];
        p[i] = p[j];
        p[j] = at_i;
    }
}

static void fill(sl_skew *s, const sl_route_skew *how) {
    /* Powers of one rounded ratio: no function of libm decides a draw. */
    double ratio = (double)sl_expf((float)-how->theta), w = 1;
    for (uint32_t e = 0; e < s->n; e++, w *= ratio) {
        s->weight[e] = w;
        s->total += w;
    }
    for (uint32_t l = 0; l < s->n_moe; l++) {
        for (uint32_t e = 0; e < s->n; e++) s->expert[(size_t)l * s->n + e] = e;
        if (how->permuted) permute(s, l);
    }
}

sl_status sl_skew_create(const sl_route_skew *how, const sl_model_spec *m, sl_skew **out,
                         sl_err *err) {
    sl_skew *s = sl_alloc(1, sizeof *s);
    if (!s) return sl_fail(err, SL_ERR_NOMEM, "route skew");
    s->n = m->n_experts;
    s->k = m->top_k;
    s->n_moe = m->n_moe;
    s->seed = how->seed;
    s->weight = sl_alloc(s->n, sizeof *s->weight);
    s->expert = sl_alloc((size_t)s->n_moe * s->n, sizeof *s->expert);
    if (!s->weight || !s->expert) {
        sl_skew_free(s);
        return sl_fail(err, SL_ERR_NOMEM, "route skew of %u experts", m->n_experts);
    }
    fill(s, how);
    *out = s;
    return SL_OK;
}

void sl_skew_free(sl_skew *s) {
    if (!s) return;
    sl_free(s->weight);
    sl_free(s->expert);
    sl_free(s);
}

typedef struct chosen {
    uint64_t bit[SL_MAX_EXPERTS / 64];
} chosen;

static bool has(const chosen *c, uint32_t rank) {
    return c->bit[rank / 64] >> (rank % 64) & 1;
}

/* The rank that u in [0, 1) falls on among those not chosen yet. */
static uint32_t pick(const sl_skew *s, const chosen *c, bool first, double u) {
    double left = first ? s->total : 0, sum = 0;
    uint32_t free_rank = UINT32_MAX;
    for (uint32_t e = 0; !first && e < s->n; e++)
        if (!has(c, e)) left += s->weight[e];
    for (uint32_t e = 0; e < s->n; e++) {
        if (has(c, e)) continue;
        if (free_rank == UINT32_MAX) free_rank = e;
        sum += s->weight[e];
        if (u * left < sum) return e;
    }
    return free_rank; /* all weights left are 0: too steep a skew for k experts */
}

void sl_skew_draw(const sl_skew *s, uint32_t id, uint32_t pos, uint32_t moe, uint32_t *expert,
                  float *gate) {
    chosen c;
    memset(c.bit, 0, (s->n + 63) / 64 * sizeof c.bit[0]);
    for (uint32_t j = 0; j < s->k; j++) {
        uint32_t rank = pick(s, &c, j == 0, uniform(s, DOMAIN_DRAW, pos, id, moe << 8 | j));
        c.bit[rank / 64] |= 1ull << (rank % 64);
        uint32_t e = s->expert[(size_t)moe * s->n + rank], at = j;
        for (; at > 0 && expert[at - 1] > e; at--) expert[at] = expert[at - 1];
        expert[at] = e;
        gate[j] = 1.0f / (float)s->k;
    }
}

void sl_skew_popularity(const sl_skew *s, double *out) {
    for (size_t l = 0; l < s->n_moe; l++) {
        for (uint32_t rank = 0; rank < s->n; rank++)
            out[l * s->n + s->expert[l * s->n + rank]] = s->weight[rank] / s->total;
    }
}
