#!/usr/bin/env python3
"""Times of kvrun-desktop's frames while a long prompt is read and while it is answered, and the memory of the window
without a model. Usage: frames.py KVRUN_DESKTOP [--tokens N] [--seconds S] [--model FILE] [--device NAME]
--seconds: look at the first S seconds of the reading, and wait for no answer; for machines that are slow or busy."""
import argparse, os, time
from walk import store
from xvfb import MODEL, ROOT, Desktop, Display

def memory(program, size="1280x800", scale="1", with_conversations=False):
    """Prints what the window takes without a model: on its start page, or with long answers in several scripts."""
    width, height = (int(n) for n in size.split("x"))
    display = Display(size + "x24")
    app = Desktop(program, display, None, None)
    try:
        if with_conversations:
            store(app)
        app.env["QT_SCALE_FACTOR"] = scale
        steps = ["wait models", "wait 1"] + ["key Escape", "wait 0.5", "key ctrl+Tab", "wait 1"] * with_conversations
        process = app.start([*steps, "screenshot one.ppm", "wait 1", "dump at_end", "wait 60", "quit"],
                            "--device", None, "--scale", None, "--width", str(int(width / float(scale))),
                            "--height", str(int(height / float(scale))))
        while not os.path.exists(app.path("at_end")) and process.poll() is None:
            time.sleep(0.1)
        with open(f"/proc/{process.pid}/smaps_rollup") as f:
            kib = {line.split(":")[0]: int(line.split()[1]) for line in f if line.endswith("kB\n")}
        process.kill()
        process.communicate()
    finally:
        app.close()
        display.close()
    what = "long answers" if with_conversations else "start page"
    print(f"memory without a model, {what}, {size}, scale {scale}: resident {kib['Rss'] / 1024:.0f} MiB, "
          f"of them its own {kib['Pss'] / 1024:.0f} MiB")


def main():
    a = argparse.ArgumentParser()
    a.add_argument("program")
    a.add_argument("--tokens", type=int, default=9000)
    a.add_argument("--seconds", type=int, default=0)
    a.add_argument("--model", default=MODEL)
    a.add_argument("--device", default="llvmpipe")
    o = a.parse_args()
    memory(o.program)
    memory(o.program, "3840x2160", "2", True)
    display = Display()
    app = Desktop(o.program, display, o.device, o.model)
    try:
        with open(os.path.join(ROOT, "models/bundled/record40.txt")) as f:
            record = f.read()
        with open(app.path("long"), "w") as f:  # 2.59 bytes of this text are a token of the bundled model
            f.write((record * (o.tokens * 3 // len(record) + 1))[: int(o.tokens * 2.59)])
        common = ("--chat-template", "chatml", "--temp", "0", "-n", "48", "-c", str(o.tokens + 2000), "--kv", "kivi2")
        begin = ["wait loaded", "paste long", "wait 1", "key Return", "wait reading", "frames clear"]
        whole = ["wait answering 1500", "frames show", "frames clear", "wait idle", "frames show"]
        part = [f"wait {o.seconds}", "frames show"]
        out = app.run(begin + (part if o.seconds else whole) + ["dump dump", "quit"],
                      *common, timeout=1800).splitlines()
        c = app.dump()["conversations"][0]
        if o.seconds:
            print(f"{c['read_share']:.0%} of about {o.tokens} tokens were read in {o.seconds} s")
        else:
            print(f"prompt and answer: {sum(c['tiers'])} tokens in the cache")
        for what, line in zip(("reading the prompt", "answering"), out):
            print(f"{what}: {line}")
    finally:
        app.close()
        display.close()


if __name__ == "__main__":
    main()
