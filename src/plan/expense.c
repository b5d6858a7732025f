/* A line through reports of workers: calls, rows, time. */
#include "plan/expense.h"

#define DECAY 0.98  /* of what is there, with each report */
#define APART 0.001 /* calls and rows that are nearer to one line than this are on one */

void sl_expense_add(sl_expense *x, double calls, double rows, double us) {
    if (!(us > 0) || !(rows > 0)) return;
    x->cc = DECAY * x->cc + calls * calls / us;
    x->cr = DECAY * x->cr + calls * rows / us;
    x->rr = DECAY * x->rr + rows * rows / us;
    x->cu = DECAY * x->cu + calls;
    x->ru = DECAY * x->ru + rows;
}

bool sl_expense_of(const sl_expense *x, sl_stage_cost *out) {
    const double det = x->cc * x->rr - x->cr * x->cr;
    double fixed = 0, row = 0;
    if (!(x->rr > 0)) return false;
    if (det > APART * x->cc * x->rr) {
        fixed = (x->cu * x->rr - x->ru * x->cr) / det;
        row = (x->ru * x->cc - x->cu * x->cr) / det;
    }
    if (row < 0) fixed = x->cu / x->cc, row = 0;
    if (fixed < 0 || (fixed == 0 && row == 0)) fixed = 0, row = x->ru / x->rr;
    *out = (sl_stage_cost){.fixed_us = fixed, .row_us = row};
    return true;
}
