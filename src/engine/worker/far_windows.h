/* Windows between devices of workers (engine/host/far.h): offering them, and joining those of
 * peers. Thread: owner. */
#ifndef SL_ENGINE_FAR_WINDOWS_H
#define SL_ENGINE_FAR_WINDOWS_H

#include "engine/host/host.h"

/* Of a worker whose device has windows: offers one of so many slots for rows of up to so many bytes
 * to whoever is connected as worker `id` (its own id: to itself), once; joins what that one has
 * offered. */
void sl_far_windows_open(sl_worker *w, uint32_t id, uint32_t slots, size_t slot_bytes);
/* The peer offers one over this connection, perhaps before this worker has a plan. */
sl_status sl_far_windows_on_offer(sl_worker *w, const sl_wire_header *h, const sl_conn *from,
                                  sl_span offer, sl_err *err) SL_MUST_CHECK;

#endif
