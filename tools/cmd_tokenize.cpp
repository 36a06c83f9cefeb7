// kvrun tokenize: text to token IDs on stdout, or back.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/tokenizer.h"
#include "tools/args.h"
#include "tools/args_model.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include "tools/user_files.h"
#include <charconv>

namespace kvrun {
namespace {

struct TokenizeArgs {
	std::string model, text, file; // at most one of text and file; stdin if neither is
	bool has_text = false;
	bool no_bos = false, eos = false, special = false, decode = false;
};

std::vector<uint32_t> parse_ids(const std::string& text) {
	constexpr const char* kSpaces = " \t\r\n";
	std::vector<uint32_t> ids;
	for (size_t at = text.find_first_not_of(kSpaces); at != text.npos; at = text.find_first_not_of(kSpaces, at)) {
		const size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
		uint32_t id = 0;
		const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
		if (error != std::errc() || stop != text.data() + end)
			fail(Code::Invalid, "'{}' is not a token ID; --decode reads IDs separated by spaces",
			     one_line(text.substr(at, end - at), 40));
		ids.push_back(id);
		at = end;
	}
	return ids;
}

void tokenize(const TokenizeArgs& a) {
	const Tokenizer t(Gguf::open(a.model));
	const std::string input = a.has_text        ? a.text
	                          : !a.file.empty() ? read_text_file(a.file, Tokenizer::kMaxText)
	                                            : read_stdin(Tokenizer::kMaxText);
	if (a.decode) {
		const std::string text = t.decode(parse_ids(input), a.special);
		return write_stdout(stdout_is_terminal() ? visible(text, /*lines=*/true) : text);
	}
	std::string line;
	for (uint32_t id : t.encode(input, {.bos = !a.no_bos, .eos = a.eos, .special = a.special}))
		line += fmt::format("{}{}", line.empty() ? "" : " ", id);
	write_stdout(line + "\n");
}

} // namespace

void add_tokenize(Command& root) {
	auto a = std::make_shared<TokenizeArgs>();
	Command& c = add_command(root, "tokenize", "Converts a text to token IDs on one line, or back.");
	c.examples = {{"kvrun tokenize model.gguf -p \"Once upon a time\"", "prints IDs separated by spaces"},
	              {"echo 1 2 3 | kvrun tokenize model.gguf --decode", "prints the text of these tokens"}};
	add_model(c, a->model, kOtherGroup)->required()->help =
	    "take the tokenizer of this .gguf file, which may hold a vocabulary only, or of a name of kvrun list";
	Option* text = add_text(c, "-p,--prompt", a->text, "TEXT", "convert this, as it is");
	Option* file = add_text(c, "-f,--file", a->file, kFile, "convert what is in this file [standard input]");
	c.before_run.push_back([a, text, file] {
		if (text->count && file->count) fail(Code::Invalid, "--prompt and --file are both given; give one of them");
		a->has_text = text->count > 0;
	});
	add_flag(c, "--no-bos", a->no_bos, "do not prepend the model's begin-of-text token");
	add_flag(c, "--eos", a->eos,
	         "end with the token that the model's file names for texts that are embedded, if it does");
	add_flag(c, "--special", a->special, "parse control tokens written in the text; with --decode: print them");
	add_flag(c, "--decode", a->decode, "convert token IDs to text");
	c.run = [a] { tokenize(*a); };
}

} // namespace kvrun
