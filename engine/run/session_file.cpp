// A session in a file.
#include "engine/run/session_file.h"
#include "engine/core/limits.h"
#include "engine/core/regular_file.h"
#include "engine/core/utf8.h"
#include <algorithm>
#include <array>
#include <bit>
#include <nlohmann/json.hpp>
#include <xxhash.h>

namespace kvrun {
namespace {

static_assert(std::endian::native == std::endian::little); // headers and tokens are written as they lie in memory

using Json = nlohmann::ordered_json;

constexpr std::array<char, 8> kMagic = {'k', 'v', 'r', 'u', 'n', '-', 's', '\n'};
constexpr uint32_t kVersion = 1;
constexpr size_t kMaxFacts = size_t(1) << 20; // bytes

enum SectionKind { kFacts, kTokens, kBooks, kDevice, kNote, kSections };
constexpr const char* kSectionNames[kSections] = {"facts", "tokens", "books", "cache", "note"};

struct Section {
	uint64_t bytes, hash;
};
struct Header {
	std::array<char, 8> magic;
	uint32_t version, n_sections;
	uint64_t file_bytes;
	Section sections[kSections];
	uint64_t hash; // of all preceding bytes
};
static_assert(sizeof(Header) == 8 + 8 + 8 + kSections * 16 + 8);

uint64_t hash_of(std::span<const std::byte> bytes) { return XXH3_64bits(bytes.data(), bytes.size()); }
uint64_t hash_of(const Header& h) { return XXH3_64bits(&h, offsetof(Header, hash)); }

class Hash { // of bytes in pieces
 public:
	Hash() { XXH3_64bits_reset(state_); }
	~Hash() { XXH3_freeState(state_); }
	Hash(const Hash&) = delete;
	void add(std::span<const std::byte> bytes) { XXH3_64bits_update(state_, bytes.data(), bytes.size()); }
	uint64_t value() const { return XXH3_64bits_digest(state_); }

 private:
	XXH3_state_t* state_ = XXH3_createState();
};

// Hash of the layout of pages: it differs if another version of kvrun stores the same policy differently.
uint64_t layout_of(const KvPlan& plan) {
	std::vector<uint64_t> words;
	for (const PageFormat& f : plan.formats)
		words.insert(words.end(), {f.page, f.k_codes_at, f.v_codes_at, f.k_params_at, f.v_params_at, f.words});
	for (const LayerPlan& L : plan.layers) {
		words.insert(words.end(), {L.k_codes_of, L.v_codes_of, uint64_t(L.balanced)});
		for (const TierPlan& t : L.tier) words.insert(words.end(), {t.page_format, t.block_format});
	}
	for (int t = 0; t < kTiers; ++t) words.insert(words.end(), {plan.page[t], uint64_t(plan.fill[t])});
	words.insert(words.end(), {plan.n_groups, plan.n_heads});
	return hash_of(std::as_bytes(std::span(words)));
}

std::string hex(uint64_t x) { return fmt::format("{:016x}", x); }

uint64_t layout_of(const Session& s) {
	uint64_t h = layout_of(s.plan());
	if (s.window_plan()) h ^= std::rotl(layout_of(*s.window_plan()), 1);
	if (const StateSequence* states = s.states()) {
		const StateShape& shape = states->shape();
		// Without n-grams or an indexer all states have the same size.
		std::vector<uint64_t> words = {shape.n_layers(), shape.conv_words, shape.words[0] - shape.conv_words};
		if (std::ranges::any_of(shape.words, [&](uint32_t w) { return w != shape.words[0]; }))
			words.insert(words.end(), shape.words.begin(), shape.words.end());
		h ^= std::rotl(hash_of(std::as_bytes(std::span(words))), 2);
	}
	if (const IndexSequence* index = s.index()) {
		const IndexShape& shape = index->shape();
		const uint64_t words[] = {shape.n_layers, shape.dim, shape.block, shape.kPageKeys};
		h ^= std::rotl(hash_of(std::as_bytes(std::span(words))), 3);
	}
	for (const auto& entries : s.entries()) h = std::rotl(h, 5) ^ layout_of(entries->plan());
	return h;
}

// window_books: bytes at the end of the books that belong to the cache of layers with a window. entry_books: of those
// behind them, of the caches of entries of blocks.
Json facts_of(const Session& s, size_t window_books, const std::vector<size_t>& entry_books) {
	const DeviceInfo device = s.engine().backend().info();
	Json facts = {{"kvrun", KVRUN_VERSION},
	              {"model", hex(s.engine().fingerprint(s.lora_scales()))},
	              {"model_name", one_line(s.engine().config().name)},
	              {"policy", s.policy_text()},
	              {"layout", hex(layout_of(s))},
	              {"ctx", s.ctx()},
	              {"seed", s.seed()},
	              {"n_tokens", s.n_tokens()},
	              {"device", one_line(device.name)},
	              {"driver", one_line(device.driver)}};
	if (s.window_plan()) facts["window_books"] = window_books;
	if (!entry_books.empty()) facts["entry_books"] = entry_books;
	return facts;
}

// A session file being read: header and small sections are checked; `cache` is read and checked by the caller.
class SessionFile {
 public:
	explicit SessionFile(const std::string& path) : file_(path, "name a session file") {
		if (file_.bytes() < sizeof(Header)) damaged("it has {} bytes, a header has {}", file_.bytes(), sizeof(Header));
		file_.read_at(0, std::as_writable_bytes(std::span(&header_, 1)));
		if (header_.magic != kMagic) fail(Code::Format, "{}: not a session file of kvrun", file_.name());
		if (header_.version > kVersion)
			fail(Code::Unsupported, "{}: version is {}, this kvrun reads up to {}; use a newer one", file_.name(),
			     header_.version, kVersion);
		if (header_.hash != hash_of(header_)) damaged("the header's checksum is wrong");
		if (header_.version != kVersion || header_.n_sections != kSections)
			damaged("version is {} and it has {} sections", header_.version, header_.n_sections);
		uint64_t at = sizeof(Header);
		for (int i = 0; i < kSections; ++i) {
			at_[size_t(i)] = at;
			if (header_.sections[i].bytes > file_.bytes() - at)
				damaged("section '{}' has {} bytes, {} are left in the file", kSectionNames[i],
				        header_.sections[i].bytes, file_.bytes() - at);
			at += header_.sections[i].bytes;
		}
		if (at != file_.bytes() || header_.file_bytes != at)
			damaged("it has {} bytes, its header says {}", file_.bytes(), header_.file_bytes);
	}

	uint64_t bytes(SectionKind k) const { return header_.sections[k].bytes; }
	std::vector<std::byte> section(SectionKind k, size_t most) const {
		if (bytes(k) > most)
			damaged("section '{}' has {} bytes, at most {} are possible", kSectionNames[k], bytes(k), most);
		std::vector<std::byte> out(size_t(bytes(k)));
		file_.read_at(at_[k], out);
		check(k, hash_of(out));
		return out;
	}
	void check(SectionKind k, uint64_t hash) const {
		if (hash != header_.sections[k].hash) damaged("the checksum of section '{}' is wrong", kSectionNames[k]);
	}
	void read(SectionKind k, uint64_t from, std::span<std::byte> to) const {
		if (from + to.size() > bytes(k))
			damaged("section '{}' has {} bytes, the cache needs more", kSectionNames[k], bytes(k));
		file_.read_at(at_[k] + from, to);
	}
	template <class... A> [[noreturn]] void damaged(fmt::format_string<A...> f, A&&... a) const {
		fail(Code::Format, "{}: damaged session file: {}", file_.name(), fmt::format(f, std::forward<A>(a)...));
	}
	const std::string& name() const { return file_.name(); }

 private:
	RegularFile file_;
	Header header_{};
	std::array<uint64_t, kSections> at_{};
};

struct Facts {
	std::string model, model_name, policy, layout;
	uint32_t ctx = 0, n_tokens = 0;
	uint64_t seed = 0;
	size_t window_books = 0;
	std::vector<size_t> entry_books = {};
};

Facts read_facts(const SessionFile& file) {
	const std::vector<std::byte> raw = file.section(kFacts, kMaxFacts);
	const char* text = reinterpret_cast<const char*>(raw.data());
	const Json j = Json::parse(text, text + raw.size(), nullptr, /*allow_exceptions=*/false);
	const auto field = [&](const char* name, bool number) {
		if (!j.is_object() || !j.contains(name)) file.damaged("facts: '{}' is missing", name);
		const Json& value = j[name];
		if (number ? !value.is_number_unsigned() : !value.is_string())
			file.damaged("facts: '{}' is of the wrong type", name);
		return value;
	};
	const auto number = [&](const char* name, uint64_t most) {
		const uint64_t x = field(name, true).get<uint64_t>();
		if (x > most) file.damaged("facts: '{}' is {}, at most {} is possible", name, x, most);
		return x;
	};
	Facts f;
	f.model = field("model", false).get<std::string>();
	f.model_name = field("model_name", false).get<std::string>();
	f.policy = field("policy", false).get<std::string>();
	f.layout = field("layout", false).get<std::string>();
	f.ctx = uint32_t(number("ctx", kMaxContext));
	f.n_tokens = uint32_t(number("n_tokens", f.ctx));
	f.seed = number("seed", UINT64_MAX);
	if (j.contains("window_books")) f.window_books = size_t(number("window_books", UINT32_MAX));
	if (!j.contains("entry_books")) return f;
	constexpr size_t kMostCaches = 8;
	const Json& list = j["entry_books"];
	if (!list.is_array() || list.size() > kMostCaches) file.damaged("facts: 'entry_books' is no short list");
	for (const Json& n : list) {
		if (!n.is_number_unsigned() || n.get<uint64_t>() > UINT32_MAX)
			file.damaged("facts: 'entry_books' is of the wrong type");
		f.entry_books.push_back(n.get<size_t>());
	}
	return f;
}

} // namespace

void write_session(Session& s, NewFile& file, std::span<const std::byte> note) {
	if (note.size() > kMaxNote)
		fail(Code::Invalid, "the note has {} bytes, at most {} can be saved with a session", note.size(), kMaxNote);
	s.check_idle();
	if (s.plan().fetches())
		fail(Code::Unsupported,
		     "a session of policy '{}' cannot be saved: its f16 copy in host memory is no part of session files; give "
		     "fetch=0",
		     s.plan().policy.text);
	std::vector<std::byte> books = s.seq().cache().save_books();
	size_t window_books = 0;
	if (const KvSequence* w = s.window_seq()) {
		const std::vector<std::byte> more = w->cache().save_books();
		window_books = more.size();
		books.insert(books.end(), more.begin(), more.end());
	}
	std::vector<size_t> entry_books;
	for (const auto& entries : s.entries()) {
		const std::vector<std::byte> more = entries->cache().save_books();
		entry_books.push_back(more.size());
		books.insert(books.end(), more.begin(), more.end());
	}
	const std::string facts = facts_of(s, window_books, entry_books).dump();
	Header header{};
	file.write(std::as_bytes(std::span(&header, 1))); // reserves its place
	const auto add = [&](SectionKind k, std::span<const std::byte> bytes) {
		header.sections[k] = {bytes.size(), hash_of(bytes)};
		file.write(bytes);
	};
	add(kFacts, std::as_bytes(std::span(facts)));
	add(kTokens, std::as_bytes(s.history()));
	add(kBooks, books);
	const uint64_t at = file.bytes();
	Hash hash;
	const auto sink = [&](std::span<const std::byte> piece) {
		hash.add(piece);
		file.write(piece);
	};
	s.seq().save_device(sink);
	if (KvSequence* w = s.window_seq()) w->save_device(sink);
	if (const StateSequence* states = s.states()) states->save_device(sink);
	if (const IndexSequence* index = s.index()) index->save_device(sink);
	for (const auto& entries : s.entries()) entries->save_device(sink);
	header.sections[kDevice] = {file.bytes() - at, hash.value()};
	add(kNote, note);
	header.magic = kMagic;
	header.version = kVersion, header.n_sections = kSections;
	header.file_bytes = file.bytes();
	header.hash = hash_of(header);
	file.write_at(0, std::as_bytes(std::span(&header, 1)));
}

void save_session(Session& s, const std::string& path, std::span<const std::byte> note) {
	NewFile file(path, Readers::Owner);
	write_session(s, file, note);
	file.commit();
}

std::unique_ptr<Session> restore_session(Engine& e, const std::string& path, uint32_t checkpoints) {
	const SessionFile file(path);
	const Facts f = read_facts(file);
	if (f.model != hex(e.fingerprint(e.lora_scales()))) {
		if (f.model_name == e.config().name)
			fail(
			    Code::Invalid,
			    "{}: a session of another model with the same name, '{}', as one of another seed or quant, or of other "
			    "adapters; open those",
			    file.name(), one_line(f.model_name));
		fail(Code::Invalid, "{}: a session of another model ('{}', this is '{}'); open that one", file.name(),
		     one_line(f.model_name), one_line(e.config().name));
	}
	if (f.ctx == 0) file.damaged("facts: 'ctx' is 0");
	const std::vector<std::byte> tokens = file.section(kTokens, size_t(f.n_tokens) * 4);
	if (tokens.size() != size_t(f.n_tokens) * 4)
		file.damaged("section 'tokens' has {} bytes for {} tokens", tokens.size(), f.n_tokens);
	std::vector<uint32_t> history(f.n_tokens);
	std::ranges::copy(tokens, std::as_writable_bytes(std::span(history)).begin());
	for (const uint32_t t : history)
		if (t >= e.config().vocab && t != kNoToken && !is_image_row(t))
			file.damaged("token {} is outside the vocabulary of {}", t, e.config().vocab);
	SessionOptions options;
	try {
		options.kv = parse_policy(f.policy);
	} catch (const Error& error) { fail(error.code, "{}: facts: 'policy': {}", file.name(), error.what()); }
	options.ctx = f.ctx, options.seed = f.seed, options.checkpoints = checkpoints;
	auto session = std::make_unique<Session>(e, options);
	if (f.layout != hex(layout_of(*session)))
		fail(Code::Unsupported, "{}: this version of kvrun stores policy '{}' in another way; read the text again",
		     file.name(), one_line(f.policy));
	// upper bound of a token's bytes in the books: counts, and its entry in every token set
	size_t sets = size_t(session->plan().n_groups) * session->plan().n_heads + (session->window_plan() ? 2 : 0);
	for (const auto& entries : session->entries()) sets += 1 + entries->plan().n_groups * entries->plan().n_heads;
	const std::vector<std::byte> books = file.section(kBooks, 8192 + (size_t(f.n_tokens) + 64) * 32 * (sets + 1));
	if (f.window_books > books.size() || (f.window_books > 0) != bool(session->window_plan()))
		file.damaged("facts: 'window_books' is {}, section 'books' has {} bytes", f.window_books, books.size());
	size_t main_books = books.size() - f.window_books;
	std::vector<std::span<const std::byte>> entry_books;
	if (f.entry_books.size() != session->entries().size())
		file.damaged("facts: 'entry_books' has {} elements, expected {}", f.entry_books.size(),
		             session->entries().size());
	for (size_t i = f.entry_books.size(), end = books.size(); i-- > 0;) {
		if (f.entry_books[i] > main_books)
			file.damaged("facts: 'entry_books' has {}, section 'books' has {} bytes", f.entry_books[i], books.size());
		main_books -= f.entry_books[i], end -= f.entry_books[i];
		entry_books.insert(entry_books.begin(), std::span(books).subspan(end, f.entry_books[i]));
	}
	Hash hash;
	uint64_t at = 0;
	try {
		session->restore(std::span(books).first(main_books), std::span(books).subspan(main_books, f.window_books),
		                 entry_books, std::move(history), [&](std::span<std::byte> piece) {
			                 file.read(kDevice, at, piece);
			                 hash.add(piece);
			                 at += piece.size();
		                 });
	} catch (const Error& error) {
		if (error.code != Code::Format || std::string_view(error.what()).starts_with(file.name())) throw;
		file.damaged("section 'books': {}", error.what());
	}
	if (at != file.bytes(kDevice))
		file.damaged("section 'cache' has {} bytes, the cache has {}", file.bytes(kDevice), at);
	file.check(kDevice, hash.value());
	return session;
}

std::vector<std::byte> read_session_note(const std::string& path) {
	const SessionFile file(path);
	read_facts(file);
	return file.section(kNote, kMaxNote);
}

} // namespace kvrun
