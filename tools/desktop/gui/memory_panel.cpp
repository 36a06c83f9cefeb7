// "Memory for conversations": a slider from quality to length, and the cost of each position.
#include "tools/desktop/gui/memory_panel.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include "tools/desktop/memory_choices.h"
#include "tools/desktop/words.h"
#include <QComboBox>
#include <QHBoxLayout>
#include <QPainter>
#include <QSlider>
#include <algorithm>
#include <cmath>

namespace kvrun::desktop {
namespace {

QString count_text(uint64_t n) { return text_of(human_count(n)); }

QString loss_text(const MemoryChoice& c) {
	if (c.divergence <= 0) return "no loss";
	return QString("%1 in 1000 words differ").arg(int(std::lround((1 - c.same_token) * 1000)));
}

} // namespace

// One policy: its name, a bar of the memory, and its numbers.
class PlanRow : public QPushButton {
 public:
	PlanRow() {
		setProperty("row", true);
		setCheckable(true);
		setSizePolicy(QSizePolicy::Expanding, QSizePolicy::Fixed);
	}
	QSize sizeHint() const override { return {em(30), em(2.6)}; }
	QSize minimumSizeHint() const override { return {em(18), em(2.6)}; }
	void set(const QString& name, const QString& loss, const PolicyPlan* p) {
		name_ = name, loss_ = loss;
		known_ = p != nullptr;
		if (p) plan_ = *p;
		const kvrun_plan& n = plan_.plan;
		numbers_ =
		    !p                  ? QString()
		    : !p->error.empty() ? text_of(window_words(p->error))
		    : n.fits            ? QString("%1 for %2 tokens").arg(size_text(n.kv_bytes), count_text(n.ctx))
		             : QString("%1 do not fit; %2 tokens would").arg(size_text(n.kv_bytes), count_text(n.most_tokens));
		setAccessibleName(name_ + ": " + numbers_ + ", " + loss_);
		setToolTip(plain_tip(QString("%1 (%2)\n%3\n%4").arg(name_, text_of(plan_.kv), numbers_, loss_)));
		update();
	}

 protected:
	void paintEvent(QPaintEvent* e) override {
		QPushButton::paintEvent(e);
		QPainter p(this);
		p.setRenderHint(QPainter::Antialiasing);
		const Theme& t = theme();
		const QRect in = rect().adjusted(em(0.7), em(0.25), -em(0.7), -em(0.25));
		const int line = fontMetrics().height();
		const int left = em(6.2), right = std::min(em(16), in.width() / 2);
		p.setPen(t.text);
		p.drawText(QRect(in.left(), in.top(), left, in.height()), int(Qt::AlignVCenter | Qt::AlignLeft),
		           fontMetrics().elidedText(name_, Qt::ElideRight, left - em(0.5)));
		const bool bad = known_ && (!plan_.error.empty() || !plan_.plan.fits);
		const QRect words(in.right() - right, in.top(), right, in.height());
		p.setPen(bad ? t.bad : t.text);
		p.drawText(QRect(words.left(), words.top(), right, line), int(Qt::AlignVCenter | Qt::AlignLeft),
		           fontMetrics().elidedText(known_ ? numbers_ : QString("\u2026"), Qt::ElideRight, right));
		p.setPen(t.dim);
		p.drawText(QRect(words.left(), words.bottom() - line + 1, right, line), int(Qt::AlignVCenter | Qt::AlignLeft),
		           fontMetrics().elidedText(loss_, Qt::ElideRight, right));
		const QRectF bar(in.left() + left, in.center().y() - em(0.35), in.width() - left - right - em(0.8), em(0.7));
		if (bar.width() > em(2)) paint_bar(p, bar);
	}

 private:
	void paint_bar(QPainter& p, const QRectF& bar) {
		const Theme& t = theme();
		p.fillRect(bar, t.line);
		if (!known_ || !plan_.error.empty()) return;
		const kvrun_plan& n = plan_.plan;
		const uint64_t work = n.activation_bytes + n.prompt_bytes + n.reserve_bytes,
		               need = n.weight_bytes + work + n.kv_bytes;
		const double all = double(std::max({need, n.memory_bytes, uint64_t(1)}));
		double x = bar.left();
		for (const auto& [bytes, colour] :
		     {std::pair{n.weight_bytes, t.weights}, {work, t.work}, {n.kv_bytes, n.fits ? t.cache : t.bad}}) {
			const double width = double(bytes) / all * bar.width();
			p.fillRect(QRectF(x, bar.top(), width, bar.height()), colour);
			x += width;
		}
		if (need <= n.memory_bytes) return;
		const double end = bar.left() + double(n.memory_bytes) / all * bar.width(); // as a share of all memory
		p.fillRect(QRectF(end - 1, bar.top() - em(0.2), 2, bar.height() + em(0.4)), t.text);
	}
	QString name_, loss_, numbers_;
	PolicyPlan plan_;
	bool known_ = false;
};

MemoryPanel::MemoryPanel() {
	auto* column = new QVBoxLayout(this);
	column->setContentsMargins(0, 0, 0, 0);
	column->setSpacing(em(0.3));
	auto* ends = new QHBoxLayout;
	auto* quality = new_label("Best quality", "dim");
	auto* length = new_label("Longest conversations", "dim");
	length->setAlignment(Qt::AlignRight);
	ends->addWidget(quality);
	ends->addWidget(length);
	column->addLayout(ends);
	slider_ = new Calm<QSlider>;
	slider_->setOrientation(Qt::Horizontal);
	slider_->setRange(0, int(memory_choices().size()) - 1);
	slider_->setPageStep(1);
	slider_->setAccessibleName("Memory for conversations, from the best quality to the longest conversations");
	column->addWidget(slider_);
	summary_ = new_label("");
	summary_->setMinimumHeight(em(2.2));
	column->addWidget(summary_);
	auto* plan = new QWidget;
	plan->setProperty("region", "plan");
	auto* lines = new QVBoxLayout(plan);
	lines->setContentsMargins(0, 0, 0, 0);
	lines->setSpacing(0);
	for (size_t i = 0; i < memory_choices().size(); ++i) {
		rows_.push_back(new PlanRow);
		rows_.back()->setFocusPolicy(Qt::NoFocus); // the keyboard uses the slider instead
		connect(rows_.back(), &QPushButton::clicked, this, [this, i] { choose(int(i)); });
		lines->addWidget(rows_.back());
	}
	other_ = new PlanRow;
	other_->setFocusPolicy(Qt::NoFocus);
	connect(other_, &QPushButton::clicked, this, [this] { refresh(); });
	lines->addWidget(other_);
	column->addWidget(plan);
	legend_ = new QLabel;
	legend_->setWordWrap(true);
	column->addWidget(legend_);
	auto* row = new QHBoxLayout;
	auto* name = new QLabel("Longest conversation");
	length_ = new Calm<QComboBox>;
	length_->setMinimumWidth(em(11));
	length_->setAccessibleName("Longest conversation, in tokens");
	length_->setToolTip("A token is about three quarters of a word.");
	name->setBuddy(length_);
	length_->addItem("As long as fits", 0u);
	for (uint32_t n = 2048; n <= 1u << 20; n *= 2) length_->addItem(count_text(n) + " tokens", n);
	row->addWidget(name);
	row->addWidget(length_);
	row->addStretch();
	column->addLayout(row);
	connect(slider_, &QSlider::valueChanged, this, [this](int at) { choose(at); });
	connect(length_, &QComboBox::currentIndexChanged, this, [this] {
		if (setting_) return;
		ctx_ = length_->currentData().toUInt();
		changed();
	});
}

void MemoryPanel::choose(int place) {
	if (setting_) return;
	kv_ = memory_choices()[size_t(place)].kv;
	refresh();
	changed();
}

void MemoryPanel::set(const std::string& kv, uint32_t ctx) {
	kv_ = kv, ctx_ = ctx;
	setting_ = true;
	int at = length_->findData(ctx);
	if (at < 0) {
		length_->addItem(count_text(ctx) + " tokens", ctx);
		at = length_->count() - 1;
	}
	length_->setCurrentIndex(at);
	setting_ = false;
	refresh();
}

void MemoryPanel::show_plan(const std::optional<Plan>& plan, bool has_model) {
	plan_ = plan;
	refresh();
	if (!has_model) summary_->setText("Choose a model to see what fits into the memory of this computer.");
}

void MemoryPanel::refresh() {
	const int place = memory_choice_of(kv_);
	setting_ = true;
	slider_->setValue(std::max(place, 0));
	setting_ = false;
	const auto plan_of = [&](const std::string& kv) -> const PolicyPlan* {
		if (!plan_) return nullptr;
		const auto at = std::ranges::find(plan_->policies, kv, &PolicyPlan::kv);
		return at == plan_->policies.end() ? nullptr : &*at;
	};
	for (size_t i = 0; i < rows_.size(); ++i) {
		const MemoryChoice& c = memory_choices()[i];
		rows_[i]->set(text_of(c.name), loss_text(c), plan_of(c.kv));
		rows_[i]->setChecked(int(i) == place);
	}
	other_->setVisible(place < 0);
	other_->setChecked(place < 0);
	if (place < 0) other_->set(text_of(kv_), "set by an expert; its loss has not been measured here", plan_of(kv_));
	const PolicyPlan* p = plan_of(kv_);
	QString text = place < 0 ? QString("A setting of your own.") : text_of(memory_choices()[size_t(place)].what);
	if (p && p->error.empty()) {
		const kvrun_plan& n = p->plan;
		text += QString(" A conversation of %1 tokens takes %2").arg(count_text(n.ctx), size_text(n.kv_bytes));
		if (n.kv_f16_bytes > n.kv_bytes) text += QString(" instead of %1").arg(size_text(n.kv_f16_bytes));
		text += n.fits && n.most_tokens < n.ctx
		            ? QString(". The model was trained for %1 tokens.").arg(count_text(n.most_tokens))
		        : n.fits ? QString("; up to %1 tokens fit.").arg(count_text(n.most_tokens))
		                 : QString(". That is more than there is: up to %1 tokens fit.").arg(count_text(n.most_tokens));
		if (n.evicts) text += " Old parts of a conversation are forgotten for good.";
	}
	summary_->setText(text);
	const auto swatch = [](const QColor& c, const char* name) {
		return QString("<span style=\"color:%1\">\u25a0</span> <span style=\"color:%2\">%3</span>&nbsp;&nbsp; ")
		    .arg(c.name(), theme().dim.name(), name);
	};
	const Theme& t = theme();
	legend_->setText(
	    swatch(t.weights, "model") + swatch(t.work, "work space") + swatch(t.cache, "conversation") +
	    swatch(t.line, "free") +
	    QString("<span style=\"color:%1\">Loss: measured on a small model, SmolLM2-135M; larger ones lose less.</span>")
	        .arg(t.dim.name()));
}

} // namespace kvrun::desktop
