/* The web page: files that are in the program itself, and headers under which a browser runs these
 * and nothing else. */
#include "serve/server_int.h"

/* Only what came from here runs; only here is asked; nobody shows the page inside another one. */
#define POLICY                                                                                     \
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src "        \
    "'self'; "                                                                                     \
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "                                \
    "require-trusted-types-for 'script'; trusted-types 'none'"

/* The bytes of each file between two labels. */
#define SL_PAGE_FILE(name, path, type)                                                             \
    __asm__(".pushsection .rodata\n"                                                               \
            "sl_page_file_" #name ": .incbin \"" SL_PAGE_FOLDER "/" path "\"\n"                    \
            "sl_page_file_" #name "_end:\n"                                                        \
            ".popsection\n");                                                                      \
    extern const char sl_page_file_##name[], sl_page_file_##name##_end[];
#include "serve/page.def"
#undef SL_PAGE_FILE

static const struct file {
    const char *path, *type, *data, *end;
} files[] = {
#define SL_PAGE_FILE(name, path, type) {path, type, sl_page_file_##name, sl_page_file_##name##_end},
#include "serve/page.def"
#undef SL_PAGE_FILE
};

static const char etag[] = "\"" SL_PAGE_REVISION "\"";

/* Whether the client has this revision: If-None-Match may list several, weak ones, or any. */
static bool has_it(const sl_call *call) {
    const char *given = sl_call_header(call, MHD_HTTP_HEADER_IF_NONE_MATCH);
    return given && (strstr(given, etag) || !strcmp(given, "*"));
}

static bool add_headers(struct MHD_Response *r, const char *type) {
    static const char *const headers[][2] = {
        {MHD_HTTP_HEADER_ETAG, etag},
        {MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache"}, /* kept, and asked for again by its tag */
        {"Content-Security-Policy", POLICY},
        {"X-Content-Type-Options", "nosniff"},
        {"Referrer-Policy", "no-referrer"},
        {"Cross-Origin-Opener-Policy", "same-origin"},
        {"Cross-Origin-Resource-Policy", "same-origin"},
    };
    bool ok = MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    for (size_t i = 0; ok && i < SL_LEN(headers); i++)
        ok = MHD_add_response_header(r, headers[i][0], headers[i][1]);
    return ok;
}

static enum MHD_Result reply(sl_call *call, const struct file *f) {
    bool known = has_it(call);
    size_t n = known ? 0 : (size_t)(f->end - f->data);
    struct MHD_Response *r =
        MHD_create_response_from_buffer(n, (char *)(uintptr_t)f->data, MHD_RESPMEM_PERSISTENT);
    if (!r) return MHD_NO;
    call->phase = SL_CALL_REPLIED;
    return sl_call_queue(call, known ? MHD_HTTP_NOT_MODIFIED : MHD_HTTP_OK, r,
                         add_headers(r, f->type));
}

enum MHD_Result sl_page_answer(sl_call *call, const char *rest) {
    for (size_t i = 0; i < SL_LEN(files); i++)
        if (!strcmp(files[i].path, rest)) return reply(call, &files[i]);
    sl_api_error e;
    sl_api_error_bad(&e, NULL, "the page has no file %.100s", rest);
    e.http = MHD_HTTP_NOT_FOUND;
    e.code = "unknown_url";
    return sl_call_reply_error(call, &e);
}

enum MHD_Result sl_page_index(sl_call *call, const char *rest) {
    (void)rest;
    return sl_page_answer(call, "index.html");
}

enum MHD_Result sl_page_icon(sl_call *call, const char *rest) {
    (void)rest;
    return sl_page_answer(call, "icon.svg");
}
