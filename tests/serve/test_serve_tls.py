#!/usr/bin/env python3
"""kvrun serve with a certificate: answers, streams and disconnects through TLS, and what is refused.
Usage: test_serve_tls.py KVRUN. Needs the program openssl, for a certificate."""
import contextlib, http.client, json, os, shutil, socket, ssl, subprocess, sys, tempfile, warnings
from serving import END, MODEL, SLOW, check, equal, finish, until

import serving

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
PLAIN = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 12, "ignore_eos": True}
LONG = {**PLAIN, "max_tokens": 1500, "stream": True}


def make_certificate(folder, name):
    cert, key = os.path.join(folder, name + ".pem"), os.path.join(folder, name + ".key")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost",
                    "-keyout", key, "-out", cert], check=True, stderr=subprocess.DEVNULL)
    return cert, key


class Server(serving.Server):
    """Listens with a certificate; connections verify it."""

    def __init__(self, cert, key, *options):
        self.trust = ssl.create_default_context(cafile=cert)
        super().__init__("--ssl-cert-file", cert, "--ssl-key-file", key, *options, scheme="https")

    def connect(self, timeout=120 * SLOW):
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=timeout, context=self.trust)


def answers(s, plain):
    equal("health", s.get("/health").status, 200)
    equal("an answer", s.post(COMPLETION, PLAIN).json()["choices"][0]["text"], plain)
    pieces = s.post(COMPLETION, {**PLAIN, "stream": True}).events()
    equal("a stream", "".join(e["choices"][0]["text"] for e in pieces if e["choices"]), plain)
    c = s.connect()
    with contextlib.closing(c):
        ports = set()
        for _ in range(3):
            c.request("GET", "/v1/models")
            equal("on one connection", c.getresponse().read()[:1], b"{")
            ports.add(c.sock.getsockname()[1])
        equal("one connection", len(ports), 1)
        check("at least TLS 1.2", c.sock.version() in ("TLSv1.2", "TLSv1.3"), c.sock.version())
    big = s.post(COMPLETION, {**PLAIN, "prompt": [5] * 300000})
    equal("a body of many records", (big.status, big.error() is not None), (400, True))
    page = s.get("/", Origin=f"https://127.0.0.1:{s.port}")
    check("the page, for its own origin", page.status == 200 and b"<html" in page.body.lower(), page.body[:80])
    equal("another origin", s.get("/v1/models", Origin=f"http://127.0.0.1:{s.port}").status, 403)


def refused(s, other):
    r = s.raw(b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    check("HTTP without TLS is told so", r.startswith(b"HTTP/1.1 400 ") and b"https://" in r, r)
    equal("bytes that are no TLS", s.raw(b"\x16\x03\x01\xff\xff" + b"x" * 70000).count(b"HTTP"), 0)
    strict = ssl.create_default_context(cafile=other)
    with contextlib.closing(http.client.HTTPSConnection("127.0.0.1", s.port, timeout=20, context=strict)) as c:
        try:
            c.request("GET", "/health")
            check("a client that does not know the certificate", False, c.getresponse().status)
        except ssl.SSLCertVerificationError:
            check("a client that does not know the certificate", True)
    warnings.simplefilter("ignore", DeprecationWarning)  # of the versions that are refused
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    with contextlib.suppress(ValueError):  # of a client that does not know them any more
        old.set_ciphers("ALL:@SECLEVEL=0")
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
        try:
            with socket.create_connection(("127.0.0.1", s.port), timeout=20) as plain, old.wrap_socket(plain) as t:
                check("TLS 1.1", False, t.version())
        except OSError as e:  # the server's alert, not the client's own refusal
            check("TLS 1.1", "ALERT_PROTOCOL_VERSION" in str(e), e)
    equal("afterwards", s.get("/health").status, 200)


def leaving(s):
    for how in ("close", "cut"):
        c = s.connect()
        c.request("POST", COMPLETION, json.dumps(LONG))
        r = c.getresponse()
        check("a stream has begun", r.read(20).startswith(b"data:"))
        if how == "cut":  # without a goodbye of TLS
            with socket.socket(fileno=os.dup(c.sock.fileno())) as s2:
                s2.shutdown(socket.SHUT_RDWR)
        r.close(), c.close()
        check(f"a client that leaves ({how}) ends its answer",
              until(lambda: s.metric("kvrun_answers_active") == 0, 20 * SLOW))
    halves = []
    for _ in range(8):  # connections that never finish their handshake are closed after --timeout
        h = socket.create_connection(("127.0.0.1", s.port), timeout=20 * SLOW)
        h.sendall(b"\x16\x03\x01\x02\x00")
        halves.append(h)
    ends = [h.recv(1) for h in halves]
    equal("unfinished handshakes are closed", ends, [b""] * 8)
    for h in halves:
        h.close()
    c = s.connect()
    with contextlib.closing(c):
        c.request("POST", COMPLETION, json.dumps({**LONG, "max_tokens": 60}))
        r = c.getresponse()
        r.read(20)
        s.process.send_signal(END)
        check("a stream is finished after SIGTERM", b"[DONE]" in r.read())
    equal("exit code", s.process.wait(30 * SLOW), 0)


def bad_files(folder, cert, key, other_key):
    empty, locked = os.path.join(folder, "empty"), os.path.join(folder, "locked.key")
    open(empty, "w").close()
    subprocess.run(["openssl", "pkey", "-in", key, "-aes256", "-passout", "pass:secret", "-out", locked], check=True)
    wrong = [((cert,), 2, "go together"), ((empty, key), 5, empty), ((folder + "/none", key), 5, "none"),
             ((cert, empty), 5, empty), ((cert, other_key), 5, other_key), ((key, key), 5, key),
             ((cert, locked), 5, "password"), ((cert, key, "--unix", folder + "/s"), 2, "--unix")]
    for files, code, says in wrong:
        words = ["--ssl-cert-file", files[0], *(["--ssl-key-file", files[1]] if len(files) > 1 else []), *files[2:]]
        r = subprocess.run([sys.argv[1], "serve", MODEL, "--device", "cpu", "--port", "0", *words],
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                           timeout=60 * SLOW)
        check(f"{words}", r.returncode == code and says in r.stderr and r.stderr.count("\n") == 1,
              (r.returncode, r.stderr))


def main():
    if not shutil.which("openssl"):
        print("skipped: no program openssl, which makes a certificate; install package openssl")
        return
    with tempfile.TemporaryDirectory() as folder:
        cert, key = make_certificate(folder, "own")
        other, other_key = make_certificate(folder, "other")
        try:
            s = Server(cert, key, "--timeout", "3")
        except RuntimeError as e:
            if "built without" not in str(e):
                raise
            print("skipped: this kvrun was built without TLS")
            return
        with serving.Server() as without:
            plain = without.post(COMPLETION, PLAIN).json()["choices"][0]["text"]
        with s:
            answers(s, plain)
            refused(s, other)
            leaving(s)
        bad_files(folder, cert, key, other_key)
    finish()


main()
