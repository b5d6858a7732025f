/* sluice fetch, and the models by name of all other verbs. */
#include "cmd.h"

#include "hub/hub.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

static sl_status read_settings(const sl_options *o, sl_hub_settings *out, sl_err *err) {
    sl_status st = sl_hub_settings_read(out, err);
    out->offline = out->offline || o->offline;
    out->verify = o->verify;
    out->connections = o->connections;
    out->retry_s = o->retry;
    return st;
}

static sl_status fetch(const sl_hub_settings *s, const sl_hub_name *name, sl_hub_want want,
                       bool show, sl_hub_report *r, sl_err *err) {
    char what[2 * SL_HUB_PART + 2];
    sl_progress p;
    snprintf(what, sizeof what, "%s/%s", name->org, name->model);
    sl_progress_begin(&p, what, SL_PROGRESS_BYTES, show);
    sl_status st = sl_hub_fetch(s, name, want, &p, r, err);
    sl_progress_end(&p);
    return st;
}

/* A name that is no path here becomes the path of its files: those in the cache, where they are all
 * there, or else what the hub has. *path is replaced by borrowed memory that stays. */
static sl_status resolve(const sl_options *o, sl_hub_want want, const char **path, sl_err *err) {
    static sl_hub_report r;
    sl_hub_settings s;
    sl_hub_name name;
    sl_err lacks;
    sl_status st = sl_hub_name_parse(*path, &name, err);
    if (st == SL_OK) st = read_settings(o, &s, err);
    if (st != SL_OK) return st;
    if (sl_hub_find(&s, &name, SL_HUB_MODEL, &r, &lacks) != SL_OK &&
        (want == SL_HUB_MODEL || sl_hub_find(&s, &name, want, &r, &lacks) != SL_OK)) {
        st = fetch(&s, &name, want, !o->json, &r, err);
        if (st != SL_OK)
            return sl_err_prefix(err, "no file or folder '%.100s' here; as a model's name", *path);
    }
    *path = r.path;
    return SL_OK;
}

sl_status sl_model_by_name(char verb, sl_options *o, sl_err *err) {
    static char served[2 * SL_HUB_PART + 2];
    const char **path = verb == 'w' ? &o->model : &o->arg[0];
    const char *name = *path;
    if (!name || !sl_hub_is_name(name) || access(name, F_OK) == 0) return SL_OK;
    bool planning = strchr("pim", verb) != NULL;
    sl_status st = resolve(o, planning ? SL_HUB_CONFIG : SL_HUB_MODEL, path, err);
    snprintf(served, sizeof served, "%.*s", (int)strcspn(name, "@:"), name);
    if (!o->served_model_name[0]) o->served_model_name = served;
    return st;
}

int cmd_fetch(const sl_options *o) {
    sl_err err = {0};
    sl_hub_settings s;
    sl_hub_name name;
    sl_hub_report r = {0};
    sl_status st = sl_hub_name_parse(o->arg[0], &name, &err);
    if (st == SL_OK) st = read_settings(o, &s, &err);
    if (st == SL_OK) st = fetch(&s, &name, SL_HUB_MODEL, !o->json, &r, &err);
    if (st != SL_OK) return sl_cmd_fail("fetch", &err);
    if (!o->json) {
        fprintf(stderr, "%s/%s at %.12s: %u files, %.1f MB, of them %.1f MB fetched now\n",
                name.org, name.model, r.commit, r.files, (double)r.bytes / 1e6,
                (double)r.fetched / 1e6);
        printf("%s\n", r.path);
        return 0;
    }
    printf("{\"model\": \"%s/%s\", \"revision\": ", name.org, name.model);
    sl_print_json_string(stdout, name.revision, strlen(name.revision));
    printf(", \"commit\": \"%s\", \"path\": ", r.commit);
    sl_print_json_string(stdout, r.path, strlen(r.path));
    printf(", \"files\": %u, \"bytes\": %llu, \"fetched\": %llu}\n", r.files,
           (unsigned long long)r.bytes, (unsigned long long)r.fetched);
    return 0;
}
