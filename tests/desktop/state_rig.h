// A state of the desktop app whose commands are kept, for tests.
#pragma once
#include "tools/desktop/state.h"
#include <doctest/doctest.h>
#include <functional>
#include <unistd.h>

namespace kvrun::desktop {

inline const std::string kModel = KVRUN_SOURCE_DIR "/models/bundled/recall-4m-f16.gguf";

struct Rig { // a state whose commands are kept, with a model that is ready
	Rig() {
		state.send = [this](kvrun::desktop::Command c) { sent.push_back(std::move(c)); };
		state.changed = [this](const std::string& id) { changed.push_back(id); };
		state.calendar = [this] { return ++now; };
		state.phase = EnginePhase::Ready;
	}
	template <class T> const T* last() const { return sent.empty() ? nullptr : std::get_if<T>(&sent.back()); }
	void answer(const std::string& text, kvrun_status status = KVRUN_OK, const std::string& error = "") {
		const auto* a = last<Answer>();
		REQUIRE(a);
		const std::string id = a->conversation;
		const int m = a->message;
		state.take(Piece{id, m, text, ""});
		Ended e;
		e.conversation = id, e.message = m, e.status = status, e.error = error;
		state.take(e);
	}
	void loaded() { // the model of the last command is ready
		Loaded e;
		e.model = last<Load>()->model;
		state.take(e);
	}
	std::string shown() const { // texts of the current branch
		std::string out;
		for (const int m : state.current()->branch()) out += state.current()->messages[size_t(m)].text + "|";
		return out;
	}
	int64_t now = 1000;
	State state;
	std::vector<kvrun::desktop::Command> sent;
	std::vector<std::string> changed;
};

inline void wait_for(const std::function<bool()>& done) {
	for (int i = 0; i < 6000 && !done(); ++i) usleep(10000);
	REQUIRE(done());
}

} // namespace kvrun::desktop
