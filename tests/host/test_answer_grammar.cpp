// Grammars of answers to conversations: reasoning in front of the form, calls whose form is not known.
#include "engine/core/error.h"
#include "models/chat/answer_grammar.h"
#include "models/tokenizer.h"
#include "tests/host/chat_shapes.h"
#include "tests/support/gguf_builder.h"
#include <doctest/doctest.h>

using namespace kvrun;
using namespace kvrun::grammar;

namespace {

constexpr int32_t kControl = 3, kDefined = 4; // kinds of tokens in GGUF files

// Bytes, whose tokens have their numbers, and the markers of reasoning as tokens of this kind.
Tokenizer bytes_and_markers(int32_t kind) {
	GgufBuilder b;
	std::vector<std::string> tokens;
	for (int i = 0; i < 256; ++i) tokens.push_back(byte_character(i));
	std::vector<int32_t> kinds(256, 1);
	for (const char* marker : {"<think>", "</think>"}) tokens.push_back(marker), kinds.push_back(kind);
	tokens.push_back("</s>"), kinds.push_back(kControl);
	b.text("tokenizer.ggml.model", "gpt2").text("tokenizer.ggml.pre", "qwen2").texts("tokenizer.ggml.tokens", tokens);
	b.numbers("tokenizer.ggml.token_type", GgufType::I32, kinds);
	b.texts("tokenizer.ggml.merges", {"a b"}).u32("tokenizer.ggml.eos_token_id", 258);
	const auto bytes = b.bytes();
	return Tokenizer(Gguf::parse("test.gguf", bytes));
}

struct Answers {
	explicit Answers(const AnswerRules& rules, int32_t kind = kDefined)
	    : tok(bytes_and_markers(kind)), grammar(answer_grammar(rules, tok, std::make_shared<TokenTrie>(tok))) {}
	// Whether the answer may begin so; `ends`: and be complete then. as_tokens: markers are tokens, not bytes.
	bool begins(std::string_view text, bool ends = false, bool as_tokens = true) const {
		Matcher m(grammar);
		while (!text.empty()) {
			uint32_t token = uint8_t(text[0]);
			for (const uint32_t marker : {256u, 257u})
				if (as_tokens && text.starts_with(tok.text(marker))) token = marker;
			if (!m.accept(token)) return false;
			text.remove_prefix(token < 256 ? 1 : tok.text(token).size());
		}
		return !ends || m.may_end();
	}
	bool takes(std::string_view text, bool as_tokens = true) const { return begins(text, /*ends=*/true, as_tokens); }

	const Tokenizer tok;
	const std::shared_ptr<Grammar> grammar;
};

AnswerRules of_braces(bool may_reason) {
	AnswerRules a;
	a.gbnf = "root ::= \"{}\"";
	a.features.think_begin = "<think>", a.features.think_end = "</think>";
	a.may_reason = may_reason;
	return a;
}

const Json kTools = Json::parse(R"([{"type": "function", "function": {"name": "f", "strict": true, "parameters":
	{"type": "object", "properties": {}, "additionalProperties": false}}}])");

} // namespace

TEST_CASE("answers: a form may follow reasoning that the model begins itself") {
	for (const int32_t kind : {kDefined, kControl}) {
		CAPTURE(kind);
		const Answers a(of_braces(true), kind);
		for (const char* good :
		     {"{}", "<think>a</think>\n\n{}", "<think></think>{}", "<think>\n1 < 2 </thin\n</think> {}",
		      "<think>a<</think>{}", "<think></</think>{}", "<think>\xc3\xa9</think>\n\n\n\n{}"})
			CHECK_MESSAGE(a.takes(good), good);
		for (const char* cut :
		     {"<think>", "<think>a", "<think>a</think>", "<think>a</think>\n\n", "<think>a</think>{"}) {
			CHECK_MESSAGE(a.begins(cut), cut);
			CHECK_MESSAGE(!a.takes(cut), cut); // reasoning alone is no answer
		}
		for (const char* bad : {"x", "<think>a</think>x", "<think>a</think>\n\n\n\n\n", "{}<think>", "\n<think>",
		                        "<think>a</think><think>", "</think>"})
			CHECK_MESSAGE(!a.begins(bad), bad);
		// the end as ordinary text is the end, too, as it is for the parser of answers
		CHECK(!a.begins(kind == kControl ? "<think>" : "<think>a</think>x", false, /*as_tokens=*/false));
		const Answers never(of_braces(false), kind);
		CHECK(never.takes("{}"));
		CHECK(!never.begins("<"));
		CHECK(!never.begins("<think>"));
	}
	CHECK(Answers(of_braces(true)).takes("<think>a</think>\n\n{}", /*as_tokens=*/false));
}

TEST_CASE("answers: a schema and a required call follow reasoning, too; calls that are free do not wait for it") {
	AnswerRules a = of_braces(true);
	a.gbnf.clear();
	a.schema = Json::parse(R"({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})");
	CHECK(Answers(a).takes("<think>I count.</think>\n\n{\"a\": 1}"));
	CHECK(Answers(a).takes("{\"a\": 1}"));
	CHECK(!Answers(a).begins("<think>I count.</think>\n\n{\"b"));
	a.schema = nullptr;
	a.features.tool_format = ToolFormat::Hermes;
	a.tools = kTools;
	a.tool_choice = "required";
	const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
	CHECK(Answers(a).takes("<think>I call it.</think>\n\n" + call));
	CHECK(Answers(a).takes(call));
	CHECK(!Answers(a).begins("<think>I call it.</think>No"));
	a.tool_choice = "auto";
	CHECK(Answers(a).takes("<think>I call it.</think>\n\nNo"));
	CHECK(!Answers(a).begins("<think>I call it.</think>\n\n<tool_call>x"));
}

TEST_CASE("answers: markers around the text, where the family has them") {
	AnswerRules a = of_braces(false);
	a.features.tool_format = ToolFormat::Shaped, a.in_reasoning = true;
	for (const call_test::ShapedFamily& s : call_test::shaped_families())
		if (s.name == std::string_view("Kimi K3")) a.features.shape = chat_features(ChatTemplate(s.text)).shape;
	a.features.content_begin = "[text]", a.features.content_end = "[/text]";
	CHECK(Answers(a).takes("Hm</think>[text]{}[/text]"));
	CHECK(Answers(a).takes("Hm</think>[text]{}"));
	CHECK(Answers(a).takes("Hm</think>{}"));
	CHECK(!Answers(a).begins("Hm</think>[/text]{"));
	a.gbnf.clear();
	a.tools = Json::parse(R"([{"type": "function", "function": {"name": "f", "parameters": {"type": "object",
		"properties": {"s": {"type": "string"}, "n": {"type": "integer"}, "u": {"type": ["boolean", "null"]}},
		"required": ["s"], "additionalProperties": false}}}])");
	a.tool_choice = "required";
	const auto call = [](const std::string& arguments) {
		return "Hm</think>[text][/text]<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|>" + arguments +
		       "<|close|>call<|sep|><|close|>tools<|sep|>";
	};
	const auto argument = [](const char* key, const char* type, const char* value) {
		return fmt::format("<|open|>argument key=\"{}\" type=\"{}\"<|sep|>{}<|close|>argument<|sep|>", key, type,
		                   value);
	};
	const std::string s = argument("s", "string", "a \"b\", 3");
	CHECK(Answers(a).takes(call(s)));
	CHECK(Answers(a).takes(call(s + argument("n", "number", "3") + argument("u", "null", "null"))));
	CHECK(Answers(a).takes(call(s + argument("u", "boolean", "true"))));
	CHECK(!Answers(a).begins(call(s + argument("u", "boolean", "null"))));
	CHECK(!Answers(a).begins(call(s + argument("n", "string", "3"))));
	CHECK(!Answers(a).begins(call(s + argument("n", "number", "3.5"))));
	CHECK(!Answers(a).begins(call("")));
	a.in_reasoning = false; // the prompt has opened the text
	CHECK(Answers(a).takes(call(s).substr(16)));
}

TEST_CASE("answers: where the form of calls is not known, they are free unless one is required") {
	AnswerRules a;
	a.tools = kTools;
	CHECK(Answers(a).grammar == nullptr); // strict functions
	a.one_call = true;
	CHECK(Answers(a).grammar == nullptr);
	a.gbnf = "root ::= \"{}\"";
	CHECK(Answers(a).takes("{}"));
	CHECK(!Answers(a).begins("x"));
	a.gbnf.clear();
	for (const char* choice : {"required", "f"}) {
		a.tool_choice = choice;
		CHECK_THROWS_WITH_AS(Answers{a}, doctest::Contains("is not known"), Error);
	}
}
