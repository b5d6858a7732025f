/* Gangs: several ranks that compute as one worker (docs/tensor-parallel.md). How what they share is
 * cut, and how a sum over k is cut into segments so that no number of ranks moves an addition.
 * Pure. Thread: any. */
#ifndef SL_SPEC_GANG_H
#define SL_SPEC_GANG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define SL_SEGMENTS  8u          /* of a sum over k; a power of two */
#define SL_MAX_RANKS SL_SEGMENTS /* of a gang, a power of two: a rank owns whole subtrees */

/* What the ranks beside a worker's first are. */
typedef enum sl_rank_kind {
    SL_RANKS_THREADS,   /* of its process */
    SL_RANKS_PROCESSES, /* of the same program, on its machine */
    SL_RANKS_MACHINES,  /* of the same program, wherever it answers (sluice rank) */
    SL_RANK_KIND_COUNT
} sl_rank_kind;

/* A place in a gang; of 0 or 1: there is no gang. */
typedef struct sl_rank {
    uint32_t index, of;
} sl_rank;

static inline bool sl_rank_alone(sl_rank r) {
    return r.of <= 1;
}

static inline bool sl_ranks_can_be(uint32_t n) {
    return n > 0 && n <= SL_MAX_RANKS && (n & (n - 1)) == 0;
}

/* The first of `units` in part `part` of `parts`, of which unit u lies in part floor(parts u /
 * units). Parts may be unequal or empty; those of a divisor of SL_SEGMENTS are whole segments. */
static inline uint32_t sl_part_begin(uint32_t units, uint32_t part, uint32_t parts) {
    return (uint32_t)(((uint64_t)units * part + parts - 1) / parts);
}

/* A message of rows between two gangs may go in stripes, one by each rank's connection (schedule
 * hybrid): where stripe i of n begins in `bytes`; that of n is where they end. */
static inline size_t sl_stripe_begin(size_t bytes, uint32_t n, uint32_t i) {
    return i == n ? bytes : bytes / n * i / 64 * 64;
}
/* Before the first of them, behind its header: what the message is. */
#define SL_STRIPED_HEAD 16u

/* What a rank holds of `units`. */
typedef struct sl_extent {
    uint32_t first, n;
} sl_extent;

static inline bool sl_extent_has(sl_extent e, uint32_t i) {
    return i >= e.first && i - e.first < e.n;
}

static inline sl_extent sl_rank_range(sl_rank r, uint32_t units) {
    if (sl_rank_alone(r)) return (sl_extent){0, units};
    uint32_t first = sl_part_begin(units, r.index, r.of);
    return (sl_extent){first, sl_part_begin(units, r.index + 1, r.of) - first};
}

/* Of `count` columns of the logits from `first` on, those that a rank computes: as large a part of
 * what each has. */
static inline sl_extent sl_rank_piece(sl_rank r, uint32_t vocab, uint32_t first, uint32_t count) {
    const sl_extent mine = sl_rank_range(r, vocab);
    const uint64_t begin = (uint64_t)mine.n * first / vocab;
    const uint64_t end = (uint64_t)mine.n * (first + count) / vocab;
    return (sl_extent){mine.first + (uint32_t)begin, (uint32_t)(end - begin)};
}

/* A sum over k as n parts, a power of two: part i are the values from end[i - 1] (or 0) to end[i].
 * Each is a sum by itself, +0 where it is empty; they meet in a binary tree, neighbours first. */
typedef struct sl_segments {
    uint32_t n, end[SL_SEGMENTS];
} sl_segments;

/* Those of rank r over its own values; a unit has so many. */
static inline sl_segments sl_rank_segments(sl_rank r, uint32_t units, uint32_t values) {
    uint32_t ranks = sl_rank_alone(r) ? 1 : r.of, index = sl_rank_alone(r) ? 0 : r.index;
    sl_segments s = {.n = SL_SEGMENTS / ranks};
    uint32_t at = index * s.n, first = sl_part_begin(units, at, SL_SEGMENTS);
    for (uint32_t i = 0; i < s.n; i++)
        s.end[i] = (sl_part_begin(units, at + i + 1, SL_SEGMENTS) - first) * values;
    return s;
}

/* Where part i begins. */
static inline uint32_t sl_segment_begin(const sl_segments *s, uint32_t i) {
    return i ? s->end[i - 1] : 0;
}

#endif
