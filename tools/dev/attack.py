#!/usr/bin/env python3
"""Attacks the program from outside: damaged files, odd options and a poor environment, through every command.

    tools/dev/attack.py [--kvrun FILE] [--seed N] [--mutants N] [--jobs N] [--only KIND,...] [--keep DIR]

Each mutant is a file or a set of options, given to the commands that read it. A run is a finding if it takes longer
than 20 s (on a machine that is not busy), ends by a signal or with an undocumented exit code (documented: 0, 2 to 6),
prints more than one line of error, or uses more than 4 GiB. Mutant number i of a seed is always the same: `--seed N
--first i --mutants 1` repeats it. Exit code 1 if there are findings; their inputs are kept in DIR [attack-found].
"""
import argparse
import concurrent.futures
import os
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time

from attack_damage import damage_bytes, damage_fields, gguf_fields
from attack_server import attack_server

ROOT = os.path.abspath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
TINY = os.path.join(ROOT, "tests", "golden", "tiny")
REPLAY = os.path.join(ROOT, "tests", "golden", "replay")
BUNDLED = os.path.join(ROOT, "models", "bundled", "recall-4m-f16.gguf")
SECONDS, BYTES = 20, 4 << 30
CODES = {0, 2, 3, 4, 5, 6}


# ---- kinds of mutants: each returns [(args, environment, input)] and writes its files into `folder`

def read(path):
    with open(path, "rb") as f:
        return f.read()


def write(folder, name, data):
    path = os.path.join(folder, name)
    with open(path, "wb") as f:
        f.write(data)
    return path


def model_commands(path):
    return [["inspect", path], ["inspect", path, "--check"], ["plan", "-m", path, "--kv", "kivi2", "--device", "cpu"],
            ["run", "-m", path, "--device", "cpu", "-p", "ab", "-n", "2", "-c", "64"], ["tokenize", "-m", path],
            ["eval", "-m", path, "--device", "cpu", "--task", "recall", "--lines", "1", "--samples", "1", "-c", "64"],
            ["bench", "-m", path, "--device", "cpu", "-p", "4", "-n", "1", "-r", "1"]]


def some(r, commands, n=3):
    return [(c, {}, b"some text\n") for c in r.sample(commands, min(n, len(commands)))]


def kind_gguf_fields(r, folder):
    data = read(os.path.join(TINY, r.choice([f for f in sorted(os.listdir(TINY)) if f.endswith(".gguf")])))
    return some(r, model_commands(write(folder, "m.gguf", damage_fields(r, data, gguf_fields(data)))))


def kind_gguf_bytes(r, folder):
    data = read(os.path.join(TINY, r.choice([f for f in sorted(os.listdir(TINY)) if f.endswith(".gguf")])))
    header = min(len(data), r.choice([64, 1024, 8192, len(data)]))
    return some(r, model_commands(write(folder, "m.gguf", damage_bytes(r, data[:header]) + data[header:])))


def kind_gguf_weights(r, folder):
    """NaN, infinity and huge values among the weights of a valid file."""
    data = bytearray(read(os.path.join(TINY, "llama.gguf")))
    for _ in range(r.choice([1, 100])):
        at = r.randrange(len(data) * 3 // 4, len(data) - 4) & ~3
        data[at:at + 4] = struct.pack("<f", r.choice([float("nan"), float("inf"), float("-inf"), 3e38, -3e38]))
    return some(r, model_commands(write(folder, "m.gguf", bytes(data))))


def kind_npy(r, folder):
    paths = {n: os.path.join(REPLAY, n + ".npy") for n in ("q", "k", "v", "dq")}
    which = r.choice(sorted(paths))
    data = read(paths[which])
    paths[which] = write(folder, "x.npy",
                         damage_bytes(r, data[:128]) + data[128:] if r.random() < 0.7 else damage_bytes(r, data))
    if r.random() < 0.1:  # a large sparse file
        with open(paths[which], "r+b") as f:
            f.truncate(r.choice([1 << 30, 6 << 30, 1 << 40]))
    args = ["replay", "--kv", r.choice(["fp16", "kivi2", "mikv", "h2o,budget=40"]), "--device", "cpu",
            "--out", os.path.join(folder, "out")]
    for name, path in paths.items():
        args += ["--" + name, path]
    return [(args, {}, b"")]


POLICY_WORDS = ["fp16", "kivi2", "kivi4", "mikv", "zipcache", "h2o", "streaming", "xquant", "asymkv2/1", "rtn4",
                "logquant",
                "group", "recent_keep", "flush", "eta", "sinks", "bits", "budget", "ratio", "probe", "k.bits",
                "v.scale",
                "salient.bits", "page", "W", "=", ",", "/", "@", "%", ".", "-1", "0", "1e9", "nan", "inf", "0.5", "32",
                "4294967296", "18446744073709551616", "on", "off", "token", "head", "", " ", "\n", "\x1b[31m", "é"]


def kind_policy(r, folder):
    text = "".join(r.choice(POLICY_WORDS) for _ in range(r.randrange(1, 14)))
    if r.random() < 0.05:
        text *= 20000 // max(len(text), 1)
    return some(r, [["plan", "-m", BUNDLED, "--kv", text, "--device", "cpu"],
                    ["run", "-m", os.path.join(TINY, "llama.gguf"), "--device", "cpu", "-p", "a", "-n", "1", "--kv",
                     text],
                    ["eval", "-m", os.path.join(TINY, "llama.gguf"), "--device", "cpu", "--task", "recall", "--lines",
                     "1",
                     "--samples", "1", "--kv", text]], 2)


OPTIONS = ["-m", "-p", "-f", "-n", "-c", "-ub", "--kv", "--kv-budget", "--temp", "--top-k", "--top-p", "--min-p",
           "--seed",
           "--stop", "--repeat-penalty", "--repeat-last-n", "--device", "--lines", "--sentences", "--samples", "--task",
           "--ask", "--chunks", "--score", "-d", "-r", "-o", "-ctk", "-ctv", "--json", "--special", "--truncate",
           "--raw",
           "--check", "--ids", "--decode", "--help", "--", "-", "--no-bos", "--ignore-eos", "--out", "--q", "--fill"]
VALUES = ["", "0", "-1", "1", "3", "64", "1e9", "nan", "inf", "-inf", "0x10", "1.5", "2147483648",
          "18446744073709551615",
          "99999999999999999999", "512M", "2G", "1e400", "a", "cpu", "q8_0", "recall", "needle", "/", "/dev/null",
          "/dev/zero",
          "/nonexistent", "/proc/self/mem", ".", "\xff", "%s%n", "$(x)", "a\nb", "=", ",", "0,1,2", "é" * 300]


def kind_options(r, folder):
    command = r.choice(["run", "bench", "plan", "inspect", "tokenize", "replay", "eval", "devices", ""])
    args = [command] if command else []
    tiny = os.path.join(TINY, "llama.gguf")
    if command in ("run", "bench", "plan", "tokenize", "eval") and r.random() < 0.8:
        args += ["-m", tiny]
    if command == "inspect" and r.random() < 0.8:
        args.append(tiny)
    if command in ("run", "bench", "eval") and r.random() < 0.9:
        args += ["--device", "cpu"]
    if command == "run" and r.random() < 0.7:
        args += ["-n", "2"]
    if command == "bench":
        args += ["-p", "4", "-n", "1", "-r", "1"]
    for _ in range(r.randrange(5)):
        args.append(r.choice(OPTIONS))
        if r.random() < 0.8:
            args.append(r.choice(VALUES))
    return [([a.replace("\0", "") for a in args], {"KVRUN_BACKEND": "cpu"} if r.random() < 0.8 else {}, b"text")]


def kind_environment(r, folder):
    names = ["KVRUN_BACKEND", "KVRUN_DEVICE", "KVRUN_LOG", "KVRUN_CHECK", "KVRUN_VALIDATE", "KVRUN_POISON",
             "KVRUN_SHADERS",
             "KVRUN_TEST_CAPS", "KVRUN_SUBMIT_MS", "KVRUN_CACHE_DIR", "KVRUN_PROBE", "HOME", "XDG_CACHE_HOME", "TERM",
             "VK_DRIVER_FILES", "VK_ICD_FILENAMES", "LC_ALL", "TZ"]
    garbage = write(folder, "icd.json", r.choice([b"", b"{", b"[]", b'{"ICD": {}}',
                                                  b'{"ICD": {"library_path": "/bin/sh"}}',
                                                  b'{"ICD": {"library_path": "' + b"a" * 5000 + b'"}}',
                                                  os.urandom(0) + b"\x7fELF"]))
    env = {}
    for _ in range(r.randrange(1, 4)):
        env[r.choice(names)] = r.choice(VALUES + [garbage, folder, "cpu", "1"]).replace("\0", "")
    env.pop("KVRUN_DUMP", None)
    return [(r.choice([["devices"], ["devices", "--json"], ["plan", "-m", BUNDLED, "--kv", "kivi2"],
                       ["run", "-m", os.path.join(TINY, "llama.gguf"), "-p", "a", "-n", "1"]]), env, b"")]


def kind_text(r, folder):
    pieces = [b"<s>", b"</s>", b"<|im_start|>", b"\xff", b"\xe2\x82", b"\0", b" " * 5000, b"a" * 20000, b"\n" * 3000,
              "\u0301".encode() * 2000, "😀".encode(), b"'ll", b"1" * 9000, bytes(range(256)), b"\xed\xa0\x80"]
    text = b"".join(r.choice(pieces) for _ in range(r.randrange(12)))
    path = write(folder, "text", text)
    tiny = os.path.join(TINY, r.choice(["llama.gguf", "qwen2.gguf", "phi3.gguf"]))
    return [(a, {}, text) for a in r.sample([
        ["tokenize", "-m", tiny], ["tokenize", "-m", tiny, "--special"], ["tokenize", "-m", tiny, "--decode"],
        ["run", "-m", tiny, "--device", "cpu", "-n", "1", "--truncate", "-f", path],
        ["eval", "-m", tiny, "--device", "cpu", "-f", path, "-c", "32", "--chunks", "1"]], 2)]


def kind_shader(r, folder):
    """KVRUN_SHADERS with damaged SPIR-V. Only words that kvrun checks are damaged, because drivers trust the rest."""
    data = struct.pack("<5I", 0x07230203, 0x10500, 0, 100, 0)
    for _ in range(r.randrange(1, 30)):
        n = r.randrange(0, 6)
        data += struct.pack("<I", n << 16 | r.choice([5, 15, 16, 20, 21, 28, 30, 32, 43, 51, 52, 59, 71, 72]))
        data += b"".join(
            struct.pack("<I", r.choice([0, 1, 2, 3, r.randrange(9), 0xFFFFFFFF])) for _ in range(max(n - 1, 0)))
    shaders = os.path.join(folder, "spv")
    os.makedirs(shaders)
    for name in ("embed", "rmsnorm", "texel_rmsnorm"):
        write(shaders, name + ".spv", data[:r.randrange(len(data) + 1)])
    return [(["run", "-m", os.path.join(TINY, "llama.gguf"), "--device", "0", "-p", "a", "-n", "1"],
             {"KVRUN_SHADERS": shaders, "KVRUN_CACHE_DIR": "off"}, b"")]


SESSION_POLICIES = ["fp16", "kivi2,recent_keep=8,flush=32", "zipcache,flush=25", "h2o,recent_keep=8,flush=16,budget=24"]


def chat_environment(folder):
    return {"XDG_STATE_HOME": os.path.join(folder, "state")}


CHAT = ["chat", os.path.join(TINY, "llama.gguf"), "--device", "cpu", "--chat-template", "chatml", "-c", "512", "-n",
        "4", "--temp", "0",
        "--chat", "c"]


def sound_chat(kvrun, policy):
    """The conversation and the cache of a saved chat: (NAME.json, NAME.kv)."""
    kept = SOUND.get(policy)
    if kept is None:
        with tempfile.TemporaryDirectory(prefix="attack-") as folder:
            env = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN_")}
            subprocess.run([kvrun] + CHAT + ["--kv", policy],
                           input=b"ab\n",
                           env={**env, **chat_environment(folder)},
                           check=True,
                           stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL,
                           timeout=300)
            chats = os.path.join(folder, "state", "kvrun", "chats")
            kept = SOUND[policy] = (read(os.path.join(chats, "c.json")), read(os.path.join(chats, "c.kv")))
    return kept


def session_fields(data):
    """(offset, width) of the numbers in a session file's header, and of the words of its tokens and books."""
    header = [(8, 4), (12, 4), (16, 8)] + [(24 + 8 * i, 8) for i in range(11)]
    return header + [(at, 4) for at in range(112, min(len(data) - 4, 4096), 4)]


def kind_session(r, folder):
    """Opens a saved chat with a damaged cache or a damaged conversation."""
    policy = r.choice(SESSION_POLICIES)
    conversation, cache = sound_chat(KVRUN, policy)
    if r.random() < 0.7:
        cache = damage_fields(r, cache, session_fields(cache)) if r.random() < 0.5 else damage_bytes(r, cache)
    else:
        conversation = damage_bytes(r, conversation)
    chats = os.path.join(folder, "state", "kvrun", "chats")
    os.makedirs(chats, mode=0o700)
    write(chats, "c.json", conversation), write(chats, "c.kv", cache)
    return [(CHAT + (["--kv", policy] if r.random() < 0.5 else []), chat_environment(folder), b"ef\n/stats\n")]


def kind_server(r, folder):
    return []  # its mutants are requests: attack_server()


def kind_memory(r, folder):
    args, env, text = r.choice(some(r, model_commands(os.path.join(TINY, "llama.gguf"))))
    return [(args, dict(env, ATTACK_AS=str(r.choice([32, 48, 64, 96, 128, 192, 256]) << 20)), text)]


def kind_limits(r, folder):
    """Limits: no file descriptors, files of a few bytes only."""
    args = r.choice([["devices"], ["run", "-m", os.path.join(TINY, "llama.gguf"), "--device", "0", "-p", "a", "-n",
                                   "1"]])
    limit = r.choice([{"ATTACK_NOFILE": str(r.randrange(4, 24))}, {"ATTACK_FSIZE": str(r.choice([0, 1, 64, 500]))}])
    return [(args, dict(limit, KVRUN_CACHE_DIR=os.path.join(folder, "cache")), b"")]


KINDS = {"gguf_fields": 30, "gguf_bytes": 16, "gguf_weights": 4, "npy": 12, "policy": 12, "options": 14,
         "environment": 4,
         "text": 8, "shader": 3, "memory": 4, "limits": 2, "session": 8, "server": 20}  # relative frequencies
SOUND, KVRUN = {}, None  # of this process


# ---- running

def limits_of(env):
    kinds = {"ATTACK_AS": resource.RLIMIT_AS, "ATTACK_NOFILE": resource.RLIMIT_NOFILE,
             "ATTACK_FSIZE": resource.RLIMIT_FSIZE}
    set_ = [(kinds[k], int(v)) for k, v in env.items() if k in kinds]

    def apply():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        for kind, value in set_:
            resource.setrlimit(kind, (value, value))
    return apply


def starved(pid, seconds):
    """Whether a process is slow only because others use the processors: it was runnable but has hardly run."""
    used, ready = 0, False
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/stat", encoding="utf-8") as f:
                fields = f.read().rsplit(")", 1)[1].split()
            ready |= fields[0] == "R"
            used += int(fields[11]) + int(fields[12])
    except OSError:
        pass
    return ready and used / os.sysconf("SC_CLK_TCK") < SECONDS / 2 and seconds < 15 * SECONDS


def run(kvrun, args, env, text, folder):
    """(code, seconds, bytes, stderr); code None: it was killed because it took too long."""
    whole = {k: v for k, v in os.environ.items() if not k.startswith("KVRUN_")}
    whole.update(KVRUN_CACHE_DIR=os.path.join(folder, "cache"))
    whole.update({k: v for k, v in env.items() if not k.startswith("ATTACK_")})
    with tempfile.TemporaryFile() as err, tempfile.TemporaryFile() as stdin:
        stdin.write(text), stdin.seek(0)
        start = time.monotonic()
        p = subprocess.Popen([kvrun] + args, stdin=stdin, stdout=subprocess.DEVNULL, stderr=err, env=whole, cwd=folder,
                             preexec_fn=limits_of(env))
        while True:
            pid, status, usage = os.wait4(p.pid, os.WNOHANG)
            seconds = time.monotonic() - start
            if pid:
                break
            if seconds > SECONDS and not starved(p.pid, seconds):
                p.kill()
                pid, status, usage = os.wait4(p.pid, 0)
                status = None
                break
            time.sleep(0.002)
        p.returncode = 0  # reaped
        err.seek(0)
        said = err.read(100000).decode("utf-8", "backslashreplace")
    code = None if status is None else os.waitstatus_to_exitcode(status)
    return code, seconds, usage.ru_maxrss * 1024, said


def problem_of(code, memory, said):
    if code is None:
        return f"took longer than {SECONDS} s"
    if code < 0:
        return f"ended by signal {-code}"
    if code not in CODES:
        return f"ended with {code}"
    if memory > BYTES:
        return f"took {memory >> 20} MiB"
    errors = [line for line in said.split("\n") if line.startswith("error: ")]
    if code != 0 and len(errors) != 1:
        return f"ended with {code} and {len(errors)} lines of error"
    if any(ord(c) < 32 and c not in "\n\t" for c in said.replace("\r", "")):
        return "wrote control characters to stderr"
    return None


def attack(options, number):
    r = random.Random(f"{options.seed} {number}")
    kinds = options.only.split(",") if options.only else list(KINDS)
    kind = r.choices(kinds, [KINDS[k] for k in kinds])[0]
    global KVRUN
    KVRUN = options.kvrun
    if kind == "server":
        code, seconds, memory, problem = attack_server(r, options.kvrun)
        return [(kind, code, seconds, memory, problem and f"mutant {number} ({kind}): {problem}")]
    folder = tempfile.mkdtemp(prefix="attack-")
    out = []
    try:
        for args, env, text in globals()["kind_" + kind](r, folder):
            code, seconds, memory, said = run(options.kvrun, args, env, text, folder)
            problem = problem_of(code, memory, said)
            if problem:
                kept = os.path.join(options.keep, f"{options.seed}-{number}")
                shutil.copytree(
                    folder,
                    kept,
                    dirs_exist_ok=True,
                    ignore=lambda d, names: [
                        n for n in names
                        if os.path.isfile(os.path.join(d, n)) and os.path.getsize(os.path.join(d, n)) > 1 << 24
                    ])
                shown = [a.replace(folder, kept) for a in args]
                problem = f"mutant {number} ({kind}): {problem}: kvrun {shown!r} {env!r}: {said[-300:]!r}"
            out.append((kind, code, seconds, memory, problem))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return out


def main():
    p = argparse.ArgumentParser(description="Attacks the program from outside.")
    p.add_argument("--kvrun", default=os.path.join(ROOT, "build", "kvrun"))
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--mutants", type=int, default=2000)
    p.add_argument("--jobs", type=int, default=2)
    p.add_argument("--only", default="", help="kinds: " + ",".join(KINDS))
    p.add_argument("--keep", default="attack-found")
    options = p.parse_args()
    options.kvrun, options.keep = os.path.abspath(options.kvrun), os.path.abspath(options.keep)
    print(f"seed {options.seed}, mutants {options.first} to {options.first + options.mutants - 1}", flush=True)
    runs, by_kind, by_code, findings, slowest, largest = 0, {}, {}, [], 0.0, 0
    with concurrent.futures.ProcessPoolExecutor(options.jobs) as pool:
        numbers = range(options.first, options.first + options.mutants)
        for results in pool.map(attack, [options] * len(numbers), numbers, chunksize=8):
            for n, (kind, code, seconds, memory, problem) in enumerate(results):
                runs += 1
                by_kind.setdefault(kind, [0, 0])
                by_kind[kind][0] += n == 0
                by_kind[kind][1] += 1
                by_code[code] = by_code.get(code, 0) + 1
                slowest, largest = max(slowest, seconds), max(largest, memory)
                if problem:
                    findings.append(problem)
                    print(problem, flush=True)
    print("kind: mutants, runs: " + "; ".join(f"{k}: {m}, {n}" for k, (m, n) in sorted(by_kind.items())))
    print("exit codes: " + ", ".join(f"{c}: {n}" for c, n in sorted(by_code.items(), key=lambda x: str(x[0]))))
    print(f"{options.mutants} mutants, {runs} runs, {len(findings)} findings, longest {slowest:.1f} s, most {largest >> 20} MiB")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
