// Options of llama.cpp's programs that have no effect here, or one that belongs to no other group.
#pragma once
#include "tools/args.h"
#include <array>
#include <span>

namespace kvrun {

struct IgnoredOption {        // a row of a table: arguments of add_ignored()
	const char *flags, *type; // type: "" for a flag
	std::vector<std::string> choices;
	const char* why;
};
// Names that the command uses itself stay its own.
void add_ignored(Command&, std::span<const IgnoredOption>);
// For commands that load or plan a model; called after their own options, whose names stay theirs. Also adds
// --list-devices and --offline.
void add_llama_options(Command&);
// --system and --system-prompt-file, whose text replaces `system`.
std::array<const Option*, 2> add_system(Command&, std::string& system, const std::string& help, const char* group);
// --chat-template-kwargs: a JSON object, which is checked before the command runs. when: the beginning of its help.
const Option* add_template_variables(Command&, std::string& variables, const std::string& when, const char* group);
// \n \r \t \\ \' \" \xNN in `text`, as llama.cpp reads them; other backslashes stay.
std::string without_escapes(const std::string& text);

// The list of --samplers that the letters of --sampler-seq mean. Throws Error{Invalid}.
std::string samplers_of(const std::string& letters);
struct Sampling;
// --samplers: switches off those that are not in the list "top_k;top_p;..". Throws Error{Invalid} for an order that is
// not kvrun's.
void choose_samplers(kvrun::Sampling&, const std::string& list);

} // namespace kvrun
