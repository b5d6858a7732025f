/* Command-line and environment options, all from config.def. A flag --max-num-seqs is also the
 * variable SLUICE_MAX_NUM_SEQS; the command line wins. Thread: main, before any other. */
#ifndef SL_BASE_OPTIONS_H
#define SL_BASE_OPTIONS_H

#include "base/status.h"

#include <stdbool.h>
#include <stdio.h>

typedef struct sl_options {
#define SL_TYPE_STR                                                 const char *
#define SL_TYPE_U32                                                 uint32_t
#define SL_TYPE_F64                                                 double
#define SL_TYPE_FLAG                                                bool
#define SL_OPT(type, field, flag, def, min, max, meta, verbs, help) SL_TYPE_##type field;
#include "base/config.def"
#undef SL_OPT
#undef SL_TYPE_STR
#undef SL_TYPE_U32
#undef SL_TYPE_F64
#undef SL_TYPE_FLAG
    /* what was not an option: the model folder first */
    const char *arg[4];
    uint32_t n_args;
} sl_options;

/* Fills `out` with defaults, then the environment, then argv[0..argc-1] (after the verb). Strings
 * are borrowed from argv and the environment. Errors (SL_ERR_ARG) name option, value and range. */
sl_status sl_options_parse(char verb, int argc, char **argv, sl_options *out,
                           sl_err *err) SL_MUST_CHECK;

/* The options of a verb ('*': all), one per line with default, range and variable. */
void sl_options_print(char verb, FILE *out);

/* One option, for manuals and completions. */
typedef struct sl_option_about {
    const char *group, *flag;
    char shorthand;    /* "-p": 'p'; 0: none */
    const char *meta;  /* of its value; "": it takes none */
    const char *verbs; /* letters */
    const char *help;
    char range[64];    /* " [default; least..most]", or "" */
    char variable[64]; /* of the environment */
} sl_option_about;

/* Option i in the table's order; false past the end. */
bool sl_option_at(size_t i, sl_option_about *out);

/* Variables of the environment that are no options, as variables.def has them. */
typedef enum sl_variable {
#define SL_VARIABLE(id, name, verbs, help) SL_##id,
#include "base/variables.def"
#undef SL_VARIABLE
    SL_VARIABLE_COUNT
} sl_variable;

/* One of them, for manuals. */
typedef struct sl_variable_about {
    const char *name, *verbs, *help; /* verbs: letters */
} sl_variable_about;
sl_variable_about sl_variable_at(sl_variable v);

/* The fabric's SLUICE_SECRET. NULL: unset. */
const char *sl_options_secret(void);
/* "sluice" in $XDG_CACHE_HOME or $HOME/.cache; false: neither is an absolute path that fits. */
bool sl_options_cache_folder(char *out, size_t cap);
/* A variable of the model hub's own tools, HF_*, which are obeyed as they do it, or SSL_CERT_FILE.
 * NULL: unset, or empty. */
const char *sl_options_hub(sl_variable v);
/* A variable by which a launcher (srun, mpirun, Kubernetes) tells a process who it is. NULL: unset,
 * or empty. */
const char *sl_options_launcher(sl_variable v);
/* HOME; NULL: it is no absolute path. */
const char *sl_options_home(void);
/* "huggingface" in $XDG_CACHE_HOME or $HOME/.cache, as sl_options_cache_folder. */
bool sl_options_hub_home(char *out, size_t cap);
/* NOTIFY_SOCKET: where a service manager listens (sd_notify(3)). NULL: unset. */
const char *sl_options_notify_socket(void);
/* WATCHDOG_USEC: after so long without a word of this process the manager ends it; 0: never. */
uint64_t sl_options_watchdog_us(void);
/* SLUICE_CUDA_DRIVER: the library of NVIDIA's driver. NULL: unset, or empty. */
const char *sl_options_cuda_driver(void);
/* SLUICE_GATHER: when ranks on machines gather what came. NULL: unset, or empty. */
const char *sl_options_gather(void);
/* SLUICE_CUDA_FORMS: which forms of kernels a GPU takes. NULL: unset, or empty. */
const char *sl_options_cuda_forms(void);
/* SLUICE_CUDA_GRAPHS: whether a GPU runs steps as graphs. NULL: unset, or empty. */
const char *sl_options_cuda_graphs(void);
/* SLUICE_CUDA_ROWS: whether rows between GPUs stay there. NULL: unset, or empty. */
const char *sl_options_cuda_rows(void);
/* TERM: which terminal this is. NULL: unset. */
const char *sl_options_terminal(void);

#endif
