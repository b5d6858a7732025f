/* Draws of a token (draw.h).
 *
 * Weights are summed up in doubles, a block of tokens in lanes and blocks one after the other, so a
 * draw looks into one block alone. Where tokens are ranked, only those are put in order that can
 * decide: with top_k those that are no smaller than the k-th largest of the blocks' largest, which
 * are k at least; with top_p alone the likely ones, by buckets of logits of which one or two are
 * sorted. */
#include "model/draw.h"

#include "base/status.h"
#include "kernel/kernel.h"

#include <math.h>
#include <string.h>

#define LANES   16u
#define BUCKETS 256u

size_t sl_draw_scratch_bytes(uint32_t vocab) {
    /* weights, candidates twice; of blocks: the largest, which of them, sums; buckets */
    return (size_t)vocab * (sizeof(float) + 2 * sizeof(uint32_t)) +
           sl_draw_blocks(vocab) * (sizeof(float) + sizeof(uint32_t) + sizeof(double)) +
           (BUCKETS + 1) * (sizeof(uint32_t) + sizeof(double)) + 12 * 64;
}

static uint32_t in_block(const sl_peaks *p, uint32_t b) {
    return sl_draw_in_block(p->vocab, b);
}

/* ---- the largest ---- */

/* In lanes that compilers make vectors of. */
static float most_of(const float *x, uint32_t n) {
    float lane[LANES], most = -INFINITY;
    uint32_t i = 0;
    for (uint32_t j = 0; j < LANES; j++) lane[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        for (uint32_t j = 0; j < LANES; j++) lane[j] = x[i + j] > lane[j] ? x[i + j] : lane[j];
    for (; i < n; i++) most = x[i] > most ? x[i] : most;
    for (uint32_t j = 0; j < LANES; j++) most = lane[j] > most ? lane[j] : most;
    return most;
}

static uint32_t first_best(const sl_peaks *p, float top) {
    for (uint32_t b = 0; b < p->n; b++) {
        const float *x = p->logits + (size_t)b * SL_PEAK_BLOCK;
        if (p->most[b] != top) continue;
        for (uint32_t i = 0; i < in_block(p, b); i++)
            if (x[i] == top) return b * SL_PEAK_BLOCK + i;
    }
    return 0; /* all are NaN */
}

sl_peaks sl_peaks_of(const float *logits, uint32_t vocab, sl_arena *scratch) {
    sl_peaks p = {.logits = logits, .vocab = vocab, .n = sl_draw_blocks(vocab)};
    float top = -INFINITY;
    p.most = sl_arena_take(scratch, p.n, sizeof *p.most);
    SL_ASSERT(p.most);
    for (uint32_t b = 0; b < p.n; b++) {
        p.most[b] = most_of(logits + (size_t)b * SL_PEAK_BLOCK, in_block(&p, b));
        top = p.most[b] > top ? p.most[b] : top;
    }
    p.best = first_best(&p, top);
    return p;
}

/* ---- order ---- */

/* a comes before b. */
static bool before(const float *logits, uint32_t a, uint32_t b) {
    return sl_draw_before(logits[a], a, logits[b], b);
}

/* Restores a heap whose root is the last of its members. */
static void sift_down(const float *logits, uint32_t *heap, uint32_t n, uint32_t at) {
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n) return;
        if (child + 1 < n && before(logits, heap[child], heap[child + 1])) child++;
        if (!before(logits, heap[at], heap[child])) return;
        const uint32_t keep = heap[at];
        heap[at] = heap[child];
        heap[child] = keep;
        at = child;
    }
}

static void make_heap(const float *logits, uint32_t *heap, uint32_t n) {
    for (uint32_t i = n / 2; i-- > 0;) sift_down(logits, heap, n, i);
}

/* A heap in order. */
static void unheap(const float *logits, uint32_t *list, uint32_t n) {
    for (uint32_t left = n; left > 1; left--) {
        const uint32_t last = list[0];
        list[0] = list[left - 1];
        list[left - 1] = last;
        sift_down(logits, list, left - 1, 0);
    }
}

static void sort(const float *logits, uint32_t *list, uint32_t n) {
    make_heap(logits, list, n);
    unheap(logits, list, n);
}

/* One more for the first k of x, n of which are in the list: a heap once there are k. */
static uint32_t offer(const float *x, uint32_t id, uint32_t k, uint32_t *list, uint32_t n) {
    if (n < k) {
        list[n++] = id;
        if (n == k) make_heap(x, list, n);
    } else if (before(x, id, list[0])) {
        list[0] = id;
        sift_down(x, list, n, 0);
    }
    return n;
}

/* What the k-th of the blocks' largest is, k > 0; -INFINITY: there are fewer. At least k tokens are
 * no smaller. */
static float kth_most(const sl_peaks *p, uint32_t k, sl_arena *scratch) {
    const size_t level = scratch->used;
    if (k > p->n) return -INFINITY;
    uint32_t *list = sl_arena_take(scratch, p->n, sizeof *list), n = 0;
    SL_ASSERT(list);
    for (uint32_t b = 0; b < p->n; b++) n = offer(p->most, b, k, list, n);
    scratch->used = level;
    return p->most[list[0]];
}

uint32_t sl_peaks_rank(const sl_peaks *p, uint32_t k, uint32_t *list, sl_arena *scratch) {
    uint32_t n = 0;
    if (k == 0) return 0;
    const float cut = kth_most(p, k, scratch);
    for (uint32_t b = 0; b < p->n; b++) {
        if (p->most[b] < cut) continue;
        for (uint32_t i = b * SL_PEAK_BLOCK, end = i + in_block(p, b); i < end; i++)
            if (!(p->logits[i] < cut)) n = offer(p->logits, i, k, list, n);
    }
    if (n < k) make_heap(p->logits, list, n);
    unheap(p->logits, list, n);
    return n;
}

/* ---- weights ---- */

void sl_peaks_weights(const sl_peaks *p, float temperature, float *weight) {
    const float top = p->logits[p->best];
    for (uint32_t i = 0; i < p->vocab; i++)
        weight[i] = sl_draw_power(p->logits[i], top, temperature);
    sl_softmax(sl_kernels_base(), weight, p->vocab, weight);
}

static double sum_of(const float *weight, uint32_t n) {
    double lane[SL_PEAK_LANES] = {0}, sum = 0;
    uint32_t i = 0;
    for (; i + SL_PEAK_LANES <= n; i += SL_PEAK_LANES)
        for (uint32_t j = 0; j < SL_PEAK_LANES; j++) lane[j] += weight[i + j];
    for (; i < n; i++) sum += weight[i];
    for (uint32_t j = 0; j < SL_PEAK_LANES; j++) sum += lane[j];
    return sum;
}

/* Weights of tokens, and sums of blocks and of all. */
typedef struct weights {
    float *of;
    double *block, all;
} weights;

/* Drops those that min_p does. The likeliest token's is the largest. */
static void drop_unlikely(const sl_sampling *s, const sl_peaks *p, float *weight) {
    const float floor = sl_draw_least(s->min_p, weight[p->best]);
    for (uint32_t i = 0; floor > 0 && i < p->vocab; i++) weight[i] = sl_draw_kept(weight[i], floor);
}

static weights weigh(const sl_sampling *s, const sl_peaks *p, sl_arena *scratch) {
    weights w = {.of = sl_arena_take(scratch, p->vocab, sizeof *w.of),
                 .block = sl_arena_take(scratch, p->n, sizeof *w.block)};
    SL_ASSERT(w.of && w.block);
    sl_peaks_weights(p, s->temperature, w.of);
    drop_unlikely(s, p, w.of);
    for (uint32_t b = 0; b < p->n; b++) {
        w.block[b] = sum_of(w.of + (size_t)b * SL_PEAK_BLOCK, in_block(p, b));
        w.all += w.block[b];
    }
    return w;
}

/* ---- draws ---- */

/* By id. */
static uint32_t draw_any(const sl_peaks *p, const weights *w, double u) {
    const double goal = u * w->all;
    double sum;
    const uint32_t b = sl_draw_block(w->block, p->n, goal, &sum), n = in_block(p, b);
    const uint32_t i = sl_draw_walk(w->of + (size_t)b * SL_PEAK_BLOCK, NULL, n, sum, goal);
    return i < n ? b * SL_PEAK_BLOCK + i : p->best;
}

/* The same of tokens of a list. */
static uint32_t walk(const sl_peaks *p, const float *weight, const uint32_t *list, uint32_t n,
                     double sum, double goal) {
    const uint32_t i = sl_draw_walk(weight, list, n, sum, goal);
    return i < n ? list[i] : p->best;
}

/* How many of a list in order make up a mass of goal, one at least, and that mass. */
static uint32_t keep(const float *weight, const uint32_t *list, uint32_t n, double goal,
                     double *mass) {
    uint32_t kept = 0;
    while (kept < n && (kept == 0 || *mass < goal)) *mass += weight[list[kept++]];
    return kept;
}

/* Weights of the listed tokens, where those of others are not asked for. */
static void weigh_listed(const sl_sampling *s, const sl_peaks *p, const uint32_t *list, uint32_t n,
                         float *weight) {
    for (uint32_t i = 0; i < n; i++) {
        const float e =
            sl_expf(sl_draw_power(p->logits[list[i]], p->logits[p->best], s->temperature));
        weight[list[i]] = sl_draw_kept(e, s->min_p);
    }
}

uint32_t sl_draw_of_k(const sl_sampling *s, const sl_peaks *p, double u, sl_arena *scratch) {
    uint32_t *list = sl_arena_take(scratch, p->vocab, sizeof *list);
    float *weight = sl_arena_take(scratch, p->vocab, sizeof *weight);
    double mass = 0, all = 0;
    SL_ASSERT(list && weight);
    uint32_t n = sl_peaks_rank(p, SL_MIN(s->top_k, p->vocab), list, scratch);
    weigh_listed(s, p, list, n, weight);
    for (uint32_t i = 0; i < n; i++) all += weight[list[i]];
    n = keep(weight, list, n, s->top_p < 1 ? all * (double)s->top_p : INFINITY, &mass);
    return walk(p, weight, list, n, 0, u * mass);
}

/* Likely tokens by buckets of their logits, larger ones first; those of a bucket by id. */
typedef struct buckets {
    const sl_peaks *p;
    const weights *w;
    uint32_t *list, *end; /* [BUCKETS] where they end */
    double *mass;         /* [BUCKETS] */
    float scale;
} buckets;

static uint32_t bucket_of(const buckets *k, float logit) {
    const float down = (k->p->logits[k->p->best] - logit) * k->scale;
    return down < (float)(BUCKETS - 1) ? (uint32_t)down : BUCKETS - 1;
}

/* Those that top_p may keep (sl_draw_likely). */
static uint32_t likely(const sl_sampling *s, const sl_peaks *p, const weights *w, double floor,
                       uint32_t *list) {
    /* Of logits, a little lower than where that is. */
    const float cut =
        p->logits[p->best] + s->temperature * ((float)log(floor / w->of[p->best]) - 0.01f) - 0.01f;
    uint32_t n = 0;
    for (uint32_t b = 0; b < p->n; b++) {
        if (p->most[b] < cut) continue;
        for (uint32_t i = b * SL_PEAK_BLOCK, end = i + in_block(p, b); i < end; i++)
            if (w->of[i] > 0 && w->of[i] >= floor) list[n++] = i;
    }
    return n;
}

static float least_of(const sl_peaks *p, const uint32_t *from, uint32_t n) {
    float least = p->logits[from[0]];
    for (uint32_t i = 1; i < n; i++)
        least = p->logits[from[i]] < least ? p->logits[from[i]] : least;
    return least;
}

/* n > 0 likely tokens from `from` to k->list; none of all is below `least`. */
static void fill_buckets(buckets *k, const uint32_t *from, uint32_t n, float least) {
    const float *logits = k->p->logits;
    const float range = logits[k->p->best] - least;
    k->scale = range > 0 ? (float)BUCKETS / range : 0;
    if (!isfinite(k->scale)) k->scale = 0;
    memset(k->end, 0, BUCKETS * sizeof *k->end);
    memset(k->mass, 0, BUCKETS * sizeof *k->mass);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t b = bucket_of(k, logits[from[i]]);
        k->end[b]++;
        k->mass[b] += k->w->of[from[i]];
    }
    uint32_t next[BUCKETS], at = 0;
    for (uint32_t b = 0; b < BUCKETS; b++) {
        next[b] = at;
        at = k->end[b] += at;
    }
    for (uint32_t i = 0; i < n; i++) k->list[next[bucket_of(k, logits[from[i]])]++] = from[i];
}

/* The first bucket with which the mass before it is `above` goal, or reaches it; *sum: that mass.
 */
static uint32_t find_bucket(const buckets *k, double goal, bool above, double *sum) {
    uint32_t b = 0, last = 0;
    double before_it = 0;
    for (*sum = 0; b < BUCKETS; b++) {
        const double with = *sum + k->mass[b];
        if (k->mass[b] > 0) last = b, before_it = *sum;
        if (above ? with > goal : k->mass[b] > 0 && with >= goal) return b;
        *sum = with;
    }
    *sum = before_it; /* rounding: the last one that has any */
    return last;
}

static buckets make_buckets(const sl_peaks *p, const weights *w, sl_arena *scratch) {
    const buckets k = {.p = p,
                       .w = w,
                       .list = sl_arena_take(scratch, p->vocab, sizeof *k.list),
                       .end = sl_arena_take(scratch, BUCKETS, sizeof *k.end),
                       .mass = sl_arena_take(scratch, BUCKETS, sizeof *k.mass)};
    SL_ASSERT(k.list && k.end && k.mass);
    return k;
}

/* Of the buckets up to `cut`, where the mass, `sum` before it, reaches goal. */
static uint32_t draw_of_buckets(buckets *k, uint32_t cut, double sum, double goal, double u) {
    const sl_peaks *p = k->p;
    const float *weight = k->w->of;
    const uint32_t first = cut ? k->end[cut - 1] : 0;
    sort(p->logits, k->list + first, k->end[cut] - first);
    double mass = sum;
    /* one token at least, also where nothing is before this bucket */
    k->end[cut] = first + keep(weight, k->list + first, k->end[cut] - first, goal, &mass);
    k->mass[cut] = mass - sum;
    memset(k->mass + cut + 1, 0, (BUCKETS - cut - 1) * sizeof *k->mass);
    const uint32_t at = find_bucket(k, u * mass, true, &sum);
    const uint32_t begin = at ? k->end[at - 1] : 0;
    if (at != cut) sort(p->logits, k->list + begin, k->end[at] - begin);
    return walk(p, weight, k->list + begin, k->end[at] - begin, sum, u * mass);
}

/* top_p alone. */
static uint32_t draw_of_p(const sl_sampling *s, const sl_peaks *p, double u, sl_arena *scratch) {
    const weights w = weigh(s, p, scratch);
    uint32_t *from = sl_arena_take(scratch, p->vocab, sizeof *from);
    buckets k = make_buckets(p, &w, scratch);
    SL_ASSERT(from);
    const double goal = w.all * (double)s->top_p;
    const uint32_t n = likely(s, p, &w, sl_draw_likely(s->top_p, w.all, p->vocab), from);
    if (n == 0) return p->best;
    fill_buckets(&k, from, n, least_of(p, from, n));
    double sum;
    const uint32_t cut = find_bucket(&k, goal, false, &sum);
    return draw_of_buckets(&k, cut, sum, goal, u);
}

/* Logits above which a float's rounding may be more than what `likely` leaves out blocks by. */
#define LIKELY_MOST 4096.0f

bool sl_draw_of_some(const sl_sampling *s, const sl_peaks *p, const sl_found *f, uint32_t vocab,
                     double u, sl_arena *scratch, uint32_t *out) {
    const size_t level = scratch->used;
    const float largest = p->logits[p->best];
    bool enough = false;
    if (!(f->mass_sum > 0) || !(fabsf(largest) < LIKELY_MOST)) return false;
    weights w = {.of = sl_arena_take(scratch, p->vocab, sizeof *w.of), .all = f->mass};
    uint32_t *from = sl_arena_take(scratch, p->vocab, sizeof *from);
    buckets k = make_buckets(p, &w, scratch);
    SL_ASSERT(w.of && from);
    for (uint32_t i = 0; i < p->vocab; i++)
        w.of[i] = sl_expf(sl_draw_power(p->logits[i], largest, s->temperature)) / f->mass_sum;
    drop_unlikely(s, p, w.of);
    const double goal = w.all * (double)s->top_p;
    const uint32_t n = likely(s, p, &w, sl_draw_likely(s->top_p, w.all, vocab), from);
    if (n > 0) {
        double sum;
        fill_buckets(&k, from, n, f->least);
        const uint32_t cut = find_bucket(&k, goal, false, &sum);
        /* It is reached, in a bucket whose tokens are all here, as are those of the ones before. */
        enough = sum + k.mass[cut] >= goal && k.mass[cut] > 0 && cut < bucket_of(&k, f->edge_logit);
        if (enough) *out = draw_of_buckets(&k, cut, sum, goal, u);
    }
    scratch->used = level;
    return enough;
}

sl_mass sl_draw_mass(const sl_sampling *s, double u) {
    return (sl_mass){.kind = s->top_p < 1 ? SL_MASS_TOP : SL_MASS_ANY,
                     .temperature = s->temperature,
                     .share = s->min_p,
                     .top_p = s->top_p,
                     .u = u};
}

uint32_t sl_draw(const sl_sampling *s, const sl_peaks *p, double u, sl_arena *scratch) {
    const size_t level = scratch->used;
    uint32_t id;
    if (s->top_k > 0 && s->top_k < p->vocab) {
        id = sl_draw_of_k(s, p, u, scratch);
    } else if (s->top_p < 1) {
        id = draw_of_p(s, p, u, scratch);
    } else {
        const weights w = weigh(s, p, scratch);
        id = draw_any(p, &w, u);
    }
    scratch->used = level;
    return id;
}
