#!/usr/bin/env python3
"""Vocabularies of text encoders and token ids of awkward texts: writes tests/golden/tokenize/encoder.

make_encoder_tokens.py
Needs the Python packages transformers and sentencepiece. The texts are in texts.inp, each ended by a line
__ggml_vocab_test__; NAME.out has a line of ids for each.
    wpm.gguf        WordPiece; ids of Hugging Face's BertTokenizerFast: wpm.out; wpm_special.out with special tokens in
                    texts; wpm_cased.out, wpm_accents.out without lower-casing, with accents kept
    ugm.gguf        unigrams with the normalizer nmt_nfkc; ids of SentencePiece: ugm.out; ugm_bare.out without a space
                    in front, spaces kept
    ugm_bytes.gguf  unigrams without a normalizer, unknown characters as bytes: ugm_bytes.out
    plamo.gguf      unigrams of PLaMo 2 and 3; ids by the rules of their published code: plamo.out
Also prints the texts whose ids differ in Hugging Face's tokenizer of XLM-RoBERTa.
"""
import collections
import io
import random
import re
import struct
import sys
import tempfile
import unicodedata
from pathlib import Path

import sentencepiece
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import BertTokenizerFast

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests/golden/tokenize/encoder"
MARK = b"\n__ggml_vocab_test__\n"
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
SPACE = "\u2581"

AWKWARD = [
    "", " ", "   ", "\t\n\r\n ", "Hello, World!", "  two  spaces\tand a tab\n", "HELLO hello HeLLo",
    "don't won't I'm it's 'quoted' \"double\"", "naïve café résumé Ångström Ünïcödé",
    "e\u0301 e\u0301\u0323 a\u0300\u0316",
    "\u0301\u0302 alone", "İstanbul IĞDIR ı", "ΑΒΓ σς ΣΑΣ", "Straße ẞ GROẞ", "Привет, МИР! ёлка Ёж й",
    "中文字符 without spaces中間", "日本語のテキスト カタカナ ｶﾀｶﾅ", "が ガ か\u3099 \u3042\u309a", "한국어 텍스트 \u1112\u1161\u11ab",
    "สวัสดีชาวโลก ภาษาไทย น้ำ", "हिन्दी में पाठ क्षत्रिय", "العربية نَصٌّ ﷺ لا", "עִבְרִית שָׁלוֹם",
    "tiếng Việt Cửa Ự ộ",
    "emoji 😀 👨‍👩‍👧 🇩🇪 ✅ ☃️ 1️⃣", "ligatures ﬁne ﬂow oﬀer ﬃ æ œ ĳ", "ＦＵＬＬ　ｗｉｄｔｈ １２３！", "＜ud＞x", "H₂O x² ½ ⅓ Ⅷ ①②",
    "control \x00\x01\x02 \x07 \x1b[0m \x7f \x85 end", "a\x00b a\x08b",
    "zero\u200bwidth\u200djoin\u200cer\ufeff soft\u00adhyphen",
    "spaces\u00a0nbsp\u2003em\u2009thin\u3000wide\u1680ogham\u2028line\u2029para",
    "\x0b\x0c\x1c\x1d\x1e\x1f separators",
    "\ufffd replacement \ufffd", "a\ufffdb", "0123456789 3.14159 1,000,000 1e-5",
    "!!! ??? ... ,,, ;;; --- ___ +++ $$$ ^^^ ``` ~~~ |||",
    "¡Hola! ¿Qué? «quotes» „low“ ‘single’ – — … ‰ ′ ″", "© ® ™ € £ ¥ § ° µ × ÷ ± ∞ ≠ ≮ ≤ √",
    "\u037e \u1fef \u2126 \u212b \u212a",
    "x" * 100, "x" * 101, "x" * 300, "é" * 100, "é" * 101, "before " + "word" * 60 + " after",
    "https://example.com/a_b?c=d&e=f#g",
    "mail@example.org (brackets) [square] {curly} <angle>",
    SPACE + "mark " + SPACE + " in" + SPACE + "side " + SPACE * 2, "##ing # ## ###",
    "[UNUSED] [unused1] [ CLS ]", "a [SEP] b [MASK][CLS]c [PAD] [UNK]", "tab\tnewline\ncarriage\rreturn\r\nboth",
    "unaffable unwanted running RUNNING",
    "𝒳 𝔘𝔫𝔦 𝟙𝟚 \U0001d15f \U0001f1e6", "\U00020000\U0002a6d6 𠮷野家 \uf900\ufa0e \U0002f800",
    "\u302e\u302f\u0300 a\u302e\U0001d165b", "\u0344 \u0958 \u2adc \ufb1d \ufb2c",
    "\u01c4\u01c5\u01c6 \u1e9e \u03f4 \u2160\u2170", "\ue000 private \U000f0000 \ufdd0 \uffff \U0010ffff", "ۀ أ إ ؤ",
    "aáàâäãåāăą",
    "long " * 30, "\n\n\nHello\n\n", "ends with space ", "日本\n\n語", "a" + "\u0301" * 40 + "b",
    "a" + "\u0316\u0301" * 20 + "b",
    b"invalid \xff\xfe bytes", b"\xc3", b"a\xc3(b", b"\xe2\x82 cut", b"over\xc0\xaflong", b"sur\xed\xa0\x80rogate",
    b"\xf4\x90\x80\x80 high", b"\xf0\x9f\x98",
    b"\x80\x80\x80",
]


def random_texts():
    r = random.Random(7)
    alphabets = [
        "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJ", "eeettaaooinsrhl   ", "    \t\n", ".,!?-'\"()[]#@_", "0123456789",
        "éèüöñçßÄÖÅø",
        "\u0300\u0301\u0308\u0323\u0327", "中文日本語漢字", "かきくけこガギグ", "한국어글자", "абвгдЁЙ", "αβγδΣς", "สวัดีนำ้",
        "😀😁🚀\u200d\ufe0f",
        "ﬁﬂＡＢｃ１２", "\u00a0\u200b\u2003\u3000\ufeff", "\x00\x01\x7f\ufffd" + SPACE
    ]
    out = []
    for i in range(250):
        some = r.sample(alphabets, r.randint(1, 4)) + ["eeettaaooinsrhl   "]
        out.append("".join(r.choice(r.choice(some)) for _ in range(r.randint(1, 60))))
    for i in range(30):
        out.append(bytes(r.choice(b"ab \xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\xff") for _ in range(r.randint(1, 30))))
    return out


# ---- GGUF

def string(text):
    data = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(data)) + data


def value(v):
    """A metadata value with its type; a tuple is (code of struct, numbers)."""
    if isinstance(v, bool):
        return struct.pack("<I?", 7, v)
    if isinstance(v, int):
        return struct.pack("<II", 4, v)
    if isinstance(v, str):
        return struct.pack("<I", 8) + string(v)
    if isinstance(v, tuple):
        code, numbers = v
        kind = {"i": 5, "f": 6, "B": 0}[code]
        return struct.pack("<IIQ", 9, kind, len(numbers)) + struct.pack(f"<{len(numbers)}{code}", *numbers)
    return struct.pack("<IIQ", 9, 8, len(v)) + b"".join(map(string, v))


def write_gguf(path, keys):
    with open(path, "wb") as f:
        f.write(b"GGUF" + struct.pack("<IQQ", 3, 0, len(keys)))
        for key, v in keys.items():
            f.write(string(key) + value(v))


def write_ids(name, ids):
    (OUT / f"{name}.out").write_text("".join(" ".join(map(str, x)) + "\n" for x in ids))


# ---- WordPiece

def words_of(texts):
    """Words as BertTokenizer sees them, with how often they occur, from the most frequent on."""
    tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    count = collections.Counter()
    for text in texts:
        count.update(w for w, _ in tokenizer[1].pre_tokenize_str(tokenizer[0].normalize_str(text)))
    return sorted(count, key=lambda w: (-count[w], w))


def make_wpm(texts, corpus):
    words = words_of(corpus)
    some = [w for w in words_of(texts) if not any(0xe00 <= ord(c) < 0xe20 for c in w)]  # most of Thai is unknown
    letters = sorted({c for w in some for c in w if ord(c) < 0x1f000})
    vocab = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + letters
    vocab += ["##" + c for c in letters if unicodedata.category(c)[0] != "P" and c not in "qz"]
    vocab += ["É", "Café", "##É", "é", "##é", "H", "##L", "HE"]  # for texts that keep case and accents
    words = words[:400]
    pieces = collections.Counter(w[i:i + n] for w in words for n in (2, 3, 4) for i in range(1, len(w) - n + 1))
    frequent = sorted(pieces, key=lambda p: (-pieces[p], p))[:400]
    vocab += [w for w in words if len(w) > 1] + ["##" + p for p in frequent]
    vocab = list(dict.fromkeys(vocab))
    special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"}

    def stored(token):  # as llama.cpp's conversion/bert.py has it
        return token if token in special else token[2:] if token.startswith("##") else SPACE + token

    write_gguf(OUT / "wpm.gguf", {
        "general.architecture": "bert", "tokenizer.ggml.model": "bert", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [stored(t) for t in vocab],
        "tokenizer.ggml.token_type": ("i", [CONTROL if t in special else NORMAL for t in vocab]),
        "tokenizer.ggml.unknown_token_id": vocab.index("[UNK]"), "tokenizer.ggml.seperator_token_id": vocab.index("[SEP]"),
        "tokenizer.ggml.padding_token_id": 0, "tokenizer.ggml.cls_token_id": vocab.index("[CLS]"),
        "tokenizer.ggml.mask_token_id": vocab.index("[MASK]"),
        # conversion/bert.py writes these three: the last means that two texts have no separator of their own
        "tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True, "tokenizer.ggml.add_sep_token": False,
    })
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "vocab.txt"
        path.write_text("\n".join(vocab) + "\n", encoding="utf-8", newline="\n")
        for name, options in (("wpm", {}), ("wpm_special", {}), ("wpm_cased", {"do_lower_case": False}),
                              ("wpm_accents", {"strip_accents": False})):
            tokenizer = BertTokenizerFast(str(path), **options)
            assert len(tokenizer) == len(vocab), (len(tokenizer), len(vocab))
            ids = [tokenizer(t, split_special_tokens=name != "wpm_special").input_ids for t in texts]
            write_ids(name, ids)
            if name == "wpm":  # decoded, as one line with \\n for line ends
                lines = [tokenizer.decode(i, skip_special_tokens=True, clean_up_tokenization_spaces=False) for i in ids]
                (OUT / "wpm.txt").write_text("".join(x.replace("\n", "\\n") + "\n" for x in lines), encoding="utf-8")
    known = sum(vocab.index("[UNK]") not in i for i in ids)
    print(f"wpm: {len(vocab)} tokens, {known} of {len(texts)} texts without unknown words")


# ---- unigrams: SentencePiece's model file is a protocol buffer

def varint(f):
    n = shift = 0
    while True:
        b = f.read(1)[0]
        n |= (b & 127) << shift
        shift += 7
        if b < 128:
            return n


def fields(data):
    """(number, wire type, value) of each field of a message."""
    f = io.BytesIO(data)
    while f.tell() < len(data):
        tag = varint(f)
        kind = tag & 7
        yield tag >> 3, kind, varint(f) if kind == 0 else f.read({1: 8, 5: 4}.get(kind) or varint(f))


def number(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def message(all_fields):
    out = b""
    for field, kind, v in all_fields:
        out += number(field << 3 | kind) + (number(v) if kind == 0 else (number(len(v)) if kind == 2 else b"") + v)
    return out


def train(corpus, **options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(corpus), model_writer=model, model_type="unigram",
                                             num_threads=1, minloglevel=2, hard_vocab_limit=False, **options)
    return model.getvalue()


def with_normalizer(model, prefix, strip):
    """The model with other rules for spaces."""
    def change(v):
        return message([x for x in fields(v) if x[0] not in (3, 4)] + [(3, 0, int(prefix)), (4, 0, int(strip))])
    return message([(n, k, change(v) if n == 3 else v) for n, k, v in fields(model)])


def pieces_of(model):
    out = []
    for n, _, v in fields(model):
        if n == 1:
            piece = {1: b"", 2: bytes(4), 3: NORMAL} | {a: c for a, _, c in fields(v)}
            out.append((piece[1], struct.unpack("<f", piece[2])[0], piece[3]))
    return out


def write_ugm(name, model):
    pieces = pieces_of(model)
    normalizer = {n: v for n, _, v in fields(next(v for n, _, v in fields(model) if n == 3))}
    # SentencePiece's numbers of kinds are GGUF's
    keys = {
        "general.architecture": "t5", "tokenizer.ggml.model": "t5", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [p[0] for p in pieces], "tokenizer.ggml.scores": ("f", [p[1] for p in pieces]),
        "tokenizer.ggml.token_type": ("i", [p[2] for p in pieces]), "tokenizer.ggml.eos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 2, "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(3, 1)),
        "tokenizer.ggml.remove_extra_whitespaces": bool(normalizer.get(4, 1)),
    }
    if normalizer.get(2):
        keys["tokenizer.ggml.precompiled_charsmap"] = ("B", normalizer[2])
    write_gguf(OUT / f"{name}.gguf", keys)
    return pieces, normalizer.get(2, b"")


def hf_ids(pieces, charsmap, texts):
    """Ids of Hugging Face's tokenizer of XLM-RoBERTa with these tokens."""
    tokenizer = Tokenizer(models.Unigram([(p[0].decode(), p[1]) for p in pieces], unk_id=2, byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(bytes(charsmap))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")])
    return [tokenizer.encode(t).ids for t in texts]


def make_ugm(raw, texts, corpus):
    ids = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    model = train(corpus, vocab_size=900, normalization_rule_name="nmt_nfkc", character_coverage=0.999,
                  user_defined_symbols=["<ud>"], **ids)
    pieces, charsmap = write_ugm("ugm", model)
    for name, m in (("ugm", model), ("ugm_bare", with_normalizer(model, False, False))):
        processor = sentencepiece.SentencePieceProcessor(model_proto=m)
        ids_of = [processor.encode(t) for t in raw]
        write_ids(name, ids_of)
        if name == "ugm":
            theirs = hf_ids(pieces, charsmap, texts)
            different = [i for i in range(len(raw)) if theirs[i] != ids_of[i]]
            print(f"ugm: {len(pieces)} tokens; Hugging Face differs in {len(different)} of {len(raw)} texts:")
            for i in different:
                print("   ", i, repr(raw[i])[:100], "sentencepiece", processor.id_to_piece(ids_of[i])[:12], "HF",
                      processor.id_to_piece(theirs[i])[:12])
    model = train(corpus, vocab_size=500, normalization_rule_name="identity", character_coverage=0.98,
                  byte_fallback=True, **ids)
    write_ugm("ugm_bytes", model)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    write_ids("ugm_bytes", [processor.encode(t) for t in raw])


# ---- PLaMo: the best way from each character to the end; of equal ones that whose first token is longest

def characters(raw):
    """The characters of a text, with single bytes where it is no UTF-8."""
    out = []
    for c in raw.decode(errors="surrogateescape"):
        out.append(bytes([ord(c) - 0xdc00]) if 0xdc80 <= ord(c) < 0xdd00 else c.encode())
    return out


def plamo_ids(scores, byte_ids, raw):
    """scores: text of a token -> (id, score in steps of 0.0001)."""
    parts, longest = characters(raw), max(map(len, scores))
    best = [None] * len(parts) + [(0, 0, [])]  # (cost, characters of the first token, its ids)
    for i in reversed(range(len(parts))):
        for n in range(min(longest, len(parts) - i), 0, -1):
            token = scores.get(b"".join(parts[i:i + n]))
            if token and (best[i] is None or best[i + n][0] - token[1] < best[i][0]):
                best[i] = best[i + n][0] - token[1], n, [token[0]]
        if best[i] is None or best[i + 1][0] + 10 ** 7 < best[i][0]:
            best[i] = best[i + 1][0] + 10 ** 7, 1, [byte_ids[b] for b in parts[i]]
    ids, i = [], 0
    while i < len(parts):
        ids, i = ids + best[i][2], i + best[i][1]
    return ids


def make_plamo(raw, corpus):
    pieces = pieces_of(train(corpus, vocab_size=600, normalization_rule_name="identity", character_coverage=0.98,
                             split_by_whitespace=False, add_dummy_prefix=False, remove_extra_whitespaces=False))
    rows = [(b"<|plamo:unk|>", 0.0, UNKNOWN), (b"<|plamo:bos|>", 0.0, CONTROL), (b"<|plamo:eos|>", 0.0, CONTROL),
            (b"<|plamo:pad|>", 0.0, CONTROL), (b"<|plamo:op|>", 0.0, CONTROL)]
    rows += [(f"<0x{b:02X}>".encode(), 0.0, BYTE) for b in range(256)]
    rows += [(text.replace(SPACE.encode(), b" "), score, kind) for text, score, kind in pieces if kind == NORMAL]
    # Scores with which several ways cost the same; one that is worth less than a character without a token.
    rows += [(b"zq", -2.0, NORMAL), (b"z", -1.0, NORMAL), (b"q", -1.0, NORMAL), ("Ж".encode(), -1001.0, NORMAL)]
    kept = list({text: row for row in reversed(rows) for text in [row[0]]}.values())[::-1]
    write_gguf(OUT / "plamo.gguf", {
        "general.architecture": "plamo2", "tokenizer.ggml.model": "plamo2", "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": [r[0] for r in kept], "tokenizer.ggml.scores": ("f", [r[1] for r in kept]),
        "tokenizer.ggml.token_type": ("i", [r[2] for r in kept]), "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.unknown_token_id": 0, "tokenizer.ggml.padding_token_id": 3,
        "tokenizer.ggml.eot_token_id": 4, "tokenizer.ggml.add_space_prefix": False})
    steps = lambda score: round(struct.unpack("f", struct.pack("f", score))[0] * 1e4)
    scores = {text: (i, steps(score)) for i, (text, score, kind) in enumerate(kept) if kind == NORMAL}
    byte_ids = {b: next(i for i, r in enumerate(kept) if r[0] == f"<0x{b:02X}>".encode()) for b in range(256)}
    write_ids("plamo", [plamo_ids(scores, byte_ids, t) for t in raw])
    print(f"plamo: {len(kept)} tokens")


def main():
    if len(sys.argv) > 1:
        sys.exit(__doc__)
    OUT.mkdir(parents=True, exist_ok=True)
    raw = [t if isinstance(t, bytes) else t.encode() for t in AWKWARD + random_texts()]
    assert not any(MARK[1:-1] in t for t in raw)
    (OUT / "texts.inp").write_bytes(b"".join(t + MARK for t in raw))
    texts = [t.decode(errors="replace") for t in raw]
    english = [ROOT / "tools/dev/quality_texts/dialogue.txt", ROOT / "models/bundled/record40.txt"]
    corpus = [line for path in english for line in path.read_text().splitlines() if line]
    # Long runs would become tokens, which cover a text in several ways with the same sum of scores. SentencePiece takes
    # the one that is best after the sum was rounded to float.
    corpus += [t for t in texts[:len(AWKWARD)] if "\x00" not in t and "<ud>" not in t and not re.search(r"(..?)\1{9}", t)]
    make_wpm(texts, corpus)
    make_ugm(raw, texts, corpus)
    make_plamo(raw, corpus)


if __name__ == "__main__":
    main()
