/* What decides the bits of an answer beside its request, as a name: `system_fingerprint`. */
#include "serve/server_int.h"

#include "base/version.h"
#include "spec/kv.h"

#include <sodium.h>
#include <stdio.h>

#define DIGEST_BYTES 16u

/* A fact by its name, so that two never look like another two. */
static void note(crypto_generichash_state *h, const char *name, const void *data, size_t n) {
    const uint64_t size = n;
    crypto_generichash_update(h, (const uint8_t *)name, strlen(name) + 1);
    crypto_generichash_update(h, (const uint8_t *)&size, sizeof size);
    crypto_generichash_update(h, data, n);
}

static void note_number(crypto_generichash_state *h, const char *name, uint64_t x) {
    note(h, name, &x, sizeof x);
}

static void note_numerics(crypto_generichash_state *h, const sl_plan *p) {
    note_number(h, "exact", p->exact);
    note_number(h, "segments", p->exact && p->segments);
    note_number(h, "wire", p->wire);
    note_number(h, "activations", p->activations);
    note_number(h, "kv", p->kv_type);
    note_number(h, "device", p->device.kind);
    if (sl_plan_numerics(p) != SL_NUMERICS_CPU) note_number(h, "numerics", sl_plan_numerics(p));
    if (sl_plan_numerics(p) == SL_NUMERICS_EXACT)
        note(h, "kind of GPU", sl_plan_gpu_kind(p), strlen(sl_plan_gpu_kind(p)));
    if (sl_plan_numerics(p) == SL_NUMERICS_FAST) {
        for (uint32_t i = 0; i < p->n_workers; i++) note_number(h, "gpu", sl_plan_on_gpu(p, i));
    }
    note_number(h, "skew", p->skew.on);
    if (!p->skew.on) return;
    note_number(h, "permuted", p->skew.permuted);
    note(h, "theta", &p->skew.theta, sizeof p->skew.theta);
    note_number(h, "seed", p->skew.seed);
}

/* Which experts of a row are summed before they travel. Schedules that differ in nothing else have
 * the same bits, and --schedule auto takes any of them. */
static void note_sums(crypto_generichash_state *h, const sl_plan *p) {
    uint32_t entries = sl_plan_entries(p);
    bool groups = p->chunking == SL_CHUNK_EXPERTS && p->chunks > 1;
    note_number(h, "each expert alone", p->schedule == SL_SCHED_AEP);
    note_number(h, "groups of experts", groups ? p->chunks : 1);
    note(h, "first host", p->place.first, (entries + 1) * sizeof *p->place.first);
    note(h, "hosts", p->place.host, p->place.first[entries] * sizeof *p->place.host);
}

/* What a conversation becomes. */
static void note_template(crypto_generichash_state *h, const sl_chat *chat) {
    for (int of_tools = 0; chat && of_tools < 2; of_tools++) {
        sl_span text = sl_chat_source(chat, of_tools);
        if (text.data) note(h, of_tools ? "template of tools" : "template", text.data, text.len);
    }
}

sl_status sl_fingerprint(const sl_model_spec *m, const sl_plan *p, const sl_chat *chat,
                         char out[SL_FINGERPRINT_BYTES], sl_err *err) {
    crypto_generichash_state h;
    uint8_t digest[DIGEST_BYTES];
    char hex[2 * DIGEST_BYTES + 1];
    /* how a prompt is cut decides which form of latent attention a row takes, and load decides
     * that; fast numerics of GPUs have the batch's bits */
    bool varies = (m->kv_lora && !p->exact) || sl_plan_numerics(p) == SL_NUMERICS_FAST;
    if (sodium_init() < 0) return sl_fail(err, SL_ERR_INTERNAL, "fingerprint: no libsodium");
    crypto_generichash_init(&h, NULL, 0, sizeof digest);
    note(&h, "program", sl_version(), strlen(sl_version()));
    note(&h, "model", m->hash, sizeof m->hash);
    note_template(&h, chat);
    note_numerics(&h, p);
    if (!p->exact) note_sums(&h, p);
    if (varies) note_number(&h, "rows of a step", p->max_num_batched_tokens);
    crypto_generichash_final(&h, digest, sizeof digest);
    sodium_bin2hex(hex, sizeof hex, digest, sizeof digest);
    snprintf(out, SL_FINGERPRINT_BYTES, "fp_%s%s", hex, varies ? "-varies" : "");
    return SL_OK;
}
