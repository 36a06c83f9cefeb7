// The page shown without a model: recent models, models of other programs on this computer, and a button for files.
#include "tools/desktop/gui/start_page.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include "tools/desktop/words.h"
#include <QFileDialog>
#include <QFileInfo>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QProgressBar>
#include <QStyle>

namespace kvrun::desktop {
namespace {

QString place_of(const std::string& path) {
	QString p = QFileInfo(text_of(path)).absolutePath();
	if (p.startsWith(QDir::homePath())) p.replace(0, QDir::homePath().size(), "~");
	return p;
}

void clear(QVBoxLayout* l) {
	while (QLayoutItem* i = l->takeAt(0)) {
		if (i->widget()) i->widget()->hide(), i->widget()->deleteLater();
		delete i;
	}
}

} // namespace

StartPage::StartPage(State& s, Download& d) : state_(s), download_(d) {
	set_role(this, "start");
	setProperty("region", "start");
	auto* all = new QVBoxLayout(this);
	all->setContentsMargins(0, 0, 0, 0);
	auto* inner = new QWidget;
	auto* column = new QVBoxLayout(inner);
	column->setContentsMargins(0, 0, 0, 0);
	column->setSpacing(em(0.6));
	column->addWidget(new_label("Choose a model", "huge"));
	column->addWidget(new_label("Models run on this computer; what you write stays here.", "dim"));

	drop_ = new QFrame;
	set_role(drop_, "drop");
	auto* row = new QHBoxLayout(drop_);
	row->setContentsMargins(em(), em(0.8), em(), em(0.8));
	row->addWidget(new_label("Drop a model file (.gguf) here"), 1);
	open_ = new_button(Icon::Open, "Open a file\u2026");
	open_->setToolTip("Ctrl+Shift+O");
	connect(open_, &QPushButton::clicked, this, [this] { choose_file(); });
	row->addWidget(open_);
	column->addWidget(drop_);

	if (Download::possible()) column->addWidget(new_download());

	recents_ = new QWidget;
	auto* lines = new QVBoxLayout(recents_);
	lines->setContentsMargins(0, 0, 0, 0);
	lines->setSpacing(em(0.1));
	lines->addWidget(new_label("Used before", "source"));
	recent_ = new QVBoxLayout;
	recent_->setSpacing(em(0.1));
	lines->addLayout(recent_);
	column->addWidget(recents_);
	search_text_ = new_label("", "dim");
	found_ = new QVBoxLayout;
	found_->setSpacing(em(0.1));
	column->addLayout(found_);
	column->addWidget(search_text_);
	column->addStretch();
	all->addWidget(new_page("start", inner, /*width=*/38, /*above=*/1.6));
}

QWidget* StartPage::new_download() {
	auto* box = new QWidget;
	auto* column = new QVBoxLayout(box);
	column->setContentsMargins(0, 0, 0, 0);
	auto* row = new QHBoxLayout;
	name_ = new QLineEdit;
	name_->setPlaceholderText("Download from huggingface.co: unsloth/Qwen3-0.6B-GGUF");
	name_->setAccessibleName("Model to download from huggingface.co");
	name_->setToolTip(
	    "USER/REPO or its address; USER/REPO:QUANT takes one of its files, else the one that fits this computer");
	fetch_ = new QPushButton("Download");
	row->addWidget(name_, 1);
	row->addWidget(fetch_);
	column->addLayout(row);
	fetched_ = new QProgressBar;
	fetched_->setRange(0, 100);
	fetched_->setTextVisible(false);
	fetched_->setAccessibleName("How much has been downloaded");
	fetch_text_ = new_label("", "dim");
	column->addWidget(fetched_);
	column->addWidget(fetch_text_);
	fetched_->hide(), fetch_text_->hide();
	connect(fetch_, &QPushButton::clicked, this, [this] { download(); });
	connect(name_, &QLineEdit::returnPressed, this, [this] { download(); });
	connect(name_, &QLineEdit::textChanged, this, [this](const QString& text) { download_.typed = text; });
	show_download();
	return box;
}

// Begins a download, or stops the active one; a later download continues it.
void StartPage::download() {
	if (download_.active()) return download_.stop();
	const QString name = name_->text().trimmed();
	if (name.isEmpty() || name.startsWith('-')) return name_->setFocus();
	download_.begin(name);
}

void StartPage::show_download() {
	if (!name_) return;
	if (name_->text() != download_.typed) name_->setText(download_.typed);
	fetched_->setVisible(download_.active());
	fetched_->setRange(0, download_.percent() < 0 ? 0 : 100); // 0: the size is unknown so far
	fetched_->setValue(download_.percent());
	fetch_text_->setText(download_.text());
	fetch_text_->setVisible(!download_.text().isEmpty());
	fetch_->setText(download_.active() ? "Stop" : "Download");
}

StartPage::~StartPage() {
	stop_ = true;
	if (thread_.joinable()) thread_.join();
}

void StartPage::open() {
	fill();
	if (searching_) return;
	if (thread_.joinable()) thread_.join();
	searching_ = true;
	search_text_->setText("Looking for models on this computer\u2026");
	thread_ = std::thread([this] {
		std::vector<FoundModel> found = find_models([this] { return stop_.load(); });
		std::lock_guard lock(mutex_);
		result_ = std::move(found);
	});
}

void StartPage::refresh() {
	if (shown_recent_ != state_.settings.recent) fill();
	std::optional<std::vector<FoundModel>> result;
	{
		std::lock_guard lock(mutex_);
		result.swap(result_);
	}
	if (!result) return;
	searching_ = false;
	models_ = std::move(*result);
	search_text_->setText(
	    models_.empty() ? "No models were found in the folders of Hugging Face, Ollama, LM Studio, Jan, "
	                      "GPT4All and llama.cpp, nor among the downloads. Models in GGUF files run here, for instance "
	                      "SmolLM2, Qwen3 or Llama 3."
	                    : "");
	fill();
}

void StartPage::fill() {
	shown_recent_ = state_.settings.recent;
	const QWidget* focus = window()->focusWidget();
	const bool had = focus && isAncestorOf(focus); // the focus is on this page and stays there
	first_ = nullptr;
	clear(recent_);
	clear(found_);
	const auto add = [&](QVBoxLayout* to, const std::string& path, const QString& name, const QString& below) {
		auto* b = new RowButton(name, below);
		b->setToolTip(plain_tip(name + "\n" + text_of(path)));
		connect(b, &QPushButton::clicked, this, [this, path] { chosen(path); });
		to->addWidget(b);
		return b;
	};
	for (const std::string& path : shown_recent_) {
		const bool there = QFileInfo::exists(text_of(path));
		RowButton* b = add(recent_, path, text_of(model_name(path)),
		                   there ? place_of(path) : "It is no longer there: " + place_of(path));
		b->setEnabled(there);
		if (!first_ && there) first_ = b;
	}
	recents_->setVisible(!shown_recent_.empty());
	std::string source;
	for (const FoundModel& m : models_) {
		if (m.source != source) found_->addWidget(new_label(text_of(m.source), "source"));
		source = m.source;
		RowButton* b = add(found_, m.path, text_of(m.name),
		                   QString("%1  \u00b7  %2").arg(text_of(human_size(m.bytes)), place_of(m.path)));
		if (!first_) first_ = b;
	}
	if (had) take_focus();
}

void StartPage::take_focus() { (first_ ? first_ : open_)->setFocus(); }

void StartPage::choose_file() {
	const QString path =
	    QFileDialog::getOpenFileName(this, "Open a model", QDir::homePath(), "Models (*.gguf);;All files (*)");
	if (!path.isEmpty()) chosen(path.toStdString());
}

void StartPage::show_drop(bool over) {
	drop_->setProperty("over", over);
	drop_->style()->unpolish(drop_);
	drop_->style()->polish(drop_);
}

} // namespace kvrun::desktop
