"""Requests of attack.py to kvrun serve: valid requests and damaged ones; each process of that script has one server."""
import json
import os
import random
import shutil
import socket
import subprocess
import tempfile
import time
from multiprocessing import util

from attack_damage import damage_bytes

MODEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests", "golden", "tiny", "llama.gguf")
SECONDS, BYTES = 20, 4 << 30  # limits: time of an answer, memory of the server
SERVER = None  # of this process


def request(method, path, body=b"", headers=()):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *headers] + ([f"Content-Length: {len(body)}"] if body
                                                                          else [])
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def sound_requests():
    message = [{"role": "user", "content": "ab"}]
    posts = [("/v1/chat/completions", {"messages": message, "max_tokens": 3, "stream": True, "stop": ["b"], "seed": 1}),
             ("/v1/chat/completions", {"messages": message, "max_tokens": 2, "session": "a", "kv": "kivi2",
                                       "logprobs": True,
                                       "top_logprobs": 3}),
             ("/v1/completions", {"prompt": "a", "max_tokens": 3, "temperature": 0, "logprobs": 2}),
             ("/v1/completions", {"prompt": [1, 2, 3], "max_tokens": 1, "top_p": 0.5}),
             ("/v1/embeddings", {"input": "x"}), ("/completion", {"prompt": [1, "a"], "n_predict": 2, "n_probs": 1}),
             ("/apply-template", {"messages": [{"role": "user", "content": "a"},
                                               {"role": "assistant", "content": "b"}]}),
             ("/tokenize", {"content": "ab <s>", "add_special": True}), ("/detokenize", {"tokens": [1, 2, 300]})]
    out = [request("POST", path, json.dumps(body).encode()) for path, body in posts]
    out += [request("GET", p) for p in ("/", "/health", "/metrics", "/slots", "/sessions", "/sessions/a", "/v1/models",
                                        "/none")]
    out += [request("DELETE", "/sessions/a"), request("OPTIONS", "/", headers=["Origin: http://localhost"]),
            b"POST /tokenize HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nf\r\n{\"content\": \"\"}\r\n0\r\n\r\n"]
    return out


def damaged_request(r):
    data = r.choice(sound_requests())
    kind = r.random()
    if kind < 0.4:
        return damage_bytes(r, data)
    head, _, body = data.partition(b"\r\n\r\n")
    if kind < 0.8 and body.startswith(b"{"):  # changes a field's value or adds a field
        j = json.loads(body[:body.rindex(b"}") + 1])
        for _ in range(r.choice([1, 1, 2, 4])):
            value = r.choice([
                None, True, -1, 0, 1 << 31, 1 << 64, 1.5, 1e308, "", "x" * 5000, "\0", [], {}, [[]], [{"role": "user"}],
                "../../etc/passwd", "a/b", "kivi2,group=7", ["a"] * 20, {"type": "json_object"}, "\ud83d\ude00"
            ])
            j[r.choice(list(j) + ["n", "tools", "kv", "session", "logit_bias", "response_format", "stream_options",
                                  "top_k"])] = value
        body = json.dumps(j).encode()
        path = head.split(b" ")[1].decode()
        return request("POST", path, body)
    lines = head.split(b"\r\n")
    lines.insert(1 + r.randrange(len(lines)), r.choice([
        b"Content-Length: -1", b"Content-Length: 99999999999", b"Transfer-Encoding: chunked", b"Expect: 100-continue",
        b"Host: evil",
        b"Origin: http://evil", b"Connection: close", b"X: " + b"a" * 20000, b" folded", b"Content-Encoding: gzip",
        b"\0: x", b":"]))
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


class AttackedServer:
    """A kvrun serve for the mutants of a process."""

    def __init__(self, kvrun):
        self.folder = tempfile.mkdtemp(prefix="attack-")
        self.path = os.path.join(self.folder, "socket")
        env = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN_")}
        self.said = open(os.path.join(self.folder, "said"), "wb+")
        self.process = subprocess.Popen([kvrun, "serve", MODEL, "--device", "cpu", "--unix", self.path,
                                         "--chat-template", "chatml", "--sessions", os.path.join(self.folder, "kept"),
                                         "-c", "256",
                                         "--timeout", "2"], stdout=subprocess.PIPE, stderr=self.said, env=env)
        self.process.stdout.readline()
        util.Finalize(None, self.end, exitpriority=1)  # workers of a pool run finalizers at their end, but not atexit

    def end(self):
        self.process.kill(), self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def send(self, data, r):
        """The response, until the server closes the connection or has answered."""
        out = b""
        with socket.socket(socket.AF_UNIX) as s:
            s.settimeout(SECONDS)
            s.connect(self.path)
            try:
                cut = r.randrange(len(data) + 1)
                s.sendall(data[:cut])
                s.sendall(data[cut:])
                if r.random() < 0.1:
                    return out  # the client leaves
                while piece := s.recv(65536):
                    out += piece
                    if out.endswith((b"0\r\n\r\n", b"}}", b"}", b"</html>\n")):
                        break
            except TimeoutError:
                return None
            except OSError:
                pass
        return out

    def memory(self):
        with open(f"/proc/{self.process.pid}/status", encoding="utf-8") as f:
            return next(int(line.split()[1]) << 10 for line in f if line.startswith("VmHWM"))


def attack_server(r, kvrun):
    """(code, seconds, bytes, problem) of a damaged request followed by a valid one."""
    global SERVER
    if SERVER is None:
        SERVER = AttackedServer(kvrun)
    data, start = damaged_request(r), time.monotonic()
    problem = None
    try:
        out = SERVER.send(data, r)
        seconds = time.monotonic() - start
        if out is None:
            problem = f"no answer in {SECONDS} s"
        elif out.startswith(b"HTTP/1.1 500"):
            problem = f"a fault of the server: {out[-300:]!r}"
        elif out and not out.startswith(b"HTTP/1.1 "):
            problem = f"an answer that is no HTTP: {out[:100]!r}"
        elif not (SERVER.send(request("GET", "/health"), random.Random(1)) or b"").startswith(b"HTTP/1.1 200"):
            problem = "no health after it"
    except OSError as e:
        seconds, problem = time.monotonic() - start, f"{e}"
    if SERVER.process.poll() is not None:
        problem = f"the server ended with {SERVER.process.returncode}"
    if problem:
        problem += f": {data[:2000]!r}"
    memory = 0 if SERVER.process.poll() is not None else SERVER.memory()
    if SERVER.process.poll() is not None:
        SERVER = None
    return 0, seconds, memory, problem or (f"took {memory >> 20} MiB" if memory > BYTES else None)
