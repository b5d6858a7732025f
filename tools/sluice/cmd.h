/* The verbs of the command line, one cmd_*.c each. */
#ifndef SL_TOOLS_CMD_H
#define SL_TOOLS_CMD_H

#include "base/options.h"
#include "engine/measure/auto.h"
#include "engine/coord/engine.h"
#include "format/cached.h"
#include "kernel/choice.h"
#include "text/chat.h"
#include "net/transports.h"
#include "spec/cluster.h"
#include "spec/costs.h"
#include "spec/profile.h"
#include "spec/shape.h"
#include "tls/tls.h"

#include <jansson.h>
#include <sys/types.h>
#include <time.h>

/* Exit codes: 0 done, 1 failed, 2 usage, 3 infeasible. */
int sl_exit_code(sl_status st);
/* Prints "sluice VERB: message" to stderr and returns the exit code. */
int sl_cmd_fail(const char *verb, const sl_err *err);

int cmd_run(const sl_options *o);
int cmd_serve(const sl_options *o);
int cmd_worker(const sl_options *o);
int cmd_rank(const sl_options *o);
int cmd_logits(const sl_options *o);
int cmd_inspect(const sl_options *o);
int cmd_bench(const sl_options *o);
int cmd_trace(const sl_options *o);
int cmd_profile(const sl_options *o);
int cmd_simulate(const sl_options *o);
int cmd_solve(const sl_options *o);
int cmd_plan(const sl_options *o);
int cmd_fetch(const sl_options *o);
int cmd_convert(const sl_options *o);
int cmd_warm(const sl_options *o);
int cmd_secret(const sl_options *o);
int cmd_devices(const sl_options *o);
int cmd_drain(const sl_options *o);
int cmd_join(const sl_options *o);
int cmd_restart(const sl_options *o);
int cmd_task(const sl_options *o);
int cmd_slurm(const sl_options *o);
int cmd_k8s(const sl_options *o);
int cmd_manual(const sl_options *o);

/* ---- the table of verbs (main.c) ---- */

typedef struct sl_verb {
    const char *name;
    char letter; /* in config.def */
    int (*run)(const sl_options *o);
    const char *args, *summary, *example;
} sl_verb;

/* Verb i as the overview lists them, NULL past the end. */
const sl_verb *sl_verb_at(size_t i);
const sl_verb *sl_verb_find(const char *name); /* NULL: there is none */

/* ---- what stages and links cost, by data sheets, options and profiles (costs.c) ---- */

/* Of a model on a device, with ports of 200 Gbit/s and 10 us: estimates. */
sl_costs sl_data_sheet_costs(const sl_device_type *d, const sl_shape *s);
/* Whether --device asks for the times of a data sheet, as emulated:H100, and of which; NULL: it
 * does not. A file of that name goes first. */
const sl_device_type *sl_data_sheet_named(const char *device);
/* The emulated device with these times for a model (sl_shape_open). */
sl_status sl_data_sheet_device(const sl_device_type *d, const char *model, sl_device_spec *out,
                               sl_err *err) SL_MUST_CHECK;

/* "US:GBIT", as 50:25: latency and rate. Errors begin with the option and end with what else it
 * may be. */
sl_status sl_link_parse(const char *option, const char *others, const char *text, sl_link_cost *out,
                        sl_err *err) SL_MUST_CHECK;
/* The link within a machine, or between machines, of the first transport whose the profile has;
 * NULL: none. */
const sl_link_cost *sl_link_of_profile(const sl_profile *p, bool between, sl_link_cost *out);

/* ---- shared by the verbs that run an engine (deploy.c) ---- */

typedef struct sl_deployment {
    sl_engine_opts opts;
    sl_model_spec spec;
    sl_generation_spec gen;
    char program[4096];
    char secret[SL_SECRET_MAX + 1];
    char kernels[SL_KERNELS_SPEC_MAX]; /* what every local worker computes with */
    sl_auto_report chosen;             /* by --schedule auto */
    double dense_s[2];   /* what it says of a block without experts: see sl_server_opts */
    sl_adapt_opts adapt; /* with --adapt: opts points here */
    sl_cached *weights;  /* read by workers of this machine; NULL: nothing to tell */
} sl_deployment;

/* sl_engine_create, with a line about the weights that are read and the workers that are awaited.
 */
sl_status sl_deploy_start(const sl_options *o, const sl_deployment *d, sl_engine **out,
                          sl_err *err) SL_MUST_CHECK;

/* Workers on other machines are there: what --schedule auto chose for them is in *d, too. */
void sl_deploy_started(sl_engine *e, sl_deployment *d);

/* Turns options into a plan and engine options. `processes`: prefer worker processes over threads.
 * `requests` will run at once (0: as many as there is room for): --schedule auto, which measures,
 * chooses for them. */
sl_status sl_deploy_prepare(const sl_options *o, bool processes, uint32_t requests,
                            sl_deployment *d, sl_err *err) SL_MUST_CHECK;
/* "schedule": NAME, "lanes", "chunks", and why auto chose it: fields of a JSON object. */
void sl_deploy_print_schedule(const sl_deployment *d, FILE *out);
void sl_deploy_free(sl_deployment *d);
/* The plan alone, of a model that need not be one the engine runs. Free with sl_plan_free. */
sl_status sl_deploy_plan(const sl_options *o, sl_model_spec *m, sl_plan *out,
                         sl_err *err) SL_MUST_CHECK;
/* The kernels of --isa, or else those measured to be fastest here, for sl_kernels_select in this
 * process and those that it starts. */
sl_status sl_deploy_kernels(const sl_options *o, char out[SL_KERNELS_SPEC_MAX],
                            sl_err *err) SL_MUST_CHECK;
/* --windows, where messages go by that transport. SL_ERR_ARG, SL_ERR_UNSUPPORTED. */
sl_status sl_deploy_windows(const char *how, const char *transport, bool *out,
                            sl_err *err) SL_MUST_CHECK;
/* --kv-disk-size in bytes; 0: it is left out. */
sl_status sl_deploy_disk_size(const sl_options *o, uint64_t *out, sl_err *err) SL_MUST_CHECK;
/* The secret of --secret-file, which must be its owner's alone (-: standard input), or of
 * SLUICE_SECRET; empty when there is none (cmd_secret.c). */
sl_status sl_deploy_secret(const sl_options *o, char out[SL_SECRET_MAX + 1],
                           sl_err *err) SL_MUST_CHECK;
/* What a secret's file holds, which must be its owner's alone. */
sl_status sl_deploy_read_key(const char *path, char out[SL_SECRET_MAX + 1],
                             sl_err *err) SL_MUST_CHECK;
/* What a file of clients' keys holds, of 1 MiB at most, its owner's alone; free with sl_free. */
sl_status sl_deploy_read_keys(const char *path, char **out, sl_err *err) SL_MUST_CHECK;
/* The same of a file that need be nobody's alone. */
sl_status sl_deploy_read_text(const char *path, char **out, sl_err *err) SL_MUST_CHECK;
/* As sl_deploy_read_keys, or root's and readable to one group, as Kubernetes mounts a secret and
 * Debian's ssl-cert has keys. */
sl_status sl_deploy_read_tls_key(const char *path, char **out, sl_err *err) SL_MUST_CHECK;

/* What tells a file from the one that takes its place (tls_pair.c). */
typedef struct sl_file_look {
    dev_t device;
    ino_t inode;
    off_t bytes;
    struct timespec written, changed;
} sl_file_look;
typedef struct sl_tls_look {
    sl_file_look cert, key;
} sl_tls_look;

/* What --tls-cert and --tls-key name; NULL: neither is given. Logs where the certificate is not
 * valid now, or not for long. *look, also after a failure: the files as they were before they were
 * read. Free with sl_tls_pair_unref. */
sl_status sl_deploy_tls(const sl_options *o, sl_tls_look *look, sl_tls_pair **out,
                        sl_err *err) SL_MUST_CHECK;
/* Whether one of them has been replaced, written, or given other rights since. */
bool sl_deploy_tls_changed(const sl_options *o, const sl_tls_look *then);
/* The transport's name: as --transport says, or `processes` and remote workers want. */
const char *sl_deploy_transport(const sl_options *o, bool processes);
/* Nobody said how to schedule: no plan, no schedule, nothing that belongs to one. */
bool sl_deploy_schedule_is_open(const sl_options *o);
/* Sets what must be set before any thread, e.g. UCX's environment. */
void sl_deploy_setup_process(const sl_options *o);
/* The transport to other machines: --transport, auto: the first that reaches them. NULL: see
 * sl_transport_find. */
const sl_transport_kind *sl_deploy_transport_far(const sl_options *o, sl_err *err);

/* "3,17,41" -> ids; each checked against vocab. */
sl_status sl_ids_parse(const char *text, uint32_t vocab, sl_ids *out, sl_err *err) SL_MUST_CHECK;

/* The chat template of the options, or the model's own; as sl_chat_open_with. */
sl_status sl_deploy_chat(const sl_options *o, sl_chat **out, sl_err *err) SL_MUST_CHECK;

/* Sampling of the options, with the model's defaults where they are silent. */
sl_generation_spec sl_deploy_generation(const sl_options *o, sl_generation_spec model);
sl_sampling sl_deploy_sampling(const sl_options *o, const sl_generation_spec *gen);

/* ---- the line at the bottom of a terminal (status_line.c) ---- */

typedef struct sl_status_line sl_status_line;
/* NULL: --no-status, stdout or stderr is no terminal, or no memory. `e` must outlive it. */
sl_status_line *sl_status_line_start(const sl_options *o, sl_engine *e);
/* Erases it for good: other text follows. Thread: any; NULL-safe. */
void sl_status_line_hide(sl_status_line *s);
void sl_status_line_stop(sl_status_line *s); /* NULL-safe */

/* ---- one request, run to its end (generate.c) ---- */

/* When the tokens of a request were produced, in us of this process's monotonic clock. Not when
 * they came: a reader that was late finds many at once. Begin with submitted_us alone set. */
typedef struct sl_token_times {
    uint64_t submitted_us, first_us, last_us;
    uint64_t shift_us; /* from the worker's clock to ours */
    uint64_t n;
} sl_token_times;
/* Adds tokens of one event; returns when they were produced. */
uint64_t sl_token_times_add(sl_token_times *t, const sl_request_event *ev);
/* Tokens per second after the first; 0: there is no second, or no time between them. */
double sl_token_times_rate(const sl_token_times *t);

typedef struct sl_generation {
    sl_ids ids;        /* generated */
    uint64_t *made_us; /* of each, by sl_token_times */
    size_t made_cap;
    sl_token_times times;
    uint32_t n_found; /* tokens of the prompt whose rows were there */
    sl_finish finish;
    sl_status status;
    char message[256];
} sl_generation;
void sl_generation_free(sl_generation *g); /* what it holds */

typedef struct sl_generate_opts {
    const uint32_t *prompt;
    uint32_t n_prompt, max_tokens;
    sl_sampling sampling;
    bool ignore_eos;
    bool shares; /* see sl_request_params; with no salt */
    /* Called on the engine's thread for every token; may be NULL. */
    void (*on_token)(void *ctx, uint32_t id);
    void (*on_logits)(void *ctx, uint64_t first, uint32_t n, const float *logits);
    void *ctx;
} sl_generate_opts;

/* Ends the engine of a command that came to `st`: its own failure, or that of the trace. */
sl_status sl_generate_end(sl_engine *e, sl_status st, sl_err *err) SL_MUST_CHECK;

/* Runs n requests at once and waits for all; outs[i] must be zeroed, sl_generation_free them. */
sl_status sl_generate(sl_engine *e, const sl_generate_opts *opts, sl_generation *outs, size_t n,
                      sl_err *err) SL_MUST_CHECK;

/* logits --perplexity FILE (perplexity.c): prints the figure. */
sl_status sl_perplexity_run(const sl_options *o, const sl_deployment *d, sl_err *err) SL_MUST_CHECK;

/* run --chat without a prompt (cmd_chat.c): reads messages from stdin until its end or /exit. */
sl_status sl_chat_session(const sl_options *o, const sl_deployment *d, const sl_tokenizer *tok,
                          sl_err *err) SL_MUST_CHECK;

/* ---- counts of a model (account_print.c) ---- */

/* A line with the name and the hyper-parameters of a model that is only described. */
void sl_account_print_model(const sl_shape *s);
/* Parameters, work, bytes, by stage; with kv those of a cache of the shape's type. */
void sl_account_print(const sl_shape *s, bool kv);
json_t *sl_account_json(const sl_shape *s); /* new reference; NULL: out of memory */

/* ---- models by name (cmd_fetch.c) ---- */

/* Where the verb's model, or a worker's --model, is no file or folder but has the form ORG/MODEL:
 * brings what the cache lacks of it and puts its path in the option's place. */
sl_status sl_model_by_name(char verb, sl_options *o, sl_err *err) SL_MUST_CHECK;

/* ---- HTTP to a running server (http.c) ---- */

typedef struct sl_http_answer {
    unsigned status;
    char *body; /* NUL-terminated; sl_free */
} sl_http_answer;

/* Whom to ask, and as whom. */
typedef struct sl_http_server {
    const char *url; /* http://HOST[:PORT], https://HOST[:PORT] or unix:PATH */
    const char
        *cacert; /* file of certificates to trust; "": as SSL_CERT_FILE says, or the system */
    const char *key;
} sl_http_server;

/* One request at `path`; body NULL: GET, else POST. Ends within timeout_s. SL_ERR_ARG: no such URL,
 * or file of certificates; SL_ERR_UNSUPPORTED: https, without GnuTLS; SL_ERR_AUTH: the server's
 * certificate is not trusted; SL_ERR_IO, SL_ERR_TIMEOUT, SL_ERR_FORMAT: no HTTP answer;
 * SL_ERR_LIMIT: one that is too long. */
sl_status sl_http_ask(const sl_http_server *to, const char *path, const char *body,
                      double timeout_s, sl_http_answer *out, sl_err *err) SL_MUST_CHECK;

/* A JSON string literal with quotes; valid UTF-8 in, ASCII-safe escapes for control characters. */
void sl_print_json_string(FILE *out, const char *text, size_t len);

#endif
