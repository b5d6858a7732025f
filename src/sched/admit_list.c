/* Lists of requests in the books (sched/admit.h). */
#include "sched/admit.h"

sl_admit_list sl_admit_list_of(uint8_t which) {
    return (sl_admit_list){.first = SL_ADMIT_NONE, .last = SL_ADMIT_NONE, .which = which};
}

void sl_admit_insert(sl_admit_request *of, sl_admit_list *l, uint32_t request, uint32_t before) {
    sl_admit_link *link = &of[request].link[l->which];
    link->next = before;
    link->prev = before == SL_ADMIT_NONE ? l->last : of[before].link[l->which].prev;
    if (link->prev == SL_ADMIT_NONE)
        l->first = request;
    else
        of[link->prev].link[l->which].next = request;
    if (before == SL_ADMIT_NONE)
        l->last = request;
    else
        of[before].link[l->which].prev = request;
    l->n++;
}

void sl_admit_take_out(sl_admit_request *of, sl_admit_list *l, uint32_t request) {
    const sl_admit_link link = of[request].link[l->which];
    if (link.prev == SL_ADMIT_NONE)
        l->first = link.next;
    else
        of[link.prev].link[l->which].next = link.next;
    if (link.next == SL_ADMIT_NONE)
        l->last = link.prev;
    else
        of[link.next].link[l->which].prev = link.prev;
    l->n--;
}
