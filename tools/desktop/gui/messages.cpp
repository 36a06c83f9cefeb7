// The shown branch of a conversation; it scrolls along while an answer grows.
#include "tools/desktop/gui/messages.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include <QHBoxLayout>
#include <QScrollBar>
#include <QTimer>
#include <algorithm>
#include <utility>

namespace kvrun::desktop {
namespace {

constexpr size_t kAtOnce = 40;    // messages shown at once; each has its own layout
constexpr double kColumnEms = 46; // widest column: longer lines are hard to read

} // namespace

Messages::Messages(MessageActions actions) : actions_(std::move(actions)), most_(kAtOnce) {
	setWidgetResizable(true);
	setProperty("region", "messages");
	setFocusPolicy(Qt::NoFocus);
	setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
	auto* page = new QWidget;
	set_role(page, "messages");
	auto* centre = new QHBoxLayout(page);
	centre->setContentsMargins(em(), em(), em(), em(0.5));
	column_ = new QWidget;
	column_->setMaximumWidth(em(kColumnEms));
	layout_ = new QVBoxLayout(column_);
	layout_->setContentsMargins(0, 0, 0, 0);
	earlier_ = new QPushButton("Show earlier messages");
	earlier_->hide();
	layout_->addWidget(earlier_, 0, Qt::AlignHCenter);
	nothing_ = new QWidget;
	auto* words = new QVBoxLayout(nothing_);
	words->addStretch();
	for (const auto& [text, role] : {std::pair{"What would you like to know?", "huge"},
	                                 {"Enter sends, Shift+Enter begins a new line, F1 lists all keys.", "dim"}}) {
		auto* l = new_label(text, role);
		l->setAlignment(Qt::AlignHCenter);
		words->addWidget(l);
	}
	words->addStretch();
	layout_->addWidget(nothing_, 1);
	layout_->addStretch();
	centre->addStretch(1);
	centre->addWidget(column_, 100);
	centre->addStretch(1);
	setWidget(page);
	connect(earlier_, &QPushButton::clicked, this, [this] {
		most_ += kAtOnce;
		follows_ = false;
		actions_.earlier();
	});
	QScrollBar* bar = verticalScrollBar();
	connect(bar, &QScrollBar::rangeChanged, this, [this, bar](int, int most) {
		if (target_ != kNone)
			scroll_to_target();
		else if (follows_)
			bar->setValue(most);
	});
	connect(bar, &QScrollBar::actionTriggered, this, [this] { target_ = kNone; });
	connect(bar, &QScrollBar::valueChanged, this, [this, bar](int at) { follows_ = at >= bar->maximum() - em(); });
}

void Messages::rebuild(const std::vector<int>& branch) {
	const size_t first = branch.size() > most_ ? branch.size() - most_ : 0;
	earlier_->setVisible(first > 0);
	size_t same = 0; // number of views that are kept
	while (same < views_.size() && first + same < branch.size() && views_[same]->number() == branch[first + same])
		++same;
	for (size_t i = same; i < views_.size(); ++i) views_[i]->hide(), views_[i]->deleteLater();
	views_.resize(same);
	for (size_t i = first + same; i < branch.size(); ++i) {
		views_.push_back(new MessageView(branch[i], actions_));
		layout_->insertWidget(layout_->count() - 1, views_.back());
	}
}

void Messages::refresh(const Conversation* c, const Live& live, const Draft& draft) {
	const std::string id = c ? c->id : "";
	if (id != id_) {
		for (MessageView* v : views_) v->hide(), v->deleteLater();
		views_.clear();
		if (!id_.empty()) {
			most_ = kAtOnce;
			if (!finds_) target_ = kNone;
		}
		follows_ = target_ == kNone;
	}
	id_ = id;
	const std::vector<int> branch = c ? c->branch() : std::vector<int>{};
	nothing_->setVisible(branch.empty());
	if (const auto at = std::ranges::find(branch, target_); std::exchange(finds_, false)) {
		if (at == branch.end())
			target_ = kNone;
		else
			most_ = std::max(most_, size_t(branch.end() - at));
	}
	rebuild(branch);
	for (MessageView* v : views_) {
		v->update(*c, live);
		if (v->number() == draft.edited && live.answering == kNone) v->open_editor(text_of(draft.edit_text));
	}
}

void Messages::show_words(int message, const QString& words) {
	target_ = message, words_ = words;
	finds_ = true, follows_ = false;
	QTimer::singleShot(0, this, [this] { scroll_to_target(); }); // if the range stays as it is
}

void Messages::scroll_to_target() {
	for (MessageView* v : views_) {
		if (v->number() != target_) continue;
		const int y = v->mapTo(widget(), QPoint(0, v->find_words(words_))).y();
		verticalScrollBar()->setValue(y - em(2));
		follows_ = false;
	}
}

void Messages::wheelEvent(QWheelEvent* e) {
	target_ = kNone;
	QScrollArea::wheelEvent(e);
}

void Messages::to_end() {
	target_ = kNone;
	follows_ = true;
	verticalScrollBar()->setValue(verticalScrollBar()->maximum());
}

void Messages::page(int by) {
	target_ = kNone;
	QScrollBar* bar = verticalScrollBar();
	bar->setValue(bar->value() + by * bar->pageStep() * 9 / 10);
}

void Messages::begin_edit(int message) {
	for (MessageView* v : views_)
		if (v->number() == message) {
			v->begin_edit();
			QTimer::singleShot(0, v, [this, v] { ensureWidgetVisible(v); });
		}
}

bool Messages::focus_edit() {
	return std::ranges::any_of(views_, [](MessageView* v) { return v->focus_editor(); });
}

bool Messages::cancel_edit() {
	for (MessageView* v : views_)
		if (v->editing()) return v->cancel_edit(), true;
	return false;
}

} // namespace kvrun::desktop
