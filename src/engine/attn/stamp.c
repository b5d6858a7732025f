/* Everything that rows of KV depend on, as one hash. */
#include "engine/attn/stamp.h"

#include "base/rng.h"
#include "base/version.h"
#include "spec/kv.h"

#include <dirent.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>

/* Everything that rows of KV depend on, as far as this worker knows it. Zeroed before it is filled:
 * hashed as it lies. */
typedef struct stamp {
    uint8_t model[32];
    uint64_t files;
    uint64_t page_bytes;
    sl_route_skew skew;
    uint32_t exact, wire, activations, segments, ranks, numerics, kv_type;
    char gpu_kind[SL_GPU_KIND_BYTES]; /* whose bits numerics exact are */
} stamp;

static uint64_t mark_of(const struct stat *s) {
    const uint64_t word[] = {(uint64_t)s->st_dev, (uint64_t)s->st_ino, (uint64_t)s->st_size,
                             (uint64_t)s->st_mtim.tv_sec, (uint64_t)s->st_mtim.tv_nsec};
    uint64_t mark = 0;
    for (size_t i = 0; i < SL_LEN(word); i++) {
        uint64_t state = mark ^ word[i];
        mark = sl_rng_next(&state);
    }
    return mark;
}

/* Of the files of a checkpoint, whose weights no hash covers: others, or changed ones, give another
 * number. A file's folder counts, as it may come in parts. */
static uint64_t mark_of_files(const char *folder) {
    struct stat s;
    char text[4096];
    size_t n = strlen(folder);
    uint64_t mark = 0;
    if (n >= sizeof text || stat(folder, &s) != 0) return 0;
    memcpy(text, folder, n + 1);
    char *slash = strrchr(text, '/');
    if (!S_ISDIR(s.st_mode)) {
        if (slash) *slash = 0;
        n = slash ? strlen(text) : 0;
    }
    DIR *d = opendir(n ? text : ".");
    if (!d) return mark_of(&s);
    for (const struct dirent *e; (e = readdir(d));)
        if (fstatat(dirfd(d), e->d_name, &s, 0) == 0 && S_ISREG(s.st_mode)) mark += mark_of(&s);
    closedir(d);
    return mark;
}

static void fill(stamp *out, uint32_t roles, const sl_plan *p, const sl_model_spec *m,
                 const char *folder) {
    memset(out, 0, sizeof *out);
    memcpy(out->model, m->hash, sizeof out->model);
    out->skew.on = p->skew.on; /* field by field: what is between them is 0 */
    out->skew.permuted = p->skew.permuted;
    out->skew.theta = p->skew.theta;
    out->skew.seed = p->skew.seed;
    out->files = mark_of_files(folder);
    out->page_bytes = sl_kv_page_bytes(m);
    out->exact = p->exact;
    out->wire = p->wire;
    out->activations = (uint32_t)p->activations;
    out->segments = p->segments;
    out->ranks = sl_plan_all_ranks(p, roles);
    out->numerics = (uint32_t)sl_plan_numerics(p);
    memcpy(out->gpu_kind, sl_plan_gpu_kind(p), sizeof out->gpu_kind);
    out->kv_type = p->kv_type;
}

void sl_kv_stamp_of(uint32_t id, const sl_plan *p, const sl_model_spec *m, const char *folder,
                    sl_kv_stamp *out) {
    stamp of;
    crypto_generichash_state h;
    fill(&of, p->worker[id].roles, p, m, folder);
    crypto_generichash_init(&h, NULL, 0, sizeof out->byte);
    crypto_generichash_update(&h, (const uint8_t *)&of, sizeof of);
    crypto_generichash_update(&h, (const uint8_t *)sl_version(), strlen(sl_version()));
    crypto_generichash_final(&h, out->byte, sizeof out->byte);
}
