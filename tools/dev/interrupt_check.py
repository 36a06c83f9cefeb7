#!/usr/bin/env python3
"""Measures how soon Ctrl-C ends a prompt: runs `kvrun run`, sends SIGINT at random moments of the prefill, and measures
the time until the program has ended.

Usage: interrupt_check.py KVRUN MODEL [--device NAME] [--words N] [--runs N] [--seed N]

Prints a line per run and the longest time; exit status 1 if a run ended for another reason."""
import argparse
import fcntl
import os
import pty
import random
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time


def run_once(args, prompt, wait):
    """Starts the program, interrupts it `wait` seconds after the prefill has begun; returns (seconds, its output)."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    command = [args.kvrun, "run", "-m", args.model, "-f", prompt, "-n", "1", "--temp", "0", "--device", args.device]
    program = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=slave, stderr=slave,
                               env={**os.environ, "TERM": "xterm"})
    os.close(slave)
    said, sent = b"", None
    begun = None
    while True:
        ready, _, _ = select.select([master], [], [], 0.005)
        if ready:
            try:
                piece = os.read(master, 65536)
            except OSError:  # the other end is closed
                break
            if not piece:
                break
            said += piece
        if begun is None and b"reading" in said:
            begun = time.monotonic()
        if begun is not None and sent is None and time.monotonic() - begun >= wait:
            sent = time.monotonic()
            program.send_signal(signal.SIGINT)
    program.wait()
    ended = time.monotonic()
    os.close(master)
    return (ended - sent if sent else None), said.decode(errors="replace")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("kvrun")
    p.add_argument("model")
    p.add_argument("--device", default="best")
    p.add_argument("--words", type=int, default=9000, help="words of the prompt")
    p.add_argument("--runs", type=int, default=20)
    p.add_argument("--within", type=float, default=20, help="seconds of the prefill in which the moments lie")
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()
    rng = random.Random(args.seed)
    print(f"seed {args.seed}, load average {os.getloadavg()[0]:.1f}")
    longest, bad = 0.0, 0
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as f:
        f.write(" ".join(rng.choice(["the", "a", "of", "and", "in", "to"]) for _ in range(args.words)))
        f.flush()
        for i in range(args.runs):
            wait = rng.uniform(0, args.within)
            seconds, said = run_once(args, f.name, wait)
            end = re.search(r"prompt [^\r\n]*?tok/s|# [^\r\n]*", said)
            if seconds is None or "cancelled" not in said:
                bad += 1
                print(f"run {i + 1}: not interrupted: {said.splitlines()[-1:]}")
                continue
            longest = max(longest, seconds)
            print(f"run {i + 1}: SIGINT after {wait:.2f} s, ended {seconds * 1e3:.0f} ms later; {end.group(0) if end else ''}", flush=True)
    print(f"longest {longest * 1e3:.0f} ms")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
