#!/usr/bin/env python3
"""Completions of kvrun as a user gets them: bash with the Tab key on a terminal, fish by its own query; syntax of
all scripts. Usage: completion.py KVRUN."""
import os, pty, re, select, shutil, subprocess, sys, tempfile, time

program = os.path.abspath(sys.argv[1])
failures = []


def check(what, good, shown=""):
    if not good:
        failures.append(f"{what}: {shown!r}")


def script(shell, folder):
    path = os.path.join(folder, f"completion.{shell}")
    with open(path, "wb") as f:
        f.write(subprocess.run([program, "completion", shell], check=True, capture_output=True).stdout)
    return path


def read_until(terminal, pattern, seconds=20):
    text, end = b"", time.monotonic() + seconds
    while time.monotonic() < end and not re.search(pattern, text, re.S):
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                text += os.read(terminal, 4096)
            except OSError:
                break
    return text.decode(errors="replace")


def bash_line(completion, typed, folder):
    """The line after Tab was pressed at the end of `typed`, in an interactive bash."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        env = {"PATH": os.environ["PATH"], "TERM": "dumb", "PS1": "", "HOME": folder, "INPUTRC": "/dev/null"}
        os.execve(shutil.which("bash"), ["bash", "--norc", "--noprofile", "-i"], env)
    os.write(terminal, f"PS1='>'; bind 'set enable-bracketed-paste off'; source {completion}; echo rea''dy\n".encode())
    read_until(terminal, rb"ready\r\n.*>$")
    os.write(terminal, typed.encode() + b"\t")
    os.write(terminal, b"\x01printf '%s|' \x05\n")  # the line becomes arguments of printf
    text = read_until(terminal, rb"\n[^\r\n]*\|\r?\n?>$")
    os.write(terminal, b"\nexit\n")
    os.close(terminal)
    os.waitpid(pid, 0)
    lines = [l for l in text.replace("\r", "").split("\n") if l.rstrip(">").endswith("|")]
    return lines[-1].rstrip(">") if lines else text


def test_bash(folder):
    path = script("bash", folder)
    r = subprocess.run(["bash", "-n", path], capture_output=True, text=True)
    check("bash -n", r.returncode == 0, r.stderr)
    try:
        for end in pty.openpty():
            os.close(end)
    except OSError as e:
        print(f"no terminal ({e}): the Tab key in bash is not tested")
        return
    open(os.path.join(folder, "story model.gguf"), "w").close()
    open(os.path.join(folder, "story.txt"), "w").close()
    for typed, want in {
        "kvrun ben": "kvrun|bench|",
        "kvrun help tok": "kvrun|help|tokenize|",
        "kvrun run --temper": "kvrun|run|--temperature|",
        "kvrun run -ng": "kvrun|run|-ngl|",
        "kvrun plan --kv zip": "kvrun|plan|--kv|zipcache|",
        "kvrun bench --kv fp16,xq": "kvrun|bench|--kv|fp16,xquant|",
        "kvrun bench --kv=zip": "kvrun|bench|--kv=zipcache|",
        "kvrun bench -o j": "kvrun|bench|-o|json|",
        "kvrun run -m sto": "kvrun|run|-m|story model.gguf|",
        "kvrun run sto": "kvrun|run|story model.gguf|",
        "kvrun completion fi": "kvrun|completion|fish|",
    }.items():
        got = bash_line(path, typed, folder)
        check(f"bash: Tab after '{typed}'", got == want, got)


def test_zsh(folder):
    path = script("zsh", folder)
    r = subprocess.run(["zsh", "-n", path], capture_output=True, text=True)
    check("zsh -n", r.returncode == 0, r.stderr)


def test_fish(folder):
    path = script("fish", folder)
    r = subprocess.run(["fish", "-n", path], capture_output=True, text=True)
    check("fish -n", r.returncode == 0, r.stderr)
    for typed, want in {"kvrun ben": "bench", "kvrun run --temper": "--temperature",
                        "kvrun plan --kv zip": "zipcache"}.items():
        r = subprocess.run(["fish", "-c", f"source {path}; complete -C '{typed}'"], capture_output=True, text=True,
                           env={**os.environ, "HOME": folder})
        check(f"fish: '{typed}'", r.stdout.split("\t")[0] == want, r.stdout + r.stderr)


with tempfile.TemporaryDirectory() as folder:
    for shell, test in {"bash": test_bash, "zsh": test_zsh, "fish": test_fish}.items():
        if shutil.which(shell):
            test(folder)
        else:
            print(f"{shell} is not installed: its script is not tested")
print("\n".join(failures) or "completions: ok")
sys.exit(1 if failures else 0)
