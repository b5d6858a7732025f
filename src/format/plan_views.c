/* What either side of a plan sees (format/plan_sides.h), in print. */
#include "format/plan_json.h"
#include "format/plan_sides.h"

void sl_plan_print_views(const sl_plan *p, char *text[2]) {
    const int sides = sl_plan_has_prefill(p) ? 2 : 1;
    text[0] = text[1] = NULL;
    for (int i = 0; i < sides; i++) {
        sl_plan view;
        sl_err err;
        if (sl_plan_view(p, i, &view, &err) != SL_OK) continue;
        text[i] = sl_plan_print(&view);
        sl_plan_free(&view);
    }
}
