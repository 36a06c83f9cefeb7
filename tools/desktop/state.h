// The app's state and the user's actions on it, without a window: conversations, settings, state of the engine.
#pragma once
#include "tools/desktop/conversation.h"
#include "tools/desktop/protocol.h"
#include <functional>
#include <map>
#include <optional>

namespace kvrun::desktop {

struct Settings {
	std::string device;        // as for --device; empty: the best
	std::string kv = "fp16";   // policy of new conversations
	uint32_t ctx = 0;          // tokens; 0: what fits
	std::string system;        // instructions for the model; empty: none
	std::string chat_template; // name or file; empty: the model's own
	Sampling sampling;
	double scale = 0;                            // of text and widgets; 0: the desktop's
	std::string theme = "system";                // or "light", "dark"
	bool expert = false;                         // show settings that need knowledge of the engine
	bool show_cache = false;                     // show the cache of the conversation, token by token
	std::vector<std::string> recent;             // models by path, the latest first
	std::map<std::string, std::string> encoders; // vision encoders that the user gave, by model
};
std::string to_json(const Settings&);
// `to` with the fields in which `after` differs from `before`.
Settings with_changes(Settings to, const Settings& before, const Settings& after);
Settings settings_from_json(std::string_view json, const std::string& file); // throws StatusError

enum class EnginePhase { Off, Loading, Ready, Failed };

struct Memory {       // of a conversation
	std::string kv;   // policy
	uint32_t ctx = 0; // tokens; 0: what fits
};

struct Live {                             // of a conversation, since the program began
	int answering = kNone;                // active answer
	double read_share = 1, read_left = 0; // read share of its prompt, seconds left
	double begun = 0;                     // clock at its first piece
	uint32_t pieces = 0;                  // about the number of tokens
	double tokens_per_second = 0;         // of the active or the last answer
	CacheView cache;
	int before = kNone;           // message that was shown last when the active answer began
	int edited = kNone;           // question that its question is another version of
	bool beside = false;          // it is another answer, or one to an edited question
	std::optional<Memory> memory; // to be used once it has ended
};

struct Draft { // what is typed in a conversation and not sent yet
	std::string text;
	std::vector<std::string> images; // names of files
	int edited = kNone;              // question that is being edited
	std::string edit_text;
};

class State {
 public:
	// send: passes a command to the engine. changed: the conversation must be saved, or its file removed if it no
	// longer exists; an empty id: the settings must be saved.
	std::function<void(Command)> send = [](Command) {};
	std::function<void(const std::string& id)> changed = [](const std::string&) {};
	std::function<double()> clock = [] { return 0.; };    // seconds
	std::function<int64_t()> calendar = [] { return 0; }; // milliseconds since 1970

	// ---- what the user does
	void load(const std::string& model);         // a model that was loaded becomes the first of the recent ones
	void unload();                               // frees its memory; the next question loads it again
	void offer(const std::string& model);        // loads it if no model is in use, else asks by `offered`
	void forget_model(const std::string& model); // removes it from the recent models
	void use_encoder(const std::string& file);   // a vision encoder for the current model, which is loaded again
	Conversation& create();                      // a new conversation becomes current, or one without messages
	void select(const std::string& id);          // no effect if it does not exist
	void select_next(int step);                  // in the list, wrapping at its ends
	void rename(const std::string& id, const std::string& title);
	void remove(const std::string& id);
	void fork(const std::string& id); // copies the shown branch; the copy becomes current
	// In the current conversation; without a model the last one is loaded. false: refused, `problem` says why. If
	// another answer fails before its first word, the one before it is shown again.
	bool ask(const std::string& text, const std::vector<std::string>& images = {});
	bool retry(int message);                         // another answer beside this one
	bool edit(int message, const std::string& text); // another question beside this one
	bool go_on(int message);                         // continues an answer that was cut
	void show(int message);                          // shows the branch through it
	void stop();                                     // stops the answer of the current conversation
	// Applies the fields in which `after` differs from `before`. Memory and length also hold for the current
	// conversation, from the end of its answer on.
	void apply(const Settings& before, const Settings& after);
	void apply(const Settings& s) { apply(Settings(settings), s); }
	void pass_hint(); // removes a problem that is none any more: an answer is under way
	void watch(uint32_t layer, uint32_t kv_head);

	// ---- what the engine says
	void take(const Event&);

	// ---- looking at it
	Conversation* find(const std::string& id);
	const Conversation* find(const std::string& id) const { return const_cast<State*>(this)->find(id); }
	Conversation* current() { return find(current_id); }
	const Conversation* current() const { return find(current_id); }
	const Live& live(const std::string& id) const;
	bool answering(const std::string& id) const { return live(id).answering != kNone; }
	size_t n_answering() const;
	std::string last_model() const; // that was used and still exists; empty: none
	const Draft& draft(const std::string& id) const;
	std::string dump() const; // everything as JSON, for tests

	std::vector<Conversation> conversations; // the newest first
	std::string current_id;
	Settings settings;
	std::string model; // path
	EnginePhase phase = EnginePhase::Off;
	double load_share = 0;
	Loaded facts;                        // valid in phase Ready
	std::string images_folder;           // of Message::images
	std::string problem;                 // last error, with advice; empty: none
	std::string offered;                 // path of a model that waits for the user's word; empty: none
	std::map<std::string, Draft> drafts; // by conversation; "": without one
	uint32_t watched_layer = 0, watched_head = 0;

	void adopt(std::vector<Conversation>); // saved conversations, at the start

 private:
	bool have_model(); // loads the last one if there is none; false: there is none to load
	void begin_answer(Conversation&, int question, const Live& before);
	void start(Conversation&, int answer, int last_message, const Live& before, bool goes_on);
	void end_answer(const Ended&);
	void take_back(Conversation&, int answer);
	bool loads_another(const std::string& path) const;
	void fail_load(const LoadFailed&);
	void change_memory(Conversation&, const Memory&);
	void bring_first(const std::string& id);
	std::string new_id() const;
	std::map<std::string, Live> live_;
};

// An error of the library with advice for this program.
std::string advice(kvrun_status, const std::string& text);

} // namespace kvrun::desktop
