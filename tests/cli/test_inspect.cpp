// kvrun inspect and kvrun tokenize as a user sees them: results, exit codes, hostile files.
#include "tests/cli/checks.h"
#include "tests/cli/program.h"
#include "tests/support/assets.h"
#include "tests/support/mixture_builder.h"
#include "tests/support/temp_folder.h"
#include <cmath>
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

using namespace kvrun;

namespace {

const std::string kModel = std::string(KVRUN_SOURCE_DIR) + "/models/bundled/recall-4m-f16.gguf";
using Json = nlohmann::json;

struct TempFile {
	std::string path;
	explicit TempFile(const std::vector<std::byte>& bytes) {
		path = (std::filesystem::temp_directory_path() / "kvrun-test-XXXXXX").string();
		const int fd = mkstemp(path.data());
		REQUIRE(fd >= 0);
		REQUIRE(write(fd, bytes.data(), bytes.size()) == ssize_t(bytes.size()));
		close(fd);
	}
	~TempFile() { unlink(path.c_str()); }
};

// Processor time of all programs run so far; does not include other load on the machine.
double children_seconds() {
	rusage u{};
	getrusage(RUSAGE_CHILDREN, &u);
	const auto s = [](const timeval& t) { return double(t.tv_sec) + double(t.tv_usec) * 1e-6; };
	return s(u.ru_utime) + s(u.ru_stime);
}

// One line on stderr, nothing on stdout.
void check_error(const RunSpec& spec, int code, const std::string& part) {
	const Ran r = run_program(spec);
	INFO(r.err);
	CHECK(r.code == code);
	CHECK(r.out == "");
	CHECK(r.err.starts_with("error: "));
	CHECK(std::count(r.err.begin(), r.err.end(), '\n') == 1);
	CHECK(contains(r.err, part));
}

} // namespace

TEST_CASE("inspect: experts of a mixture; a file whose experts contradict its tensors is one line and exit code 3") {
	const Ran r = run_program(
	    {"inspect", std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/glm4moe.gguf", "--json", "--check"});
	CHECK(r.code == 0);
	const Json e = Json::parse(r.out)["config"]["experts"];
	CHECK(e["layers"] == 2);
	CHECK(e["experts"] == 8);
	CHECK(e["used"] == 3);
	CHECK(e["hidden_dim"] == 16);
	CHECK(e["shared_dim"] == 16);
	CHECK(e["gating"] == "sigmoid");
	CHECK(e["scale"] == 1.5);
	CHECK(contains(run_program({"inspect", kModel}).out, "experts") == false);
	const TempFile used(tiny_mixture({.used = 5}).bytes());
	check_error({.args = {"run", used.path, "-p", "a", "--device", "cpu"}}, 3,
	            "key llama.expert_used_count is 5, expected 1 to 4 experts");
	GgufBuilder b = tiny_mixture();
	b.u32("llama.expert_count", 3);
	const TempFile count(b.bytes());
	check_error({.args = {"run", count.path, "-p", "a", "--device", "cpu"}}, 3,
	            "tensor blk.0.ffn_gate_inp.weight is (4, 16)");
	b = tiny_mixture();
	b.erase_tensor("blk.1.ffn_up_exps.weight");
	const TempFile missing(b.bytes());
	check_error({.args = {"run", missing.path, "-p", "a", "--device", "cpu"}}, 3,
	            "tensor blk.1.ffn_up_exps.weight is missing");
}

TEST_CASE("inspect: latents, recurrent states, an indexer and several residual streams") {
	const auto config = [](const char* name) {
		const std::string file = fmt::format("{}/tests/golden/tiny/{}.gguf", KVRUN_SOURCE_DIR, name);
		return Json::parse(run_program({"inspect", file, "--json"}).out)["config"];
	};
	const Json glm = config("glm5_next"), plain = config("llama");
	const Json latents = {{"layers", 2}, {"rank", 32}, {"rotated_key", 0}, {"query_rank", 40}, {"v_dim", 24}};
	const Json states = {{"layers", 2}, {"heads", 4},       {"k_dim", 16},
	                     {"v_dim", 16}, {"convolution", 4}, {"beside_attention", false}};
	const Json indexer = {{"layers", 2}, {"heads", 4}, {"dim", 64}, {"block", 2}, {"tokens", 8}};
	const Json streams = {{"streams", 4}, {"kind", "manifold"}, {"rank", 0}, {"rounds", 4}};
	CHECK(glm["latents"] == latents);
	CHECK(glm["states"] == states);
	CHECK(glm["indexer"] == indexer);
	CHECK(glm["streams"] == streams);
	for (const char* part : {"latents", "states", "indexer", "streams"}) CHECK(plain[part].is_null());
	CHECK(config("gemma3n")["streams"]["kind"] == "altup");
	CHECK(config("qwen4exp")["streams"]["rank"] == 16);
	CHECK(config("kimi_k3")["streams"]["kind"] == "attended");
	CHECK(config("hy_v4")["indexer"]["layers"] == 2);
	const Ran text = run_program({"inspect", std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/glm5_next.gguf"});
	CHECK(contains(text.out, "indexer       layers 2, heads 4, dim 64, block 2, tokens 8"));
}

TEST_CASE("inspect: the bundled model as text and as JSON") {
	const Ran text = run_program({"inspect", kModel});
	CHECK(text.code == 0);
	CHECK(contains(text.out, "recall-4M"));
	CHECK(contains(text.out, "runs          yes"));
	CHECK(contains(text.out, "\ngeneral.architecture = llama\n"));
	CHECK(!contains(text.out, "blk.3.ffn_down.weight"));
	CHECK(contains(text.out, "\n39 tensors; --tensors lists them\n"));
	const Ran tensors = run_program({"inspect", kModel, "--tensors"});
	CHECK(contains(tensors.out, "\nblk.3.ffn_down.weight "));
	CHECK(tensors.out.find("general.architecture") < tensors.out.find("blk.3.ffn_down.weight"));
	CHECK(text.err == "");
	const Ran json = run_program({"inspect", kModel, "--json", "--check"});
	CHECK(json.code == 0);
	const Json d = Json::parse(json.out);
	CHECK(d["runs"] == true);
	CHECK(d["refused"].is_null());
	CHECK(d["config"]["dim"] == 256);
	CHECK(d["config"]["norm_eps"] == 1e-5);
	CHECK(d["config"]["rope"]["theta"] == 20000);
	CHECK(d["tokenizer"]["tokens"] == 2048);
	CHECK(d["tensors"].size() == 39);
	CHECK(d["types"]["F16"]["tensors"] == 30);
	CHECK(d["metadata"]["general.architecture"] == "llama");
}

TEST_CASE("inspect: layers that run several times are counted each time") {
	const Ran r = run_program({"inspect", std::string(KVRUN_SOURCE_DIR) + "/tests/golden/tiny/nanbeige.gguf"});
	CHECK_MESSAGE(contains(r.out, "n_layers 4, rounds 2,"), r.out);
}

TEST_CASE("inspect: a vision encoder runs beside its model, if its projector is known") {
	const std::string path = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/vision/gemma4uv.gguf";
	const Ran r = run_program({"inspect", path, "--check"});
	CHECK(r.code == 0);
	CHECK(r.out.find("yes, beside its model: --mmproj") != std::string::npos);
	CHECK(contains(r.out, "encodes       images gemma4uv\n"));
	CHECK(Json::parse(run_program({"inspect", path, "--json"}).out)["runs"] == true);
	const std::string hears = std::string(KVRUN_SOURCE_DIR) + "/tests/golden/audio/qwen2a.gguf";
	const Json heard = Json::parse(run_program({"inspect", hears, "--json"}).out);
	CHECK(heard["runs"] == true);
	CHECK(heard["encoders"] == Json{{"audio", "qwen2a"}});
	std::ifstream in(path, std::ios::binary);
	std::string bytes{std::istreambuf_iterator<char>(in), {}};
	bytes.replace(bytes.find("gemma4uv"), 8, "gemma9xx");
	const auto raw = std::as_bytes(std::span(bytes));
	const TempFile other(std::vector<std::byte>(raw.begin(), raw.end()));
	const Ran no = run_program({"inspect", other.path});
	CHECK(no.code == 0);
	CHECK(no.out.find("projector 'gemma9xx' is not supported") != std::string::npos);
}

TEST_CASE("inspect: a file kvrun does not run is described, and says why") {
	GgufBuilder b = tiny_model();
	b.text("general.architecture", "bloom").text("general.name", "odd \xff\n name");
	const TempFile f(b.bytes());
	const Ran r = run_program({"inspect", f.path});
	CHECK(r.code == 0);
	CHECK(contains(r.out, "architecture is bloom; kvrun runs llama qwen2 qwen3 phi3"));
	CHECK(contains(r.out, "odd \\xff\\n name"));
	CHECK(Json::parse(run_program({"inspect", f.path, "--json"}).out)["runs"] == false);
	check_error({.args = {"inspect", f.path, "--check"}}, 3, "architecture is bloom");
}

TEST_CASE("T04 inspect: a header of 32 MiB with as many keys and tensors as can be takes no time") {
	const std::string alike(450, 'k'); // keys of equal length that differ only at the end take longest to compare
	GgufBuilder b;
	for (int i = 0; i < 65'000; ++i) {
		b.keys.push_back({fmt::format("{}.{:05}", alike, i), uint32_t(GgufType::U8), "\1"});
		b.tensors.push_back({fmt::format("tensor.{}", i), {1}, 0, std::string(4, '\0')});
	}
	const TempFile f(b.bytes());
	for (const std::string form : {"--tensors", "--json"}) {
		const double before = children_seconds();
		const Ran r = run_program({"inspect", f.path, form});
		const double s = children_seconds() - before;
		INFO(s, " s");
		CHECK(r.code == 0);
		CHECK(contains(r.out, form == "--tensors" ? "k... = 1\n" : alike + ".64999"));
		CHECK(contains(r.out, "tensor.64999"));
		CHECK(s < 8); // less than one on an idle machine; much more if each key is compared with all before it
	}
}

TEST_CASE("T15: --check refuses a file with NaN or infinity in weights, scales or norms") {
	const TempFile good(tiny_model().bytes());
	const Ran sound = run_program({"inspect", good.path, "--check"});
	CHECK(sound.code == 0);
	CHECK(contains(sound.out, "\nweights       all are read and finite\n"));
	for (float bad : {NAN, INFINITY, -INFINITY}) {
		GgufBuilder b = tiny_model();
		std::memcpy(b.find("blk.0.ffn_norm.weight").data.data() + 12, &bad, 4);
		std::memcpy(b.find("output.weight").data.data() + (5 * 16 + 7) * 4, &bad, 4);
		const TempFile f(b.bytes());
		CHECK(run_program({"inspect", f.path}).code == 0);
		check_error({.args = {"inspect", f.path, "--check"}}, 3,
		            "2 of 12 tensors hold values that are not finite, first blk.0.ffn_norm.weight at row 0, column 3");
	}
	GgufBuilder b = tiny_model(); // a scale of a block
	std::string blocks(34 * 16, '\0');
	blocks[34 * 9] = 0;
	blocks[34 * 9 + 1] = 0x7c; // infinity, times 1
	blocks[34 * 9 + 2 + 4] = 1;
	b.tensor("blk.0.ffn_down.weight", DType::Q8_0, {32, 16}, blocks);
	const TempFile f(b.bytes());
	check_error({.args = {"inspect", f.path, "--check"}}, 3,
	            "first blk.0.ffn_down.weight at row 9, column 0: nan"); // 0 x inf
}

TEST_CASE("T01 T12 T16: files that are no models end with 3, in one line") {
	const auto whole = tiny_model().bytes();
	const TempFile cut({whole.begin(), whole.end() - 1}), empty({}),
	    other(std::vector<std::byte>(4096, std::byte('x')));
	const std::string folder = std::filesystem::temp_directory_path(), line = "/no/such\nfile\xff.gguf";
	const std::string fifo = cut.path + ".fifo";
	REQUIRE(mkfifo(fifo.c_str(), 0600) == 0);
	GgufBuilder typed = tiny_model();
	typed.tensors[0].type = 9;
	const TempFile q8_1(typed.bytes());
	for (const char* command : {"inspect", "tokenize", "run"}) {
		CAPTURE(command);
		auto spec = [&](const std::string& file) {
			if (std::string(command) == "inspect") return RunSpec{.args = {command, file}};
			if (std::string(command) == "tokenize") return RunSpec{.args = {command, "-m", file}};
			return RunSpec{.args = {command, "-m", file, "-p", "x", "--device", "cpu"}};
		};
		check_error(spec(cut.path), 3, "truncated at byte");
		check_error(spec(empty.path), 3, "truncated at byte 0");
		check_error(spec(other.path), 3, "does not begin with 'GGUF'");
		check_error(spec(q8_1.path), 3, "has type Q8_1; kvrun computes with F32 F16");
		check_error(spec(folder), 3, "is a folder");
		if (!windows_program()) {
			check_error(spec("/dev/zero"), 3, "is a character device, not a regular file");
			check_error(spec(fifo), 3, "is a FIFO, not a regular file");
		}
		check_error(spec(line), 3, "/no/such\\nfile\\xff.gguf: no such file");
	}
	unlink(fifo.c_str());
}

TEST_CASE("tokenize: ids on one line, and back, byte for byte") {
	auto ids = [](std::vector<std::string> more, const std::string& input) {
		std::vector<std::string> args = {"tokenize", "-m", kModel};
		args.insert(args.end(), more.begin(), more.end());
		return run_program({.args = args, .input = input});
	};
	const std::string text("Once upon a \xff time\n\0</s>", 23);
	const Ran r = ids({}, text);
	CHECK(r.code == 0);
	CHECK(r.err == "");
	CHECK(r.out.starts_with("1 "));
	CHECK(std::count(r.out.begin(), r.out.end(), '\n') == 1);
	CHECK(ids({"--no-bos"}, text).out == r.out.substr(2));
	CHECK(ids({"--decode"}, r.out).out == text);
	CHECK(ids({}, "").out == "1\n");
	CHECK(ids({"--no-bos"}, "").out == "\n");
	CHECK(ids({"--special", "--no-bos"}, "</s>").out == "2\n");
	CHECK(ids({"--decode", "--special"}, "1 2").out == "<s></s>");
	CHECK(ids({"--decode"}, "1 2").out == "");
	CHECK(ids({"--decode"}, "").out == "");
	for (const char* bad : {"x", "1 -2", "1.5", "99999999999", "1,2"}) {
		const Ran e = ids({"--decode"}, bad);
		CHECK(e.code == 2);
		CHECK(contains(e.err, "is not a token ID"));
	}
	CHECK(contains(ids({"--decode"}, "2048").err, "token 2048 does not exist"));
}

TEST_CASE("tokenize: the text of an option or a file is that of standard input") {
	const TempFolder folder;
	const std::string file = (folder.path / "t").string(), text = "One\\n two";
	std::ofstream(file) << text;
	const std::string ids = run_program(RunSpec{.args = {"tokenize", kModel}, .input = text}).out;
	REQUIRE(!ids.empty());
	CHECK(run_program({"tokenize", kModel, "-p", text}).out == ids);
	CHECK(run_program({"tokenize", kModel, "-f", file}).out == ids);
	CHECK(run_program({"tokenize", kModel, "--decode", "--special", "-p", ids}).out.ends_with("One\\n two"));
	check_error({"tokenize", kModel, "-f", file + "x"}, 3, {"No such file"});
	check_error({"tokenize", kModel, "-f", file, "-p", text}, 2, {"both given"});
	for (const char* command : {"tokenize", "run"})
		check_error({command, kModel, "-f", folder.path.string()}, 3, {" is a folder; name a file"});
	if (windows_program()) return;
	// a pipe, as <(command) of a shell is one
	CHECK(run_program(RunSpec{.args = {"tokenize", kModel, "-f", "/dev/stdin"}, .input = text}).out == ids);
	check_error({"tokenize", kModel, "-f", "/dev/zero"}, 3, {"no regular file"});
}

TEST_CASE("tokenize: vocabulary-only files") {
	const std::string path = shared_asset("vocab/ggml-vocab-gpt-2.gguf");
	if (path.empty()) return;
	const Ran r = run_program({.args = {"tokenize", "-m", path}, .input = "Hello world"});
	CHECK(r.code == 0);
	CHECK(r.out == "15496 995\n");
	const Ran i = run_program({"inspect", path});
	CHECK(i.code == 0);
	CHECK(contains(i.out, "bpe gpt-2, 50257 tokens"));
	CHECK(contains(i.out, "runs          no: "));
	const Json d = Json::parse(run_program({"inspect", path, "--json"}).out);
	CHECK(contains(i.out, "runs          no: " + d["refused"].get<std::string>() + "\n")); // also its end: what to do
}
