"""Counted checks, and kvrun in an empty home folder, for Python tests that get the path of KVRUN as an argument."""
import os, pathlib, shutil, subprocess, sys, tempfile, threading

failures, checks, counting = [], 0, threading.Lock()
SETTINGS = ("HF_", "HUGGING", "KVRUN_", "LLAMA", "OLLAMA", "XDG_")  # of the caller, which no test has


def check(what, good, shown=""):
    global checks
    with counting:
        checks += 1
    if not good:
        failures.append(what)
        print(f"FAILED: {what}: {shown!r}", flush=True)


def finish():
    print(f"{checks} checks, {len(failures)} failed")
    sys.exit(1 if failures or not checks else 0)


class Home:
    def __init__(self, **env):
        self.home = pathlib.Path(tempfile.mkdtemp(prefix="kvrun-home-"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(SETTINGS) and "proxy" not in k.lower()}
        self.env |= {"HOME": str(self.home), "KVRUN_CACHE_DIR": "off", "TERM": "dumb", **env}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.home)

    def run(self, *words, stdin="", **env):
        return subprocess.run([sys.argv[1], *words], env=self.env | env, input=stdin, capture_output=True, text=True,
                              timeout=240)
