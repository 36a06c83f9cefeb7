"""A model hub on 127.0.0.1: the routes of huggingface.co's API that kvrun and huggingface_hub use, with faults."""
import contextlib, hashlib, http.server, json, os, re, threading, urllib.parse

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Repo:
    def __init__(self, files):
        """files: {path: bytes}; all are large files, but those whose path ends in .md."""
        self.files = dict(files)
        self.sizes = {}  # path -> a size that is not the file's
        self.hashes = {}  # path -> a SHA-256 that is not the file's
        self.token = None  # that must be given
        self.cut = []  # bytes after which each next transfer ends too soon
        self.whole = False  # ranges are ignored
        self.stall = []  # bytes after which each next transfer stays open and silent
        self.fail = []  # statuses of the next transfers of files
        self.says = b"later"  # text of these
        self.elsewhere = None  # files are redirected to this server
        self.page = 1000  # files of a page of the tree
        self.answer = None  # (status, body) of every request of the API

    def sha256(self, path):
        return self.hashes.get(path) or hashlib.sha256(self.files[path]).hexdigest()

    def tree(self):
        out = [{"type": "directory", "oid": "f" * 40, "size": 0, "path": "folder"}]
        for path, content in self.files.items():
            size = self.sizes.get(path, len(content))
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            entry = {"type": "file", "oid": blob, "size": size, "path": path}
            if not path.endswith(".md"):
                entry["lfs"] = {"oid": self.sha256(path), "size": size, "pointerSize": 134}
            out.append(entry)
        return out


class Hub:
    """While it lives, `address` serves `repos`; `requests` has (method, path, headers) of all requests."""

    def __init__(self, repos):
        self.repos, self.requests = repos, []
        self.proxied = False  # requests name whole addresses
        hub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle(self):
                with contextlib.suppress(ConnectionError):  # the client ends what it does not want any more
                    super().handle()

            def do_HEAD(self):
                hub.answer(self, body=False)

            def do_GET(self):
                hub.answer(self, body=True)

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()
        self.released = threading.Event()  # transfers that stall end

    def close(self):
        self.released.set()
        self.server.shutdown()
        self.server.server_close()

    def transfers(self):
        return [h.get("Range", "") for m, p, h in self.requests if m == "GET" and "/resolve/" in p]

    def send(self, to, status, content, headers=(), body=True):
        to.send_response(status)
        names = [n.lower() for n, _ in headers]
        for name, value in headers:
            to.send_header(name, value)
        if "content-length" not in names:
            to.send_header("Content-Length", str(len(content)))
        to.end_headers()
        if body:
            to.wfile.write(content)

    def answer(self, to, body):
        url = urllib.parse.urlsplit(to.path)
        self.proxied |= bool(url.netloc)
        self.requests.append((to.command, to.path, to.headers))
        path = urllib.parse.unquote(url.path)
        found = re.fullmatch(r"/(?:api/models/)?([^/]+/[^/]+)/(revision|tree|resolve)/([^/]+)(?:/(.*))?", path)
        repo = self.repos.get(found[1]) if found else None
        if not repo:
            return self.send(to, 404, b'{"error": "Repository not found"}', [("X-Error-Code", "RepoNotFound")], body)
        if repo.token and to.headers.get("Authorization") != f"Bearer {repo.token}":
            return self.send(to, 401, b'{"error": "Invalid credentials"}', body=body)
        kind, rest = found[2], found[4]
        if kind != "resolve" and repo.answer:
            return self.send(to, repo.answer[0], repo.answer[1], body=body)
        if kind == "revision":
            siblings = [{"rfilename": p} for p in repo.files]
            answer = json.dumps({"id": found[1], "sha": COMMIT, "siblings": siblings})
            return self.send(to, 200, answer.encode(), body=body)
        if kind == "tree":
            return self.send_tree(to, repo, urllib.parse.parse_qs(url.query), body)
        return self.send_file(to, repo, rest, body)

    def send_tree(self, to, repo, query, body):
        all_files, first = repo.tree(), int(query.get("cursor", ["0"])[0])
        headers = []
        if first + repo.page < len(all_files):
            base = f"{self.address}{urllib.parse.urlsplit(to.path).path}"
            headers.append(("Link", f'<{base}?recursive=true&cursor={first + repo.page}>; rel="next"'))
        self.send(to, 200, json.dumps(all_files[first:first + repo.page]).encode(), headers, body)

    def send_file(self, to, repo, path, body):
        if path not in repo.files:
            return self.send(to, 404, b"Entry not found", [("X-Error-Code", "EntryNotFound")], body)
        if repo.elsewhere and body:
            where = f"{repo.elsewhere.address}{to.path}"
            return self.send(to, 302, b"", [("Location", where)], body)
        if body and repo.fail:
            return self.send(to, repo.fail.pop(0), repo.says)
        content = repo.files[path]
        tag = repo.sha256(path)
        headers = [("X-Repo-Commit", COMMIT), ("ETag", f'"{tag}"'), ("X-Linked-Etag", f'"{tag}"'),
                   ("X-Linked-Size", str(len(content))), ("Accept-Ranges", "bytes")]
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", to.headers.get("Range", ""))
        status, first, last = 200, 0, len(content)
        if asked and not repo.whole:
            first = int(asked[1])
            last = min(last, int(asked[2]) + 1) if asked[2] else last
            if first >= len(content):
                return self.send(to, 416, b"", body=body)
            status = 206
            headers.append(("Content-Range", f"bytes {first}-{last - 1}/{len(content)}"))
        piece = content[first:last]
        headers.append(("Content-Length", str(len(piece))))
        if not body:
            return self.send(to, 200, b"", headers, body)
        faults = repo.stall or repo.cut
        silent = faults is repo.stall
        sent = piece[:faults.pop(0)] if faults else piece
        self.send(to, status, sent, headers)
        if len(sent) < len(piece):
            to.wfile.flush()
            if silent:
                self.released.wait(120)
            to.close_connection = True
