// Completion scripts for bash, zsh and fish from the tree of commands.
#include "engine/core/error.h"
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
};

std::vector<std::string> policy_words() {
	std::vector<std::string> out;
	for (const KvPolicy& p : all_policies()) out.push_back(p.name);
	return out;
}

Value value_of(const Option& o) {
	if (!o.choices.empty()) return {Offer::Words, o.choices};
	const std::string& type = o.type;
	if (type == kModelFile) return {Offer::ModelFiles, {}};
	if (type == kFile) return {Offer::Files, {}};
	if (type == kFolder) return {Offer::Folders, {}};
	if (type == kPolicy || type == kPolicies) return {Offer::Policies, policy_words()};
	return {};
}

const Option* positional(const Command& c) {
	for (const Option& o : c.options)
		if (!o.positional.empty()) return &o;
	return nullptr;
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
	switch (v.offer) {
	case Offer::Files: return "_kvrun_files";
	case Offer::ModelFiles: return "_kvrun_files '*.gguf'";
	case Offer::Folders: return "_kvrun_folders";
	case Offer::Words: return fmt::format("_kvrun_words '{}'", fmt::join(v.words, " "));
	case Offer::Policies: return fmt::format("_kvrun_list '{}'", fmt::join(v.words, " "));
	case Offer::Nothing: return "COMPREPLY=()";
	}
	return {};
}

constexpr const char* kBashHead = R"(# bash completion for kvrun; made by `kvrun completion bash`
_kvrun_words() { mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur"); }
# a comma-separated list: completes its last word
_kvrun_list() { mapfile -t COMPREPLY < <(compgen -P "${cur%"${cur##*,}"}" -W "$1" -- "${cur##*,}"); }
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
_kvrun() {
	local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]} command= i
	COMPREPLY=()
	# --kv=VALUE comes as three words
	if [ "$cur" = = ]; then cur=; elif [ "$prev" = = ]; then prev=${COMP_WORDS[COMP_CWORD-2]}; fi
	for ((i = 1; i < COMP_CWORD; ++i)); do
		case ${COMP_WORDS[i]} in
		-*) ;;
		*) command=${COMP_WORDS[i]}; break ;;
		esac
	done
	case $command:$prev in
)";

std::string bash_script(const Command& root) {
	std::string out = kBashHead, flags, positionals;
	std::vector<std::string> commands;
	for (const auto& c : root.commands) {
		commands.push_back(c->name);
		std::vector<std::string> names;
		for (const Option* o : listed(*c)) {
			std::string pattern;
			for (const std::string& n : o->names()) {
				names.push_back(n);
				pattern += fmt::format("{}{}:{}", pattern.empty() ? "" : " | ", c->name, n);
			}
			if (!o->type.empty()) out += fmt::format("\t{}) {}; return ;;\n", pattern, bash_offer(value_of(*o)));
		}
		flags += fmt::format("\t{}:-*) _kvrun_words '{}' ;;\n", c->name, fmt::join(names, " "));
		if (const Option* p = positional(*c))
			positionals += fmt::format("\t{}:*) {} ;;\n", c->name, bash_offer(value_of(*p)));
	}
	out += "\tesac\n\tcase $command:$cur in\n";
	out += "\t:-*) _kvrun_words '--help --version' ;;\n";
	out += fmt::format("\t:*) _kvrun_words '{}' ;;\n", fmt::join(commands, " "));
	return out + flags + positionals + "\tesac\n}\ncomplete -F _kvrun kvrun\n";
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
	std::string out = "#compdef kvrun\n# zsh completion for kvrun; made by `kvrun completion zsh`\n_kvrun() {\n"
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
		if (const Option* p = positional(*c)) out += fmt::format(" \\\n\t\t\t'1{}'", zsh_offer(p->type, value_of(*p)));
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
	switch (v.offer) {
	case Offer::Files: return " -r -F";
	case Offer::ModelFiles: return " -r -k -a '(__fish_complete_suffix .gguf)'";
	case Offer::Folders: return " -x -a '(__fish_complete_directories)'";
	case Offer::Words:
	case Offer::Policies: return fmt::format(" -x -a '{}'", fmt::join(v.words, " "));
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
		if (const Option* p = positional(*c)) out += head + fish_offer(value_of(*p)) + "\n";
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
