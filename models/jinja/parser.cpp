// Tokens to statements.
#include "models/jinja/parser.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <utility>

namespace kvrun::jinja {

// ---- tokens

std::string Parser::shown() const {
	switch (now().type) {
	case Token::Data: return "text";
	case Token::VariableBegin: return "{{";
	case Token::VariableEnd: return "}}";
	case Token::BlockBegin: return "{%";
	case Token::BlockEnd: return "%}";
	case Token::Int:
	case Token::Float: return "a number";
	case Token::Text: return "a text";
	case Token::End: return "the end of the template";
	default: return fmt::format("'{}'", one_line(now().text, 40));
	}
}

void Parser::fail_unexpected(const char* wanted) const { fail(fmt::format("expected {}, found {}", wanted, shown())); }
void Parser::expect_op(std::string_view op) {
	if (!skip_op(op)) fail(fmt::format("expected '{}', found {}", op, shown()));
}
void Parser::expect(Token::Type type, const char* what) {
	if (now().type != type) fail_unexpected(what);
	take();
}
std::string_view Parser::expect_name() {
	if (now().type != Token::Name) fail_unexpected("a name");
	return take().text;
}

// ---- nodes

NameId Parser::id(std::string_view name) {
	if (const auto found = p_.ids.find(name); found != p_.ids.end()) return found->second;
	const NameId n = NameId(p_.names.size());
	p_.ids.emplace(p_.names.emplace_back(name), n);
	return n;
}

Expr* Parser::make(Expr::Op op, uint32_t line) {
	Expr& e = p_.exprs.emplace_back();
	e.op = op;
	e.line = line;
	return &e;
}
Expr* Parser::make(Expr::Op op, uint32_t line, std::vector<const Expr*> kids) {
	Expr* e = make(op, line);
	e->kids = std::move(kids);
	return e;
}

const Expr* Parser::sized(Expr* e) {
	uint32_t height = 0;
	const auto see = [&](const Expr* kid) { height = std::max(height, kid ? kid->height : 0); };
	for (const Expr* kid : e->kids) see(kid);
	for (const Expr* arg : e->args.list) see(arg);
	for (const auto& [name, arg] : e->args.named) see(arg);
	see(e->args.star);
	see(e->args.star_star);
	e->height = height + 1;
	if (e->height > kMaxNesting)
		fail(fmt::format("the template is too deep: more than {} levels inside each other", kMaxNesting));
	return e;
}

Stmt* Parser::make_stmt(Stmt::Op op, uint32_t line) {
	Stmt& s = p_.stmts.emplace_back();
	s.op = op;
	s.line = line;
	return &s;
}

// ---- statements

void Parser::run() {
	p_.body = statements({});
	p_.loads.resize(p_.names.size());
}

Body Parser::statements(std::initializer_list<std::string_view> ends) {
	Body body;
	Stmt* out = nullptr; // the output at the end of the body, if it ends in one
	const auto output = [&](const Expr* e) {
		if (!out) body.push_back(out = make_stmt(Stmt::Output, e->line));
		out->exprs.push_back(e);
	};
	while (true) {
		const Token& t = now();
		switch (t.type) {
		case Token::Data: {
			Expr* e = make(Expr::Const, t.line);
			e->value = text(t.text);
			output(e);
			take();
			break;
		}
		case Token::VariableBegin: {
			take();
			output(tuple(true, false));
			expect(Token::VariableEnd, "}}");
			break;
		}
		case Token::BlockBegin: {
			out = nullptr;
			take();
			if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return is_name(end); })) return body;
			const Nest nest(*this);
			body.push_back(statement());
			expect(Token::BlockEnd, "%}");
			break;
		}
		default:
			if (t.type == Token::End && ends.size() == 0) return body;
			if (t.type == Token::End)
				fail(fmt::format("the template ends, but {{% {} %}} is missing", *(ends.end() - 1)));
			fail_unexpected("text or a tag");
		}
	}
}

Body Parser::block(std::string_view end) {
	skip_op(":");
	expect(Token::BlockEnd, "%}");
	Body body = statements({end});
	take();
	return body;
}

const Stmt* Parser::statement() {
	if (now().type != Token::Name) fail_unexpected("the name of a tag");
	const uint32_t line = now().line;
	const std::string_view name = take().text;
	if (name == "if") return if_statement();
	if (name == "for") return for_statement();
	if (name == "set") return set_statement();
	if (name == "macro") return macro_statement();
	if (name == "call") return call_block();
	if (name == "filter") return filter_block();
	if (name == "with") return with_statement();
	if (name == "break") return loop_control(Stmt::Break);
	if (name == "continue") return loop_control(Stmt::Continue);
	if (name == "generation") { // HF's mark around the assistant's answers
		Stmt* s = make_stmt(Stmt::Scope, line);
		const uint32_t loops = std::exchange(loops_, 0);
		s->bodies.push_back(block("endgeneration"));
		loops_ = loops;
		return s;
	}
	if (name == "print") {
		Stmt* s = make_stmt(Stmt::Output, line);
		do { s->exprs.push_back(expression()); } while (skip_op(","));
		return s;
	}
	return unknown_tag(name);
}

const Stmt* Parser::unknown_tag(std::string_view name) {
	for (std::string_view other : {"include", "import", "from", "extends", "block"})
		if (name == other) fail(fmt::format("tag '{}' is refused: a chat template cannot use other templates", name));
	for (std::string_view end : {"endif", "endfor", "endset", "endmacro", "endcall", "endfilter", "endwith",
	                             "endgeneration", "else", "elif", "endraw"})
		if (name == end) fail(fmt::format("tag '{}' ends nothing that is open here", name));
	fail(fmt::format("unknown tag '{}'", one_line(name, 40)));
}

const Stmt* Parser::if_statement() {
	Stmt* s = make_stmt(Stmt::If, now().line);
	while (true) {
		s->exprs.push_back(tuple(false, false));
		skip_op(":");
		expect(Token::BlockEnd, "%}");
		s->bodies.push_back(statements({"elif", "else", "endif"}));
		if (skip_name("elif")) continue;
		if (skip_name("else"))
			s->bodies.push_back(block("endif"));
		else
			take();
		return s;
	}
}

const Stmt* Parser::for_statement() {
	Stmt* s = make_stmt(Stmt::For, now().line);
	s->target = target(true, "in");
	if (!skip_name("in")) fail_unexpected("'in'");
	s->exprs.push_back(tuple(false, false, "recursive"));
	s->exprs.push_back(skip_name("if") ? expression() : nullptr);
	if (is_name("recursive")) fail("recursive loops are not supported");
	skip_op(":");
	expect(Token::BlockEnd, "%}");
	++loops_;
	s->bodies.push_back(statements({"else", "endfor"}));
	--loops_;
	if (skip_name("else"))
		s->bodies.push_back(block("endfor"));
	else
		take();
	return s;
}

const Stmt* Parser::set_statement() {
	const uint32_t line = now().line;
	const Expr* to = nullptr;
	if (ahead().type == Token::Operator && ahead().text == ".") {
		const Expr* space = target_name();
		take();
		Expr* e = make(Expr::Attr, line, {space});
		e->name = id(expect_name());
		to = sized(e);
	} else {
		to = target(true);
	}
	const bool block_follows = !skip_op("=");
	Stmt* s = make_stmt(block_follows ? Stmt::SetBlock : Stmt::Set, line);
	s->target = to;
	s->exprs.push_back(block_follows ? filters(nullptr) : tuple(true, false));
	if (block_follows) s->bodies.push_back(block("endset"));
	return s;
}

const Expr* Parser::target_name() {
	const uint32_t line = now().line;
	const std::string_view name = expect_name();
	for (std::string_view word : {"true", "false", "none", "True", "False", "None"})
		if (name == word) fail(fmt::format("'{}' cannot be set", name));
	Expr* e = make(Expr::Name, line);
	e->name = id(name);
	return e;
}

// A name, or with `tuples` several names separated by commas, optionally in parentheses.
const Expr* Parser::target(bool tuples, std::string_view end) {
	const Nest nest(*this);
	std::vector<const Expr*> kids;
	const uint32_t line = now().line;
	bool is_tuple = false;
	while (true) {
		const bool stops = now().type == Token::BlockEnd || is_op(")") || is_op("=") || (!end.empty() && is_name(end));
		if (is_tuple && stops) break;
		if (skip_op("(")) {
			kids.push_back(target(true));
			expect_op(")");
		} else {
			kids.push_back(target_name());
		}
		if (!tuples || !skip_op(",")) break;
		is_tuple = true;
	}
	return is_tuple ? sized(make(Expr::Tuple, line, std::move(kids))) : kids[0];
}

void Parser::parameters(Stmt& s) {
	expect_op("(");
	while (!is_op(")")) {
		if (!s.parameters.empty()) expect_op(",");
		const NameId name = target_name()->name;
		const Expr* fallback = skip_op("=") ? expression() : nullptr;
		if (!fallback && !s.parameters.empty() && s.parameters.back().fallback)
			fail(fmt::format("parameter '{}' needs a default, as the one before it has one", p_.names[name]));
		s.parameters.push_back({name, fallback});
	}
	expect_op(")");
}

// The body of a macro or call block; primary() records which of caller, varargs and kwargs it names.
void Parser::macro_body(Stmt& s, std::string_view end) {
	macros_.push_back(&s);
	const uint32_t loops = std::exchange(loops_, 0);
	s.bodies.push_back(block(end));
	loops_ = loops;
	macros_.pop_back();
	for (const Parameter& parameter : s.parameters) {
		const std::string& name = p_.names[parameter.name];
		if (name == "caller") s.uses_caller = false;
		if (name == "varargs") s.uses_varargs = false;
		if (name == "kwargs") s.uses_kwargs = false;
	}
}

const Stmt* Parser::macro_statement() {
	Stmt* s = make_stmt(Stmt::Macro, now().line);
	s->name = target_name()->name;
	parameters(*s);
	macro_body(*s, "endmacro");
	return s;
}

const Stmt* Parser::call_block() {
	Stmt* s = make_stmt(Stmt::CallBlock, now().line);
	s->name = id("caller");
	if (is_op("(")) parameters(*s);
	const Expr* called = expression();
	if (called->op != Expr::Call) fail("a call block calls a macro; write {% call name() %}");
	s->exprs.push_back(called);
	macro_body(*s, "endcall");
	return s;
}

const Stmt* Parser::filter_block() {
	Stmt* s = make_stmt(Stmt::FilterBlock, now().line);
	s->exprs.push_back(filters(nullptr, /*first_is_name=*/true));
	s->bodies.push_back(block("endfilter"));
	return s;
}

const Stmt* Parser::with_statement() {
	Stmt* s = make_stmt(Stmt::With, now().line);
	while (now().type != Token::BlockEnd && !is_op(":")) {
		if (!s->targets.empty()) expect_op(",");
		s->targets.push_back(target(false));
		expect_op("=");
		s->exprs.push_back(expression());
	}
	s->bodies.push_back(block("endwith"));
	return s;
}

const Stmt* Parser::loop_control(Stmt::Op op) {
	if (loops_ == 0) fail("break and continue are for loops only");
	return make_stmt(op, now().line);
}

std::unique_ptr<const Program> parse(std::string name, std::string text) {
	auto p = std::make_unique<Program>();
	p->source.name = std::move(name);
	if (text.size() > kMaxTemplateBytes)
		fail(Code::Format, "{}: it has {} bytes, at most {} are accepted", p->source.name, text.size(),
		     kMaxTemplateBytes);
	for (size_t at = 0; at < text.size();) {
		const size_t n = utf8_char(text, at);
		if (n == 0) fail(Code::Format, "{}: byte {} is not UTF-8; the file is damaged", p->source.name, at);
		at += n;
	}
	p->source.text = std::move(text);
	Parser(*p).run();
	return p;
}

} // namespace kvrun::jinja
