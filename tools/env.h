// Every KVRUN_* environment variable in one table: name, default, help; maps them to library options. The library reads
// no environment variables itself.
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
std::string env_text(Env, const char* fallback = ""); // value, or fallback if unset or empty
double env_number(Env, double fallback);              // throws Error{Invalid} naming the variable if it is not a number
inline bool env_flag(Env e) { return env_number(e, 0) != 0; }

std::string variable(const char* name);          // of the environment, any; empty if unset
std::string pipeline_cache_folder();             // empty if there is no cache
std::string probe_program();                     // helper program that tests drivers; empty if none
bool f32_matmul();                               // KVRUN_PRECISION; throws Error{Invalid} for another word
void set_driver_files(const std::string& files); // restricts the loader to these drivers from now on

// All of BackendOptions; throws Error{Invalid} naming the variable. Defined in env_backend.cpp, because it needs engine
// code and the others do not.
BackendOptions options_from_environment();
// Sends log lines to stderr, at the level of KVRUN_LOG.
void log_to_stderr();

} // namespace kvrun
