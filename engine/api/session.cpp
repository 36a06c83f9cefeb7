// Sessions of the C API.
#include "engine/api/objects.h"
#include "engine/kv_device/fetch.h"
#include "engine/run/session_file.h"

namespace kvrun::api {
namespace {

kvrun_session* add_session(std::shared_ptr<SessionObject> s) { return sessions().add(std::move(s)); }

// Calls `look` with a session that may be in use: a user changes the session only during its turn, and not in a
// callback.
template <class F> void look_at(kvrun_session* session, F&& look) {
	const std::shared_ptr<SessionObject> s = sessions().get(session);
	const SharedTurn turn(s->engine->turn);
	look(*s->session);
}

kvrun_session* restore(kvrun_engine* engine, const char* path, uint32_t checkpoints) {
	check_pointer(path, "path");
	auto s = std::make_shared<SessionObject>(with_sessions(engines().get(engine)));
	{
		std::lock_guard turn(s->engine->turn);
		s->session = restore_session(*s->engine->engine, path, checkpoints);
	}
	return add_session(std::move(s));
}

kvrun_session_info info_of(const Session& s) {
	const KvBytes b = s.kv_bytes();
	kvrun_session_info i = KVRUN_SESSION_INFO_INIT;
	i.n_tokens = s.n_tokens();
	i.ctx = s.ctx();
	i.kv = s.policy_text().c_str();
	i.f16_bytes = b.f16;
	i.code_bytes = b.codes;
	i.param_bytes = b.k_params + b.v_params;
	i.overhead_bytes = b.slack + b.tables + b.live + b.fetch + b.states + b.index;
	i.total_bytes = b.total();
	i.f16_equivalent = s.f16_bytes();
	i.takes_drafts = s.why_one_token().empty();
	return i;
}

kvrun_fetch_info fetch_info_of(const Session& s) {
	kvrun_fetch_info i = KVRUN_FETCH_INFO_INIT;
	const KvFetch* f = s.seq().fetch();
	if (!f) return i;
	const FetchStats& t = f->stats();
	i.fetch = s.plan().policy.fetch;
	i.steps = t.steps;
	i.f16_share = t.steps ? t.share / double(t.steps) : 0;
	i.fetched_bytes = t.bytes;
	i.hidden_seconds = t.hidden_s;
	i.open_seconds = t.open_s;
	i.host_bytes = f->host().bytes();
	i.file_bytes = f->host().file_bytes();
	return i;
}

} // namespace
} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_session_open(kvrun_session** out, kvrun_engine* engine, const kvrun_session_options* options) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		constexpr kvrun_session_options defaults = KVRUN_SESSION_OPTIONS_INIT;
		const kvrun_session_options o = read_options(options, defaults, "kvrun_session_options");
		check_ctx(o.ctx);
		auto s = std::make_shared<SessionObject>(with_sessions(engines().get(engine)));
		SessionOptions so;
		so.kv = parse_policy(o.kv ? o.kv : "fp16");
		so.ctx = o.ctx;
		so.seed = o.seed;
		so.checkpoints = o.checkpoints;
		{
			std::lock_guard turn(s->engine->turn);
			s->session = std::make_unique<Session>(*s->engine->engine, so);
		}
		*out = add_session(std::move(s));
	});
}

void kvrun_session_free(kvrun_session* session) {
	quietly([&] { sessions().take(session); });
}

kvrun_status kvrun_session_fork(kvrun_session** out, kvrun_session* session) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		InUse s(session);
		auto fork = std::make_shared<SessionObject>(s.object()->engine);
		{
			std::lock_guard turn(fork->engine->turn);
			fork->session = s->fork();
		}
		*out = add_session(std::move(fork));
	});
}

kvrun_status kvrun_session_truncate(kvrun_session* session, uint32_t n_tokens) {
	return guard([&] {
		InUse s(session);
		std::lock_guard turn(s.engine().turn);
		s->truncate(n_tokens);
	});
}

kvrun_status kvrun_session_exact_position(kvrun_session* session, uint32_t n_tokens, uint32_t* out) {
	return guard([&] {
		check_pointer(out, "out");
		InUse s(session);
		*out = s->exact_position(n_tokens);
	});
}

kvrun_status kvrun_session_keep_common(kvrun_session* session, const uint32_t* tokens, size_t count,
                                       uint32_t* out_kept) {
	return guard([&] {
		if (count) check_pointer(tokens, "tokens");
		InUse s(session);
		std::lock_guard turn(s.engine().turn);
		const uint32_t kept = s->keep_common({tokens, count});
		if (out_kept) *out_kept = kept;
	});
}

kvrun_status kvrun_session_get_info(kvrun_session* session, kvrun_session_info* out) {
	return guard([&] {
		look_at(session, [&](const Session& s) {
			write_result(out, info_of(s), "kvrun_session_info", offsetof(kvrun_session_info, takes_drafts));
		});
	});
}

kvrun_status kvrun_session_get_fetch_info(kvrun_session* session, kvrun_fetch_info* out) {
	return guard(
	    [&] { look_at(session, [&](const Session& s) { write_result(out, fetch_info_of(s), "kvrun_fetch_info"); }); });
}

kvrun_status kvrun_session_tokens(kvrun_session* session, uint32_t* out, size_t capacity, size_t* out_count) {
	return guard([&] {
		look_at(session, [&](const Session& s) {
			fill_buffer(s.history().data(), s.history().size(), out, capacity, out_count, "tokens");
		});
	});
}

kvrun_status kvrun_session_tiers(kvrun_session* session, uint32_t layer, uint32_t kv_head, uint8_t* out,
                                 size_t capacity, size_t* out_count) {
	return guard([&] {
		const std::shared_ptr<SessionObject> s = sessions().get(session);
		const SharedTurn turn(s->engine->turn); // a user changes the session only during its turn
		const Config& c = s->session->engine().config();
		if (layer >= c.n_layers) refuse(KVRUN_EINVALID, "layer {}: the model has {}", layer, c.n_layers);
		if (const uint32_t n = c.layers[layer].n_kv_heads; kv_head >= n)
			refuse(KVRUN_EINVALID, "kv head {}: the model has {} per layer", kv_head, n);
		const std::vector<uint8_t> tiers = s->session->tiers(layer, kv_head);
		fill_buffer(tiers.data(), tiers.size(), out, capacity, out_count, "tokens");
	});
}

kvrun_status kvrun_session_save(kvrun_session* session, const char* path, const void* note, size_t note_length) {
	return guard([&] {
		check_pointer(path, "path");
		if (note_length) check_pointer(note, "note");
		InUse s(session);
		NewFile file(path, Readers::Owner);
		{
			std::lock_guard turn(s.engine().turn);
			write_session(*s, file, {static_cast<const std::byte*>(note), note_length});
		}
		file.commit(); // waits for the disk outside the turn
	});
}

kvrun_status kvrun_session_restore(kvrun_session** out, kvrun_engine* engine, const char* path) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		*out = restore(engine, path, 0);
	});
}

kvrun_status kvrun_session_restore_with(kvrun_session** out, kvrun_engine* engine, const char* path,
                                        const kvrun_restore_options* options) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		constexpr kvrun_restore_options defaults = KVRUN_RESTORE_OPTIONS_INIT;
		*out = restore(engine, path, read_options(options, defaults, "kvrun_restore_options").checkpoints);
	});
}

kvrun_status kvrun_session_read_note(const char* path, void* out, size_t capacity, size_t* out_length) {
	return guard([&] {
		check_pointer(path, "path");
		const std::vector<std::byte> note = read_session_note(path);
		fill_buffer(note.data(), note.size(), static_cast<std::byte*>(out), capacity, out_length, "bytes");
	});
}
