/* The tables of this processor architecture, the slots they have, and mixes of them. */
#include "kernel/slots.h"

#include "base/mem.h"

#include <ctype.h>
#include <pthread.h>
#include <stdio.h>

#define MIXES_MAX 64u /* different mixes that a process may ask for by name */

static const sl_kernels *const tables[] = {
#if defined(__x86_64__)
#if !defined(SL_NO_AVX512) /* what a build leaves out that runs on the processor that made it */
    &sl_kernels_amx,
#if !defined(SL_NO_FAR)
    &sl_kernels_avx512far,
#endif
    &sl_kernels_avx512bf16, &sl_kernels_avx512vnni, &sl_kernels_avx512,
#endif
    &sl_kernels_avx2,
#elif defined(__aarch64__)
    &sl_kernels_neonmm,
    &sl_kernels_neondot,
    &sl_kernels_neon,
#endif
    &sl_kernels_ref,
};
_Static_assert(SL_LEN(tables) <= SL_TABLES_MAX, "times are kept for so many tables");

/* ---- slots ---- */

static const struct {
    const char *name;
    size_t offset, n; /* of its slots */
    sl_per per;
} kernels[] = {
#define SL_KERNEL(name, per, tol, what)                                                            \
    {#name, offsetof(struct sl_kernels, name),                                                     \
     sizeof(((struct sl_kernels *)0)->name) / sizeof(sl_slot_fn), SL_PER_##per},
#include "kernel/kernels.def"
#undef SL_KERNEL
};

static void lower(char *s) {
    for (; *s; s++) *s = (char)tolower((unsigned char)*s);
}

bool sl_slot_at(size_t i, sl_slot *out) {
    static const char *const amounts[] = {".few", ".many", ".some"}, *const kinds[] = {
                                                                         ".32", ".256", ".bf16"};
    size_t at = SL_FIRST_SLOT + i * sizeof(sl_slot_fn), k = 0;
    SL_ASSERT(i < SL_SLOTS);
    while (at < kernels[k].offset || at >= kernels[k].offset + kernels[k].n * sizeof(sl_slot_fn))
        k++;
    size_t which = (at - kernels[k].offset) / sizeof(sl_slot_fn);
    *out = (sl_slot){.kernel = (sl_kernel_id)k, .per = kernels[k].per, .kind = SL_ACT_NONE};
    const char *type = "", *amount = "", *dot = "";
    const bool product = out->per == SL_PER_PRODUCT || out->per == SL_PER_INT8;
    if (product || out->per == SL_PER_AMOUNT) {
        const uint32_t n = out->per == SL_PER_INT8 ? SL_AMOUNTS_INT8 : SL_AMOUNTS;
        out->amount = (sl_amount)(which % n);
        amount = amounts[out->amount];
        which /= n;
    }
    if (product || out->per == SL_PER_TYPE) {
        out->dtype = (sl_dtype)which;
        type = sl_dtype_name(out->dtype);
        dot = ".";
    } else if (out->per == SL_PER_KIND) {
        out->kind = (sl_act_kind)which;
        type = kinds[out->kind];
    }
    snprintf(out->name, sizeof out->name, "%s%s%s%s", kernels[k].name, dot, type, amount);
    lower(out->name);
    /* F8's values need the scales of their matrix, which widen has not. */
    if (k == SL_KERNEL_widen) return out->dtype != SL_F8_E4M3;
    if (k == SL_KERNEL_strip_tile) return sl_strips_have(out->dtype);
    return k != SL_KERNEL_int8_tile || sl_act_is_int8(sl_act_kind_of(out->dtype));
}

static sl_slot_fn get(const sl_kernels *k, size_t slot) {
    sl_slot_fn f;
    memcpy(&f, (const char *)k + SL_FIRST_SLOT + slot * sizeof f, sizeof f);
    return f;
}

static void set(sl_kernels *k, size_t slot, sl_slot_fn f) {
    memcpy((char *)k + SL_FIRST_SLOT + slot * sizeof f, &f, sizeof f);
}

bool sl_table_has(size_t i, size_t slot) {
    return get(tables[i], slot) != NULL;
}

size_t sl_table_find(const char *name, size_t len) {
    for (size_t i = 0; i < SL_LEN(tables); i++)
        if (strlen(tables[i]->name) == len && memcmp(tables[i]->name, name, len) == 0) return i;
    return SIZE_MAX;
}

/* A slot that a table lacks is that of the next one that others are filled up with. */
void sl_kernels_mix(const uint8_t from[SL_SLOTS], sl_kernels *out) {
    for (size_t s = 0; s < SL_SLOTS; s++) {
        size_t i = from[s];
        while (i + 1 < SL_LEN(tables) &&
               (!sl_table_has(i, s) || (tables[i]->variant && i != from[s])))
            i++;
        set(out, s, get(tables[i], s));
    }
}

/* ---- whole tables ---- */

static sl_kernels whole[SL_LEN(tables)]; /* with what they lack filled in */
static size_t base;

static void prepare(void) {
    uint8_t from[SL_SLOTS];
    for (size_t i = SL_LEN(tables); i-- > 0;) {
        whole[i] = *tables[i];
        memset(from, (int)i, sizeof from);
        sl_kernels_mix(from, &whole[i]);
        if (!tables[i]->by_merit && tables[i]->supported()) base = i;
    }
}

static void once(void) {
    static pthread_once_t done = PTHREAD_ONCE_INIT;
    pthread_once(&done, prepare);
}

static bool trusted; /* set before there are threads */

void sl_kernels_trust(void) {
    trusted = true;
}

static bool proven[SL_LEN(tables)]; /* of those that are taken by merit */

/* Of all at once: most of the work is what they are compared with. */
static void prove(void) {
    const sl_kernels *tried[SL_LEN(tables)];
    bool same[SL_LEN(tables)];
    size_t at[SL_LEN(tables)], n = 0;
    once();
    for (size_t i = 0; i < SL_LEN(tables); i++) {
        if (!tables[i]->by_merit || !tables[i]->supported()) continue;
        tried[n] = &whole[i];
        at[n++] = i;
    }
    sl_kernels_selftest(tried, n, same);
    for (size_t i = 0; i < n; i++) proven[at[i]] = same[i];
}

/* The answer of a table is found once. */
static bool runs(size_t i) {
    static pthread_once_t done = PTHREAD_ONCE_INIT;
    if (!tables[i]->by_merit || trusted) return tables[i]->supported();
    pthread_once(&done, prove);
    return proven[i];
}

/* ref is what tests compare with: it is itself. */
static const sl_kernels *table(size_t i) {
    return tables[i] == &sl_kernels_ref ? tables[i] : &whole[i];
}

const sl_kernels *sl_kernels_at(size_t i, bool *supported) {
    if (i >= SL_LEN(tables)) return NULL;
    once();
    if (supported) *supported = runs(i);
    return table(i);
}

const sl_kernels *sl_kernels_base(void) {
    once();
    return table(base);
}

bool sl_kernels_like_strips(const sl_kernels *k) {
    return k->strip_tile[SL_Q8_0] != sl_kernels_base()->strip_tile[SL_Q8_0];
}

const char *sl_kernels_name(const sl_kernels *k) {
    return k->name;
}

/* ---- mixes by name ---- */

typedef struct mix {
    uint8_t from[SL_SLOTS];
    sl_kernels k;
    char name[64];
    struct mix *next;
} mix;

static bool known(const char *name, size_t len, uint8_t *i) {
    size_t at = sl_table_find(name, len);
    if (at == SIZE_MAX || !runs(at)) return false;
    *i = (uint8_t)at;
    return true;
}

/* Whether a slot is meant by `word`: its name, or that of its kernel or of some of its cases. */
static bool means(const char *word, size_t len, const char *slot) {
    return strncmp(slot, word, len) == 0 && (slot[len] == 0 || slot[len] == '.');
}

static bool parse(const char *spec, uint8_t from[SL_SLOTS]) {
    size_t len = strcspn(spec, ",");
    uint8_t first;
    if (!known(spec, len, &first)) return false;
    memset(from, first, SL_SLOTS);
    for (spec += len; *spec; spec += len) {
        len = strcspn(++spec, ",");
        const char *is = memchr(spec, '=', len);
        size_t word = is ? (size_t)(is - spec) : 0, hits = 0;
        uint8_t i;
        if (word == 0 || !known(is + 1, len - word - 1, &i)) return false;
        for (size_t s = 0; s < SL_SLOTS; s++) {
            sl_slot slot;
            if (!sl_slot_at(s, &slot) || !means(spec, word, slot.name) || !sl_table_has(i, s))
                continue;
            from[s] = i;
            hits++;
        }
        if (hits == 0) return false;
    }
    return true;
}

/* "avx2+avx512": the tables whose slots are called. */
static void name_of(const uint8_t from[SL_SLOTS], char *out, size_t cap) {
    bool used[SL_LEN(tables)] = {false};
    sl_slot slot;
    for (size_t s = 0; s < SL_SLOTS; s++)
        if (sl_slot_at(s, &slot)) used[from[s]] = true;
    out[0] = 0;
    for (size_t i = SL_LEN(tables); i-- > 0;) {
        size_t n = strlen(out);
        if (used[i]) snprintf(out + n, cap - n, "%s%s", n ? "+" : "", tables[i]->name);
    }
}

/* The one of this mix that was asked for before, or a new one; NULL without memory, or past
 * MIXES_MAX. */
static const sl_kernels *mix_of(const uint8_t from[SL_SLOTS]) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static mix *all;
    static size_t n;
    pthread_mutex_lock(&lock);
    mix *m = all;
    while (m && memcmp(m->from, from, sizeof m->from) != 0) m = m->next;
    if (!m && n < MIXES_MAX && (m = sl_alloc(1, sizeof *m)) != NULL) {
        memcpy(m->from, from, sizeof m->from);
        m->k = *table(base);
        sl_kernels_mix(from, &m->k);
        name_of(from, m->name, sizeof m->name);
        m->k.name = m->name;
        m->next = all;
        all = m;
        n++;
    }
    pthread_mutex_unlock(&lock);
    return m ? &m->k : NULL;
}

const sl_kernels *sl_kernels_select(const char *spec) {
    uint8_t from[SL_SLOTS], one;
    once();
    if (!spec || !spec[0] || strcmp(spec, "base") == 0) return table(base);
    if (known(spec, strlen(spec), &one)) return table(one);
    return parse(spec, from) ? mix_of(from) : NULL;
}

/* The table that a kernel's called slots all have, SIZE_MAX: several. */
static size_t common(const uint8_t from[SL_SLOTS], sl_kernel_id kernel) {
    size_t is = SIZE_MAX;
    sl_slot slot;
    for (size_t s = 0; s < SL_SLOTS; s++) {
        if (!sl_slot_at(s, &slot) || slot.kernel != kernel) continue;
        if (is != SIZE_MAX && is != from[s]) return SIZE_MAX;
        is = from[s];
    }
    return is;
}

void sl_kernels_spec(const uint8_t from[SL_SLOTS], char out[SL_KERNELS_SPEC_MAX]) {
    size_t n = 0;
    once();
    n += (size_t)snprintf(out, SL_KERNELS_SPEC_MAX, "%s", tables[base]->name);
    for (size_t k = 0; k < SL_KERNEL_COUNT; k++) {
        size_t is = common(from, (sl_kernel_id)k);
        if (is == base) continue;
        if (is != SIZE_MAX) {
            n += (size_t)snprintf(out + n, SL_KERNELS_SPEC_MAX - n, ",%s=%s", kernels[k].name,
                                  tables[is]->name);
            continue;
        }
        for (size_t s = 0; s < SL_SLOTS; s++) {
            sl_slot slot;
            if (!sl_slot_at(s, &slot) || slot.kernel != k || from[s] == base) continue;
            n += (size_t)snprintf(out + n, SL_KERNELS_SPEC_MAX - n, ",%s=%s", slot.name,
                                  tables[from[s]]->name);
        }
    }
    SL_ASSERT(n < SL_KERNELS_SPEC_MAX);
}
