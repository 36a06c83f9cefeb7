// Colours and sizes of the window, light and dark.
#include "tools/desktop/gui/theme.h"
#include <QApplication>
#include <QDBusConnection>
#include <QDBusMessage>
#include <QDBusVariant>
#include <QFontDatabase>
#include <QFontInfo>
#include <QFontMetrics>
#include <QPalette>
#include <QStyleFactory>
#include <QWidget>
#include <algorithm>

namespace kvrun::desktop {
namespace {

constexpr double kLeastScale = 0.5, kMostScale = 4;
constexpr double kLeastPoints = 10.5; // smallest text size at scale 1
constexpr int kPortalMs = 300;        // longest wait for the desktop's answer

// By kvrun_tier: f16, salient, regular, evicted.
const Theme kLight = {false,     "#ffffff", "#f4f4f6", "#f7f7f9", "#1d1e22",
                      "#62656e", "#d9dae0", "#3157c9", "#ffffff", "#edf0f8",
                      "#f5f5f7", "#e8e9ee", "#dde4f7", "#b3261e", "#fdecea",
                      "#8a2f9e", "#2c6e2f", "#9a4d00", "#71757f", {"#3a86cf", "#d98c00", "#009e73", "#b9a8ab"},
                      "#7b72c4", "#b5a872", "#009e73", "#cc79a7", "#9a9aa4"};
const Theme kDark = {true,      "#1b1c20", "#232429", "#26282e", "#e7e8ec",
                     "#a2a6b1", "#3a3c44", "#7ea2ff", "#10131c", "#2b2f3a",
                     "#24262b", "#30323a", "#333d58", "#ff8a80", "#3d2524",
                     "#d79bf0", "#98d08d", "#f0b46b", "#8d929e", {"#56a0e9", "#e69f00", "#12b886", "#6b5256"},
                     "#8f86d8", "#b8ab78", "#12b886", "#cc79a7", "#82828c"};

const Theme* current = &kLight;
double desktop_points = kLeastPoints;
bool desktop_is_dark = false;

// Colour scheme from the desktop's settings portal; 0: none, 1: dark, 2: light.
int portal_scheme() {
	if (!qEnvironmentVariableIsSet("DBUS_SESSION_BUS_ADDRESS")) return 0;
	QDBusMessage ask = QDBusMessage::createMethodCall(
	    "org.freedesktop.portal.Desktop", "/org/freedesktop/portal/desktop", "org.freedesktop.portal.Settings", "Read");
	ask << "org.freedesktop.appearance"
	    << "color-scheme";
	const QDBusMessage answer = QDBusConnection::sessionBus().call(ask, QDBus::Block, kPortalMs);
	if (answer.type() != QDBusMessage::ReplyMessage || answer.arguments().isEmpty()) return 0;
	QVariant v = answer.arguments().first();
	while (v.userType() == qMetaTypeId<QDBusVariant>()) v = v.value<QDBusVariant>().variant();
	return v.toInt();
}

QString style_sheet(const Theme& t) {
	const auto px = [](double n) { return QString::number(em(n)) + "px"; };
	QString s = R"(
* { outline: none; }
QToolTip { background: @card; color: @text; border: 1px solid @line; padding: @p4; }
[role="page"], [role="messages"], [role="column"], [role="start"], [role="settings"] { background: @page; }
[role="side"] { background: @side; border: none; border-right: 1px solid @line; }
[role="card"], [role="drop"] { background: @card; border: 1px solid @line; border-radius: @p6; }
[role="drop"] { border: 2px dashed @line; }
[role="drop"][over="true"] { border-color: @accent; background: @chosen; }
[role="title"] { font-size: @f14; font-weight: 600; }
[role="huge"] { font-size: @f18; font-weight: 600; }
[role="group"] { font-weight: 600; }
[role="dim"], [role="source"] { color: @dim; }
[role="source"] { font-weight: 600; }
[role="bubble"] { background: @bubble; border-radius: @p7; }
[role="code"] { background: @code; border: 1px solid @line; border-radius: @p4; }
[role="problem"] { background: @bad_page; border: 1px solid @bad; border-radius: @p4; }
[role="problem"] QLabel { color: @bad; }
[role="composer"] { background: @card; border: 1px solid @line; border-radius: @p7; }
[role="composer"][focus="true"] { border: 1px solid @accent; }
[role="composer"] QPlainTextEdit, [role="text"] { background: transparent; border: none; }
QLineEdit, QComboBox, QSpinBox, QDoubleSpinBox, [role="field"] {
	background: @page; border: 1px solid @line; border-radius: @p3; padding: @p3; min-height: @p10;
	selection-background-color: @accent; selection-color: @on_accent;
}
QLineEdit:focus, QComboBox:focus, QSpinBox:focus, QDoubleSpinBox:focus, [role="field"]:focus {
	border: 1px solid @accent;
}
QComboBox::drop-down { border: none; background: transparent; width: @p10; margin: 1px; }
QComboBox::down-arrow {
	width: 0; height: 0; border-left: @p3 solid @page; border-right: @p3 solid @page; border-top: @p3 solid @dim;
}
QComboBox QAbstractItemView {
	background: @page; border: 1px solid @line; selection-background-color: @chosen; selection-color: @text;
}
QPushButton { background: @card; border: 1px solid @line; border-radius: @p3; padding: @p3 @p8; min-height: @p10; }
QPushButton:hover { background: @hover; }
QPushButton:focus, QToolButton:focus { border: 2px solid @accent; }
QPushButton:disabled { color: @dim; }
QPushButton[main="true"] { background: @accent; color: @on_accent; border-color: @accent; font-weight: 600; }
QPushButton[main="true"]:focus { border: 2px solid @text; }
QPushButton[bad="true"] { color: @bad; }
QPushButton[row="true"] {
	text-align: left; background: transparent; border: 1px solid transparent; border-radius: @p4; 
	padding: @p4 @p6;
}
QPushButton[row="true"]:hover { background: @hover; }
QPushButton[row="true"]:focus { border: 2px solid @accent; }
QPushButton[row="true"]:checked { background: @chosen; border: 1px solid @accent; }
QToolButton { background: transparent; border: 2px solid transparent; border-radius: @p3; padding: @p2; color: @dim; }
QToolButton:hover { background: @hover; }
QToolButton::menu-indicator { image: none; }
QToolButton[round="true"] { background: @accent; border-radius: @p9; min-width: @p14; min-height: @p14; }
QToolButton[round="true"]:disabled { background: @line; }
QToolButton[round="true"]:focus { border: 2px solid @text; }
QMenu { background: @page; border: 1px solid @line; padding: @p2; }
QMenu::item { padding: @p3 @p9; border-radius: @p2; }
QMenu::item:selected { background: @chosen; color: @text; }
QMenu::separator { height: 1px; background: @line; margin: @p2; }
QListWidget { background: transparent; border: none; }
QListWidget::item { border-radius: @p4; padding: 0px; }
QListWidget::item:hover { background: @hover; }
QListWidget::item:selected { background: @chosen; color: @text; }
QScrollArea { border: none; background: transparent; }
QScrollBar:vertical { background: transparent; width: @p6; margin: 0; }
QScrollBar:horizontal { background: transparent; height: @p6; margin: 0; }
QScrollBar::handle { background: @line; border-radius: @p2; margin: 1px; min-height: @p14; min-width: @p14; }
QScrollBar::handle:hover { background: @dim; }
QScrollBar::add-line, QScrollBar::sub-line { width: 0; height: 0; }
QScrollBar::add-page, QScrollBar::sub-page { background: transparent; }
QProgressBar { background: @line; border: none; border-radius: @p2; max-height: @p4; min-height: @p4; }
QProgressBar::chunk { background: @accent; border-radius: @p2; }
QSlider { min-height: @p12; }
QSlider::groove:horizontal { background: @line; height: @p3; border-radius: @p1; }
QSlider::sub-page:horizontal { background: @accent; border-radius: @p1; }
QSlider::handle:horizontal {
	background: @accent; width: @p9; margin: -@p3 0; border-radius: @p4; border: 2px solid @page;
}
QSlider:focus { border: 1px solid @accent; border-radius: @p3; }
QCheckBox { spacing: @p4; }
QCheckBox::indicator:unchecked { border: 1px solid @dim; border-radius: 2px; background: @page; }
QCheckBox:focus { border: 1px solid @accent; border-radius: @p2; }
)";
	const std::pair<const char*, QColor> colours[] = {
	    {"@page", t.page},         {"@side", t.side}, {"@card", t.card},           {"@text", t.text},
	    {"@dim", t.dim},           {"@line", t.line}, {"@on_accent", t.on_accent}, {"@accent", t.accent},
	    {"@bubble", t.bubble},     {"@code", t.code}, {"@hover", t.hover},         {"@chosen", t.chosen},
	    {"@bad_page", t.bad_page}, {"@bad", t.bad}};
	for (const auto& [name, colour] : colours) s.replace(name, colour.name());
	for (int n = 14; n > 0; --n) s.replace("@p" + QString::number(n), px(n / 10.)); // tenths of an em
	s.replace("@f14", px(0.95)), s.replace("@f18", px(1.5));
	return s;
}

QPalette palette_of(const Theme& t) {
	QPalette p;
	const auto set = [&](std::initializer_list<QPalette::ColorRole> roles, const QColor& c) {
		for (const auto r : roles) p.setColor(r, c);
	};
	set({QPalette::Window, QPalette::Base}, t.page);
	set({QPalette::AlternateBase, QPalette::Button, QPalette::ToolTipBase}, t.card);
	set({QPalette::WindowText, QPalette::Text, QPalette::ButtonText, QPalette::ToolTipText, QPalette::BrightText},
	    t.text);
	set({QPalette::PlaceholderText}, t.dim);
	set({QPalette::Highlight}, t.accent);
	set({QPalette::HighlightedText}, t.on_accent);
	set({QPalette::Link, QPalette::LinkVisited}, t.accent);
	set({QPalette::Light, QPalette::Midlight, QPalette::Mid, QPalette::Dark, QPalette::Shadow}, t.line);
	for (const auto r : {QPalette::WindowText, QPalette::Text, QPalette::ButtonText})
		p.setColor(QPalette::Disabled, r, t.dim);
	return p;
}

} // namespace

const Theme& theme() { return *current; }

void remember_desktop_font() {
	desktop_points = std::max(kLeastPoints, QApplication::font().pointSizeF());
	const int scheme = portal_scheme();
	desktop_is_dark = scheme == 1 || (scheme == 0 && QApplication::palette().color(QPalette::Window).lightness() < 128);
	QApplication::setStyle(QStyleFactory::create("Fusion"));
}

void apply_theme(const std::string& name, double scale) {
	// A colour emoji font, if there is one, precedes symbol fonts that also have emoji.
	static const QStringList families = [] {
		QStringList out{QFontInfo(QApplication::font()).family()}; // the font that "Sans" resolves to: it has digits
		for (const char* f : {"Noto Color Emoji", "Twemoji", "JoyPixels", "OpenMoji Color"})
			if (QFontDatabase::hasFamily(f)) out << f;
		return out;
	}();
	current = name == "dark" || (name != "light" && desktop_is_dark) ? &kDark : &kLight;
	QFont font = QApplication::font();
	font.setFamilies(families);
	font.setPointSizeF(desktop_points * (scale > 0 ? std::clamp(scale, kLeastScale, kMostScale) : 1));
	QApplication::setFont(font);
	QApplication::setPalette(palette_of(*current));
	qApp->setStyleSheet(style_sheet(*current));
}

int em(double n) { return std::max(1, int(n * QFontMetrics(QApplication::font()).height())); }

void set_role(QWidget* w, const char* role) {
	w->setProperty("role", role);
	w->setAttribute(Qt::WA_StyledBackground);
}

} // namespace kvrun::desktop
