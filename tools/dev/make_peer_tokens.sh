#!/usr/bin/env bash
# Token ids of llama.cpp as expectations: the GPT-2 vocabulary under the name of each pre-tokenizer, and Llama's
# SentencePiece vocabulary with the options of other models; the tiny rwkv7 model's.
#   tools/dev/make_peer_tokens.sh PEER                  writes NAME.out, spm/NAME.out, rwkv/tiny.out in
#                                                       tests/golden/tokenize
#   tools/dev/make_peer_tokens.sh PEER --compare FILE   compares kvrun's ids of a text with llama.cpp's, for each name
# PEER is a folder with Debian and llama.cpp (../shared/peer/setup.sh makes one; needs root for chroot;
# make_peer_golden.sh adds the compiler). The texts are texts.inp. The vocabulary comes from $KVRUN_SHARED or ../shared,
# kvrun from $KVRUN_PROGRAM or build/kvrun.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ $# -lt 1 ] || ! [ -e "$1/usr/include/llama.h" ]; then
	sed -n '2,8s/^# \?//p' "$0" >&2
	exit 2
fi
peer=$(realpath "$1") mode=${2:-write}
shared=${KVRUN_SHARED:-$root/../shared}
work=$(mktemp -d "$peer/tmp/kvrun.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp "$root/tools/dev/peer_tokenize.c" "$work/"
chroot "$peer" gcc -O2 -Wall \
	"${work#"$peer"}/peer_tokenize.c" -o "${work#"$peer"}/peer_tokenize" -lllama -lggml -lggml-base

PYTHONDONTWRITEBYTECODE=1 python3 - "$root" "$peer" "$work" "$shared/assets/vocab" "$mode" "${3:-}" <<'PY'
import os, struct, subprocess, sys

root, peer, work, vocab, mode, file = sys.argv[1:]
NAMES = \
	"""default gpt-2 llama-bpe dbrx qwen2 qwen35 deepseek-llm deepseek-coder deepseek-v3 spark2_5 youtu falcon smollm
bloom viking tekken gpt-4o glm4 roberta-bpe tiny_aya kimi-k2 k2-horizon chameleon superbpe bailingmoe seed-coder
ufakzeka laguna minicpm5 exaone-moe afmoe jais-2 granite-embed-multi-97m""".split()
MARK = b"\n__ggml_vocab_test__\n"


def renamed(name):
    """The vocabulary with another pre-tokenizer; returns its path."""
    data = open(f"{vocab}/ggml-vocab-gpt-2.gguf", "rb").read()
    key = b"tokenizer.ggml.pre"
    at = data.index(key) + len(key)
    kind, length = struct.unpack("<IQ", data[at:at + 12])
    assert kind == 8
    path = f"{work}/{name}.gguf"
    with open(path, "wb") as f:
        f.write(data[:at] + struct.pack("<IQ", 8, len(name)) + name.encode() + data[at + 12 + length:])
    return path


def text_of(data, at):
    length, = struct.unpack("<Q", data[at:at + 8])
    return data[at + 8:at + 8 + length]


def string(text):
    return struct.pack("<Q", len(text)) + text


def spm(name):
    """Llama's vocabulary as it is (plain), without a space in front of a text (bare), or with user-defined tokens as in
    Gemma's (gemma): runs of spaces, line ends and tags; returns its path."""
    data = open(f"{vocab}/ggml-vocab-llama-spm.gguf", "rb").read()
    n_keys, = struct.unpack("<Q", data[16:24])
    if name != "plain":
        flag = string(b"tokenizer.ggml.add_space_prefix") + struct.pack("<I?", 7, False)
        data = data[:16] + struct.pack("<Q", n_keys + 1) + flag + data[24:]
    if name == "gemma":
        extra = [b"\n\n", b"\n\n\n", b"<b>", b"</b>"]

        def array(key, size):
            """Where the elements begin, their number, and those of a fixed size."""
            at = data.index(string(key)) + 8 + len(key) + 4
            kind, n = struct.unpack("<IQ", data[at:at + 12])
            return at + 12, n, [data[at + 12 + i * size:at + 12 + (i + 1) * size] for i in range(n)] if size else None

        begin, n, _ = array(b"tokenizer.ggml.tokens", 0)
        at, texts, spaces = begin, [], []
        for i in range(n):
            texts.append(text_of(data, at))
            at += 8 + len(texts[i])
            if len(texts[i]) > 3 and not texts[i].replace("\u2581".encode(), b""):
                texts[i] = b" " * (len(texts[i]) // 3)
                spaces.append(i)
        new = struct.pack("<Q", n + len(extra)) + b"".join(map(string, texts + extra))
        data = data[:begin - 8] + new + data[at:]
        for key, value in ((b"tokenizer.ggml.token_type", struct.pack("<i", 4)), (b"tokenizer.ggml.scores", bytes(4))):
            begin, n, values = array(key, 4)
            if key.endswith(b"token_type"):
                for i in spaces:
                    values[i] = value
            new = struct.pack("<Q", n + len(extra)) + b"".join(values + [value] * len(extra))
            data = data[:begin - 8] + new + data[begin + 4 * n:]
    path = f"{work}/{name}.gguf"
    with open(path, "wb") as f:
        f.write(data)
    return path


def rwkv():
    path = f"{work}/tiny.gguf"
    with open(path, "wb") as f:
        f.write(open(f"{root}/tests/golden/tiny/rwkv7.gguf", "rb").read())
    return path


def output(command, text):
    return subprocess.run(command, input=text, stdout=subprocess.PIPE, check=True).stdout


def of_peer(path, text, *mark):
    inside = work[len(peer):]
    return output(["chroot", peer, f"{inside}/peer_tokenize", f"{inside}/{os.path.basename(path)}", *mark], text)


folder = f"{root}/tests/golden/tokenize"
for part in ("spm", "rwkv"):
    os.makedirs(f"{folder}/{part}", exist_ok=True)
different = 0
for name, path in [(n, renamed(n)) for n in NAMES] + [(f"spm/{n}", spm(n)) for n in ("plain", "bare", "gemma")] + \
        [("rwkv/tiny", rwkv())]:
    if mode == "--compare":
        text = open(file, "rb").read()
        kvrun = os.environ.get("KVRUN_PROGRAM", f"{root}/build/kvrun")
        a, b = output([kvrun, "tokenize", "-m", path, "--no-bos"], text).split(), of_peer(path, text).split()
        different += a != b
        first = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
        print(f"{name:15} {len(b)} tokens, {'equal' if a == b else f'first difference at {first}'}")
    else:
        texts = open(f"{folder}/texts.inp", "rb").read()
        lines = of_peer(path, texts, MARK)
        assert lines.count(b"\n") == texts.count(MARK), name
        with open(f"{folder}/{name}.out", "wb") as f:
            f.write(lines)
        print(f"{name}: {texts.count(MARK)} texts")
sys.exit(1 if different else 0)
PY
