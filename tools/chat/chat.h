// One chat: a conversation, the session that holds its tokens, and the files it is kept in.
#pragma once
#include "tools/chat/conversation.h"
#include "tools/chat/model.h"
#include "tools/chat/store.h"

namespace kvrun {

class Chat {
 public:
	// terminal: answers go to a terminal, reasoning among them.
	Chat(const ChatArgs&, const ChatModel&, bool terminal);

	// Each throws ChatError and leaves the conversation as it was where it cannot be done. An answer that was cancelled
	// is kept as far as it came; false: it was.
	bool ask(std::string text);
	bool retry(); // the last question again, in place of its answer
	void undo();  // forgets the last question and its answer
	void clear(); // begins a new conversation
	void set_system(const std::string& text);
	void set_thinking(bool on);                             // where the template knows how
	void set_seed(int64_t seed);                            // of the next answer
	void attach(const std::string& path);                   // its text goes in front of the next question
	void change_policy(const std::string& kv, int64_t ctx); // ctx 0: as before
	void save(const std::string& name);                     // empty: the name it has
	void load(const std::string& name);
	void fork(const std::string& name); // goes on under another name; the chat stays as it is under its own
	void close();                       // writes the cache of a chat that has a name
	std::string stats() const;          // lines
	ChatArgs& settings() { return args_; }

 private:
	bool answer(const Conversation& before);
	kvrun_status generate(const std::vector<uint32_t>& prompt, ChatMessage& out);
	std::vector<uint32_t> prompt_tokens(bool answer) const;
	uint32_t keep_common(const std::vector<uint32_t>& prompt);
	bool too_long(size_t prompt) const;
	std::string full_line(size_t prompt) const;
	std::string make_room(size_t prompt);
	void new_session();
	void read_again();
	void restore(const std::string& name);
	void keep();
	void save_cache();
	std::string json() const;
	void take_files(ChatFiles files);

	ChatArgs args_;
	const ChatModel& model_;
	const bool terminal_;
	const bool policy_given_; // by --kv: a saved chat has no say in it
	uint64_t seed_;           // of the first answer
	CancellerHandle canceller_;
	SessionHandle session_;
	Conversation conversation_;
	std::string attached_;           // text for the next question
	std::optional<ChatFiles> files_; // nullopt: kept nowhere
	bool named_ = false;             // by the user; else kLastChat
	bool last_tried_ = false;        // to keep an unnamed chat
	kvrun_generate_result last_ = KVRUN_GENERATE_RESULT_INIT;
	uint64_t answer_tokens_ = 0; // of all answers
	double decode_seconds_ = 0;
};

constexpr const char* kLastChat = "last"; // name under which a terminal's latest unnamed chat is kept

} // namespace kvrun
