// A model on a device: opened once, used by any number of sessions.
#include "engine/run/engine.h"
#include "backends/split_devices.h"
#include "engine/run/draft_assistant.h"
#include "engine/run/draft_kinds.h"
#include "engine/run/draft_model.h"
#include "engine/run/tuning_file.h"
#include "models/draft_file.h"
#include "models/fingerprint.h"
#include "models/prediction.h"
#include <algorithm>
#include <cmath>
#include <limits>

namespace kvrun {
namespace {

constexpr size_t kKeptPromptBytes = 64 << 20; // prompt memory up to this size is kept for the next prompt

// K (and V) of a block is one view; all memory of a block is at most an eighth of what is free.
uint32_t longest_block(const DeviceInfo& dev, const Config& cfg, const CacheLayers& layers, uint32_t asked) {
	const size_t token_bytes = size_t(widest(cfg).kv) * 2; // f16 K (or V) of one layer
	const size_t row_bytes = PromptMemory::row_bytes(cfg, layers);
	// every device of a split has the memory of a prompt
	const size_t rows = dev.free_bytes / dev.parts / 8 / row_bytes;
	size_t most = std::min(dev.max_view_bytes / token_bytes, std::max<size_t>(rows, 1));
	if (asked) most = std::min<size_t>(most, asked);
	return uint32_t(std::clamp<size_t>(most, 1, UINT32_MAX / 2));
}

} // namespace

void fail_encoder(std::string_view model) {
	fail(Code::Unsupported,
	     "{}: encodes texts and generates none; kvrun embed, or /v1/embeddings of kvrun serve, makes vectors of them",
	     model);
}

std::unique_ptr<Engine> Engine::open(const EngineOptions& opt, const LoadProgress& progress) {
	if (opt.max_rows < 1 || opt.max_rows > LayerRunner::kLogitRows)
		fail(Code::Invalid, "{} sequences in a decode step, 1 to {} are possible", opt.max_rows,
		     LayerRunner::kLogitRows);
	Model model = open_model(opt.model);
	model.file.set_cache_folder(opt.backend.cache_dir);
	const uint32_t n_layers = model.config.n_layers;
	if (model.config.encodes && !opt.encoders) fail_encoder(model.file.name());
	if (const bool drafts = opt.mtp || !opt.draft_file.empty(); model.config.encodes && (drafts || !opt.mmproj.empty()))
		fail(Code::Unsupported, "{}: encodes texts; leave {} out", model.file.name(), drafts ? "--draft" : "--mmproj");
	std::optional<Config> drafting;
	if (opt.mtp) drafting = read_prediction(model.file, model.config);
	std::optional<Gguf> draft_file;
	std::optional<Config> assistant;
	if (!opt.draft_file.empty()) {
		draft_file = Gguf::open(opt.draft_file);
		(draft_kind(*draft_file) == DraftKind::Assistant ? assistant : drafting) =
		    read_draft_file(*draft_file, model.config);
		check_same_vocabulary(Tokenizer(*draft_file), model.tokenizer, opt.draft_file);
	}
	std::vector<LoraFile> lora_files = open_loras(opt.loras, model.file, model.config);
	std::optional<Gguf> encoder_file;
	EncoderConfigs encoders;
	if (!opt.mmproj.empty()) {
		encoder_file = Gguf::open(opt.mmproj);
		encoders = read_encoders(*encoder_file, model.config, opt.image_rows);
	}
	FitGoal goal{opt.fit_kv, opt.fit_ctx, opt.kv_budget, opt.ubatch};
	OpenedDevices devices =
	    open_devices(opt.backend, n_layers, fit_bytes(model.file, model.config, goal) / std::max(n_layers, 1u));
	std::unique_ptr<Engine> e(new Engine(std::move(model), std::move(devices.backend)));
	e->lora_files_ = std::move(lora_files);
	for (const LoraFile& f : e->lora_files_) e->lora_scales_.push_back(f.scale);
	const Config& cfg = e->config();
	DeviceInfo empty = e->backend_->info();
	empty.free_bytes -= std::min<uint64_t>(lora_bytes(e->lora_files_, cfg), empty.free_bytes);
	const uint64_t image_bytes = encoding_bytes(encoders);
	if (encoder_file)
		empty.free_bytes -= std::min<uint64_t>(encoder_file->tensor_bytes() + image_bytes, empty.free_bytes);
	if (cfg.encodes && empty.parts > 1)
		fail(Code::Unsupported, "{}: encodes texts; kvrun runs such models on one device, choose one",
		     e->file().name());
	if (cfg.rounds > 1 && empty.parts > 1)
		fail(Code::Unsupported, "{}: repeats its layers {} times; kvrun runs such models on one device, choose one",
		     e->file().name(), cfg.rounds);
	if (cfg.layers[0].latent.out_groups) {
		const char* refused = empty.parts > 1         ? "several devices; choose one"
		                      : opt.mtp || draft_file ? "--draft; leave it out"
		                                              : nullptr;
		if (refused) fail(Code::Unsupported, "{}: kvrun does not run {} with {}", e->file().name(), cfg.arch, refused);
	}
	const Gguf& drafts_from = draft_file ? *draft_file : e->file();
	if (const std::optional<Config>& drafts = drafting ? drafting : assistant) {
		if (empty.parts > 1)
			fail(Code::Unsupported, "--draft {} runs on one device; leave --split out",
			     draft_file ? opt.draft_file : "mtp");
		empty.free_bytes -= std::min<uint64_t>(kvrun::weight_bytes(drafts_from, *drafts), empty.free_bytes);
	}
	goal.bus = devices.rates.bus;
	goal.bandwidth = devices.rates.device > 0 ? devices.rates.device : empty.peak_bytes_per_s;
	const auto place = [&] {
		e->weights_trade_.clear();
		e->weight_plan_ = place_weights(
		    e->file(), cfg, [&](DType t, uint32_t cols) { return e->backend_->weight_row_bytes(t, cols); }, opt.weights,
		    goal, room_of(empty), &e->weights_trade_);
	};
	place();
	if (e->weight_plan_->host_bytes() && empty.parts == 1) { // then rates matter
		const ReadRates rates = read_rates(*e->backend_, find_device(opt.backend), opt.backend);
		goal.bus = rates.bus;
		if (rates.device > 0) goal.bandwidth = rates.device;
		if (std::ranges::any_of(goal.kv, is_auto)) place();
	}
	e->weights_text_ = std::move(devices.text);
	for (const std::string& text :
	     {kvrun::weights_text(*e->weight_plan_, empty.name), rate_text(*e->weight_plan_, goal.bus, goal.bandwidth)})
		if (!text.empty()) e->weights_text_.append(e->weights_text_.empty() ? "" : "; ").append(text);
	if (e->weight_plan_->ring().slots && !opt.backend.transfers) { // the copies of prompts need that queue
		BackendOptions with_queue = opt.backend;
		with_queue.transfers = true, with_queue.split = devices.split;
		e->backend_.reset();
		e->backend_ = open_devices(with_queue, n_layers).backend;
	}
	Backend& be = *e->backend_;
	e->weights_ = load_weights(e->file(), cfg, be, progress, e->weight_plan_->in_host());
	e->loras_ = load_loras(e->lora_files_, cfg, e->weights_, be);
	if (cfg.encodes) {
		e->text_encoder_ = std::make_unique<TextEncoder>(be, cfg, e->weights_, &e->loras_);
		return e;
	}
	const float scale = encoders.vision && encoders.vision->projector->scaled ? cfg.embedding_scale : 1;
	std::unique_ptr<ImageEncoder> images;
	if (encoders.vision) images = std::make_unique<ImageEncoder>(be, *encoder_file, std::move(*encoders.vision));
	std::unique_ptr<AudioEncoder> sounds;
	if (encoders.audio) sounds = std::make_unique<AudioEncoder>(be, *encoder_file, std::move(*encoders.audio));
	if (encoder_file) // other limits make other rows, so other ids
		e->images_ = std::make_unique<ImageStore>(std::move(images), std::move(sounds), e->tokenizer(),
		                                          kvrun::fingerprint(*encoder_file) ^ opt.image_rows.bits(), scale);
	e->ring_ = std::make_unique<WeightRing>(be, cfg, e->weights_, e->weight_plan_->ring());
	std::unique_ptr<DraftLayers> layers;
	if (drafting) layers = make_draft_layers(be, drafts_from, std::move(*drafting), e->weights_);
	if (assistant) e->assistant_ = std::make_unique<Assistant>(be, drafts_from, std::move(*assistant));

	const DeviceInfo dev = be.info();
	std::vector<uint32_t> parts = e->cache_layers_.model_layers(cfg); // by layer of the pool
	for (uint32_t& l : parts) l = be.part_of(l);
	const uint32_t pool_layers = uint32_t(parts.size());
	size_t budget =
	    opt.kv_budget ? opt.kv_budget : cache_room(dev.free_bytes - std::min<uint64_t>(image_bytes, dev.free_bytes));
	if (layers) { // their caches, in f16, get as much as other layers'
		const size_t share = budget / (pool_layers + layers->config().n_layers) * layers->config().n_layers;
		if (!opt.kv_budget) budget -= share;
		layers->prepare(share);
		e->state_drafts_ = std::make_unique<StateDrafts>(std::move(layers));
	}
	e->pool_ = std::make_unique<KvPool>(be, pool_layers, budget, std::move(parts));
	e->pool_->host().set_budget(opt.host_budget);
	e->pool_->host().set_offload(opt.offload_dir);
	e->ubatch_ = std::clamp(opt.ubatch, 1u, std::max(cfg.max_seq, 1u));
	e->latent_form_ = opt.latent_form;
	e->prefill_block_ = longest_block(dev, cfg, e->cache_layers_, opt.prefill_block);
	e->runner_ =
	    std::make_unique<LayerRunner>(be, cfg, e->weights_, std::max(e->ubatch_, 2 * opt.max_rows), &e->loras_);
	e->decoder_ = std::make_unique<Decoder>(*e->runner_, e->cache_layers_, e->scratch_, e->window_scratch_,
	                                        e->index_scratch_, e->entry_scratch_, opt.max_rows, e->ngram_table());
	e->decoder_->read_states_at(e->state_layers());
	if (e->assistant_) {
		e->assistant_->prepare(*e);
		e->assistant_drafts_ = std::make_unique<AssistantDrafts>(*e->assistant_);
	}
	return e;
}

Engine::Engine(Model m, std::unique_ptr<Backend> b)
    : backend_(std::move(b)), model_(std::move(m)), cache_layers_(model_.config) {
	if (config().ngrams.longest) ngram_table_.emplace(file(), config());
}

Engine::~Engine() = default;

std::vector<uint32_t> Engine::state_layers() const {
	return state_drafts_ ? state_drafts_->layers().state_layers() : std::vector{config().n_layers};
}

std::unique_ptr<Drafter> Engine::drafter(Session& s) {
	if (assistant_) return assistant_drafts_->drafter(s);
	return state_drafts_ ? state_drafts_->drafter() : nullptr;
}

void Engine::check_scales() const {
	if (std::ranges::any_of(lora_scales_, [](float s) { return std::isnan(s); }))
		fail(Code::Invalid, "the scales of the adapters could not be written; set them again");
}

void Engine::set_lora_scales(std::span<const float> scales) {
	if (scales.size() != lora_files_.size())
		fail(Code::Invalid, "{} scales for {} adapters", scales.size(), lora_files_.size());
	for (const float s : scales)
		if (!std::isfinite(s)) fail(Code::Invalid, "the scale of an adapter is not finite");
	if (std::ranges::equal(scales, lora_scales_)) return;
	std::ranges::fill(lora_scales_, std::numeric_limits<float>::quiet_NaN()); // until all are written
	for (size_t i = 0; i < scales.size(); ++i) lora_files_[i].scale = scales[i];
	write_scales(lora_files_, config(), loras_, backend());
	lora_scales_.assign(scales.begin(), scales.end());
}

size_t Engine::activation_bytes() const {
	size_t entries = 0;
	for (const KvScratch& s : entry_scratch_) entries += s.bytes();
	if (text_encoder_) return loras_.bytes;
	return loras_.bytes + (images_ ? images_->weight_bytes() : 0) +
	       (state_drafts_ ? state_drafts_->layers().bytes() : 0) + (assistant_ ? assistant_->bytes() : 0) +
	       ring_->bytes() + runner_->bytes() + decoder_->bytes() + scratch_.bytes() + window_scratch_.bytes() +
	       entries + index_scratch_.bytes() + (spare_ ? spare_->bytes() : 0);
}

std::unique_ptr<PromptMemory> Engine::take_prompt_memory() {
	if (spare_) return std::move(spare_);
	return std::make_unique<PromptMemory>(*backend_, config(), cache_layers_);
}

void Engine::give_prompt_memory(std::unique_ptr<PromptMemory> m) noexcept {
	if (m && m->bytes() <= kKeptPromptBytes && (!spare_ || spare_->bytes() < m->bytes())) spare_ = std::move(m);
}

std::shared_ptr<const grammar::TokenTrie> Engine::token_trie() const {
	std::call_once(trie_made_, [this] { trie_ = std::make_shared<grammar::TokenTrie>(tokenizer()); });
	return trie_;
}

} // namespace kvrun
