// kvrun tokenize: text on stdin to token ids on stdout, or back.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "models/tokenizer.h"
#include "tools/args.h"
#include "tools/commands.h"
#include "tools/terminal.h"
#include <cerrno>
#include <charconv>
#include <system_error>
#include <unistd.h>

namespace kvrun {
namespace {

struct TokenizeArgs {
	std::string model;
	bool no_bos = false, special = false, decode = false;
};

// Everything on stdin, byte for byte.
std::string read_stdin() {
	constexpr size_t kMax = Tokenizer::kMaxText;
	std::string text;
	std::vector<char> piece(65536);
	for (;;) {
		const ssize_t n = read(STDIN_FILENO, piece.data(), piece.size());
		if (n < 0 && errno == EINTR) continue;
		if (n < 0) fail(Code::Io, "standard input: {}", std::generic_category().message(errno));
		if (n == 0) return text;
		text.append(piece.data(), size_t(n));
		if (text.size() > kMax) fail(Code::Invalid, "standard input has more than {} bytes; give it in parts", kMax);
	}
}

std::vector<uint32_t> parse_ids(const std::string& text) {
	constexpr const char* kSpaces = " \t\r\n";
	std::vector<uint32_t> ids;
	for (size_t at = text.find_first_not_of(kSpaces); at != text.npos; at = text.find_first_not_of(kSpaces, at)) {
		const size_t end = std::min(text.find_first_of(kSpaces, at), text.size());
		uint32_t id = 0;
		const auto [stop, error] = std::from_chars(text.data() + at, text.data() + end, id);
		if (error != std::errc() || stop != text.data() + end)
			fail(Code::Invalid, "'{}' is no token id; --decode reads ids separated by spaces",
			     one_line(text.substr(at, end - at), 40));
		ids.push_back(id);
		at = end;
	}
	return ids;
}

void tokenize(const TokenizeArgs& a) {
	const Tokenizer t(Gguf::open(a.model));
	const std::string input = read_stdin();
	if (a.decode) {
		const std::string text = t.decode(parse_ids(input), a.special);
		TerminalText shown;
		return write_stdout(stdout_is_terminal() ? shown.pass(text) + shown.rest() : text);
	}
	std::string line;
	for (uint32_t id : t.encode(input, {.bos = !a.no_bos, .special = a.special}))
		line += fmt::format("{}{}", line.empty() ? "" : " ", id);
	write_stdout(line + "\n");
}

} // namespace

void add_tokenize(CLI::App& app) {
	auto a = std::make_shared<TokenizeArgs>();
	CLI::App* c = app.add_subcommand(
	    "tokenize", "Turns the text on standard input into token ids, on one line, separated by spaces.");
	add_text(*c, "-m,--model", a->model, "FILE",
	         "take the tokenizer of this .gguf file, which may be a vocabulary only")
	    ->required();
	c->add_flag("--no-bos", a->no_bos, "do not begin with the model's begin-of-text token");
	c->add_flag("--special", a->special, "read control tokens written out in the text; with --decode: write them out");
	c->add_flag("--decode", a->decode, "turn ids on standard input into their text instead");
	c->callback([a] { tokenize(*a); });
}

} // namespace kvrun
