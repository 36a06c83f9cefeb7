// A conversation: its header, its messages, the field for the next question, and the memory it uses.
#pragma once
#include "tools/desktop/gui/images.h"
#include "tools/desktop/state.h"
#include <QWidget>
#include <functional>

class QAction;
class QPushButton;
class QProgressBar;
class QToolButton;

namespace kvrun::desktop {

class CachePanel;
class Composer;
class ElidedLabel;
class Messages;

class ChatPage : public QWidget {
 public:
	struct Actions {
		std::function<void()> acted; // the state has changed
		std::function<void()> choose_model, settings, rename, fork, remove, list;
		// Keeps an image; returns its name. Throws StatusError.
		std::function<std::string(const std::string& content, const std::string& extension)> keep_image;
	};
	ChatPage(State&, Actions);
	void refresh();
	Messages& messages() { return *messages_; }
	Composer& composer() { return *composer_; }
	void add_images(const QStringList& files); // to the next question
	void choose_images();                      // by a dialog
	void keep_draft();                         // in the state, for the next page
	void take_focus();                         // to the question that is edited, else to the next one

 private:
	void ask(const QString&);
	void export_file(); // the conversation, by a dialog
	void show_draft();  // of the current conversation
	void add_image(const ImageBytes&);
	QWidget* new_head();
	void refresh_head();
	void refresh_status();
	std::string drafted_;             // conversation of the next question in the field
	std::vector<std::string> images_; // of that question: names of files
	State& state_;
	const Actions actions_;
	ElidedLabel* title_;
	QPushButton* model_;
	QToolButton* more_;
	QAction* unload_;
	QWidget* loading_;
	QProgressBar* loading_bar_;
	ElidedLabel* loading_text_;
	Messages* messages_;
	Composer* composer_;
	QPushButton* status_;
	CachePanel* cache_;
};

} // namespace kvrun::desktop
