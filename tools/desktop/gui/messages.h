// The shown branch of a conversation; it scrolls along while an answer grows.
#pragma once
#include "tools/desktop/gui/message_view.h"
#include <QScrollArea>

class QPushButton;

namespace kvrun::desktop {

class Messages : public QScrollArea {
 public:
	explicit Messages(MessageActions);
	void refresh(const Conversation*, const Live&);
	void to_end();
	void page(int by);
	void begin_edit(int message);
	bool cancel_edit(); // false: nothing was being edited

 private:
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
};

} // namespace kvrun::desktop
