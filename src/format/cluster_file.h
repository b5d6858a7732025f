/* Cluster files (YAML) and cluster presets -> sl_cluster.
 *
 *   name: rack
 *   devices:                          # optional: devices that are no preset, or differ from one
 *     H20-cheap: {base: H20, price: 1.2}
 *     box: {memory: 64GB, bandwidth: 80GB/s, f32: 1.5TFLOPS, price: 0.3,
 *           flops_efficiency: 0.6, bandwidth_efficiency: 0.9, launch: 5us, cpu: true}
 *   nodes:
 *     - {device: H20-cheap, devices_per_node: 8, count: 2,
 *        intra: {bandwidth: 450GB/s, latency: 10us},
 *        inter: {bandwidth: 200Gbit/s, latency: 10us, duplex: full, half_size: 128KiB}}
 *
 * Bandwidths are one device's, one direction. `intra` is needed where a node has several devices,
 * `inter` where there are several nodes. Thread: any. */
#ifndef SL_FORMAT_CLUSTER_FILE_H
#define SL_FORMAT_CLUSTER_FILE_H

#include "base/span.h"
#include "base/status.h"
#include "spec/cluster.h"

/* `file` names the text in errors; `name` is the cluster's when the text has none. Errors name
 * file, line, field, value and limit. */
sl_status sl_cluster_parse(const char *file, const char *name, sl_span text, sl_cluster *out,
                           sl_err *err) SL_MUST_CHECK;

/* A file or, when there is no such path, a preset. */
sl_status sl_cluster_open(const char *path_or_name, sl_cluster *out, sl_err *err) SL_MUST_CHECK;

#endif
