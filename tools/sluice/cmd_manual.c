/* What is made from the tables of verbs, options and variables for other programs to read: man
 * pages, and completions for bash, zsh and fish. */
#include "cmd.h"

#include "base/version.h"

#include <ctype.h>
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

/* Of one verb, or of all with who takes it. */
static void man_option(const sl_option_about *o, const sl_verb *of) {
    fputs(".TP\n\\fB\\-\\-", stdout);
    put_roff(o->flag);
    fputs("\\fR", stdout);
    if (o->meta[0]) printf(" \\fI%s\\fR", o->meta);
    if (o->shorthand) printf(", \\fB\\-%c\\fR", o->shorthand);
    putchar('\n');
    put_roff(o->help);
    put_roff(o->range);
    if (!of) fputs(".\n.br\nOf:", stdout);
    for (size_t i = 0, n = 0; !of && sl_verb_at(i); i++)
        if (takes(sl_verb_at(i), o)) printf("%s %s", n++ ? "," : "", sl_verb_at(i)->name);
    fputs(".\n", stdout);
}

static void man_options(const sl_verb *of) {
    sl_option_about o;
    const char *group = "";
    puts(".SH OPTIONS\nEvery option \\fB\\-\\-some\\-name\\fR is also the variable "
         "\\fBSLUICE_SOME_NAME\\fR; the command line wins.");
    for (size_t i = 0; sl_option_at(i, &o); i++) {
        if (of && !takes(of, &o)) continue;
        if (strcmp(group, o.group) != 0) {
            fputs(".SS ", stdout);
            put_roff(o.group);
            putchar('\n');
        }
        group = o.group;
        man_option(&o, of);
    }
}

static void man_environment(const sl_verb *of) {
    puts(".SH ENVIRONMENT\nBeside the variables of options:");
    for (sl_variable i = 0; i < SL_VARIABLE_COUNT; i++) {
        const sl_variable_about v = sl_variable_at(i);
        if (of && !strchr(v.verbs, of->letter)) continue;
        printf(".TP\n.B %s\n", v.name);
        put_roff(v.help);
        fputs(".\n", stdout);
    }
}

static bool reads_variables(const sl_verb *of) {
    for (sl_variable i = 0; of && i < SL_VARIABLE_COUNT; i++)
        if (strchr(sl_variable_at(i).verbs, of->letter)) return true;
    return !of;
}

/* What the pages of the program and of each verb end with. */
static void man_end(const sl_verb *of) {
    if (reads_variables(of)) man_environment(of);
    puts(
        ".SH EXIT STATUS\n0: done. 1: failed. 2: wrong usage. 3: what was asked for cannot be met, "
        "as a plan that does not fit.\n.SH SEE ALSO");
    if (of) puts(".BR sluice (1)");
    for (size_t i = 0; !of && sl_verb_at(i); i++)
        printf(".BR sluice\\-%s (1)%s\n", sl_verb_at(i)->name, sl_verb_at(i + 1) ? "," : "");
}

static void man_verb(const sl_verb *v) {
    printf(".TH SLUICE\\-");
    for (const char *c = v->name; *c; c++) putchar(toupper((unsigned char)*c));
    printf(" 1 \"\" \"sluice %s\" \"User Commands\"\n.ad l\n.SH NAME\nsluice\\-%s \\- ",
           sl_version(), v->name);
    put_roff(v->summary);
    printf("\n.SH SYNOPSIS\n.B sluice %s\n", v->name);
    if (v->args[0]) printf(".I %s\n", v->args);
    puts(".RI [ options ]");
    man_options(v);
    fputs(".SH EXAMPLE\n.nf\n", stdout);
    put_roff(v->example);
    puts("\n.fi");
    man_end(v);
}

static void man(void) {
    printf(".TH SLUICE 1 \"\" \"sluice %s\" \"User Commands\"\n", sl_version());
    puts(".ad l\n.SH NAME\nsluice \\- serves Mixture\\-of\\-Experts language models over many "
         "devices\n"
         ".SH SYNOPSIS\n.B sluice\n.I VERB\n.RI [ ARGUMENTS ]\n.RI [ options ]\n"
         ".SH DESCRIPTION\nOne program is the server with the OpenAI API, its workers on this and "
         "on other machines, and the tools to convert, measure, plan and simulate.");
    man_verbs();
    man_options(NULL);
    man_end(NULL);
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

/* man VERB */
static sl_status print_man_of(const char *verb, sl_err *err) {
    const sl_verb *v = sl_verb_find(verb);
    if (!v) return sl_fail(err, SL_ERR_ARG, "there is no verb '%.40s': see sluice help", verb);
    man_verb(v);
    return SL_OK;
}

int cmd_manual(const sl_options *o) {
    static const struct {
        const char *name;
        void (*print)(void);
    } kinds[] = {{"man", man}, {"bash", bash}, {"zsh", zsh}, {"fish", fish}};
    sl_err err;
    sl_status st = SL_ERR_NOTFOUND;
    for (size_t i = 0; i < SL_LEN(kinds) && st == SL_ERR_NOTFOUND; i++) {
        if (strcmp(o->arg[0], kinds[i].name) != 0) continue;
        st = SL_OK;
        if (o->n_args == 1)
            kinds[i].print();
        else if (kinds[i].print == man)
            st = print_man_of(o->arg[1], &err);
        else
            st = sl_fail(&err, SL_ERR_ARG, "completions for %s are of all verbs: leave out '%.40s'",
                         kinds[i].name, o->arg[1]);
    }
    if (st == SL_ERR_NOTFOUND)
        st = sl_fail(&err, SL_ERR_ARG, "there is no manual '%.40s': man, bash, zsh or fish",
                     o->arg[0]);
    return st == SL_OK ? 0 : sl_cmd_fail("manual", &err);
}
