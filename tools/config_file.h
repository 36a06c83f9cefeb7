// The settings file: values for options that the command line does not give, for all commands, for one, for a model.
#pragma once
#include "tools/args.h"
#include <string>
#include <vector>

namespace kvrun {

// $XDG_CONFIG_HOME/kvrun/config.toml, or ~/.config/kvrun/config.toml; empty: neither variable is set.
std::string config_path();

struct Setting {
	std::string option;              // long name without dashes: "kv", "ctx-size"
	std::vector<std::string> values; // as on a command line
	std::string where;               // "config.toml:12, [model.smollm2]"
};

class ConfigFile {
 public:
	// Reads it; empty where there is none. Throws Error{Invalid} with file and line for what is no TOML, an unknown
	// section, command or option, and Error{Io} where it cannot be read.
	static ConfigFile read(const Command& root);

	bool exists() const { return exists_; }
	// What holds for a command, of least weight first: [defaults], the command's section, sections of models that the
	// name means, the longest last. model: as given, or empty.
	std::vector<Setting> settings_for(const Command&, const std::string& model) const;

 private:
	struct Part {               // a section
		std::string kind, name; // "defaults"; "command", name; "model", name
		std::vector<Setting> settings;
	};
	std::vector<Part> parts_;
	bool exists_ = false;
};

// Where an option's value comes from.
struct Origin {
	const Option* option;
	std::string value; // as it would be typed; several: separated by spaces
	std::string where; // "command line", "KVRUN_DEVICE", a place of the file; empty: kvrun's default
};
// Gives options of the command that were not given, and no variable of the environment stands for, the values of the
// file; returns where each came from. model: as given on the command line, empty: not at all.
std::vector<Origin> apply_config(const Command& root, Command&, const std::string& model);

} // namespace kvrun
