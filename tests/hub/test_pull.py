#!/usr/bin/env python3
"""kvrun pull, list, rm, -hf and names, against a hub on 127.0.0.1 that has faults.

Usage: test_pull.py KVRUN [TEST...]
"""
import concurrent.futures, json, os, pathlib, signal, subprocess, sys, time

sys.path += [os.path.dirname(os.path.abspath(__file__)), str(pathlib.Path(__file__).resolve().parents[1] / "support")]
from checks import Home, check, finish
from hub_server import COMMIT, Hub, Repo

ROOT = pathlib.Path(__file__).resolve().parents[2]
TINY = ROOT / "tests" / "golden" / "tiny"
SMALL, LARGE = (TINY / "llama_q4_0.gguf").read_bytes(), (TINY / "llama_q8_0.gguf").read_bytes()
KVRUN = sys.argv[1]


def content(pulled):
    """Of the file whose path a pull has printed."""
    return pathlib.Path(pulled.stdout.strip()).read_bytes()


class Place(Home):
    """A hub with one repository, an empty home, and kvrun in it."""

    def __init__(self, files=None, repo="Some-User/Tiny-Chat-GGUF"):
        self.name, self.repo = repo, Repo(files or {"Tiny-Chat-Q4_0.gguf": SMALL, "README.md": b"# Tiny\n"})
        self.hub = Hub({repo: self.repo})
        super().__init__(HF_ENDPOINT=self.hub.address, KVRUN_DEVICE="cpu")
        self.cache = self.home / ".cache" / "huggingface" / "hub"
        self.folder = self.cache / ("models--" + repo.replace("/", "--"))

    def __exit__(self, *_):
        self.hub.close()
        super().__exit__()

    def run(self, *words, **more):
        r = super().run(*words, **more)
        check(f"{words}: no crash", r.returncode in (0, 2, 3, 4, 5, 6, 130), r)
        return r

    def pull(self, want="", **env):
        return self.run("pull", self.name + want, **env)

    def refused(self, what, r, code, *parts):
        """One line that says error: and has all the parts; nothing on stdout; nothing has got a name."""
        lines = [l for l in r.stderr.splitlines() if not l.startswith("# ")]
        check(f"{what}: exit code {code}", r.returncode == code, r)
        check(f"{what}: one line", len(lines) == 1 and lines[0].startswith("error: ") and not r.stdout, r)
        for p in parts:
            check(f"{what}: says {p}", p in r.stderr, r.stderr)
        check(f"{what}: no file", not list(self.folder.glob("snapshots/*/*")), self.files())

    def files(self):
        return sorted(str(p.relative_to(self.home)) for p in self.home.rglob("*") if not p.is_dir())


def test_layout():
    with Place() as p:
        r = p.pull()
        path = pathlib.Path(r.stdout.rstrip("\n"))
        check("pull ends well", r.returncode == 0, r)
        check("it prints the file's path", path == p.folder / "snapshots" / COMMIT / "Tiny-Chat-Q4_0.gguf", r.stdout)
        check("the content is there", path.read_bytes() == SMALL)
        blob = p.folder / "blobs" / p.repo.sha256("Tiny-Chat-Q4_0.gguf")
        check("it is a relative link to the blob", os.readlink(path) == f"../../blobs/{blob.name}", os.readlink(path))
        check("the branch has its commit", (p.folder / "refs" / "main").read_text() == COMMIT)
        check("no part is left", not list(p.folder.glob("blobs/*.incomplete")), p.files())
        n = len(p.hub.transfers())
        r = p.pull(":q4_0")
        check("what is here is not fetched again", r.returncode == 0 and len(p.hub.transfers()) == n, p.hub.requests)
        check("nor asked for by -hf", p.run("inspect", "-hf", p.name, HF_ENDPOINT="http://127.0.0.1:1").returncode == 0)
        for name in ("tiny", "Tiny-Chat", "some-user/tiny-chat-gguf", "Some-User/Tiny-Chat-GGUF:Q4_0",
                     "tiny-chat-q4_0", "hf.co/Some-User/Tiny-Chat-GGUF", "hf.co/some-user/tiny-chat-gguf:q4_0",
                     "https://huggingface.co/Some-User/Tiny-Chat-GGUF"):
            r = p.run("inspect", name, "--json")
            check(f"the name {name} is known", r.returncode == 0 and json.loads(r.stdout)["bytes"] == len(SMALL), r)
        r = p.run("run", "hf.co/some/other", stdin="x")
        check("an address of what is not here", r.returncode == 3 and "'kvrun pull hf.co/some/other'" in r.stderr, r)
        for folder in ("tiny", "some-user/tiny-chat-gguf", "other"):
            (p.home / folder).mkdir(parents=True)
            for given in (folder, "./" + folder, folder + "/"):
                r = subprocess.run([KVRUN, "inspect", given, "--json"], cwd=p.home, env=p.env, capture_output=True,
                                   text=True)
                known = given == folder and folder != "other"
                check(f"a folder {given} hides no model", r.returncode == 0 if known else "is a folder" in r.stderr, r)
            (p.home / folder).rmdir()
        (p.home / "some-user").rmdir()
        rows = json.loads(p.run("list", "--json").stdout)
        check("list has it", [(m["name"], m["owner"], m["bytes"]) for m in rows] ==
              [("Some-User/Tiny-Chat-GGUF:Q4_0", "hub", len(SMALL))], rows)
        r = p.run("list", "--names")
        check("its name alone", r.stdout == "Some-User/Tiny-Chat-GGUF:Q4_0\n" and not r.stderr, r)
        for command in ("rm", "list"):
            r = p.run(command, "teny-chat")
            check(f"{command} says what is not here, and what is", r.returncode == 3 and
                  "no model here is called 'teny-chat'; here is: Some-User/Tiny-Chat-GGUF:Q4_0" in r.stderr, r)
        r = p.run("rm", "tiny")
        check("rm takes the beginning of one name, and says which", r.returncode == 0 and
              "removed Some-User/Tiny-Chat-GGUF:Q4_0, " in r.stderr, r)
        check("nothing is left", not p.folder.exists(), p.files())
        check("it is known no more", p.run("inspect", "tiny").returncode == 3)


def test_huggingface_hub():
    """Each finds what the other fetched."""
    python = os.environ.get("KVRUN_TEST_HUB_PYTHON") or sys.executable

    def hub(call, **env):
        return subprocess.run([python, "-c", f"import huggingface_hub as h; {call}"], env=p.env | env,
                              capture_output=True, text=True)

    if subprocess.run([python, "-c", "import huggingface_hub"], capture_output=True).returncode:
        return print("left out: this python has no huggingface_hub, whose cache would be compared")
    with Place() as p:
        path = p.pull().stdout.strip()
        load = hub(f"print(h.try_to_load_from_cache({p.name!r}, 'Tiny-Chat-Q4_0.gguf'))")
        check("huggingface_hub finds what kvrun fetched", load.stdout.strip() == path, load)
        offline = hub(f"print(h.hf_hub_download({p.name!r}, 'Tiny-Chat-Q4_0.gguf'))", HF_HUB_OFFLINE="1")
        check("it loads it without network", offline.stdout.strip() == path, offline)
        scan = hub("i = h.scan_cache_dir(); print([(r.repo_id, r.size_on_disk) for r in i.repos], i.warnings)")
        check("its scan of the cache has it, without a warning",
              scan.stdout.strip() == f"[('{p.name}', {len(SMALL)})] []", scan)
    with Place() as p:
        load = hub(f"print(h.hf_hub_download({p.name!r}, 'Tiny-Chat-Q4_0.gguf'))")
        check("huggingface_hub fetches from this hub", load.returncode == 0, load)
        n = len(p.hub.transfers())
        r = p.run("inspect", "tiny-chat", "--json")
        check("kvrun finds what it fetched", r.returncode == 0 and json.loads(r.stdout)["bytes"] == len(SMALL), r)
        check("pull does not fetch it again", p.pull().returncode == 0 and len(p.hub.transfers()) == n, p.hub.requests)


def test_choice():
    files = {"Tiny-Q4_0.gguf": SMALL, "Tiny-Q8_0.gguf": LARGE, "mmproj-Tiny-f16.gguf": b"x" * 10}
    with Place(files) as p:
        r = p.pull()
        check("on a CPU the one of few bits is taken", r.stdout.strip().endswith("Tiny-Q4_0.gguf"), r)
        check("the reason has size, device and context",
              all(s in r.stderr for s in ("Q4_0", "largest", "free", "cache of")), r)
        r = p.pull(":Q8_0")
        check("a quant that is named is taken", r.stdout.strip().endswith("Tiny-Q8_0.gguf"), r)
        for address in ("https://huggingface.co/%s/blob/main/Tiny-Q8_0.gguf",
                        "hf.co/%s/resolve/main/Tiny-Q8_0.gguf?download=true"):
            again = p.run("pull", address % p.name)
            check("the address of a file names it", again.returncode == 0 and again.stdout == r.stdout, again)
        for page in ("/", "/tree/main", "?library=gguf"):
            again = p.run("pull", f"https://huggingface.co/{p.name}{page}")
            check("the address of a page names its repository",
                  again.returncode == 0 and "Tiny-Q4_0.gguf" in again.stdout, again)
        r = p.run("pull", "-hf", p.name)
        check("-hf of pull says what pull takes", r.returncode == 2 and "kvrun pull USER/REPO" in r.stderr, r)
        r = p.run("inspect", "tiny-chat")
        check("a name of two models is refused with both",
              r.returncode == 2 and "Q4_0" in r.stderr and "Q8_0" in r.stderr, r)
        r = p.run("rm", "Some-User/Tiny-Chat-GGUF-Q4_0")
        rows = json.loads(p.run("list", "--json").stdout)
        check("rm leaves the other", [m["name"][-4:] for m in rows] == ["Q8_0"], r)
    with Place(files) as p:
        p.refused("an unknown quant", p.pull(":Q3_K_S"), 3, "'Q3_K_S'", "Q4_0 (", "Q8_0 (")
        r = p.run("tokenize", "-hf", p.name + ":Tiny-Q8_0.gguf", stdin="a")
        check("-hf fetches a file by its name",
              r.returncode == 0 and list(p.folder.glob("snapshots/*/Tiny-Q8_0.gguf")), r)
        r = p.run("tokenize", "-hf", p.name + ":Q4_0", "-hff", "Tiny-Q8_0.gguf", stdin="a")
        check("a file counts where a quant is named, too", r.returncode == 0 and r.stdout, r)
        r = p.run("tokenize", "-hf", p.name, "-m", "x", stdin="a")
        check("-hf and -m together are refused", r.returncode == 2 and "give one" in r.stderr, r)


def test_ends_of_names():
    """UD-Q4_K_XL and others are how the name of a file ends; of NAME-Q4_0 and NAME-UD-Q4_0 the first is Q4_0."""
    files = {"Tiny-Q4_0.gguf": SMALL, "Tiny-UD-Q4_0.gguf": SMALL, "Tiny-UD-Q8_K_XL.gguf": LARGE,
             "Big-Q5_K.gguf": LARGE, "Tiny-Q5_K.gguf": LARGE}
    with Place(files) as p:
        for want, file in (("UD-Q8_K_XL", "Tiny-UD-Q8_K_XL"), ("ud-q4_0", "Tiny-UD-Q4_0"), ("Q4_0", "Tiny-Q4_0")):
            r = p.pull(":" + want)
            check(f"{want} is {file}", r.returncode == 0 and r.stdout.strip().endswith(f"/{file}.gguf"), r)
        for command in (["-hf", f"{p.name}:UD-Q8_K_XL"], [f"{p.name}:UD-Q8_K_XL"], ["-hf", f"{p.name}:Q4_0"]):
            r = p.run("tokenize", *command, stdin="a", HF_HUB_OFFLINE="1")
            check(f"{command} is the model that is here", r.returncode == 0, r)
        r = p.pull(":Q5_K")
        check("a quant of two models is refused", r.returncode == 3 and "Big-Q5_K (" in r.stderr, r)
        r = p.pull(":_K_XL")
        check("an end within a word is none", r.returncode == 3, r)


def test_choice_without_cache():
    """Of a model whose layers have states alone, nothing is chosen for a card that is too small for it."""
    scans = (TINY / "falcon_mamba.gguf").read_bytes()
    with Place({"Tiny-Q4_0.gguf": scans, "Tiny-Q8_0.gguf": scans + b"\0"}) as p:
        card = {"KVRUN_DEVICE": "llvmpipe", "XDG_RUNTIME_DIR": "/tmp"}
        if "llvmpipe" not in p.run("devices", **card).stdout:
            return print("left out: there is no lavapipe (package mesa-vulkan-drivers)")
        for heap in (1 << 16, 1 << 20):  # too small for the weights, and for the activations beside them
            p.refused(f"a card of {heap} bytes", p.pull(KVRUN_TEST_CAPS=f"heap={heap}", **card), 6, "do not fit",
                      ":QUANT fetches one nevertheless")
        r = p.pull(KVRUN_TEST_CAPS="heap=134217728", **card)
        check("a larger one has room", r.returncode == 0 and "that fits" in r.stderr, r)


def test_split():
    third = len(SMALL) // 3
    parts = [SMALL[:third], SMALL[third:2 * third], SMALL[2 * third:]]
    files = {f"Q4_0/Tiny-Q4_0-{i + 1:05}-of-00003.gguf": part for i, part in enumerate(parts)}
    with Place(files) as p:
        p.repo.page = 2  # parts are on two pages
        r = p.pull(":Q4_0")
        got = [q.read_bytes() for q in sorted(p.folder.glob("snapshots/*/Q4_0/*"))]
        check("all parts are fetched, in folders", r.returncode == 0 and got == parts, r)
        check("the first is the model", r.stdout.strip().endswith("-00001-of-00003.gguf"), r.stdout)
        rows = json.loads(p.run("list", "--json").stdout)
        check("list has it once", len(rows) == 1 and rows[0]["parts"] == 3 and rows[0]["bytes"] == len(SMALL), rows)
    del files["Q4_0/Tiny-Q4_0-00002-of-00003.gguf"]
    with Place(files) as p:
        p.refused("a part that is missing", p.pull(), 3, "no GGUF file")


def test_remove_split():
    """No part is left of a split model, also of one whose fetch was interrupted."""
    half = len(SMALL) // 2
    parts = {f"Tiny-Q4_0-{i + 1:05}-of-00002.gguf": part for i, part in enumerate([SMALL[:half], SMALL[half:]])}

    def interrupted(p):
        p.repo.cut = [len(SMALL), 100] + [0] * 20  # the first part is whole
        r = p.pull(":Q4_0")
        first = list(p.folder.glob("snapshots/*/*"))
        check("the first part has its name", r.returncode == 5 and len(first) == 1 and
              first[0].read_bytes() == SMALL[:half] and list(p.folder.glob("blobs/*.incomplete")), (r, p.files()))
        return first[0]

    for address in ("", "hf.co/"):
        with Place(parts) as p:
            interrupted(p)
            r = p.run("rm", address + p.name)
            check("rm of the repository takes the part that is whole", r.returncode == 0 and
                  f"removed {address}{p.name}, " in r.stderr and p.files() == [], (r, p.files()))
    with Place(parts) as p:
        interrupted(p).unlink()
        check("and one that has no name yet", p.run("rm", p.name).returncode == 0 and p.files() == [], p.files())
    with Place({**parts, "Tiny-Q8_0.gguf": LARGE}) as p:
        check("another model is here", p.pull(":Q8_0").returncode == 0)
        (p.folder / "snapshots" / COMMIT / "README.md").write_bytes(b"# Tiny")
        p.repo.cut = [len(SMALL), 100] + [0] * 20
        p.pull(":Q4_0")
        r = p.run("rm", p.name + ":Q8_0")
        left = sorted(q.name for q in p.folder.glob("snapshots/*/*"))
        check("rm of one model leaves the part", r.returncode == 0 and left ==
              ["README.md", "Tiny-Q4_0-00001-of-00002.gguf"], (r, left))
        p.repo.cut = []
        check("it is fetched again", p.pull(":Q8_0").returncode == 0)
        check("rm of the repository takes all", p.run("rm", p.name).returncode == 0 and p.files() == [], p.files())
    with Place() as p:
        other = p.folder / "snapshots" / COMMIT / "model.safetensors"
        other.parent.mkdir(parents=True)
        other.write_bytes(b"x")
        r = p.run("rm", p.name)
        check("a repository without GGUF files is left alone", r.returncode == 3 and "no GGUF file" in r.stderr and
              other.exists(), (r, p.files()))
    with Place() as p:
        own = p.home / ".cache/kvrun/models"
        (own / "more").mkdir(parents=True)
        for name, part in parts.items():
            (own / "more" / name).write_bytes(part)
            (own / "more" / (name + ".sha256")).write_bytes(b"")
        (own / "Other-Q4_0.gguf").write_bytes(SMALL)
        whole = p.run("rm", "Other-Q4_0").stderr
        (own / "Other-Q4_0.gguf").write_bytes(SMALL)
        r = p.run("rm", "Tiny-Q4_0")
        check("rm takes all parts from kvrun's own folder", r.returncode == 0 and
              [q.name for q in own.rglob("*") if not q.is_dir()] == ["Other-Q4_0.gguf"], (r, p.files()))
        check("and counts them", r.stderr.replace("Tiny", "Other") == whole, (r.stderr, whole))
        (own / "more" / "Other-Q4_0.gguf").write_bytes(LARGE)
        r = p.run("rm", "Other-Q4_0")
        check("a name of two models is refused", r.returncode == 2 and "means 2 models" in r.stderr and
              len(list(own.rglob("Other-Q4_0.gguf"))) == 2, (r, p.files()))


def test_encoder():
    """A repository's vision encoder comes with its models, is used with them and goes with the last one."""
    vision = ROOT / "tests" / "golden" / "vision"
    model, encoder = ((vision / name).read_bytes() for name in ("text.gguf", "mlp.gguf"))
    files = {"Sees-Q4_0.gguf": model, "Sees-Q8_0.gguf": model + b"\0", "mmproj-Sees-f32.gguf": encoder + b"\0",
             "mmproj-Sees-f16.gguf": encoder, "more/mmproj-other-f16.gguf": encoder}
    image = ("run", "--image", vision / "tile.png", "-p", "a b", "-n", "4", "--temp", "0", "--json")

    def answer(r):
        return [json.loads(r.stdout or "{}").get(k) for k in ("prompt_tokens", "text")]

    def names(p):
        return sorted(q.name for q in p.folder.glob("snapshots/*/**/*") if not q.is_dir())

    with Place(files) as p:
        r = p.pull(":Q4_0")
        check("the encoder in f16 comes with it", names(p) == ["Sees-Q4_0.gguf", "mmproj-Sees-f16.gguf"], names(p))
        check("the model's path is printed alone", r.stdout.endswith("/Sees-Q4_0.gguf\n") and
              r.stdout.count("\n") == 1, r)
        rows = json.loads(p.run("list", "--json").stdout)
        check("list has it", len(rows) == 1 and rows[0]["mmproj"].endswith("/mmproj-Sees-f16.gguf"), rows)
        explicit = p.run(*image, "-m", vision / "text.gguf", "--mmproj", vision / "mlp.gguf")
        for words in (("-m", "tiny-chat"), ("-hf", p.name)):
            r = p.run(*image, *words)
            same = r.returncode == 0 and answer(r) == answer(explicit)
            check(f"{words}: the model reads images", same, (r, explicit))
        r = p.run(*image, "-hf", p.name, "--no-mmproj")
        check("not with --no-mmproj", r.returncode == 2 and "--image needs --mmproj" in r.stderr, r)
        r = p.run(*image, "-hf", p.name, "--no-mmproj", "--mmproj", vision / "mlp.gguf")
        check("not with both", r.returncode == 2 and "give one" in r.stderr, r)
        plans = [json.loads(p.run("plan", *words, "--memory", "1G", "--json").stdout)["memory"] for words in
                 (("tiny-chat",), ("tiny-chat", "--no-mmproj"), (rows[0]["path"], "--mmproj", rows[0]["mmproj"]))]
        check("plan counts it", plans[0] == plans[2] and 40000 < plans[0]["mmproj_bytes"] < len(encoder) and
              "mmproj_bytes" not in plans[1] and plans[0]["bytes"] < plans[1]["bytes"], plans)
        check("another model", p.pull(":Q8_0").returncode == 0)
        p.run("rm", p.name + ":Q4_0")
        check("rm leaves it to the other", names(p) == ["Sees-Q8_0.gguf", "mmproj-Sees-f16.gguf"], names(p))
        p.run("rm", p.name + ":Q8_0")
        check("rm of the last takes it", not p.folder.exists(), p.files())
    with Place(files) as p:
        p.pull(":Q4_0")
        p.run("rm", p.name)
        check("pull --no-mmproj leaves it", p.run("pull", p.name + ":Q4_0", "--no-mmproj").returncode == 0 and
              names(p) == ["Sees-Q4_0.gguf"], names(p))
    with Place(files) as p:
        r = p.run("tokenize", "-hf", p.name + ":Q4_0", stdin="a")
        check("-hf of a command without images leaves it", r.returncode == 0 and
              names(p) == ["Sees-Q4_0.gguf"], names(p))
        check("pull fetches it later", p.pull(":Q4_0").returncode == 0 and len(names(p)) == 2, names(p))
    with Place({"Sees-Q4_0.gguf": SMALL, "mmproj-Sees-f16.gguf": encoder}) as p:
        r = p.pull()
        check("an encoder of another model is not fetched", names(p) == ["Sees-Q4_0.gguf"] and
              "without its encoder mmproj-Sees-f16.gguf: " in r.stderr, r)
        link = next(p.folder.glob("snapshots/*/*")).parent / "mmproj-Sees-f16.gguf"
        link.write_bytes(encoder)
        r = p.run("run", "-hf", p.name, "-p", "a", "-n", "1", "--json")
        check("nor used", r.returncode == 0 and "its encoder is not used: " in r.stderr, r)


def test_assistant():
    golden = ROOT / "tests" / "golden" / "assistant"
    with Place({"Tiny-it-assistant-F16.gguf": (golden / "right.gguf").read_bytes()}) as p:
        r = p.pull()
        check("an assistant is fetched", r.returncode == 0 and r.stdout.strip().endswith("assistant-F16.gguf"), r)
        r = p.run("run", str(golden / "right.model.gguf"), "--device", "cpu", "--draft", "tiny-chat", "-p", "a b",
                  "-n", "20", "--temp", "0", "--ignore-eos")
        check("it drafts by its name", r.returncode == 0 and "taken (100.0 %)" in r.stderr, r)


def test_cuts():
    with Place() as p:
        p.repo.cut = [5000, 1000, 7000]
        r = p.pull()
        check("cuts are continued", r.returncode == 0 and content(r) == SMALL, r)
        check("from where they were", f"bytes=6000-{len(SMALL) - 1}" in p.hub.transfers(), p.hub.transfers())
    with Place() as p:
        p.repo.cut = [4000] + [0] * 20
        r = p.pull()
        p.refused("a hub that gives nothing more", r, 5, "cut", "4000 of", "goes on")
        p.repo.cut = []
        n = len(p.hub.transfers())
        r = p.pull()
        ranges = p.hub.transfers()[n:]
        check("the next call goes on", r.returncode == 0 and ranges[0].startswith("bytes=4000-"), ranges)
    with Place() as p:
        p.repo.cut, p.repo.whole = [4000], True
        r = p.pull()
        check("a hub without ranges begins again", r.returncode == 0 and content(r) == SMALL, r)
    with Place() as p:
        p.repo.fail = [503, 429, 500]
        check("errors that pass are waited for", p.pull().returncode == 0)
    with Place() as p:
        path = p.folder / "blobs" / (p.repo.sha256("Tiny-Chat-Q4_0.gguf") + ".incomplete")
        path.parent.mkdir(parents=True)
        path.write_bytes(b"another content")
        r = p.pull()
        check("a part of another content is fetched anew", r.returncode == 0 and content(r) == SMALL, r)


def test_stalls():
    """libcurl's speed is that of the last 5 s: a limit of 1 s is 6 s of silence, or 2 s where no byte came before."""
    with Place() as p:
        p.repo.stall = [4000, 0]
        r = p.pull(HF_HUB_DOWNLOAD_TIMEOUT="1")
        check("stalls are continued", r.returncode == 0 and content(r) == SMALL, r)
        check("from where they were", [t.split("-")[0] for t in p.hub.transfers()] ==
              ["bytes=0", "bytes=4000", "bytes=4000"], p.hub.transfers())


def test_stalls_for_good():
    with Place() as p:
        p.repo.stall = [4000] + [0] * 20
        r = p.pull(HF_HUB_DOWNLOAD_TIMEOUT="1")
        p.refused("a hub that stays silent", r, 5, "cut", "4000 of", "goes on")
        p.repo.stall = []
        check("it is continued by the next call", p.pull().returncode == 0)


def test_interrupt():
    with Place() as p:
        p.repo.stall = [len(SMALL) // 2]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        child = subprocess.Popen([KVRUN, "pull", p.name], env=p.env, text=True, **pipes)
        end = time.monotonic() + 60
        while time.monotonic() < end and not any(q.stat().st_size for q in p.folder.glob("blobs/*.incomplete")):
            time.sleep(0.02)
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=60)
        check("Ctrl-C ends with 130", child.returncode == 130 and "goes on" in err and not out, err)
        part = list(p.folder.glob("blobs/*.incomplete"))
        check("the part stays", part and part[0].stat().st_size == len(SMALL) // 2, p.files())
        n = len(p.hub.transfers())
        check("the same command goes on", p.pull().returncode == 0)
        check("where it was", p.hub.transfers()[n].startswith(f"bytes={len(SMALL) // 2}-"), p.hub.transfers()[n:])
    with Place() as p:
        p.repo.cut = [4000] + [0] * 20
        p.pull()
        check("rm of the repository takes the part",
              p.run("rm", p.name).returncode == 0 and not p.folder.exists(), p.files())


def test_refusals():
    with Place() as p:
        p.repo.hashes["Tiny-Chat-Q4_0.gguf"] = "a" * 64
        p.refused("a wrong hash", p.pull(), 3, "another content", "SHA-256")
        check("nothing of it is kept", not list(p.folder.glob("blobs/*")), p.files())
    with Place() as p:
        p.repo.token = "hf_right"
        p.refused("no token", p.pull(), 5, "HF_TOKEN")
        p.refused("a wrong token", p.pull(HF_TOKEN="hf_wrong"), 5, "refuses the token")
        check("the right one", p.pull(HF_TOKEN="hf_right").returncode == 0)
    with Place() as p:
        p.repo.token = "hf_right"
        token = p.home / ".cache" / "huggingface" / "token"
        token.parent.mkdir(parents=True)
        token.write_text("hf_right\n")
        check("the token of a login", p.pull().returncode == 0)
    with Place() as p:
        p.refused("no such repository", p.run("pull", "some/other"), 3, "no such thing", "some/other")
        r = p.pull(HF_ENDPOINT="http://127.0.0.1:1")
        p.refused("no hub", r, 5, "cannot be reached", "copy a .gguf file", "https_proxy")
        p.refused("offline", p.pull(HF_HUB_OFFLINE="1"), 5, "HF_HUB_OFFLINE")
        p.refused("a bad endpoint", p.pull(HF_ENDPOINT="ftp://x"), 2, "HF_ENDPOINT")
        for name in ("x", "../x", "a/../b", "a/b/c", "a/b:../../x", "a/b:", "a b/c", "a/b\n"):
            p.refused(f"the name {name!r}", p.run("pull", name), 2, "USER/REPO[:QUANT]")
        r = p.run("run", "llama3", stdin="x")
        p.refused("a model that is not here", r, 3, "'llama3'", "kvrun pull USER/REPO", "path of a .gguf file")
        r = p.run("run", "some/other", stdin="x")
        p.refused("a repository that is not here", r, 3, "'kvrun pull some/other' fetches it")
    with Place() as p:
        p.repo.sizes["Tiny-Chat-Q4_0.gguf"] = 1 << 49
        p.refused("a full disk", p.pull(":Q4_0"), 5, "are free", "HF_HUB_CACHE")
    with Place() as p:
        p.repo.sizes["Tiny-Chat-Q4_0.gguf"] = len(SMALL) + 1
        p.refused("a file that is shorter than the hub says", p.pull(), 5, "Tiny-Chat-Q4_0.gguf")
    for answer in (b"<html>", b"{}", b"[1, 2]", b'[{"type": "file"}]', b"[" * 5000, b'{"sha": "../.."}', b""):
        with Place() as p:
            p.repo.answer = (200, answer)
            r = p.pull()
            check(f"the answer {answer[:20]} is refused", r.returncode in (3, 5) and r.stderr.startswith("error: "), r)
    with Place({"README.md": b"x"}) as p:
        p.refused("no GGUF file", p.pull(), 3, "no GGUF file")


def test_long_errors():
    """The status of an error counts, however long the page is that comes with it."""
    page = b"<p>no such page</p>" * 1000
    answers = ((404, 3, "no such thing as the repository"), (401, 5, "set HF_TOKEN"), (403, 5, "accept its terms"),
               (500, 5, "error 500"))
    for status, code, says in answers:
        for size in (4095, 4096, 4097, len(page)):
            with Place() as p:
                p.repo.answer = (status, page[:size])
                p.refused(f"status {status} of the repository, {size} bytes", p.pull(), code, says)
    for status, code, says in ((404, 3, "no such thing as the file"), (401, 5, "set HF_TOKEN")):
        with Place() as p:
            p.repo.fail, p.repo.says = [status] * 9, page
            p.refused(f"status {status} of the file", p.pull(), code, says)
            check(f"status {status} is not tried again", len(p.hub.transfers()) == 1, p.hub.transfers())
    with Place() as p:
        p.repo.fail, p.repo.says = [503, 429, 500], page
        r = p.pull()
        check("errors that pass are waited for, with a long page too", r.returncode == 0 and content(r) == SMALL, r)


def test_hostile_names():
    names = ["../../../x.gguf", "/etc/x.gguf", "a/../../x.gguf", "a\\..\\x.gguf", "a//b.gguf", "x\n.gguf", ".",
             "\x1b[2J.gguf", "c:x.gguf", "n" * 300 + ".gguf"]
    with Place({n: SMALL for n in names}) as p:
        r = p.pull()
        p.refused("hostile names", r, 3, "no GGUF file")
        check("nothing was written", p.files() == [], p.files())
    with Place({**{n: SMALL for n in names}, "fine-Q4_0.gguf": SMALL}) as p:
        r = p.pull()
        check("a file beside them is fetched", r.returncode == 0 and r.stdout.endswith("/fine-Q4_0.gguf\n"), r)
        check("and nothing else", len(list(p.folder.glob("snapshots/*/*"))) == 1, p.files())


def test_redirects():
    """To another server, which must not learn the token; and no loop without end."""
    with Place() as p, Place() as other:
        p.repo.token, p.repo.elsewhere = "hf_right", other.hub
        check("a redirect is followed", p.pull(HF_TOKEN="hf_right").returncode == 0)
        seen = [h.get("Authorization") for _, _, h in other.hub.requests]
        check("the token goes to the hub alone", seen and not any(seen), seen)
    with Place() as p:
        p.repo.elsewhere = p.hub
        p.refused("a redirect to itself", p.pull(), 5, "redirect")
    with Place() as p:
        p.refused("a proxy that is not there", p.pull(http_proxy="http://127.0.0.1:1"), 5, "cannot be reached")
        r = p.pull(http_proxy=p.hub.address, HF_ENDPOINT="http://hub.example", no_proxy="")
        check("the proxy of the environment is asked", p.hub.proxied, r)


def test_unsupported():
    """What kvrun cannot run is said before all of it is fetched."""
    key = b"general.architecture\x08\0\0\0\x05\0\0\0\0\0\0\0"
    broken = SMALL.replace(key + b"llama", key + b"lamma")
    check("the test has made another architecture", broken != SMALL)
    with Place({"Tiny-Q4_0.gguf": broken}) as p:
        p.refused("an unknown architecture", p.pull(), 3, "lamma")
        r = p.pull(":Q4_0")
        check("by name it is fetched with a warning", r.returncode == 0 and "cannot run it" in r.stderr, r)


def test_other_programs():
    with Place() as p:
        blobs = p.home / ".ollama/models/blobs"
        manifest = p.home / ".ollama/models/manifests/registry.ollama.ai/library/tinyllama/1b"
        blobs.mkdir(parents=True), manifest.parent.mkdir(parents=True)
        hash_ = p.repo.sha256("Tiny-Chat-Q4_0.gguf")
        (blobs / f"sha256-{hash_}").write_bytes(SMALL)
        layers = [{"mediaType": "application/vnd.ollama.image.license", "digest": "sha256:0"},
                  {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{hash_}", "size": len(SMALL)}]
        manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
        hostile = {**layers[1], "digest": "sha256:../../../../etc/passwd"}
        (manifest.parent / "hostile").write_text(json.dumps({"layers": [hostile]}))
        (manifest.parent / "broken").write_text("{")
        studio = p.home / ".lmstudio/models/lmstudio-community/Studio-GGUF"
        studio.mkdir(parents=True)
        (studio / "Studio-Q8_0.gguf").write_bytes(LARGE)
        own = p.home / ".cache/kvrun/models"
        own.mkdir(parents=True)
        (own / "SmolLM2-135M-Instruct.Q4_1.gguf").write_bytes(SMALL)
        rows = json.loads(p.run("list", "--json").stdout)
        check("list finds all", [(m["owner"], m["name"]) for m in rows] ==
              [("lmstudio", "lmstudio-community/Studio-GGUF:Q8_0"), ("kvrun", "SmolLM2-135M-Instruct.Q4_1"),
               ("ollama", "tinyllama:1b")], rows)
        for name in ("studio", "smollm2", "tinyllama:1b", "tinyllama"):
            check(f"{name} is found", p.run("inspect", name).returncode == 0)
        r = p.run("inspect", "smollm3")
        check("the nearest name is offered", r.returncode == 3 and "SmolLM2-135M-Instruct.Q4_1" in r.stderr, r)
        r = p.run("rm", "tinyllama:1b")
        check("what is Ollama's stays", r.returncode == 2 and "ollama" in r.stderr and list(blobs.iterdir()), r)
        check("kvrun's own goes", p.run("rm", "SmolLM2-135M-Instruct.Q4_1").returncode == 0 and not list(own.iterdir()))
        text = p.run("list").stdout
        check("the table has names and files", "tinyllama:1b" in text and "Studio-Q8_0.gguf" in text, text)


offline = subprocess.run([KVRUN, "pull", "a/b"], env={"HF_HUB_OFFLINE": "1"}, capture_output=True, text=True)
if "without libcurl" in offline.stderr:
    print("skipped: this kvrun was built without libcurl")
    sys.exit(77)
tests = [test for name, test in list(globals().items())
         if name.startswith("test_") and (len(sys.argv) < 3 or name in sys.argv[2:])]
with concurrent.futures.ThreadPoolExecutor() as pool:  # most of them wait
    list(pool.map(lambda test: test(), tests))
finish()
