// The settings file: values of options not on the command line, for all commands, for one command, or for a model.
#pragma once
#include "tools/args.h"
#include <string>
#include <vector>

namespace kvrun {

// $XDG_CONFIG_HOME/kvrun/config.toml, or ~/.config/kvrun/config.toml; empty if neither variable is set.
std::string config_path();

struct Setting {
	std::string option;              // long name without dashes: "kv", "ctx-size"
	std::vector<std::string> values; // as on a command line
	std::string where;               // "config.toml:12, [model.smollm2]"
	bool is_truth = false;           // true or false
};

class ConfigFile {
 public:
	// Reads it; empty if the file does not exist. Throws Error{Invalid} with file and line for invalid TOML, an unknown
	// section, command or option, and Error{Io} if it cannot be read.
	static ConfigFile read(const Command& root);

	bool exists() const { return exists_; }
	// Settings of a command, lowest precedence first: [defaults], the command's section, sections of models that the
	// name matches, the longest last. model: as given, or empty.
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
	std::string value; // as it would be typed; several values are separated by spaces
	std::string where; // "command line", "KVRUN_DEVICE", or a position in the file; empty for kvrun's default
};
// Gives options of the command that neither the command line nor an environment variable sets the values of the
// file; returns where each came from. model: as given on the command line, or empty.
std::vector<Origin> apply_config(const Command& root, Command&, const std::string& model);
// The message of an error; where no device has the name of the file or of a variable, it begins with that place.
std::string with_place(const std::string& message);

} // namespace kvrun
