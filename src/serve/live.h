/* What goes on, for who watches: GET /live. */
#ifndef SL_SERVE_LIVE_H
#define SL_SERVE_LIVE_H

#include "serve/server_int.h"

/* What one event of the feed is made of. */
typedef struct sl_live_sample {
    const char *model;
    const sl_model_spec *spec;
    sl_engine_stats stats;
    sl_engine_detail detail;
    sl_engine_view view;
    uint64_t cpu_us;             /* that this process has used */
    double predicted_dense_s[2]; /* see sl_server_opts */
} sl_live_sample;

/* As one server-sent event. Thread: any. */
void sl_live_json(const sl_live_sample *s, sl_jbuf *b);

#endif
