"""Starts a kvrun serve for each test; requests to it, and counted checks."""
import contextlib, http.client, json, os, re, select, signal, socket, subprocess, sys, threading, time

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
MODEL = os.path.join(ROOT, "models", "bundled", "recall-4m-f16.gguf")
TINY = os.path.join(ROOT, "tests", "golden", "tiny", "llama_q8_0.gguf")
# kvrun.exe under Wine (tools/dev/windows_tests.sh): Ctrl-C ends it as SIGTERM does elsewhere; it has no Unix sockets.
WINDOWS = "KVRUN_TEST_WINDOWS" in os.environ
SLOW = 10 if "TSAN_OPTIONS" in os.environ else 4 if WINDOWS else 1  # how much longer to wait
END = signal.SIGINT if WINDOWS else signal.SIGTERM
failures, checks = [], 0


def check(what, good, shown=""):
    global checks
    checks += 1
    if not good:
        failures.append(what)
        print(f"FAILED: {what}: {shown!r}", flush=True)


def equal(what, got, wanted):
    check(what, got == wanted, f"{got!r} is not {wanted!r}")


def posix(part, *arguments):
    """Runs a part that needs signals, Unix sockets, limits or links of the program under test."""
    if WINDOWS:
        print(f"skipped: {part.__name__}, for a Windows program")
    else:
        part(*arguments)


def finish():
    print(f"{checks} checks, {len(failures)} failed")
    sys.exit(1 if failures or not checks else 0)


class Answer:
    def __init__(self, response, body):
        self.status, self.headers, self.body = response.status, response.headers, body

    def json(self):
        return json.loads(self.body)

    def error(self):
        """The message of an error in OpenAI's form; None if it is not one."""
        try:
            e = self.json()["error"]
            return e["message"] if {"message", "type", "param", "code"} <= set(e) else None
        except (ValueError, KeyError, TypeError):
            return None

    def events(self):
        """Events of a stream without the last one, which must be [DONE]."""
        lines = [e for e in self.body.decode().split("\n\n") if e and not e.startswith(":")]
        check("a stream ends with [DONE]", lines and lines[-1] == "data: [DONE]", lines[-1:])
        return [json.loads(e[len("data: "):]) for e in lines[:-1]]


    def named_events(self):
        """Events of a stream with named events, whose data repeat the name."""
        out = []
        for e in self.body.decode().split("\n\n"):
            if not e or e.startswith(":"):
                continue
            name, data = e.split("\n")
            out.append(json.loads(data[len("data: "):]))
            check("an event has the name of its data", name == "event: " + out[-1]["type"], e)
        return out


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


class Server:
    def __init__(self, *options, model=MODEL, device="cpu", prefix=(), unix=None, env=None, scheme="http"):
        where = ["--unix", unix] if unix else ["--port", "0"]
        command = [*prefix, sys.argv[1], "serve", model, "--device", device, *where, *options]
        self.process = subprocess.Popen(command,
                                        stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE,
                                        env={**os.environ, **(env or {})})
        line = self.process.stdout.readline().decode()
        found = re.search(rf"listening on (?:{scheme}://127\.0\.0\.1:(\d+)(?:/\S+)?|unix:(.+))$", line)
        if not found or (found.group(2) or None) != unix:
            raise RuntimeError(f"{command} said {line!r} {self.process.stderr.read().decode()!r}")
        self.port, self.unix = int(found.group(1) or 0), unix
        self.log = []
        self.reader = threading.Thread(target=lambda: self.log.extend(self.process.stderr), daemon=True)
        self.reader.start()

    def connect(self, timeout=120 * SLOW):
        if self.unix:
            return UnixConnection(self.unix, timeout)
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None):
        c = self.connect()
        with contextlib.closing(c):
            data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
            c.request(method, path, data, headers or {})
            r = c.getresponse()
            return Answer(r, r.read())

    def get(self, path, **headers):
        return self.ask("GET", path, headers=headers)

    def post(self, path, body, **headers):
        return self.ask("POST", path, body, headers)

    def raw(self, data, seconds=10, slow=0):
        """All bytes received for these ones; with `slow`, one byte is sent every `slow` seconds."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=seconds) as s:
            try:
                for i in range(0, len(data), 1 if slow else max(1, len(data))):
                    s.sendall(data[i:i + 1] if slow else data)
                    if slow and select.select([s], [], [], slow)[0]:
                        break
            except OSError:
                pass
            out = b""
            with contextlib.suppress(OSError):
                while True:
                    piece = s.recv(65536)
                    if not piece:
                        break
                    out += piece
            return out

    def slots(self):
        """Answers under way."""
        return [s for s in self.get("/slots").json() if s["is_processing"]]

    def metric(self, name):
        for line in self.get("/metrics").body.decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return None

    def wait_for(self, name, value, seconds=30 * SLOW):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.metric(name) == value:
                return True
            time.sleep(0.02)
        return False

    def cpu(self):
        """Seconds of processor time used so far."""
        with open(f"/proc/{self.process.pid}/stat", encoding="utf-8") as f:
            fields = f.read().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def alive(self):
        return self.process.poll() is None and self.get("/health").status == 200

    def stop(self, sig=END, seconds=60 * SLOW):
        """Stops the server; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sig)
        code = self.process.wait(seconds)
        self.reader.join(10)
        return code

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()


def until(what, seconds=60 * SLOW):
    """Whether what() becomes true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.01)
    return False


def at_once(calls):
    """Results of calls, each run in a thread."""
    out = [None] * len(calls)

    def run(i):
        try:
            out[i] = calls[i]()
        except Exception as e:  # shown by the check of this result
            out[i] = e

    threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    return out
