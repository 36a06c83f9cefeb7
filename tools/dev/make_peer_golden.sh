#!/usr/bin/env bash
# Greedy tokens of llama.cpp as expectations, and a comparison of the tiny checkpoints with llama.cpp.
#   tools/dev/make_peer_golden.sh PEER            writes tests/golden/peer/*.json, and the adapters in tests/golden/lora
#   tools/dev/make_peer_golden.sh PEER --check    compares tests/golden/tiny/*.logits.npy with llama.cpp's logits
# PEER is a folder with Debian and llama.cpp (../shared/peer/setup.sh makes one; needs root for chroot). The first run
# adds headers and a compiler to it. stories260K.gguf is taken from $KVRUN_SHARED or ../shared.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ $# -lt 1 ] || ! [ -x "$1/usr/bin/llama-bench" ]; then
	sed -n '2,6s/^# \?//p' "$0" >&2
	exit 2
fi
peer=$(realpath "$1") mode=${2:-write}
shared=${KVRUN_SHARED:-$root/../shared}

if ! [ -e "$peer/usr/include/llama.h" ] || ! [ -x "$peer/usr/bin/gcc" ]; then
	chroot "$peer" sh -c 'apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -y -q \
		--no-install-recommends libllama-dev gcc libc6-dev' >&2
fi
work=$(mktemp -d "$peer/tmp/kvrun.XXXXXX")
trap 'rm -rf "$work"' EXIT
in=${work#"$peer"}
cp "$root/tools/dev/peer_eval.c" "$work/"
cp -r "$root/tests/golden/tiny" "$work/tiny"
if [ -e "$shared/assets/models/stories260K.gguf" ]; then
	cp "$shared/assets/models/stories260K.gguf" "$work/"
fi
chroot "$peer" gcc -O2 -Wall "$in/peer_eval.c" -o "$in/peer_eval" -lllama -lggml -lggml-base

cat > "$work/golden.py" <<'PY'
import glob, hashlib, json, os, subprocess, sys
import gguf
import numpy as np

mode, version = sys.argv[1:3]
ORIGINAL = "phi3.rope.scaling.original_context_length"


def evaluate(path, tokens, kv, n_predict=0, n_ctx=256, replace=(), lora=None):
    env = {**os.environ, "LORA": lora[0], "LORA_SCALE": str(lora[1])} if lora else None
    run = subprocess.run(["./peer_eval", path, str(n_ctx), kv, str(n_predict), *replace], env=env,
                         input=" ".join(map(str, tokens)).encode(), stdout=subprocess.PIPE, check=True)
    vocab, rows = np.frombuffer(run.stdout[:8], np.int32)
    return np.frombuffer(run.stdout[8:], np.float32).reshape(rows, vocab)


def check():
    worst = 0
    for path in sorted(glob.glob("tiny/*.logits.npy")):
        stem = path[:-len(".logits.npy")]
        expected, tokens = np.load(path), np.load(stem + ".tokens.npy")
        model = stem.split(".")[0] + ".gguf"
        if "rwkv7" in stem:  # it computes small heads wrong; make_rwkv_models.py --wide
            continue
        # llama.cpp chooses LongRope's factors by the context, which it rounds up to 256: the border is moved instead.
        replace = [ORIGINAL + "=256"] if stem.endswith(".short") else []
        try:
            logits = evaluate(model, tokens, "f32", n_ctx=-len(tokens) // 256 * -256, replace=replace)
        except subprocess.CalledProcessError:
            worst += 1
            print(f"FAIL {os.path.basename(stem):22} llama.cpp does not load it")
            continue
        error = np.abs(logits - expected).max() / np.abs(expected).max()
        # With weights other than F32 llama.cpp also rounds activations.
        rounded = any(t.tensor_type != 0 for t in gguf.GGUFReader(model).tensors)
        ok = error < (3e-2 if rounded else 1e-5)
        worst += not ok
        print(f"{'ok  ' if ok else 'FAIL'} {os.path.basename(stem):22} {error:.1e}")
    sys.exit(1 if worst else 0)


def continuation(model, prompt, lora=None):
    """Logits (64, vocab) of the steps of a greedy continuation, best and second token and the gap between them."""
    logits = evaluate(model, prompt, "f16", n_predict=64, lora=lora)[len(prompt) - 1:]
    order = np.argsort(-logits, axis=1, kind="stable")
    rows = np.arange(len(logits))
    return logits, order[:, 0], order[:, 1], logits[rows, order[:, 0]] - logits[rows, order[:, 1]]


def make_adapter(model, path, rank=6):
    """A LoRA adapter with random matrices, about half as large as the weights."""
    reader, rng = gguf.GGUFReader(model), np.random.default_rng(7)
    arch = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(path, arch)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", 2.0 * rank)
    for t in reader.tensors:
        if not t.name.startswith("blk.") or len(t.shape) != 2:
            continue
        n, d = (int(x) for x in t.shape)
        size = float(np.sqrt(np.mean(np.square(t.data)) / rank)) / 4
        writer.add_tensor(t.name + ".lora_a", rng.standard_normal((rank, n)).astype(np.float16))
        writer.add_tensor(t.name + ".lora_b", (size * rng.standard_normal((d, rank))).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def calm_prompt(model, lora=None):
    """Of random prompts the one whose varied continuation, free of special tokens, has the widest smallest gap."""
    best, special = (0.0, None), 3
    for seed in range(40):
        rng = np.random.default_rng(seed)
        prompt = [1, *rng.integers(special, 300, 11).tolist()]
        _, first, _, gap = continuation(model, prompt, lora)
        if first.min() >= special and len(set(first.tolist())) >= 16:
            best = max(best, (float(gap.min()), prompt))
    if not best[1]:
        sys.exit(f"{model}: every continuation repeats itself or meets a special token; choose other weights")
    return best[1]


def write():
    os.makedirs("lora", exist_ok=True)
    make_adapter("tiny/llama.gguf", "lora/llama.gguf")
    lora = ("lora/llama.gguf", 0.75)
    cases = [("stories260K", "stories260K.gguf", [1], None),
             ("tiny_llama", "tiny/llama.gguf", calm_prompt("tiny/llama.gguf"), None),
             ("tiny_qwen2", "tiny/qwen2.gguf", calm_prompt("tiny/qwen2.gguf"), None),
             ("lora_llama", "tiny/llama.gguf", calm_prompt("tiny/llama.gguf", lora), lora)]
    os.makedirs("out", exist_ok=True)
    for name, model, prompt, lora in cases:
        if not os.path.exists(model):
            print(f"left out: {name}, {model} is not there")
            continue
        prompt = [int(t) for t in prompt]
        logits, first, second, gap = continuation(model, prompt, lora)
        doc = {"what": "greedy tokens of llama.cpp, CPU, f16 KV cache; gap is the best logit minus the second, "
                       "largest the largest absolute logit of the step",
               "peer": version, "model": model, "sha256": hashlib.sha256(open(model, "rb").read()).hexdigest(),
               **({"lora": lora[0], "scale": lora[1]} if lora else {}),
               "prompt": prompt, "tokens": first.tolist(), "second": second.tolist(),
               "gap": [round(float(g), 5) for g in gap],
               "largest": [round(float(g), 3) for g in np.abs(logits).max(1)]}
        text = ",\n".join(f" {json.dumps(k)}: {json.dumps(v)}" for k, v in doc.items())
        with open(f"out/{name}.json", "w") as f:
            f.write("{\n" + text + "\n}\n")
        ties = [(i, round(float(g), 5)) for i, g in enumerate(gap) if g < 0.01 * doc["largest"][i]]
        print(f"{name}: {len(doc['tokens'])} tokens, smallest gap {gap.min():.5f}, near-ties (step, gap): {ties or 'none'}")


check() if mode == "--check" else write()
PY
# shellcheck disable=SC2016 # dpkg-query's own variable
version="llama.cpp $(chroot "$peer" dpkg-query -W -f='${Version}' llama.cpp-tools) (Debian)"
chroot "$peer" sh -c "cd '$in' && PYTHONDONTWRITEBYTECODE=1 python3 golden.py '$mode' '$version'"
if [ "$mode" != --check ]; then
	mkdir -p "$root/tests/golden/peer"
	cp "$work"/out/*.json "$root/tests/golden/peer/"
	mkdir -p "$root/tests/golden/lora"
	cp "$work"/lora/*.gguf "$root/tests/golden/lora/"
fi
