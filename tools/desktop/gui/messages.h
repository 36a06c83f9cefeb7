// The shown branch of a conversation; it scrolls along while an answer grows.
#pragma once
#include "tools/desktop/gui/message_view.h"
#include <QScrollArea>

class QPushButton;

namespace kvrun::desktop {

class Messages : public QScrollArea {
 public:
	explicit Messages(MessageActions);
	void refresh(const Conversation*, const Live&, const Draft&);
	void to_end();
	void page(int by);
	void begin_edit(int message);
	bool cancel_edit(); // false: nothing was being edited
	bool focus_edit();  // the same
	// Scrolls to the words in a message of the shown branch, with the next refresh().
	void show_words(int message, const QString& words);

 protected:
	void wheelEvent(QWheelEvent*) override;

 private:
	void scroll_to_target();
	void rebuild(const std::vector<int>& branch);
	const MessageActions actions_;
	std::string id_;
	size_t most_; // number of shown messages; a button adds earlier ones
	std::vector<MessageView*> views_;
	QWidget* column_;
	QVBoxLayout* layout_;
	QPushButton* earlier_;
	QWidget* nothing_;
	bool follows_ = true;
	int target_ = kNone; // message that stays in view until the user scrolls
	QString words_;      // in it
	bool finds_ = false; // it was set since the last refresh()
};

} // namespace kvrun::desktop
