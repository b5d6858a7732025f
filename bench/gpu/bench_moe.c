/* Routed experts of a MoE layer on one GPU, numerics fast and exact: time per layer against the
 * ceilings that are measured in the same run.
 *
 *   bench_moe [--rows 1,8,64,512,4096] [--layers 4] [--ways auto,...] [--repeats 50]
 * [--no-ceilings] [--apart] [--many]
 *
 * --many: sorted by many blocks. --apart: both products in launches of their own, so that each has
 * a time. Qwen3-30B-A3B's layer unless --shape D,F,E,K says otherwise. Each way is run in a process
 * of its own with a time limit, so that one that hangs or faults spoils no other. Output: JSON
 * lines in a file and a table, last. Exit: 0, or 1 when a result was wrong or missing. */
#include "args_bench.h"
#include "gpu.h"
#include "quant/half.h"
#include "stage/cuda/fast_experts.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern const uint8_t bench_image_bench[], bench_image_experts[], bench_image_tiles[],
    bench_image_small[], bench_image_big[], bench_image_sort[], bench_image_many[],
    bench_image_lines[], bench_image_vec[];
static const uint8_t *const images[] = {bench_image_bench, bench_image_experts, bench_image_tiles,
                                        bench_image_small, bench_image_big,     bench_image_sort,
                                        bench_image_vec,   bench_image_many,    bench_image_lines};

#define MOST_LAYERS 64
#define ROUTINGS    4 /* different routings of each layer, one behind another in a graph */
#define SEED_WEIGHT 17u

typedef struct shape {
    uint32_t d, f, experts, k;
} shape;

typedef struct options {
    shape s;
    uint32_t rows[16], n_rows;
    uint32_t layers, repeats, shared;
    bool apart, many;
    double copy, read, dense; /* GB/s, GB/s, TFLOP/s */
    const char *driver, *cublaslt;
    FILE *json;
} options;

typedef struct batch {
    sl_fast_plan plan;
    sl_fast_moe m;
    uint32_t *id;
    float *gate;
    CUdeviceptr lists; /* ids, gates */
} batch;

typedef struct bench {
    const options *o;
    CUdeviceptr weight[MOST_LAYERS], table[MOST_LAYERS], x, y, scratch;
    float *host_x;
} bench;

static const char *const way_name[] = {"auto", "stream", "tiles", "small", "big",
                                       "vec",  "ring",   "lines", "exact"};

/* ------------------------------------------------------------------ launches */

static CUfunction function_of(sl_cuda_kernel_id id) {
    static const char *const name[] = {
#define SL_CUDA_KERNEL(name, args) #name,
#include "stage/cuda/kernels/kernels.def"
#undef SL_CUDA_KERNEL
    };
    static CUfunction known[SL_CUDA_KERNEL_COUNT];
    if (!known[id]) known[id] = gpu_function(name[id]);
    return known[id];
}

/* Launches `from` to `to` - 1 of a plan. */
static void run_plan(const sl_fast_plan *p, uint32_t from, uint32_t to) {
    for (uint32_t i = from; i < to && i < p->n; i++) {
        const sl_fast_launch *l = &p->launch[i];
        gpu_launch(function_of(l->kernel), l->grid_x, l->grid_y, l->threads, l->shared, 1, 1,
                   &l->args, sizeof l->args);
    }
}

static void fill(CUdeviceptr to, uint64_t n, float scale, uint32_t seed) {
    const sl_bench_fill_args a = {(uint32_t *)to, n, scale, seed};
    gpu_launch(gpu_function("sl_k_bench_fill"), (uint32_t)gpu_sms * 8, 1, 256, 0, 1, 0, &a,
               sizeof a);
}

/* ------------------------------------------------------------------ ceilings */

static double stream_rate(const char *kernel, CUdeviceptr from, CUdeviceptr to, size_t bytes,
                          double counted, uint32_t blocks) {
    const sl_bench_stream_args a = {(const uint8_t *)from, (uint8_t *)to, bytes / 16};
    double best = 0;
    const CUfunction f = gpu_function(kernel);
    gpu_capture();
    gpu_launch(f, blocks, 1, 512, 0, 1, 0, &a, sizeof a);
    gpu_graph g = gpu_captured();
    const double us = gpu_replay_us(g, 3, 20, &best);
    gpu_graph_free(g);
    return counted * (double)bytes / us * 1e-3;
}

static double copy_rate(CUdeviceptr from, CUdeviceptr to, size_t bytes) {
    double from_s = 0;
    for (int i = 0; i < 13; i++) {
        if (i == 3) {
            gpu_sync("copies");
            from_s = gpu_now();
        }
        gpu_copy(to, from, bytes);
    }
    gpu_sync("copies");
    return 2.0 * (double)bytes * 10 / (gpu_now() - from_s) * 1e-9;
}

static int ceilings(const options *o) {
    const size_t bytes = (size_t)4 << 30;
    CUdeviceptr a = gpu_alloc(bytes), b = gpu_alloc(bytes);
    fill(a, bytes / 2, 1.0f, 3);
    fill(b, bytes / 2, 1.0f, 4);
    gpu_sync("fill");
    const double copy = copy_rate(a, b, bytes);
    double kernel = 0, read = 0;
    uint32_t best_blocks = 0;
    for (uint32_t per = 2; per <= 32; per *= 4) {
        const uint32_t blocks = (uint32_t)gpu_sms * per;
        const double c = stream_rate("sl_k_bench_copy", a, b, bytes, 2, blocks);
        const double r = stream_rate("sl_k_bench_read", a, b, bytes, 1, blocks);
        kernel = c > kernel ? c : kernel;
        best_blocks = r > read ? blocks : best_blocks;
        read = r > read ? r : read;
    }
    char note[512] = "";
    fill(b, bytes / 2, 1.0f, 4);
    gpu_sync("fill");
    const uint64_t n = 8192;
    const double dense =
        gpu_dense_tflops(o->cublaslt, a, b, b + n * n * 2, n, n, n, note, sizeof note);
    fprintf(stderr, "%s, %d SMs; dense products: %s; read with %u blocks\n", gpu_name, gpu_sms,
            note, best_blocks);
    printf("ceilings %.1f %.1f %.1f %.1f\n", copy, kernel, read, dense);
    return 0;
}

/* ------------------------------------------------------------------ data */

static uint64_t rng = 88172645463325252ull;

static uint32_t draw(void) {
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 16);
}

static float uniform(void) {
    return (float)draw() / 2147483648.0f - 1.0f;
}

static size_t matrix_values(const shape *s) {
    return (size_t)s->d * s->f;
}

/* Matrix m (gate, up, down) of an expert. */
static CUdeviceptr matrix(const bench *t, uint32_t layer, uint32_t m, uint32_t expert) {
    const shape *s = &t->o->s;
    return t->weight[layer] + ((size_t)m * s->experts + expert) * matrix_values(s) * 2;
}

/* Tensor maps of all experts, and the table of experts behind them. */
static void make_table(bench *t, uint32_t layer) {
    const shape *s = &t->o->s;
    const size_t maps = (size_t)s->experts * 3 * sizeof(CUtensorMap);
    const size_t bytes = maps + s->experts * sizeof(sl_fast_expert);
    CUtensorMap *m = aligned_alloc(64, (bytes + 63) / 64 * 64);
    sl_fast_expert *x = (sl_fast_expert *)((uint8_t *)m + maps);
    t->table[layer] = gpu_alloc(bytes);
    for (uint32_t e = 0; e < s->experts; e++) {
        for (uint32_t j = 0; j < 3; j++)
            gpu_tensor_map(&m[e * 3 + j], matrix(t, layer, j, e), j < 2 ? s->f : s->d,
                           j < 2 ? s->d : s->f, 128);
        x[e].gate = (const uint8_t *)matrix(t, layer, 0, e);
        x[e].up = (const uint8_t *)matrix(t, layer, 1, e);
        x[e].down = (const uint8_t *)matrix(t, layer, 2, e);
        x[e].maps = (const void *)(t->table[layer] + (size_t)e * 3 * sizeof(CUtensorMap));
    }
    gpu_put(t->table[layer], m, bytes);
    t->table[layer] += maps;
    free(m);
}

static void make_data(bench *t) {
    const shape *s = &t->o->s;
    uint32_t most = 0;
    for (uint32_t i = 0; i < t->o->n_rows; i++) most = t->o->rows[i] > most ? t->o->rows[i] : most;
    const size_t part = matrix_values(s) * s->experts;
    for (uint32_t l = 0; l < t->o->layers; l++) {
        t->weight[l] = gpu_alloc(part * 3 * 2);
        fill(t->weight[l], part * 2, 1.7f / sqrtf((float)s->d), SEED_WEIGHT + l * 3);
        fill(t->weight[l] + part * 4, part, 1.7f / sqrtf((float)s->f), SEED_WEIGHT + l * 3 + 1);
        make_table(t, l);
    }
    const size_t values = (size_t)most * s->d;
    t->host_x = malloc(values * 4);
    for (size_t i = 0; i < values; i++) t->host_x[i] = uniform() * 1.7f;
    t->x = gpu_alloc(values * 4);
    t->y = gpu_alloc(values * 4);
    gpu_put(t->x, t->host_x, values * 4);
    const size_t exact = sl_fast_exact_bytes(s->d, s->f, s->experts, most, most * s->k);
    size_t room = sl_fast_scratch_bytes(s->d, s->f, s->experts, most, most * s->k);
    if (exact > room) room = exact;
    t->scratch = gpu_alloc(room);
    gpu_set(t->scratch, 0, SL_FAST_ZEROED);
    gpu_set(t->scratch + SL_FAST_ZEROED, 0xff, room - SL_FAST_ZEROED);
    gpu_sync("data");
}

/* Each row takes k different experts. */
static void route(const shape *s, uint32_t rows, uint32_t *expert) {
    for (uint32_t r = 0; r < rows; r++) {
        for (uint32_t j = 0; j < s->k;) {
            const uint32_t e = draw() % s->experts;
            bool again = false;
            for (uint32_t i = 0; i < j; i++) again |= expert[r * s->k + i] == e;
            if (!again) expert[r * s->k + j++] = e;
        }
    }
}

static void make_batch(const bench *t, uint32_t layer, uint32_t rows, sl_fast_way way, batch *out) {
    const shape *s = &t->o->s;
    const size_t pairs = (size_t)rows * s->k, bytes = (pairs * 4 + 255) / 256 * 256;
    out->id = malloc(pairs * 4);
    out->gate = malloc(pairs * 4);
    route(s, rows, out->id);
    for (size_t i = 0; i < pairs; i++) out->gate[i] = 0.5f / (float)s->k * (2.0f + uniform());
    out->lists = gpu_alloc(2 * bytes);
    gpu_put(out->lists, out->id, pairs * 4);
    gpu_put(out->lists + bytes, out->gate, pairs * 4);
    sl_fast_moe m = {.d_model = s->d,
                     .d_ff = s->f,
                     .n_experts = s->experts,
                     .top_k = s->k,
                     .n_rows = rows,
                     .n_pairs = rows * s->k,
                     .expert = (const sl_fast_expert *)t->table[layer],
                     .id = (const uint32_t *)out->lists,
                     .gate = (const float *)(out->lists + bytes),
                     .x = (const float *)t->x,
                     .y = (float *)t->y,
                     .scratch = (uint8_t *)t->scratch,
                     .sms = (uint32_t)gpu_sms,
                     .together = true,
                     .apart = t->o->apart,
                     .many = t->o->many,
                     .maps = true,
                     .shared = t->o->shared};
    out->m = m;
    sl_fast_plan_make(&out->m, way, &out->plan);
}

static void free_batch(batch *p) {
    free(p->id);
    free(p->gate);
    gpu_free(p->lists);
}

/* ------------------------------------------------------------------ checks */

static void times(const uint16_t *w, uint32_t n, uint32_t k, const double *x, double *y) {
    for (uint32_t i = 0; i < n; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < k; j++) sum += sl_bf16_to_f32(w[(size_t)i * k + j]) * x[j];
        y[i] = sum;
    }
}

/* Row r of the batch, of layer 0, in double, of x as bf16. */
static void reference(const bench *t, const batch *p, uint32_t r, double *y) {
    const shape *s = &t->o->s;
    const size_t bytes = matrix_values(s) * 2;
    uint16_t *w = malloc(bytes);
    double *x = malloc(s->d * sizeof *x), *g = malloc(s->f * sizeof *g);
    double *u = malloc(s->f * sizeof *u), *z = malloc(s->d * sizeof *z);
    for (uint32_t i = 0; i < s->d; i++) {
        x[i] = sl_bf16_to_f32(sl_f32_to_bf16(t->host_x[(size_t)r * s->d + i]));
        y[i] = 0;
    }
    for (uint32_t j = r * s->k; j < (r + 1) * s->k; j++) {
        gpu_get(w, matrix(t, 0, 0, p->id[j]), bytes);
        times(w, s->f, s->d, x, g);
        gpu_get(w, matrix(t, 0, 1, p->id[j]), bytes);
        times(w, s->f, s->d, x, u);
        for (uint32_t i = 0; i < s->f; i++) g[i] = g[i] / (1 + exp(-g[i])) * u[i];
        gpu_get(w, matrix(t, 0, 2, p->id[j]), bytes);
        times(w, s->d, s->f, g, z);
        for (uint32_t i = 0; i < s->d; i++) y[i] += p->gate[j] * z[i];
    }
    free(w);
    free(x);
    free(g);
    free(u);
    free(z);
}

/* Largest relative error of a few rows; negative: something was not written. Twice, and the bits
 * must be the same. */
static double check(const bench *t, const batch *p) {
    const shape *s = &t->o->s;
    const size_t values = (size_t)p->m.n_rows * s->d;
    float *y = malloc(values * 4), *again = malloc(values * 4);
    double *want = malloc(s->d * sizeof *want), worst = 0;
    for (int i = 0; i < 2; i++) {
        gpu_set(t->y, 0xff, values * 4);
        run_plan(&p->plan, 0, p->plan.n);
        gpu_get(i ? again : y, t->y, values * 4);
    }
    if (memcmp(y, again, values * 4) != 0) worst = 9;
    for (size_t i = 0; i < values; i++)
        if (!isfinite(y[i])) worst = -1;
    const uint32_t rows = p->m.n_rows, take = rows < 3 ? rows : 3;
    for (uint32_t i = 0; i < take && worst >= 0; i++) {
        const uint32_t r = take == 1 ? 0 : (uint32_t)((uint64_t)i * (rows - 1) / (take - 1));
        double off = 0, all = 0;
        reference(t, p, r, want);
        for (uint32_t j = 0; j < s->d; j++) {
            const double e = y[(size_t)r * s->d + j] - want[j];
            off += e * e;
            all += want[j] * want[j];
        }
        const double rel = sqrt(off / all);
        if (!(rel <= worst)) worst = rel;
    }
    free(y);
    free(again);
    free(want);
    return worst;
}

/* ------------------------------------------------------------------ times */

typedef struct work {
    double bytes, flops;
} work;

/* What a layer must move and do: weights of the experts that are asked for, rows in and out. */
static work work_of(const shape *s, const batch *p) {
    const uint32_t rows = p->m.n_rows;
    uint32_t asked = 0;
    uint8_t *seen = calloc(1, s->experts);
    for (uint32_t i = 0; i < rows * s->k; i++) {
        asked += !seen[p->id[i]];
        seen[p->id[i]] = 1;
    }
    free(seen);
    return (work){asked * 6.0 * (double)matrix_values(s) + 8.0 * rows * s->d,
                  6.0 * rows * s->k * (double)matrix_values(s)};
}

/* Microseconds of launches from..to - 1 of a layer. */
static double time_part(const bench *t, const batch *p, uint32_t n, uint32_t from, uint32_t to,
                        double *best) {
    gpu_capture();
    for (uint32_t i = 0; i < n; i++) run_plan(&p[i].plan, from, to);
    gpu_graph g = gpu_captured();
    const double us = gpu_replay_us(g, 3, (int)t->o->repeats, best) / n;
    gpu_graph_free(g);
    *best /= n;
    return us;
}

static int bench_rows(const bench *t, uint32_t rows, sl_fast_way way) {
    const options *o = t->o;
    const uint32_t n = o->layers * (rows <= 64 ? ROUTINGS : 1);
    batch *p = calloc(n, sizeof *p);
    work w = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        make_batch(t, i % o->layers, rows, way, &p[i]);
        const work one = work_of(&o->s, &p[i]);
        w.bytes += one.bytes / n, w.flops += one.flops / n;
    }
    if (!sl_fast_can(&p[0].m, way)) return 0;
    const double error = check(t, &p[0]);
    double best = 0, ignored, part[SL_FAST_LAUNCHES] = {0};
    const double us = time_part(t, p, n, 0, SL_FAST_LAUNCHES, &best);
    const double twice = time_part(t, p, n, 0, SL_FAST_LAUNCHES, &ignored);
    for (uint32_t i = 0; i < p[0].plan.n && p[0].plan.n > 1; i++)
        part[i] = time_part(t, p, n, i, i + 1, &ignored);
    const double by_flops = o->dense > 0 ? w.flops / o->dense * 1e-6 : 0;
    const double by_copy = fmax(w.bytes / o->copy * 1e-3, by_flops);
    const double by_read = fmax(w.bytes / o->read * 1e-3, by_flops);
    printf("row %u %s %.2f %.2f %.2f %.4f %.4f %.1f %.1f %.3g", rows, way_name[way], us, twice,
           best, by_copy / us, by_read / us, w.bytes / us * 1e-3, w.flops / us * 1e-6, error);
    for (uint32_t i = 0; i < p[0].plan.n; i++) printf(" %.2f", part[i]);
    printf("\n");
    fflush(stdout);
    for (uint32_t i = 0; i < n; i++) free_batch(&p[i]);
    free(p);
    return error >= 0 && error < 1e-2 ? 0 : 1;
}

static int bench_way(const options *o, sl_fast_way way) {
    bench t = {.o = o};
    int bad = 0;
    make_data(&t);
    for (uint32_t i = 0; i < o->n_rows; i++) {
        alarm(30);
        bad |= bench_rows(&t, o->rows[i], way);
    }
    return bad;
}

/* ------------------------------------------------------------------ the program */

/* fn in a process of its own, whose lines of output come to `line`; what it ended with. */
static int in_child(options *o, sl_fast_way way, void (*line)(options *, const char *)) {
    int pipes[2], status = 0;
    fflush(NULL);
    if (pipe(pipes)) gpu_die("pipe");
    const pid_t child = fork();
    if (child < 0) gpu_die("fork");
    if (child == 0) {
        dup2(pipes[1], 1);
        close(pipes[0]);
        alarm(40);
        gpu_open(o->driver);
        for (size_t i = 0; i < sizeof images / sizeof *images; i++) gpu_module(images[i]);
        exit(way == SL_FAST_WAYS ? ceilings(o) : bench_way(o, way));
    }
    close(pipes[1]);
    FILE *f = fdopen(pipes[0], "r");
    char text[1024];
    while (f && fgets(text, sizeof text, f)) line(o, text);
    if (f) fclose(f);
    waitpid(child, &status, 0);
    if (WIFSIGNALED(status)) fprintf(stderr, "way ended by signal %d\n", WTERMSIG(status));
    return status;
}

static void on_ceilings(options *o, const char *text) {
    double kernel = 0;
    if (sscanf(text, "ceilings %lf %lf %lf %lf", &o->copy, &kernel, &o->read, &o->dense) == 4) {
        if (kernel > o->copy) o->copy = kernel;
        if (o->json)
            fprintf(o->json, "{\"copy_gbs\":%.1f,\"read_gbs\":%.1f,\"dense_tflops\":%.1f}\n",
                    o->copy, o->read, o->dense);
    }
}

static char table[64][256];
static int table_lines;

static void on_row(options *o, const char *text) {
    unsigned rows;
    char way[32];
    double us, twice, best, share, strict, gbs, tflops, error;
    int at = 0;
    if (sscanf(text, "row %u %31s %lf %lf %lf %lf %lf %lf %lf %lf%n", &rows, way, &us, &twice,
               &best, &share, &strict, &gbs, &tflops, &error, &at) < 10)
        return;
    char parts[128];
    snprintf(parts, sizeof parts, "%s", text + at);
    parts[strcspn(parts, "\n")] = 0;
    if (o->json) {
        fprintf(o->json,
                "{\"rows\":%u,\"way\":\"%s\",\"us\":%.2f,\"us_again\":%.2f,\"best_us\":%.2f,"
                "\"share_of_copy\":%.4f,\"share_of_read\":%.4f,\"gbs\":%.1f,\"tflops\":%.1f,"
                "\"error\":%.3g,\"parts_us\":\"%s\"}\n",
                rows, way, us, twice, best, share, strict, gbs, tflops, error, parts);
        fflush(o->json);
    }
    if (table_lines < 64)
        snprintf(table[table_lines++], sizeof table[0],
                 "%5u %-7s %9.2f %9.2f %9.2f %6.1f%% %6.1f%% %7.0f %8.1f %9.2g  %s", rows, way, us,
                 twice, best, share * 100, strict * 100, gbs, tflops, error, parts);
}

int main(int argc, char **argv) {
    options o = {.s = {2048, 768, 128, 8},
                 .rows = {1, 8, 64, 512, 4096},
                 .n_rows = 5,
                 .layers = 4,
                 .repeats = 50,
                 .copy = 4300,
                 .read = 4600,
                 .dense = 790};
    const char *ways = "auto", *json = NULL;
    bool measure = true;
    for (int i = 1; i < argc; i++) {
        const char *v = i + 1 < argc ? argv[i + 1] : "";
        if (!strcmp(argv[i], "--no-ceilings"))
            measure = false;
        else if (!strcmp(argv[i], "--apart"))
            o.apart = true;
        else if (!strcmp(argv[i], "--many"))
            o.many = true;
        else if (!strcmp(argv[i], "--rows"))
            o.n_rows = gpu_numbers(v, o.rows, 16), i++;
        else if (!strcmp(argv[i], "--layers"))
            o.layers = (uint32_t)atoi(v), i++;
        else if (!strcmp(argv[i], "--shared"))
            o.shared = (uint32_t)atoi(v) << 10, i++;
        else if (!strcmp(argv[i], "--json"))
            json = v, i++;
        else if (!strcmp(argv[i], "--driver"))
            o.driver = v, i++;
        else if (!strcmp(argv[i], "--cublaslt"))
            o.cublaslt = v, i++;
        else if (!strcmp(argv[i], "--repeats"))
            o.repeats = (uint32_t)atoi(v), i++;
        else if (!strcmp(argv[i], "--ways"))
            ways = v, i++;
        else if (!strcmp(argv[i], "--shape")) {
            uint32_t d[4] = {0};
            if (gpu_numbers(v, d, 4) != 4) gpu_die("--shape D,F,E,K");
            o.s = (shape){d[0], d[1], d[2], d[3]}, i++;
        } else
            gpu_die("unknown option %s", argv[i]);
    }
    if (o.layers < 1 || o.layers > MOST_LAYERS) gpu_die("--layers 1 to %d", MOST_LAYERS);
    o.json = json ? fopen(json, "w") : NULL;
    int bad = 0;
    if (measure) bad |= in_child(&o, SL_FAST_WAYS, on_ceilings) != 0;
    for (int w = 0; w < SL_FAST_WAYS; w++) {
        const char *at = strstr(ways, way_name[w]);
        if (at || !strcmp(ways, "all")) bad |= in_child(&o, (sl_fast_way)w, on_row) != 0;
    }
    if (o.json) fclose(o.json);
    printf("copy %.0f GB/s, read %.0f GB/s, dense bf16 %.0f TFLOP/s%s\n", o.copy, o.read, o.dense,
           measure ? "" : " (not measured)");
    printf(" rows way            us     again      best of copy of read    GB/s  TFLOP/s     error "
           " parts "
           "us\n");
    for (int i = 0; i < table_lines; i++) printf("%s\n", table[i]);
    return bad;
}
