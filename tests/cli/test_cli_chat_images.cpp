// kvrun chat with images and sounds.
#include "tests/cli/chat_state.h"
#include <filesystem>

using namespace kvrun;
namespace fs = std::filesystem;

namespace {

const std::string vision = kRoot + "/tests/golden/vision/";
const std::vector<std::string> mlp = {"--mmproj", vision + "mlp.gguf"};

Ran chat(const State& state, const std::vector<std::string>& more, const std::string& input) {
	RunSpec s = state.spec(with(kGreedy, more), input);
	s.args[1] = vision + "text.gguf";
	return run_program(s);
}

std::string image_path(const State& state, const std::string& name) { // of the first message
	return state.chat(name)["messages"][0]["images"][0];
}

class WorkingFolder { // of this process, and of programs that it starts
	const fs::path before_ = fs::current_path();

 public:
	explicit WorkingFolder(const fs::path& p) { fs::current_path(p); }
	~WorkingFolder() { fs::current_path(before_); }
	WorkingFolder(const WorkingFolder&) = delete;
};

} // namespace

TEST_CASE("chat: /image and --image; a chat with images is the same after /load") {
	const State state;
	const Ran typed = chat(state, mlp, "/image " + vision + "tile.png\na b\n/save one\n");
	REQUIRE_MESSAGE(typed.code == 0, typed.err);
	CHECK(contains(typed.err, "16 x 16 pixels go in front of the next message"));
	CHECK((image_path(state, "one") == vision + "tile.png" || windows_program()));
	CHECK(chat(State(), with(mlp, {"--image", vision + "tile.webp"}), "a b\n").out == typed.out);
	const Ran plain = chat(State(), mlp, "a b\n");
	CHECK(plain.out != typed.out);

	const State other; // the last answer again, from the files
	const Ran whole = chat(other, mlp, "/image " + vision + "tile.png\na b\n/save two\nc d\n");
	const Ran first = chat(State(), mlp, "/image " + vision + "tile.png\na b\n/save two\n");
	const Ran resumed = chat(state, mlp, "/load one\nc d\n");
	REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
	CHECK(whole.out == first.out + resumed.out);
	// Another image in the place of one: none of the first one's tokens is kept.
	const Ran changed =
	    chat(State(), mlp, "/image " + vision + "tile.png\na b\n/undo\n/image " + vision + "tile.jpg\na b\n");
	const Ran jpg = chat(State(), mlp, "/image " + vision + "tile.jpg\na b\n");
	CHECK(changed.out.ends_with(jpg.out));
	CHECK(contains(chat(State(), {}, "/image " + vision + "tile.png\n").err, "start again with --mmproj"));
	const Ran without = chat(state, {}, "/load one\n"); // its images can be read, but not by this model
	CHECK(without.code == 3);
	CHECK(contains(without.err, "start again with --mmproj"));
}

TEST_CASE("chat: an image is found again from any folder; a chat opens without one that cannot be read") {
	const State state, other;
	const std::string tile = state.path + "/tile.png";
	fs::copy_file(vision + "tile.png", tile);
	Ran first;
	{
		const WorkingFolder in(state.path);
		first = chat(state, mlp, "/image tile.png\na b\n/save one\n");
	}
	REQUIRE_MESSAGE(first.code == 0, first.err);
	CHECK((fs::path(image_path(state, "one")).is_absolute() || windows_program()));
	const std::string whole = chat(other, mlp, "/image " + tile + "\na b\nc d\n").out;
	const Ran resumed = chat(state, mlp, "/load one\nc d\n");
	REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
	CHECK(first.out + resumed.out == whole);

	const nlohmann::json before = state.chat("one");
	const std::string blind = chat(other, mlp, "a b\n").out;
	CHECK(blind != first.out);
	const auto left_out = [&](const Ran& r) {
		const std::string says = "tile.png: the chat goes on without this image: ";
		const size_t at = r.err.find(says);
		return at != std::string::npos && !contains(r.err.substr(at + says.size()), says);
	};
	for (const std::string content : {"", "no image"}) { // no file, and another one
		CAPTURE(content);
		fs::remove(tile);
		if (!content.empty()) std::ofstream(tile) << content;
		const Ran opened = chat(state, mlp, "/load one\n");
		CAPTURE(opened.err);
		CHECK(opened.code == 0);
		CHECK(left_out(opened));
		CHECK(contains(opened.err, "# chat 'one': 4 messages"));
		CHECK(state.chat("one") == before);
	}
	// its message is still asked, and the image is there again with its file
	const Ran asked = chat(state, mlp, "/load one\n/undo\n/retry\n");
	CAPTURE(asked.err);
	CHECK(asked.code == 0);
	CHECK(left_out(asked));
	CHECK(asked.out == blind);
	CHECK(image_path(state, "one") == before["messages"][0]["images"][0]);
	fs::copy_file(vision + "tile.png", tile, fs::copy_options::overwrite_existing);
	const Ran back = chat(state, mlp, "/load one\n/retry\n");
	CAPTURE(back.err);
	CHECK(back.code == 0);
	CHECK(!left_out(back));
	CHECK(back.out == first.out);
}

TEST_CASE("chat: /audio and --audio; a chat with sounds is the same after /load") {
	const std::string audio = kRoot + "/tests/golden/audio/";
	const std::vector<std::string> hears = {"--mmproj", audio + "qwen2a.gguf"};
	const State state, other;
	const Ran typed = chat(state, hears, "/audio " + audio + "tone.wav\na b\n/save one\n");
	REQUIRE_MESSAGE(typed.code == 0, typed.err);
	CHECK(contains(typed.err, "tone.wav: 0.5 seconds of sound go in front of the next message"));
	const nlohmann::json saved = state.chat("one")["messages"][0];
	CHECK(saved["audio"].size() == 1);
	CHECK(!saved.contains("images"));
	CHECK(chat(State(), with(hears, {"--audio", audio + "tone.wav"}), "a b\n").out == typed.out);
	CHECK(chat(State(), hears, "a b\n").out != typed.out);
	const Ran whole = chat(other, hears, "/audio " + audio + "tone.wav\na b\nc d\n");
	const Ran resumed = chat(state, hears, "/load one\nc d\n");
	REQUIRE_MESSAGE(resumed.code == 0, resumed.err);
	CHECK(whole.out == typed.out + resumed.out);
	const Ran deaf = chat(State(), mlp, "/audio " + audio + "tone.wav\n");
	CHECK_MESSAGE(contains(deaf.err, "reads no sounds: its audio encoder was not given; start again with --mmproj"),
	              deaf.err);
	CHECK(contains(chat(State(), hears, "/image " + audio + "tone.wav\n").err, "this model reads no images"));
}
