// For experts: the cache of the conversation, a column per token coloured by its tier, and its bytes by kind.
#pragma once
#include "tools/desktop/state.h"
#include <QWidget>

class QLabel;
class QSpinBox;

namespace kvrun::desktop {

class CacheStrip : public QWidget {
 public:
	CacheStrip();
	void set(const CacheView&);

 protected:
	void paintEvent(QPaintEvent*) override;

 private:
	CacheView view_;
};

class CachePanel : public QWidget {
 public:
	explicit CachePanel(State&);
	void refresh();

 private:
	State& state_;
	QLabel *legend_, *bytes_;
	CacheStrip* strip_;
	QSpinBox *layer_, *head_;
};

} // namespace kvrun::desktop
