// Special tokens in a text.
#include "models/special_tokens.h"
#include "engine/core/error.h"
#include <algorithm>

namespace kvrun {
namespace {

// Text is searched in blocks. Each search also reads the bytes behind its block that a token may reach.
constexpr size_t kBlockBytes = 16 * kMaxTokenBytes;

} // namespace

SpecialTokens::SpecialTokens(const Vocab& v) { link(add_texts(v)); }

std::vector<SpecialTokens::Step> SpecialTokens::add_texts(const Vocab& v) {
	std::vector<Step> steps(1);
	size_t bytes = 0;
	for (uint32_t id = 0; id < v.size(); ++id) {
		const std::string_view t = v.texts[id];
		if (!v.is_special(id) || v.find(t) != id) continue; // empty, or a repeated text
		bytes += t.size();
		if (bytes > kMaxSpecialBytes)
			fail(Code::Format, "{}: control and user-defined tokens have more than {} bytes; the file is damaged",
			     v.file, kMaxSpecialBytes);
		uint32_t node = 0;
		for (size_t i = t.size(); i-- > 0;) {
			const uint8_t c = uint8_t(t[i]);
			const uint32_t* known = edges_.find(node, c);
			if (!known) {
				edges_.insert(node, c, uint32_t(nodes_.size()));
				if (node == 0) roots_[c] = uint32_t(nodes_.size());
				steps.push_back({node, steps[node].depth + 1, c});
				nodes_.emplace_back();
			}
			node = known ? *known : uint32_t(nodes_.size() - 1);
		}
		nodes_[node].any = id;
		if (v.kinds[id] == TokenKind::UserDefined) nodes_[node].user = id;
		longest_ = std::max(longest_, t.size());
		any_ = true;
		user_ = user_ || v.kinds[id] == TokenKind::UserDefined;
	}
	return steps;
}

// Suffixes of a node are shorter than the node, so nodes are linked in order of depth.
void SpecialTokens::link(const std::vector<Step>& steps) {
	std::vector<uint32_t> order(nodes_.size());
	for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
	std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return steps[a].depth < steps[b].depth; });
	for (uint32_t i : order) {
		if (i == 0) continue;
		Node& n = nodes_[i];
		n.fail = steps[i].parent == 0 ? 0 : step(nodes_[steps[i].parent].fail, steps[i].byte);
		if (n.any == kNoToken) n.any = nodes_[n.fail].any;
		if (n.user == kNoToken) n.user = nodes_[n.fail].user;
	}
}

uint32_t SpecialTokens::step(uint32_t node, uint8_t c) const {
	for (; node != 0; node = nodes_[node].fail)
		if (const uint32_t* next = edges_.find(node, c)) return *next;
	return roots_[c];
}

void SpecialTokens::Finder::fill(size_t begin) {
	const size_t end = std::min(begin + kBlockBytes, text_.size());
	begin_ = begin;
	found_.resize(end - begin);
	uint32_t node = 0;
	for (size_t i = std::min(end + tokens_.longest_ - 1, text_.size()); i-- > begin;) {
		node = tokens_.step(node, uint8_t(text_[i]));
		if (i < end) found_[i - begin] = tokens_.nodes_[node].longest(control_);
	}
}

SpecialTokens::Hit SpecialTokens::Finder::next(size_t from) {
	if (!(control_ ? tokens_.any_ : tokens_.user_)) return {text_.size(), kNoToken};
	for (size_t at = from; at < text_.size(); ++at) {
		if (at >= begin_ + found_.size()) fill(at);
		if (const uint32_t id = found_[at - begin_]; id != kNoToken) return {at, id};
	}
	return {text_.size(), kNoToken};
}

} // namespace kvrun
