/* What `sluice profile` measured on one machine: raw points and what was fitted to them. Its file
 * form is src/format/profile_file.h. Thread: immutable after filling. */
#ifndef SL_SPEC_PROFILE_H
#define SL_SPEC_PROFILE_H

#include "spec/costs.h"

#include <stddef.h>

#define SL_PROFILE_TEXT       96
#define SL_PROFILE_MAX_LINKS  16
#define SL_PROFILE_MAX_POINTS 512

/* A stage: rows and summed keys; a link: bytes of a message in `rows`, keys 0. */
typedef struct sl_profile_point {
    double rows, keys, us;
} sl_profile_point;

/* How well the fitted numbers say the points: errors relative to each point. */
typedef struct sl_fit_quality {
    double r2;           /* of the times, 1 is perfect */
    double median_error; /* |fitted - measured| / measured */
    double worst_error;
    uint32_t n_points, n_outliers; /* outliers weigh nothing in the fit, and count in the errors */
} sl_fit_quality;

typedef struct sl_profile_points {
    sl_profile_point *point; /* owned by the profile */
    uint32_t n;
} sl_profile_points;

typedef struct sl_profile_stage {
    bool present; /* the model has such a stage */
    sl_stage_cost cost;
    double beside; /* times as long while a neighbour computes the same; 0: not measured */
    double bytes;  /* of weights that it reads; 0: not known */
    sl_fit_quality fit;
    sl_profile_points points;
} sl_profile_stage;

/* One message between two processes of this machine, one way, while `peers` receivers are served at
 * once by one sender. Whoever waits for it has done so for a while. */
typedef struct sl_profile_link {
    char transport[16];
    uint32_t peers;
    sl_link_cost cost;
    sl_fit_quality fit;
    sl_profile_points points;
} sl_profile_link;

/* Rows of a GPU to the host's memory, and from there: a link of a profile, too. */
#define SL_PROFILE_GPU_OUT "gpu-out"
#define SL_PROFILE_GPU_IN  "gpu-in"

typedef struct sl_profile {
    char model[SL_PROFILE_TEXT];   /* the model's name */
    char machine[SL_PROFILE_TEXT]; /* the CPU's */
    char isa[16];
    uint32_t cores, threads; /* of the machine; of a worker's kernels */
    bool random_weights;     /* the model had none */
    double memory_bytes;     /* of the machine */
    double cache_bytes;      /* of weights that its largest cache keeps; 0: none, or not measured */
    double seconds;          /* that measuring took */
    sl_profile_stage stage[SL_COST_COUNT];
    uint32_t n_links;
    sl_profile_link link[SL_PROFILE_MAX_LINKS];
} sl_profile;

#endif
