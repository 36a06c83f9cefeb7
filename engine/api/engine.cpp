// Engines of the C API: opening, information about the model, tokens.
#include "backends/split_devices.h"
#include "engine/api/objects.h"
#include "engine/api/weight_options.h"
#include "engine/core/limits.h"
#include "models/draft_file.h"
#include "models/text_encoder.h"

namespace kvrun::api {

void check_ctx(uint32_t ctx) {
	if (ctx > kMaxContext) refuse(KVRUN_EINVALID, "ctx is {}, expected 0 to {}", ctx, kMaxContext);
}

void check_ubatch(uint32_t ubatch) {
	if (ubatch < 1 || ubatch > kMaxUbatch) refuse(KVRUN_EINVALID, "ubatch is {}, expected 1 to {}", ubatch, kMaxUbatch);
}

namespace {

// A metadata value as text; of an array its type and length.
std::string metadata_text(const GgufEntry& e) {
	const auto number = [&]<class T>(T x) {
		std::memcpy(&x, e.bytes.data(), sizeof(T));
		return fmt::format("{}", x);
	};
	switch (e.type) {
	case GgufType::U8: return number(uint8_t());
	case GgufType::I8: return number(int8_t());
	case GgufType::U16: return number(uint16_t());
	case GgufType::I16: return number(int16_t());
	case GgufType::U32: return number(uint32_t());
	case GgufType::I32: return number(int32_t());
	case GgufType::U64: return number(uint64_t());
	case GgufType::I64: return number(int64_t());
	case GgufType::F32: return number(float());
	case GgufType::F64: return number(double());
	case GgufType::Bool: return e.bytes[0] == std::byte(0) ? "false" : "true";
	case GgufType::String: return {reinterpret_cast<const char*>(e.bytes.data()), e.bytes.size()};
	case GgufType::Array: break;
	}
	return fmt::format("[{} x {}]", gguf_type_name(e.element), e.count);
}

// Progress and canceller of loading. To stop, the callback throws through the loader.
LoadProgress load_progress(const kvrun_engine_options& o) {
	const auto start = std::chrono::steady_clock::now();
	return [o, start](uint64_t done, uint64_t total) {
		if (kvrun_canceller_is_set(o.canceller)) refuse(KVRUN_ECANCELLED, "loading was cancelled");
		if (!o.progress) return;
		const double share = total ? double(done) / double(total) : 1;
		const double spent = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
		const double left = share > 0 ? spent * (1 - share) / share : 0;
		if (o.progress(share, left, o.payload)) refuse(KVRUN_EUSER, "a callback stopped loading");
	};
}

std::unique_ptr<DraftModel> open_draft_model(const kvrun_engine_options& o, const EngineOptions& target) {
	EngineOptions e;
	e.model = o.draft_model;
	e.backend = first_device(target.backend);
	e.ubatch = target.ubatch;
	e.max_rows = DraftModel::kRows;
	return std::make_unique<DraftModel>(e, open_model(target.model).tokenizer, /*ctx=*/0, load_progress(o));
}

std::shared_ptr<EngineObject> open_engine(const kvrun_engine_options* given) {
	constexpr kvrun_engine_options defaults = KVRUN_ENGINE_OPTIONS_INIT;
	const kvrun_engine_options o =
	    read_options(given, defaults, "kvrun_engine_options", offsetof(kvrun_engine_options, log));
	check_pointer(o.model_path, "model_path");
	check_ubatch(o.ubatch);
	EngineOptions e;
	e.model = o.model_path;
	e.encoders = true;
	e.loras = parse_loras(text_or_empty(o.loras));
	e.mmproj = text_or_empty(o.mmproj);
	e.image_rows = {o.image_min_tokens, o.image_max_tokens};
	e.backend = backend_options(o.device);
	e.ubatch = o.ubatch;
	e.prefill_block = o.prefill_block;
	e.max_rows = o.max_rows;
	e.kv_budget = o.kv_budget_bytes;
	const kvrun_weight_options weights = read_weight_options(o.weights);
	check_ctx(weights.ctx);
	e.weights = placement_of(weights), e.fit_ctx = weights.ctx;
	e.fit_kv = parse_policies(weights.kv ? weights.kv : "fp16");
	auto object = std::make_shared<EngineObject>();
	if (o.log) object->log.sink = log_sink(o.log, o.log_payload), object->log.most_level = o.log_level;
	const LogScope scope(object->log);
	if (kvrun_canceller_is_set(o.canceller)) refuse(KVRUN_ECANCELLED, "loading was cancelled");
	e.mtp = o.draft_model && o.draft_model == std::string_view(KVRUN_DRAFT_MTP);
	const bool small = o.draft_model && !e.mtp;
	if (small && draft_kind(Gguf::open(o.draft_model)) != DraftKind::None)
		e.draft_file = o.draft_model;
	else if (small)
		object->draft_model = open_draft_model(o, e); // first: the model gets the remaining memory
	object->engine = Engine::open(e, load_progress(o));
	object->device = object->engine->backend().info();
	for (const GgufEntry& m : object->engine->file().entries()) object->metadata.emplace_back(m.key, metadata_text(m));
	return object;
}

} // namespace
} // namespace kvrun::api

using namespace kvrun;
using namespace kvrun::api;

kvrun_status kvrun_engine_open(kvrun_engine** out, const kvrun_engine_options* options) {
	if (out) *out = nullptr;
	return guard([&] {
		check_pointer(out, "out");
		check_pointer(options, "options");
		*out = engines().add(open_engine(options));
	});
}

void kvrun_engine_free(kvrun_engine* engine) {
	quietly([&] { engines().take(engine); });
}

kvrun_status kvrun_engine_get_info(kvrun_engine* engine, kvrun_engine_info* out) {
	return guard([&] {
		const auto object = engines().get(engine);
		Engine& e = *object->engine;
		const Config& c = e.config();
		const Tokenizer& t = e.tokenizer();
		kvrun_engine_info i = KVRUN_ENGINE_INFO_INIT;
		i.vocab = c.vocab;
		i.n_layers = c.n_layers;
		i.n_heads = c.n_heads;
		i.n_kv_heads = c.n_kv_heads;
		i.head_dim = c.head_dim;
		i.dim = c.dim;
		i.ctx_train = c.max_seq;
		i.bos = t.bos().value_or(KVRUN_NO_TOKEN);
		i.eos = t.eos().value_or(KVRUN_NO_TOKEN);
		i.adds_bos = t.adds_bos();
		i.has_chat_template = !t.chat_template().empty();
		i.architecture = c.arch.c_str();
		i.name = c.name.c_str();
		i.device_name = object->device.name.c_str();
		i.device_driver = object->device.driver.c_str();
		i.backend = e.backend().name();
		i.reads_images = e.images() && e.images()->reads_images();
		i.audio_rate = e.images() && e.images()->reads_audio() ? kSampleRate : 0;
		i.weight_bytes = e.weight_bytes() - e.host_weight_bytes();
		i.host_weight_bytes = e.host_weight_bytes();
		i.weights = e.weights_text().c_str();
		i.max_rows = e.max_rows();
		i.device_is_cpu = object->device.is_cpu;
		const SharedTurn turn(object->turn);
		i.activation_bytes = e.activation_bytes();
		i.encodes = c.encodes;
		i.vector_dim = vector_dim(c);
		i.n_scores = c.text_head.labels;
		for (const GgufTensor& tensor : e.file().tensors()) i.n_params += tensor.rows() * tensor.cols();
		i.tensor_bytes = e.file().tensor_bytes();
		if (!c.encodes) i.kv_budget_bytes = e.pool().budget_bytes(), i.kv_used_bytes = e.pool().used_bytes();
		write_result(out, i, "kvrun_engine_info", offsetof(kvrun_engine_info, host_weight_bytes));
	});
}

kvrun_status kvrun_engine_set_host_memory(kvrun_engine* engine, const kvrun_host_memory_options* options) {
	return guard([&] {
		constexpr kvrun_host_memory_options defaults = KVRUN_HOST_MEMORY_OPTIONS_INIT;
		const kvrun_host_memory_options o = read_options(options, defaults, "kvrun_host_memory_options");
		const auto object = engines().get(engine);
		std::lock_guard turn(object->turn);
		if (object->engine->text_encoder()) return; // it has no caches
		HostPool& host = object->engine->pool().host();
		host.set_offload(text_or_empty(o.offload_dir));
		host.set_budget(o.budget_bytes);
	});
}

kvrun_status kvrun_engine_set_lora_scales(kvrun_engine* engine, const float* scales, size_t count) {
	return guard([&] {
		if (count) check_pointer(scales, "scales");
		const auto object = engines().get(engine);
		std::lock_guard turn(object->turn);
		object->engine->set_lora_scales({scales, count});
	});
}

size_t kvrun_metadata_count(kvrun_engine* engine) {
	size_t n = 0;
	quietly([&] { n = engines().get(engine)->metadata.size(); });
	return n;
}

kvrun_status kvrun_metadata_get(kvrun_engine* engine, size_t index, const char** out_key, const char** out_value) {
	return guard([&] {
		const auto e = engines().get(engine);
		if (index >= e->metadata.size())
			refuse(KVRUN_EINVALID, "entry {} of {} in the metadata", index, e->metadata.size());
		check_pointer(out_key, "out_key");
		check_pointer(out_value, "out_value");
		*out_key = e->metadata[index].first.c_str();
		*out_value = e->metadata[index].second.c_str();
	});
}

// ---- tokens: no device is used, so threads need not take turns

kvrun_status kvrun_tokenize(kvrun_engine* engine, const char* text, size_t length, uint32_t flags, uint32_t* out,
                            size_t capacity, size_t* out_count) {
	return guard([&] {
		const auto e = engines().get(engine);
		if (length) check_pointer(text, "text");
		const EncodeOptions o = {.bos = !(flags & KVRUN_TOKENS_NO_BOS),
		                         .eos = (flags & KVRUN_TOKENS_END) != 0,
		                         .special = (flags & KVRUN_TOKENS_SPECIAL) != 0};
		const std::vector<uint32_t> tokens = e->engine->tokenizer().encode({text ? text : "", length}, o);
		fill_buffer(tokens.data(), tokens.size(), out, capacity, out_count, "tokens");
	});
}

kvrun_status kvrun_detokenize(kvrun_engine* engine, const uint32_t* tokens, size_t count, uint32_t flags, char* out,
                              size_t capacity, size_t* out_length) {
	return guard([&] {
		const auto e = engines().get(engine);
		if (count) check_pointer(tokens, "tokens");
		const bool special = flags & KVRUN_TOKENS_SPECIAL;
		std::vector<uint32_t> ids(tokens, tokens + count);
		if (e->engine->images()) std::erase_if(ids, is_image_row);
		fill_text(e->engine->tokenizer().decode(ids, special), out, capacity, out_length);
	});
}
