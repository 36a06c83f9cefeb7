// Rewrites the words of a command line for CLI11: options of one dash and several letters. Reports unknown words.
#include "engine/core/error.h"
#include "engine/core/utf8.h"
#include "tools/args.h"
#include <algorithm>
#include <cctype>

namespace kvrun {
namespace {

bool takes_value(const Option* o) { return o && !o->type.empty(); }

// Reads the words from left to right, as CLI11 will.
class Reader {
 public:
	Reader(const Command& root, std::vector<std::string> words) : where_(&root), in_(std::move(words)) {}

	std::vector<std::string> read() {
		for (; at_ < in_.size(); ++at_) take(in_[at_]);
		return std::move(out_);
	}

 private:
	void take(const std::string& word) {
		if (value_follows_ || literal_) {
			value_follows_ = false;
			return out_.push_back(word);
		}
		if (word.size() < 2 || word[0] != '-') {
			if (const Command* c = where_->find_command(word)) where_ = c;
			return out_.push_back(word);
		}
		literal_ = word == "--";
		if (word[1] == '-') return take_long(word);
		take_short(word);
	}

	void take_long(const std::string& word) {
		const size_t equals = word.find('=');
		const Option* o = where_->find_option(word.substr(0, equals));
		const bool choice = o && at_ + 1 < in_.size() && std::ranges::count(o->choices, in_[at_ + 1]);
		if (o && o->type.empty() && choice && equals == std::string::npos)
			return out_.push_back(word + "=" + (in_[++at_] == "on" ? "true" : "false"));
		if (o && o->type.empty() && o->take && equals != std::string::npos)
			return out_.push_back(word.substr(0, equals) + (truth(*o, word.substr(equals + 1)) ? "=true" : "=false"));
		if (!takes_value(o) || equals != std::string::npos) return out_.push_back(word);
		if (o->implied.empty()) {
			value_follows_ = true;
			return out_.push_back(word);
		}
		out_.push_back(word + "=" + (choice ? in_[++at_] : o->implied));
	}

	static bool truth(const Option& flag, const std::string& value) {
		for (const char* word : {"true", "on", "1"})
			if (value == word) return true;
		for (const char* word : {"false", "off", "0"})
			if (value == word) return false;
		fail(Code::Invalid, "{} is '{}', expected true or false", flag.shown(), one_line(value));
	}

	void take_short(const std::string& word) {
		const size_t equals = word.find('=');
		for (const Option& o : where_->options)
			if (std::ranges::count(o.words, word.substr(0, equals)))
				return take_long(equals == std::string::npos ? o.shown() : o.shown() + word.substr(equals));
		const Option* o = where_->find_option(word.substr(0, 2));
		if (word.size() == 2) {
			value_follows_ = takes_value(o);
			return out_.push_back(word);
		}
		if (equals == 2 && takes_value(o)) { // -n=64
			out_.push_back(word.substr(0, 2));
			return out_.push_back(word.substr(3));
		}
		const auto digit = [&](size_t i) { return i < word.size() && std::isdigit(uint8_t(word[i])); };
		const bool number = digit(2) || ((word[2] == '-' || word[2] == '.') && digit(3)); // -n64, -n-1
		if (digit(1) || (takes_value(o) && number)) return out_.push_back(word);
		fail(Code::Invalid, "{}", unknown_word(*where_, word));
	}

	const Command* where_; // whose options the words are
	std::vector<std::string> in_, out_;
	size_t at_ = 0;
	bool value_follows_ = false, literal_ = false; // next word is an option's value; all are positional
};

} // namespace

std::vector<std::string> plain_words(const Command& root, int argc, char** argv) {
	return Reader(root, std::vector<std::string>(argv + std::min(argc, 1), argv + argc)).read();
}

// A long option that `word` may have been meant to be; empty if none is close. Options of one dash are too short: -cnv
// is not a mistyped -ctv, and -hf is neither -h nor -f.
static std::string similar_option(const std::string& word, const std::vector<std::string>& known) {
	if (word[1] != '-') return word.size() > 3 && std::ranges::count(known, "-" + word) ? "-" + word : "";
	std::vector<std::string> names; // without dashes, which would make short names look alike
	const std::string name = word.substr(2);
	for (const std::string& k : known) {
		const std::string n = k.starts_with("--") ? k.substr(2) : "";
		const bool opposite = n == "no-" + name || name == "no-" + n;
		if (n.size() > 2 && !opposite) names.push_back(n);
	}
	const std::string near = nearest(name, names);
	return near.empty() ? "" : "--" + near;
}

std::string unknown_word(const Command& where, const std::string& typed) {
	const std::string word = typed.substr(0, typed.find('='));
	const bool flag = word.size() > 1 && word[0] == '-', root = !where.parent;
	const std::string path = root ? "" : where.path() + " ";
	const bool prompt = !flag && where.find_option("--prompt");
	std::vector<std::string> known;
	if (flag) {
		for (const Option& o : where.options)
			for (const auto* list : {&o.longs, &o.shorts, &o.words})
				known.insert(known.end(), list->begin(), list->end());
	} else if (root) {
		for (const auto& c : where.commands) known.push_back(c->name);
	}
	if (const std::string advice = flag ? llama_advice(where, word) : ""; !advice.empty())
		return fmt::format("unknown option '{}': {}; see kvrun {}--help", word, advice, path);
	const auto has = [&](const auto& c) {
		return std::ranges::any_of(c->options, [&](const Option& o) { return std::ranges::count(o.names(), word); });
	};
	if (root && flag && std::ranges::any_of(where.commands, has))
		return fmt::format("unknown option '{}' in front of a command: kvrun run, kvrun chat and others take it "
		                   "behind their name; see kvrun --help",
		                   word);
	if (root && !flag && word.ends_with(".gguf"))
		return fmt::format("unknown command '{0}': a model follows a command, as kvrun chat {0}; see kvrun --help",
		                   one_line(word));
	const std::string similar = flag ? similar_option(word, known) : nearest(word, known);
	return fmt::format("unknown {} '{}'{}{}; see kvrun {}--help",
	                   flag   ? "option"
	                   : root ? "command"
	                          : "argument",
	                   one_line(word), similar.empty() ? "" : ", did you mean '" + similar + "'?",
	                   prompt ? "; a prompt follows -p" : "", path);
}

} // namespace kvrun
