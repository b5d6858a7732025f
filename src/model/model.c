/* A model's life: its description read, its weights bound, its tables made, all freed. */
#include "model/model.h"

#include "base/rng.h"
#include "format/gguf_config.h"
#include "format/hf_config.h"
#include "format/map.h"
#include "model/model_int.h"
#include "spec/device.h"

#include <math.h>
#include <sodium.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char *file_in(const char *folder, const char *name) {
    size_t n = strlen(folder) + strlen(name) + 2;
    char *path = sl_alloc(n, 1);
    if (path) snprintf(path, n, "%s/%s", folder, name);
    return path;
}

static void take_arch(sl_model *m) {
    m->arch = sl_arch_find(m->spec.arch);
    SL_ASSERT(m->arch != NULL);
    sl_arch_count_params(m->arch, &m->spec);
}

/* Reads config.json; its bytes go into the hash. */
static sl_status read_config(sl_model *m, crypto_hash_sha256_state *hash, sl_err *err) {
    sl_map map = {0};
    char *path = file_in(m->folder, "config.json");
    if (!path) return sl_fail(err, SL_ERR_NOMEM, "%s: path", m->folder);
    sl_status st = sl_map_open(path, SL_MAX_CONFIG_BYTES, &map, err);
    if (st == SL_OK) st = sl_hf_config_parse(path, map.bytes, &m->spec, err);
    if (st == SL_OK) {
        take_arch(m);
        crypto_hash_sha256_update(hash, map.bytes.data, map.bytes.len);
    }
    sl_map_close(&map);
    sl_free(path);
    return st;
}

static sl_status read_generation(sl_model *m, sl_err *err) {
    sl_map map = {0};
    m->gen = sl_hf_generation_none();
    char *path = file_in(m->folder, "generation_config.json");
    if (!path) return sl_fail(err, SL_ERR_NOMEM, "%s: path", m->folder);
    sl_status st = sl_map_open(path, SL_MAX_CONFIG_BYTES, &map, err);
    if (st == SL_OK)
        st = sl_hf_generation_parse(path, map.bytes, &m->spec, &m->gen, err);
    else if (st == SL_ERR_NOTFOUND)
        st = SL_OK;
    sl_map_close(&map);
    sl_free(path);
    return st;
}

/* Configuration of a folder and, unless there are none and need not be, headers of its weights. */
static sl_status read_folder(sl_model *m, bool must_have_weights, crypto_hash_sha256_state *hash,
                             sl_err *err) {
    sl_status st = read_config(m, hash, err);
    if (st == SL_OK) st = read_generation(m, err);
    m->spec.weightless = !sl_ckpt_exists(m->folder);
    if (st == SL_OK && (must_have_weights || !m->spec.weightless))
        st = sl_ckpt_open(m->folder, &m->ckpt, err);
    size_t at;
    if (st == SL_OK && m->ckpt && m->arch->mtp_sign &&
        sl_ckpt_find(m->ckpt, m->arch->mtp_sign, &at))
        m->spec.n_mtp = 1;
    return st;
}

static sl_status read_gguf(sl_model *m, sl_err *err) {
    sl_status st = sl_ckpt_open(m->folder, &m->ckpt, err);
    if (st == SL_OK) st = sl_gguf_config_parse(sl_ckpt_gguf(m->ckpt), &m->spec, &m->gen, err);
    if (st == SL_OK) take_arch(m);
    return st;
}

/* Configuration, headers of the weights, names: everything that needs no weights. */
static sl_status load(const char *folder, bool must_have_weights, sl_model **out, sl_err *err) {
    crypto_hash_sha256_state hash;
    sl_status st = SL_OK;
    sl_model *m = sl_alloc(1, sizeof *m);
    if (!m || !(m->folder = sl_strdup(folder))) {
        st = sl_fail(err, SL_ERR_NOMEM, "%s: model", folder);
        goto out;
    }
    crypto_hash_sha256_init(&hash);
    st = sl_gguf_is(folder) ? read_gguf(m, err) : read_folder(m, must_have_weights, &hash, err);
    m->stored = m->spec;
    m->held = (sl_extent){0, m->spec.n_layers};
    if (st == SL_OK && m->ckpt) st = sl_model_check_names(m, err);
    if (st != SL_OK) goto out;
    for (uint32_t i = 0; m->ckpt && i < sl_ckpt_files(m->ckpt); i++) {
        sl_span head = sl_ckpt_header(m->ckpt, i);
        crypto_hash_sha256_update(&hash, head.data, head.len);
    }
    crypto_hash_sha256_final(&hash, m->spec.hash);
    m->stored = m->spec; /* with its hash */
    *out = m;
    m = NULL;
out:
    sl_model_free(m);
    return st;
}

sl_status sl_model_read_spec(const char *folder, sl_model_spec *spec, sl_generation_spec *gen,
                             sl_err *err) {
    sl_model *m = NULL;
    sl_status st = load(folder, false, &m, err);
    if (st != SL_OK) return st;
    *spec = m->spec;
    if (gen) *gen = m->gen;
    sl_model_free(m);
    return SL_OK;
}

/* Pairs up to *low keep their frequency, those from *high on have all of it divided: where a pair
 * turns beta_fast and beta_slow times within the original context. */
static void yarn_range(const sl_model_spec *s, double *low, double *high) {
    const double two_pi = 6.283185307179586, dim = s->rope_dim;
    double per = dim / (2 * log((double)s->rope_theta)), original = s->yarn.original;
    *low = per * log(original / ((double)s->yarn.beta_fast * two_pi));
    *high = per * log(original / ((double)s->yarn.beta_slow * two_pi));
    *low = fmax(0, s->yarn.between ? *low : floor(*low));
    *high = fmin(dim - 1, s->yarn.between ? *high : ceil(*high));
    if (*low == *high) *high += 0.001;
}

/* theta^(-2i/d), rounded to f32 as the checkpoints were trained with. */
static void fill_rope(sl_model *m) {
    const sl_yarn *y = &m->spec.yarn;
    uint32_t half = m->spec.rope_dim / 2;
    double low = 0, high = 0;
    if (y->factor > 0) yarn_range(&m->spec, &low, &high);
    for (uint32_t i = 0; i < half; i++) {
        double freq = pow((double)m->spec.rope_theta, -(double)i / (double)half), blend = 0;
        if (y->factor > 0) {
            blend = fmin(1, fmax(0, (i - low) / (high - low)));
            freq = freq * (1 - blend) + freq / (double)y->factor * blend;
        }
        m->made.rope_freq[i] = (float)sl_rope_stretch(&m->spec.long_waves, freq);
    }
}

static sl_status make_tables(sl_model *m, sl_err *err) {
    const sl_model_spec *spec = &m->spec;
    m->block = sl_alloc(sl_model_blocks(m), sizeof *m->block);
    m->expert = sl_alloc((size_t)sl_model_routed(m) * spec->n_experts, sizeof *m->expert);
    m->made.rope_freq = sl_alloc(spec->rope_dim / 2, sizeof *m->made.rope_freq);
    if (!m->block || !m->expert || !m->made.rope_freq)
        return sl_fail(err, SL_ERR_NOMEM, "%s: weight tables", m->folder);
    fill_rope(m);
    if (!spec->qk_unit) return SL_OK;
    m->made.ones = sl_alloc(spec->head_dim, sizeof *m->made.ones);
    for (uint32_t i = 0; m->made.ones && i < spec->head_dim; i++) m->made.ones[i] = 1;
    return m->made.ones ? SL_OK : sl_fail(err, SL_ERR_NOMEM, "%s: weight tables", m->folder);
}

/* A vector of n values of each of the blocks; of those that are held all have it or none. */
static sl_status widen_vectors(const sl_model *m, sl_arch_role role, const uint16_t *layer,
                               uint32_t n_layers, size_t n, float **out, sl_err *err) {
    const sl_exec ex = {.k = sl_kernels_base()};
    float *wide = NULL;
    for (uint32_t i = 0; i < n_layers; i++) {
        const sl_mat *b = &m->block[layer ? layer[i] : i].mat[role];
        if (!b->data) continue;
        if (!wide) wide = sl_alloc(n * n_layers, sizeof *wide);
        if (!wide) return sl_fail(err, SL_ERR_NOMEM, "%s: widened vectors", m->folder);
        sl_widen(&ex, b->data, b->dtype, n, wide + i * n);
    }
    *out = wide;
    return SL_OK;
}

/* Widened once, where attention is hosted: they meet every row. */
static sl_status fill_vectors(sl_model *m, sl_err *err) {
    const sl_model_spec *s = &m->spec;
    sl_status st = widen_vectors(m, SL_ROLE_ROUTER_BIAS, s->moe_layer, sl_model_routed(m),
                                 s->n_experts, &m->made.route_bias, err);
    return st == SL_OK
               ? widen_vectors(m, SL_ROLE_SINKS, NULL, s->n_layers, s->n_heads, &m->made.sinks, err)
               : st;
}

static sl_status take_rank(sl_model *m, const sl_stages *stages, sl_err *err) {
    m->rank = stages->rank;
    m->segmented = stages->segmented;
    if (sl_rank_alone(m->rank) && !m->segmented) return SL_OK;
    SL_ASSERT(sl_rank_alone(m->rank) || sl_ranks_can_be(m->rank.of));
    sl_status st = sl_model_find_blocks(m, err);
    if (st == SL_OK) sl_rank_take(m);
    return st;
}

/* bf16 values of either sign from 1/128 to 1/64: no zeros, nothing that shrinks to denormals. */
static void fill_random(uint8_t *out, size_t bytes, uint64_t seed) {
    for (size_t i = 0; i + 8 <= bytes; i += 8) {
        uint64_t v = sl_rng_next(&seed);
        v = (v & 0x807F807F807F807Full) | 0x3C003C003C003C00ull;
        memcpy(out + i, &v, sizeof v);
    }
}

/* As many as the largest tensor has at least; with more than the caches hold, reading them takes
 * what reading real ones does. */
static sl_status make_random(sl_model *m, sl_err *err) {
    const uint64_t enough = 1ull << 30;
    size_t largest;
    uint64_t all;
    sl_status st = sl_model_random_sizes(m, &largest, &all, err);
    if (st != SL_OK) return st;
    m->random_bytes = SL_MAX(largest, (size_t)SL_MIN(all + 64 * 1024, enough));
    m->random = sl_alloc(m->random_bytes, 1);
    if (!m->random)
        return sl_fail(err, SL_ERR_NOMEM, "%s: %zu bytes of random weights", m->folder,
                       m->random_bytes);
    fill_random(m->random, m->random_bytes, 1);
    return SL_OK;
}

static sl_status bind(sl_model *m, const sl_stages *stages, sl_err *err) {
    SL_ASSERT(stages->blocks.first + stages->blocks.n <= m->stored.n_layers);
    if (stages->blocks.n) m->held = stages->blocks;
    if (!stages->random) return sl_model_bind(m, stages, err);
    sl_status st = make_random(m, err);
    return st == SL_OK ? sl_model_bind_random(m, stages, err) : st;
}

sl_status sl_model_open_until(const char *folder, const sl_stages *stages, const atomic_bool *stop,
                              sl_model **out, sl_err *err) {
    sl_model *m = NULL;
    sl_status st = load(folder, !stages->random, &m, err);
    if (st == SL_OK) m->stop = stop;
    if (st == SL_OK) m->spec.kv_type = m->stored.kv_type = stages->kv_type;
    if (st == SL_OK && stages->mtp && stages->attention) st = sl_mtp_take(m, err);
    if (st == SL_OK && !stages->random) st = take_rank(m, stages, err);
    if (st == SL_OK) st = make_tables(m, err);
    if (st == SL_OK) st = bind(m, stages, err);
    if (st == SL_OK && !stages->random) st = sl_rope_apply_factors(m, err);
    if (st == SL_OK) st = fill_vectors(m, err);
    if (st == SL_OK) st = sl_mla_bind(m, err);
    if (st == SL_OK) st = sl_delta_bind(m, err);
    if (st == SL_OK) m->tables = m->made;
    if (st == SL_OK && stages->skew.on) st = sl_skew_create(&stages->skew, &m->spec, &m->skew, err);
    if (st == SL_OK) {
        m->stop = NULL;
        *out = m;
    } else {
        sl_model_free(m);
    }
    return st;
}

sl_status sl_model_open(const char *folder, const sl_stages *stages, sl_model **out, sl_err *err) {
    return sl_model_open_until(folder, stages, NULL, out, err);
}

sl_status sl_model_open_random(const sl_model_spec *spec, size_t bytes, uint64_t seed,
                               sl_model **out, sl_err *err) {
    sl_status st = SL_OK;
    const sl_arch *arch = sl_arch_find(spec->arch);
    sl_model *m = sl_alloc(1, sizeof *m);
    if (!arch) st = sl_fail(err, SL_ERR_UNSUPPORTED, "\"%.60s\" is not supported", spec->arch);
    if (st == SL_OK &&
        (!m || !(m->folder = sl_strdup("random weights")) || !(m->random = sl_alloc(bytes, 1))))
        st = sl_fail(err, SL_ERR_NOMEM, "no memory for %zu bytes of random weights", bytes);
    if (st == SL_OK) {
        m->spec = *spec;
        m->arch = arch;
        m->random_bytes = bytes;
        m->gen = sl_hf_generation_none();
        sl_arch_count_params(arch, &m->spec);
        m->stored = m->spec;
        m->held = (sl_extent){0, m->spec.n_layers};
        fill_random(m->random, bytes, seed);
        st = make_tables(m, err);
    }
    if (st == SL_OK) st = sl_model_bind_random(m, NULL, err);
    if (st == SL_OK) st = fill_vectors(m, err);
    if (st == SL_OK) st = sl_mla_bind(m, err);
    if (st == SL_OK) st = sl_delta_bind(m, err);
    if (st == SL_OK) m->tables = m->made;
    if (st == SL_OK)
        *out = m;
    else
        sl_model_free(m);
    return st;
}

void sl_model_free(sl_model *m) {
    if (!m) return;
    if (m->embed.open && m->embed.fd >= 0) close(m->embed.fd);
    sl_settle_end(m);
    sl_ckpt_free(m->ckpt);
    sl_free(m->block);
    sl_free(m->expert);
    sl_free(m->mla);
    sl_free(m->delta);
    sl_free(m->made.rope_freq);
    sl_free(m->made.ones);
    sl_free(m->made.route_bias);
    sl_free(m->made.sinks);
    sl_skew_free(m->skew);
    sl_free(m->random);
    sl_copies_free(&m->copies);
    sl_free(m->folder);
    sl_free(m);
}

const sl_model_spec *sl_model_spec_of(const sl_model *m) {
    return &m->spec;
}

const sl_model_spec *sl_model_stored_of(const sl_model *m) {
    return &m->stored;
}

bool sl_model_draws(const sl_model *m) {
    return m->skew != NULL;
}

void sl_model_join(sl_model *m, const sl_gang *gang) {
    m->gang = gang;
}

sl_status sl_model_inspect(const char *folder, sl_model_info *out, sl_err *err) {
    sl_model *m = NULL;
    sl_status st = load(folder, true, &m, err);
    if (st == SL_OK) st = sl_model_measure(m, out, err);
    sl_model_free(m);
    return st;
}

/* ---- what stages read ---- */

/* Roles are in the order of stages (format/arch.h). */
static sl_cost_kind stage_of(sl_arch_role role) {
    if (role <= SL_ROLE_LM_HEAD) return SL_COST_HEAD;
    if (role <= SL_ROLE_K_NORM) return SL_COST_ATTENTION;
    if (role <= SL_ROLE_LOGIT_BIAS) return SL_COST_ROUTER;
    return role <= SL_ROLE_DENSE_DOWN ? SL_COST_DENSE : SL_COST_SHARED;
}

static double bytes_of(const sl_mat *w) {
    return w->data ? (double)sl_mat_bytes(w) : 0;
}

void sl_model_stage_bytes(const sl_model *m, double *of) {
    const sl_model_spec *s = &m->spec;
    uint32_t blocks[SL_COST_COUNT] = {0}, experts = 0;
    double expert = 0;
    for (int k = 0; k < SL_COST_COUNT; k++) of[k] = 0;
    for (uint32_t l = 0; l < s->n_layers; l++) {
        double here[SL_COST_COUNT] = {0};
        for (int r = SL_ROLE_ATTN_NORM; r < SL_ROLE_MTP_TOKEN_NORM; r++)
            here[stage_of((sl_arch_role)r)] += bytes_of(&m->block[l].mat[r]);
        for (int k = 0; k < SL_COST_COUNT; k++) of[k] += here[k], blocks[k] += here[k] > 0;
        sl_expert_mats e;
        if (!sl_model_expert(m, l, 0, &e)) continue;
        expert += bytes_of(e.gate) + bytes_of(e.up) + bytes_of(e.down);
        experts++;
    }
    for (int k = 0; k < SL_COST_COUNT; k++) of[k] = blocks[k] ? of[k] / blocks[k] : 0;
    of[SL_COST_EXPERT] = experts ? expert / experts : 0;
    of[SL_COST_HEAD] = bytes_of(&m->whole.mat[SL_ROLE_LM_HEAD]);
}
