// The settings file, parsed with toml++.
#include "tools/config_file.h"
#include "engine/core/error.h"
#include "engine/core/split.h"
#include "engine/core/system/files.h"
#include "engine/core/system/machine.h"
#include "engine/core/utf8.h"
#include "engine/kv_host/policy.h"
#include "tools/hub/names.h"
#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fmt/ranges.h>
#include <fstream>
#include <map>
#include <sstream>
#define TOML_HEADER_ONLY 1
#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

namespace kvrun {
namespace fs = std::filesystem;
namespace {

constexpr uint64_t kLongestFile = 1 << 20; // bytes

// Environment variables that set the same value as an option.
const std::map<std::string, const char*> kVariables = {{"device", "KVRUN_DEVICE"}, {"check", "KVRUN_CHECK"}};
// Options with the same purpose: one on the command line overrides the others from the file.
const std::vector<std::vector<std::string>> kSame = {{"kv", "cache-type-k", "cache-type-v"},
                                                     {"api-key", "api-key-file"},
                                                     {"prompt", "file"},
                                                     {"model", "hf-repo", "shape"},
                                                     {"grammar", "json-schema"},
                                                     {"quiet", "verbose"},
                                                     {"escape", "no-escape"},
                                                     {"fit", "no-fit"}};

std::string long_name(const Option& o) { return o.longs.empty() ? "" : o.longs.front().substr(2); }

bool has_name(const Option& o, const std::string& name) {
	return std::ranges::any_of(o.longs, [&](const std::string& l) { return l.substr(2) == name; });
}

const Option* find_option(const Command& c, const std::string& name) {
	const auto o = std::ranges::find_if(c.options, [&](const Option& x) { return x.take && has_name(x, name); });
	return o == c.options.end() ? nullptr : &*o;
}

std::vector<std::string> option_names(const Command& c) {
	std::vector<std::string> out;
	for (const Option& o : c.options)
		if (o.take)
			for (const std::string& l : o.longs) out.push_back(l.substr(2));
	return out;
}

std::string place(const toml::node& n) { return fmt::format("{}:{}", config_path(), n.source().begin.line); }

std::string value_text(const std::string& key, const toml::node& n) {
	if (const auto* s = n.as_string()) return s->get();
	if (const auto* i = n.as_integer()) return std::to_string(i->get());
	if (const auto* f = n.as_floating_point()) return fmt::format("{}", f->get());
	if (const auto* b = n.as_boolean()) return b->get() ? "true" : "false";
	fail(Code::Invalid, "{}: {} must be a text, a number, true or false, or an array of them", place(n), one_line(key));
}

Setting setting_of(const std::string& key, const toml::node& n, const std::string& section) {
	Setting s{key, {}, fmt::format("{}, [{}]", place(n), section), n.is_boolean()};
	if (const auto* array = n.as_array())
		for (const toml::node& one : *array) s.values.push_back(value_text(key, one));
	else
		s.values.push_back(value_text(key, n));
	return s;
}

// Advice for a line like kv = turbo4 or json = yes, which is not TOML.
std::string unquoted_text(const Command& root, const std::string& file, size_t line) {
	std::istringstream in(file);
	std::string text;
	for (size_t i = 0; i < line; ++i) std::getline(in, text);
	const size_t equals = text.find('=');
	const size_t from = equals == text.npos ? equals : text.find_first_not_of(" \t", equals + 1);
	if (from == text.npos || std::string_view("\"'[{#+-.").find(text[from]) != std::string_view::npos) return "";
	const std::string value = text.substr(from, text.find_first_of(" \t#\r", from) - from);
	if (value == "true" || value == "false") return "";
	const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t", equals - 1);
	const std::string key = begin < equals ? text.substr(begin, end + 1 - begin) : "", word = lower_case(value);
	const bool flag = std::ranges::any_of(root.commands, [&](const std::unique_ptr<Command>& c) {
		const Option* o = find_option(*c, key);
		return o && o->type.empty();
	});
	for (const auto& [truth, words] : {std::pair("true", "true yes on"), std::pair("false", "false no off")})
		for (const std::string_view w : split(words, ' '))
			if (flag && word == w) return fmt::format("; write true or false: {} = {}", one_line(key), truth);
	return fmt::format("; texts are in quotes: {} = \"{}\"", one_line(key), one_line(value));
}

[[noreturn]] void fail_unknown(const toml::node& n, const std::string& what, const std::string& word,
                               const std::vector<std::string>& known) {
	const std::string similar = nearest(word, known);
	fail(Code::Invalid, "{}: {} '{}'{}", place(n), what, one_line(word),
	     similar.empty() ? "" : fmt::format(", did you mean '{}'?", similar));
}

// A policy that does not exist is found when a model is opened, where its place is not known.
void check_policies(const Option& o, const Setting& s) {
	if (o.type != kPolicy && o.type != kPolicies) return;
	for (const std::string& v : s.values)
		if (!v.empty() && v != "all") (void)parse_policies(v);
}

std::string device_place; // of the file, or a variable's name; empty: the command line, or kvrun's choice

} // namespace

std::string with_place(const std::string& message) {
	const bool is_name = message.starts_with("no device is called") || message.starts_with("there is no device");
	return is_name && !device_place.empty() ? device_place + ": " + message : message;
}

std::string config_path() {
	const std::string folder = sys::config_folder();
	return folder.empty() ? folder : folder + "/kvrun/config.toml";
}

ConfigFile ConfigFile::read(const Command& root) {
	ConfigFile out;
	const std::string path = config_path();
	std::error_code ec;
	if (path.empty() || !fs::exists(sys::path_of(path), ec)) return out;
	if (!fs::is_regular_file(sys::path_of(path), ec)) fail(Code::Io, "{}: is not a file", one_line(path));
	if (fs::file_size(sys::path_of(path), ec) > kLongestFile)
		fail(Code::Invalid, "{}: is longer than 1 MiB", one_line(path));
	std::ifstream in(sys::path_of(path), std::ios::binary);
	std::ostringstream text;
	text << in.rdbuf();
	if (!in) fail(Code::Io, "{}: cannot be read", one_line(path));
	toml::table file;
	try {
		file = toml::parse(text.str(), path);
	} catch (const toml::parse_error& e) {
		fail(Code::Invalid, "{}:{}: {}{}", one_line(path), e.source().begin.line, one_line(e.description()),
		     unquoted_text(root, text.str(), e.source().begin.line));
	}
	out.exists_ = true;

	std::vector<std::string> commands, all;
	for (const auto& c : root.commands) {
		commands.push_back(c->name);
		for (std::string& n : option_names(*c)) all.push_back(std::move(n));
	}
	const auto add = [&](const std::string& kind, const std::string& name, const toml::node& node,
	                     const std::vector<std::string>& known) {
		const toml::table* table = node.as_table();
		const std::string section = kind == "model" ? "model." + name : name;
		if (!table)
			fail(Code::Invalid, "{}: {} must be a section, [{}]", place(node), one_line(section), one_line(section));
		Part part{kind, name, {}};
		for (const auto& [key, value] : *table) {
			const std::string k(key.str());
			if (!std::ranges::count(known, k)) fail_unknown(value, "unknown option", k, known);
			part.settings.push_back(setting_of(k, value, section));
		}
		out.parts_.push_back(std::move(part));
	};
	for (const auto& [key, node] : file) {
		const std::string name(key.str());
		if (name == "defaults") {
			add("defaults", name, node, all);
		} else if (const Command* c = root.find_command(name)) {
			add("command", name, node, option_names(*c));
		} else if (name == "model" && node.is_table()) {
			for (const auto& [model, section] : *node.as_table()) add("model", std::string(model.str()), section, all);
		} else {
			if (!node.is_table())
				fail(Code::Invalid,
				     "{}: '{}' stands outside a section; put it below [defaults], or below [run], [chat] ..",
				     place(node), one_line(name));
			commands.insert(commands.end(), {"defaults", "model"});
			fail_unknown(node, "unknown section", name, commands);
		}
	}
	return out;
}

std::vector<Setting> ConfigFile::settings_for(const Command& c, const std::string& model) const {
	std::vector<const Part*> used;
	for (const Part& p : parts_)
		if (p.kind == "defaults") used.push_back(&p);
	for (const Part& p : parts_)
		if (p.kind == "command" && p.name == c.name) used.push_back(&p);
	// a name matches a model as on the command line: by prefix, case-insensitive
	std::vector<const Part*> models;
	const std::string whole = bare_name(model), stem = bare_name(sys::path_of(model).stem().string());
	const size_t slash = model.find('/');
	const std::string repo = slash == model.npos ? whole : bare_name(model.substr(slash + 1));
	for (const Part& p : parts_) {
		const std::string name = bare_name(p.name);
		if (p.kind != "model" || name.empty() || model.empty()) continue;
		for (const std::string& m : {whole, stem, repo})
			if (m.starts_with(name)) {
				models.push_back(&p);
				break;
			}
	}
	std::ranges::stable_sort(models, {}, [](const Part* p) { return bare_name(p->name).size(); });
	used.insert(used.end(), models.begin(), models.end());
	std::vector<Setting> out;
	// --chat is a flag of run and a name of chat: in a section for several commands the value says which is meant
	const auto of_other = [&](const Part& p, const Setting& s, const Option& o) {
		const bool flag = o.type.empty();
		if (p.kind == "command" || !c.parent || flag == s.is_truth) return false;
		return std::ranges::any_of(c.parent->commands, [&](const std::unique_ptr<Command>& other) {
			const Option* same = find_option(*other, s.option);
			return same && same->type.empty() == s.is_truth;
		});
	};
	for (const Part* p : used)
		for (const Setting& s : p->settings)
			if (const Option* o = find_option(c, s.option); o && !of_other(*p, s, *o)) out.push_back(s);
	return out;
}

std::vector<Origin> apply_config(const Command& root, Command& c, const std::string& model) {
	const ConfigFile file = ConfigFile::read(root);
	std::map<const Option*, Origin> from;
	std::map<const Option*, bool> typed; // on the command line
	for (const Option& o : c.options) typed[&o] = o.count > 0;
	const auto shadowed = [&](const Option& o) {
		if (typed[&o]) return true;
		for (const auto& group : kSame)
			if (std::ranges::any_of(group, [&](const std::string& n) { return has_name(o, n); }))
				for (const std::string& n : group)
					if (const Option* other = find_option(c, n); other && typed[other]) return true;
		return false;
	};
	const auto take = [&](const Setting& s) {
		Option* o = const_cast<Option*>(find_option(c, s.option));
		if (shadowed(*o)) return;
		if (const auto v = kVariables.find(long_name(*o)); v != kVariables.end())
			if (const char* text = std::getenv(v->second); text && *text) return;
		const bool is_flag = o->type.empty();
		const bool truth = s.values.size() == 1 && (s.values[0] == "true" || s.values[0] == "false");
		try {
			if (is_flag && !truth) fail(Code::Invalid, "{} must be true or false", s.option);
			check_policies(*o, s);
			o->take(s.values);
		} catch (const Error& e) { fail(e.code, "{}: {}", s.where, e.what()); }
		o->count = is_flag && s.values[0] == "false" ? 0 : s.values.size();
		o->of_settings = true;
		from[o] = {o, fmt::format("{}", fmt::join(s.values, " ")), s.where};
	};
	// the model may also come from the file; its name selects the sections
	std::string name = model;
	if (const Option* o = find_option(c, "model"); o && name.empty())
		for (const Setting& s : file.settings_for(c, ""))
			if (has_name(*o, s.option) && !s.values.empty()) name = s.values.front();
	for (const Setting& s : file.settings_for(c, name)) take(s);

	std::vector<Origin> out;
	for (const Option& o : c.options) {
		if (!o.take || o.longs.empty() || o.group_name == kIgnoredGroup) continue;
		const auto v = kVariables.find(long_name(o));
		const char* text = v == kVariables.end() ? nullptr : std::getenv(v->second);
		if (typed[&o])
			out.push_back({&o, has_name(o, "model") ? model : "", "command line"});
		else if (from.count(&o))
			out.push_back(from[&o]);
		else if (text && *text)
			out.push_back({&o, text, v->second});
		else
			out.push_back({&o, "", ""});
		if (long_name(o) == "device") device_place = typed[&o] ? "" : out.back().where;
	}
	return out;
}

} // namespace kvrun
