/* A deployment as a launcher sees it: so many processes, each with so much memory and so many
 * cores. For the verbs that write files for launchers, and for inspect. */
#ifndef SL_TOOLS_JOB_H
#define SL_TOOLS_JOB_H

#include "base/options.h"
#include "model/model.h"
#include "spec/plan.h"

typedef struct sl_job {
    sl_model_spec spec;
    sl_model_info info; /* zeroed for a model without weights */
    sl_plan plan;
    char model[4096], plan_path[4096], program[4096]; /* absolute; plan_path "": there is none */
    uint32_t threads;                                 /* of each process */
} sl_job;

/* What MODEL, --plan or --attention and --experts, and --threads say, checked against the model.
 * Free with sl_job_free, also after an error. */
sl_status sl_job_open(const sl_options *o, sl_job *out, sl_err *err) SL_MUST_CHECK;
void sl_job_free(sl_job *j);

/* Experts that worker w hosts in some block. */
uint32_t sl_job_experts(const sl_plan *p, uint32_t w);
/* Bytes of weights that worker w maps. */
uint64_t sl_job_weights(const sl_plan *p, const sl_model_spec *m, const sl_model_info *i,
                        uint32_t w);
/* Bytes that its KV can grow to. */
uint64_t sl_job_kv(const sl_plan *p, const sl_model_spec *m, uint32_t w);
/* What a manager should set aside for it: weights, KV, and SL_JOB_EXTRA_MB for buffers. */
uint64_t sl_job_memory_mb(const sl_job *j, uint32_t w);
#define SL_JOB_EXTRA_MB 512u

/* "attention", "expert" or "both". */
const char *sl_job_role(const sl_plan *p, uint32_t w);

/* One word of a shell, quoted unless it is plain. */
void sl_job_put_word(const char *text);

/* SL_ERR_ARG unless the value of `option` has letters, digits and those of `more` alone: it becomes
 * a word of another program's file. */
sl_status sl_job_check_word(const char *option, const char *value, const char *more,
                            sl_err *err) SL_MUST_CHECK;

#endif
