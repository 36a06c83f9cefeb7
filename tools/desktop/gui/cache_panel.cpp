// For experts: the cache of the conversation, a column per token coloured by its tier, and its bytes by kind.
#include "tools/desktop/gui/cache_panel.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include "tools/desktop/words.h"
#include <QHBoxLayout>
#include <QPainter>
#include <QSpinBox>
#include <algorithm>
#include <array>

namespace kvrun::desktop {
namespace {

QString swatch(const QColor& c, const QString& text) {
	return QString("<span style=\"color:%1\">\u25a0</span> %2&nbsp;&nbsp; ").arg(c.name(), text);
}

} // namespace

CacheStrip::CacheStrip() {
	setFixedHeight(em(2.2));
	setAccessibleName("How each token of the conversation is stored");
	setProperty("region", "strip");
}

void CacheStrip::set(const CacheView& v) {
	view_ = v;
	update();
}

// If there are more tokens than pixels, a column shows the shares of the tiers of several tokens.
void CacheStrip::paintEvent(QPaintEvent*) {
	QPainter p(this);
	const Theme& t = theme();
	p.fillRect(rect(), t.card);
	const std::vector<uint8_t>& tiers = view_.tiers;
	const double upper = height() * 0.75;
	const size_t n = tiers.size(), room = std::max<size_t>({n, std::min<size_t>(view_.ctx, 2 * n), 128});
	const size_t columns =
	    std::min(n, std::max(size_t(double(n) / double(room) * width() * devicePixelRatio()), size_t(1)));
	const double step = width() / double(room) * double(n) / double(std::max<size_t>(columns, 1));
	for (size_t c = 0; c < columns; ++c) {
		std::array<size_t, 4> count{};
		const size_t first = c * n / columns, end = (c + 1) * n / columns;
		for (size_t i = first; i < end; ++i) ++count[std::min<size_t>(tiers[i], 3)];
		double y = 0;
		for (size_t k = 0; k < 4; ++k) {
			const double share = upper * double(count[k]) / double(end - first);
			if (count[k]) p.fillRect(QRectF(double(c) * step, y, step, share), t.tiers[k]);
			y += share;
		}
	}
	const double all = double(std::max({view_.total_bytes(), view_.f16_equivalent, uint64_t(1)}));
	double x = 0;
	for (const auto& [bytes, colour] : {std::pair{view_.f16_bytes, t.tiers[0]},
	                                    {view_.code_bytes, t.tiers[2]},
	                                    {view_.param_bytes, t.scales},
	                                    {view_.overhead_bytes, t.other}}) {
		const double share = double(bytes) / all * width();
		p.fillRect(QRectF(x, upper + 2, share, height() - upper - 2), colour);
		x += share;
	}
}

CachePanel::CachePanel(State& s) : state_(s) {
	setProperty("region", "cache");
	auto* column = new QVBoxLayout(this);
	column->setContentsMargins(em(0.5), 0, em(0.5), em(0.3));
	column->setSpacing(em(0.2));
	auto* row = new QHBoxLayout;
	legend_ = new QLabel;
	row->addWidget(legend_, 1);
	const auto choice = [&](const char* name, const char* more) {
		auto* l = new QLabel(name);
		set_role(l, "dim");
		auto* box = new QSpinBox;
		box->setButtonSymbols(QAbstractSpinBox::NoButtons); // arrow keys do the same
		box->setAccessibleName(more);
		box->setToolTip(more);
		l->setToolTip(more);
		row->addWidget(l);
		row->addWidget(box);
		connect(box, &QSpinBox::valueChanged, this,
		        [this] { state_.watch(uint32_t(layer_->value()), uint32_t(head_->value())); });
		return box;
	};
	layer_ = choice("layer", "Layer of the model whose tokens are shown: each decides for itself what it keeps");
	head_ = choice("head", "Attention head of that layer whose tokens are shown");
	column->addLayout(row);
	column->addWidget(strip_ = new CacheStrip);
	column->addWidget(bytes_ = new QLabel);
}

void CachePanel::refresh() {
	const CacheView& v = state_.live(state_.current_id).cache;
	const Theme& t = theme();
	layer_->setMaximum(std::max(0, int(state_.facts.n_layers) - 1));
	head_->setMaximum(std::max(0, int(state_.facts.n_kv_heads) - 1));
	static constexpr const char* kNames[] = {"exact", "packed, more bits", "packed", "dropped"};
	QString legend =
	    v.tiers.empty() ? QString("Nothing is in memory yet; the next question reads the conversation.") : QString();
	for (size_t i = 0; i < 4; ++i)
		if (const auto n = std::ranges::count(v.tiers, uint8_t(i)))
			legend += swatch(t.tiers[i], QString("%1 %2").arg(n).arg(kNames[i]));
	legend_->setText(legend);
	QString bytes;
	const auto part = [&](const QColor& c, const char* name, uint64_t n) {
		if (n) bytes += swatch(c, QString("%1 %2").arg(name, size_text(n)));
	};
	part(t.tiers[0], "exact", v.f16_bytes);
	part(t.tiers[2], "packed", v.code_bytes);
	part(t.scales, "scales", v.param_bytes);
	part(t.other, "tables and empty places", v.overhead_bytes);
	bytes_->setText(bytes);
	strip_->set(v);
}

} // namespace kvrun::desktop
