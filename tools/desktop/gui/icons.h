// Line icons in the colours of the theme, drawn at any size.
#pragma once
#include <QIcon>

namespace kvrun::desktop {

enum class Icon {
	New,
	Search,
	Settings,
	Copy,
	Done,
	Retry,
	Edit,
	Fork,
	Delete,
	Stop,
	Send,
	More,
	Open,
	Model,
	Close,
	Left,
	Right,
	Back,
	Image,
	Sound,
	List,
	Play
};
QIcon icon(Icon);
QIcon icon(Icon, const QColor&);

} // namespace kvrun::desktop
