// Answers of gpt-oss: messages on channels.
#include "models/chat/harmony.h"
#include <algorithm>

namespace kvrun {
namespace {

constexpr std::string_view kMessage = "<|message|>";
constexpr std::string_view kMarkers[] = {"<|channel|>", "<|start|>",   "<|end|>",      "<|return|>",
                                         "<|call|>",    "<|message|>", "<|constrain|>"};

} // namespace

std::vector<HarmonyStream::Piece> HarmonyStream::push(std::string_view text) {
	std::vector<Piece> out;
	buffer_ += text;
	step(out, /*last=*/false);
	return out;
}

std::vector<HarmonyStream::Piece> HarmonyStream::finish() {
	std::vector<Piece> out;
	step(out, /*last=*/true);
	if (in_header_ && !begun_) show_header(out);
	if (!in_header_) end_message(out);
	return out;
}

void HarmonyStream::step(std::vector<Piece>& out, bool last) {
	while (!buffer_.empty()) {
		size_t at = buffer_.npos;
		std::string_view marker;
		for (const std::string_view m : kMarkers)
			if (const size_t found = buffer_.find(m); found < at) at = found, marker = m;
		if (at == buffer_.npos) { // the end of the text may begin a marker
			size_t keep = 0;
			for (const std::string_view m : kMarkers)
				for (size_t n = std::min(buffer_.size(), m.size() - 1); n > keep && !last; --n)
					if (buffer_.ends_with(m.substr(0, n))) keep = n;
			const std::string text = buffer_.substr(0, buffer_.size() - keep);
			buffer_.erase(0, text.size());
			add_text(out, text);
			return;
		}
		const std::string text = buffer_.substr(0, at);
		buffer_.erase(0, at + marker.size());
		add_text(out, text);
		const bool goes_on = marker == "<|channel|>" || marker == "<|constrain|>" || marker == kMessage;
		if (in_header_ && !begun_ && !(goes_on && header_.find(kTo) != header_.npos)) show_header(out);
		if (!in_header_) {
			if (marker == "<|constrain|>") continue;
			end_message(out);
			in_header_ = true;
			header_.clear();
			if (marker == "<|channel|>") header_ = "<|channel|>";
			begun_ = true;
			continue;
		}
		begun_ = true;
		if (marker == kMessage) {
			read_header();
			in_header_ = false;
		} else if (marker == "<|start|>") {
			header_.clear();
		} else {
			header_ += marker;
		}
	}
}

// "<|channel|>commentary to=functions.f <|constrain|>json", or with the recipient before the channel.
void HarmonyStream::read_header() {
	const size_t channel = header_.find("<|channel|>");
	const std::string name =
	    channel == header_.npos
	        ? "final"
	        : header_.substr(channel + 11, header_.find_first_of(" <\n", channel + 11) - channel - 11);
	kind_ = name == "analysis" ? Piece::Kind::Reasoning : Piece::Kind::Content;
	recipient_.clear();
	if (const size_t to = header_.find(kTo); to != header_.npos) {
		recipient_ = header_.substr(to + 3, header_.find_first_of(" <\n", to) - to - 3);
		if (recipient_.starts_with("functions.")) recipient_.erase(0, 10);
		if (!recipient_.empty()) kind_ = Piece::Kind::Call;
	}
}

// Whether the text before any channel may name a recipient: " to=functions.f<|channel|>commentary json<|message|>".
bool HarmonyStream::may_be_recipient() const {
	std::string_view text = header_;
	text.remove_prefix(std::min(text.find_first_not_of(" \n"), text.size()));
	text = text.substr(0, text.find_last_not_of(" \n") + 1);
	return text.substr(0, kTo.size()) == kTo.substr(0, text.size()) && text.find_first_of(" \n") == text.npos;
}

// Text before any channel is content, unless it names a recipient.
void HarmonyStream::add_text(std::vector<Piece>& out, const std::string& text) {
	if (!in_header_) return show(out, text);
	header_ += text;
	if (!begun_ && !may_be_recipient()) show_header(out);
}

void HarmonyStream::show_header(std::vector<Piece>& out) {
	if (header_.find_first_not_of(" \n") == header_.npos) return;
	in_header_ = false;
	begun_ = true;
	show(out, std::exchange(header_, {}));
}

void HarmonyStream::show(std::vector<Piece>& out, std::string_view text) {
	if (text.empty()) return;
	if (kind_ == Piece::Kind::Call)
		arguments_ += text;
	else
		out.push_back({kind_, std::string(text), ""});
}

void HarmonyStream::end_message(std::vector<Piece>& out) {
	if (kind_ == Piece::Kind::Call) out.push_back({kind_, std::exchange(arguments_, {}), recipient_});
	arguments_.clear();
	kind_ = Piece::Kind::Content;
}

} // namespace kvrun
