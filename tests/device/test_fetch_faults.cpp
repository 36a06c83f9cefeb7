// Faults while tokens are fetched from host memory: late or lost transfers, full memory and disks, lost devices,
// cancelled answers. Either no bit changes, or one error gives the reason.
#include "backends/cpu/cpu_backend.h"
#include "engine/kv_device/fetch.h"
#include "engine/run/batch.h"
#include "tests/device/outcome.h"
#include "tests/device/sequences.h"
#include "tests/support/temp_folder.h"
#include <algorithm>
#include <csignal>
#include <random>
#include <sys/resource.h>
#include <unistd.h>

using namespace kvrun;

namespace {

const std::string kModel = kGolden + "tiny/" + kPolicyModel + ".gguf";
const std::string kWindow = ",recent_keep=8,flush=32"; // so short that most of a hundred tokens are packed
const std::string kPolicy = "kivi1,fetch=12" + kWindow;

// Faults of the backend below. Allocations, and calls that can meet a lost device, are counted from 1 since it was set.
struct Faults {
	bool transfers = false;      // transfers begin late, in another order, or not at all
	uint64_t late = 0, lost = 0; // number of late and lost transfers so far
	uint64_t alloc_first = UINT64_MAX, alloc_last = 0, allocs = 0;
	uint64_t dies_at = UINT64_MAX, calls = 0;
	uint64_t fails_at = UINT64_MAX, operations = 0; // one operation fails, once
	std::mt19937 draw;
};
Faults faults;

class FaultyBackend final : public CpuBackend {
 public:
	FaultyBackend() : CpuBackend(false) {}
	Buffer alloc(size_t bytes, Mem mem, const char* label) override {
		const uint64_t n = ++faults.allocs;
		if (n >= faults.alloc_first && n <= faults.alloc_last)
			fail(Code::OutOfMemory, "no memory for {} bytes of {}", bytes, label);
		return CpuBackend::alloc(bytes, mem, label);
	}
	uint64_t transfer(View dst, View src) override {
		meet_loss();
		if (!faults.transfers) return CpuBackend::transfer(dst, src);
		waiting_.push_back({++last_, dst, src});
		return last_;
	}
	bool arrive(uint64_t n) override {
		meet_loss();
		if (!faults.transfers) return true;
		if (faults.draw() % 4 == 0) { // this one is lost
			std::erase_if(waiting_, [&](const Waiting& w) { return w.number == n; });
			++faults.lost;
			return false;
		}
		std::shuffle(waiting_.begin(), waiting_.end(), faults.draw); // and earlier ones in any order
		while (std::ranges::find(waiting_, n, &Waiting::number) != waiting_.end()) {
			copy(waiting_.back().dst, waiting_.back().src);
			waiting_.pop_back();
			++faults.late;
		}
		return true;
	}
	void wait() override { meet_loss(), CpuBackend::wait(); }
	void wait_for(uint64_t) override { meet_loss(), CpuBackend::wait(); }
	uint64_t mark() override { return meet_loss(), 0; }
	void run(const Op& op) override {
		if (++faults.operations == faults.fails_at) fail(Code::Device, "an operation failed");
		if (std::holds_alternative<op::Scatter>(op) || std::holds_alternative<op::TopK>(op)) meet_loss();
		CpuBackend::run(op);
	}

 private:
	struct Waiting {
		uint64_t number;
		View dst, src;
	};
	void meet_loss() {
		if (++faults.calls >= faults.dies_at) lost_ = true;
		if (lost_) fail(Code::Device, "the driver reset the device; open it again");
	}
	std::vector<Waiting> waiting_;
	uint64_t last_ = 0;
	bool lost_ = false;
};

class FaultyDevices final : public DeviceSet {
 public:
	FaultyDevices() {
		reports_.emplace_back();
		reports_[0].backend = "faulty";
		reports_[0].info = CpuBackend(false).info();
	}
	std::unique_ptr<Backend> open(size_t) override { return std::make_unique<FaultyBackend>(); }
};

std::unique_ptr<Engine> open_faulty() {
	static const bool added = [] {
		add_backend({"faulty", false, [](const BackendOptions&) -> std::unique_ptr<DeviceSet> {
			             return std::make_unique<FaultyDevices>();
		             }});
		return true;
	}();
	CHECK(added);
	EngineOptions opt;
	opt.model = kModel;
	opt.backend.device = "faulty";
	return Engine::open(opt);
}

Floats answer(Session& s, uint32_t n = 30) {
	return greedy_logits(s, random_tokens(100, s.engine().config().vocab, 3), n);
}

std::unique_ptr<Engine> open_cpu(size_t host_budget, const std::string& offload_dir = {}) {
	EngineOptions opt;
	opt.model = kModel;
	opt.backend = select_test_device("cpu");
	opt.host_budget = host_budget;
	opt.offload_dir = offload_dir;
	return Engine::open(opt);
}
size_t chunk_bytes(Engine& e) { return HostPool::chunk_bytes(e.kv_shape()); }

// The test's own open file in a folder, which has no name.
int unnamed_file(const std::filesystem::path& folder) {
	for (int fd = 3; fd < 1024; ++fd) {
		std::error_code error;
		const std::string name = std::filesystem::read_symlink(fmt::format("/proc/self/fd/{}", fd), error).string();
		if (!error && name.starts_with(folder.string())) return fd;
	}
	return -1;
}

// These tests bring their own device, so running once is enough.
bool elsewhere() { return test_devices().front().name != "cpu"; }

struct FileLimit { // limits the size of files that this process writes
	explicit FileLimit(rlim_t bytes) {
		REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
		rlimit now = before;
		now.rlim_cur = bytes;
		REQUIRE(setrlimit(RLIMIT_FSIZE, &now) == 0);
		handler = std::signal(SIGXFSZ, SIG_IGN);
	}
	~FileLimit() {
		setrlimit(RLIMIT_FSIZE, &before);
		std::signal(SIGXFSZ, handler);
	}
	rlimit before{};
	void (*handler)(int) = SIG_DFL;
};

} // namespace

TEST_CASE("T76 fetch: transfers that are late, reordered or lost change no bit") {
	if (elsewhere()) return;
	Floats want;
	for (uint32_t seed = 0; seed < 4; ++seed) { // 0: no faults
		faults = {.transfers = seed > 0, .draw = std::mt19937(seed)};
		const auto engine = open_faulty();
		Session s(*engine, with(kPolicy));
		const Floats got = answer(s);
		if (!seed) want = got;
		CHECK(got == want);
		if (seed) CHECK((faults.late > 0 && faults.lost > 0));
	}
}

TEST_CASE("fetch: where a failed step empties a session, no checkpoint of its text is left") {
	if (elsewhere()) return;
	const auto engine = open_faulty();
	const uint32_t vocab = engine->config().vocab;
	SessionOptions o = with(kPolicy);
	o.checkpoints = 2;
	bool emptied = false;
	for (uint64_t n = 1; !emptied; n += 5) {
		CAPTURE(n);
		Session s(*engine, o);
		s.prefill(random_tokens(70, vocab, 3));
		faults = {};
		faults.fails_at = n;
		const Outcome failed = outcome_of([&] {
			for (const uint32_t t : random_tokens(40, vocab, 4)) s.decode(t);
		});
		faults = {};
		REQUIRE(failed.threw); // some step compresses tokens, and fails there
		emptied = s.n_tokens() == 0;
		if (!emptied) continue;
		s.prefill(random_tokens(130, vocab, 5));
		CHECK(s.exact_position(71) == 0); // and not the 70 of the text before
	}
}

TEST_CASE("T66 fetch: no device or pinned memory at the n-th allocation, once and for good") {
	if (elsewhere()) return;
	faults = {};
	const auto engine = open_faulty();
	const auto ask = [&](const std::string& kv) {
		Session s(*engine, with(kv));
		return answer(s);
	};
	for (const std::string& kv :
	     {kPolicy, "kivi2,fetch=40,fetch_mode=sync" + kWindow, std::string("mikv,fetch=9,flush=16,recent_keep=8")}) {
		CAPTURE(kv);
		faults = {};
		const Floats want = ask(kv);
		const uint64_t n_allocs = faults.allocs;
		REQUIRE(n_allocs > 3);
		uint64_t refused = 0;
		for (uint64_t n = 1; n <= n_allocs; ++n)
			for (const uint64_t last : {n, UINT64_MAX}) {
				CAPTURE(n);
				engine->pool().trim();
				faults = {};
				faults.alloc_first = n, faults.alloc_last = last;
				const Outcome o = outcome_of([&] {
					const Floats got = ask(kv);
					CHECK(relative_error(got, want) < 0.05); // pinned memory, or a larger chunk, is optional
				});
				if (o.threw) CHECK(o.code == Code::OutOfMemory);
				refused += o.threw;
				faults = {};
				CHECK(engine->pool().used_bytes() == 0);
				CHECK(engine->pool().host().used_bytes() == 0);
				engine->pool().trim(); // pages in other chunks are summed in another order
				CHECK(ask(kv) == want);
			}
		CHECK(refused > 3);
	}
}

TEST_CASE("T68 fetch: a device that is lost at any call is one error, and every later call fails at once") {
	if (elsewhere()) return;
	faults = {};
	Floats want;
	{
		const auto engine = open_faulty();
		Session s(*engine, with(kPolicy));
		faults = {};
		want = answer(s, 12);
	}
	const uint64_t n_calls = faults.calls;
	REQUIRE(n_calls > 50);
	uint64_t met = 0;
	for (uint64_t n = 1; n <= n_calls; n += 3) {
		CAPTURE(n);
		faults = {};
		const auto engine = open_faulty();
		Session s(*engine, with(kPolicy));
		faults = {};
		faults.dies_at = n;
		const Outcome o = outcome_of([&] { answer(s, 12); });
		if (faults.calls < n) continue; // prompts are cut by time: fewer pieces than when calls were counted
		++met;
		CHECK(o.threw);
		CHECK(o.code == Code::Device);
		const uint64_t calls = faults.calls;
		s.reset();
		CHECK_THROWS_WITH_AS(answer(s, 12), o.what.c_str(), Error);
		CHECK(faults.calls < calls + 20); // failed calls are not repeated without end
	}
	CHECK(met > 15);
	faults = {};
	const auto engine = open_faulty();
	Session s(*engine, with(kPolicy));
	CHECK(answer(s, 12) == want);
}

TEST_CASE("T73 fetch: the same bits in poisoned memory, and where another sequence has been") {
	const std::vector<Case> policies = {
	    {kPolicy}, {"kivi2,fetch=40,fetch_mode=sync" + kWindow}, {"zipcache,flush=24,fetch=12"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device != "cpu" && row.number > 0) return; // slow
		const auto engine = open_engine(row.device, kModel);
		const auto ask = [&](Engine& e) {
			Session s(e, with(c.name));
			return answer(s, 40);
		};
		const Floats want = ask(*engine);
		{
			Session other(*engine, with("specache2,fetch=24" + kWindow));
			greedy_logits(other, random_tokens(150, engine->config().vocab, 8), 20);
		}
		check_same_bits({row.device, row.number, "used memory"}, ask(*engine), want);
		setenv("KVRUN_POISON", "1", 1); // reads of unwritten memory become NaN
		const auto poisoned = open_engine(row.device, kModel);
		unsetenv("KVRUN_POISON");
		check_same_bits({row.device, row.number, "poisoned memory"}, ask(*poisoned), want);
	});
}

TEST_CASE("T77 fetch: an answer that is cancelled goes on as if it had not been") {
	const std::vector<Case> policies = {
	    {kPolicy}, {"kivi2,fetch=40,fetch_mode=sync" + kWindow}, {"mikv,fetch=9,flush=16,recent_keep=8"}};
	each_row(policies, [](Backend&, const Case& c, const TestRow& row) {
		if (row.device != "cpu" && row.number > 0) return; // slow
		const auto engine = open_engine(row.device, kModel);
		const uint32_t vocab = engine->config().vocab;
		const Tokens prompt = random_tokens(100, vocab, 3), second = random_tokens(60, vocab, 6),
		             rest = random_tokens(12, vocab, 5);
		for (const uint32_t after : {1u, 2u, 33u}) { // tokens of the answer
			CAPTURE(after);
			std::atomic<bool> cancel = false;
			GenerateOptions opt;
			opt.sampling.temperature = 0;
			opt.ignore_end = true;
			opt.cancel = &cancel;
			Session s(*engine, with(c.name));
			uint32_t n = 0;
			const GenerateResult r = generate(
			    s, prompt, opt, {.prefill = {}, .token = [&](uint32_t) { cancel = ++n == after; }, .text = {}});
			CHECK(r.reason == StopReason::Cancelled);
			CHECK(r.tokens.size() == after);
			{ // a prompt cancelled in the middle
				Prefill p(s, second);
				p.step(1e-9);
				if (after % 2) p.step(1e-9);
			}
			Session fresh(*engine, with(c.name));
			fresh.prefill(prompt);
			fed(fresh, std::span(r.tokens).first(after - 1)); // no step has read what follows the last one
			REQUIRE(Tokens(s.history().begin(), s.history().end()) ==
			        Tokens(fresh.history().begin(), fresh.history().end()));
			check_same_bits(row, fed(s, rest), fed(fresh, rest));
		}
	});
}

TEST_CASE("T77 fetch: a session that ends while its tokens are under way disturbs nobody") {
	each_row(std::vector<Case>{{kPolicy}}, [](Backend&, const Case& c, const TestRow& row) {
		const auto engine = open_engine(row.device, kModel);
		Floats want;
		for (uint32_t n = 0; n < 4; ++n) {
			{
				Session gone(*engine, with("kivi2,fetch=24" + kWindow));
				answer(gone, n); // the last step has begun to fetch for the next one
			}
			Session s(*engine, with(c.name));
			const Floats got = answer(s, 8);
			if (!n) want = got;
			check_same_bits(row, got, want);
		}
	});
}

TEST_CASE("T74 T75 fetch: host memory that is used up is said before a token is read") {
	if (elsewhere()) return;
	const auto engine = open_cpu(1);
	CHECK_THROWS_WITH_AS(Session(*engine, with("kivi2,fetch=8", 64)), doctest::Contains("raise --host-budget"), Error);
	engine->pool().host().set_budget(chunk_bytes(*engine));
	Session s(*engine, with("kivi2,fetch=8" + kWindow)); // as long as it fits
	CHECK(s.ctx() == HostPool::kTokens);
	const Floats before = answer(s, 3);
	Session other(*engine, with("kivi2,fetch=8" + kWindow)); // the one above holds the budget
	CHECK_THROWS_WITH_AS(answer(other, 3), doctest::Contains("raise --host-budget"), Error);
	CHECK(other.n_tokens() == 0);
	s.reset();
	CHECK(answer(other, 3) == before);
}

TEST_CASE("T75 fetch: what is over the budget lies in a file, with the same bits") {
	if (elsewhere()) return;
	const TempFolder folder;
	const auto memory = open_cpu(0), file = open_cpu(1, folder.path);
	const Tokens prompt = random_tokens(300, memory->config().vocab, 3);
	Session a(*memory, with(kPolicy, 600)), b(*file, with(kPolicy, 600));
	const Floats want = greedy_logits(a, prompt, 40);
	CHECK(greedy_logits(b, prompt, 40) == want);
	const HostCopy& host = b.seq().fetch()->host();
	CHECK(host.file_bytes() == 2 * chunk_bytes(*file));
	CHECK(std::filesystem::is_empty(folder.path)); // the file has no name
	const auto fork = b.fork();
	const Tokens more = random_tokens(40, memory->config().vocab, 5);
	const Floats after = fed(a, more);
	CHECK(fed(b, more) == after);
	CHECK(fed(*fork, more) == after);
	b.reset();
	CHECK(greedy_logits(b, prompt, 40) == want);
	CHECK_THROWS_WITH_AS(open_cpu(1, folder.path / "none"), doctest::Contains("--offload-dir"), Error);
}

TEST_CASE("T75 fetch: a disk that is full ends an answer with what there is of it") {
	if (elsewhere()) return;
	const TempFolder folder;
	const auto engine = open_cpu(1, folder.path);
	const uint32_t vocab = engine->config().vocab;
	const Tokens prompt = random_tokens(200, vocab, 3);
	GenerateOptions opt;
	opt.n = 200;
	opt.sampling.temperature = 0;
	opt.ignore_end = true;
	Session whole(*engine, with(kPolicy, 600)), cut(*engine, with(kPolicy, 600));
	const Tokens want = generate(whole, prompt, opt).tokens;
	whole.reset();
	const FileLimit full(3 * chunk_bytes(*engine)); // the former size once, and no more
	whole.prefill(prompt);                          // one chunk, two are left
	Session third(*engine, with(kPolicy, 600));
	third.prefill(prompt);
	Batch batch(*engine);
	const uint32_t id = batch.add(cut, prompt, opt);
	while (batch.step()) {}
	const GenerateResult r = batch.take(id);
	REQUIRE(r.error);
	const Outcome o = outcome_of([&] { std::rethrow_exception(r.error); });
	CHECK(o.code == Code::Io);
	CHECK_MESSAGE(has(o.what, "no room for"), o.what);
	CHECK(r.tokens.size() > 20); // those of the first chunk
	CHECK(std::ranges::equal(r.tokens, std::span(want).first(r.tokens.size())));
	CHECK_THROWS_AS(cut.decode(r.tokens.back()), Error); // the disk is still full
	third.reset();                                       // now there is space
	Tokens got = r.tokens;
	for (Floats step = keep(cut.decode(got.back())); got.size() < 190; step = keep(cut.decode(got.back())))
		got.push_back(best(step));
	CHECK(std::ranges::equal(got, std::span(want).first(got.size())));
}

TEST_CASE("T75 fetch: tokens that a disk does not give back, or does not take, are an error") {
	if (elsewhere()) return;
	const TempFolder folder;
	const auto engine = open_cpu(1, folder.path);
	Session s(*engine, with(kPolicy, 600));
	answer(s, 3);
	const int fd = unnamed_file(folder.path);
	REQUIRE(fd >= 0);
	REQUIRE(ftruncate(fd, 0) == 0);
	const Outcome o = outcome_of([&] { answer(s, 100); });
	CHECK(o.threw);
	CHECK(o.code == Code::Io);
	CHECK_MESSAGE(has(o.what, "--offload-dir"), o.what);
	Session other(*engine, with(kPolicy, 600)); // takes separate space
	CHECK_NOTHROW(answer(other, 3));
}
