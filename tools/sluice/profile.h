/* Inside of `sluice profile`: the model to measure, kernels, links. Thread: main. */
#ifndef SL_TOOLS_PROFILE_H
#define SL_TOOLS_PROFILE_H

#include "base/options.h"
#include "base/progress.h"
#include "model/model.h"
#include "net/probe.h"
#include "net/transports.h"
#include "spec/profile.h"

typedef struct sl_profile_progress {
    sl_progress line;
    uint32_t done, total; /* points */
} sl_profile_progress;
void sl_profile_step(sl_profile_progress *p, const char *what);

/* Bytes that this machine could give to a new program; 0: unknown. */
uint64_t sl_profile_memory_available(void);

/* Bytes of weights that take turns: 1 GB, or six times the largest cache, which holds few of them
 * then. */
size_t sl_profile_weight_bytes(void);

/* The checkpoint's weights, or random ones for a folder without, a config.json or a preset.
 * SL_ERR_UNSUPPORTED: there are no kernels for such a model; SL_ERR_LIMIT: no room. */
sl_status sl_profile_model_open(const char *model, sl_model **out, bool *random, char *name,
                                size_t name_cap, sl_err *err) SL_MUST_CHECK;

/* What a profile calls the model at that path. */
void sl_profile_name(const char *model, char *out, size_t cap);

/* Times the stages of the model on ex and fits them into p->stage. Until deadline_ns; then what is
 * left is measured at fewer points. */
sl_status sl_profile_kernels(const sl_model *m, const sl_exec *ex, uint64_t deadline_ns,
                             sl_profile_progress *progress, sl_profile *p,
                             sl_err *err) SL_MUST_CHECK;
#define SL_PROFILE_KERNEL_POINTS 140u

/* The same of a device, and what rows take from its memory and back, appended to p->link. Weights
 * are the checkpoint's. SL_ERR_UNSUPPORTED: it has none. */
sl_status sl_profile_device(const sl_options *o, const char *kernels, sl_profile_progress *progress,
                            sl_profile *p, sl_err *err) SL_MUST_CHECK;
#define SL_PROFILE_DEVICE_POINTS 90u

/* Messages to 1, 2 and 4 peers over this transport, half of the way there and back; appends to
 * p->link. Forks: call before threads exist. */
sl_status sl_profile_links(const sl_transport_kind *kind, sl_profile_progress *progress,
                           sl_profile *p, sl_err *err) SL_MUST_CHECK;
#define SL_PROFILE_LINK_POINTS 27u
/* Between messages: who waits for one has done so for a while, as workers do. Both ends have to
 * agree: it is the think_ns of the echo. */
#define SL_PROFILE_THINK_NS   500000u
#define SL_PROFILE_LINK_SIZES 9u
/* Messages of all sizes to these n_peers at once; appended to p->link as transport `name`.
 * single_us [SL_PROFILE_LINK_SIZES]: of one message; filled by the group of one, which comes first.
 */
sl_status sl_profile_link_measure(sl_probe *n, sl_conn *const *peers, uint32_t n_peers,
                                  const char *name, double *single_us,
                                  sl_profile_progress *progress, sl_profile *p,
                                  sl_err *err) SL_MUST_CHECK;

/* --links-to: to 1, 2 and 4 of the listed machines; transports net-tcp and net-ucx. */
sl_status sl_profile_links_to(const sl_options *o, sl_profile_progress *progress, sl_profile *p,
                              sl_err *err) SL_MUST_CHECK;
/* --listen: sends back what one peer sends, until it goes. SL_ERR_TIMEOUT: nobody came. */
sl_status sl_profile_listen(const sl_options *o, sl_err *err) SL_MUST_CHECK;

/* A copy of n points into `out`, owned by the profile. */
sl_status sl_profile_keep(const sl_profile_point *point, uint32_t n, sl_profile_points *out,
                          sl_err *err) SL_MUST_CHECK;

#endif
