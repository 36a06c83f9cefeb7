"""Small vocabularies of text encoders, as folders of HF checkpoints hold them: WordPiece, unigram, byte-level BPE.

Needs transformers, tokenizers, sentencepiece and protobuf. Each function fills a folder with the files that llama.cpp's
converter reads and returns (tokenizer of HF transformers, number of tokens).
"""
import io
import json
from pathlib import Path

import sentencepiece as spm
import transformers as hf
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from make_tiny_models import VOCAB, vocabulary

DIALOGUE = Path(__file__).parent / "quality_texts/dialogue.txt"
SENTENCES = """
the quick brown fox jumps over the lazy dog
yes no yes no yes no yes no yes no
retrieve relevant passages that answer the query and judge the document
Äpfel für Größe, naïve café, señor, crème brûlée, coöperate, Žluťoučký kůň
нещо на Български, быстрая коричневая лиса
我想在苹果工作 今天天气很好 日本語のテキスト 안녕하세요
fi fl 1/2 50 2 3 TM, A B C 1314151
""".strip().split("\n")

# Texts with what tokenizers differ in; test programs read them as JSON.
STRINGS = [
    "", " ", "the quick brown fox", "The QUICK Brown Fox!", "  several   spaces  \t tabs\tand\n\nlines \r\n end  ",
    "Äpfel für naïve café, señor Žluťoučký KŮŇ", "A\u0308pfel cafe\u0301 n\u0303o\u0323\u0307 \u1e9b\u0323",
    "我想在apple工作1314151天～ 今天天气", "日本語のﾃｷｽﾄ 안녕하세요 \u1112\u1161\u11ab", "нещо на Български ЙЁйё",
    "control\u0000\u0001\u0007chars\u007f\u0085\u009f \u200b\u200d\u2060\ufeff soft\u00adhyphen",
    "emoji 🚀 😶\u200d🌫️ 👩🏽\u200d🚀 🇩🇪 ✅\ufe0f", "\ufffd replaced \ufffd\ufffd",
    "private \ue000 \U000f0000 unassigned \u0378 \U0001fbff",
    "noncharacters \ufdd0 \ufffe \uffff \U0010ffff",
    "punctuation: (a-b) [c]{d} <e> \"f\" 'g' a_b a/b\\c $5 €6 ^`~| … — «x» ¿y? 。、",
    "a" * 99 + " " + "a" * 100 + " " + "a" * 101 + " " + "b" * 260,
    "ﬁ ﬂ ½ ² ™ Ａ Ｂ Ⅷ ㎏ ﷺ ǆ ŉ",
    "İstanbul ISTANBUL ıı ẞß ΣΑΣ Dž",
    "unbreakable\u00a0space\u2003em\u3000ideographic\u2028line\u2029paragraph\u1680ogham",
    "[CLS] the [SEP] dog [MASK] [PAD] <s> </s> <mask> <unk> ##ing [unused0] \u2581the",
    "don't y'all I'LL won't. it's 3.14, 1,000 e-mail",
    "ก็ กำ हिन्दी নমস্কার עִבְרִית العَرَبِيَّة",
    "x" + "\u0301" * 12 + " y\u0336z\u20dd", "𠀀𠮷 𝒜𝔅 \U0001d7d8\U0001d7d9 丽 \uf900\ufa0e〆々",
    "    Hello\n    Hello",
    "1 22 333 4444 55555 0x1F ١٢٣ 三", "\u202eright to left\u202c \u200eleft\u200f",
    "word\u2019s \u2018q\u2019 \u201cdq\u201d \u00b7 \u2022",
]


# How published tokenizers split texts into words.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
          r"|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")


def corpus():
    return DIALOGUE.read_text().split("\n") + SENTENCES * 3


def wordpiece(folder):
    """A vocabulary of BERT that lower-cases and strips accents; its control tokens are not the first ids."""
    chars = "abcdefghijklmnopqrstuvwxyz0123456789"
    marks = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…—«»¿。、～€"
    other = "абвгдежзийклнопрстуъщμσα我想在工作今天气很好日本語の丽𠀀𠮷豈\u1112\u110b\u1102²½™ﬁⅷ٣१🚀✅"
    words = "the quick brown fox over lazy dog hello world is it and apfel fur naive cafe senor query yes no " \
            "нещо на б 苹果 kun don s t emoji word tabs line istanbul masse fi ß ı"
    ends = "ing ed s er ly pfel ck ow umps ump un own ello orld ещо ##ß ##ı"
    rows = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *chars, *marks, *dict.fromkeys(other)]
    rows += [c for c in words.split() if c not in rows]
    rows += ["##" + c for c in chars]
    rows += ["##" + c for c in dict.fromkeys("абвгнолкирсще語\u1161\u11ab\u1102\u1167\u11bc\u1112\u110b🚀\u200d")]
    rows += ["##" + e.removeprefix("##") for e in ends.split()]
    rows = list(dict.fromkeys(rows))
    tokenizer = hf.BertTokenizer(vocab={row: i for i, row in enumerate(rows)})
    tokenizer.save_pretrained(folder)
    Path(folder, "vocab.txt").write_text("\n".join(rows) + "\n")
    return tokenizer, len(rows)


def unigram(folder, normalizer="nmt_nfkc", size=290):
    """A SentencePiece vocabulary with the control tokens of XLM-RoBERTa around it. normalizer: "identity": none."""
    out = io.BytesIO()
    spm.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus()), model_writer=out, model_type="unigram", vocab_size=size,
        hard_vocab_limit=False, normalization_rule_name=normalizer, num_threads=1, character_coverage=0.999,
        minloglevel=2)
    from sentencepiece import sentencepiece_model_pb2
    proto = sentencepiece_model_pb2.ModelProto.FromString(out.getvalue())
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(p.piece, p.score) for p in proto.pieces[3:]] + [("<mask>", 0.0)]
    # In the file the mask has no name: the converter takes the rows behind the pieces for unused ones.
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer = hf.XLMRobertaTokenizer(vocab=pieces, _spm_precompiled_charsmap=charsmap or None)
    tokenizer.save_pretrained(folder)
    Path(folder, "sentencepiece.bpe.model").write_bytes(out.getvalue())
    return tokenizer, len(pieces)


def unigram_plain(folder):
    """The same without a normaliser."""
    return unigram(folder, "identity")


def bpe(folder, controls, first=None, last=None, added=(), size=300, normalizer=None, more=(), words=None):
    """A byte-level vocabulary with control tokens behind it. controls: role -> token, such as "cls_token"; first, last:
    what encloses a text; more: control tokens without a role; added: tokens of the text that no merge makes; words: the
    expression that splits texts, else GPT-2's."""
    tokenizer = Tokenizer(models.BPE())
    split = [pre_tokenizers.Split(Regex(words), "isolated")] if words else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        split + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not words)])
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(corpus(), trainer)
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.add_tokens([AddedToken(a, special=False, normalized=True) for a in added])
    specials = dict.fromkeys([*controls.values(), *more])
    tokenizer.add_special_tokens([AddedToken(c, special=True, normalized=False, lstrip=c == "[MASK]")
                                  for c in specials])
    ids = [(t, tokenizer.token_to_id(t)) for t in (first, last) if t]
    single = [first, "$A", last]
    pair = [first, "$A", last, "$B", last]
    if ids:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[t for t in single if t], pair=[t for t in pair if t], special_tokens=ids)
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    whole = hf.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **controls)
    whole.save_pretrained(folder)
    return whole, tokenizer.get_vocab_size()


def modern(folder):
    """As ModernBERT has it: NFC, runs of spaces as tokens, a mask that takes the space in front of it."""
    controls = {"unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]",
                "mask_token": "[MASK]"}
    return bpe(folder, controls, "[CLS]", "[SEP]", [" " * n for n in (8, 4, 3, 2)], normalizer=normalizers.NFC())


def euro(folder):
    """As EuroBERT has it: a control token behind a text, none in front of it."""
    return bpe(folder, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "mask_token": "<|mask|>",
                        "pad_token": "<|pad|>"}, last="<|end_of_text|>", words=LLAMA3)


def llama3(folder):
    """As Llama 3 has it: a control token in front of a text."""
    return bpe(folder, {"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}, first="<|begin_of_text|>",
               words=LLAMA3)


def qwen(folder):
    """Words of the answers are tokens; a text ends with the token that is pooled."""
    return bpe(folder, {"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"}, last="<|endoftext|>",
               added=["yes", "no", "<think>", "</think>"], more=["<|im_start|>"],
               normalizer=normalizers.NFC(), words=QWEN2)


def gemma(folder):
    """The vocabulary of make_tiny_models.py; the converter needs the number of its tokens, write_gemma() the rest."""
    Path(folder, "tokenizer.json").write_text(json.dumps({"model": {"vocab": {f"t{i}": i for i in range(VOCAB)}},
                                                          "added_tokens": []}))
    return None, VOCAB


def write_gemma(writer):
    tokens, scores, types = vocabulary()
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(True)
    writer.add_add_space_prefix(False)


def plain_ids(folder, text):
    """Ids of the sentencepiece package itself, as XLM-RoBERTa numbers them."""
    processor = spm.SentencePieceProcessor(model_file=str(Path(folder, "sentencepiece.bpe.model")))
    return [0] + [i + 1 if i else 3 for i in processor.encode(text)] + [2]
