// The basics of markdown: an answer as blocks of styled words.
#include "tools/desktop/markdown.h"
#include <algorithm>
#include <utility>

namespace kvrun::desktop {
namespace {

constexpr size_t kLongestSpan = 4096; // bytes

std::string_view trimmed(std::string_view s) {
	while (!s.empty() && (s.back() == ' ' || s.back() == '\t' || s.back() == '\r')) s.remove_suffix(1);
	return s.substr(std::min(s.find_first_not_of(" \t"), s.size()));
}

bool is_space(char c) { return c == ' ' || c == '\t'; }
bool is_word(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c < 0; }

// Whether `mark` at text[at] may open a style: something follows it, and it does not stand inside a word.
bool opens(std::string_view text, size_t at, std::string_view mark) {
	const size_t after = at + mark.size();
	return after < text.size() && !is_space(text[after]) && (mark[0] != '_' || at == 0 || !is_word(text[at - 1]));
}

std::vector<Span> parse_spans(std::string_view text) {
	struct Mark {
		std::string_view text;
		Style style;
	};
	static constexpr Mark kMarks[] = {
	    {"`", Style::Code}, {"**", Style::Bold}, {"__", Style::Bold}, {"*", Style::Italic}, {"_", Style::Italic}};
	std::vector<Span> out;
	std::string plain;
	const auto flush = [&] {
		if (!plain.empty()) out.push_back({Style::Plain, std::exchange(plain, {})});
	};
	for (size_t at = 0; at < text.size();) {
		const auto mark =
		    std::ranges::find_if(kMarks, [&](const Mark& m) { return text.substr(at).starts_with(m.text); });
		if (mark == std::end(kMarks) || !opens(text, at, mark->text)) {
			plain += text[at++];
			continue;
		}
		const size_t from = at + mark->text.size(), end = text.substr(0, from + kLongestSpan).find(mark->text, from);
		if (end == text.npos || end == from || (mark->style != Style::Code && is_space(text[end - 1]))) {
			plain += mark->text;
			at = from;
			continue;
		}
		flush();
		out.push_back({mark->style, std::string(text.substr(from, end - from))});
		at = end + mark->text.size();
	}
	flush();
	return out;
}

// "- x", "12. x": the mark and where the text begins; an empty mark: no item.
std::string_view item_mark(std::string_view line, size_t& text_at) {
	size_t n = 0;
	if (line.starts_with("- ") || line.starts_with("* ") || line.starts_with("+ ")) {
		n = 1;
	} else {
		while (n < line.size() && n < 9 && line[n] >= '0' && line[n] <= '9') ++n;
		if (n == 0 || line.size() < n + 2 || (line[n] != '.' && line[n] != ')') || line[n + 1] != ' ') return {};
		++n;
	}
	text_at = n + 1;
	return line.substr(0, n);
}

class Parser {
 public:
	void line(std::string_view raw) {
		const std::string_view text = trimmed(raw);
		if (in_code_) return text == fence_ ? end_code() : add_code(raw);
		if (text.starts_with("```") || text.starts_with("~~~")) {
			const size_t length = std::min(text.find_first_not_of(text[0]), text.size());
			end_paragraph();
			fence_ = text.substr(0, length);
			blocks_.push_back({BlockKind::Code, 0, std::string(trimmed(text.substr(length))), {{Style::Code, {}}}});
			in_code_ = true;
			return;
		}
		size_t at = 0;
		if (text.empty()) return end_paragraph();
		if (const size_t level = text.find_first_not_of('#');
		    level > 0 && level <= 6 && level < text.size() && text[level] == ' ')
			return add({BlockKind::Heading, int(level), {}, parse_spans(trimmed(text.substr(level)))});
		if (text.size() >= 3 && text.find_first_not_of(text[0]) == text.npos &&
		    (text[0] == '-' || text[0] == '*' || text[0] == '_'))
			return add({BlockKind::Rule, 0, {}, {}});
		if (const std::string_view mark = item_mark(text, at); !mark.empty())
			return add({BlockKind::Item, int(raw.find_first_not_of(" \t")) / 2, std::string(mark),
			            parse_spans(trimmed(text.substr(at)))});
		if (text[0] == '>') return add({BlockKind::Quote, 0, {}, parse_spans(trimmed(text.substr(1)))});
		if (!paragraph_.empty()) paragraph_ += '\n';
		paragraph_ += text;
	}
	std::vector<Block> finish() {
		end_paragraph();
		return std::move(blocks_);
	}

 private:
	void add(Block b) {
		end_paragraph();
		blocks_.push_back(std::move(b));
	}
	void end_paragraph() {
		if (!paragraph_.empty()) blocks_.push_back({BlockKind::Paragraph, 0, {}, parse_spans(paragraph_)});
		paragraph_.clear();
	}
	void add_code(std::string_view raw) {
		std::string& code = blocks_.back().spans[0].text;
		if (!first_) code += '\n';
		first_ = false;
		code += raw;
	}
	void end_code() {
		in_code_ = false;
		first_ = true;
	}
	std::vector<Block> blocks_;
	std::string paragraph_, fence_;
	bool in_code_ = false, first_ = true;
};

} // namespace

std::vector<Block> parse_markdown(std::string_view text) {
	Parser p;
	while (!text.empty()) {
		const size_t end = std::min(text.find('\n'), text.size());
		p.line(text.substr(0, end));
		text.remove_prefix(std::min(end + 1, text.size()));
	}
	return p.finish();
}

} // namespace kvrun::desktop
