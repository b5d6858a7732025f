/* Colours of what workers do, in pictures of traces and on the web page. Thread: any. */
#ifndef SL_TRACE_TRACE_PAINT_H
#define SL_TRACE_TRACE_PAINT_H

#include "base/trace.h"

typedef struct sl_trace_paint {
    const char *name; /* of the span; "" is the category's; "link": a message on its way */
    sl_trace_category category;
    uint32_t rgb;
} sl_trace_paint;

#define SL_TRACE_PAINTS 22u
extern const sl_trace_paint sl_trace_paints[SL_TRACE_PAINTS];

/* Which one a span of that name has, or one of its category; SL_TRACE_PAINTS: none. */
uint32_t sl_trace_paint_of(const char *name, const char *category);

/* The colour of a micro-batch's span where there are several: the first has the plain one, others
 * lighter and darker ones; then they repeat. */
#define SL_TRACE_SHADES 4u
uint32_t sl_trace_shaded(uint32_t rgb, uint32_t lane);

#endif
