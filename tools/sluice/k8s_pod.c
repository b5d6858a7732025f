/* Pods of Kubernetes: what runs in them, with which rights, keys, probes and resources. */
#include "k8s.h"

#include "cmd.h"

#include <stdio.h>
#include <string.h>

#define USER         10001u        /* of packaging/Dockerfile */
#define KEYS         "/run/sluice" /* memory: keys with the mode that the program wants */
#define GIVEN        "/secrets"    /* the same as Kubernetes mounts them */
#define CERTS        "/certs"      /* of HTTPS, as they are mounted, so that a renewal shows */
#define MODEL        "/srv/model"
#define PROBE_S      5
#define STOP_EXTRA_S 15 /* beyond --drain-timeout */

void sl_k8s_labels(const sl_k8s *k, const char *part) {
    sl_manifest_text(k->out, "app.kubernetes.io/name", "sluice");
    sl_manifest_text(k->out, "app.kubernetes.io/instance", k->name);
    if (part) sl_manifest_text(k->out, "app.kubernetes.io/component", part);
}

void sl_k8s_block(const sl_k8s *k, uint32_t first) {
    char text[16];
    snprintf(text, sizeof text, "%u", first);
    sl_manifest_text(k->out, SL_K8S_BLOCK, text);
}

void sl_k8s_selector(const sl_k8s *k, const char *key, const char *part) {
    sl_manifest_open(k->out, key);
    sl_manifest_open(k->out, "matchLabels");
    sl_k8s_labels(k, part);
    sl_manifest_close(k->out);
    sl_manifest_close(k->out);
}

void sl_k8s_begin(const sl_k8s *k, const char *version, const char *kind, const char *suffix,
                  const char *part) {
    sl_manifest *m = k->out;
    char name[128];
    snprintf(name, sizeof name, "%s%s", k->name, suffix);
    sl_manifest_document(m);
    sl_manifest_text(m, "apiVersion", version);
    sl_manifest_text(m, "kind", kind);
    sl_manifest_open(m, "metadata");
    sl_manifest_text(m, "name", name);
    if (k->o->namespace[0]) sl_manifest_text(m, "namespace", k->o->namespace);
    sl_manifest_open(m, "labels");
    sl_k8s_labels(k, part);
    sl_manifest_close(m);
    sl_manifest_close(m);
}

static void put_word_number(sl_manifest *m, const char *flag, uint32_t value, uint32_t usual) {
    char text[16];
    if (value == usual) return;
    snprintf(text, sizeof text, "%u", value);
    sl_manifest_word(m, flag);
    sl_manifest_word(m, text);
}

/* ---- commands ---- */

static void put_coordinator_command(const sl_k8s *k) {
    static const char *const words[] = {"sluice",           "serve",          MODEL,
                                        "--remote",         "--host",         "0.0.0.0",
                                        "--fabric-host",    "0.0.0.0",        "--secret-file",
                                        KEYS "/secret",     "--api-key-file", KEYS "/api-key",
                                        "--admin-key-file", KEYS "/admin-key"};
    const sl_options *o = k->o;
    sl_manifest *m = k->out;
    sl_manifest_open(m, "command");
    for (size_t i = 0; i < SL_LEN(words); i++) sl_manifest_word(m, words[i]);
    if (k->secure) {
        sl_manifest_word(m, "--tls-cert");
        sl_manifest_word(m, CERTS "/tls.crt");
        sl_manifest_word(m, "--tls-key");
        sl_manifest_word(m, CERTS "/tls.key");
    }
    put_word_number(m, "--port", SL_K8S_HTTP_PORT, 0);
    put_word_number(m, "--fabric-port", k->port, 0);
    if (k->job->plan_path[0]) {
        sl_manifest_word(m, "--plan");
        sl_manifest_word(m, "/etc/sluice/plan.json");
    }
    put_word_number(m, "--attention", o->attention, 0);
    put_word_number(m, "--experts", o->experts, 0);
    put_word_number(m, "--max-attention", o->max_attention, 0);
    put_word_number(m, "--max-experts", o->max_experts, 0);
    put_word_number(m, "--threads", k->job->threads, 0);
    put_word_number(m, "--join-timeout", o->join_timeout, 120);
    put_word_number(m, "--drain-timeout", o->drain_timeout, 30);
    sl_manifest_close(m);
}

/* Options of a verb that asks the server. */
static void server_words(const sl_k8s *k, char out[256]) {
    snprintf(out, 256, "--url %s://%s%s --admin-key-file " KEYS "/admin-key", sl_k8s_scheme(k),
             k->name, k->secure ? " --cacert " CERTS "/ca.crt" : "");
}

/* A worker that left for a drained machine, or has a free place, asks to be let in; when the
 * coordinator does not serve yet, nobody has to. */
static void put_worker_command(const sl_k8s *k) {
    sl_manifest *m = k->out;
    char script[768], server[256];
    sl_manifest_open(m, "command");
    if (k->lws) {
        sl_manifest_word(m, "sluice");
        sl_manifest_word(m, "task");
        sl_manifest_word(m, MODEL);
        sl_manifest_word(m, "--secret-file");
        sl_manifest_word(m, KEYS "/secret");
        put_word_number(m, "--fabric-port", k->port, 0);
        put_word_number(m, "--threads", k->job->threads, 0);
        put_word_number(m, "--drain-timeout", k->o->drain_timeout, 30);
    } else {
        server_words(k, server);
        snprintf(script, sizeof script,
                 "sluice join \"$SLUICE_WORKER_ID\" %s --timeout 1; exec sluice worker --join "
                 "%s:%u --secret-file " KEYS "/secret --model " MODEL " --threads %u",
                 server, k->fabric, k->port, k->job->threads);
        sl_manifest_word(m, "/bin/sh");
        sl_manifest_word(m, "-c");
        sl_manifest_word(m, script);
    }
    sl_manifest_close(m);
}

/* A pod that has to go leaves its place first: no token is lost. */
static void put_leaving(const sl_k8s *k) {
    sl_manifest *m = k->out;
    char script[512], server[256];
    server_words(k, server);
    snprintf(script, sizeof script, "sluice drain \"$SLUICE_WORKER_ID\" %s --grace %u --timeout %u",
             server, k->o->drain_timeout, k->o->drain_timeout + STOP_EXTRA_S);
    sl_manifest_open(m, "lifecycle");
    sl_manifest_open(m, "preStop");
    sl_manifest_open(m, "exec");
    sl_manifest_open(m, "command");
    sl_manifest_word(m, "/bin/sh");
    sl_manifest_word(m, "-c");
    sl_manifest_word(m, script);
    for (int i = 0; i < 4; i++) sl_manifest_close(m);
}

/* ---- the parts of a pod ---- */

static void put_variable(sl_manifest *m, const char *name, const char *value, const char *field) {
    sl_manifest_item(m);
    sl_manifest_text(m, "name", name);
    if (value) sl_manifest_text(m, "value", value);
    if (field) {
        sl_manifest_open(m, "valueFrom");
        sl_manifest_open(m, "fieldRef");
        sl_manifest_text(m, "fieldPath", field);
        sl_manifest_close(m);
        sl_manifest_close(m);
    }
    sl_manifest_close(m);
}

static void put_environment(const sl_k8s *k, uint32_t rank) {
    sl_manifest *m = k->out;
    sl_manifest_open(m, "env");
    put_variable(m, "SLUICE_KERNEL_CACHE", KEYS, NULL);
    if (rank && !k->lws) {
        put_variable(m, "SLUICE_WORKER_ID", NULL,
                     "metadata.labels['apps.kubernetes.io/pod-index']");
        put_variable(m, "SLUICE_FABRIC_HOST", NULL, "status.podIP");
    }
    sl_manifest_close(m);
}

static void put_probe(const sl_k8s *k, const char *key, const char *path, uint32_t failures) {
    sl_manifest *m = k->out;
    sl_manifest_open(m, key);
    sl_manifest_open(m, "httpGet");
    sl_manifest_text(m, "path", path);
    sl_manifest_text(m, "port", sl_k8s_scheme(k));
    if (k->secure) sl_manifest_text(m, "scheme", "HTTPS");
    sl_manifest_close(m);
    sl_manifest_number(m, "periodSeconds", PROBE_S);
    sl_manifest_number(m, "timeoutSeconds", PROBE_S);
    sl_manifest_number(m, "failureThreshold", failures);
    sl_manifest_close(m);
}

/* The server listens when all workers are there. */
static void put_probes(const sl_k8s *k) {
    put_probe(k, "startupProbe", "/livez", k->o->join_timeout / PROBE_S + 6);
    put_probe(k, "livenessProbe", "/livez", 6);
    put_probe(k, "readinessProbe", "/readyz", 1);
}

static void put_port(sl_manifest *m, const char *name, uint32_t port) {
    sl_manifest_item(m);
    sl_manifest_text(m, "name", name);
    sl_manifest_number(m, "containerPort", port);
    sl_manifest_close(m);
}

/* Weights are mapped files, which the kernel drops when memory is short: a request, no limit. */
static void put_resources(const sl_k8s *k, uint32_t rank) {
    sl_manifest *m = k->out;
    const sl_plan *p = &k->job->plan;
    uint64_t mb = rank ? 0 : 2 * SL_JOB_EXTRA_MB;
    char text[32];
    for (uint32_t w = 0; rank && w < p->n_workers; w++)
        if (k->lws || p->worker[w].roles == p->worker[rank - 1].roles)
            mb = SL_MAX(mb, sl_job_memory_mb(k->job, w));
    sl_manifest_open(m, "resources");
    sl_manifest_open(m, "requests");
    snprintf(text, sizeof text, "%u", rank ? k->job->threads : 1);
    sl_manifest_text(m, "cpu", text);
    snprintf(text, sizeof text, "%lluM", (unsigned long long)mb);
    sl_manifest_text(m, "memory", text);
    sl_manifest_close(m);
    sl_manifest_close(m);
}

static void put_rights(sl_manifest *m) {
    sl_manifest_open(m, "securityContext");
    sl_manifest_flag(m, "allowPrivilegeEscalation", false);
    sl_manifest_flag(m, "readOnlyRootFilesystem", true);
    sl_manifest_open(m, "capabilities");
    sl_manifest_open(m, "drop");
    sl_manifest_word(m, "ALL");
    for (int i = 0; i < 3; i++) sl_manifest_close(m);
}

static void put_mount(sl_manifest *m, const char *name, const char *path, bool read_only) {
    sl_manifest_item(m);
    sl_manifest_text(m, "name", name);
    sl_manifest_text(m, "mountPath", path);
    if (read_only) sl_manifest_flag(m, "readOnly", true);
    sl_manifest_close(m);
}

/* Keys of a Secret are its group's, too, once another user than root reads them; the program wants
 * them for its user alone. */
static void put_keys(const sl_k8s *k) {
    sl_manifest *m = k->out;
    sl_manifest_open(m, "initContainers");
    sl_manifest_item(m);
    sl_manifest_text(m, "name", "keys");
    sl_manifest_text(m, "image", k->o->image);
    sl_manifest_open(m, "command");
    sl_manifest_word(m, "/bin/sh");
    sl_manifest_word(m, "-c");
    sl_manifest_word(m, "umask 077 && cp -f " GIVEN "/* " KEYS "/");
    sl_manifest_close(m);
    put_rights(m);
    sl_manifest_open(m, "volumeMounts");
    put_mount(m, "given", GIVEN, true);
    put_mount(m, "keys", KEYS, false);
    for (int i = 0; i < 3; i++) sl_manifest_close(m);
}

/* Workers of a LeaderWorkerSet ask no server. */
static bool has_certs(const sl_k8s *k, uint32_t rank) {
    return k->secure && (!rank || !k->lws);
}

static void put_container(const sl_k8s *k, const char *part, uint32_t rank) {
    sl_manifest *m = k->out;
    sl_manifest_open(m, "containers");
    sl_manifest_item(m);
    sl_manifest_text(m, "name", part);
    sl_manifest_text(m, "image", k->o->image);
    if (rank)
        put_worker_command(k);
    else
        put_coordinator_command(k);
    put_environment(k, rank);
    sl_manifest_open(m, "ports");
    if (!rank) put_port(m, sl_k8s_scheme(k), SL_K8S_HTTP_PORT);
    put_port(m, "fabric", k->port);
    sl_manifest_close(m);
    if (!rank) put_probes(k);
    if (rank && !k->lws) put_leaving(k);
    put_resources(k, rank);
    put_rights(m);
    sl_manifest_open(m, "volumeMounts");
    put_mount(m, "model", MODEL, true);
    put_mount(m, "keys", KEYS, false);
    if (has_certs(k, rank)) put_mount(m, "certs", CERTS, true);
    if (!rank && k->job->plan_path[0]) put_mount(m, "plan", "/etc/sluice", true);
    for (int i = 0; i < 3; i++) sl_manifest_close(m);
}

/* A file of a secret's volume, under the name of its key. */
static void put_key(sl_manifest *m, const char *key) {
    sl_manifest_item(m);
    sl_manifest_text(m, "key", key);
    sl_manifest_text(m, "path", key);
    sl_manifest_close(m);
}

/* The server's own for the coordinator, for workers what tells them that it is the server. */
static void put_certs(const sl_k8s *k, uint32_t rank) {
    sl_manifest *m = k->out;
    sl_manifest_item(m);
    sl_manifest_text(m, "name", "certs");
    sl_manifest_open(m, "secret");
    sl_manifest_text(m, "secretName", k->o->tls_secret);
    sl_manifest_number(m, "defaultMode", 0440);
    sl_manifest_open(m, "items");
    if (rank) {
        put_key(m, "ca.crt");
    } else {
        put_key(m, "tls.crt");
        put_key(m, "tls.key");
    }
    for (int i = 0; i < 3; i++) sl_manifest_close(m);
}

static void put_volumes(const sl_k8s *k, uint32_t rank) {
    sl_manifest *m = k->out;
    char plan[80];
    snprintf(plan, sizeof plan, "%s-plan", k->name);
    sl_manifest_open(m, "volumes");
    sl_manifest_item(m);
    sl_manifest_text(m, "name", "model");
    sl_manifest_open(m, "persistentVolumeClaim");
    sl_manifest_text(m, "claimName", k->claim);
    sl_manifest_flag(m, "readOnly", true);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_item(m);
    sl_manifest_text(m, "name", "given");
    sl_manifest_open(m, "secret");
    sl_manifest_text(m, "secretName", k->secret);
    sl_manifest_number(m, "defaultMode", 0440);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_item(m);
    sl_manifest_text(m, "name", "keys");
    sl_manifest_open(m, "emptyDir");
    sl_manifest_text(m, "medium", "Memory");
    sl_manifest_close(m);
    sl_manifest_close(m);
    if (has_certs(k, rank)) put_certs(k, rank);
    if (!rank && k->job->plan_path[0]) {
        sl_manifest_item(m);
        sl_manifest_text(m, "name", "plan");
        sl_manifest_open(m, "configMap");
        sl_manifest_text(m, "name", plan);
        sl_manifest_close(m);
        sl_manifest_close(m);
    }
    sl_manifest_close(m);
}

static void put_pod_rights(sl_manifest *m) {
    sl_manifest_flag(m, "automountServiceAccountToken", false);
    sl_manifest_open(m, "securityContext");
    sl_manifest_flag(m, "runAsNonRoot", true);
    sl_manifest_number(m, "runAsUser", USER);
    sl_manifest_number(m, "runAsGroup", USER);
    sl_manifest_number(m, "fsGroup", USER);
    sl_manifest_open(m, "seccompProfile");
    sl_manifest_text(m, "type", "RuntimeDefault");
    sl_manifest_close(m);
    sl_manifest_close(m);
}

/* Workers on different machines, where there are enough. */
static void put_spread(const sl_k8s *k) {
    sl_manifest *m = k->out;
    sl_manifest_open(m, "topologySpreadConstraints");
    sl_manifest_item(m);
    sl_manifest_number(m, "maxSkew", 1);
    sl_manifest_text(m, "topologyKey", "kubernetes.io/hostname");
    sl_manifest_text(m, "whenUnsatisfiable", "ScheduleAnyway");
    sl_k8s_selector(k, "labelSelector", SL_K8S_WORKER);
    sl_manifest_close(m);
    sl_manifest_close(m);
}

void sl_k8s_pod(const sl_k8s *k, const char *key, const char *part, uint32_t rank) {
    sl_manifest *m = k->out;
    sl_manifest_open(m, key);
    sl_manifest_open(m, "metadata");
    sl_manifest_open(m, "labels");
    sl_k8s_labels(k, part);
    if (rank && !k->lws) sl_k8s_block(k, rank - 1);
    sl_manifest_close(m);
    sl_manifest_close(m);
    sl_manifest_open(m, "spec");
    /* A worker leaves first, then it is told to end. */
    sl_manifest_number(m, "terminationGracePeriodSeconds",
                       (rank ? 2 : 1) * (k->o->drain_timeout + STOP_EXTRA_S));
    put_pod_rights(m);
    if (rank) put_spread(k);
    put_keys(k);
    put_container(k, part, rank);
    put_volumes(k, rank);
    sl_manifest_close(m);
    sl_manifest_close(m);
}
