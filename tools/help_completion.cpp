// Completion scripts for bash, zsh and fish from the tree of commands.
#include "engine/core/error.h"
#include "engine/core/split.h"
#include "engine/kv_host/policy.h"
#include "tools/help.h"
#include <algorithm>
#include <fmt/format.h>
#include <fmt/ranges.h>

namespace kvrun {
namespace {

enum class Offer { Nothing, Files, ModelFiles, Folders, Words, Policies };
struct Value { // how an option's value is completed
	Offer offer = Offer::Nothing;
	std::vector<std::string> words;
	bool models = false; // also by names of models that are here
};

std::vector<std::string> policy_words() {
	std::vector<std::string> out;
	for (const KvPolicy& p : all_policies()) out.push_back(p.name);
	out.insert(out.end(), {"auto", "tuned:"}); // a number of bits follows
	return out;
}

// Of a type like FILE|TEXT or lookup|mtp|MODEL; parts in lower case are words.
Value value_of(const Option& o) {
	if (!o.choices.empty()) return {Offer::Words, o.choices};
	const std::string& type = o.type;
	if (type == kFolder) return {Offer::Folders, {}};
	if (type == kPolicy || type == kPolicies) return {Offer::Policies, policy_words()};
	Value out{Offer::Nothing, {}, o.names_model};
	for (const std::string_view part : split(type, '|')) {
		if (part == kModelFile || part == "MODEL")
			out.offer = Offer::ModelFiles;
		else if (part.starts_with("FILE"))
			out.offer = Offer::Files;
		else if (std::ranges::all_of(part, [](char c) { return c >= 'a' && c <= 'z'; }) && !part.empty())
			out.words.emplace_back(part);
	}
	return out;
}

const Option* positional(const Command& c) {
	for (const Option& o : c.options)
		if (!o.positional.empty()) return &o;
	return nullptr;
}

std::vector<std::string> names_of(const std::vector<std::unique_ptr<Command>>& commands) {
	std::vector<std::string> out;
	for (const auto& c : commands) out.push_back(c->name);
	return out;
}

// What may stand behind a command's name without an option.
Value operand_of(const Command& c) {
	if (const Option* p = positional(c)) return value_of(*p);
	return c.commands.empty() ? Value() : Value{Offer::Words, names_of(c.commands)};
}

std::vector<const Option*> listed(const Command& c) {
	std::vector<const Option*> out;
	for (const auto& [group, options] : option_groups(c))
		for (const Option* o : options)
			if (!o->names().empty()) out.push_back(o);
	return out;
}

// ---- bash

std::string bash_offer(const Value& v) {
	const std::string words = fmt::format("'{}'", fmt::join(v.words, " "));
	if (v.models) return fmt::format("_kvrun_models {} {}", v.offer == Offer::ModelFiles ? "'*.gguf'" : "''", words);
	switch (v.offer) {
	case Offer::Files: return "_kvrun_files";
	case Offer::ModelFiles: return "_kvrun_files '*.gguf'";
	case Offer::Folders: return "_kvrun_folders";
	case Offer::Words: return "_kvrun_words " + words;
	case Offer::Policies: return "_kvrun_list " + words;
	case Offer::Nothing: return "COMPREPLY=()";
	}
	return {};
}

constexpr const char* kBashHead = R"(# bash completion for kvrun; made by `kvrun completion bash`
_kvrun_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
# a comma-separated list: completes its last word
_kvrun_list() {
	mapfile -t COMPREPLY < <(compgen -P "${cur%"${cur##*,}"}" -W "$1" -- "${cur##*,}")
	if [[ ${COMPREPLY[*]} == *: ]]; then compopt -o nospace 2>/dev/null; fi
}
_kvrun_folders() {
	compopt -o filenames 2>/dev/null
	mapfile -t COMPREPLY < <(compgen -d -- "$cur")
}
_kvrun_files() {
	compopt -o filenames 2>/dev/null
	if [ -z "$1" ]; then
		mapfile -t COMPREPLY < <(compgen -f -- "$cur")
	else
		mapfile -t COMPREPLY < <(compgen -d -- "$cur"; compgen -f -X "!$1" -- "$cur")
	fi
}
# names of models that are here, words of $2, and files that match $1
_kvrun_models() {
	local name quoted names=()
	if [ -n "$1" ]; then _kvrun_files "$1"; fi
	while IFS= read -r name; do
		printf -v quoted %q "$name"
		if [[ -n $name && $quoted == "$cur"* ]]; then names+=("$quoted"); fi
	done < <(printf '%s\n' $2; "${COMP_WORDS[0]/#\~\//$HOME/}" list --names 2>/dev/null)
	if ((${#names[@]} == 0)); then return; fi
	compopt +o filenames 2>/dev/null # names are no files: what is special in all of them is quoted here
	mapfile -t COMPREPLY < <(for name in "${COMPREPLY[@]}"; do printf '%q\n' "$name"; done; printf '%s\n' "${names[@]}")
}
_kvrun() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev command= word i=$COMP_CWORD
	COMPREPLY=()
	# --kv=VALUE and NAME:QUANT come as three words
	while ((i > 1)) && [[ ${COMP_WORDS[i]} == : || ${COMP_WORDS[i-1]} == : ]]; do cur=${COMP_WORDS[--i]}$cur; done
	prev=${COMP_WORDS[i-1]}
	if [ "$cur" = = ]; then cur=; elif [ "$prev" = = ]; then prev=${COMP_WORDS[i-2]}; fi
	for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
		case $command+$word in
		*+-*) ;;
		+*) command=$word ;;
)";

// Commands, each followed by those below it; their words are joined by +.
std::vector<std::pair<std::string, const Command*>> with_words(const Command& root) {
	std::vector<std::pair<std::string, const Command*>> out;
	for (const auto& c : root.commands) {
		out.emplace_back(c->name, c.get());
		for (const auto& below : c->commands) out.emplace_back(c->name + "+" + below->name, below.get());
	}
	return out;
}

std::string bash_script(const Command& root) {
	std::string out = kBashHead, options, flags, operands;
	for (const auto& [words, c] : with_words(root)) {
		if (c->parent != &root) out += fmt::format("\t\t{}) command={} ;;\n", words, words);
		std::vector<std::string> names;
		for (const Option* o : listed(*c)) {
			std::string pattern;
			for (const std::string& n : o->names()) {
				names.push_back(n);
				pattern += fmt::format("{}{}:{}", pattern.empty() ? "" : " | ", words, n);
			}
			if (!o->type.empty()) options += fmt::format("\t{}) {}; return ;;\n", pattern, bash_offer(value_of(*o)));
		}
		flags += fmt::format("\t{}:-*) _kvrun_words '{}' ;;\n", words, fmt::join(names, " "));
		const Value v = operand_of(*c);
		if (positional(*c) || v.offer != Offer::Nothing)
			operands += fmt::format("\t{}:*) {} ;;\n", words, bash_offer(v));
	}
	out +=
	    "\t\tesac\n\tdone\n\t_kvrun_offer\n"
	    "\t# what is in front of the last colon stays\n"
	    "\tif [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then COMPREPLY=(\"${COMPREPLY[@]#\"${cur%:*}:\"}\"); fi\n"
	    "}\n_kvrun_offer() {\n\tcase $command:$prev in\n";
	out += options + "\tesac\n\tcase $command:$cur in\n";
	out += "\t:-*) _kvrun_words '--help --version' ;;\n";
	out += fmt::format("\t:*) _kvrun_words '{}' ;;\n", fmt::join(names_of(root.commands), " "));
	return out + flags + operands + "\tesac\n}\ncomplete -F _kvrun kvrun\n";
}

// ---- zsh

// Inside single quotes, and inside the [..] and :..: of _arguments.
std::string zsh_text(const std::string& s) {
	std::string out;
	for (const char c : s) {
		if (c == '\'')
			out += "'\\''";
		else if (c == '[' || c == ']' || c == ':' || c == '\\')
			(out += '\\') += c;
		else
			out += c;
	}
	return out;
}

std::string zsh_offer(const std::string& type, const Value& v) {
	const std::string head = ":" + zsh_text(type) + ":";
	if (v.models) return head + (v.offer == Offer::ModelFiles ? "_kvrun_model_files" : "_kvrun_models");
	switch (v.offer) {
	case Offer::Files: return head + "_files";
	case Offer::ModelFiles: return head + "_files -g \"*.gguf\"";
	case Offer::Folders: return head + "_files -/";
	case Offer::Words: return head + fmt::format("({})", fmt::join(v.words, " "));
	case Offer::Policies: return head + fmt::format("_sequence compadd - {}", fmt::join(v.words, " "));
	case Offer::Nothing: return head;
	}
	return {};
}

std::string zsh_script(const Command& root) {
	std::string out = "#compdef kvrun\n# zsh completion for kvrun; made by `kvrun completion zsh`\n"
	                  "_kvrun_models() {\n\tlocal -a names=(${(f)\"$(kvrun list --names 2>/dev/null)\"})\n"
	                  "\tcompadd \"$@\" -a names\n}\n"
	                  "_kvrun_model_files() {\n\t_alternative 'models:model:_kvrun_models' "
	                  "'files:file:_files -g \"*.gguf\"'\n}\n_kvrun() {\n"
	                  "\tlocal curcontext=$curcontext context state state_descr line\n\ttypeset -A opt_args\n"
	                  "\t_arguments -C '--help[print help]' '--version[print the version]' '1:command:->command' "
	                  "'*::argument:->argument'\n\tcase $state in\n\tcommand)\n\t\tlocal -a commands=(\n";
	for (const auto& c : root.commands) out += fmt::format("\t\t\t'{}:{}'\n", c->name, zsh_text(c->summary));
	out += "\t\t)\n\t\t_describe command commands ;;\n\targument)\n\t\tcase $line[1] in\n";
	for (const auto& c : root.commands) {
		out += fmt::format("\t\t{}) _arguments", c->name);
		for (const Option* o : listed(*c)) {
			const std::string value = !o->type.empty() ? zsh_offer(o->type, value_of(*o)) : "";
			for (const std::string& n : o->names())
				out += fmt::format(" \\\n\t\t\t'{}[{}]{}'", n, zsh_text(o->help), value);
		}
		if (const Option* p = positional(*c))
			out += fmt::format(" \\\n\t\t\t'{}{}'", p->is_list ? "*" : "1", zsh_offer(p->type, value_of(*p)));
		else if (!c->commands.empty())
			out += fmt::format(" \\\n\t\t\t'1{}'", zsh_offer("command", operand_of(*c)));
		out += " ;;\n";
	}
	return out + "\t\tesac ;;\n\tesac\n}\n"
	             "if [[ $funcstack[1] = _kvrun ]]; then _kvrun \"$@\"; else compdef _kvrun kvrun; fi\n";
}

// ---- fish

std::string fish_text(const std::string& s) { // inside single quotes
	std::string out;
	for (const char c : s) {
		if (c == '\'' || c == '\\') out += '\\';
		out += c;
	}
	return out;
}

std::string fish_offer(const Value& v) {
	const std::string words = fmt::format("{}", fmt::join(v.words, " ")), names = "(kvrun list --names 2>/dev/null)";
	if (v.models && v.offer == Offer::ModelFiles)
		return fmt::format(" -r -k -a '{} {} (__fish_complete_suffix .gguf)'", words, names);
	if (v.models) return fmt::format(" -x -a '{}'", names);
	switch (v.offer) {
	case Offer::Files: return " -r -F";
	case Offer::ModelFiles: return " -r -k -a '(__fish_complete_suffix .gguf)'";
	case Offer::Folders: return " -x -a '(__fish_complete_directories)'";
	case Offer::Words:
	case Offer::Policies: return fmt::format(" -x -a '{}'", words);
	case Offer::Nothing: return " -x";
	}
	return {};
}

std::string fish_script(const Command& root) {
	std::string out = "# fish completion for kvrun; made by `kvrun completion fish`\ncomplete -c kvrun -f\n";
	for (const auto& c : root.commands)
		out +=
		    fmt::format("complete -c kvrun -n __fish_use_subcommand -a {} -d '{}'\n", c->name, fish_text(c->summary));
	for (const auto& c : root.commands) {
		const std::string head = fmt::format("complete -c kvrun -n '__fish_seen_subcommand_from {}'", c->name);
		for (const Option* o : listed(*c)) {
			out += head;
			for (const std::string& n : o->shorts) out += " -s " + n.substr(1);
			for (const std::string& n : o->words) out += " -o " + n.substr(1);
			for (const std::string& n : o->longs) out += " -l " + n.substr(2);
			if (!o->type.empty()) out += fish_offer(value_of(*o));
			out += fmt::format(" -d '{}'\n", fish_text(o->help));
		}
		if (positional(*c) || !c->commands.empty()) out += head + fish_offer(operand_of(*c)) + "\n";
	}
	return out;
}

} // namespace

std::string completion_script(const Command& root, const std::string& shell) {
	if (shell == "bash") return bash_script(root);
	if (shell == "zsh") return zsh_script(root);
	if (shell == "fish") return fish_script(root);
	fail(Code::Invalid, "no completion for shell '{}'; there are bash, zsh and fish", shell);
}

} // namespace kvrun
