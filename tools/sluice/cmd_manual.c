/* What is made from the tables of verbs and options for other programs to read: the man page, and
 * completions for bash, zsh and fish. */
#include "cmd.h"

#include <stdio.h>
#include <string.h>

/* ---- texts of other languages ---- */

/* One line of roff: nothing in it is a request, hyphens stay as they are typed. */
static void put_roff(const char *text) {
    if (*text == '.' || *text == '\'') fputs("\\&", stdout);
    for (const char *c = text; *c; c++) {
        if (*c == '\\') fputs("\\e", stdout);
        if (*c == '-') fputs("\\-", stdout);
        if (*c != '\\' && *c != '-') putchar(*c);
    }
}

/* A word between single quotes of a shell: `inside` goes where one ends and begins again. */
static void put_quoted(const char *text, const char *inside, const char *escaped) {
    for (const char *c = text; *c; c++) {
        if (*c == '\'')
            fputs(inside, stdout);
        else if (strchr(escaped, *c))
            printf("\\%c", *c);
        else
            putchar(*c);
    }
}

/* The first part of a help text: enough for a line of completions. */
static void brief(const char *help, char out[80]) {
    size_t n = strcspn(help, ";");
    while (n > 0 && help[n - 1] == ' ') n--;
    snprintf(out, 80, "%.*s", (int)SL_MIN(n, (size_t)76), help);
}

static bool takes(const sl_verb *v, const sl_option_about *o) {
    return strchr(o->verbs, v->letter) != NULL;
}

static bool is_path(const char *meta) {
    return strcmp(meta, "FILE") == 0 || strcmp(meta, "FOLDER") == 0;
}

/* ---- man ---- */

static void man_verbs(void) {
    puts(".SH VERBS");
    for (size_t i = 0; sl_verb_at(i); i++) {
        const sl_verb *v = sl_verb_at(i);
        printf(".TP\n.B sluice %s", v->name);
        if (v->args[0]) printf(" \\fI%s\\fR", v->args);
        fputs("\n", stdout);
        put_roff(v->summary);
        fputs(".\n.br\nExample:\n.B ", stdout);
        put_roff(v->example);
        putchar('\n');
    }
}

static void man_option(const sl_option_about *o) {
    fputs(".TP\n\\fB\\-\\-", stdout);
    put_roff(o->flag);
    fputs("\\fR", stdout);
    if (o->meta[0]) printf(" \\fI%s\\fR", o->meta);
    if (o->shorthand) printf(", \\fB\\-%c\\fR", o->shorthand);
    putchar('\n');
    put_roff(o->help);
    put_roff(o->range);
    fputs(".\n.br\nOf:", stdout);
    for (size_t i = 0, n = 0; sl_verb_at(i); i++)
        if (takes(sl_verb_at(i), o)) printf("%s %s", n++ ? "," : "", sl_verb_at(i)->name);
    fputs(".\n", stdout);
}

static void man_options(void) {
    sl_option_about o;
    const char *group = "";
    puts(".SH OPTIONS\nEvery option \\fB\\-\\-some\\-name\\fR is also the variable "
         "\\fBSLUICE_SOME_NAME\\fR; the command line wins.");
    for (size_t i = 0; sl_option_at(i, &o); i++) {
        if (strcmp(group, o.group) != 0) {
            fputs(".SS ", stdout);
            put_roff(o.group);
            putchar('\n');
        }
        group = o.group;
        man_option(&o);
    }
}

static void man(void) {
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"User Commands\"\n", SL_VERSION);
    puts(".ad l\n.SH NAME\nsluice \\- serves Mixture\\-of\\-Experts language models over many "
         "devices\n"
         ".SH SYNOPSIS\n.B sluice\n.I VERB\n.RI [ ARGUMENTS ]\n.RI [ options ]\n"
         ".SH DESCRIPTION\nOne program is the server with the OpenAI API, its workers on this and "
         "on other machines, and the tools to convert, measure, plan and simulate.");
    man_verbs();
    man_options();
    puts(
        ".SH ENVIRONMENT\n.TP\n.B SLUICE_SECRET\nThe secret of the workers' network, where "
        "\\fB\\-\\-secret\\-file\\fR names no file.\n"
        ".SH EXIT STATUS\n0: done. 1: failed. 2: wrong usage. 3: what was asked for cannot be met, "
        "as a plan that does not fit.");
}

/* ---- shells ---- */

static void bash(void) {
    sl_option_about o;
    puts("# Completions of sluice for bash; made by `sluice manual bash`.\n_sluice() {\n"
         "    local now=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words=\n"
         "    COMPREPLY=()");
    fputs("    if [ \"$COMP_CWORD\" -eq 1 ]; then\n        words='", stdout);
    for (size_t i = 0; sl_verb_at(i); i++) printf("%s ", sl_verb_at(i)->name);
    puts("help --version'\n        COMPREPLY=($(compgen -W \"$words\" -- \"$now\"))\n        "
         "return\n"
         "    fi\n    case $before in");
    for (size_t i = 0; sl_option_at(i, &o); i++)
        if (o.meta[0] && !is_path(o.meta)) printf("    --%s) return ;;\n", o.flag);
    puts("    esac\n    case ${COMP_WORDS[1]} in");
    for (size_t v = 0; sl_verb_at(v); v++) {
        printf("    %s) words='", sl_verb_at(v)->name);
        for (size_t i = 0; sl_option_at(i, &o); i++)
            if (takes(sl_verb_at(v), &o)) printf("--%s ", o.flag);
        puts("' ;;");
    }
    puts("    esac\n    case $now in\n    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$now\")) ;;\n"
         "    *) COMPREPLY=($(compgen -f -- \"$now\")) ;;\n    esac\n}\n"
         "complete -o filenames -F _sluice sluice");
}

static void zsh_verb(const sl_verb *v) {
    sl_option_about o;
    char help[80];
    printf("    %s)\n        _arguments", v->name);
    for (size_t i = 0; sl_option_at(i, &o); i++) {
        if (!takes(v, &o)) continue;
        printf(" \\\n            '--%s[", o.flag);
        brief(o.help, help);
        put_quoted(help, "'\\''", "[]:\\");
        putchar(']');
        if (o.meta[0]) printf(":%s:%s", o.meta, is_path(o.meta) ? "_files" : "");
        putchar('\'');
    }
    puts(" \\\n            '*:argument:_files'\n        ;;");
}

static void zsh(void) {
    puts("#compdef sluice\n# Completions of sluice for zsh; made by `sluice manual "
         "zsh`.\n_sluice() {\n"
         "    if (( CURRENT == 2 )); then\n        local -a verbs\n        verbs=(");
    for (size_t i = 0; sl_verb_at(i); i++) {
        printf("            '%s:", sl_verb_at(i)->name);
        put_quoted(sl_verb_at(i)->summary, "'\\''", ":\\");
        puts("'");
    }
    puts("        )\n        _describe verb verbs\n        return\n    fi\n"
         "    local verb=$words[2]\n    shift words\n    (( CURRENT-- ))\n    case $verb in");
    for (size_t i = 0; sl_verb_at(i); i++) zsh_verb(sl_verb_at(i));
    puts("    esac\n}\n_sluice \"$@\"");
}

static void fish(void) {
    sl_option_about o;
    char help[80];
    puts("# Completions of sluice for fish; made by `sluice manual fish`.");
    for (size_t i = 0; sl_verb_at(i); i++) {
        printf("complete -c sluice -n __fish_use_subcommand -f -a %s -d '", sl_verb_at(i)->name);
        put_quoted(sl_verb_at(i)->summary, "\\'", "\\");
        puts("'");
    }
    for (size_t i = 0; sl_option_at(i, &o); i++) {
        fputs("complete -c sluice -n '__fish_seen_subcommand_from", stdout);
        for (size_t v = 0; sl_verb_at(v); v++)
            if (takes(sl_verb_at(v), &o)) printf(" %s", sl_verb_at(v)->name);
        printf("' -l %s %s-d '", o.flag, !o.meta[0] ? "" : is_path(o.meta) ? "-rF " : "-x ");
        brief(o.help, help);
        put_quoted(help, "\\'", "\\");
        puts("'");
    }
}

int cmd_manual(const sl_options *o) {
    static const struct {
        const char *name;
        void (*print)(void);
    } kinds[] = {{"man", man}, {"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    sl_err err;
    for (size_t i = 0; i < SL_LEN(kinds); i++) {
        if (strcmp(o->arg[0], kinds[i].name) != 0) continue;
        kinds[i].print();
        return 0;
    }
    sl_fail(&err, SL_ERR_ARG, "there is no manual '%.40s': man, bash, zsh or fish", o->arg[0]);
    return sl_cmd_fail("manual", &err);
}
