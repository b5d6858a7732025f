/* Manifests of Kubernetes, in two files: what there is (cmd_k8s.c), and the pods (k8s_pod.c). */
#ifndef SL_TOOLS_K8S_H
#define SL_TOOLS_K8S_H

#include "job.h"
#include "manifest.h"

#define SL_K8S_LWS         "leaderworkerset.x-k8s.io/v1"
#define SL_K8S_COORDINATOR "coordinator"
#define SL_K8S_WORKER      "worker"
#define SL_K8S_BLOCK       "sluice.block" /* a label: workers of one StatefulSet, by the first */
#define SL_K8S_FABRIC_PORT 7000u
#define SL_K8S_HTTP_PORT   8000u

typedef struct sl_k8s {
    const sl_options *o;
    const sl_job *job;
    sl_manifest *out;
    const char *name;
    char secret[64], claim[64], fabric[64]; /* names of other objects */
    uint32_t port;                          /* of the fabric */
    bool lws;
    bool secure; /* HTTPS */
} sl_k8s;

/* The scheme in small letters, which is the name of the port, too. */
static inline const char *sl_k8s_scheme(const sl_k8s *k) {
    return k->secure ? "https" : "http";
}

/* Head of an object NAMEsuffix: what it is, its labels. part NULL: of none. */
void sl_k8s_begin(const sl_k8s *k, const char *version, const char *kind, const char *suffix,
                  const char *part);
void sl_k8s_labels(const sl_k8s *k, const char *part);
/* The label of the block of workers that begins with this one. */
void sl_k8s_block(const sl_k8s *k, uint32_t first);
void sl_k8s_selector(const sl_k8s *k, const char *key, const char *part);
/* A pod's template: rank 0 the coordinator, else of workers with the roles of worker rank - 1. */
void sl_k8s_pod(const sl_k8s *k, const char *key, const char *part, uint32_t rank);

#endif
