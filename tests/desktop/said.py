"""Questions and long answers in several scripts, with code and tables, as a large model gives them: for pictures of the
window and of the server's page."""

CODE = """Here is a function that adds the **even** numbers of a list, and how long it takes.

```python
def sum_even(numbers: list[int]) -> int:
    \"\"\"Adds the even numbers.\"\"\"
    total = 0
    for n in numbers:  # one after the other
        if n % 2 == 0:
            total += n
    return total

print(sum_even([1, 2, 3, 4]), "is the sum")
```

| numbers | time | memory |
|---|---:|---:|
| 1 000 | 41 \u00b5s | 8 KiB |
| 1 000 000 | 43 ms | 8 MiB |
| 100 000 000 | ~~5 s~~ 4.4 s | 763 MiB |

1. Install it:
   ```bash
   pip install numpy  # "faster"
   ```
2. Then use `numpy.sum(a[a % 2 == 0])`, which is *ten times* as fast.

> A generator takes no memory of its own.

More is in the [documentation](https://docs.python.org/3/library/functions.html#sum). \
\u2714 Done! \U0001f680\U0001f44d\U0001f3fd"""
CHINESE = """**\u957f\u57ce**\u662f\u4e2d\u56fd\u53e4\u4ee3\u7684\u519b\u4e8b\u9632\u5fa1\u5de5\u7a0b\u3002

| \u671d\u4ee3 | \u957f\u5ea6 |
|---|---:|
| \u79e6 | 5000 \u516c\u91cc |
| \u660e | 8851 \u516c\u91cc |

- \u5b83\u4eceshanhaiguan\uff08\u5c71\u6d77\u5173\uff09\u5230\u5609\u5cea\u5173\u3002
- \u65e5\u672c\u8a9e: \u4e07\u91cc\u306e\u9577\u57ce\u3001\ud55c\uad6d\uc5b4: \ub9cc\ub9ac\uc7a5\uc131 \U0001f3ef"""
ARABIC = """\
\u0627\u0644\u0642\u0627\u0647\u0631\u0629 \u0647\u064a **\u0639\u0627\u0635\u0645\u0629 \u0645\u0635\u0631** \
\u0648\u0623\u0643\u0628\u0631 \u0645\u062f\u0646\u0647\u0627.

1. \u0639\u062f\u062f \u0627\u0644\u0633\u0643\u0627\u0646: 10 \u0645\u0644\u0627\u064a\u064a\u0646
2. \u0627\u0644\u0646\u0647\u0631: \u0627\u0644\u0646\u064a\u0644

| \u0627\u0644\u0645\u062f\u064a\u0646\u0629 | \u0627\u0644\u0633\u0643\u0627\u0646 |
|---|---|
| \u0627\u0644\u0642\u0627\u0647\u0631\u0629 | 10 |
| \u0627\u0644\u0625\u0633\u0643\u0646\u062f\u0631\u064a\u0629 | 5 |"""
HINDI = """**\u0917\u0902\u0917\u093e** \u092d\u093e\u0930\u0924 \u0915\u0940 \
\u0938\u092c\u0938\u0947 \u092a\u0935\u093f\u0924\u094d\u0930 \u0928\u0926\u0940 \u0939\u0948\u0964

- \u0932\u0902\u092c\u093e\u0908: \u0968\u096b\u0968\u096b \u0915\u093f\u0932\u094b\u092e\u0940\u091f\u0930
- \u0909\u0926\u094d\u0917\u092e: \u0917\u0902\u0917\u094b\u0924\u094d\u0930\u0940 \u0939\u093f\u092e\u0928\u0926

> \u0915\u094d\u0937\u092e\u093e, \u0936\u094d\u0930\u0940, \
\u091c\u094d\u091e\u093e\u0928 \U0001f64f\U0001f1ee\U0001f1f3"""
SAID = [
    ("code", "Write a function that sums the even numbers of a list, and say how fast it is, "
     "with a table of sizes and times", CODE),
    ("chinese", "\u957f\u57ce\u6709\u591a\u957f\uff1f", CHINESE),
    ("arabic", "\u0645\u0627 \u0647\u064a \u0639\u0627\u0635\u0645\u0629 \u0645\u0635\u0631\u061f", ARABIC),
    ("hindi", "\u0917\u0902\u0917\u093e \u0915\u0947 \u092c\u093e\u0930\u0947 \u092e\u0947\u0902 "
     "\u092c\u0924\u093e\u0907\u090f \U0001f60a", HINDI),
]
