// Markdown of answers as parts of the window.
#include "tools/desktop/markdown.h"
#include <doctest/doctest.h>

using namespace kvrun::desktop;

namespace {

std::string html(const char* text) {
	std::string out;
	for (const Part& p : parse_markdown(text)) out += p.code ? "[" + p.language + ":" + p.text + "]" : p.text;
	return out;
}

} // namespace

TEST_CASE("desktop markdown: styles, links, strike-through, tables") {
	CHECK(html("# Title\nplain **bold *both*** ~~gone~~") ==
	      "<h1>Title</h1><p>plain <b>bold <i>both</i></b> <s>gone</s></p>");
	CHECK(html("[a&b](https://x.org/?a=1&b=2)") == "<p><a href=\"https://x.org/?a=1&amp;b=2\">a&amp;b</a></p>");
	CHECK(html("see https://x.org now") == "<p>see <a href=\"https://x.org\">https://x.org</a> now</p>");
	const std::string table = html("|a|b|\n|---|---:|\n|1|2|");
	CHECK(table.find("<th>a</th><th align=\"right\">b</th>") != table.npos);
	CHECK(table.find("<td>1</td><td align=\"right\">2</td>") != table.npos);
	CHECK(html("- one\n  - two\n- [x] done") == "<ul><li>one<ul><li>two</li></ul></li><li>\u2611 done</li></ul>");
	CHECK(html("> said") == "<blockquote><p>said</p></blockquote>");
}

TEST_CASE("desktop markdown: an answer brings no HTML of its own and no pictures") {
	CHECK(html("<script>x</script> & <b>") == "<p>&lt;script&gt;x&lt;/script&gt; &amp; &lt;b&gt;</p>");
	CHECK(html("![face](file:///etc/passwd) [run](javascript:x)") == "<p>face run</p>"); // they do not look like links
	CHECK(html("![a](HTTPS://x.org/a.png)") == "<p><a href=\"HTTPS://x.org/a.png\">a</a></p>");
	CHECK(html("`a < b`").find("a &lt; b") != std::string::npos);
}

TEST_CASE("desktop markdown: code is a part of its own, also in lists and while it is written") {
	const auto parts = parse_markdown("before\n```cpp\nint a;\n\n  b\n```\nafter");
	REQUIRE(parts.size() == 3);
	CHECK(parts[1] == Part{true, "cpp", "int a;\n\n  b", 0});
	CHECK(parts[2].text == "<p>after</p>");
	CHECK(parse_markdown("```\nopen").back() == Part{true, "", "open", 0});
	CHECK(parse_markdown("").empty());
	const auto list = parse_markdown("3. one\n   ```sh\n   ls\n   ```\n   more\n4. two");
	REQUIRE(list.size() == 3);
	CHECK(list[0].text == "<ul><li style=\"list-style-type:none\">3.&nbsp; one</li></ul>");
	CHECK(list[1] == Part{true, "sh", "ls", 1});
	CHECK(list[2].text ==
	      "<ul><li style=\"list-style-type:none\">more</li><li style=\"list-style-type:none\">4.&nbsp; two</li></ul>");
	for (const char* odd :
	     {"*", "**", "`", "#", "-", "```", "> ", "1.", "\n\n", "****", "_a", "``", "|", "|-|", "[", "![", "&#0;"})
		parse_markdown(odd);
}

TEST_CASE("desktop markdown: line breaks are kept") {
	CHECK(html("one\ntwo\n\nthree") == "<p>one<br/>two</p><p>three</p>");
}

TEST_CASE("desktop markdown: formulas in LaTeX are as they were written") {
	CHECK(html("so \\(E=mc^2\\) holds") == "<p>so <code>\\(E=mc^2\\)</code> holds</p>");
	CHECK(html("\\[a_1 * b_2 * c\\]") == "<p><code>\\[a_1 * b_2 * c\\]</code></p>");
	CHECK(html("\\[\na < b\n\\]") == "<p><code>\\[<br/>a &lt; b<br/>\\]</code></p>");
	CHECK(html("$x*y*z$ and $$\\int x^2\\,dx$$") == "<p><code>$x*y*z$</code> and <code>$$\\int x^2\\,dx$$</code></p>");
	CHECK(html("x^2\\,dx") == "<p>x^2\\,dx</p>");
	CHECK(html("from $5 to $6, *both*") == "<p>from $5 to $6, <i>both</i></p>"); // money
	CHECK(html("\\*no\\* `\\(x\\)` \\\\(y)") == "<p>*no* <code>\\(x\\)</code> \\(y)</p>");
	CHECK(html("```\n\\(x\\) $y$\n```\n\\(z\\)") == "[:\\(x\\) $y$]<p><code>\\(z\\)</code></p>");
	CHECK(html("> ```\n> \\,\n> ```").find("[:\\,]") != std::string::npos);
	CHECK(html("[a](https://x.org/\\(b\\))").find("x.org") != std::string::npos);
	for (const char* odd : {"\\", "\\(", "$", "$$", "$$$", "$$$$", "\\)", "\uf8f0",
	                        "\uf8f0"
	                        "0\uf8f1 $x$",
	                        "`$x$", "\\[\n\n\\]"})
		parse_markdown(odd);
}
