// Markdown by MD4C (CommonMark and GitHub's tables, links, strike-through) as HTML for Qt's text documents.
#include "tools/desktop/markdown.h"
#include "tools/desktop/maths.h"
#include "tools/html_text.h"
#include <fmt/format.h>
#include <md4c.h>

namespace kvrun::desktop {
namespace {

constexpr size_t kMostBytes = size_t(8) << 20; // longest text that is parsed; longer ones are shown verbatim

constexpr const char* kNoMark = " style=\"list-style-type:none\"";

class Writer {
 public:
	explicit Writer(const Maths& maths) : maths_(maths) {}
	static int enter_block(MD_BLOCKTYPE t, void* detail, void* self) { return me(self).open_block(t, detail), 0; }
	static int leave_block(MD_BLOCKTYPE t, void*, void* self) { return me(self).close_block(t), 0; }
	static int enter_span(MD_SPANTYPE t, void* detail, void* self) { return me(self).span(t, detail, true), 0; }
	static int leave_span(MD_SPANTYPE t, void* detail, void* self) { return me(self).span(t, detail, false), 0; }
	static int text(MD_TEXTTYPE t, const MD_CHAR* s, MD_SIZE n, void* self) { return me(self).add(t, {s, n}), 0; }
	std::vector<Part> take() {
		flush();
		return std::move(parts_);
	}

 private:
	struct Open { // an open block, which code inside it interrupts
		std::string tag, again;
		bool list = false;
		unsigned next = 1;    // number of the next item
		bool written = false; // numbers are written as text: Qt 6.4 counts every list from 1
	};
	static Writer& me(void* self) { return *static_cast<Writer*>(self); }

	void flush() {
		if (html_.empty()) return;
		parts_.push_back({false, {}, std::move(html_), 0});
		html_.clear();
	}
	void push(const std::string& tag, const std::string& attributes = "", bool list = false, unsigned next = 1) {
		html_ += "<" + tag + attributes + ">";
		open_.push_back({tag, "<" + tag + attributes + ">", list, next, list && next != 1});
	}
	void push_item() {
		Open* list = open_.empty() ? nullptr : &open_.back();
		const std::string number = list && list->written ? fmt::format("{}.&nbsp; ", list->next) : "";
		if (list) ++list->next;
		push("li", number.empty() ? "" : kNoMark);
		html_ += number;
	}
	void pop() {
		html_ += "</" + open_.back().tag + ">";
		open_.pop_back();
	}
	int depth() const {
		int n = 0;
		for (const Open& o : open_) n += o.list;
		return n;
	}
	void begin_code(const MD_BLOCK_CODE_DETAIL& d) {
		for (size_t i = open_.size(); i-- > 0;) html_ += "</" + open_[i].tag + ">";
		flush();
		parts_.push_back({true, text_of(d.lang), {}, depth()});
		in_code_ = true;
	}
	void end_code() {
		in_code_ = false;
		std::string& code = parts_.back().text;
		if (code.ends_with('\n')) code.pop_back();
		for (Open& o : open_) { // open blocks continue after the code
			if (o.tag == "ol") o.tag = "ul", o.again = "<ul>", o.written = true;
			html_ += o.tag == "li" ? std::string("<li") + kNoMark + ">" : o.again;
		}
	}
	void open_block(MD_BLOCKTYPE t, void* detail) {
		switch (t) {
		case MD_BLOCK_P: return push("p");
		case MD_BLOCK_H: return push(fmt::format("h{}", static_cast<MD_BLOCK_H_DETAIL*>(detail)->level));
		case MD_BLOCK_UL: return push("ul", "", true);
		case MD_BLOCK_OL: {
			const unsigned start = static_cast<MD_BLOCK_OL_DETAIL*>(detail)->start;
			return push(start == 1 ? "ol" : "ul", "", true, start);
		}
		case MD_BLOCK_LI: {
			push_item();
			const auto* d = static_cast<MD_BLOCK_LI_DETAIL*>(detail);
			if (d->is_task) html_ += d->task_mark == ' ' ? "\u2610 " : "\u2611 ";
			return;
		}
		case MD_BLOCK_QUOTE: return push("blockquote");
		case MD_BLOCK_HR: html_ += "<hr/>"; return;
		case MD_BLOCK_CODE: return begin_code(*static_cast<MD_BLOCK_CODE_DETAIL*>(detail));
		case MD_BLOCK_TABLE: return push("table", " border=\"1\" cellspacing=\"0\" cellpadding=\"6\"");
		case MD_BLOCK_TR: return push("tr");
		case MD_BLOCK_TH:
		case MD_BLOCK_TD: {
			const auto align = static_cast<MD_BLOCK_TD_DETAIL*>(detail)->align;
			const char* where = align == MD_ALIGN_RIGHT    ? " align=\"right\""
			                    : align == MD_ALIGN_CENTER ? " align=\"center\""
			                    : align == MD_ALIGN_LEFT   ? " align=\"left\""
			                                               : ""; // at the side where the script begins
			return push(t == MD_BLOCK_TH ? "th" : "td", where);
		}
		default: return; // the document, and parts of tables that Qt does not need
		}
	}
	void close_block(MD_BLOCKTYPE t) {
		switch (t) {
		case MD_BLOCK_DOC:
		case MD_BLOCK_HR:
		case MD_BLOCK_HTML:
		case MD_BLOCK_THEAD:
		case MD_BLOCK_TBODY: return;
		case MD_BLOCK_CODE: return end_code();
		default: return pop();
		}
	}
	std::string text_of(const MD_ATTRIBUTE& a) const {
		return a.text ? maths_.restored({a.text, a.size}) : std::string();
	}
	// Only what the window opens is a link: files, pictures of the computer and scripts are plain text.
	void link(const MD_ATTRIBUTE& target, bool enters) {
		const std::string to = text_of(target);
		std::string scheme = to.substr(0, to.find(':'));
		for (char& c : scheme) c = char(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
		if (scheme.size() == to.size() || (scheme != "http" && scheme != "https" && scheme != "mailto")) return;
		html_ += enters ? "<a href=\"" + escaped(to) + "\">" : "</a>";
	}
	void span(MD_SPANTYPE t, void* detail, bool enters) {
		const auto tag = [&](const char* name) { html_ += std::string(enters ? "<" : "</") + name + ">"; };
		switch (t) {
		case MD_SPAN_EM: return tag("i");
		case MD_SPAN_STRONG: return tag("b");
		case MD_SPAN_DEL: return tag("s");
		case MD_SPAN_CODE: in_span_ = enters; return tag("code");
		case MD_SPAN_A: return link(static_cast<MD_SPAN_A_DETAIL*>(detail)->href, enters);
		case MD_SPAN_IMG: return link(static_cast<MD_SPAN_IMG_DETAIL*>(detail)->src, enters);
		default: return;
		}
	}
	void add(MD_TEXTTYPE t, std::string_view s) {
		if (in_code_) {
			parts_.back().text += maths_.restored(s);
			return;
		}
		switch (t) {
		case MD_TEXT_NULLCHAR: html_ += "\ufffd"; return;
		case MD_TEXT_BR: html_ += "<br/>"; return;
		case MD_TEXT_SOFTBR: html_ += "<br/>"; return; // as models mean it
		case MD_TEXT_ENTITY: html_ += s; return;       // as written: &amp;
		default: return add_text(s);
		}
	}
	static std::string in_lines(std::string html) {
		for (size_t at = 0; (at = html.find('\n', at)) != html.npos;) html.replace(at, 1, "<br/>");
		return html;
	}
	void add_text(std::string_view s) {
		if (in_span_) return void(html_ += escaped(maths_.restored(s)));
		while (!s.empty()) {
			size_t length = 0;
			if (const Maths::Formula* f = maths_.at(s, length)) {
				html_ += f->plain ? escaped(f->source) : "<code>" + in_lines(escaped(f->source)) + "</code>";
			} else {
				for (length = 1; length < s.size() && !maths_.at(s.substr(length), mark_);) ++length;
				html_ += escaped(s.substr(0, length));
			}
			s.remove_prefix(length);
		}
	}
	const Maths& maths_;
	size_t mark_ = 0;
	std::vector<Part> parts_;
	std::string html_;
	std::vector<Open> open_;
	bool in_code_ = false, in_span_ = false;
};

} // namespace

std::vector<Part> parse_markdown(std::string_view text) {
	if (text.size() > kMostBytes) return {{true, {}, std::string(text), 0}};
	const Maths maths(text);
	const std::string& source = maths.text();
	Writer w(maths);
	MD_PARSER p{};
	p.flags = MD_FLAG_TABLES | MD_FLAG_STRIKETHROUGH | MD_FLAG_TASKLISTS | MD_FLAG_PERMISSIVEURLAUTOLINKS |
	          MD_FLAG_NOHTML | MD_FLAG_NOINDENTEDCODEBLOCKS;
	p.enter_block = Writer::enter_block, p.leave_block = Writer::leave_block;
	p.enter_span = Writer::enter_span, p.leave_span = Writer::leave_span;
	p.text = Writer::text;
	if (md_parse(source.data(), MD_SIZE(source.size()), &p, &w) != 0) return {{true, {}, std::string(text), 0}};
	return w.take();
}

} // namespace kvrun::desktop
