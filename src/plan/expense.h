/* What experts cost at workers of one kind, learnt from what they report while they serve: in a
 * time of `us` they had so many calls of an expert (one that is asked for reads its weights once,
 * however many rows it gets) and so many rows,
 *
 *   us = fixed calls + row rows
 *
 * by least squares over the reports, each weighted by its time, later ones more than earlier ones.
 * Neither is below zero. Where rows a call hardly differ the two cannot be told apart: then rows
 * count alone.
 *
 * Pure; nothing allocates. Thread: any. */
#ifndef SL_PLAN_EXPENSE_H
#define SL_PLAN_EXPENSE_H

#include "spec/device.h"

/* Zeroed: nothing was reported. */
typedef struct sl_expense {
    double cc, cr, rr, cu, ru; /* sums of products of calls, rows and us, over us */
} sl_expense;

void sl_expense_add(sl_expense *x, double calls, double rows, double us);
/* False: nothing is known, *out stays. */
bool sl_expense_of(const sl_expense *x, sl_stage_cost *out);

#endif
