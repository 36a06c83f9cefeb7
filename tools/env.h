// Every KVRUN_* environment variable in one table: name, default, help; and what they mean to the library, which reads
// none itself.
#pragma once
#include "backends/registry.h"
#include <span>
#include <string>

namespace kvrun {

enum class Env {
	Backend,
	Device,
	Log,
	Check,
	Dump,
	Validate,
	Poison,
	Precision,
	Shaders,
	TestCaps,
	SubmitMs,
	CacheDir,
	Probe,
	Count
};

struct EnvInfo {
	const char* name;
	const char* fallback; // what an unset variable means
	const char* help;     // one sentence
};

std::span<const EnvInfo> env_table();                 // in the order of Env
std::string env_text(Env, const char* fallback = ""); // value, or fallback when unset or empty
double env_number(Env, double fallback);              // throws Error{Invalid} naming the variable when it is no number
inline bool env_flag(Env e) { return env_number(e, 0) != 0; }

// All of BackendOptions; throws Error{Invalid} naming the variable.
BackendOptions options_from_environment();
// Log lines go to stderr, as many as KVRUN_LOG says.
void log_to_stderr();

} // namespace kvrun
