// The shown branch of a conversation; it scrolls along while an answer grows.
#include "tools/desktop/gui/messages.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include <QHBoxLayout>
#include <QScrollBar>
#include <QTimer>
#include <algorithm>

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
		id_.clear();
	});
	QScrollBar* bar = verticalScrollBar();
	connect(bar, &QScrollBar::rangeChanged, this, [this, bar](int, int most) {
		if (follows_) bar->setValue(most);
	});
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

void Messages::refresh(const Conversation* c, const Live& live) {
	const std::string id = c ? c->id : "";
	if (id != id_) {
		for (MessageView* v : views_) v->hide(), v->deleteLater();
		views_.clear();
		if (!id_.empty()) most_ = kAtOnce;
		follows_ = true;
	}
	id_ = id;
	const std::vector<int> branch = c ? c->branch() : std::vector<int>{};
	nothing_->setVisible(branch.empty());
	rebuild(branch);
	for (MessageView* v : views_) v->update(*c, live);
}

void Messages::to_end() {
	follows_ = true;
	verticalScrollBar()->setValue(verticalScrollBar()->maximum());
}

void Messages::page(int by) {
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

bool Messages::cancel_edit() {
	for (MessageView* v : views_)
		if (v->editing()) return v->cancel_edit(), true;
	return false;
}

} // namespace kvrun::desktop
