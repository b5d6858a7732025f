/* sluice worker: one worker that joins a coordinator elsewhere. */
#include "cmd.h"

#include "base/log.h"
#include "base/notify.h"
#include "base/progress.h"
#include "format/plan_lab.h"
#include "engine/worker/worker.h"
#include "stage/gang.h"

#include <stdio.h>
#include <string.h>

typedef struct reading {
    sl_progress line;
    bool wanted;
} reading;

static void begin_reading(reading *r) {
    sl_progress_end(&r->line);
    sl_progress_begin(&r->line, "weights in memory", SL_PROGRESS_BYTES, r->wanted);
}

/* A line while weights come from the disk. A second coordinator, if it joins one, begins anew. */
static void show_reading(void *ctx, uint64_t done, uint64_t total) {
    reading *r = ctx;
    if (total)
        sl_progress_set(&r->line, done, total);
    else
        begin_reading(r);
}

/* What a worker has started as a rank of its own. */
static int run_rank(const sl_options *o) {
    sl_err err = {0};
    sl_kernels_trust(); /* who started it has tried what it says */
    return sl_gang_run_rank((int)o->rank_fd, &err) == SL_OK ? 0 : sl_cmd_fail("rank", &err);
}

int cmd_worker(const sl_options *o) {
    sl_err err = {0};
    char secret[SL_SECRET_MAX + 1], who[32] = "worker", kernels[SL_KERNELS_SPEC_MAX];
    if (o->rank_fd) return run_rank(o);
    if (!o->join[0]) {
        sl_fail(&err, SL_ERR_ARG, "--join ADDRESS is missing");
        return sl_cmd_fail("worker", &err);
    }
    if (!o->parent) sl_notify_open(); /* else a manager hears of the server alone */
    sl_status st = sl_deploy_secret(o, secret, &err);
    if (o->parent) sl_kernels_trust(); /* who started it has tried what it says */
    if (st == SL_OK) st = sl_deploy_kernels(o, kernels, &err);
    sl_net_when sums = SL_NET_WHEN_OFF, encrypt = SL_NET_WHEN_AUTO;
    bool windows = false;
    uint64_t disk = 0;
    if (st == SL_OK) st = sl_net_when_parse("--checksums", o->checksums, &sums, &err);
    if (st == SL_OK) st = sl_net_when_parse("--encrypt", o->encrypt, &encrypt, &err);
    if (st == SL_OK) st = sl_deploy_disk_size(o, &disk, &err);
    if (st != SL_OK) return sl_cmd_fail("worker", &err);
    int32_t cpu = 0;
    if (o->pin[0]) {
        sl_plan_worker here = {0};
        sl_plan one = {.n_workers = 1, .worker = &here};
        if ((st = sl_plan_pin(o->pin, &one, &err)) != SL_OK) return sl_cmd_fail("worker", &err);
        cpu = one.pin_auto ? -1 : here.cpu + 1;
    }
    bool numa = false;
    if (o->numa[0] && (st = sl_numa_parse(o->numa, &numa, &err)) != SL_OK)
        return sl_cmd_fail("worker", &err);
    const char *transport = o->transport;
    if (strcmp(transport, "auto") == 0)
        transport = strncmp(o->join, "shm:", 4) == 0 ? "shm" : "tcp";
    if (sl_deploy_windows(o->windows, transport, &windows, &err) != SL_OK)
        return sl_cmd_fail("worker", &err);
    sl_net_setup_process(transport);
    if (o->worker_id != SL_NO_WORKER) snprintf(who, sizeof who, "worker %u", o->worker_id);
    sl_log_set_who(who);
    /* A worker that the coordinator has started shares its terminal: that one has a line of all. */
    reading weights = {.wanted = !o->json && !o->no_status && !o->parent};
    begin_reading(&weights);
    const sl_worker_opts w = {.coordinator = o->join,
                              .transport = transport,
                              .host = o->fabric_host,
                              .port = (uint16_t)o->fabric_port,
                              .advertise = o->advertise,
                              .rails = o->rails,
                              .secret = {(const uint8_t *)secret, strlen(secret)},
                              .model_folder = o->model,
                              .isa = kernels,
                              .threads = o->threads,
                              .wanted = o->worker_id,
                              .parent = (int32_t)o->parent,
                              .kv_fd = (int)o->kv_fd,
                              .kv_disk = o->kv_disk,
                              .kv_disk_bytes = disk,
                              .join_timeout_s = o->join_timeout,
                              .rejoin_s = o->rejoin,
                              .silence_limit_s = o->silence_limit,
                              .sums = sums,
                              .encrypt = encrypt,
                              .windows = windows,
                              .supervised = true,
                              .progress = show_reading,
                              .progress_ctx = &weights,
                              .cpu = cpu,
                              .numa = o->numa[0] ? (numa ? 1 : -1) : 0};
    sl_notify_ready("a worker, for the coordinator that --join names");
    st = sl_worker_run(&w, &err);
    if (o->json) {
        printf("{\"status\": \"%s\", \"message\": ", sl_status_text(st));
        sl_print_json_string(stdout, err.msg, st == SL_OK ? 0 : strlen(err.msg));
        printf("}\n");
    }
    return st == SL_OK ? 0 : sl_cmd_fail(who, &err);
}
