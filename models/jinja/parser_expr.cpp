// Parses expressions: one function per level of precedence, the weakest first.
#include "models/jinja/parser.h"
#include <unordered_set>

namespace kvrun::jinja {

const Expr* Parser::expression(bool conditional) { return conditional ? condition() : either(); }

// An expression, or several separated by commas, which form a tuple.
const Expr* Parser::tuple(bool conditional, bool parentheses, std::string_view end) {
	const uint32_t line = now().line;
	std::vector<const Expr*> kids;
	bool is_tuple = false;
	while (true) {
		const bool stops = now().type == Token::VariableEnd || now().type == Token::BlockEnd || is_op(")") ||
		                   (!end.empty() && is_name(end));
		if (stops) break;
		kids.push_back(expression(conditional));
		if (!skip_op(",")) break;
		is_tuple = true;
	}
	if (!is_tuple && !kids.empty()) return kids[0];
	if (!is_tuple && !parentheses) fail_unexpected("an expression");
	return sized(make(Expr::Tuple, line, std::move(kids)));
}

const Expr* Parser::condition() {
	const uint32_t line = now().line;
	const Expr* e = either();
	while (skip_name("if")) {
		const Expr* test = either();
		const Expr* other = nullptr;
		if (skip_name("else")) {
			const Nest nest(*this);
			other = condition();
		}
		e = sized(make(Expr::Cond, line, {e, test, other}));
	}
	return e;
}

const Expr* Parser::chain(Expr::Op op, const Expr* first, std::vector<const Expr*> rest, std::vector<uint8_t> signs) {
	if (rest.empty()) return first;
	rest.insert(rest.begin(), first);
	Expr* e = make(op, first->line, std::move(rest));
	e->signs = std::move(signs);
	return sized(e);
}

const Expr* Parser::either() {
	const Expr* first = both();
	std::vector<const Expr*> rest;
	while (skip_name("or")) rest.push_back(both());
	return chain(Expr::Or, first, std::move(rest), {});
}

const Expr* Parser::both() {
	const Expr* first = inverse();
	std::vector<const Expr*> rest;
	while (skip_name("and")) rest.push_back(inverse());
	return chain(Expr::And, first, std::move(rest), {});
}

const Expr* Parser::inverse() {
	const uint32_t line = now().line;
	if (!skip_name("not")) return comparison();
	const Nest nest(*this);
	return sized(make(Expr::Not, line, {inverse()}));
}

const Expr* Parser::comparison() {
	constexpr std::pair<std::string_view, Comparison> kSigns[] = {
	    {"==", Comparison::Equal},     {"!=", Comparison::NotEqual}, {"<", Comparison::Less},
	    {"<=", Comparison::LessEqual}, {">", Comparison::Greater},   {">=", Comparison::GreaterEqual}};
	const Expr* first = sum();
	std::vector<const Expr*> rest;
	std::vector<uint8_t> signs;
	while (true) {
		std::optional<Comparison> sign;
		for (const auto& [text, meaning] : kSigns)
			if (!sign && skip_op(text)) sign = meaning;
		if (!sign && skip_name("in")) sign = Comparison::In;
		if (!sign && is_name("not") && ahead().type == Token::Name && ahead().text == "in") {
			at_ += 2;
			sign = Comparison::NotIn;
		}
		if (!sign) return chain(Expr::Compare, first, std::move(rest), std::move(signs));
		signs.push_back(uint8_t(*sign));
		rest.push_back(sum());
	}
}

const Expr* Parser::sum() {
	const Expr* first = concat();
	std::vector<const Expr*> rest;
	std::vector<uint8_t> signs;
	while (is_op("+") || is_op("-")) {
		signs.push_back(uint8_t(take().text == "+" ? Arithmetic::Add : Arithmetic::Sub));
		rest.push_back(concat());
	}
	return chain(Expr::Math, first, std::move(rest), std::move(signs));
}

const Expr* Parser::concat() {
	const Expr* first = product();
	std::vector<const Expr*> rest;
	while (skip_op("~")) rest.push_back(product());
	return chain(Expr::Concat, first, std::move(rest), {});
}

const Expr* Parser::product() {
	const Expr* first = power();
	std::vector<const Expr*> rest;
	std::vector<uint8_t> signs;
	while (is_op("*") || is_op("/") || is_op("//") || is_op("%")) {
		const std::string_view sign = take().text;
		signs.push_back(uint8_t(sign == "*"    ? Arithmetic::Mul
		                        : sign == "/"  ? Arithmetic::Div
		                        : sign == "//" ? Arithmetic::FloorDiv
		                                       : Arithmetic::Mod));
		rest.push_back(power());
	}
	return chain(Expr::Math, first, std::move(rest), std::move(signs));
}

const Expr* Parser::power() { // left-associative, unlike Python's
	const Expr* first = unary(true);
	std::vector<const Expr*> rest;
	std::vector<uint8_t> signs;
	while (skip_op("**")) {
		signs.push_back(uint8_t(Arithmetic::Pow));
		rest.push_back(unary(true));
	}
	return chain(Expr::Math, first, std::move(rest), std::move(signs));
}

const Expr* Parser::unary(bool with_filters) {
	const Nest nest(*this);
	const uint32_t line = now().line;
	const Expr* e = nullptr;
	if (skip_op("-"))
		e = sized(make(Expr::Neg, line, {unary(false)}));
	else if (skip_op("+"))
		e = sized(make(Expr::Pos, line, {unary(false)}));
	else
		e = primary();
	e = postfix(e);
	return with_filters ? filters_and_tests(e) : e;
}

const Expr* Parser::primary() {
	const uint32_t line = now().line;
	if (now().type == Token::Name) {
		const std::string_view name = now().text;
		if (name == "true" || name == "True" || name == "false" || name == "False" || name == "none" || name == "None")
			return constant();
		take();
		Expr* e = make(Expr::Name, line);
		e->name = id(name);
		p_.loads.resize(p_.names.size());
		p_.loads[e->name] = true;
		for (Stmt* macro : macros_) {
			macro->uses_caller |= name == "caller";
			macro->uses_varargs |= name == "varargs";
			macro->uses_kwargs |= name == "kwargs";
		}
		return e;
	}
	if (skip_op("(")) {
		const Expr* e = tuple(true, true);
		expect_op(")");
		return e;
	}
	if (is_op("[")) return list();
	if (is_op("{")) return dict();
	return constant();
}

const Expr* Parser::constant() {
	const Token& t = now();
	Expr* e = make(Expr::Const, t.line);
	switch (t.type) {
	case Token::Name:
		e->value = t.text == "none" || t.text == "None" ? none() : boolean(t.text == "true" || t.text == "True");
		break;
	case Token::Int: e->value = integer(t.integer); break;
	case Token::Float: e->value = number(t.number); break;
	case Token::Text: {
		e->value = text(t.text);
		if (ahead().type != Token::Text) break;
		std::string all; // adjacent text literals are one text
		for (; now().type == Token::Text; take()) all += now().text;
		e->value = text(p_.source.literals.emplace_back(std::move(all)));
		return e;
	}
	default: fail_unexpected("an expression");
	}
	take();
	return e;
}

const Expr* Parser::list() {
	const uint32_t line = now().line;
	expect_op("[");
	std::vector<const Expr*> kids;
	while (!is_op("]")) {
		kids.push_back(expression());
		if (!is_op("]")) expect_op(",");
	}
	expect_op("]");
	return sized(make(Expr::List, line, std::move(kids)));
}

const Expr* Parser::dict() {
	const uint32_t line = now().line;
	expect_op("{");
	std::vector<const Expr*> kids;
	while (!is_op("}")) {
		kids.push_back(expression());
		expect_op(":");
		kids.push_back(expression());
		if (!is_op("}")) expect_op(",");
	}
	expect_op("}");
	return sized(make(Expr::Dict, line, std::move(kids)));
}

const Expr* Parser::postfix(const Expr* e) {
	while (true) {
		if (is_op(".") || is_op("["))
			e = subscript(e);
		else if (is_op("("))
			e = call(e);
		else
			return e;
	}
}

const Expr* Parser::filters_and_tests(const Expr* e) {
	while (true) {
		if (is_op("|"))
			e = filters(e);
		else if (is_name("is"))
			e = test(e);
		else if (is_op("("))
			e = call(e);
		else
			return e;
	}
}

const Expr* Parser::subscript(const Expr* object) {
	const uint32_t line = now().line;
	if (!skip_op(".")) return bracket(object, line);
	if (now().type == Token::Int) {
		Expr* number = make(Expr::Const, line);
		number->value = integer(take().integer);
		return sized(make(Expr::Item, line, {object, number}));
	}
	Expr* e = make(Expr::Attr, line, {object});
	e->name = id(expect_name());
	return sized(e);
}

const Expr* Parser::bracket(const Expr* object, uint32_t line) {
	expect_op("[");
	const auto absent = [&] { return is_op(":") || is_op("]") || is_op(","); };
	const Expr* parts[3] = {};
	if (!is_op(":")) parts[0] = expression();
	if (is_op(":")) {
		for (int i = 1; i < 3 && skip_op(":"); ++i)
			if (!absent()) parts[i] = expression();
		expect_op("]");
		return sized(make(Expr::Slice, line, {object, parts[0], parts[1], parts[2]}));
	}
	const Expr* key = parts[0];
	if (is_op(",")) { // a tuple
		std::vector<const Expr*> kids{key};
		while (skip_op(",")) kids.push_back(expression());
		key = sized(make(Expr::Tuple, line, std::move(kids)));
	}
	expect_op("]");
	return sized(make(Expr::Item, line, {object, key}));
}

const Expr* Parser::call(const Expr* callee) {
	Expr* e = make(Expr::Call, now().line, {callee});
	e->args = call_args();
	return sized(e);
}

CallArgs Parser::call_args() {
	CallArgs out;
	const auto order = [&](bool right) {
		if (!right)
			fail("the arguments of a call are in the wrong order: values, then name=value, then *list and **dict");
	};
	std::unordered_set<NameId> names;
	expect_op("(");
	while (!is_op(")")) {
		if (skip_op("*")) {
			order(!out.star && !out.star_star);
			out.star = expression();
		} else if (skip_op("**")) {
			order(!out.star_star);
			out.star_star = expression();
		} else if (now().type == Token::Name && ahead().type == Token::Operator && ahead().text == "=") {
			order(!out.star_star);
			const NameId name = id(take().text);
			take();
			if (!names.insert(name).second) fail(fmt::format("argument '{}' is given twice", p_.names[name]));
			out.named.emplace_back(name, expression());
		} else {
			order(!out.star && !out.star_star && out.named.empty());
			out.list.push_back(expression());
		}
		if (!is_op(")")) expect_op(",");
	}
	expect_op(")");
	return out;
}

const Expr* Parser::filters(const Expr* e, bool first_is_name) {
	while (first_is_name || skip_op("|")) {
		first_is_name = false;
		Expr* filter = make(Expr::Filter, now().line, {e});
		std::string name(expect_name());
		while (skip_op(".")) (name += '.') += expect_name();
		filter->name = id(name);
		if (is_op("(")) filter->args = call_args();
		e = sized(filter);
	}
	return e;
}

const Expr* Parser::test(const Expr* tested) {
	Expr* e = make(Expr::Test, now().line, {tested});
	take(); // is
	const bool negated = skip_name("not");
	std::string name(expect_name());
	while (skip_op(".")) (name += '.') += expect_name();
	e->name = id(name);
	const Token& t = now();
	const bool is_value = t.type == Token::Text || t.type == Token::Int || t.type == Token::Float || is_op("[") ||
	                      is_op("{") ||
	                      (t.type == Token::Name && t.text != "else" && t.text != "or" && t.text != "and");
	if (is_op("(")) {
		e->args = call_args();
	} else if (is_value) {
		if (is_name("is")) fail("tests cannot follow each other; put the first into parentheses");
		const Nest nest(*this);
		e->args.list.push_back(postfix(primary()));
	}
	const Expr* out = sized(e);
	return negated ? sized(make(Expr::Not, e->line, {out})) : out;
}

} // namespace kvrun::jinja
