/* Files of KV pages. */
#include "format/kv_file.h"

#include "base/span.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const uint8_t magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'K', '\n'};

#define SAID (SL_KV_FILE_HEAD_BYTES - sizeof(sl_kv_stamp)) /* bytes of a head before its hash */

/* ---- hashes ---- */

/* What is hashed for one purpose is nothing for another. */
static void hash_head(const uint8_t said[SAID], uint8_t out[32]) {
    crypto_generichash_blake2b_salt_personal(out, 32, said, SAID, NULL, 0, NULL,
                                             (const uint8_t *)"sluice kv head 1");
}

static void hash_page(const sl_kv_stamp *of, sl_page_key key, const void *bytes, size_t n,
                      uint8_t out[32]) {
    crypto_generichash_blake2b_state s;
    crypto_generichash_blake2b_init_salt_personal(&s, of->byte, sizeof of->byte, 32, NULL,
                                                  (const uint8_t *)"sluice kv file 1");
    crypto_generichash_blake2b_update(&s, (const uint8_t *)&key, sizeof key);
    crypto_generichash_blake2b_update(&s, bytes, n);
    crypto_generichash_blake2b_final(&s, out, 32);
}

static void write_head(const sl_kv_stamp *of, size_t page, uint64_t n,
                       uint8_t out[SL_KV_FILE_HEAD_BYTES]) {
    sl_wr w = sl_wr_of(out, SL_KV_FILE_HEAD_BYTES);
    sl_wr_bytes(&w, magic, sizeof magic);
    sl_wr_u32(&w, SL_KV_FILE_VERSION);
    sl_wr_u32(&w, 0);
    sl_wr_u64(&w, page);
    sl_wr_u64(&w, n);
    sl_wr_bytes(&w, of->byte, sizeof of->byte);
    hash_head(out, out + SAID);
}

/* ---- writing ---- */

static sl_status put(sl_kv_writer *w, const void *data, size_t n, sl_err *err) {
    if (fwrite(data, 1, n, w->out.f) == n) return SL_OK;
    return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", w->out.path, strerror(errno));
}

sl_status sl_kv_writer_open(const char *path, const sl_kv_stamp *of, size_t page, uint64_t n,
                            sl_kv_writer *out, sl_err *err) {
    uint8_t head[SL_KV_FILE_HEAD_BYTES];
    *out = (sl_kv_writer){.of = *of, .page = page, .left = n};
    sl_status st = sl_output_open_private(path, &out->out, err);
    if (st != SL_OK) return st;
    write_head(of, page, n, head);
    st = put(out, head, sizeof head, err);
    if (st != SL_OK) sl_output_abandon(&out->out);
    return st;
}

sl_status sl_kv_writer_put(sl_kv_writer *w, sl_page_key key, const void *bytes, sl_err *err) {
    uint8_t hash[32];
    if (w->left == 0) return sl_fail(err, SL_ERR_ARG, "%s: more pages than were told", w->out.path);
    w->left--;
    hash_page(&w->of, key, bytes, w->page, hash);
    sl_status st = put(w, &key, sizeof key, err);
    if (st == SL_OK) st = put(w, hash, sizeof hash, err);
    return st == SL_OK ? put(w, bytes, w->page, err) : st;
}

sl_status sl_kv_writer_end(sl_kv_writer *w, sl_status st, sl_err *err) {
    if (st == SL_OK && w->left > 0)
        st = sl_fail(err, SL_ERR_ARG, "%s: %llu pages fewer than were told", w->out.path,
                     (unsigned long long)w->left);
    return sl_output_end(&w->out, st, err);
}

/* ---- reading ---- */

static sl_status check_owner(const char *path, const struct stat *s, sl_err *err) {
    if (!S_ISREG(s->st_mode)) return sl_fail(err, SL_ERR_ARG, "%s: it is no regular file", path);
    if (s->st_uid != geteuid()) return sl_fail(err, SL_ERR_ARG, "%s: it is another user's", path);
    if (s->st_mode & 077)
        return sl_fail(err, SL_ERR_ARG,
                       "%s: others may read or write it, and it holds conversations (chmod 600)",
                       path);
    return SL_OK;
}

/* So much of the head as says what the file is; *n: pages. */
static sl_status check_head(const char *path, const uint8_t head[SL_KV_FILE_HEAD_BYTES],
                            const sl_kv_reader *r, uint64_t *n, sl_err *err) {
    uint8_t hash[32];
    sl_cur c = sl_cur_of((sl_span){head, SL_KV_FILE_HEAD_BYTES});
    if (memcmp(sl_cur_take(&c, sizeof magic), magic, sizeof magic) != 0)
        return sl_fail(err, SL_ERR_FORMAT, "%s: it is no file of KV pages", path);
    const uint32_t version = sl_cur_u32(&c), reserved = sl_cur_u32(&c);
    const uint64_t page = sl_cur_u64(&c);
    *n = sl_cur_u64(&c);
    hash_head(head, hash);
    if (sodium_memcmp(hash, head + SAID, sizeof hash) != 0 || reserved)
        return sl_fail(err, SL_ERR_FORMAT, "%s: its head is damaged", path);
    if (version != SL_KV_FILE_VERSION)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s: its version is %u, not %u", path, version,
                       SL_KV_FILE_VERSION);
    const uint8_t *of = sl_cur_take(&c, sizeof r->of.byte);
    if (page != r->page || memcmp(of, r->of.byte, sizeof r->of.byte) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "%s: it is of another model, other numerics or another version", path);
    return SL_OK;
}

static sl_status check_size(const char *path, uint64_t page, uint64_t n, uint64_t is, sl_err *err) {
    uint64_t bytes;
    if (!__builtin_mul_overflow(page + SL_KV_FILE_PAGE_EXTRA, n, &bytes) &&
        !__builtin_add_overflow(bytes, SL_KV_FILE_HEAD_BYTES, &bytes) && bytes == is)
        return SL_OK;
    return sl_fail(err, SL_ERR_FORMAT, "%s: %llu bytes are not those of %llu pages", path,
                   (unsigned long long)is, (unsigned long long)n);
}

static sl_status read_head(const char *path, sl_kv_reader *r, sl_err *err) {
    uint8_t head[SL_KV_FILE_HEAD_BYTES];
    struct stat s;
    if (fstat(fileno(r->f), &s) != 0)
        return sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    sl_status st = check_owner(path, &s, err);
    if (st != SL_OK) return st;
    if (fread(head, 1, sizeof head, r->f) != sizeof head)
        return sl_fail(err, SL_ERR_FORMAT, "%s: it ends within its head", path);
    st = check_head(path, head, r, &r->n, err);
    return st == SL_OK ? check_size(path, r->page, r->n, (uint64_t)s.st_size, err) : st;
}

sl_status sl_kv_reader_open(const char *path, const sl_kv_stamp *of, size_t page, sl_kv_reader *out,
                            sl_err *err) {
    *out = (sl_kv_reader){.of = *of, .page = page};
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ELOOP) return sl_fail(err, SL_ERR_ARG, "%s: it is a link", path);
    if (fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOTFOUND : SL_ERR_IO, "%s: %s", path,
                       strerror(errno));
    out->f = fdopen(fd, "rb");
    if (!out->f) {
        close(fd);
        return sl_fail(err, SL_ERR_NOMEM, "%s: its stream", path);
    }
    sl_status st = read_head(path, out, err);
    if (st != SL_OK) sl_kv_reader_close(out);
    return st;
}

sl_status sl_kv_reader_skip(sl_kv_reader *r, uint64_t n, sl_err *err) {
    const uint64_t record = r->page + SL_KV_FILE_PAGE_EXTRA;
    if (n > r->n - r->next || fseeko(r->f, (off_t)(n * record), SEEK_CUR) != 0)
        return sl_fail(err, SL_ERR_IO, "%llu pages on: there are %llu", (unsigned long long)n,
                       (unsigned long long)(r->n - r->next));
    r->next += n;
    return SL_OK;
}

sl_status sl_kv_reader_next(sl_kv_reader *r, sl_page_key *key, void *bytes, sl_err *err) {
    uint8_t said[32], is[32];
    const uint64_t number = r->next++;
    if (fread(key, 1, sizeof *key, r->f) != sizeof *key ||
        fread(said, 1, sizeof said, r->f) != sizeof said ||
        fread(bytes, 1, r->page, r->f) != r->page)
        return sl_fail(err, SL_ERR_IO, "page %llu cannot be read", (unsigned long long)number);
    hash_page(&r->of, *key, bytes, r->page, is);
    if (sodium_memcmp(said, is, sizeof is) != 0 || sl_page_key_none(*key))
        return sl_fail(err, SL_ERR_FORMAT, "page %llu is damaged", (unsigned long long)number);
    return SL_OK;
}

void sl_kv_reader_close(sl_kv_reader *r) {
    if (r->f) fclose(r->f);
    *r = (sl_kv_reader){0};
}
