/* What a side of a plan sees (format/plan_sides.h), in print. */
#include "format/plan_json.h"
#include "format/plan_sides.h"

char *sl_plan_print_view(const sl_plan *p, bool prefill) {
    sl_plan view;
    sl_err err;
    if (!sl_plan_has_prefill(p)) return sl_plan_print(p);
    if (sl_plan_view(p, prefill, &view, &err) != SL_OK) return NULL;
    char *text = sl_plan_print(&view);
    sl_plan_free(&view);
    return text;
}
