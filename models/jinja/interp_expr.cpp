// Renders a parsed template: expressions.
#include "models/jinja/interp.h"
#include "models/jinja/lib/print.h"
#include <utility>

namespace kvrun::jinja {

Value Interp::eval(const Expr& e) {
	const Deeper deeper(run_);
	run_.spend();
	run_.line = e.line;
	switch (e.op) {
	case Expr::Const: return e.value;
	case Expr::Name: return lookup(e.name);
	case Expr::Tuple: return run_.make_list(eval_all(e.kids), Kind::Tuple);
	case Expr::List: return run_.make_list(eval_all(e.kids));
	case Expr::Dict: return eval_dict(e);
	case Expr::Attr: return attribute(run_, eval(*e.kids[0]), text(name(e.name)));
	case Expr::Item: {
		const Value object = eval(*e.kids[0]), key = eval(*e.kids[1]);
		run_.line = e.line;
		return item(run_, object, key);
	}
	case Expr::Slice: return eval_slice(e);
	case Expr::Call: return eval_call(e);
	case Expr::Filter: return eval_filter(e);
	case Expr::Test: return eval_test(e);
	case Expr::Not: return boolean(!truth(eval(*e.kids[0])));
	case Expr::Neg: return negative(run_, eval(*e.kids[0]));
	case Expr::Pos: return positive(run_, eval(*e.kids[0]));
	case Expr::Math: return eval_math(e);
	case Expr::Concat: return eval_concat(e);
	case Expr::Compare: return eval_compare(e);
	case Expr::And:
	case Expr::Or: {
		Value v;
		for (const Expr* kid : e.kids) {
			v = eval(*kid);
			if (truth(v) == (e.op == Expr::Or)) break;
		}
		return v;
	}
	case Expr::Cond:
		if (truth(eval(*e.kids[1]))) return eval(*e.kids[0]);
		return e.kids[2] ? eval(*e.kids[2]) : run_.undefined_because("an inline if without else has no value here");
	}
	return {};
}

std::vector<Value> Interp::eval_all(const std::vector<const Expr*>& exprs) {
	std::vector<Value> out;
	out.reserve(exprs.size());
	for (const Expr* e : exprs) out.push_back(eval(*e));
	return out;
}

Value Interp::eval_dict(const Expr& e) {
	DictBuilder d(run_);
	for (size_t i = 0; i < e.kids.size(); i += 2) {
		const Value key = eval(*e.kids[i]);
		d.set(key, eval(*e.kids[i + 1]));
	}
	return d.take();
}

Value Interp::eval_math(const Expr& e) {
	Value v = eval(*e.kids[0]);
	const auto plain = [](const Value& t) { return t.is(Kind::Text) && !t.markup; };
	for (size_t i = 1; i < e.kids.size(); ++i) {
		const Arithmetic sign = Arithmetic(e.signs[i - 1]);
		Value next = eval(*e.kids[i]);
		run_.line = e.line;
		if (sign != Arithmetic::Add || !plain(v) || !plain(next)) {
			v = arithmetic(run_, sign, v, next);
			continue;
		}
		TextBuilder all(run_); // adjacent texts are joined in one go
		all.add(v);
		all.add(next);
		while (i + 1 < e.kids.size() && Arithmetic(e.signs[i]) == Arithmetic::Add) {
			next = eval(*e.kids[++i]);
			if (!plain(next)) break;
			all.add(next);
		}
		v = all.take();
		run_.line = e.line;
		if (!plain(next)) v = arithmetic(run_, Arithmetic::Add, v, next);
	}
	return v;
}

Value Interp::eval_concat(const Expr& e) {
	TextBuilder all(run_);
	for (const Expr* kid : e.kids) all.add(to_text(run_, eval(*kid)));
	return all.take();
}

Value Interp::eval_compare(const Expr& e) {
	Value left = eval(*e.kids[0]);
	bool holds = true;
	for (size_t i = 1; holds && i < e.kids.size(); ++i) {
		const Value right = eval(*e.kids[i]);
		run_.line = e.line;
		switch (Comparison(e.signs[i - 1])) {
		case Comparison::Equal: holds = equal(run_, left, right); break;
		case Comparison::NotEqual: holds = !equal(run_, left, right); break;
		case Comparison::Less: holds = compare(run_, Order::Less, left, right); break;
		case Comparison::LessEqual: holds = compare(run_, Order::LessEqual, left, right); break;
		case Comparison::Greater: holds = compare(run_, Order::Greater, left, right); break;
		case Comparison::GreaterEqual: holds = compare(run_, Order::GreaterEqual, left, right); break;
		case Comparison::In: holds = contains(run_, right, left); break;
		case Comparison::NotIn: holds = !contains(run_, right, left); break;
		}
		left = right;
	}
	return boolean(holds);
}

Value Interp::eval_slice(const Expr& e) {
	const Value object = eval(*e.kids[0]);
	Value at[3];
	for (int i = 0; i < 3; ++i) at[i] = e.kids[size_t(i) + 1] ? eval(*e.kids[size_t(i) + 1]) : none();
	run_.line = e.line;
	return slice(run_, object, at[0], at[1], at[2]);
}

// ---- calls

Args Interp::eval_args(const CallArgs& args, std::string_view callee) {
	Args out;
	out.callee = callee;
	out.list = eval_all(args.list);
	for (const auto& [id, e] : args.named) out.named.push_back({text(name(id)), eval(*e)});
	if (args.star) {
		Cursor more(run_, eval(*args.star));
		for (Value v; more.next(v);) out.list.push_back(v);
	}
	if (args.star_star) {
		const Value more = eval(*args.star_star);
		if (!more.is(Kind::Dict)) run_.fail("** takes a dict, not a {}", type_name(more));
		for (size_t i = 0; i < more.dict->n; ++i) {
			const Value& key = more.dict->keys[i];
			if (!key.is(Kind::Text)) run_.fail("** takes a dict whose keys are texts, one is a {}", type_name(key));
			for (const Named& other : out.named) {
				run_.spend_bytes(other.name.size == key.size ? key.size : 0);
				if (other.name.str() == key.str()) run_.fail("argument '{}' is given twice", key.str());
			}
			out.named.push_back({key, more.dict->values[i]});
		}
	}
	return out;
}

Value Interp::eval_call(const Expr& e, const Value* caller) {
	const Expr& callee = *e.kids[0];
	const Value f = eval(callee);
	const std::string_view called = callee.op == Expr::Name || callee.op == Expr::Attr ? name(callee.name) : "function";
	if (f.is(Kind::Undefined)) {
		run_.line = e.line;
		if (callee.op == Expr::Name) run_.fail_unknown("unknown function '{}'", called);
		run_.fail_undefined(f);
	}
	Args args = eval_args(e.args, called);
	if (caller) args.named.push_back({text("caller"), *caller});
	run_.line = e.line;
	return call(f, args);
}

Value Interp::call(const Value& f, const Args& args) {
	switch (f.kind) {
	case Kind::Macro: return call_macro(*f.macro, args);
	case Kind::Function: return f.function->call(run_, f, args);
	case Kind::Method: return f.method->builtin->call(run_, f.method->self, args);
	case Kind::Joiner:
		no_arguments(run_, args);
		return std::exchange(f.joiner->used, true) ? f.joiner->separator : text("");
	case Kind::Loop: run_.fail("recursive loops are not supported");
	default: run_.fail("'{}' is a {}, which cannot be called", args.callee, type_name(f));
	}
}

Value Interp::eval_filter(const Expr& e, const Value* block_text) {
	const Value self = e.kids[0] ? block_text ? eval_filter(*e.kids[0], block_text) : eval(*e.kids[0]) : *block_text;
	const Args args = eval_args(e.args, name(e.name));
	run_.line = e.line;
	return call_filter(run_, name(e.name), self, args);
}

Value Interp::eval_test(const Expr& e) {
	const Value self = eval(*e.kids[0]);
	const Args args = eval_args(e.args, name(e.name));
	run_.line = e.line;
	return boolean(call_test(run_, name(e.name), self, args));
}

} // namespace kvrun::jinja
