/* sluice slurm: prints a batch script in which the coordinator and the workers of a plan are the
 * tasks of one job. */
#include "cmd.h"
#include "job.h"

#include <stdio.h>
#include <string.h>

#define NOTICE_S     30 /* beyond --drain-timeout, from the signal to the time limit */
#define NOTICE_MAX_S 65535
#define FIRST_PORT   20000 /* of jobs that share a machine each has its own... */
#define PORTS        10000 /* ...by its number */

static sl_status check_words(const sl_options *o, sl_err *err) {
    sl_status st = sl_job_check_word("--name", o->job_name, "-_.", err);
    if (st == SL_OK) st = sl_job_check_word("--time", o->time_limit, ":-", err);
    if (st == SL_OK) st = sl_job_check_word("--partition", o->partition, "-_.,", err);
    if (st == SL_OK) st = sl_job_check_word("--account", o->account, "-_.", err);
    return st;
}

static void put_directive(const char *name, const char *value) {
    if (value[0]) printf("#SBATCH --%s=%s\n", name, value);
}

/* Of all tasks, as Slurm knows one size of them: the largest one's. */
static uint64_t memory_per_cpu(const sl_job *j) {
    uint64_t most = 0;
    for (uint32_t w = 0; w < j->plan.n_workers; w++) most = SL_MAX(most, sl_job_memory_mb(j, w));
    return (most + j->threads - 1) / j->threads;
}

static void put_about(const sl_job *j) {
    printf("#!/bin/bash\n# A coordinator (task 0) and %u worker%s; made by `sluice slurm`.\n",
           j->plan.n_workers, j->plan.n_workers == 1 ? "" : "s");
    for (uint32_t w = 0; w < j->plan.n_workers; w++)
        printf("#   task %u  worker %u, %s%s: weights %.1f MB, KV up to %.1f MB\n", w + 1, w,
               sl_job_role(&j->plan, w), j->plan.worker[w].spare ? " (a free place)" : "",
               (double)sl_job_weights(&j->plan, &j->spec, &j->info, w) / 1e6,
               (double)sl_job_kv(&j->plan, &j->spec, w) / 1e6);
}

static void put_directives(const sl_options *o, const sl_job *j) {
    put_directive("job-name", o->job_name);
    put_directive("partition", o->partition);
    put_directive("account", o->account);
    put_directive("time", o->time_limit);
    if (o->nodes) printf("#SBATCH --nodes=%u\n", o->nodes);
    printf("#SBATCH --ntasks=%u\n#SBATCH --cpus-per-task=%u\n#SBATCH --mem-per-cpu=%lluM\n",
           j->plan.n_workers + 1, j->threads, (unsigned long long)memory_per_cpu(j));
    printf("# So long before the time limit the tasks are told: running requests are answered.\n"
           "#SBATCH --signal=TERM@%u\n",
           SL_MIN(o->drain_timeout + NOTICE_S, NOTICE_MAX_S));
    puts("#SBATCH --open-mode=append");
}

/* Options of the server that are files and addresses, as variables: its own command line is the
 * task's affair. */
static void put_variable(const char *name, const char *value, const char *usual) {
    if (strcmp(value, usual) == 0) return;
    printf("export %s=", name);
    sl_job_put_word(value);
    putchar('\n');
}

static void put_number(const char *flag, uint32_t value, uint32_t usual) {
    if (value != usual) printf(" %s %u", flag, value);
}

static void put_script(const sl_options *o, const sl_job *j) {
    char port[16];
    snprintf(port, sizeof port, "%u", o->port);
    fputs("\nset -u\numask 077\nprogram=", stdout);
    sl_job_put_word(o->program[0] ? o->program : j->program);
    puts("\n# The secret of this job's fabric: in a folder for this user alone, on the first "
         "machine;\n# the tasks read it from srun, and it is on no command line and in no "
         "variable.\n"
         "folder=$(mktemp -d \"${TMPDIR:-/tmp}/sluice-$SLURM_JOB_ID.XXXXXX\") || exit 1\n"
         "trap 'rm -rf \"$folder\"' EXIT\n"
         "trap : TERM   # the tasks hear it, too, and end when requests are answered\n"
         "\"$program\" secret --out \"$folder/secret\" >/dev/null || exit 1");
    put_variable("SLUICE_HOST", o->host, "127.0.0.1");
    put_variable("SLUICE_PORT", port, "8000");
    put_variable("SLUICE_API_KEY_FILE", o->api_key_file, "");
    put_variable("SLUICE_TLS_CERT", o->tls_cert, "");
    put_variable("SLUICE_TLS_KEY", o->tls_key, "");
    put_variable("SLUICE_ADMIN_KEY_FILE", o->admin_key_file, "");
    put_variable("SLUICE_SERVED_MODEL_NAME", o->served_model_name, "");
    puts("# Any other option --some-name of serve or worker: export SLUICE_SOME_NAME=..\n\n"
         "srun --distribution=block --cpus-per-task=\"$SLURM_CPUS_PER_TASK\" --kill-on-bad-exit=1 "
         "\\");
    fputs("    \"$program\" task ", stdout);
    sl_job_put_word(j->model);
    fputs(" \\\n    --secret-file - --first \"$(hostname)\"", stdout);
    if (o->fabric_port)
        printf(" --fabric-port %u", o->fabric_port);
    else
        printf(" --fabric-port $((%u + SLURM_JOB_ID %% %u))", FIRST_PORT, PORTS);
    fputs(" \\\n   ", stdout);
    if (j->plan_path[0]) {
        fputs(" --plan ", stdout);
        sl_job_put_word(j->plan_path);
    }
    put_number("--attention", o->attention, 0);
    put_number("--experts", o->experts, 0);
    put_number("--max-attention", o->max_attention, 0);
    put_number("--max-experts", o->max_experts, 0);
    put_number("--join-timeout", o->join_timeout, 120);
    put_number("--drain-timeout", o->drain_timeout, 30);
    puts(" --threads \"$SLURM_CPUS_PER_TASK\" <\"$folder/secret\"");
}

int cmd_slurm(const sl_options *o) {
    sl_err err = {0};
    sl_job j = {0};
    sl_status st = check_words(o, &err);
    if (st == SL_OK) st = sl_job_open(o, &j, &err);
    if (st == SL_OK) {
        put_about(&j);
        put_directives(o, &j);
        put_script(o, &j);
    }
    sl_job_free(&j);
    return st == SL_OK ? 0 : sl_cmd_fail("slurm", &err);
}
