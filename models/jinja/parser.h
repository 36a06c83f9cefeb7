// Parses tokens to expressions and statements: the grammar of Jinja 3.1, without references to other templates.
#pragma once
#include "models/jinja/ast.h"
#include <algorithm>
#include <initializer_list>

namespace kvrun::jinja {

class Parser {
 public:
	explicit Parser(Program& p) : p_(p), tokens_(tokenize(p.source)) {}
	void run();

 private:
	// ---- tokens
	const Token& now() const { return tokens_[at_]; }
	const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
	const Token& take() {
		const Token& t = now();
		if (t.type != Token::End) ++at_;
		return t;
	}
	bool is_op(std::string_view op) const { return now().type == Token::Operator && now().text == op; }
	bool is_name(std::string_view name) const { return now().type == Token::Name && now().text == name; }
	bool skip_op(std::string_view op) { return is_op(op) && (++at_, true); }
	bool skip_name(std::string_view name) { return is_name(name) && (++at_, true); }
	void expect_op(std::string_view op);
	void expect(Token::Type type, const char* what);
	std::string_view expect_name();
	[[noreturn]] void fail(const std::string& what) const { fail_syntax(p_.source, now().line, what); }
	[[noreturn]] void fail_unexpected(const char* wanted) const;
	std::string shown() const; // the current token, for a message

	// ---- nodes
	NameId id(std::string_view name);
	Expr* make(Expr::Op op, uint32_t line);
	Expr* make(Expr::Op op, uint32_t line, std::vector<const Expr*> kids);
	const Expr* sized(Expr* e); // sets and checks the height
	Stmt* make_stmt(Stmt::Op op, uint32_t line);
	class Nest; // one level of recursion

	// ---- statements (parser.cpp)
	Body statements(std::initializer_list<std::string_view> ends); // stops at one of the ends
	const Stmt* statement();
	const Stmt* unknown_tag(std::string_view name);
	const Stmt* if_statement();
	const Stmt* for_statement();
	const Stmt* set_statement();
	const Stmt* macro_statement();
	const Stmt* call_block();
	const Stmt* filter_block();
	const Stmt* with_statement();
	const Stmt* loop_control(Stmt::Op op);
	Body block(std::string_view end); // a body and its end tag
	void parameters(Stmt& s);
	void macro_body(Stmt& s, std::string_view end);
	const Expr* target(bool tuples, std::string_view end = {});
	const Expr* target_name();

	// ---- expressions (parser_expr.cpp)
	const Expr* expression(bool conditional = true);
	const Expr* tuple(bool conditional, bool parentheses, std::string_view end = {});
	const Expr* condition();
	const Expr* either();
	const Expr* both();
	const Expr* inverse();
	const Expr* comparison();
	const Expr* sum();
	const Expr* concat();
	const Expr* product();
	const Expr* power();
	const Expr* unary(bool filters);
	const Expr* primary();
	const Expr* constant();
	const Expr* list();
	const Expr* dict();
	const Expr* postfix(const Expr*);
	const Expr* filters_and_tests(const Expr*);
	const Expr* subscript(const Expr*);
	const Expr* bracket(const Expr*, uint32_t line);
	const Expr* call(const Expr*);
	const Expr* filters(const Expr*, bool first_is_name = false);
	const Expr* test(const Expr*);
	CallArgs call_args();
	const Expr* chain(Expr::Op op, const Expr* first, std::vector<const Expr*> rest, std::vector<uint8_t> signs);

	Program& p_;
	std::vector<Token> tokens_;
	size_t at_ = 0;
	uint32_t nested_ = 0;
	uint32_t loops_ = 0;        // for statements around the current token, in the current macro
	std::vector<Stmt*> macros_; // macros and call blocks around the current token
};

class Parser::Nest {
 public:
	explicit Nest(Parser& p) : p_(p) {
		if (++p.nested_ > kMaxNesting)
			p.fail(fmt::format("the template is too deep: more than {} levels inside each other", kMaxNesting));
	}
	~Nest() { --p_.nested_; }
	Nest(const Nest&) = delete;

 private:
	Parser& p_;
};

} // namespace kvrun::jinja
