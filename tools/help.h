// Documentation generated from the tree of commands: --help, man pages, shell completions.
#pragma once
#include "tools/args.h"

namespace kvrun {

// Placeholder of an option's value: its type, or its choices as "md|json".
std::string value_name(const Option&);
std::string help_of(const Option&); // its text, and whether it must be given
// Options that are listed, by group in the order of the groups; positional ones that have no flag first.
std::vector<std::pair<std::string, std::vector<const Option*>>> option_groups(const Command&);
// "kvrun run [OPTIONS] FILE.gguf"
std::string usage_line(const Command&);

// --help, wrapped to this many columns.
std::string help_text(const Command&, size_t columns);
// Columns for help on stdout: the terminal's, $COLUMNS, or 80; at least 40, at most 120.
size_t help_columns();
// The page kvrun.1, or kvrun-COMMAND.1, in roff.
std::string man_page(const Command&);
// A completion script for "bash", "zsh" or "fish".
std::string completion_script(const Command& root, const std::string& shell);

} // namespace kvrun
