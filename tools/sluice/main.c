/* The command line: verbs, help, exit codes. */
#include "cmd.h"

#include "base/log.h"
#include "base/version.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const sl_verb verbs[] = {
    {"run", 'r', cmd_run, "MODEL", "generate text here",
     "sluice run models/demo -p 'What is a sluice?' --chat --attention 1 --experts 2"},
    {"serve", 's', cmd_serve, "MODEL", "coordinator with the OpenAI API, and its workers",
     "sluice serve models/demo --port 8000 --attention 1 --experts 2"},
    {"worker", 'w', cmd_worker, "", "one worker that joins a coordinator",
     "sluice worker --join 10.0.0.1:7000 --secret-file secret"},
    {"rank", 'z', cmd_rank, "MODEL", "one rank of a worker's gang, on a machine of its own",
     "sluice rank models/demo --fabric-host 10.0.0.2 --fabric-port 7100 --secret-file secret"},
    {"drain", 'n', cmd_drain, "ID", "a worker of a running server leaves; no token is lost",
     "sluice drain 2 --url http://127.0.0.1:8000 --admin-key-file admin.key"},
    {"join", 'j', cmd_join, "ID", "a drained worker comes back",
     "sluice join 2 --url http://127.0.0.1:8000 --admin-key-file admin.key"},
    {"restart", 'a', cmd_restart, "[ID]",
     "a worker of a running server, or all in turn, start anew",
     "sluice restart --all --url http://127.0.0.1:8000 --admin-key-file admin.key"},
    {"secret", 'k', cmd_secret, "", "a random secret for workers on other machines",
     "sluice secret -o secret"},
    {"task", 'x', cmd_task, "MODEL", "one task of a job: by its rank the coordinator, or a worker",
     "mpirun -np 4 sluice task models/demo --attention 1 --experts 2 --secret-file secret"},
    {"slurm", 'q', cmd_slurm, "MODEL", "a batch script for Slurm, of a coordinator and its workers",
     "sluice slurm models/demo --plan plan.json --time 2:00:00 >job.sh"},
    {"k8s", 'e', cmd_k8s, "MODEL", "manifests for Kubernetes, of a coordinator and its workers",
     "sluice k8s models/demo --plan plan.json --image registry.example/sluice >sluice.yaml"},
    {"logits", 'l', cmd_logits, "MODEL", "logits of every position of a prompt",
     "sluice logits models/demo --ids 3,17,41 --npy logits.npy"},
    {"inspect", 'i', cmd_inspect, "MODEL", "what a checkpoint or a described model holds and needs",
     "sluice inspect models/demo"},
    {"profile", 'f', cmd_profile, "[MODEL]", "measure this machine's kernels and links",
     "sluice profile models/demo --threads 1 -o profile.json"},
    {"fetch", 'g', cmd_fetch, "MODEL", "a model's files by its name, ORG/MODEL, into the cache",
     "sluice fetch allenai/OLMoE-1B-7B-0924-Instruct"},
    {"convert", 'c', cmd_convert, "MODEL OUT", "a checkpoint folder as one GGUF file",
     "sluice convert models/demo demo-q8_0.gguf --type q8_0"},
    {"warm", 'h', cmd_warm, "MODEL", "a checkpoint's files into the file cache, in large pages",
     "sluice warm models/demo"},
    {"devices", 'd', cmd_devices, "",
     "this machine's CPU, and which kernels are taken on it and why", "sluice devices --remeasure"},
    {"plan", 'p', cmd_plan, "MODEL", "search deployments of a cluster, and say why one wins",
     "sluice plan mixtral-8x7b --cluster cpu-4x10g --slo-tpot 500ms -o plan.json"},
    {"bench", 'b', cmd_bench, "MODEL", "prefill and decode speed",
     "sluice bench models/demo --n-prompt 512 --n-gen 64"},
    {"trace", 't', cmd_trace, "FILE", "figures of a recorded run, or a picture of it",
     "sluice trace trace.json --svg trace.svg --from 100 --to 150"},
    {"simulate", 'm', cmd_simulate, "[MODEL]",
     "a deployment, or a schedule on given stage times, in virtual time",
     "sluice simulate models/demo --plan plan.json --requests 1000 --svg run.svg"},
    {"solve", 'v', cmd_solve, "", "the FinDEP solver alone: micro-batches, chunks and order",
     "sluice solve --coeffs bench/coeffs/deepseek-v2.json"},
    {"manual", 'u', cmd_manual, "KIND [VERB]",
     "man pages of this program (man) and of a verb (man VERB), completions (bash, zsh, fish)",
     "sluice manual bash >~/.local/share/bash-completion/completions/sluice"},
};

const sl_verb *sl_verb_at(size_t i) {
    return i < SL_LEN(verbs) ? &verbs[i] : NULL;
}

int sl_exit_code(sl_status st) {
    if (st == SL_OK) return 0;
    if (st == SL_ERR_ARG) return 2;
    return st == SL_ERR_INFEASIBLE ? 3 : 1;
}

int sl_cmd_fail(const char *verb, const sl_err *err) {
    char text[sizeof err->msg]; /* it may quote bytes of others: no control characters */
    snprintf(text, sizeof text, "%s", err->msg);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f) *c = '?';
    fprintf(stderr, "sluice %s: %s\n", verb, text);
    return sl_exit_code(err->code);
}

static void print_overview(FILE *out) {
    fprintf(out, "sluice %s: serves Mixture-of-Experts language models over many devices\n\n",
            sl_version());
    for (size_t i = 0; i < SL_LEN(verbs); i++)
        fprintf(out, "  sluice %-8s %-11s %s\n", verbs[i].name, verbs[i].args, verbs[i].summary);
    fprintf(out, "\n'sluice VERB --help' lists options and shows an example.\n");
}

static void print_verb(const sl_verb *v) {
    printf("sluice %s %s%s[options]: %s\n\n", v->name, v->args, v->args[0] ? " " : "", v->summary);
    sl_options_print(v->letter, stdout);
    printf("\nEvery option --some-name is also the variable SLUICE_SOME_NAME.\nExample: %s\n",
           v->example);
}

const sl_verb *sl_verb_find(const char *name) {
    for (size_t i = 0; i < SL_LEN(verbs); i++)
        if (strcmp(name, verbs[i].name) == 0) return &verbs[i];
    return NULL;
}

static int unknown_verb(const char *name) {
    fprintf(stderr, "sluice: unknown verb '%s'\n\n", name);
    print_overview(stderr);
    return 2;
}

static bool is_any(const char *arg, const char *a, const char *b, const char *c) {
    return strcmp(arg, a) == 0 || strcmp(arg, b) == 0 || strcmp(arg, c) == 0;
}

/* sluice help [VERB] */
static int help(const char *verb) {
    const sl_verb *v = verb ? sl_verb_find(verb) : NULL;
    if (verb && !v) return unknown_verb(verb);
    if (v)
        print_verb(v);
    else
        print_overview(stdout);
    return 0;
}

/* Words of sl_verb.args, and how many of them have no brackets. */
static uint32_t count_args(const char *args, uint32_t *least) {
    uint32_t most = 0;
    *least = 0;
    for (const char *word = args; *word; word += strcspn(word, " "), word += *word == ' ') {
        most++;
        *least += *word != '[';
    }
    return most;
}

static int run_verb(const sl_verb *v, int argc, char **argv) {
    sl_options o;
    sl_err err;
    sl_log_level level;
    if (sl_options_parse(v->letter, argc, argv, &o, &err) != SL_OK)
        return sl_cmd_fail(v->name, &err);
    if (o.help) {
        print_verb(v);
        return 0;
    }
    if (sl_log_level_parse(o.log, &level) != SL_OK) {
        sl_fail(&err, SL_ERR_ARG, "--log: '%s' is not error, warn, info or debug", o.log);
        return sl_cmd_fail(v->name, &err);
    }
    bool json;
    if (sl_log_format_parse(o.log_format, &json) != SL_OK) {
        sl_fail(&err, SL_ERR_ARG, "--log-format: '%s' is not text or json", o.log_format);
        return sl_cmd_fail(v->name, &err);
    }
    sl_log_set_level(level);
    sl_log_set_json(json);
    if (json) setenv("SLUICE_LOG_FORMAT", "json", 1); /* local workers write to the same stderr */
    uint32_t least, most = count_args(v->args, &least);
    if (o.n_args < least || o.n_args > most) {
        const char *what = strcmp(v->args, "FILE") == 0       ? "trace file"
                           : strcmp(v->args, "ID") == 0       ? "worker's id"
                           : strncmp(v->args, "KIND", 4) == 0 ? "kind, man, bash, zsh or fish,"
                                                              : "model folder";
        if (o.n_args < least)
            sl_fail(&err, SL_ERR_ARG, "the %s is missing (see --help)",
                    o.n_args ? "file to write" : what);
        else
            sl_fail(&err, SL_ERR_ARG, "too many arguments (see --help)");
        return sl_cmd_fail(v->name, &err);
    }
    bool by_name = strstr(v->args, "MODEL") || v->letter == 'w';
    if (by_name && v->run != cmd_fetch && sl_model_by_name(v->letter, &o, &err) != SL_OK)
        return sl_cmd_fail(v->name, &err);
    return v->run(&o);
}

int main(int argc, char **argv) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a limit on files is an error of writing */
    if (argc < 2) {
        print_overview(stderr);
        return 2;
    }
    if (is_any(argv[1], "help", "--help", "-h")) return help(argc > 2 ? argv[2] : NULL);
    if (is_any(argv[1], "--version", "-v", "-V")) {
        printf("sluice %s\n", sl_version());
        return 0;
    }
    const sl_verb *v = sl_verb_find(argv[1]);
    return v ? run_verb(v, argc - 2, argv + 2) : unknown_verb(argv[1]);
}
