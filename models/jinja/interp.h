// Renders a parsed template: statements write text, expressions return values.
#pragma once
#include "models/jinja/ast.h"
#include "models/jinja/lib/builtins.h"
#include "models/jinja/loop.h"

namespace kvrun::jinja {

struct Variable {
	std::string_view name;
	Value value;
};

struct Scope;
struct Macro {
	const Stmt* stmt; // Macro or CallBlock
	Scope* scope;     // where it was defined
};

class Interp {
 public:
	Interp(const Program&, Run&, std::span<const Variable> globals);
	void run(TextBuilder& out);

 private:
	enum class Flow : uint8_t { Normal, Break, Continue };
	friend class ForItems;

	// ---- statements (interp.cpp)
	Flow exec(const Body&);
	Flow exec(const Stmt&);
	Flow exec_if(const Stmt&);
	Flow exec_for(const Stmt&);
	Flow exec_set_block(const Stmt&);
	void exec_call_block(const Stmt&);
	Flow exec_filter_block(const Stmt&);
	Flow exec_with(const Stmt&);
	Flow exec_in_scope(const Body&, Scope*);
	Flow capture(const Body&, Scope*, Value& text); // text: the output of the body
	void print(const Value&);
	void assign(const Expr& target, const Value&);
	void set(NameId, const Value&);
	Scope* new_scope();
	Value lookup(NameId);

	// ---- expressions (interp_expr.cpp)
	Value eval(const Expr&);
	std::vector<Value> eval_all(const std::vector<const Expr*>&);
	Value eval_dict(const Expr&);
	Value eval_math(const Expr&);
	Value eval_concat(const Expr&);
	Value eval_compare(const Expr&);
	Value eval_slice(const Expr&);
	Value eval_call(const Expr&, const Value* caller = nullptr);
	Value eval_filter(const Expr&, const Value* block_text = nullptr);
	Value eval_test(const Expr&);
	Args eval_args(const CallArgs&, std::string_view callee);
	Value call(const Value& callee, const Args&);
	Value call_macro(const Macro&, const Args&);
	void bind_macro(const Stmt&, const Args&, Scope*);
	std::string_view name(NameId id) const { return program_.names[id]; }

	const Program& program_;
	Run& run_;
	std::vector<Value> globals_; // (names) variables of the conversation and functions; Undefined: none
	std::vector<bool> is_global_;
	Scope* scope_ = nullptr;
	TextBuilder* out_ = nullptr;
};

} // namespace kvrun::jinja
