// Grammars: notation, accepted texts, allowed tokens; grammars that try to exhaust memory or time.
#include "engine/core/error.h"
#include "models/grammar/gbnf.h"
#include "models/grammar/grammar.h"
#include "models/model.h"
#include "tests/support/assets.h"
#include "tests/support/naive_grammar.h"
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <random>

using namespace kvrun;
using namespace kvrun::grammar;

namespace {

// All bytes, pieces used by the grammars below, end tokens, and a control token.
std::shared_ptr<const TokenTrie> small_vocabulary() {
	std::vector<std::string> texts;
	for (int b = 0; b < 256; ++b)
		texts.emplace_back(b < 0xf5 ? 1 : 0, char(b)); // bytes that UTF-8 never has mark control tokens
	for (const char* t :
	     {"ab",   "aba",      "abab", "a\"",  "\",", "\": ", "{\"", "}}",   "]]", "[[", "12", "-1", "0.",  "\xc3\xa9",
	      "\xa9", "\xe2\x82", "\xac", "true", "tru", "e,",   "  ",  "\n\t", "ba", "ab", "b)", "((", "x=1", ""})
		texts.emplace_back(t);
	texts.push_back(control_bytes("<|call|>"));
	texts.emplace_back("</s>");
	return std::make_shared<TokenTrie>(texts, std::vector<uint32_t>{uint32_t(texts.size() - 1)});
}

struct Notation {
	const char* grammar;
	std::vector<std::string> good, bad;
};
const Notation kNotations[] = {
    {"root ::= \"a\"", {"a"}, {"", "b", "aa"}},
    {"root ::= \"\"", {""}, {"a"}},
    {"root ::= \"a\" | \"b\" \"c\"", {"a", "bc"}, {"b", "c", "abc"}},
    {"root ::= \"a\"\n  | \"b\" # a comment\n\n# another\n", {"a", "b"}, {"ab"}},
    {"root ::= x\nx ::= [a-c]+ y?\ny ::= \"-\" [^a-y]",
     {"a", "abc", "a-z", "a-A", "b-\xc3\xa9"},
     {"", "a-", "a-x", "-z"}},
    {"root ::= (\"a\" | \"b\")* \"c\"", {"c", "abac"}, {"ab", ""}},
    {"root ::= \"a\"{3}", {"aaa"}, {"aa", "aaaa"}},
    {"root ::= \"a\"{2,}", {"aa", "aaaaa"}, {"a"}},
    {"root ::= \"a\"{1,3}", {"a", "aaa"}, {"", "aaaa"}},
    {"root ::= \"a\"{,2}", {"", "aa"}, {"aaa"}},
    {"root ::= [\\x41-\\x43] \"\\u00e9\\n\\\"\\\\\"", {"B\xc3\xa9\n\"\\"}, {"D\xc3\xa9\n\"\\"}},
    {"root ::= .", {"a", "\xe2\x82\xac", "\xf0\x9f\x98\x80"}, {"", "ab", "\xff", "\xed\xa0\x80", "\xc0\x80"}},
    {"root ::= [\xc3\xa0-\xe2\x82\xac]",
     {"\xc3\xa0", "\xe2\x82\xac", "\xe0\xa0\x80"},
     {"\xc3\x9f", "\xe2\x82\xad", "a"}},
    {"root ::= \"(\" root? \")\"", {"()", "((()))"}, {"(", "(()", "())"}},
    {"root ::= list\nlist ::= item (\",\" list)?\nitem ::= [0-9]+", {"1", "1,22,3"}, {"1,", ",1"}},
    {"root ::= [a\\]^-]+", {"a]^-"}, {"b"}},
    {"root ::= a a\na ::= \"b\"?", {"", "b", "bb"}, {"bbb", "a"}},
};

struct Broken {
	const char *grammar, *message;
};
const Broken kBroken[] = {
    {"", "no rule named root"},
    {"a ::= \"x\"", "no rule named root"},
    {"root ::= b", "rule b, which it does not define"},
    {"root = \"a\"", "line 1, column 6: expected ::="},
    {"root ::= \"a", "expected \""},
    {"root ::= [a", "expected ]"},
    {"root ::= []", "a character before ]"},
    {"root ::= [z-a]", "their order"},
    {"root ::= (\"a\"", "expected )"},
    {"root ::= \"a\")", "line 1, column 13"},
    {"root ::= \"\\q\"", "an escape"},
    {"root ::= \"\\ud800\"", "Unicode"},
    {"root ::= \"a\"{3,1}", "not less than 3"},
    {"root ::= \"a\"{x}", "a number"},
    {"root ::= \"a\"\nroot ::= \"b\"", "not there yet"},
    {"root ::= root \"a\" | \"b\"", "rule root comes back to itself"},
    {"root ::= a\na ::= \"x\"? b\nb ::= a \"y\" | \"z\"", "comes back to itself"},
    {"root ::= \"a\" root", "its rule root never ends"},
    {"root ::= \"a\xff\"", "UTF-8"},
    {"root ::= *", "a text, characters"},
    {"root ::= <", "the name of a token"},
};

// Ambiguous grammars, long lookahead, characters cut by tokens, nested rules.
const char* kWalked[] = {
    "root ::= (\"ab\" | \"aba\" | \"b\")* \"!\"",
    "root ::= \"a\"{0,9} \"b\"{2,4} [^\\x00-\\x7f]{1,5}",
    "root ::= .{0,6}",
    "root ::= obj\nobj ::= \"{\" (pair (\",\" pair)*)? \"}\"\npair ::= str \": \" val\nstr ::= \"\\\"\" "
    "[^\"\\\\\\x00-\\x1f]* \"\\\"\"\n"
    "val ::= obj | \"[\" (val (\",\" val)*)? \"]\" | str | \"true\" | \"-\"? (\"0\" | [1-9] [0-9]*) (\".\" [0-9]+)?",
    "root ::= e\ne ::= t (\"+\" t)*\nt ::= \"(\" e \")\" | [a-c] \"=\"? [0-9]?",
    "root ::= (a | b)*\na ::= \"a\" b?\nb ::= \"b\" | \"ba\" | a \"b\" | \"\xc3\xa9\" \"\xe2\x82\xac\"?",
    "root ::= (\"x=\" [0-9]+ <|call|>)+ \"a\"*",
};

} // namespace

TEST_CASE("grammar: the notation") {
	const auto trie = small_vocabulary();
	for (const Notation& n : kNotations) {
		INFO(n.grammar);
		const auto g = std::make_shared<Grammar>(parse_gbnf(n.grammar), trie);
		const auto takes = [&](const std::string& text) {
			Matcher m(g);
			for (const char c : text)
				if (!m.accept(uint8_t(c))) return false;
			return m.may_end();
		};
		for (const std::string& t : n.good) CHECK_MESSAGE(takes(t), t);
		for (const std::string& t : n.bad) CHECK_MESSAGE(!takes(t), t);
	}
}

TEST_CASE("grammar: what is wrong is one line with its place") {
	for (const Broken& b : kBroken) {
		INFO(b.grammar);
		std::string message;
		try {
			Automaton{parse_gbnf(b.grammar)};
		} catch (const Error& e) { message = e.what(); }
		INFO(message);
		CHECK(message.find(b.message) != message.npos);
		CHECK(message.find('\n') == message.npos);
	}
}

// Every token is tried by a matcher without states, stacks or trees.
TEST_CASE("grammar: allowed tokens are those that every token tried by itself gives") {
	const auto trie = small_vocabulary();
	for (const char* text : kWalked) {
		INFO(text);
		const Rules rules = parse_gbnf(text);
		const auto g = std::make_shared<Grammar>(rules, trie);
		for (uint64_t seed = 0; seed < 12; ++seed) {
			std::mt19937_64 random(seed);
			Matcher m(g);
			NaiveGrammar naive(rules);
			std::string so_far;
			for (int step = 0; step < 14; ++step) {
				INFO("after ", so_far);
				const auto bits = m.allowed();
				std::vector<uint32_t> good;
				for (uint32_t t = 0; t < trie->vocab(); ++t) {
					const bool by_text = !trie->text(t).empty() && naive.takes(trie->text(t));
					const bool want = by_text || (trie->is_end(t) && naive.complete());
					const bool have = bits[t / 64] >> t % 64 & 1;
					if (have != want || m.allows(t) != want) {
						INFO("token ", t, " '", std::string(trie->text(t)), "'");
						CHECK(have == want);
						CHECK(m.allows(t) == want);
					}
					if (by_text) good.push_back(t);
				}
				CHECK(m.may_end() == naive.complete());
				if (good.empty()) {
					CHECK(m.is_finished());
					break;
				}
				const uint32_t t = good[random() % good.size()];
				REQUIRE(m.accept(t));
				naive.push(trie->text(t));
				so_far += trie->text(t);
			}
		}
	}
}

TEST_CASE("grammar: a real vocabulary's masks are what its tokens give one by one, also when much was forgotten") {
	const std::string path = shared_asset("vocab/ggml-vocab-gpt-2.gguf");
	if (path.empty()) return;
	const auto trie = std::make_shared<TokenTrie>(Tokenizer(Gguf::open(path)));
	const auto g = std::make_shared<Grammar>(parse_gbnf(kWalked[3]), trie);
	std::mt19937_64 random(5);
	Matcher other(g); // its position must not change
	for (const char c : std::string("{\"a")) {
		uint32_t t = 0;
		while (trie->text(t) != std::string(1, c)) ++t;
		REQUIRE(other.accept(t));
	}
	Matcher m(g);
	for (int step = 0; step < 40 && !m.is_finished(); ++step) {
		const auto bits = m.allowed();
		std::vector<uint32_t> good;
		size_t differ = 0;
		for (uint32_t t = 0; t < trie->vocab(); ++t) {
			const bool have = bits[t / 64] >> t % 64 & 1;
			differ += have != m.allows(t);
			if (have) good.push_back(t);
		}
		CHECK(differ == 0);
		REQUIRE(!good.empty());
		REQUIRE(m.accept(good[random() % good.size()]));
	}
	CHECK(other.allowed().size() == (trie->vocab() + 63) / 64);
	CHECK(!other.may_end());
	uint32_t quote = 0;
	while (trie->text(quote) != "\"") ++quote;
	CHECK(other.accept(quote));
}

TEST_CASE("grammar: control tokens are tokens, and no text spells them") {
	const auto trie = small_vocabulary();
	const auto g = std::make_shared<Grammar>(parse_gbnf("root ::= \"x=1\" <|call|>"), trie);
	const auto token = [&](const std::string& text) {
		for (uint32_t t = 0; t < trie->vocab(); ++t)
			if (trie->text(t) == text) return t;
		return TokenTrie::kNone;
	};
	Matcher m(g);
	REQUIRE(m.accept(token("x=1")));
	CHECK(!m.allows(token("<")));
	CHECK(!m.allows(0xff)); // this byte marks control tokens
	CHECK(!m.may_end());
	REQUIRE(m.accept(token(control_bytes("<|call|>"))));
	CHECK(m.is_finished());
}

TEST_CASE("grammar: begins at or behind a marker") {
	const auto trie = small_vocabulary();
	const auto push = [&](Matcher& m, const std::string& text) {
		for (const char c : text)
			if (!m.accept(uint8_t(c))) return false;
		return true;
	};
	const auto behind = std::make_shared<Grammar>(parse_gbnf("root ::= \"12\""), trie, Begin{{"ab"}, false, false});
	Matcher a(behind);
	CHECK(a.is_waiting());
	CHECK(!a.may_end());
	CHECK(push(a, "anything \xff a"));
	CHECK(push(a, "b"));
	CHECK(!a.is_waiting());
	CHECK(!push(a, "3"));
	CHECK(push(a, "12"));
	CHECK(a.is_finished());
	const auto at =
	    std::make_shared<Grammar>(parse_gbnf("root ::= \"(\" \"(\" \"(\"? [a-b]"), trie, Begin{{"(("}, true, true});
	Matcher b(at);
	CHECK(b.may_end());
	CHECK(push(b, "x("));
	CHECK(b.is_waiting());
	uint32_t closing = 0, opening = 0;
	while (trie->text(closing) != "b)") ++closing;
	while (trie->text(opening) != "((") ++opening;
	CHECK(b.accept(opening)); // ((( : the marker is accepted as part of it
	CHECK(!b.is_waiting());
	const auto masks = b.allowed();
	CHECK(!(masks[closing / 64] >> closing % 64 & 1));
	CHECK(!push(b, "c"));
}

TEST_CASE("grammar: what is made to explode ends with one clear error, or works") {
	const auto trie = small_vocabulary();
	std::string deep = "root ::= ", chain = "root ::= r0\n", many = "root ::= \"a\"";
	for (int i = 0; i < 5000; ++i) deep += "(";
	for (int i = 0; i < 9000; ++i) chain += fmt::format("r{} ::= r{} \"x\"\n", i, i + 1);
	chain += "r9000 ::= \"y\"\n";
	for (int i = 0; i < 4000; ++i) many += " | \"a\"";
	const std::pair<std::string, const char*> cases[] = {
	    {deep, "groups inside each other"},
	    {chain, "deep inside each other"},
	    {many, ""},
	    {"root ::= ((((\"a\"{1,99999}){1,99999}){1,99999}){1,99999})", "too large"},
	    {"root ::= \"a\"{1,4294967295}", "too large"},
	    {"root ::= \"a\"{99999}", ""},
	    {"root ::= (\"a\"{0,99})* (\"a\"{0,99})* (\"a\"{0,99})* \"b\"", ""},
	    {"root ::= s\ns ::= \"a\" s s | \"a\"? ", ""},
	    {"root ::= ((\"a\"?){100}){100}", "too many meanings"},
	    {"root ::= x{1000} \nx ::= y{1000}\ny ::= \"a\"? | \"b\"?", "too many meanings"},
	    {"root ::= a\na ::= b | b\nb ::= c | c\nc ::= d | d\nd ::= e | e\ne ::= \"(\" a? \")\"", ""},
	};
	for (const auto& [text, message] : cases) {
		const std::string beginning(text.substr(0, 60));
		INFO(beginning);
		std::string error;
		try {
			const auto g = std::make_shared<Grammar>(parse_gbnf(text), trie);
			Matcher m(g);
			for (int i = 0; i < 200 && !m.is_finished(); ++i) {
				(void)m.allowed();
				if (!m.accept('a') && !m.accept('(')) break;
			}
		} catch (const Error& e) { error = e.what(); }
		INFO(error);
		CHECK(error.empty() == !*message);
		CHECK(error.find(message) != error.npos);
	}
}
