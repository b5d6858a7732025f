/* The head of a step: which of its rows go through it, in what order and in how many pieces. Rows
 * are computed in calls of at most SL_HEAD_ROWS. First come the parts whose requests want to know
 * all their rows, each in calls of its own; then the last rows of all others that draw a token
 * share calls, with those of guesses behind them. A call is some pieces that compute columns of its
 * logits, and then some in which rows draw their tokens; where other lanes could run meanwhile a
 * piece is small, since experts wait for them (sched/turns.h has who goes between two pieces).
 *
 * No I/O, clock, threads or memory. Thread: owner. */
#ifndef SL_SCHED_HEAD_H
#define SL_SCHED_HEAD_H

#include "sched/step.h"

#define SL_HEAD_ROWS   32u /* of a call: bounds the buffer of logits, not the bits */
#define SL_HEAD_PIECES 32u /* about as many compute a call's columns, where they are small */

typedef enum sl_head_kind {
    SL_HEAD_COLUMNS, /* logits of columns first .. first + n - 1 of the call's rows */
    SL_HEAD_TELL,    /* rows first .. first + n - 1 of the call draw, or say what they are to */
} sl_head_kind;

typedef struct sl_head_piece {
    sl_head_kind kind;
    uint32_t first, n;
} sl_head_piece;

typedef struct sl_head {
    uint32_t vocab;
    uint32_t columns; /* that a piece computes: all, where pieces are not small */
    bool open;
    /* where the next call begins: a part of the step, rows of the step before it, and how many rows
     * of it are through */
    size_t at;
    uint32_t before, taken;
    bool shares; /* parts that want all their rows are through */
    /* the running call */
    uint32_t rows;                                  /* 0: all is through */
    uint32_t row[SL_HEAD_ROWS], part[SL_HEAD_ROWS]; /* of the step */
    bool whole;                                     /* all rows are of one part, consecutive */
    uint32_t computed, told;                        /* columns, rows */
} sl_head;

/* Of worker `id`. A piece has some thirtieth of the columns; all of them where no other lane could
 * go in between, on a device that cannot wait that briefly, and on a GPU, whose calls queue up
 * anyway. vocab 0: what comes out of the model is not known,
 * a call is one piece of columns, as if it was. */
void sl_head_init(sl_head *h, const sl_plan *p, uint32_t id, uint32_t vocab);

/* The step's rows have been through the last block: they are in the cache (sl_step_advance), and
 * its head begins. */
void sl_head_open(sl_head *h, sl_step *s);
/* The piece to run now; false: the head is through. */
bool sl_head_next(const sl_head *h, sl_head_piece *out);
/* It ran. Requests of the step may have ended since. */
void sl_head_done(sl_head *h, const sl_step *s);
/* The step has ended or is given up. */
void sl_head_close(sl_head *h);

/* Pieces that compute the columns of a call. */
static inline uint32_t sl_head_column_pieces(const sl_head *h) {
    return (h->vocab - 1) / h->columns + 1;
}

#endif
