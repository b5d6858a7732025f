/* Devices, clusters and workloads by name. */
#include "format/presets.h"

#include <strings.h>

#define GB 1e9
#define TF 1e12

/* ---- devices ---- */

/* Prices are relative: MegaScale-Infer's Table 3 has an L20 as 1.00; A100 and H100 stand where the
 * table has their export versions. 0: not stated there; a cluster file gives its own. Capacities,
 * rates without sparsity and bandwidths are the makers'; of L20, H800, A800, H20, L40S Table 3's.
 */
#define DEVICE(device, gb, f32, bf16, fp8, int8, gb_s, cost, launch)                               \
    {                                                                                              \
        .name = (device), .memory_bytes = (gb)*GB,                                                 \
        .flops = {(f32)*TF, (bf16)*TF, (fp8)*TF, (int8)*TF}, .bandwidth = (gb_s)*GB,               \
        .price_per_hour = (cost), .flops_efficiency = 0.7, .bandwidth_efficiency = 0.8,            \
        .launch_us = (launch)                                                                      \
    }
#define CPU(device, gb, f32, bf16, fp8, int8, gb_s)                                                \
    {                                                                                              \
        .name = (device), .memory_bytes = (gb)*GB,                                                 \
        .flops = {(f32)*TF, (bf16)*TF, (fp8)*TF, (int8)*TF}, .bandwidth = (gb_s)*GB,               \
        .flops_efficiency = 0.7, .bandwidth_efficiency = 0.8, .launch_us = 5, .cpu = true          \
    }

static const sl_device_type devices[] = {
    DEVICE("A10", 24, 31.2, 125, 0, 250, 600, 0, 10),
    DEVICE("A6000", 48, 38.7, 154.8, 0, 309.7, 768, 0, 10),
    DEVICE("A100", 80, 19.5, 312, 0, 624, 2039, 2.26, 10),
    DEVICE("A800", 80, 19.5, 312, 0, 624, 2039, 2.26, 10),
    DEVICE("H20", 96, 44, 148, 296, 296, 4096, 1.85, 10),
    DEVICE("H100", 80, 67, 989, 1979, 1979, 3350, 5.28, 10),
    DEVICE("H800", 80, 67, 989, 1979, 1979, 3430.4, 5.28, 10),
    DEVICE("H200", 141, 67, 989, 1979, 1979, 4800, 0, 10),
    DEVICE("L40S", 48, 91.6, 362, 733, 733, 864, 1.08, 10),
    DEVICE("L20", 48, 59.8, 119.5, 239, 239, 864, 1.00, 10),
    DEVICE("B200", 180, 75, 2250, 4500, 4500, 7700, 0, 10),
    DEVICE("910B", 64, 94, 376, 0, 752, 1600, 0, 20),
    /* One socket. EPYC 9654: 96 cores at 2.4 GHz, 12 channels DDR5-4800. Xeon 8480+: 56 cores at
     * 2.0 GHz with tile units, 8 channels DDR5-4800. */
    CPU("EPYC", 384, 7.4, 14.7, 0, 29.5, 460.8),
    CPU("Xeon", 256, 7.2, 229, 0, 459, 307.2),
};

const sl_device_type *sl_preset_device(const char *name) {
    for (size_t i = 0; i < SL_LEN(devices); i++)
        if (strcasecmp(devices[i].name, name) == 0) return &devices[i];
    return NULL;
}

const char *sl_preset_device_name(size_t i) {
    return i < SL_LEN(devices) ? devices[i].name : NULL;
}

/* ---- clusters ---- */

typedef struct sl_preset_text {
    const char *name, *text;
} sl_preset_text;

/* Bandwidths are what one device has in one direction: NVLink's stated sum of both is halved, a
 * node's network cards are divided among its devices. PCIe 4.0 x16 counts 25 GB/s. */
static const sl_preset_text clusters[] = {
    /* FinDEP, Table 2. A: A6000 are bridged in pairs, groups of more go over PCIe. */
    {"findep-a", "nodes:\n"
                 "  - {device: A6000, devices_per_node: 8, count: 1,\n"
                 "     intra: {bandwidth: 25GB/s, latency: 15us}}\n"},
    {"findep-b", "nodes:\n"
                 "  - {device: A10, devices_per_node: 8, count: 1,\n"
                 "     intra: {bandwidth: 25GB/s, latency: 15us, duplex: half}}\n"},
    {"findep-c", "nodes:\n"
                 "  - {device: H20, devices_per_node: 8, count: 1,\n"
                 "     intra: {bandwidth: 450GB/s, latency: 10us}}\n"},
    /* D: the paper does not say what connects its nodes; 400 Gbit/s a device here. */
    {"findep-d", "nodes:\n"
                 "  - {device: H20, devices_per_node: 8, count: 4,\n"
                 "     intra: {bandwidth: 450GB/s, latency: 10us},\n"
                 "     inter: {bandwidth: 400Gbit/s, latency: 15us}}\n"},
    /* MegaScale-Infer 7.1. Half of the bandwidth at 128 KB is an assumption. */
    {"megascale-ampere", "nodes:\n"
                         "  - {device: A800, devices_per_node: 8, count: 8,\n"
                         "     intra: {bandwidth: 200GB/s, latency: 10us},\n"
                         "     inter: {bandwidth: 200Gbit/s, latency: 10us, half_size: 128KiB}}\n"},
    {"megascale-hetero", "nodes:\n"
                         "  - {device: H20, devices_per_node: 8, count: 4,\n"
                         "     intra: {bandwidth: 450GB/s, latency: 10us},\n"
                         "     inter: {bandwidth: 200Gbit/s, latency: 10us, half_size: 128KiB}}\n"
                         "  - {device: L40S, devices_per_node: 8, count: 4,\n"
                         "     intra: {bandwidth: 25GB/s, latency: 15us},\n"
                         "     inter: {bandwidth: 100Gbit/s, latency: 10us, half_size: 128KiB}}\n"},
    /* MixServe IV-A; its network's rates are read as a device's whole port. */
    {"mixserve-h20", "nodes:\n"
                     "  - {device: H20, devices_per_node: 8, count: 2,\n"
                     "     intra: {bandwidth: 450GB/s, latency: 10us},\n"
                     "     inter: {bandwidth: 400Gbit/s, latency: 15us}}\n"},
    {"mixserve-910b", "nodes:\n"
                      "  - {device: 910B, devices_per_node: 8, count: 4,\n"
                      "     intra: {bandwidth: 480Gbit/s, latency: 15us},\n"
                      "     inter: {bandwidth: 200Gbit/s, latency: 20us}}\n"},
    /* AMoE, Tables 2 and 3. */
    {"amoe-a100-40g", "devices:\n"
                      "  A100-40G: {base: A100, memory: 40GB, bandwidth: 1555GB/s}\n"
                      "nodes:\n"
                      "  - {device: A100-40G, devices_per_node: 8, count: 2,\n"
                      "     intra: {bandwidth: 300GB/s, latency: 10us},\n"
                      "     inter: {bandwidth: 50Gbit/s, latency: 30us}}\n"},
    {"amoe-a100-80g", "nodes:\n"
                      "  - {device: A100, devices_per_node: 8, count: 1,\n"
                      "     intra: {bandwidth: 300GB/s, latency: 10us}}\n"},
    /* EPS-MoE 5. */
    {"eps-h800", "nodes:\n"
                 "  - {device: H800, devices_per_node: 8, count: 1,\n"
                 "     intra: {bandwidth: 200GB/s, latency: 10us}}\n"},
    /* For first plans. */
    {"cpu-4x10g", "nodes:\n"
                  "  - {device: EPYC, devices_per_node: 1, count: 4,\n"
                  "     inter: {bandwidth: 10Gbit/s, latency: 30us}}\n"},
    {"h100-8", "nodes:\n"
               "  - {device: H100, devices_per_node: 8, count: 1,\n"
               "     intra: {bandwidth: 450GB/s, latency: 10us}}\n"},
    {"h200-8", "nodes:\n"
               "  - {device: H200, devices_per_node: 8, count: 1,\n"
               "     intra: {bandwidth: 450GB/s, latency: 10us}}\n"},
    {"h20-8-l40s-16", "nodes:\n"
                      "  - {device: H20, devices_per_node: 8, count: 1,\n"
                      "     intra: {bandwidth: 450GB/s, latency: 10us},\n"
                      "     inter: {bandwidth: 200Gbit/s, latency: 10us}}\n"
                      "  - {device: L40S, devices_per_node: 8, count: 2,\n"
                      "     intra: {bandwidth: 25GB/s, latency: 15us},\n"
                      "     inter: {bandwidth: 100Gbit/s, latency: 10us}}\n"},
};

const char *sl_preset_cluster_text(const char *name) {
    for (size_t i = 0; i < SL_LEN(clusters); i++)
        if (strcasecmp(clusters[i].name, name) == 0) return clusters[i].text;
    return NULL;
}

const char *sl_preset_cluster_name(size_t i) {
    return i < SL_LEN(clusters) ? clusters[i].name : NULL;
}

/* ---- workloads ---- */

static const sl_preset_text workloads[] = {
    /* MegaScale-Infer 7.1: median lengths of its production trace, 150 ms a token. The spread is an
     * assumption. */
    {"megascale", "input: {lognormal: {median: 571, sigma: 1.0, max: 32768}}\n"
                  "output: {lognormal: {median: 159, sigma: 0.8, max: 4096}}\n"
                  "arrival: {closed: 1024}\n"
                  "slo: {tpot: 150ms}\n"},
    {"chat", "input: {lognormal: {median: 400, sigma: 1.2, max: 8192}}\n"
             "output: {lognormal: {median: 250, sigma: 0.9, max: 4096}}\n"
             "arrival: {poisson: 4}\n"
             "slo: {ttft: 2s, tpot: 100ms}\n"},
    /* Every request alike, as many as fit: for comparing deployments. */
    {"fixed", "input: 512\noutput: 128\narrival: {closed: 256}\n"},
};

const char *sl_preset_workload_text(const char *name) {
    for (size_t i = 0; i < SL_LEN(workloads); i++)
        if (strcasecmp(workloads[i].name, name) == 0) return workloads[i].text;
    return NULL;
}

const char *sl_preset_workload_name(size_t i) {
    return i < SL_LEN(workloads) ? workloads[i].name : NULL;
}
