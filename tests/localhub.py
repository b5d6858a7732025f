"""A model hub on this machine for tests: the API and the files of docs/models-by-name.md, and the faults that a test asks for.

Small files are known by git's SHA-1 of the blob, large ones (`large`) by their SHA-256 and sent by a second server, as a
hub's storage is: the first one answers with a redirection."""

import collections
import hashlib
import http.server
import json
import re
import threading
import time
import urllib.parse

PAGE = 5  # files a page of a tree


def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Repo:
    def __init__(self, files, large=(".safetensors", ".gguf", ".bin"), token=None):
        self.files = files
        self.large = {n for n in files if n.endswith(tuple(large))}
        self.token = token  # gated: who has another one is refused
        text = json.dumps({n: hashlib.sha256(b).hexdigest() for n, b in files.items()}, sort_keys=True)
        self.commit = hashlib.sha1(text.encode()).hexdigest()
        self.refs = {"main": self.commit}

    def digest(self, name):
        data = self.files[name]
        return hashlib.sha256(data).hexdigest() if name in self.large else git_sha1(data)

    def entry(self, name):
        data = self.files[name]
        row = {"type": "file", "path": name, "size": len(data), "oid": git_sha1(data)}
        if name in self.large:
            row["lfs"] = {"oid": self.digest(name), "size": len(data), "pointerSize": 130}
        return row


class Faults:
    """What goes wrong, by a file's name."""

    def __init__(self):
        self.cut = {}  # name -> [bytes after which the connection ends, times]
        self.wrong = collections.Counter()  # name -> answers with a changed byte
        self.status = {}  # name -> [status, times]
        self.no_ranges = set()
        self.longer = set()  # more bytes than were said
        self.shorter = set()  # fewer bytes than were said, and a Content-Length that fits them
        self.rows = []  # added to the tree
        self.info = None  # instead of what says the commit
        self.redirect = None  # where large files are sent, instead of the storage
        self.slow = 0  # seconds between 64 KiB
        self.stall = None  # an event: nothing after the first bytes of a file until it is set


class Server:
    """One HTTP server; `asked` has (method, path, headers) of each request."""

    def __init__(self, answer, context=None):
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do_GET(self):
                outer.asked.append((self.command, self.path, dict(self.headers)))
                try:
                    answer(self)
                except (BrokenPipeError, ConnectionResetError, ConnectionAbortedError):
                    self.close_connection = True

            do_HEAD = do_GET

        self.asked = []
        self.httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.httpd.daemon_threads = True
        if context:
            self.httpd.socket = context.wrap_socket(self.httpd.socket, server_side=True)
        self.url = f"http{'s' if context else ''}://127.0.0.1:{self.httpd.server_port}"
        self.thread = threading.Thread(target=self.httpd.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()


class Hub:
    def __init__(self, context=None):
        self.repos = {}
        self.fault = Faults()
        self.front = Server(self._front, context)
        self.storage = Server(self._storage)
        self.url = self.front.url

    def close(self):
        self.front.close()
        self.storage.close()

    # -- answers

    @staticmethod
    def _send(h, status, body=b"", **headers):
        h.send_response(status)
        for name, value in headers.items():
            h.send_header(name.replace("_", "-"), str(value))
        h.send_header("Content-Length", str(len(body)))
        h.end_headers()
        if h.command != "HEAD":
            h.wfile.write(body)

    def _json(self, h, value, **headers):
        self._send(h, 200, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def _front(self, h):
        path, _, query = h.path.partition("?")
        found = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)(?:/(.*))?", path)
        repo = self.repos.get(found[1]) if found else None
        if not repo:
            return self._send(h, 401, b"{}", X_Error_Code="RepoNotFound")
        if repo.token and h.headers.get("Authorization") != f"Bearer {repo.token}":
            given = "Authorization" in h.headers
            return self._send(h, 403 if given else 401, b"{}", X_Error_Code="GatedRepo")
        revision = urllib.parse.unquote(found[3])
        commit = repo.refs.get(revision, revision)
        if commit != repo.commit:
            return self._send(h, 404, b"{}", X_Error_Code="RevisionNotFound")
        if found[2] == "revision":
            info = {"_id": "1", "id": found[1], "sha": repo.commit, "private": False, "gated": False, "siblings": [], "tags": [],
                    "downloads": 0, "likes": 0, "spaces": []}
            return self._json(h, self.fault.info or info)
        if found[2] == "tree":
            return self._tree(h, repo, path, query)
        return self._resolve(h, repo, urllib.parse.unquote(found[4]))

    def _tree(self, h, repo, path, query):
        rows = [{"type": "directory", "path": d, "oid": "0" * 40, "size": 0}
                for d in sorted({n.rsplit("/", 1)[0] for n in repo.files if "/" in n})]
        rows += [repo.entry(n) for n in sorted(repo.files)] + self.fault.rows
        start = int(urllib.parse.parse_qs(query).get("cursor", ["0"])[0])
        more = {}
        if start + PAGE < len(rows):
            more["Link"] = f'<{self.url}{path}?recursive=true&cursor={start + PAGE}>; rel="next"'
        self._json(h, rows[start:start + PAGE], **more)

    def _resolve(self, h, repo, name):
        if name not in repo.files:
            return self._send(h, 404, b"{}", X_Error_Code="EntryNotFound")
        about = {"X_Repo_Commit": repo.commit, "ETag": f'"{repo.digest(name)}"'}
        if name not in repo.large:
            return self._bytes(h, repo, name, about)
        about.update(X_Linked_Etag=f'"{repo.digest(name)}"', X_Linked_Size=len(repo.files[name]))
        to = self.fault.redirect or self.storage.url
        where = [n for n, r in self.repos.items() if r is repo][0]
        return self._send(h, 302, b"elsewhere", Location=f"{to}/{where}/{repo.commit}/{urllib.parse.quote(name)}", **about)

    def _storage(self, h):
        _, org, model, _, name = h.path.split("/", 4)
        if h.headers.get("Authorization"):
            return self._send(h, 400, b"a storage takes no token")
        repo = self.repos[f"{org}/{model}"]
        return self._bytes(h, repo, urllib.parse.unquote(name), {"ETag": '"storage"'})

    def _bytes(self, h, repo, name, headers):
        data, fault = repo.files[name], self.fault
        if fault.status.get(name, [0, 0])[1] and h.command == "GET":
            fault.status[name][1] -= 1
            return self._send(h, fault.status[name][0], b"{}")
        if fault.wrong[name] and h.command == "GET":
            fault.wrong[name] -= 1
            data = data[:-1] + bytes([data[-1] ^ 1])
        if name in fault.longer:
            data = data + b"and more"
        if name in fault.shorter:
            data = data[:len(data) // 2]
        status, total = 200, len(data)
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", h.headers.get("Range", ""))
        if asked and name not in fault.no_ranges:
            first, last = int(asked[1]), min(int(asked[2] or total - 1), total - 1)
            status, data = 206, data[first:last + 1]
            headers = {**headers, "Content_Range": f"bytes {first}-{last}/{total}"}
        h.send_response(status)
        for key, value in headers.items():
            h.send_header(key.replace("_", "-"), value)
        h.send_header("Content-Length", str(len(data)))
        h.end_headers()
        if h.command == "HEAD":
            return None
        cut = fault.cut.get(name)
        if cut and cut[1]:
            cut[1] -= 1
            h.wfile.write(data[:cut[0]])
            h.wfile.flush()
            h.close_connection = True
            return h.connection.shutdown(2)
        for at in range(0, len(data), 65536):
            h.wfile.write(data[at:at + 65536])
            if fault.slow:
                time.sleep(fault.slow)
            if fault.stall:
                h.wfile.flush()
                fault.stall.wait(60)
        return None
