/* What a draw wants to know of a row's logits, and what a device that has them has found of that:
 * the first tokens in the order of draws (model/draw.h), single tokens, sums over all. Where that
 * is enough (sampler.h tells) the others stay where they are. C11 and C++17 at once: kernels write
 * what is found. */
#ifndef SL_MODEL_SEEK_H
#define SL_MODEL_SEEK_H

#include <stdbool.h>
#include <stdint.h>

#define SL_SEEK_LIST  128u /* tokens in order at most, a power of two, */
#define SL_SEEK_IDS   32u  /* and single ones */
#define SL_SEEK_MOST  (SL_SEEK_LIST + SL_SEEK_IDS)
#define SL_SEEK_VOCAB (1u << 19) /* sums are over at most so many */

/* Weights of all tokens, as model/draw.h has them: where a draw without top_k looks. */
typedef enum sl_mass_kind {
    SL_MASS_NONE,
    SL_MASS_ANY, /* which token u means */
    SL_MASS_TOP  /* what top_p needs to cut */
} sl_mass_kind;

typedef struct sl_mass {
    sl_mass_kind kind;
    float temperature;
    float share; /* of the likeliest token's weight: those below are none; 0: all count */
    float top_p;
    double u;
} sl_mass;

typedef struct sl_sought {
    bool all;        /* every logit, and nothing else */
    bool sum;        /* that of weights at temperature 1: log-probabilities */
    uint32_t n_list; /* first tokens, 1 to SL_SEEK_LIST and the vocabulary */
    uint32_t n_ids;
    uint32_t id[SL_SEEK_IDS]; /* [n_ids] further tokens, ascending */
    sl_mass mass;
} sl_sought;

typedef struct sl_found {
    bool all;                  /* every logit is there: nothing else here counts */
    uint32_t n;                /* tokens, */
    uint32_t id[SL_SEEK_MOST]; /* ascending, and their */
    float logit[SL_SEEK_MOST]; /* logits */
    uint32_t edge;             /* the last one of the list: all others come behind it, */
    float edge_logit;          /* or are among those here */
    float sum;                 /* of e^(logit - largest) over all tokens; 0: not sought */
    float mass_sum;            /* the same at the mass's temperature; 0: there is no mass */
    double mass;               /* SL_MASS_TOP: of all weights, */
    float least;               /* and the least logit that top_p may keep. */
    float pick_logit;          /* SL_MASS_ANY: the logit of */
    uint32_t pick;             /* what is drawn */
} sl_found;

#endif
