/* GET /openapi.json: an OpenAPI 3.1 document of all paths, made of the table of routes and of the
 * tables by which bodies are read. Nothing of it is written down twice. */
#include "serve/form.h"
#include "serve/server_int.h"

#include "base/version.h"

#include <stdio.h>

#define PATH_BYTES 128u

static const char *const methods[] = {[SL_GET] = "get", [SL_POST] = "post", [SL_DELETE] = "delete"};

/* The i-th path of a route, with braces around its arguments; false: it has no more. */
static bool path_at(const sl_route *r, size_t i, char out[PATH_BYTES]) {
    const char *rest = r->rest ? r->rest : "";
    for (; i > 0; i--) {
        rest = strchr(rest, ' ');
        if (!rest) return false;
        rest++;
    }
    snprintf(out, PATH_BYTES, "%s%.*s", r->path, (int)strcspn(rest, " "), rest);
    return true;
}

/* Nobody learns of those for which the server has no key. */
static bool is_there(const sl_server *s, const sl_route *r) {
    return r->to != SL_TO_ADMIN || s->admin_key;
}

/* Whether a route before this one, or an earlier path of it, is that one. */
static bool is_known(const sl_server *s, size_t route, size_t at, const char *path) {
    char other[PATH_BYTES];
    for (size_t i = 0; i <= route; i++)
        for (size_t k = 0; is_there(s, &sl_routes[i]) && path_at(&sl_routes[i], k, other); k++) {
            if (i == route && k == at) return false;
            if (!strcmp(other, path)) return true;
        }
    return false;
}

/* Letters of method and path: "get_v1_models_id". */
static void put_operation(sl_jbuf *b, const char *method, const char *path) {
    bool gap = true;
    sl_jbuf_fmt(b, "\"operationId\":\"%s", method);
    for (const char *c = path; *c; c++) {
        bool letter = strchr("{}/.", *c) == NULL;
        if (letter && gap) sl_jbuf_put(b, "_", 1);
        if (letter) sl_jbuf_put(b, c, 1);
        gap = !letter;
    }
    sl_jbuf_put(b, "\"", 1);
}

static void put_arguments(sl_jbuf *b, const char *path) {
    const char *comma = "";
    sl_jbuf_fmt(b, ",\"parameters\":[");
    for (const char *at = path; (at = strchr(at, '{')); comma = ",") {
        int n = (int)strcspn(++at, "}");
        sl_jbuf_fmt(b,
                    "%s{\"name\":\"%.*s\",\"in\":\"path\",\"required\":true,\"schema\":{\"type\":"
                    "\"string\"}}",
                    comma, n, at);
    }
    sl_jbuf_put(b, "]", 1);
}

static void put_security(sl_jbuf *b, const sl_server *s, const sl_route *r) {
    bool key = r->to == SL_TO_KEY && s->keyed;
    sl_jbuf_fmt(b, ",\"security\":[%s]",
                r->to == SL_TO_ADMIN ? "{\"admin\":[]}"
                : key                ? "{\"key\":[]},{\"x-api-key\":[]}"
                                     : "");
}

static void put_method(sl_jbuf *b, const sl_server *s, const sl_route *r, const char *path) {
    bool anthropic = r->dialect == SL_DIALECT_MESSAGES;
    sl_schema_name(b, methods[r->method]);
    sl_jbuf_put(b, "{", 1);
    put_operation(b, methods[r->method], path);
    sl_jbuf_fmt(b, ",\"summary\":");
    sl_jbuf_cstring(b, r->says);
    put_arguments(b, path);
    put_security(b, s, r);
    if (r->body) {
        sl_jbuf_fmt(
            b, ",\"requestBody\":{\"required\":%s,\"content\":{\"application/json\":{\"schema\":",
            r->to == SL_TO_ADMIN ? "false" : "true");
        r->body(b, s, r);
        sl_jbuf_fmt(b, "}}}");
    }
    sl_jbuf_fmt(b, ",\"responses\":{\"%s\":{\"description\":",
                r->to == SL_TO_ADMIN && r->method == SL_POST ? "202" : "200");
    sl_jbuf_cstring(b, r->says);
    sl_jbuf_fmt(b,
                "},\"default\":{\"description\":\"an error\",\"content\":{\"application/json\":{"
                "\"schema\":{\"$ref\":\"#/components/schemas/%s\"}}}}}}",
                anthropic ? "MessagesError" : "Error");
}

static void put_path(sl_jbuf *b, const sl_server *s, const char *path) {
    char other[PATH_BYTES];
    sl_schema_name(b, path);
    sl_jbuf_put(b, "{", 1);
    for (size_t i = 0; i < sl_n_routes; i++)
        for (size_t k = 0; is_there(s, &sl_routes[i]) && path_at(&sl_routes[i], k, other); k++)
            if (!strcmp(other, path)) put_method(b, s, &sl_routes[i], path);
    sl_jbuf_put(b, "}", 1);
}

/* Errors, as reply.c and messages_write.c write them, and keys. */
static void put_components(sl_jbuf *b) {
    sl_jbuf_fmt(
        b,
        ",\"components\":{\"schemas\":{"
        "\"Error\":{\"type\":\"object\",\"required\":[\"error\"],\"properties\":{\"error\":{"
        "\"type\":\"object\",\"required\":[\"message\",\"type\",\"param\",\"code\"],"
        "\"properties\":{\"message\":{\"type\":\"string\"},\"type\":{\"type\":\"string\"},"
        "\"param\":{\"type\":[\"string\",\"null\"]},\"code\":{\"type\":[\"string\",\"null\"]}}}}},"
        "\"MessagesError\":{\"type\":\"object\",\"required\":[\"type\",\"error\"],\"properties\":{"
        "\"type\":{\"const\":\"error\"},\"error\":{\"type\":\"object\",\"required\":[\"type\","
        "\"message\"],\"properties\":{\"type\":{\"type\":\"string\"},\"message\":{\"type\":"
        "\"string\"}}}}}},\"securitySchemes\":{"
        "\"key\":{\"type\":\"http\",\"scheme\":\"bearer\"},"
        "\"x-api-key\":{\"type\":\"apiKey\",\"in\":\"header\",\"name\":\"x-api-key\"},"
        "\"admin\":{\"type\":\"http\",\"scheme\":\"bearer\"}}}}");
}

enum MHD_Result sl_openapi_answer(sl_call *call, const char *rest) {
    (void)rest;
    const sl_server *s = call->server;
    char path[PATH_BYTES];
    sl_jbuf b = sl_jbuf_init();
    sl_jbuf_fmt(&b, "{\"openapi\":\"3.1.0\",\"info\":{\"title\":\"Sluice\",\"version\":");
    sl_jbuf_cstring(&b, sl_version());
    sl_jbuf_fmt(&b, "},\"paths\":{");
    for (size_t i = 0; i < sl_n_routes; i++)
        for (size_t k = 0; is_there(s, &sl_routes[i]) && path_at(&sl_routes[i], k, path); k++)
            if (!is_known(s, i, k, path)) put_path(&b, s, path);
    sl_jbuf_put(&b, "}", 1);
    put_components(&b);
    return sl_call_reply(call, MHD_HTTP_OK, "application/json", &b);
}
