// The options of kvrun serve, and the rest of its help text.
#pragma once
#include "tools/args_draft.h"
#include "tools/args_model.h"
#include "tools/serve/requests.h"

namespace kvrun {

struct ServeArgs : ModelArgs {
	DraftArgs draft;
	std::string embedder; // file of the model of embeddings; empty: the model itself
	std::string alias, chat_template, kv = "fp16", key, key_file, host = "127.0.0.1", prefix, unix_path, sessions;
	std::string template_variables;             // JSON
	std::string reasoning = "auto";             // --reasoning-format
	std::vector<std::string> cors, allow_hosts; // each may be a list
	SamplingArgs sampling;                      // of requests that do not say
	int64_t predict = -1;                       // tokens; -1: as many as fit
	std::string certificate, private_key;       // of TLS
	int64_t port = 8080, parallel = 4, queue = 32, idle_sessions = 64, connections = 256;
	uint64_t max_body = 8 << 20, max_bodies = 64 << 20;
	uint64_t sessions_max = 0; // 0 if not given
	double timeout = 30, drain = 30, ping = 10, idle_unload = 0;
	bool log = false, strict_model = false, strict = false, no_think = false;
	bool loras_unapplied = false; // adapters are loaded, and have the scale 0
};

[[noreturn]] void give_up(int exit_code, const std::string& message);
void add_serve_options(Command&, ServeArgs&);
std::vector<Section> serve_help();
// The keys of --api-key and --api-key-file. Ends the program if there are none, or bad ones.
std::vector<std::string> api_keys(const ServeArgs&);
std::string api_prefix(const ServeArgs&); // without a slash at its end; ends the program if it is no path
serve::Defaults defaults_of(const ServeArgs&);

} // namespace kvrun
