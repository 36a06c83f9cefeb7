// One chat: a conversation, the session that holds its tokens, and the files it is kept in.
#pragma once
#include "tools/chat/conversation.h"
#include "tools/chat/model.h"
#include "tools/chat/store.h"

namespace kvrun {

class Chat {
 public:
	// terminal: answers and their reasoning are printed to a terminal.
	Chat(const ChatArgs&, const ChatModel&, bool terminal);

	// Each throws StatusError on failure and then leaves the conversation unchanged. An answer that was cancelled
	// is kept as far as it was generated; the functions then return false. So is one that could not be printed or
	// saved, or in which the device failed, which throws.
	bool ask(std::string text);
	bool retry(); // asks the last question again and replaces its answer
	void undo();  // removes the last question and its answer
	void clear(); // begins a new conversation
	void set_system(const std::string& text);
	void begin_with(const std::string& system);             // --system of a saved chat: set if it has no messages yet
	void set_thinking(bool on);                             // if the template supports it
	void set_seed(int64_t seed);                            // seed of the next answer
	void attach(const std::string& path);                   // puts the file's text in front of the next question
	void attach(MediaKind, const std::string& path);        // likewise; the model must read images, or sounds
	void change_policy(const std::string& kv, int64_t ctx); // ctx 0: unchanged
	void save(const std::string& name);                     // empty: keeps its current name
	void load(const std::string& name);
	void remove(const std::string& name); // deletes the files of another chat
	void fork(const std::string& name);   // continues under another name; the chat stays saved under the old one
	void close();                         // writes the files of a chat that has a name
	std::string stats() const;            // lines
	ChatArgs& settings() { return args_; }

 private:
	struct Attached { // goes in front of the next question
		std::string text;
		std::vector<ChatMedia> media;
		bool empty() const { return text.empty() && media.empty(); }
	};
	struct Before { // what a question that is taken back leaves
		Conversation conversation;
		Attached attached;
	};
	Before now() const { return {conversation_, attached_}; }
	void go_back(const Before& b) { conversation_ = b.conversation, attached_ = b.attached; }
	bool answer(const Before&);
	kvrun_status generate(const std::vector<uint32_t>& prompt, ChatMessage& out, std::exception_ptr& lost);
	ChatPrompt chat_prompt() const { return model_.prompt(conversation_.messages_json(), args_.think); }
	std::vector<uint32_t> prompt_tokens(bool answer) const;
	uint32_t keep_common(const std::vector<uint32_t>& prompt);
	bool too_long(size_t prompt) const;
	std::string full_line(size_t prompt) const;
	std::string make_room(size_t prompt);
	void check_reads(MediaKind) const;
	std::string add(MediaKind, const std::string& path, std::string* size = nullptr) const;
	void read_media(Conversation&) const;
	void new_session();
	void read_again();
	void restore(const std::string& name);
	void keep();
	bool keeps_cache() const;
	void save_cache();
	std::string json() const;
	void take_files(ChatFiles files);

	ChatArgs args_;
	const ChatModel& model_;
	const bool terminal_;
	const bool policy_given_; // by --kv, which overrides the policy of a saved chat
	uint64_t seed_;           // seed of the first answer
	CancellerHandle canceller_;
	SessionHandle session_;
	Conversation conversation_;
	Attached attached_;
	std::optional<ChatFiles> files_; // nullopt if the chat is not saved
	bool named_ = false;             // the user gave a name; otherwise kLastChat
	bool last_tried_ = false;        // saving an unnamed chat was attempted
	kvrun_generate_result last_ = KVRUN_GENERATE_RESULT_INIT;
	uint64_t answer_tokens_ = 0; // tokens of all answers
	double decode_seconds_ = 0;
};

void say_lines(const std::string& text);

constexpr const char* kLastChat = "last"; // name under which a terminal's latest unnamed chat is kept

} // namespace kvrun
