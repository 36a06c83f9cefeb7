// Options of a command line with strict value checks, and the tree of commands that holds them.
#pragma once
#include <CLI/CLI.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct Entry { // of a list of terms, each with what it means
	std::string term, text;
};
struct Section { // of a command's help text and man page
	std::string title, text;
	std::vector<Entry> entries = {};
	bool man_only = false; // too long for --help
};

// A command with what help texts, man pages and completions say about it beyond its options.
class Command : public CLI::App {
 public:
	Command(const std::string& name, const std::string& summary) : CLI::App(summary, name) {}
	// Subcommands, in the order in which they were added.
	std::vector<const Command*> commands() const;
	const Command* find_command(std::string_view name) const; // null: none

	std::vector<Entry> examples; // a command line, what it does
	std::vector<Section> sections;
	std::map<std::string, std::string> words; // one dash and several letters: "-ngl" -> "--n-gpu-layers"
	std::map<const CLI::Option*, std::vector<std::string>> choices; // words an option takes
	std::map<std::string, std::string> implied; // "--flash-attn": the value it has where none of its choices follows
};

Command& add_command(Command& parent, const std::string& name, const std::string& summary);

// The entry of `words` a typing slip away from `word`; empty when none is near.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

// Each adds one option that may be given once. `flags` are its names, comma-separated; messages use the first long one,
// and names of one dash and several letters (-ngl) are allowed. A bad value throws Error{Invalid}: `-n is 'x', expected
// ...`. `value` keeps its content when the option is absent.
CLI::Option* add_integer(Command&, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                         const std::string& help);
// A number of tokens, which may be written as 32k or 1M (powers of 1024).
CLI::Option* add_tokens(Command&, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                        const std::string& help);
CLI::Option* add_real(Command&, const std::string& flags, double& value, double lowest, double highest,
                      const std::string& help);
CLI::Option* add_text(Command&, const std::string& flags, std::string& value, const std::string& type,
                      const std::string& help);
// The same, any number of times.
CLI::Option* add_texts(Command&, const std::string& flags, std::vector<std::string>& values, const std::string& type,
                       const std::string& help);
// Comma-separated integers, which may be written as in add_tokens(): 0,2048,32k.
CLI::Option* add_integers(Command&, const std::string& flags, std::vector<int64_t>& values, int64_t lowest,
                          int64_t highest, const std::string& help);
// One of a few words.
CLI::Option* add_choice(Command&, const std::string& flags, std::string& value, const std::vector<std::string>& choices,
                        const std::string& help);
// A number of bytes, with an optional K, M, G, KiB, MiB or GiB (powers of 1024); 0 stays 0.
CLI::Option* add_bytes(Command&, const std::string& flags, uint64_t& value, const std::string& help);
CLI::Option* add_flag(Command&, const std::string& flags, bool& value, const std::string& help);
// An option of llama.cpp that changes nothing here: whatever its value, one line on stderr says so and why. Where
// `choices` are given, the value may be left out.
CLI::Option* add_ignored(Command&, const std::string& flags, const std::string& type,
                         const std::vector<std::string>& choices, const std::string& why);

constexpr const char* kOtherGroup = "Options"; // what CLI11 calls the group of options that name none
constexpr const char* kIgnoredGroup = "Accepted from llama.cpp, without effect";

// Value names of options, which tell completions what to offer.
constexpr const char *kFile = "FILE", *kModelFile = "FILE.gguf", *kFolder = "FOLDER", *kPolicy = "POLICY",
                     *kPolicies = "POLICY,..";

// argv as CLI11 reads it: names of one dash and several letters become long ones, and an option whose value may be left
// out gets one. Throws Error{Invalid}, naming the whole word, on one dash and several letters that are not an option.
std::vector<std::string> plain_words(const Command& root, int argc, char** argv);
// "unknown option '--modle', did you mean '--model'?; see kvrun run --help"
std::string unknown_word(const Command& where, const std::string& word);

} // namespace kvrun
