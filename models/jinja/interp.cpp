// Renders a parsed template: statements.
#include "models/jinja/interp.h"
#include "models/jinja/lib/print.h"
#include <algorithm>
#include <utility>

namespace kvrun::jinja {

struct Binding {
	NameId name;
	Value value;
	Binding* next;
};
struct Scope {
	Scope* parent; // null: the template itself
	Binding* first;
};

// The items of a for statement that satisfy its condition. The condition is evaluated just before each item, because
// the body may change what it depends on.
class ForItems final : public LoopItems {
 public:
	ForItems(Interp& in, const Stmt& s, const Value& over) : in_(in), s_(s), items_(in.run_, over), scope_(in.scope_) {}
	bool next(Value& out) override {
		while (items_.next(out)) {
			if (!s_.exprs[1]) return true;
			Scope* outer = std::exchange(in_.scope_, scope_);
			in_.scope_ = in_.new_scope();
			in_.assign(*s_.target, out);
			const bool wanted = truth(in_.eval(*s_.exprs[1]));
			in_.scope_ = outer;
			if (wanted) return true;
		}
		return false;
	}

 private:
	Interp& in_;
	const Stmt& s_;
	Cursor items_;
	Scope* scope_; // around the statement
};

Interp::Interp(const Program& program, Run& run, std::span<const Variable> globals)
    : program_(program), run_(run), globals_(program.names.size()), is_global_(program.names.size()) {
	for (NameId id = 0; id < program.names.size(); ++id)
		if (const Builtin* f = find_function(program.names[id])) {
			globals_[id].kind = Kind::Function;
			globals_[id].function = f;
			is_global_[id] = true;
		}
	for (const Variable& v : globals)
		if (const auto found = program.ids.find(v.name); found != program.ids.end()) {
			globals_[found->second] = v.value;
			is_global_[found->second] = true;
		}
}

void Interp::run(TextBuilder& out) {
	out_ = &out;
	scope_ = new_scope();
	exec(program_.body);
}

// ---- variables

Scope* Interp::new_scope() { return run_.make(Scope{scope_, nullptr}); }

Value Interp::lookup(NameId id) {
	size_t looked_at = 0;
	for (const Scope* s = scope_; s; s = s->parent)
		for (const Binding* b = s->first; b; b = b->next) {
			if (b->name == id) return b->value;
			if (++looked_at % 8 == 0) run_.spend();
		}
	return is_global_[id] ? globals_[id] : run_.undefined(name(id));
}

void Interp::set(NameId id, const Value& v) {
	size_t looked_at = 0;
	for (Binding* b = scope_->first; b; b = b->next) {
		if (b->name == id) {
			b->value = v;
			return;
		}
		if (++looked_at % 8 == 0) run_.spend();
	}
	scope_->first = run_.make(Binding{id, v, scope_->first});
}

void Interp::assign(const Expr& target, const Value& v) {
	if (target.op == Expr::Name) return set(target.name, v);
	if (target.op == Expr::Attr) {
		const Value space = lookup(target.kids[0]->name);
		if (!space.is(Kind::Namespace))
			run_.fail("'{}' is no namespace, so its attributes cannot be set", name(target.kids[0]->name));
		Namespace::Entry** at = &space.space->first;
		const std::string_view wanted = name(target.name);
		for (; *at && (*at)->name.str() != wanted; at = &(*at)->next)
			run_.spend_bytes((*at)->name.size == wanted.size() ? wanted.size() : 0);
		if (*at)
			(*at)->value = v;
		else
			*at = run_.make(Namespace::Entry{text(name(target.name)), v, nullptr});
		return;
	}
	Cursor items(run_, v);
	Value each;
	for (size_t i = 0; i < target.kids.size(); ++i) {
		if (!items.next(each)) run_.fail("{} names are to be set, but there are only {} values", target.kids.size(), i);
		assign(*target.kids[i], each);
	}
	if (items.next(each)) run_.fail("{} names are to be set, but there are more values", target.kids.size());
}

// ---- statements

void Interp::print(const Value& v) { out_->add(to_text(run_, v)); }

Interp::Flow Interp::exec(const Body& body) {
	for (const Stmt* s : body)
		if (const Flow flow = exec(*s); flow != Flow::Normal) return flow;
	return Flow::Normal;
}

Interp::Flow Interp::exec(const Stmt& s) {
	const Deeper deeper(run_);
	run_.spend();
	run_.line = s.line;
	switch (s.op) {
	case Stmt::Output:
		for (const Expr* e : s.exprs) print(eval(*e));
		return Flow::Normal;
	case Stmt::If: return exec_if(s);
	case Stmt::For: return exec_for(s);
	case Stmt::Set: assign(*s.target, eval(*s.exprs[0])); return Flow::Normal;
	case Stmt::SetBlock: return exec_set_block(s);
	case Stmt::Macro: {
		Value v;
		v.kind = Kind::Macro;
		v.macro = run_.make(Macro{&s, scope_});
		set(s.name, v);
		return Flow::Normal;
	}
	case Stmt::CallBlock: exec_call_block(s); return Flow::Normal;
	case Stmt::FilterBlock: return exec_filter_block(s);
	case Stmt::With: return exec_with(s);
	case Stmt::Scope: return exec_in_scope(s.bodies[0], new_scope());
	case Stmt::Break: return Flow::Break;
	case Stmt::Continue: return Flow::Continue;
	}
	return Flow::Normal;
}

Interp::Flow Interp::exec_if(const Stmt& s) {
	for (size_t i = 0; i < s.exprs.size(); ++i)
		if (truth(eval(*s.exprs[i]))) return exec(s.bodies[i]);
	return s.bodies.size() > s.exprs.size() ? exec(s.bodies.back()) : Flow::Normal;
}

Interp::Flow Interp::exec_in_scope(const Body& body, Scope* scope) {
	Scope* outer = std::exchange(scope_, scope);
	const Flow flow = exec(body);
	scope_ = outer;
	return flow;
}

Interp::Flow Interp::exec_for(const Stmt& s) {
	const Value over = eval(*s.exprs[0]);
	run_.line = s.line;
	ForItems items(*this, s, over);
	const bool sized = !s.exprs[1] && !over.is(Kind::Iterator);
	const int64_t known = sized ? int64_t(length(run_, over)) : -1;
	Value loop;
	loop.kind = Kind::Loop;
	loop.loop = run_.make(Loop{&items, -1, known, nullptr, 0, false, false, {}, {}, {}, {}});
	const auto loop_name = program_.ids.find("loop");
	bool completed = false; // an iteration ran to its end; as in Jinja, `else` ignores iterations that did not
	Flow flow = Flow::Normal;
	for (Value v; flow != Flow::Break && loop_next(run_, *loop.loop, v);) {
		Scope* outer = scope_;
		scope_ = new_scope();
		if (loop_name != program_.ids.end()) set(loop_name->second, loop);
		assign(*s.target, v);
		flow = exec(s.bodies[0]);
		scope_ = outer;
		completed |= flow == Flow::Normal;
	}
	loop.loop->items = nullptr;
	if (!completed && s.bodies.size() > 1) return exec_in_scope(s.bodies[1], new_scope());
	return Flow::Normal;
}

Interp::Flow Interp::capture(const Body& body, Scope* scope, Value& text) {
	TextBuilder inner(run_);
	TextBuilder* outer = std::exchange(out_, &inner);
	const Flow flow = exec_in_scope(body, scope);
	out_ = outer;
	text = inner.take();
	return flow;
}

Interp::Flow Interp::exec_set_block(const Stmt& s) {
	Scope* inner = new_scope();
	Value v;
	if (const Flow flow = capture(s.bodies[0], inner, v); flow != Flow::Normal) return flow;
	if (s.exprs[0]) {
		Scope* outer = std::exchange(scope_, inner);
		v = eval_filter(*s.exprs[0], &v);
		scope_ = outer;
	}
	assign(*s.target, v);
	return Flow::Normal;
}

Interp::Flow Interp::exec_filter_block(const Stmt& s) {
	Scope* inner = new_scope();
	Value v;
	if (const Flow flow = capture(s.bodies[0], inner, v); flow != Flow::Normal) return flow;
	Scope* outer = std::exchange(scope_, inner);
	v = eval_filter(*s.exprs[0], &v);
	scope_ = outer;
	if (!v.is(Kind::Text)) run_.fail("the filters of a block give a {}, which is no text", type_name(v));
	print(v);
	return Flow::Normal;
}

void Interp::exec_call_block(const Stmt& s) {
	Value caller;
	caller.kind = Kind::Macro;
	caller.macro = run_.make(Macro{&s, scope_});
	print(eval_call(*s.exprs[0], &caller));
}

Interp::Flow Interp::exec_with(const Stmt& s) {
	const std::vector<Value> values = eval_all(s.exprs);
	Scope* outer = scope_;
	scope_ = new_scope();
	for (size_t i = 0; i < values.size(); ++i) assign(*s.targets[i], values[i]);
	const Flow flow = exec(s.bodies[0]);
	scope_ = outer;
	return flow;
}

// ---- macros

void Interp::bind_macro(const Stmt& s, const Args& args, Scope* scope) {
	const size_t n = s.parameters.size();
	std::vector<const Value*> given(n);
	std::vector<bool> used(args.named.size());
	const Value* caller = nullptr;
	for (size_t i = 0; i < std::min(n, args.list.size()); ++i) given[i] = &args.list[i];
	for (size_t k = 0; k < args.named.size(); ++k) {
		run_.spend(n * (1 + args.named[k].name.size / 256));
		for (size_t i = args.list.size(); i < n; ++i)
			if (name(s.parameters[i].name) == args.named[k].name.str()) given[i] = &args.named[k].value, used[k] = true;
		if (s.uses_caller && !used[k] && args.named[k].name.str() == "caller")
			caller = &args.named[k].value, used[k] = true;
	}
	Scope* outer = std::exchange(scope_, scope);
	if (s.uses_caller)
		set(program_.ids.at("caller"), caller ? *caller : run_.undefined_because("no caller is defined"));
	if (s.uses_kwargs) {
		DictBuilder rest(run_);
		for (size_t k = 0; k < args.named.size(); ++k)
			if (!used[k]) rest.set(args.named[k].name, args.named[k].value);
		set(program_.ids.at("kwargs"), rest.take());
	} else {
		for (size_t k = 0; k < args.named.size(); ++k)
			if (!used[k]) run_.fail("macro '{}' has no parameter '{}'", name(s.name), args.named[k].name.str());
	}
	if (s.uses_varargs)
		set(program_.ids.at("varargs"),
		    run_.make_list(std::span(args.list).subspan(std::min(n, args.list.size())), Kind::Tuple));
	else if (args.list.size() > n)
		run_.fail("macro '{}' takes {} values at most, but is given {}", name(s.name), n, args.list.size());
	for (size_t i = 0; i < n; ++i) {
		const Parameter& p = s.parameters[i];
		set(p.name, given[i] ? *given[i] : p.fallback ? eval(*p.fallback) : run_.undefined(name(p.name)));
	}
	scope_ = outer;
}

Value Interp::call_macro(const Macro& m, const Args& args) {
	const Deeper deeper(run_);
	run_.spend();
	Scope* inner = run_.make(Scope{m.scope, nullptr});
	bind_macro(*m.stmt, args, inner);
	Value out;
	capture(m.stmt->bodies[0], inner, out);
	return out;
}

} // namespace kvrun::jinja
