/* Models, devices, clusters and workloads that are known by name: no file is needed. Models have
 * their public hyper-parameters (bf16 unless the checkpoint is narrower); devices have their data
 * sheets' dense rates; clusters and workloads are the papers' and a few common ones. Names are
 * compared without regard to case. Everything returned is static. Thread: any. */
#ifndef SL_FORMAT_PRESETS_H
#define SL_FORMAT_PRESETS_H

#include "base/status.h"
#include "spec/cluster.h"
#include "spec/shape.h"

/* NULL: not among the presets. */
const sl_shape *sl_preset_model(const char *name);
const sl_device_type *sl_preset_device(const char *name);
/* Text in the format of a cluster file. */
const char *sl_preset_cluster_text(const char *name);
/* Text in the format of a workload file. */
const char *sl_preset_workload_text(const char *name);

/* The i-th name; NULL behind the last. */
const char *sl_preset_model_name(size_t i);
const char *sl_preset_device_name(size_t i);
const char *sl_preset_cluster_name(size_t i);
const char *sl_preset_workload_name(size_t i);

#endif
