// A parsed template: expressions and statements, owned by its Program and never changed after parsing.
#pragma once
#include "models/jinja/lexer.h"
#include "models/jinja/operators.h"
#include <memory>
#include <unordered_map>
#include <utility>

namespace kvrun::jinja {

using NameId = uint32_t; // a name in the template; its text is in Program::names

struct Expr;
struct CallArgs {
	std::vector<const Expr*> list;
	std::vector<std::pair<NameId, const Expr*>> named;
	const Expr *star = nullptr, *star_star = nullptr; // *list, **dict
};

enum class Comparison : uint8_t { Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, In, NotIn };

struct Expr {
	enum Op : uint8_t {
		Const,   // value
		Name,    // name
		Tuple,   // kids
		List,    // kids
		Dict,    // kids: key, value, key, value, ...
		Attr,    // kids[0].name
		Item,    // kids[0][kids[1]]
		Slice,   // kids[0][kids[1]:kids[2]:kids[3]]; absent ones are null
		Call,    // kids[0](args)
		Filter,  // kids[0]|name(args); kids[0] is null in a filter block
		Test,    // kids[0] is name(args)
		Not,     // kids[0]
		Neg,     // kids[0]
		Pos,     // kids[0]
		Math,    // kids[0] signs[0] kids[1] signs[1] ..., left to right
		Concat,  // kids, as text
		Compare, // kids[0] signs[0] kids[1] signs[1] ...; true if all hold
		And,     // kids
		Or,      // kids
		Cond,    // kids[0] if kids[1] else kids[2], which may be null
	};
	Op op = Const;
	uint32_t height = 1; // levels of nested expressions
	uint32_t line = 1;
	NameId name = 0;
	Value value;
	std::vector<const Expr*> kids;
	std::vector<uint8_t> signs; // Arithmetic or Comparison
	CallArgs args;
};

struct Stmt;
using Body = std::vector<const Stmt*>;

struct Parameter {
	NameId name;
	const Expr* fallback; // null: none
};

struct Stmt {
	enum Op : uint8_t {
		Output,      // exprs in order
		If,          // exprs[i]: bodies[i]; one more body is the else
		For,         // target in exprs[0] if exprs[1], which may be null: bodies[0]; else bodies[1]
		Set,         // target = exprs[0]
		SetBlock,    // target = bodies[0], through the filters exprs[0], which may be null
		Macro,       // name(parameters): bodies[0]
		CallBlock,   // call(parameters) exprs[0]: bodies[0]
		FilterBlock, // exprs[0] on bodies[0]
		With,        // targets and exprs: bodies[0]
		Scope,       // bodies[0] with its own variables
		Break,
		Continue,
	};
	Op op = Output;
	uint32_t line = 1;
	NameId name = 0;
	const Expr* target = nullptr; // Name, Tuple of Names, or Attr of a Name (variable of a namespace)
	std::vector<const Expr*> exprs, targets;
	std::vector<Body> bodies;
	std::vector<Parameter> parameters;
	bool uses_caller = false, uses_varargs = false, uses_kwargs = false; // Macro, CallBlock: named in the body
};

struct Program { // not movable: its parts refer to each other
	Source source;
	std::deque<Expr> exprs;
	std::deque<Stmt> stmts;
	std::deque<std::string> names;                    // by NameId
	std::unordered_map<std::string_view, NameId> ids; // of names
	Body body;
	std::vector<bool> loads; // (names) whether the name is read as a variable
};

constexpr size_t kMaxTemplateBytes = size_t(512) << 10;
constexpr uint32_t kMaxNesting = 256; // of expressions, and of statements

// Throws Error{Format}: "NAME, line N: what". Names of filters, tests and variables are not checked here.
std::unique_ptr<const Program> parse(std::string name, std::string text);

} // namespace kvrun::jinja
