// The list of conversations with a search over all their text.
#include "tools/desktop/gui/sidebar.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include <QDateTime>
#include <QHBoxLayout>
#include <QKeyEvent>
#include <QLineEdit>
#include <QListWidget>
#include <QMenu>
#include <QPainter>
#include <QStyledItemDelegate>
#include <algorithm>

namespace kvrun::desktop {
namespace {

enum { kId = Qt::UserRole, kBelow };

QString time_text(int64_t ms) {
	const QDateTime t = QDateTime::fromMSecsSinceEpoch(ms);
	const qint64 days = t.date().daysTo(QDate::currentDate());
	if (days == 0) return "Today, " + t.time().toString("HH:mm");
	if (days == 1) return "Yesterday, " + t.time().toString("HH:mm");
	return QLocale().toString(t.date(), QLocale::ShortFormat);
}

// Where a conversation contains the words; the shown branch comes first.
std::optional<Hit> found_in(const Conversation& c, const std::string& asked) {
	const QString words = text_of(asked);
	if (text_of(c.title).contains(words, Qt::CaseInsensitive)) return Hit{};
	std::vector<int> order = c.branch();
	for (int m = 0; m < int(c.messages.size()); ++m) order.push_back(m);
	for (const int m : order) {
		const QString text = text_of(c.messages[size_t(m)].text);
		const qsizetype at = text.indexOf(words, 0, Qt::CaseInsensitive);
		if (at < 0) continue;
		const qsizetype from = std::max<qsizetype>(0, at - 12);
		return Hit{m, ((from ? QString("\u2026") : QString()) + text.mid(from, 80).simplified()).toStdString()};
	}
	return std::nullopt;
}

// A title and a line below it, both shortened by an ellipsis.
class RowPainter : public QStyledItemDelegate {
 public:
	QSize sizeHint(const QStyleOptionViewItem&, const QModelIndex&) const override { return {em(8), em(2.9)}; }
	void paint(QPainter* p, const QStyleOptionViewItem& option, const QModelIndex& index) const override {
		QStyleOptionViewItem o = option;
		initStyleOption(&o, index);
		const QString title = o.text;
		o.text.clear();
		o.widget->style()->drawControl(QStyle::CE_ItemViewItem, &o, p, o.widget);
		const QRect in = o.rect.adjusted(em(0.6), em(0.3), -em(0.6), -em(0.3));
		const int line = o.fontMetrics.height();
		p->save();
		p->setFont(o.font);
		p->setPen(theme().text);
		p->drawText(QRect(in.left(), in.top(), in.width(), line), int(Qt::AlignVCenter | Qt::AlignLeft),
		            elided_title(o.fontMetrics, title, in.width()));
		QFont small = o.font;
		small.setPointSizeF(o.font.pointSizeF() * 0.85);
		p->setFont(small);
		p->setPen(theme().dim);
		p->drawText(QRect(in.left(), in.bottom() - line + 1, in.width(), line), int(Qt::AlignVCenter | Qt::AlignLeft),
		            QFontMetrics(small).elidedText(index.data(kBelow).toString(), Qt::ElideRight, in.width()));
		p->restore();
	}
};

} // namespace

Sidebar::Sidebar(State& s, Actions a) : state_(s), found_(found_in), actions_(std::move(a)) {
	set_role(this, "side");
	setProperty("region", "list");
	setFixedWidth(em(14));
	auto* column = new QVBoxLayout(this);
	column->setContentsMargins(em(0.5), em(0.6), em(0.5), em(0.6));
	column->setSpacing(em(0.4));
	const auto button = [&](Icon shape, const char* text, const char* key, const std::function<void()>& f) {
		QPushButton* b = new_button(shape, text);
		b->setProperty("row", true);
		b->setToolTip(QString("%1 (%2)").arg(text, key));
		connect(b, &QPushButton::clicked, this, [f] { f(); });
		return b;
	};
	column->addWidget(button(Icon::New, "New conversation", "Ctrl+N", actions_.create));
	search_ = new QLineEdit;
	search_->setPlaceholderText("Search conversations");
	search_->setToolTip("Search titles and all that was said (Ctrl+K)");
	search_->setAccessibleName("Search conversations");
	search_->setClearButtonEnabled(true);
	search_->addAction(icon(Icon::Search, theme().dim), QLineEdit::LeadingPosition);
	search_->installEventFilter(this);
	column->addWidget(search_);
	list_ = new QListWidget;
	list_->setAccessibleName("Conversations");
	list_->setItemDelegate(new RowPainter);
	list_->setHorizontalScrollBarPolicy(Qt::ScrollBarAlwaysOff);
	list_->setEditTriggers(QAbstractItemView::NoEditTriggers);
	list_->setContextMenuPolicy(Qt::CustomContextMenu);
	list_->setSpacing(1);
	list_->installEventFilter(this);
	column->addWidget(list_, 1);
	column->addWidget(button(Icon::Model, "Models", "Ctrl+O", actions_.start));
	column->addWidget(button(Icon::Settings, "Settings", "Ctrl+,", actions_.settings));

	connect(search_, &QLineEdit::textChanged, this, [this] { refresh(); });
	connect(list_, &QListWidget::currentItemChanged, this, [this](QListWidgetItem* item) {
		if (!filling_ && item) choose(item->data(kId).toString().toStdString());
	});
	connect(list_, &QListWidget::itemClicked, this, [this](QListWidgetItem* item) {
		choose(item->data(kId).toString().toStdString());
		actions_.done();
	});
	connect(list_, &QListWidget::itemDoubleClicked, this, [this](QListWidgetItem*) { begin_rename(); });
	connect(list_, &QListWidget::itemChanged, this, [this](QListWidgetItem* item) {
		if (filling_) return;
		actions_.rename(item->data(kId).toString().toStdString(), item->text().toStdString());
	});
	connect(list_->itemDelegate(), &QAbstractItemDelegate::closeEditor, this, [this] { actions_.done(); });
	connect(list_, &QListWidget::customContextMenuRequested, this, [this](const QPoint& at) {
		if (!list_->itemAt(at)) return;
		QMenu menu(this);
		menu.addAction(icon(Icon::Edit), "Rename\tF2", this, [this] { begin_rename(); });
		menu.addAction(icon(Icon::Fork), "Fork: go on in a copy\tCtrl+Shift+K", this, [this] { actions_.fork(); });
		menu.addSeparator();
		menu.addAction(icon(Icon::Delete), "Delete\u2026\tCtrl+Shift+Delete", this, [this] { actions_.remove(); });
		menu.exec(list_->viewport()->mapToGlobal(at));
	});
}

void Sidebar::refresh() {
	if (list_->isPersistentEditorOpen(list_->currentItem()) || list_->findChild<QLineEdit*>()) return; // being renamed
	const QString words = search_->text().trimmed();
	filling_ = true;
	int row = 0;
	for (const Conversation& c : state_.conversations) {
		const std::optional<Hit> hit = words.isEmpty() ? Hit{} : found_.in(c, words.toStdString());
		if (!hit) continue;
		if (row >= list_->count()) {
			auto* item = new QListWidgetItem;
			item->setFlags(item->flags() | Qt::ItemIsEditable);
			list_->addItem(item);
		}
		QListWidgetItem* item = list_->item(row++);
		const QString below = state_.answering(c.id) ? QString("answering\u2026")
		                      : hit->text.empty()    ? time_text(c.changed)
		                                             : text_of(hit->text);
		const auto set = [&](int role, const QString& value) {
			if (item->data(role).toString() != value) item->setData(role, value);
		};
		set(kId, text_of(c.id));
		set(kBelow, below);
		set(Qt::DisplayRole, text_of(c.title));
		set(Qt::ToolTipRole, plain_tip(text_of(c.title)));
		if (c.id == state_.current_id && list_->currentItem() != item) list_->setCurrentItem(item);
	}
	while (list_->count() > row) delete list_->takeItem(list_->count() - 1);
	if (QListWidgetItem* at = list_->currentItem(); at && at->data(kId).toString().toStdString() != state_.current_id)
		list_->setCurrentItem(nullptr);
	filling_ = false;
}

void Sidebar::choose(const std::string& chosen) {
	const std::string id = chosen;
	actions_.select(id);
	const QString words = search_->text().trimmed();
	const Conversation* c = state_.find(id);
	if (!c || words.isEmpty()) return;
	const std::optional<Hit> hit = found_.in(*c, words.toStdString());
	if (hit && hit->message != kNone) actions_.show(hit->message, words);
}

void Sidebar::begin_rename() {
	leave_search();
	if (QListWidgetItem* item = list_->currentItem()) {
		list_->scrollToItem(item);
		list_->editItem(item);
	}
}

void Sidebar::find() {
	search_->setFocus();
	search_->selectAll();
}

bool Sidebar::searching() const { return !search_->text().isEmpty(); }

bool Sidebar::leave_search() {
	if (!searching() && !search_->hasFocus()) return false;
	search_->clear();
	actions_.done();
	return true;
}

bool Sidebar::eventFilter(QObject* o, QEvent* e) {
	if (e->type() != QEvent::KeyPress) return QWidget::eventFilter(o, e);
	const int key = static_cast<QKeyEvent*>(e)->key();
	const bool enter = key == Qt::Key_Return || key == Qt::Key_Enter;
	if (o == search_ && (enter || key == Qt::Key_Down) && list_->count()) {
		const bool same = list_->currentRow() == 0;
		list_->setCurrentRow(0);
		if (same) choose(list_->item(0)->data(kId).toString().toStdString());
		enter ? actions_.done() : list_->setFocus();
		return true;
	}
	if (o == list_ && enter) return actions_.done(), true;
	return QWidget::eventFilter(o, e);
}

} // namespace kvrun::desktop
