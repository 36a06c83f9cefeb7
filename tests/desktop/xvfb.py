"""kvrun-desktop under Xvfb: a display of its own, an empty state folder, scripts, the app's own account of itself."""
import glob, json, os, shutil, subprocess, sys, tempfile

ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), "..", ".."))
MODEL = os.path.join(ROOT, "models/bundled/recall-4m-f16.gguf")


def skip(why):
    print("skipped:", why)
    sys.exit(77)


class Display:
    """A virtual screen, and a folder for compiled shaders, as long as the tests."""

    def __init__(self, size="1280x900x24"):
        if not shutil.which("Xvfb"):
            skip("there is no Xvfb (Debian: package xvfb)")
        read, write = os.pipe()
        self.server = subprocess.Popen(["Xvfb", "-displayfd", str(write), "-screen", "0", size, "-nolisten", "tcp"],
                                       pass_fds=[write], stderr=subprocess.DEVNULL)
        os.close(write)
        with os.fdopen(read) as lines:  # number and newline come apart: a pipe closed in between ends the server
            number = lines.readline().strip()
        if not number:
            skip("Xvfb does not start here")
        self.name = ":" + number
        self.cache = tempfile.mkdtemp(prefix="kvrun-desktop-cache-")

    def close(self):
        self.server.terminate()
        self.server.wait()
        shutil.rmtree(self.cache, ignore_errors=True)


class Desktop:
    """The program with a folder of its own for what it keeps and what scripts write."""

    def __init__(self, program, display, device="llvmpipe", model=MODEL):
        self.program, self.display, self.device, self.model = os.path.abspath(program), display, device, model
        self.folder = tempfile.mkdtemp(prefix="kvrun-desktop-")
        self.env = {}  # more of it

    def path(self, name):
        return os.path.join(self.folder, name)

    def start(self, script, *options, device=None):
        with open(self.path("script"), "w") as f:
            f.write("\n".join(script) + "\n")
        drop = ("KVRUN_", "WAYLAND", "QT_", "HF_", "OLLAMA_", "DBUS_", "XDG_")
        env = {k: v for k, v in os.environ.items() if not k.startswith(drop)}
        env.update(DISPLAY=self.display.name, QT_QPA_PLATFORM="xcb", HOME=self.folder,
                   XDG_STATE_HOME=self.path("state"), XDG_CACHE_HOME=self.display.cache)
        env.update(self.env)
        pairs = {"--device": device or self.device, "--scale": "1", "--width": "1000", "--height": "720",
                 "--theme": "light", "--script": "script"}
        pairs.update(zip(options[::2], options[1::2]))  # later ones take the place of earlier ones
        model = [self.model] if self.model else []
        command = [self.program, *model, *(w for pair in pairs.items() for w in pair if pair[1] is not None)]
        return subprocess.Popen(command,
                                cwd=self.folder,
                                env=env,
                                text=True,
                                stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE)

    def run(self, script, *options, timeout=900, **more):
        """What the program printed; fails where it does."""
        process = self.start(script, *options, **more)
        out, err = process.communicate(timeout=timeout)
        if process.returncode != 0:
            raise AssertionError(f"exit code {process.returncode}: {err}{out}")
        return out

    def dump(self, name="dump"):
        with open(self.path(name)) as f:
            return json.load(f)

    def is_saved(self, title):
        """Whether a conversation with this title is on the disk."""
        for path in glob.glob(self.path("state/**/*.json"), recursive=True):
            with open(path) as f:
                if json.load(f).get("title") == title:
                    return True
        return False

    def picture(self, name):
        """Width, height and bytes of a .ppm."""
        with open(self.path(name), "rb") as f:
            assert f.readline() == b"P6\n"
            width, height = map(int, f.readline().split())
            f.readline()
            return width, height, f.read()

    def close(self):
        shutil.rmtree(self.folder, ignore_errors=True)


def colours(picture, region):
    """How many different colours a region of a picture has, and the share of its most frequent one."""
    width, height, data = picture
    x, y, w, h = (int(v) for v in region)
    count, total = {}, 0
    for row in range(max(y, 0), min(y + h, height)):
        line = data[(row * width + max(x, 0)) * 3 : (row * width + min(x + w, width)) * 3]
        for i in range(0, len(line), 3):
            c = line[i : i + 3]
            count[c] = count.get(c, 0) + 1
            total += 1
    return len(count), max(count.values()) / total
