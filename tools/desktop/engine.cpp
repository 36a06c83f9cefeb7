// The engine on its own thread: takes commands, steps all answers as one batch, reports events.
#include "tools/desktop/engine.h"
#include "tools/api_device.h"
#include "tools/desktop/answers.h"
#include "tools/desktop/state.h"
#include "tools/desktop/words.h"
#include "tools/hub/local.h"
#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <optional>
#include <sys/resource.h>
#include <utility>

namespace kvrun::desktop {
namespace {

// Longest submission to the device, so that a window on the same GPU can draw in between.
constexpr double kSubmitMs = 8;
constexpr double kSaveAfter = 2; // seconds without an answer until a cache is saved
constexpr double kRest = 3600;   // seconds between looks for commands
constexpr int kNice = 5; // niceness of the engine's threads, so that with a software driver frames have priority

Loaded facts_of(const Answers& answers, const std::string& model) {
	const kvrun_engine_info i = engine_info(answers.engine());
	Loaded f;
	f.model = model, f.name = i.name, f.architecture = i.architecture;
	f.device = i.device_name, f.driver = i.device_driver, f.backend = i.backend;
	f.n_layers = i.n_layers, f.n_kv_heads = i.n_kv_heads, f.ctx_train = i.ctx_train;
	f.weight_bytes = i.weight_bytes + i.host_weight_bytes; // as in plans
	f.activation_bytes = i.activation_bytes, f.kv_budget_bytes = i.kv_budget_bytes;
	f.has_template = answers.has_template();
	f.reads_images = i.reads_images, f.reads_audio = i.audio_rate != 0;
	f.templates = template_names(answers.engine());
	return f;
}

using Tell = std::function<void(Event)>;

// The vision encoder of the model's repository; empty: none.
std::string encoder_of(const std::string& model) {
	for (const LocalModel& m : local_models())
		if (m.path == model) return m.encoder;
	return {};
}

EngineHandle open_engine(const Load& load, const std::string& encoder, kvrun_canceller* canceller, Tell& tell) {
	ApiDevice device(load.device);
	if (!std::getenv("KVRUN_SUBMIT_MS")) device.options.submit_ms = kSubmitMs;
	kvrun_engine_options o = KVRUN_ENGINE_OPTIONS_INIT;
	o.model_path = load.model.c_str();
	o.device = &device.options;
	o.mmproj = encoder.empty() ? nullptr : encoder.c_str();
	o.kv_budget_bytes = load.kv_budget;
	o.canceller = canceller;
	o.payload = &tell;
	o.progress = [](double share, double, void* payload) {
		(*static_cast<Tell*>(payload))(Loading{share});
		return 0;
	};
	return created<EngineHandle>(kvrun_engine_open, &o);
}

bool about_file(kvrun_status s) {
	return s == KVRUN_EFORMAT || s == KVRUN_ENOTFOUND || s == KVRUN_EUNSUPPORTED || s == KVRUN_EIO;
}

// Throws StatusError if the file is no model that can be read, by its header.
void check_file(const std::string& model) {
	const ApiDevice cpu("cpu");
	kvrun_plan_options o = KVRUN_PLAN_OPTIONS_INIT;
	o.model_path = model.c_str();
	o.ctx = 1;
	o.memory_bytes = uint64_t(1) << 50; // the device is not asked
	o.device = &cpu.options;
	kvrun_plan plan = KVRUN_PLAN_INIT;
	if (const kvrun_status s = kvrun_plan_memory(&plan, &o); about_file(s)) check_call(s);
}

} // namespace

EngineThread::EngineThread(std::string caches) : caches_(std::move(caches)) {
	kvrun_canceller_new(&loading_);
	thread_ = std::thread([this] { run(); });
}

EngineThread::~EngineThread() {
	{
		std::lock_guard lock(mutex_);
		ending_ = true;
	}
	kvrun_cancel(loading_);
	wake_.notify_all();
	thread_.join();
	kvrun_canceller_free(loading_);
}

void EngineThread::send(Command c) {
	{
		std::lock_guard lock(mutex_);
		commands_.push_back(std::move(c));
	}
	wake_.notify_all();
}

std::vector<Event> EngineThread::take() {
	std::lock_guard lock(events_mutex_);
	return std::exchange(events_, {});
}

std::deque<Command> EngineThread::next_commands(double seconds) {
	std::unique_lock lock(mutex_);
	wake_.wait_for(lock, std::chrono::duration<double>(seconds), [&] { return ending_ || !commands_.empty(); });
	return std::exchange(commands_, {});
}

void EngineThread::run() {
	setpriority(PRIO_PROCESS, 0, kNice); // of this thread and those it starts
	Tell tell = [this](Event e) {
		std::lock_guard lock(events_mutex_);
		events_.push_back(std::move(e));
	};
	const SavedCaches files(caches_);
	std::unique_ptr<Answers> answers;
	std::optional<Load> loaded; // what `answers` has
	const auto open = [&](const Load& l) {
		std::string encoder = l.encoder.empty() ? encoder_of(l.model) : l.encoder, no_images;
		EngineHandle engine;
		try {
			engine = open_engine(l, encoder, loading_, tell);
		} catch (const StatusError& e) {
			const bool may_be_encoder = e.status == KVRUN_EUNSUPPORTED || e.status == KVRUN_EFORMAT ||
			                            e.status == KVRUN_ENOTFOUND || e.status == KVRUN_ENOMEM;
			if (encoder.empty() || !may_be_encoder) throw;
			engine = open_engine(l, "", loading_, tell); // throws if the model was the reason
			no_images = e.what();
		}
		answers = std::make_unique<Answers>(std::move(engine), l.chat_template, files, tell);
		loaded = l;
		Loaded facts = facts_of(*answers, l.model);
		facts.no_images = std::move(no_images);
		tell(std::move(facts));
	};
	const auto load = [&](const Load& l) {
		LoadFailed failed;
		failed.model = l.model;
		const std::optional<Load> before = loaded;
		try {
			check_file(l.model); // the current model is given up only for one that can be read
			answers.reset();     // frees its memory before the next engine needs it
			loaded.reset();
			return open(l);
		} catch (const StatusError& e) {
			failed.text = advice(e.status, e.what());
			failed.bad_file = about_file(e.status);
		} catch (const std::exception& e) { failed.text = window_words(e.what()); }
		if (!loaded) answers.reset();
		failed.kept = loaded.has_value();
		failed.back = before ? before->model : "";
		tell(failed);
		if (!before || failed.kept) return;
		try {
			open(*before);
		} catch (const std::exception& e) {
			answers.reset(), loaded.reset();
			tell(LoadFailed{window_words(e.what()), before->model});
		}
	};
	const auto refuse = [&](const Answer& a) {
		Ended e;
		e.conversation = a.conversation, e.message = a.message;
		e.status = KVRUN_EINVALID, e.error = "no model is loaded", e.no_model = true;
		tell(std::move(e));
	};
	for (;;) {
		const bool busy = answers && answers->busy(), unsaved = answers && answers->unsaved();
		std::deque<Command> commands = next_commands(busy ? 0 : unsaved ? kSaveAfter : kRest);
		if (!busy && unsaved && commands.empty()) answers->save_one();
		for (Command& c : commands) {
			if (const auto* l = std::get_if<Load>(&c)) load(*l);
			if (std::get_if<Unload>(&c)) answers.reset(), loaded.reset();
			if (const auto* a = std::get_if<Answer>(&c)) answers ? answers->begin(*a) : refuse(*a);
			if (const auto* f = std::get_if<Forget>(&c)) files.remove(f->conversation);
			if (!answers) continue;
			if (const auto* s = std::get_if<Stop>(&c)) answers->stop(s->conversation);
			if (const auto* f = std::get_if<Forget>(&c)) answers->forget(f->conversation);
			if (const auto* w = std::get_if<Watch>(&c)) answers->watch(*w);
		}
		{
			std::lock_guard lock(mutex_);
			if (ending_) return;
		}
		try {
			if (answers && answers->busy()) answers->step();
		} catch (const StatusError& e) { // the device is lost: the engine cannot continue
			answers.reset();
			const std::string model = loaded ? loaded->model : "";
			loaded.reset();
			tell(LoadFailed{advice(e.status, e.what()), model});
		}
	}
}

} // namespace kvrun::desktop
