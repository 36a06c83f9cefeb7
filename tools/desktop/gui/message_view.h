// One message: its author, its text with code and tables, and its actions.
#pragma once
#include "tools/desktop/gui/images.h"
#include "tools/desktop/markdown.h"
#include "tools/desktop/state.h"
#include <QFrame>
#include <functional>
#include <optional>

class QLabel;
class QPlainTextEdit;
class QProgressBar;
class QToolButton;
class QVBoxLayout;

namespace kvrun::desktop {

class RichText;

struct MessageActions {
	std::function<void(int)> retry, show, go_on;
	std::function<void(int, const QString&)> edit;
	std::function<void()> edited;  // the editor has closed
	std::function<void()> earlier; // earlier messages are to be shown
	// What is typed in the editor of a question; nullopt: it has closed.
	std::function<void(int, const std::optional<QString>&)> typed;
	std::string images_folder;
};

class MessageView : public QFrame {
 public:
	MessageView(int number, const MessageActions&);
	int number() const { return number_; }
	void update(const Conversation&, const Live&); // redraws what has changed
	void begin_edit();                             // with the focus in the editor
	void open_editor(const QString& text);         // unless it is open
	bool focus_editor();                           // false: it is not open
	int find_words(const QString&);                // selects them; returns their y, 0: they are not found
	void cancel_edit();
	bool editing() const { return editor_ != nullptr; }

 protected:
	void resizeEvent(QResizeEvent*) override;
	bool eventFilter(QObject*, QEvent*) override;

 private:
	void update_text(const Message&);
	void update_buttons(const Conversation&, const Message&, bool answering);
	void update_progress(const Message&, const Live&);
	QWidget* new_code(const Part&);
	void send_edit();

	const int number_;
	const MessageActions& actions_;
	QString text_; // of the message
	size_t bytes_ = size_t(-1);
	bool unfinished_ = false;
	std::vector<Part> parts_;
	std::vector<QWidget*> widgets_; // of the parts
	QFrame* body_ = nullptr;
	QVBoxLayout *all_ = nullptr, *layout_ = nullptr;
	RichText* reasoning_ = nullptr;
	QToolButton* thought_ = nullptr; // shows and hides it
	bool thought_chosen_ = false;    // by the user
	ImageRow* images_ = nullptr;
	QWidget* bar_ = nullptr; // of buttons
	QLabel *note_ = nullptr, *place_ = nullptr, *progress_text_ = nullptr;
	QToolButton *copy_ = nullptr, *retry_ = nullptr, *edit_ = nullptr, *go_on_ = nullptr, *older_ = nullptr,
	            *newer_ = nullptr;
	QWidget* progress_ = nullptr;
	QProgressBar* progress_bar_ = nullptr;
	QFrame* editor_frame_ = nullptr;
	QPlainTextEdit* editor_ = nullptr;
	std::vector<int> siblings_;
};

} // namespace kvrun::desktop
