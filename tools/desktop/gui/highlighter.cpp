// Colours of code: keywords, strings, numbers, comments. KSyntaxHighlighting knows more, but in Debian 12 it exists
// only for Qt 5.
#include "tools/desktop/gui/highlighter.h"
#include "tools/desktop/gui/theme.h"
#include <QRegularExpression>
#include <QSet>
#include <QTextDocument>

namespace kvrun::desktop {

struct CodeLanguage {
	QSet<QString> names;    // as written after a fence
	QString line, from, to; // start of a comment; start and end of a comment of several lines
	QString quotes;
	QSet<QString> words;
	bool any_case = false;
};

namespace {

QSet<QString> words(const char* text) {
	const QStringList all = QString(text).split(' ');
	return {all.begin(), all.end()};
}

const CodeLanguage& find_language(const QString& name) {
	static const CodeLanguage all[] = {
	    {words("c h cpp c++ cc hpp cxx cuda glsl objc arduino java kotlin kt scala cs csharp c# swift go golang rust "
	           "rs dart zig"),
	     "//", "/*", "*/", "\"'",
	     words("alignas alignof and as async auto await bool boolean break byte case catch char class companion "
	           "concept const "
	           "consteval constexpr constinit continue crate decltype default defer delete do double dyn else enum "
	           "explicit "
	           "export extends extern false final finally float fn for foreach friend func fun function go goto guard "
	           "if impl "
	           "implements import in inline instanceof int int8_t int16_t int32_t int64_t interface internal is let "
	           "lock long "
	           "loop map match mod module move mut mutable namespace new nil noexcept not null nullptr object of "
	           "operator or "
	           "override package private protected protocol pub public range readonly ref register requires return "
	           "sealed "
	           "self Self short signed size_t sizeof static std str string String struct super switch synchronized "
	           "template "
	           "this throw throws trait true try type typedef typeid typename u8 u16 u32 u64 i8 i16 i32 i64 f32 f64 "
	           "usize "
	           "uint uint8_t uint16_t uint32_t uint64_t union unsafe unsigned use using val var virtual void volatile "
	           "wchar_t "
	           "when where while yield #include #define #if #ifdef #ifndef #else #endif #pragma")},
	    {words("js javascript jsx ts typescript tsx json json5 mjs node"), "//", "/*", "*/", "\"'`",
	     words(
	         "abstract any as async await boolean break case catch class const constructor continue debugger declare "
	         "default "
	         "delete do else enum export extends false finally for from function get if implements import in infer "
	         "instanceof interface keyof let module namespace never new null number object of private protected public "
	         "readonly return set static string super switch symbol this throw true try type typeof undefined unknown "
	         "var "
	         "void while with yield")},
	    {words("python py python3 ipython gdscript"), "#", "", "", "\"'",
	     words(
	         "False None True and as assert async await break case class continue def del elif else except finally for "
	         "from "
	         "global if import in is lambda match nonlocal not or pass print raise return self try while with yield")},
	    {words("bash sh shell zsh console terminal fish makefile make dockerfile cmake"), "#", "", "", "\"'",
	     words("alias break case cd continue do done echo elif else esac eval exec exit export fi for function if in "
	           "local "
	           "read return select set shift source sudo then trap unset until while FROM RUN COPY CMD ENV WORKDIR "
	           "ENTRYPOINT")},
	    {words("ruby rb perl pl r julia jl elixir ex yaml yml toml ini nix"), "#", "", "", "\"'",
	     words(
	         "abstract alias and begin break case class def defmodule defp do else elsif end ensure false for foreach "
	         "function if import in let library local loop macro module mutable my next nil no not null or our package "
	         "print private protected public quote raise repeat require rescue return self struct sub super then true "
	         "try "
	         "TRUE FALSE NULL undef unless until use using when where while yes yield")},
	    {words("sql postgresql mysql sqlite plsql"), "--", "/*", "*/", "\"'",
	     words("add all alter and as asc avg begin between by case check column commit count create cross database "
	           "default "
	           "delete desc distinct drop else end exists foreign from full group having if in index inner insert int "
	           "integer "
	           "into is join key left like limit max min not null offset on or order outer over partition primary "
	           "references "
	           "right rollback select set sum table text then transaction union unique update using values varchar "
	           "view when "
	           "where with"),
	     true},
	    {words("lua haskell hs ada"), "--", "", "", "\"'",
	     words("and break case class data deriving do else elseif end false for function goto if import in instance "
	           "let local "
	           "module newtype nil not of or repeat return then true type until where while")},
	    {words("html xml svg vue"), "", "<!--", "-->", "\"'",
	     words("html head body div span p a img script style link meta title table tr td th ul ol li form input button "
	           "h1 h2 "
	           "h3 class id href src")},
	    {words("css scss less"), "", "/*", "*/", "\"'",
	     words("important media import keyframes from to auto none inherit solid")},
	    {{}, "", "", "", "\"", {}}};
	for (const CodeLanguage& l : all)
		if (l.names.contains(name.toLower().section(' ', 0, 0))) return l;
	return *(std::end(all) - 1);
}

enum { kPlain = 0, kComment = 1 }; // states of a line's end

} // namespace

Highlighter::Highlighter(QTextDocument* d, const QString& language)
    : QSyntaxHighlighter(d), language_(find_language(language)) {}

void Highlighter::highlightBlock(const QString& line) {
	const CodeLanguage& l = language_;
	const Theme& t = theme();
	const auto paint = [&](int from, int length, const QColor& c) { setFormat(from, length, c); };
	const auto begins = [&](qsizetype at, const QString& what) {
		return !what.isEmpty() && QStringView(line).mid(at).startsWith(what);
	};
	int at = 0;
	const int n = int(line.size());
	setCurrentBlockState(kPlain);
	const auto comment = [&](int from) { // colours a comment of several lines; returns where it ends
		const int end = int(line.indexOf(l.to, from));
		if (end < 0) setCurrentBlockState(kComment);
		const int next = end < 0 ? n : end + int(l.to.size());
		return next;
	};
	if (previousBlockState() == kComment) {
		at = comment(0);
		paint(0, at, t.comment);
	}
	while (at < n) {
		const QChar c = line[at];
		const int from = at;
		if (begins(at, l.line)) return paint(at, n - at, t.comment);
		if (begins(at, l.from)) {
			at = comment(at + int(l.from.size()));
			paint(from, at - from, t.comment);
		} else if (l.quotes.contains(c)) {
			for (++at; at < n && line[at] != c; ++at)
				if (line[at] == '\\') ++at;
			at = std::min(at + 1, n);
			paint(from, at - from, t.string);
		} else if (c.isDigit()) {
			while (at < n && (line[at].isLetterOrNumber() || line[at] == '.')) ++at;
			paint(from, at - from, t.number);
		} else if (c.isLetter() || c == '_' || c == '#') {
			for (++at; at < n && (line[at].isLetterOrNumber() || line[at] == '_');) ++at;
			const QString word = line.mid(from, at - from);
			if (l.words.contains(l.any_case ? word.toLower() : word)) paint(from, at - from, t.keyword);
		} else {
			++at;
		}
	}
}

} // namespace kvrun::desktop
