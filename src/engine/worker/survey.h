/* A worker on another machine tells what it costs, before it has a plan: it sends back what is to
 * show the link, and measures its stages. Thread: owner of the worker. */
#ifndef SL_ENGINE_WORKER_SURVEY_H
#define SL_ENGINE_WORKER_SURVEY_H

#include "engine/host/host.h"

/* ECHO from the coordinator. Takes the payload and leaves NULL. */
sl_status sl_worker_on_echo(sl_worker *w, const sl_wire_header *h, sl_buf **payload,
                            sl_err *err) SL_MUST_CHECK;
/* MEASURE. What cannot be measured is said, and no error; SL_ERR_PROTOCOL: it makes no sense. */
sl_status sl_worker_on_measure(sl_worker *w, sl_span payload, sl_err *err) SL_MUST_CHECK;
/* The coordinator will ask again at once: polling pays. */
bool sl_worker_is_surveyed(const sl_worker *w);

#endif
