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
        env = {"PATH": folder + "/.bin:" + os.environ["PATH"], "TERM": "dumb", "PS1": "", "HOME": folder,
               "INPUTRC": "/dev/null"}
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
    os.mkdir(os.path.join(folder, ".bin"))
    os.symlink(program, os.path.join(folder, ".bin", "kvrun"))
    snapshot = os.path.join(folder, ".cache/huggingface/hub/models--Some-User--Tiny-GGUF/snapshots/main")
    own = os.path.join(folder, ".cache/kvrun/models")
    for model in (f"{snapshot}/Tiny-Q4_0.gguf", f"{snapshot}/Tiny-Q8_0.gguf", f"{own}/Talky 1$(touch x).gguf"):
        os.makedirs(os.path.dirname(model), exist_ok=True)
        open(model, "w").close()
    for typed, want in {
        "kvrun run Some": "kvrun|run|Some-User/Tiny-GGUF:Q|",
        "kvrun run Some-User/Tiny-GGUF:Q8": "kvrun|run|Some-User/Tiny-GGUF:Q8_0|",
        "kvrun chat -m Some-User/Tiny-GGUF:Q4": "kvrun|chat|-m|Some-User/Tiny-GGUF:Q4_0|",
        "kvrun bench --model=Some-User/Tiny-GGUF:Q4": "kvrun|bench|--model=Some-User/Tiny-GGUF:Q4_0|",
        "kvrun rm Tal": "kvrun|rm|Talky 1$(touch x)|",
        "kvrun list Tal": "kvrun|list|Talky 1$(touch x)|",
        "kvrun run --draft loo": "kvrun|run|--draft|lookup|",
        "kvrun run --draft story": "kvrun|run|--draft|story model.gguf|",
        "kvrun run --lora story.t": "kvrun|run|--lora|story.txt|",
        "kvrun run --grammar story.t": "kvrun|run|--grammar|story.txt|",
        "kvrun chat --json-schema story.t": "kvrun|chat|--json-schema|story.txt|",
        "kvrun serve --chat-template story.t": "kvrun|serve|--chat-template|story.txt|",
        "kvrun run --kv tun": "kvrun|run|--kv|tuned:|",
        "kvrun run --kv au": "kvrun|run|--kv|auto|",
        "kvrun config sh": "kvrun|config|show|",
        "kvrun config show --ori": "kvrun|config|show|--origin|",
        "kvrun compare mer": "kvrun|compare|merge|",
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
    check("names of models are no commands", not os.path.exists(os.path.join(folder, "x")))
    start = time.monotonic()
    subprocess.run([program, "list", "--names"], env={"HOME": folder}, capture_output=True)
    check("names come at once", time.monotonic() - start < 1, time.monotonic() - start)


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
