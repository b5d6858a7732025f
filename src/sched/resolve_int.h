/* What the parts of the machine share: meters (resolve_meter.c), and what resolve.c asks of EPS's
 * part (resolve_groups.c). Of these three alone. Thread: owner. */
#ifndef SL_SCHED_RESOLVE_INT_H
#define SL_SCHED_RESOLVE_INT_H

#include "sched/resolve.h"

/* ---- resolve_meter.c ---- */

uint32_t sl_resolve_class_of(double rows);
/* A task of so many rows took so long: of means, and where what is longer has waited. */
void sl_resolve_learn(const sl_resolve *r, sl_resolve_meter *m, double rows, double us);
void sl_resolve_learn_least(const sl_resolve *r, sl_resolve_meter *m, double rows, double us);
uint32_t sl_resolve_count(const sl_resolve_meter *m);
sl_findep_line sl_resolve_line(const sl_resolve_meter *m);
/* Rows that an expert gets when all attention workers send so many pairs. */
double sl_resolve_each(const sl_resolve *r, double pairs);
/* Tasks of the busiest expert worker over the mean: others wait for it once a layer. */
double sl_resolve_skew(const sl_resolve *r);

/* ---- resolve_groups.c: EPS ---- */

/* A message of a group has left, and a group has come back whole. */
void sl_resolve_group_sent(sl_resolve *r, const sl_resolve_flight *f, uint32_t expert,
                           uint32_t pairs, uint32_t rows, uint64_t now_us);
void sl_resolve_group_answered(sl_resolve *r, const sl_resolve_flight *f, uint64_t now_us);
/* Nothing of the layer is to come: if all is here, it is learnt from. */
void sl_resolve_close_layer(sl_resolve *r);

/* Whether one group and most of them ran often enough. */
bool sl_resolve_knows_groups(const sl_resolve *r);
/* The fastest number of groups for so many rows of a step, and what a layer takes then. */
uint32_t sl_resolve_groups(const sl_resolve *r, double rows, double *us);
double sl_resolve_groups_us(const sl_resolve *r, double rows, uint32_t groups);

/* A step of a round is formed, which has such a cut and would go into *groups: into those that all
 * have, or try. */
void sl_resolve_agree(sl_resolve *r, const sl_resolve_cut *c, uint64_t round, uint32_t *groups,
                      sl_chunking *chunking);

#endif
