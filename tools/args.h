// Options of a command line with strict value checks, and the tree of commands that holds them. CLI11 reads the words;
// only args_parse.cpp includes it, because it costs seconds in every file.
#pragma once
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kvrun {

struct Entry { // a term and its meaning
	std::string term, text;
};
struct Section { // of a command's help text and man page
	std::string title, text;
	std::vector<Entry> entries = {};
	bool man_only = false; // too long for --help
};

constexpr const char* kOtherGroup = "Options"; // group of options that name none
constexpr const char* kIgnoredGroup = "Accepted from llama.cpp, without effect";

struct Option {
	std::string flags;                             // as declared, comma-separated
	std::vector<std::string> shorts, words, longs; // "-n"; "-ngl"; "--predict"
	std::string positional;                        // name of a value without a flag; empty if the option has flags
	std::string type;                              // name of its value; empty for a flag
	std::string help;
	std::string group_name = kOtherGroup;
	std::vector<std::string> choices;          // allowed values; empty if not a choice
	std::string implied;                       // value used if none of `choices` follows; empty if a value is required
	bool is_required = false, is_list = false; // is_list: several values may follow
	bool names_model = false;                  // its value may be a name of kvrun list; completions offer them
	const Option* needed = nullptr;            // this option is refused without that one
	const Option* other = nullptr;             // alternative that may be given instead of this one
	size_t count = 0;                          // how often it was given
	bool of_settings = false;                  // in the settings file, for whichever command it suits
	std::function<void(const std::vector<std::string>&)> take; // gets all values in order; a flag gets true or false

	Option* group(const std::string& name) { return group_name = name, this; }
	Option* required() { return is_required = true, this; }
	Option* needs(const Option* other) { return needed = other, this; }
	Option* of_models() { return names_model = true, this; }
	Option* switched() { return choices = {"on", "off"}, this; } // a flag behind which on or off may follow
	std::vector<std::string> names() const;                      // as typed, in the order in which they are listed
	std::string shown() const;                                   // name used in messages: the first long one
	bool typed() const { return count > 0 && !of_settings; }     // on the command line
};

// A command: its options, its subcommands, and further text for help, man pages and completions.
struct Command {
	Command(std::string name, std::string summary);
	Command(const Command&) = delete;
	Command& operator=(const Command&) = delete;
	void add_version(const std::string& text);                // --version prints it
	const Command* find_command(std::string_view name) const; // null if absent
	const Option* find_option(std::string_view flag) const;   // "-n" or "--predict"; null if absent
	std::string path() const;                                 // its words on the command line: "config show"

	std::string name, summary;
	const Command* parent = nullptr;
	std::deque<Option> options;                     // in the order in which they were added; --help is the first
	std::vector<std::unique_ptr<Command>> commands; // also in the order in which they were added
	bool needs_command = false;                     // a subcommand must follow
	std::string version;
	std::function<void()> run;                     // empty if only its subcommands can run
	std::vector<std::function<void()>> before_run; // called in order before run(): checks that involve several options
	std::vector<Entry> examples;                   // a command line and its effect
	std::vector<Section> sections;
};

Command& add_command(Command& parent, const std::string& name, const std::string& summary);

// The entry of `words` that is most similar to `word`; empty if none is close.
std::string nearest(std::string_view word, const std::vector<std::string>& words);

// Each adds one option; if it is given several times, the last value counts, with a warning. `flags` are its names,
// comma-separated; messages use the first long one, and names of one dash and several letters (-ngl) are allowed. A bad
// value throws Error{Invalid}: `-n is 'x', expected
// ...`. `value` keeps its content when the option is absent.
Option* add_integer(Command&, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                    const std::string& help);
// A number of tokens, which may be written as 32k or 1M (powers of 1024).
Option* add_tokens(Command&, const std::string& flags, int64_t& value, int64_t lowest, int64_t highest,
                   const std::string& help);
// Such a number; nullopt if the text is none.
std::optional<int64_t> token_count(std::string_view text, int64_t lowest, int64_t highest);
Option* add_real(Command&, const std::string& flags, double& value, double lowest, double highest,
                 const std::string& help);
Option* add_text(Command&, const std::string& flags, std::string& value, const std::string& type,
                 const std::string& help);
// A text option that may be given any number of times.
Option* add_texts(Command&, const std::string& flags, std::vector<std::string>& values, const std::string& type,
                  const std::string& help);
// Comma-separated integers, which may be written as in add_tokens(): 0,2048,32k.
Option* add_integers(Command&, const std::string& flags, std::vector<int64_t>& values, int64_t lowest, int64_t highest,
                     const std::string& help);
// One of a few words.
Option* add_choice(Command&, const std::string& flags, std::string& value, const std::vector<std::string>& choices,
                   const std::string& help);
// A number of bytes, with an optional K, M, G, KiB, MiB or GiB (powers of 1024); 0 stays 0.
Option* add_bytes(Command&, const std::string& flags, uint64_t& value, const std::string& help);
// Bytes per second, with an optional M or G (powers of 1000), B and /s: 12G/s, 900M, 2.5GB/s.
Option* add_rate(Command&, const std::string& flags, double& value, const std::string& help);
// Values without a flag, at least one.
Option* add_positionals(Command&, const std::string& name, std::vector<std::string>& values, const std::string& type,
                        const std::string& help);
Option* add_flag(Command&, const std::string& flags, bool& value, const std::string& help);
// An option of llama.cpp that changes nothing here: whatever its value, one line on stderr says so and why. Where
// `choices` are given, the value may be left out; a flag if `type` is empty.
Option* add_ignored(Command&, const std::string& flags, const std::string& type,
                    const std::vector<std::string>& choices, const std::string& why);
// Values of an option that takes lists, divided at commas and without spaces around them.
std::vector<std::string> listed_values(const std::vector<std::string>&);
// "warning: OPTION has no effect: WHY"
void warn_no_effect(const std::string& option, const std::string& why);

// Value names of options; completions use them to choose what to offer.
constexpr const char *kFile = "FILE", *kModelFile = "FILE.gguf", *kFolder = "FOLDER", *kPolicy = "POLICY",
                     *kHubModel = "USER/REPO[:QUANT]", *kPolicies = "POLICY,..";

struct Parsed {
	const Command* command; // the innermost one that the words name, or the root
	bool help, version;     // --help or --version was given; otherwise all options have their values
};
// Reads argv, which begins with the program's name, and gives options their values. Throws Error{Invalid}.
Parsed parse(Command& root, int argc, char** argv);
// argv as CLI11 reads it: names of one dash and several letters become long ones, and an option whose value may be left
// out gets one. Throws Error{Invalid}, naming the whole word, on one dash and several letters that are not an option.
std::vector<std::string> plain_words(const Command& root, int argc, char** argv);
// Of an option of llama.cpp's programs that kvrun has under another name, or not at all; empty: nothing is known that
// helps with this command.
std::string llama_advice(const Command& where, std::string_view option);
// "unknown option '--modle', did you mean '--model'?; see kvrun run --help"
std::string unknown_word(const Command& where, const std::string& word);

} // namespace kvrun
