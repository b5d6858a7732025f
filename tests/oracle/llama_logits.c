/* Logits of llama.cpp for given ids, for tests/oracle/test_gguf.py, which compiles this against a
 * built llama.cpp.   llama_logits MODEL.gguf OUT.f32 ID...    [positions][vocabulary] f32, one
 * batch llama_logits MODEL.gguf - TEXT           ids of a text, special tokens parsed, none added
 */
#include <llama.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void quiet(enum ggml_log_level level, const char *text, void *ctx) {
    (void)ctx;
    if (level >= GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

static int print_ids(const struct llama_model *model, const char *text) {
    static llama_token ids[65536];
    const struct llama_vocab *vocab = llama_model_get_vocab(model);
    int n = llama_tokenize(vocab, text, (int)strlen(text), ids, 65536, false, true);
    for (int i = 0; i < n; i++) printf("%s%d", i ? "," : "", ids[i]);
    printf("\n");
    return n < 0;
}

static int write_logits(struct llama_model *model, const char *path, int n, char **ids) {
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = 512;
    params.n_batch = params.n_ubatch = 512;
    params.n_threads = params.n_threads_batch = 1;
    params.type_k = params.type_v = GGML_TYPE_F32;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    struct llama_context *ctx = llama_init_from_model(model, params);
    FILE *out = fopen(path, "wb");
    if (!ctx || !out) return 1;
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = atoi(ids[i]);
        batch.pos[i] = i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
    }
    if (llama_decode(ctx, batch) != 0) return 1;
    int vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    for (int i = 0; i < n; i++)
        fwrite(llama_get_logits_ith(ctx, i), sizeof(float), (size_t)vocab, out);
    return fclose(out);
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    llama_log_set(quiet, NULL);
    llama_backend_init();
    ggml_backend_load_all();
    struct llama_model_params params = llama_model_default_params();
    params.n_gpu_layers = 0;
    struct llama_model *model = llama_model_load_from_file(argv[1], params);
    if (!model) return 1;
    if (strcmp(argv[2], "-") == 0) return print_ids(model, argv[3]);
    return write_logits(model, argv[2], argc - 3, argv + 3);
}
