// A conversation: its header, its messages, the field for the next question, and the memory it uses.
#include "tools/desktop/gui/chat_page.h"
#include "tools/desktop/gui/cache_panel.h"
#include "tools/desktop/gui/composer.h"
#include "tools/desktop/gui/messages.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include "tools/desktop/memory_choices.h"
#include "tools/desktop/models_found.h"
#include "tools/desktop/words.h"
#include <QDir>
#include <QFile>
#include <QFileDialog>
#include <QHBoxLayout>
#include <QMenu>
#include <QPlainTextEdit>
#include <QProgressBar>
#include <algorithm>

namespace kvrun::desktop {
ChatPage::ChatPage(State& s, Actions a) : state_(s), actions_(std::move(a)) {
	set_role(this, "page");
	auto* column = new QVBoxLayout(this);
	column->setContentsMargins(0, 0, 0, 0);
	column->setSpacing(0);
	column->addWidget(new_head());
	loading_ = new QWidget;
	auto* row = new QHBoxLayout(loading_);
	row->setContentsMargins(em(), 0, em(), em(0.3));
	row->addWidget(loading_text_ = new ElidedLabel("dim"), 1);
	row->addWidget(loading_bar_ = new QProgressBar);
	loading_bar_->setRange(0, 1000);
	loading_bar_->setTextVisible(false);
	loading_bar_->setFixedWidth(em(12));
	loading_bar_->setAccessibleName("How much of the model has been loaded");
	column->addWidget(loading_);

	MessageActions m;
	m.images_folder = state_.images_folder;
	m.retry = [this](int n) {
		if (!state_.retry(n) && state_.last_model().empty()) actions_.choose_model();
		messages_->to_end();
		actions_.acted();
	};
	m.go_on = [this](int n) { state_.go_on(n), messages_->to_end(), actions_.acted(); };
	m.show = [this](int n) { state_.show(n), actions_.acted(); };
	m.edit = [this](int n, const QString& text) {
		if (!state_.edit(n, text.toStdString())) {
			Draft& d = state_.drafts[state_.current_id]; // the text is kept
			d.edited = n, d.edit_text = text.toStdString();
			if (state_.last_model().empty()) actions_.choose_model();
		}
		messages_->to_end();
		actions_.acted();
	};
	m.typed = [this](int n, const std::optional<QString>& text) {
		Draft& d = state_.drafts[state_.current_id];
		d.edited = text ? n : kNone;
		d.edit_text = text ? text->toStdString() : "";
	};
	m.earlier = [this] { actions_.acted(); };
	m.edited = [this] { composer_->take_focus(); };
	messages_ = new Messages(std::move(m));
	column->addWidget(messages_, 1);

	auto* foot = new QWidget;
	auto* centre = new QHBoxLayout(foot);
	centre->setContentsMargins(em(), 0, em(), em(0.5));
	auto* inner = new QWidget;
	inner->setMaximumWidth(em(47));
	auto* lines = new QVBoxLayout(inner);
	lines->setContentsMargins(0, 0, 0, 0);
	lines->setSpacing(em(0.3));
	composer_ = new Composer;
	composer_->send = [this](const QString& text) { ask(text); };
	composer_->choose_images = [this] { choose_images(); };
	composer_->add_files = [this](const QStringList& files) { add_images(files); };
	composer_->paste = [this](const QImage& image) {
		if (!image.isNull()) add_image(image_bytes(image));
		actions_.acted();
	};
	composer_->remove_image = [this](size_t i) {
		images_.erase(images_.begin() + ptrdiff_t(i));
		actions_.acted();
	};
	composer_->stop = [this] { state_.stop(), actions_.acted(); };
	composer_->scroll = [this](int by) { messages_->page(by); };
	lines->addWidget(composer_);
	status_ = new QPushButton;
	status_->setProperty("row", true);
	status_->setToolTip("What this conversation takes of the memory. Press to change it.");
	connect(status_, &QPushButton::clicked, this, [this] { actions_.settings(); });
	lines->addWidget(status_);
	lines->addWidget(cache_ = new CachePanel(state_));
	centre->addStretch(1);
	centre->addWidget(inner, 100);
	centre->addStretch(1);
	column->addWidget(foot);
}

QWidget* ChatPage::new_head() {
	auto* head = new QWidget;
	auto* row = new QHBoxLayout(head);
	row->setContentsMargins(em(), em(0.5), em(0.6), em(0.5));
	title_ = new ElidedLabel("title");
	title_->setAccessibleName("Title of the conversation");
	model_ = new_button(Icon::Model, "");
	model_->setProperty("row", true);
	connect(model_, &QPushButton::clicked, this, [this] { actions_.choose_model(); });
	more_ = new_tool(Icon::More, "What can be done with this conversation");
	more_->setPopupMode(QToolButton::InstantPopup);
	auto* menu = new QMenu(more_);
	const auto entry = [&](Icon s, const char* text, const std::function<void()>& f) {
		return menu->addAction(icon(s), text, this, [f] { f(); });
	};
	entry(Icon::Edit, "Rename\tF2", actions_.rename);
	entry(Icon::Fork, "Fork: go on in a copy\tCtrl+Shift+K", actions_.fork);
	entry(Icon::Open, "Export\u2026", [this] { export_file(); });
	unload_ = entry(Icon::Model, "Unload the model", [this] { state_.unload(), actions_.acted(); });
	menu->addSeparator();
	entry(Icon::Delete, "Delete\u2026\tCtrl+Shift+Delete", actions_.remove);
	more_->setMenu(menu);
	QToolButton* list = new_tool(Icon::List, "Show or hide the list of conversations (Ctrl+B)");
	connect(list, &QToolButton::clicked, this, [this] { actions_.list(); });
	row->addWidget(list);
	row->addWidget(title_, 1);
	row->addWidget(model_);
	row->addWidget(more_);
	return head;
}

void ChatPage::add_image(const ImageBytes& image) {
	const bool sound = is_sound_name("." + image.extension);
	if (state_.phase == EnginePhase::Ready && !(sound ? state_.facts.reads_audio : state_.facts.reads_images)) {
		state_.problem = std::string("This model reads no ") + (sound ? "sounds" : "images") + ". Models with " +
		                 (sound ? "an audio" : "a vision") +
		                 " encoder do: fetch one from its repository, or drop its file mmproj-….gguf on the window.";
		return;
	}
	try {
		const std::string name = actions_.keep_image(image.content, image.extension);
		if (std::ranges::find(images_, name) == images_.end()) images_.push_back(name);
	} catch (const StatusError& e) { state_.problem = "The file could not be kept: " + std::string(e.what()); }
}

void ChatPage::add_images(const QStringList& files) {
	for (const QString& file : files)
		if (const auto image = image_bytes(file))
			add_image(*image);
		else
			state_.problem = file.toStdString() + " is no image and no sound that can be read.";
	actions_.acted();
	composer_->take_focus();
}

void ChatPage::choose_images() {
	add_images(QFileDialog::getOpenFileNames(this, "Add images and sounds", QDir::homePath(),
	                                         "Images and sounds (*.png *.jpg *.jpeg *.webp *.bmp *.gif *.wav *.flac "
	                                         "*.ogg *.opus *.mp3);;All files (*)"));
}

void ChatPage::export_file() {
	const Conversation* c = state_.current();
	if (!c) return;
	QString kind;
	QString path =
	    QFileDialog::getSaveFileName(this, "Export the conversation", QDir::homePath() + "/conversation.md",
	                                 "Markdown, the shown branch (*.md);;JSON, all versions (*.json)", &kind);
	if (path.isEmpty()) return;
	QFile file(path);
	const std::string text = path.endsWith(".json") || kind.startsWith("JSON") ? to_json(*c) : to_markdown(*c);
	if (!file.open(QIODevice::WriteOnly) || file.write(text.data(), qint64(text.size())) != qint64(text.size()) ||
	    !file.flush())
		state_.problem = "Not exported: " + (path + ": " + file.errorString()).toStdString() + ".";
	actions_.acted();
}

void ChatPage::ask(const QString& text) {
	if (text.trimmed().isEmpty() && images_.empty()) return;
	const bool asked = state_.ask(text.toStdString(), images_);
	if (asked) {
		images_.clear();
		composer_->field()->clear();
		state_.drafts.erase(drafted_);
		drafted_ = state_.current_id; // it may be a new one
		show_draft();
	} else if (state_.phase == EnginePhase::Off || state_.phase == EnginePhase::Failed) {
		return actions_.choose_model();
	}
	messages_->to_end();
	actions_.acted();
}

void ChatPage::keep_draft() {
	if (!drafted_.empty() && !state_.find(drafted_)) return; // it was deleted
	Draft& d = state_.drafts[drafted_];
	d.text = composer_->field()->toPlainText().toStdString();
	d.images = images_;
}

void ChatPage::show_draft() {
	drafted_ = state_.current_id;
	const Draft& d = state_.draft(drafted_);
	composer_->field()->setPlainText(text_of(d.text));
	composer_->field()->moveCursor(QTextCursor::End);
	images_ = d.images;
}

void ChatPage::take_focus() {
	if (!messages_->focus_edit()) composer_->take_focus();
}

void ChatPage::refresh_head() {
	const Conversation* c = state_.current();
	title_->set_text(c ? text_of(c->title) : QString("New conversation"));
	more_->setEnabled(c != nullptr);
	const bool has = state_.phase == EnginePhase::Ready || state_.phase == EnginePhase::Loading;
	const std::string recent = has ? "" : state_.last_model();
	const QString name = text_of(model_name(has ? state_.model : recent));
	const int room = std::min(em(16), width() / 3);
	model_->setText("\u2002" + plain_button(model_->fontMetrics().elidedText(
	                               name.isEmpty() ? QString("Choose a model") : name, Qt::ElideMiddle, room)));
	model_->setToolTip(
	    plain_tip(QString("%1\n%2\nPress to choose another model (Ctrl+O).")
	                  .arg(name.isEmpty() ? QString("No model has been chosen yet") : name,
	                       state_.phase == EnginePhase::Ready ? "on " + text_of(state_.facts.device)
	                                                          : QString("It is loaded with the next question."))));
	model_->setAccessibleName("Model: " + name);
	unload_->setEnabled(state_.phase == EnginePhase::Ready);
	const bool loads = state_.phase == EnginePhase::Loading;
	loading_->setVisible(loads);
	if (loads) {
		loading_text_->set_text("Loading " + text_of(model_name(state_.model)));
		loading_bar_->setValue(int(state_.load_share * 1000));
	}
	composer_->set_hint(has || name.isEmpty() ? QString("Ask something")
	                                          : QString("Ask something; %1 is loaded then").arg(name));
}

void ChatPage::refresh_status() {
	const Conversation* c = state_.current();
	const Live& l = state_.live(state_.current_id);
	const auto name_of = [](const std::string& kv) {
		const int choice = memory_choice_of(kv);
		return text_of(choice < 0 ? kv : memory_choices()[size_t(choice)].name);
	};
	QString text = "Memory: " + name_of(c ? c->kv : state_.settings.kv);
	if (l.memory) text += QString("  \u00b7  %1 after this answer").arg(name_of(l.memory->kv));
	const CacheView& v = l.cache;
	if (!v.tiers.empty()) {
		text +=
		    QString("  \u00b7  %1%2 tokens")
		        .arg(text_of(human_count(v.tiers.size())), v.ctx ? " of " + text_of(human_count(v.ctx)) : QString());
		if (v.f16_equivalent) text += QString("  \u00b7  %1").arg(text_of(human_size(v.total_bytes())));
		if (v.f16_equivalent > v.total_bytes())
			text += QString(" instead of %1").arg(text_of(human_size(v.f16_equivalent)));
	} else if (c && !c->messages.empty()) {
		text += "  \u00b7  read again with the next question";
	}
	if (l.tokens_per_second > 0) text += QString("  \u00b7  %1 tokens/s").arg(l.tokens_per_second, 0, 'f', 1);
	status_->setText(plain_button(text));
	status_->setAccessibleName(text);
}

void ChatPage::refresh() {
	if (drafted_ != state_.current_id) {
		keep_draft();
		show_draft();
	}
	refresh_head();
	messages_->refresh(state_.current(), state_.live(state_.current_id), state_.draft(state_.current_id));
	std::vector<std::string> paths;
	for (const std::string& name : images_) paths.push_back(state_.images_folder + "/" + name);
	composer_->set_images(paths, state_.phase == EnginePhase::Ready &&
	                                 (state_.facts.reads_images || state_.facts.reads_audio));
	composer_->set_answering(state_.answering(state_.current_id));
	refresh_status();
	const bool shows = state_.settings.show_cache;
	cache_->setVisible(shows);
	if (shows) cache_->refresh();
}

} // namespace kvrun::desktop
