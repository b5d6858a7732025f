/* sluice k8s: prints what Kubernetes needs to run a plan, a coordinator and its workers. The pods
 * are k8s_pod.c's. */
#include "cmd.h"
#include "k8s.h"

#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MAX_PLAN_BYTES (1u << 20) /* of a ConfigMap */
#define WAITING        "8"        /* requests that wait, when another worker, or group, pays */
#define CALM_S         300        /* before a pod goes again */

/* Names of Kubernetes: of a DNS label, with room for what is put behind them. */
static sl_status check_name(const char *option, const char *name, size_t most, sl_err *err) {
    const size_t n = strlen(name);
    static const char possible[] = "abcdefghijklmnopqrstuvwxyz0123456789-";
    if (n > 0 && n <= most && name[strspn(name, possible)] == '\0' && name[0] >= 'a' &&
        name[n - 1] != '-')
        return SL_OK;
    return sl_fail(err, SL_ERR_ARG,
                   "%s: '%.70s': small letters, digits and '-' are possible, a letter first, %zu "
                   "at most",
                   option, name, most);
}

static sl_status check_options(const sl_options *o, sl_err *err) {
    sl_status st = check_name("--name", o->job_name, 40, err);
    if (st == SL_OK && o->namespace[0]) st = check_name("--namespace", o->namespace, 63, err);
    if (st == SL_OK && o->claim[0]) st = check_name("--claim", o->claim, 63, err);
    if (st == SL_OK && o->secret_name[0]) st = check_name("--secret-name", o->secret_name, 63, err);
    if (st == SL_OK && o->tls_secret[0]) st = check_name("--tls-secret", o->tls_secret, 63, err);
    if (st == SL_OK) st = sl_job_check_word("--image", o->image, "-_./:@", err);
    if (st == SL_OK && o->max_groups > 1 && !o->lws)
        st = sl_fail(err, SL_ERR_ARG, "--max-groups %u: groups are a LeaderWorkerSet's (--lws)",
                     o->max_groups);
    return st;
}

/* ---- what is beside the pods ---- */

static sl_status put_plan(const sl_k8s *k, sl_err *err) {
    sl_manifest *m = k->out;
    char *text = sl_alloc(MAX_PLAN_BYTES + 1, 1);
    FILE *f = fopen(k->job->plan_path, "rbe");
    if (!text || !f) {
        sl_free(text);
        if (f) fclose(f);
        return sl_fail(err, text ? SL_ERR_IO : SL_ERR_NOMEM, "%s: %s", k->job->plan_path,
                       strerror(errno));
    }
    const size_t n = fread(text, 1, MAX_PLAN_BYTES + 1, f);
    fclose(f);
    sl_status st = n <= MAX_PLAN_BYTES ? SL_OK
                                       : sl_fail(err, SL_ERR_LIMIT, "%s: more than %u bytes",
                                                 k->job->plan_path, MAX_PLAN_BYTES);
    if (st == SL_OK) {
        sl_k8s_begin(k, "v1", "ConfigMap", "-plan", NULL);
        sl_manifest_open(m, "data");
        text[n] = '\0';
        sl_manifest_text(m, "plan.json", text);
        sl_manifest_close(m);
    }
    sl_free(text);
    return st;
}

/* Where clients ask, or of the fabric: one name for pods that are not ready yet, too. */
static void put_service(const sl_k8s *k, const char *suffix, const char *part, bool fabric) {
    sl_manifest *m = k->out;
    const char *port_name = fabric ? "fabric" : sl_k8s_scheme(k);
    sl_k8s_begin(k, "v1", "Service", suffix, part);
    sl_manifest_open(m, "spec");
    if (fabric) {
        sl_manifest_text(m, "clusterIP", "None");
        sl_manifest_flag(m, "publishNotReadyAddresses", true);
    }
    sl_manifest_open(m, "selector");
    sl_k8s_labels(k, part);
    sl_manifest_close(m);
    sl_manifest_open(m, "ports");
    sl_manifest_item(m);
    sl_manifest_text(m, "name", port_name);
    if (!fabric) sl_manifest_text(m, "appProtocol", port_name);
    sl_manifest_number(m, "port", fabric ? k->port : k->secure ? 443 : 80);
    sl_manifest_text(m, "targetPort", port_name);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_close(m);
}

/* One worker at a time is moved by who drains machines. */
static void put_budget(const sl_k8s *k) {
    sl_manifest *m = k->out;
    sl_k8s_begin(k, "policy/v1", "PodDisruptionBudget", "-workers", SL_K8S_WORKER);
    sl_manifest_open(m, "spec");
    sl_manifest_number(m, "maxUnavailable", 1);
    sl_k8s_selector(k, "selector", SL_K8S_WORKER);
    sl_manifest_close(m);
}

/* By how many requests wait: of the service, or of each group's coordinator. */
static void put_scaler(const sl_k8s *k, const char *suffix, uint32_t least, uint32_t most) {
    sl_manifest *m = k->out;
    char name[80];
    snprintf(name, sizeof name, "%s%s", k->name, suffix);
    sl_k8s_begin(k, "autoscaling/v2", "HorizontalPodAutoscaler", suffix, NULL);
    sl_manifest_open(m, "spec");
    sl_manifest_open(m, "scaleTargetRef");
    sl_manifest_text(m, "apiVersion", k->lws ? SL_K8S_LWS : "apps/v1");
    sl_manifest_text(m, "kind", k->lws ? "LeaderWorkerSet" : "StatefulSet");
    sl_manifest_text(m, "name", name);
    sl_manifest_close(m);
    sl_manifest_number(m, "minReplicas", least);
    sl_manifest_number(m, "maxReplicas", most);
    sl_manifest_open(m, "metrics");
    sl_manifest_item(m);
    sl_manifest_text(m, "type", k->lws ? "Pods" : "Object");
    sl_manifest_open(m, k->lws ? "pods" : "object");
    sl_manifest_open(m, "metric");
    sl_manifest_text(m, "name", "sluice_num_requests_waiting");
    sl_manifest_close(m);
    if (!k->lws) {
        sl_manifest_open(m, "describedObject");
        sl_manifest_text(m, "apiVersion", "v1");
        sl_manifest_text(m, "kind", "Service");
        sl_manifest_text(m, "name", k->name);
        sl_manifest_close(m);
    }
    sl_manifest_open(m, "target");
    sl_manifest_text(m, "type", k->lws ? "AverageValue" : "Value");
    sl_manifest_text(m, k->lws ? "averageValue" : "value", WAITING);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_open(m, "behavior");
    sl_manifest_open(m, "scaleDown");
    sl_manifest_number(m, "stabilizationWindowSeconds", CALM_S);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_close(m);
}

/* ---- the sets ---- */

static void put_coordinator(const sl_k8s *k) {
    sl_manifest *m = k->out;
    sl_k8s_begin(k, "apps/v1", "StatefulSet", "-coordinator", SL_K8S_COORDINATOR);
    sl_manifest_open(m, "spec");
    sl_manifest_number(m, "replicas", 1);
    sl_manifest_text(m, "serviceName", k->fabric);
    sl_k8s_selector(k, "selector", SL_K8S_COORDINATOR);
    sl_k8s_pod(k, "template", SL_K8S_COORDINATOR, 0);
    sl_manifest_close(m);
}

/* Workers from `first` to `end` have the same roles; their pods' ordinals are their ids. */
static void put_workers(const sl_k8s *k, uint32_t first, uint32_t end, uint32_t block) {
    sl_manifest *m = k->out;
    const sl_plan *p = &k->job->plan;
    uint32_t there = 0;
    char suffix[64], part[64];
    for (uint32_t w = first; w < end; w++) there += !p->worker[w].spare;
    snprintf(part, sizeof part, "%s", sl_job_role(p, first));
    snprintf(suffix, sizeof suffix, "-%s-%u", part, block);
    sl_k8s_begin(k, "apps/v1", "StatefulSet", suffix, SL_K8S_WORKER);
    sl_manifest_open(m, "spec");
    sl_manifest_number(m, "replicas", there);
    snprintf(part, sizeof part, "%s-workers", k->name);
    sl_manifest_text(m, "serviceName", part);
    sl_manifest_text(m, "podManagementPolicy", "Parallel");
    sl_manifest_open(m, "ordinals");
    sl_manifest_number(m, "start", first);
    sl_manifest_close(m);
    sl_manifest_open(m, "selector");
    sl_manifest_open(m, "matchLabels");
    sl_k8s_labels(k, SL_K8S_WORKER);
    sl_k8s_block(k, first);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_k8s_pod(k, "template", SL_K8S_WORKER, first + 1);
    sl_manifest_close(m);
    if (there && there < end - first) put_scaler(k, suffix, there, end - first);
}

static void put_sets(const sl_k8s *k) {
    const sl_plan *p = &k->job->plan;
    put_coordinator(k);
    for (uint32_t first = 0, end, block = 0; first < p->n_workers; first = end, block++) {
        for (end = first + 1; end < p->n_workers; end++)
            if (p->worker[end].roles != p->worker[first].roles) break;
        put_workers(k, first, end, block);
    }
}

static void put_group(const sl_k8s *k) {
    sl_manifest *m = k->out;
    sl_k8s_begin(k, SL_K8S_LWS, "LeaderWorkerSet", "", NULL);
    sl_manifest_open(m, "spec");
    sl_manifest_number(m, "replicas", 1);
    sl_manifest_open(m, "leaderWorkerTemplate");
    sl_manifest_number(m, "size", k->job->plan.n_workers + 1);
    sl_manifest_text(m, "restartPolicy", "None"); /* who dies is made good by itself */
    sl_k8s_pod(k, "leaderTemplate", SL_K8S_COORDINATOR, 0);
    sl_k8s_pod(k, "workerTemplate", SL_K8S_WORKER, 1);
    sl_manifest_close(m);
    sl_manifest_close(m);
    if (k->o->max_groups > 1) put_scaler(k, "", 1, k->o->max_groups);
}

static sl_status put_all(const sl_k8s *k, sl_err *err) {
    fprintf(k->out->out,
            "# A coordinator and %u worker%s on Kubernetes; made by `sluice k8s`. They want the "
            "secret %s\n# (keys: secret, api-key, admin-key) and the volume claim %s (the "
            "model).\n",
            k->job->plan.n_workers, k->job->plan.n_workers == 1 ? "" : "s", k->secret, k->claim);
    if (k->secure)
        fprintf(k->out->out,
                "# HTTPS is spoken with the certificate of the secret %s (tls.crt, tls.key%s).\n",
                k->o->tls_secret, k->lws ? "" : ", and ca.crt, by which workers know it");
    sl_status st = k->job->plan_path[0] ? put_plan(k, err) : SL_OK;
    if (st != SL_OK) return st;
    /* A LeaderWorkerSet makes a service of its own name, for those of its pods. */
    put_service(k, k->lws ? "-http" : "", SL_K8S_COORDINATOR, false);
    if (k->lws) {
        put_group(k);
    } else {
        put_service(k, "-fabric", SL_K8S_COORDINATOR, true);
        put_service(k, "-workers", SL_K8S_WORKER, true);
        put_sets(k);
    }
    put_budget(k);
    return SL_OK;
}

int cmd_k8s(const sl_options *o) {
    sl_err err = {0};
    sl_job j = {0};
    sl_manifest m = {.out = stdout};
    sl_k8s k = {.o = o, .job = &j, .out = &m, .name = o->job_name, .lws = o->lws};
    k.secure = o->tls_secret[0] != '\0';
    k.port = o->fabric_port ? o->fabric_port : SL_K8S_FABRIC_PORT;
    snprintf(k.secret, sizeof k.secret, "%s", o->secret_name[0] ? o->secret_name : o->job_name);
    snprintf(k.claim, sizeof k.claim, o->claim[0] ? "%s" : "%s-model",
             o->claim[0] ? o->claim : o->job_name);
    snprintf(k.fabric, sizeof k.fabric, "%s-fabric", o->job_name);
    sl_status st = check_options(o, &err);
    if (st == SL_OK) st = sl_job_open(o, &j, &err);
    if (st == SL_OK) st = put_all(&k, &err);
    sl_job_free(&j);
    return st == SL_OK ? 0 : sl_cmd_fail("k8s", &err);
}
