/* Damaged checkpoint folders: each gets one clear error that names file, tensor or field, and
 * limit. */
#include "base/mem.h"
#include "format/map.h"
#include "model/model.h"
#include "model_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#define ST    "model.safetensors"
#define INDEX "model.safetensors.index.json"

static const sl_stages everything = {.attention = true, .experts = true};

/* Opening fails with this code, the folder's name, a slash, and this text. */
static void check_refused(const char *dir, const char *what, sl_status code, const char *text) {
    sl_model *m = NULL;
    sl_err err = {0};
    sl_status st = sl_model_open(dir, &everything, &m, &err);
    size_t n = strlen(dir);
    const char *rest = strncmp(err.msg, dir, n) == 0 ? err.msg + n : err.msg;
    if (st != code || strncmp(rest, text, strlen(text)) != 0)
        fail_msg("%s\n got %d \"%s\"\nwant %d \"%s\"", what, st, err.msg, code, text);
    assert_null(m);
    assert_null(strchr(err.msg, '\n'));
}

typedef struct header_damage {
    const char *from, *to;
    sl_status code;
    const char *text;
} header_damage;

static void damaged_headers_are_refused(void **state) {
    (void)state;
    static const header_damage bad[] = {
        {"\"model.norm.weight\"", "\"model.norms.weight\"", SL_ERR_FORMAT,
         "/" ST ": tensor \"model.norm.weight\" is missing"},
        {"\"model.layers.2.mlp.experts.5.up_proj.weight\"", "\"model.layers.9.x\"", SL_ERR_FORMAT,
         "/" ST ": tensor \"model.layers.2.mlp.experts.5.up_proj.weight\" is missing"},
        {"\"shape\":[50,24]", "\"shape\":[24,50]", SL_ERR_FORMAT,
         "/" ST ": tensor \"model.embed_tokens.weight\": shape [24, 50], expected [50, 24] by "
         "config.json"},
        {"\"shape\":[24]", "\"shape\":[1,24]", SL_ERR_FORMAT,
         "/" ST ": tensor \"model.norm.weight\": shape [1, 24], expected [24] by config.json"},
        {"\"dtype\":\"F32\",\"shape\":[24]", "\"dtype\":\"I32\",\"shape\":[24]", SL_ERR_UNSUPPORTED,
         "/" ST ": tensor \"model.norm.weight\": dtype I32, expected F32, F16 or BF16"},
        {"\"data_offsets\":[0,4800]", "\"data_offsets\":[0,4804]", SL_ERR_FORMAT,
         "/" ST ": model.embed_tokens.weight.data_offsets: [0, 4804] are 4804 bytes, shape and "
         "dtype need 4800"},
        {"\"data_offsets\":[4800,4896]", "\"data_offsets\":[4704,4800]", SL_ERR_FORMAT,
         "/" ST ": tensor \"model.norm.weight\" begins at offset 4704 and overlaps "
         "\"model.embed_tokens.weight\", which ends at 4800"},
        {"\"data_offsets\":[4800,4896]", "\"data_offsets\":[99004800,99004896]", SL_ERR_FORMAT,
         "/" ST ": model.norm.weight.data_offsets: end 99004896 is past the data of the file ("},
        {"\"model.norm.weight\":", "\"model.embed_tokens.weight\":", SL_ERR_FORMAT,
         "/" ST ": line 1 column 112: duplicate key \"model.embed_tokens.weight\""},
        {"\"lm_head.weight\":{", "\"model.layers.0.self_attn.q_proj.bias\":{", SL_ERR_FORMAT,
         "/" ST ": tensor \"lm_head.weight\" is missing"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        char dir[64];
        folder_make(dir, folder_qwen, SL_F32, 1, 1);
        folder_patch_header(dir, ST, bad[i].from, bad[i].to);
        check_refused(dir, bad[i].to, bad[i].code, bad[i].text);
        folder_remove(dir);
    }
}

static void damaged_biases_and_shared_experts_are_refused(void **state) {
    (void)state;
#define P "model.layers.0."
    static const header_damage bad[] = {
        {"\"" P "self_attn.k_proj.bias\"", "\"" P "self_attn.k_proj.bios\"", SL_ERR_FORMAT,
         "/" ST ": tensor \"" P "self_attn.k_proj.bias\" is missing"},
        {"\"" P "self_attn.k_proj.bias\":{\"dtype\":\"F32\",\"shape\":[14]",
         "\"" P "self_attn.k_proj.bias\":{\"dtype\":\"F32\",\"shape\":[14,1]", SL_ERR_FORMAT,
         "/" ST ": tensor \"" P "self_attn.k_proj.bias\": shape [14, 1], expected [14] by "
         "config.json"},
        {"\"" P "self_attn.q_proj.bias\":{\"dtype\":\"F32\"",
         "\"" P "self_attn.q_proj.bias\":{\"dtype\":\"I32\"", SL_ERR_UNSUPPORTED,
         "/" ST ": tensor \"" P "self_attn.q_proj.bias\": dtype I32, expected F32, F16 or BF16"},
        {"\"model.layers.2.mlp.shared_expert.up_proj.weight\"", "\"model.layers.9.x\"",
         SL_ERR_FORMAT,
         "/" ST ": tensor \"model.layers.2.mlp.shared_expert.up_proj.weight\" is missing"},
        {"\"" P "mlp.shared_expert_gate.weight\"", "\"" P "mlp.shared_expert_gait.weight\"",
         SL_ERR_FORMAT, "/" ST ": tensor \"" P "mlp.shared_expert_gate.weight\" is missing"},
        {"\"" P "mlp.shared_expert_gate.weight\":{\"dtype\":\"F32\",\"shape\":[1,28]",
         "\"" P "mlp.shared_expert_gate.weight\":{\"dtype\":\"F32\",\"shape\":[28]", SL_ERR_FORMAT,
         "/" ST ": tensor \"" P "mlp.shared_expert_gate.weight\": shape [28], expected [1, 28] by "
         "config.json"},
        {"\"shape\":[28,44]", "\"shape\":[44,28]", SL_ERR_FORMAT,
         "/" ST ": tensor \"" P "mlp.shared_expert.down_proj.weight\": shape [44, 28], expected "
         "[28, 44] by config.json"},
        {"\"lm_head.weight\":{", "\"" P "self_attn.o_proj.bias\":{", SL_ERR_FORMAT,
         "/" ST ": tensor \"lm_head.weight\" is missing"},
    };
#undef P
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        char dir[64];
        folder_make(dir, folder_qwen2, SL_F32, 1, 1);
        folder_patch_header(dir, ST, bad[i].from, bad[i].to);
        check_refused(dir, bad[i].to, bad[i].code, bad[i].text);
        folder_remove(dir);
    }
    char dir[64];
    folder_make(dir, folder_qwen2, SL_F32, 1, 1);
    folder_patch_text(dir, "config.json", "\"norm_topk_prob\"",
                      "\"qkv_bias\":false,\"norm_topk_prob\"");
    check_refused(dir, "biases that config.json denies", SL_ERR_UNSUPPORTED,
                  "/" ST ": tensor \"model.layers."); /* the first in the order of a hash table */
    folder_remove(dir);
}

static void damaged_tensors_of_other_families_are_refused(void **state) {
    (void)state;
#define P "model.layers.1."
    static const struct {
        const char *config;
        header_damage bad;
    } cases[] = {
        {folder_olmoe,
         {"\"" P "self_attn.q_norm.weight\":{\"dtype\":\"F32\",\"shape\":[24]",
          "\"" P "self_attn.q_norm.weight\":{\"dtype\":\"F32\",\"shape\":[4,6]", SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "self_attn.q_norm.weight\": shape [4, 6], expected [24] by "
          "config.json"}},
        {folder_olmoe,
         {"\"" P "self_attn.k_norm.weight\"", "\"" P "self_attn.k_gnome.weight\"", SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "self_attn.k_norm.weight\" is missing"}},
        {folder_glm4,
         {"\"" P "mlp.gate.e_score_correction_bias\"", "\"" P "mlp.gate.bias\"", SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "mlp.gate.e_score_correction_bias\" is missing"}},
        {folder_glm4,
         {"\"" P "mlp.gate.e_score_correction_bias\":{\"dtype\":\"F32\",\"shape\":[12]",
          "\"" P "mlp.gate.e_score_correction_bias\":{\"dtype\":\"F32\",\"shape\":[12,1]",
          SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "mlp.gate.e_score_correction_bias\": shape [12, 1], expected [12] "
          "by config.json"}},
        {folder_llama4,
         {"\"" P "feed_forward.experts.gate_up_proj\":{\"dtype\":\"F32\",\"shape\":[6,24,40]",
          "\"" P "feed_forward.experts.gate_up_proj\":{\"dtype\":\"F32\",\"shape\":[6,40,24]",
          SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "feed_forward.experts.gate_up_proj\": shape [6, 40, 24], expected "
          "[6, 24, 40] by config.json"}},
        {folder_llama4,
         {"\"" P "feed_forward.experts.down_proj\":{\"dtype\":\"F32\",\"shape\":[6,20,24]",
          "\"" P "feed_forward.experts.down_proj\":{\"dtype\":\"F32\",\"shape\":[120,24]",
          SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "feed_forward.experts.down_proj\": shape [120, 24], expected "
          "[6, 20, 24] by config.json"}},
        {folder_llama4,
         {"\"" P "feed_forward.router.weight\"", "\"" P "feed_forward.rooter.weight\"",
          SL_ERR_FORMAT, "/" ST ": tensor \"" P "feed_forward.router.weight\" is missing"}},
        {folder_llama4_nested,
         {"\"language_model." P "feed_forward.router.weight\"",
          "\"" P "feed_forward.router.weight\"", SL_ERR_FORMAT,
          "/" ST ": tensor \"language_model." P "feed_forward.router.weight\" is missing"}},
        {folder_glm4,
         {"\"" P "mlp.shared_experts.up_proj.weight\"", "\"model.layers.3.x\"", SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "mlp.shared_experts.up_proj.weight\" is missing"}},
#define D "transformer.blocks.1."
        {folder_dbrx,
         {"\"" D "norm_attn_norm.attn.Wqkv.weight\":{\"dtype\":\"F32\",\"shape\":[48,24]",
          "\"" D "norm_attn_norm.attn.Wqkv.weight\":{\"dtype\":\"F32\",\"shape\":[24,48]",
          SL_ERR_FORMAT,
          "/" ST ": tensor \"" D "norm_attn_norm.attn.Wqkv.weight\": shape [24, 48], expected "
          "[48, 24] by config.json"}},
        {folder_dbrx,
         {"\"" D "ffn.experts.mlp.w2\":{\"dtype\":\"F32\",\"shape\":[120,24]",
          "\"" D "ffn.experts.mlp.w2\":{\"dtype\":\"F32\",\"shape\":[24,120]", SL_ERR_FORMAT,
          "/" ST ": tensor \"" D "ffn.experts.mlp.w2\": shape [24, 120], expected [120, 24] by "
          "config.json"}},
        {folder_dbrx,
         {"\"" D "ffn.experts.mlp.v1\"", "\"" D "ffn.experts.mlp.v1.weight\"", SL_ERR_FORMAT,
          "/" ST ": tensor \"" D "ffn.experts.mlp.v1\" is missing"}},
#undef D
        {folder_arctic,
         {"\"" P "residual_layernorm.weight\"", "\"" P "residual_lay.weight\"", SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "residual_layernorm.weight\" is missing"}},
        {folder_arctic,
         {"\"" P "residual_mlp.w1.weight\":{\"dtype\":\"F32\",\"shape\":[24,24]",
          "\"" P "residual_mlp.w1.weight\":{\"dtype\":\"F32\",\"shape\":[24,24,1]", SL_ERR_FORMAT,
          "/" ST ": tensor \"" P "residual_mlp.w1.weight\": shape [24, 24, 1], expected [24, 24] "
          "by config.json"}},
    };
#undef P
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        char dir[64];
        folder_make(dir, cases[i].config, SL_F32, 1, 1);
        folder_patch_header(dir, ST, cases[i].bad.from, cases[i].bad.to);
        check_refused(dir, cases[i].bad.to, cases[i].bad.code, cases[i].bad.text);
        folder_remove(dir);
    }
}

/* What belongs to images is left alone; a text model has none. */
static void only_tensors_of_images_may_be_beside_the_language_model(void **state) {
    (void)state;
    static const struct {
        const char *config, *name;
        bool fine;
    } extra[] = {{folder_llama4_nested, "vision_model.class_embedding", true},
                 {folder_llama4_nested, "multi_modal_projector.linear_1.weight", true},
                 {folder_llama4_nested, "audio_model.weight", false},
                 {folder_llama4_nested, "language_model.vision_model.x", false},
                 {folder_llama4, "vision_model.class_embedding", false}};
    for (size_t i = 0; i < SL_LEN(extra); i++) {
        char dir[64], entry[160];
        sl_err err = {0};
        sl_model_spec spec;
        folder_make(dir, extra[i].config, SL_F32, 1, 1);
        snprintf(entry, sizeof entry,
                 "{\"%s\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},",
                 extra[i].name);
        folder_patch_header(dir, ST, "{", entry);
        sl_status want = extra[i].fine ? SL_OK : SL_ERR_UNSUPPORTED;
        assert_int_equal(sl_model_read_spec(dir, &spec, NULL, &err), want);
        if (!extra[i].fine) assert_non_null(strstr(err.msg, extra[i].name));
        folder_remove(dir);
    }
}

/* Of the blocks that config.json counts, and of no others. */
static void blocks_after_the_last_may_be_there(void **state) {
    (void)state;
    static const struct {
        const char *name;
        bool fine;
    } extra[] = {{"model.layers.3.eh_proj.weight", true},
                 {"model.layers.4.eh_proj.weight", false},
                 {"model.layers.03.eh_proj.weight", false},
                 {"model.layers.3", false},
                 {"model.layers.99999999999999999999.x", false}};
    for (size_t i = 0; i < SL_LEN(extra); i++) {
        char dir[64], entry[160];
        sl_err err = {0};
        sl_model_spec spec;
        folder_make(dir, folder_glm4, SL_F32, 1, 1);
        snprintf(entry, sizeof entry,
                 "{\"%s\":{\"dtype\":\"F32\",\"shape\":[0],\"data_offsets\":[0,0]},",
                 extra[i].name);
        folder_patch_header(dir, ST, "{", entry);
        sl_status st = sl_model_read_spec(dir, &spec, NULL, &err);
        if (st != (extra[i].fine ? SL_OK : SL_ERR_UNSUPPORTED))
            fail_msg("%s: %d %s", extra[i].name, st, err.msg);
        folder_remove(dir);
    }
}

/* Many files leave it out, though config.json counts it. */
static void the_block_that_guesses_has_to_be_there(void **state) {
    (void)state;
    static const sl_stages guesses = {.attention = true, .mtp = true};
    static const struct {
        const char *config, *text;
        sl_status code;
    } cases[] = {{folder_glm4, "tensor \"model.layers.3.input_layernorm.weight\"", SL_ERR_FORMAT},
                 {folder_qwen, "no block that predicts a further token", SL_ERR_UNSUPPORTED}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        char dir[64];
        sl_model *m = NULL;
        sl_err err = {0};
        folder_make(dir, cases[i].config, SL_F32, 1, 1);
        if (sl_model_open(dir, &guesses, &m, &err) != cases[i].code ||
            !strstr(err.msg, cases[i].text) || !strstr(err.msg, dir))
            fail_msg("%d %s", err.code, err.msg);
        folder_remove(dir);
    }
}

static void tensors_nobody_would_use_are_refused(void **state) {
    (void)state;
    char dir[64];
    sl_model *m = NULL;
    sl_err err = {0};
    static const char norm[] = "\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[24],";
    static const char bias[] =
        "\"model.layers.0.self_attn.q_proj.bias\":{\"dtype\":\"F32\",\"shape\":[0],"
        "\"data_offsets\":[4800,4800]},\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[24],";
    static const char freq[] =
        "\"model.layers.0.self_attn.rotary_emb.inv_freq\":{\"dtype\":\"F32\",\"shape\":[0],"
        "\"data_offsets\":[4800,4800]},\"model.norm.weight\":{\"dtype\":\"F32\",\"shape\":[24],";
    folder_make(dir, folder_qwen, SL_F32, 1, 1);
    folder_patch_header(dir, ST, norm, bias);
    check_refused(dir, "bias", SL_ERR_UNSUPPORTED,
                  "/" ST ": tensor \"model.layers.0.self_attn.q_proj.bias\" is unknown to "
                  "Qwen3MoeForCausalLM; ignoring it could change results");
    folder_patch_header(dir, ST, bias, freq);
    if (sl_model_open(dir, &everything, &m, &err) != SL_OK) fail_msg("%s", err.msg);
    sl_model_free(m);
    folder_remove(dir);
}

static void tensors_off_their_alignment_are_refused(void **state) {
    (void)state;
    char dir[64];
    size_t n;
    folder_make(dir, folder_qwen, SL_F32, 1, 1);
    char *file = folder_read(dir, ST, &n), *odd = calloc(n + 1, 1);
    uint64_t head = 0;
    memcpy(&head, file, 8);
    head++; /* one more space at the end of the header */
    memcpy(odd, &head, 8);
    memcpy(odd + 8, file + 8, head - 1);
    odd[8 + head - 1] = ' ';
    memcpy(odd + 8 + head, file + 8 + head - 1, n - 8 - (head - 1));
    folder_write(dir, ST, odd, n + 1);
    char want[256];
    snprintf(want, sizeof want,
             "/" ST ": tensor \"model.embed_tokens.weight\": begins at byte %zu, not a multiple of "
             "4 (F32)",
             (size_t)(8 + head));
    check_refused(dir, "odd", SL_ERR_UNSUPPORTED, want);
    free(file);
    free(odd);
    folder_remove(dir);
}

/* The checkpoint of a fixture as a folder of its own. */
static void copy_fixture(const char *name, char dir[64]) {
    static const char *const files[] = {"config.json", ST};
    char from[512];
    snprintf(from, sizeof from, SL_SOURCE_DIR "/tests/golden/%s", name);
    snprintf(dir, 64, "/tmp/sluice-test-XXXXXX");
    if (!mkdtemp(dir)) abort();
    for (size_t i = 0; i < SL_LEN(files); i++) {
        size_t n;
        char *data = folder_read(from, files[i], &n);
        folder_write(dir, files[i], data, n);
        free(data);
    }
}

static void refuse_fixture(const char *name, const header_damage *bad, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char dir[64];
        copy_fixture(name, dir);
        folder_patch_header(dir, ST, bad[i].from, bad[i].to);
        check_refused(dir, bad[i].to, bad[i].code, bad[i].text);
        folder_remove(dir);
    }
}

/* F8_E4M3 needs its scales, of the right type and shape, and a config that speaks of it. */
static void damaged_scales_are_refused(void **state) {
    (void)state;
#define S "model.layers.0.mlp.up_proj.weight_scale_inv"
    static const header_damage bad[] = {
        {"\"" S "\"", "\"model.layers.3.x\"", SL_ERR_FORMAT,
         "/" ST ": tensor \"" S "\" is missing"},
        {"\"" S "\":{\"dtype\":\"F32\",\"shape\":[3,1]",
         "\"" S "\":{\"dtype\":\"F32\",\"shape\":[1,3]", SL_ERR_FORMAT,
         "/" ST ": tensor \"" S "\": shape [1, 3], expected [3, 1] for 264 x 64"},
        {"\"" S "\":{\"dtype\":\"F32\"", "\"" S "\":{\"dtype\":\"I32\"", SL_ERR_UNSUPPORTED,
         "/" ST ": tensor \"" S "\": dtype I32 from byte "},
    };
    refuse_fixture("deepseekv3-tiny", bad, SL_LEN(bad));
#undef S
    char dir[64];
    copy_fixture("deepseekv3-tiny", dir);
    folder_patch_text(dir, "config.json", "\"quantization_config\"", "\"task_specific_params\"");
    check_refused(dir, "no quantization_config", SL_ERR_UNSUPPORTED, "/" ST ": tensor \"model.");
    folder_remove(dir);
}

/* MXFP4 comes as two tensors of bytes, whose shapes follow from config.json alone. */
static void damaged_mxfp4_is_refused(void **state) {
    (void)state;
#define E "model.layers.0.mlp.experts."
    static const header_damage bad[] = {
        {"\"" E "down_proj_scales\"", "\"model.layers.3.x\"", SL_ERR_FORMAT,
         "/" ST ": tensor \"" E "down_proj_scales\" is missing"},
        {"\"" E "gate_up_proj_blocks\"", "\"" E "gate_up_proj_block\"", SL_ERR_FORMAT,
         "/" ST ": tensor \"" E "gate_up_proj_blocks\" is missing"},
        {"\"" E "down_proj_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,1,16]",
         "\"" E "down_proj_blocks\":{\"dtype\":\"U8\",\"shape\":[8,64,16,1]", SL_ERR_FORMAT,
         "/" ST ": tensor \"" E "down_proj_blocks\": shape [8, 64, 16, 1], expected "
         "[8, 64, 1, 16] by config.json"},
        {"\"" E "gate_up_proj_scales\":{\"dtype\":\"U8\",\"shape\":[8,64,2]",
         "\"" E "gate_up_proj_scales\":{\"dtype\":\"U8\",\"shape\":[8,128]", SL_ERR_FORMAT,
         "/" ST ": tensor \"" E "gate_up_proj_scales\": shape [8, 128], expected [8, 64, 2] by "
         "config.json"},
        {"\"" E "gate_up_proj_scales\":{\"dtype\":\"U8\"",
         "\"" E "gate_up_proj_scales\":{\"dtype\":\"I8\"", SL_ERR_UNSUPPORTED,
         "/" ST ": tensor \"" E "gate_up_proj_scales\": dtype I8, expected U8"},
    };
    refuse_fixture("gptoss-tiny", bad, SL_LEN(bad));
#undef E
    char dir[64];
    copy_fixture("gptoss-tiny", dir);
    folder_patch_text(dir, "config.json", "\"quantization_config\"", "\"task_specific_params\"");
    check_refused(dir, "no quantization_config", SL_ERR_FORMAT, "/" ST ": tensor \"model.");
    folder_remove(dir);
}

static void damaged_files_are_refused(void **state) {
    (void)state;
    char dir[64], path[512];
    size_t n;
    folder_make(dir, folder_qwen, SL_F32, 1, 1);
    char *file = folder_read(dir, ST, &n);
    folder_path(path, dir, ST);
    folder_write(dir, ST, file, n - 5);
    check_refused(dir, "five bytes short", SL_ERR_FORMAT, "/" ST ": ");
    folder_write(dir, ST, file, 4096);
    check_refused(dir, "half a header", SL_ERR_FORMAT, "/" ST ": truncated: header length ");
    folder_write(dir, ST, file, 7);
    check_refused(dir, "seven bytes", SL_ERR_FORMAT, "/" ST ": truncated: 7 bytes, a safetensors");
    folder_write(dir, ST, "", 0);
    check_refused(dir, "empty", SL_ERR_FORMAT, "/" ST ": truncated: 0 bytes, a safetensors");
    memset(file, 0xff, 8);
    folder_write(dir, ST, file, n);
    check_refused(dir, "absurd length", SL_ERR_LIMIT,
                  "/" ST ": header length 18446744073709551615, limit 100000000");
    unlink(path);
    check_refused(dir, "no weights", SL_ERR_NOTFOUND, ": no " ST " and no " INDEX);
    folder_path(path, dir, "config.json");
    unlink(path);
    check_refused(dir, "no config", SL_ERR_NOTFOUND, "/config.json: cannot open: No such file");
    folder_write(dir, "config.json", "{\"architectures\":", 17);
    check_refused(dir, "half a config", SL_ERR_FORMAT, "/config.json: line 1 column 17: ");
    free(file);
    folder_remove(dir);
}

static void options_that_change_results_are_refused(void **state) {
    (void)state;
    char dir[64];
    folder_make(dir, folder_qwen, SL_F32, 1, 1);
    folder_patch_text(dir, "config.json", "\"rope_theta\":10000",
                      "\"rope_theta\":10000,\"router_scale\":2");
    check_refused(dir, "router_scale", SL_ERR_UNSUPPORTED,
                  "/config.json: router_scale: unknown option; ignoring it could change results");
    folder_patch_text(dir, "config.json", ",\"router_scale\":2", "");
    folder_write(dir, "generation_config.json", "{\"presence_penalty\":1.1}", 24);
    check_refused(dir, "penalty", SL_ERR_UNSUPPORTED,
                  "/generation_config.json: presence_penalty: supported only as 0");
    folder_remove(dir);
}

typedef struct index_damage {
    const char *from, *to;
    sl_status code;
    const char *text;
} index_damage;

static void damaged_indexes_are_refused(void **state) {
    (void)state;
    static const index_damage bad[] = {
        {"\"model.embed_tokens.weight\":\"model-0.safetensors\"",
         "\"model.embed_tokens.weight\":\"../model-0.safetensors\"", SL_ERR_FORMAT,
         "/" INDEX ": weight_map.model.embed_tokens.weight: \"../model-0.safetensors\" is not the "
         "name of a file in this folder"},
        {"\"model.embed_tokens.weight\":\"model-0.safetensors\"",
         "\"model.embed_tokens.weight\":\"/etc/passwd\"", SL_ERR_FORMAT,
         "/" INDEX ": weight_map.model.embed_tokens.weight: \"/etc/passwd\" is not the name"},
        {"\"model.embed_tokens.weight\":\"model-0.safetensors\"",
         "\"model.embed_tokens.weight\":\"..\"", SL_ERR_FORMAT,
         "/" INDEX ": weight_map.model.embed_tokens.weight: \"..\" is not the name"},
        {"\"model.embed_tokens.weight\":\"model-0.safetensors\"", "\"model.embed_tokens.weight\":3",
         SL_ERR_FORMAT,
         "/" INDEX ": weight_map.model.embed_tokens.weight: an integer (3) where a string"},
        {"\"model.embed_tokens.weight\":\"model-0.safetensors\"",
         "\"model.embed_tokens.weight\":\"model-1.safetensors\"", SL_ERR_FORMAT,
         "/" INDEX
         ": tensor \"model.embed_tokens.weight\" should be in model-1.safetensors, but is "
         "in model-0.safetensors"},
        {"\"model.embed_tokens.weight\":\"model-0.safetensors\"",
         "\"model.embed_tokens.weight\":\"model-7.safetensors\"", SL_ERR_NOTFOUND,
         "/model-7.safetensors: cannot open: No such file or directory"},
        {"\"model.embed_tokens.weight\":\"model-0.safetensors\",", "", SL_ERR_FORMAT,
         "/model-0.safetensors: tensor \"model.embed_tokens.weight\" is not in " INDEX},
        {"\"model.embed_tokens.weight\":",
         "\"ghost\":\"model-0.safetensors\","
         "\"model.embed_tokens.weight\":",
         SL_ERR_FORMAT,
         "/" INDEX ": tensor \"ghost\" should be in model-0.safetensors, but is in no file"},
        {"\"model.embed_tokens.weight\":", "\"model.norm.weight\":", SL_ERR_FORMAT,
         "/" INDEX ": line 1 column "},
        {"\"weight_map\"", "\"weights\"", SL_ERR_FORMAT, "/" INDEX ": weight_map: missing"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        char dir[64];
        folder_make(dir, folder_mixtral, SL_BF16, 2, 1);
        folder_patch_text(dir, INDEX, bad[i].from, bad[i].to);
        check_refused(dir, bad[i].to, bad[i].code, bad[i].text);
        folder_remove(dir);
    }
    char dir[64];
    folder_make(dir, folder_mixtral, SL_BF16, 2, 1);
    folder_patch_header(dir, "model-1.safetensors", "\"model.norm.weight\"",
                        "\"model.embed_tokens.weight\"");
    check_refused(dir, "a tensor in two files", SL_ERR_FORMAT,
                  "/model-1.safetensors: tensor \"model.embed_tokens.weight\" is also in "
                  "model-0.safetensors");
    folder_remove(dir);
}

/* Weights that are not read are named; of several kinds the one nearest to what is read. */
static void other_weights_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *file[3];
        sl_status code;
        const char *text;
    } bad[] = {
        {{"training_args.bin"}, SL_ERR_NOTFOUND, ": no " ST " and no " INDEX},
        {{"pytorch_model-00002-of-00002.bin", "pytorch_model-00001-of-00002.bin"},
         SL_ERR_UNSUPPORTED,
         ": no " ST "; pytorch_model-00001-of-00002.bin is there, but pickles are not read"},
        {{"consolidated.00.pth"},
         SL_ERR_UNSUPPORTED,
         ": no " ST "; consolidated.00.pth is there, but pickles are not read"},
        {{"m.gguf"},
         SL_ERR_NOTFOUND,
         ": no " ST "; m.gguf is there, but a GGUF file is named itself, not its folder"},
        {{"pytorch_model.bin", "model-00002-of-00002.safetensors",
          "model-00001-of-00002.safetensors"},
         SL_ERR_NOTFOUND,
         ": no " ST "; model-00001-of-00002.safetensors is there, but " INDEX ", which lists "
         "shards, is not"},
    };
    for (size_t i = 0; i < SL_LEN(bad); i++) {
        char dir[64];
        sl_model_spec m = {0};
        sl_err err = {0};
        folder_make(dir, folder_qwen, SL_F32, 1, 1);
        assert_int_equal(folder_remove_file(dir, ST), 0);
        for (size_t j = 0; j < 3 && bad[i].file[j]; j++) folder_write(dir, bad[i].file[j], "x", 1);
        check_refused(dir, bad[i].text, bad[i].code, bad[i].text);
        bool described = strstr(bad[i].text, "is there") == NULL;
        assert_int_equal(sl_model_read_spec(dir, &m, NULL, &err), described ? SL_OK : bad[i].code);
        assert_true(!described || m.weightless);
        folder_remove(dir);
    }
}

static void a_failed_allocation_never_leaks_or_crashes(void **state) {
    (void)state;
    static const struct {
        const char *config;
        uint32_t shards;
    } cases[] = {{folder_qwen, 1}, {folder_qwen2, 1}, {folder_glm4, 1}, {folder_mixtral, 2}};
    for (size_t i = 0; i < SL_LEN(cases); i++) {
        char dir[64];
        bool opened = false;
        folder_make(dir, cases[i].config, SL_F16, cases[i].shards, 1);
        for (uint64_t nth = 1; !opened; nth++) {
            sl_model *m = NULL;
            sl_err err = {0};
            sl_mem_fail_at(nth);
            sl_status st = sl_model_open(dir, &everything, &m, &err);
            sl_mem_fail_at(0);
            opened = st == SL_OK;
            if (opened)
                sl_model_free(m);
            else if (st != SL_ERR_NOMEM)
                fail_msg("allocation %u: %s", (unsigned)nth, err.msg);
            assert_true(nth < 10000);
        }
        folder_remove(dir);
    }
}

/* Runs in a child: maps a file, truncates it, touches what is gone. */
static void truncate_and_touch(const char *dir, int report) {
    char path[512];
    sl_map map = {0};
    sl_err err = {0};
    folder_path(path, dir, ST);
    dup2(report, STDERR_FILENO);
    if (sl_map_open(path, UINT64_MAX, &map, &err) != SL_OK || truncate(path, 10) != 0) _exit(7);
    volatile uint8_t last = map.bytes.data[map.bytes.len - 1];
    (void)last;
    _exit(8);
}

static void a_file_truncated_under_its_mapping_ends_the_process(void **state) {
    (void)state;
    char dir[64], text[1024] = "";
    int ends[2], status = 0;
    folder_make(dir, folder_qwen, SL_F32, 1, 1);
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) truncate_and_touch(dir, ends[1]);
    close(ends[1]);
    size_t got = 0;
    for (ssize_t n; (n = read(ends[0], text + got, sizeof text - 1 - got)) > 0;) got += (size_t)n;
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 1);
    char want[512];
    snprintf(want, sizeof want,
             "sluice: %s/" ST ": the file was truncated, or its disk failed, while it was in use\n",
             dir);
    assert_string_equal(text, want);
    folder_remove(dir);
}

static void odd_files_are_not_mapped(void **state) {
    (void)state;
    sl_map map = {0};
    sl_err err = {0};
    char dir[64], path[512];
    folder_make(dir, folder_qwen, SL_F32, 1, 1);
    assert_int_equal(sl_map_open(dir, UINT64_MAX, &map, &err), SL_ERR_FORMAT);
    assert_non_null(strstr(err.msg, ": not a regular file"));
    folder_path(path, dir, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(sl_map_open(path, UINT64_MAX, &map, &err), SL_ERR_FORMAT);
    folder_path(path, dir, "config.json");
    assert_int_equal(sl_map_open(path, 10, &map, &err), SL_ERR_LIMIT);
    assert_non_null(strstr(err.msg, " bytes, limit 10"));
    assert_null(map.path);
    sl_map_close(&map);
    folder_remove(dir);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(damaged_headers_are_refused),
        cmocka_unit_test(damaged_biases_and_shared_experts_are_refused),
        cmocka_unit_test(damaged_tensors_of_other_families_are_refused),
        cmocka_unit_test(only_tensors_of_images_may_be_beside_the_language_model),
        cmocka_unit_test(blocks_after_the_last_may_be_there),
        cmocka_unit_test(the_block_that_guesses_has_to_be_there),
        cmocka_unit_test(tensors_nobody_would_use_are_refused),
        cmocka_unit_test(tensors_off_their_alignment_are_refused),
        cmocka_unit_test(damaged_scales_are_refused),
        cmocka_unit_test(damaged_mxfp4_is_refused),
        cmocka_unit_test(damaged_files_are_refused),
        cmocka_unit_test(options_that_change_results_are_refused),
        cmocka_unit_test(damaged_indexes_are_refused),
        cmocka_unit_test(other_weights_are_refused_by_name),
        cmocka_unit_test(a_failed_allocation_never_leaks_or_crashes),
        cmocka_unit_test(a_file_truncated_under_its_mapping_ends_the_process),
        cmocka_unit_test(odd_files_are_not_mapped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
