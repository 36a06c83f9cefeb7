// Settings in groups, in a user's words; settings that need knowledge of the engine are behind a switch.
#include "tools/desktop/gui/settings_page.h"
#include "tools/desktop/gui/parts.h"
#include "tools/desktop/gui/theme.h"
#include "tools/desktop/words.h"
#include <QCheckBox>
#include <QComboBox>
#include <QDoubleSpinBox>
#include <QFormLayout>
#include <QHBoxLayout>
#include <QLineEdit>
#include <QPlainTextEdit>
#include <QSlider>
#include <algorithm>
#include <cmath>

namespace kvrun::desktop {
namespace {

QFrame* new_group(const char* title, const char* more, QWidget* content) {
	auto* g = new QFrame;
	set_role(g, "card");
	g->setAccessibleName(title);
	auto* column = new QVBoxLayout(g);
	column->setContentsMargins(em(0.9), em(0.7), em(0.9), em(0.8));
	column->addWidget(new_label(title, "group"));
	if (*more) column->addWidget(new_label(more, "dim"));
	column->addWidget(content);
	return g;
}

QFormLayout* new_form(QWidget* w) {
	auto* f = new QFormLayout(w);
	f->setContentsMargins(0, 0, 0, 0);
	f->setFieldGrowthPolicy(QFormLayout::AllNonFixedFieldsGrow);
	f->setRowWrapPolicy(QFormLayout::WrapLongRows);
	f->setHorizontalSpacing(em());
	return f;
}

void add_row(QFormLayout* f, const char* name, QWidget* field, const char* more) {
	auto* l = new QLabel(name);
	l->setBuddy(field);
	l->setToolTip(more);
	field->setToolTip(more);
	field->setAccessibleName(name);
	field->setAccessibleDescription(more);
	f->addRow(l, field);
}

template <class Box, class V> Box* new_number(V lowest, V highest) {
	auto* b = new Calm<Box>;
	b->setRange(lowest, highest);
	b->setButtonSymbols(QAbstractSpinBox::NoButtons); // arrow keys do the same
	b->setMaximumWidth(em(9));
	return b;
}

QDoubleSpinBox* new_real(double lowest, double highest, double step) {
	auto* b = new_number<QDoubleSpinBox>(lowest, highest);
	b->setSingleStep(step);
	return b;
}

QSpinBox* new_whole(int lowest, int highest, const char* special) {
	auto* b = new_number<QSpinBox>(lowest, highest);
	b->setSpecialValueText(special);
	return b;
}

} // namespace

SettingsPage::SettingsPage(State& s, Planner& p) : state_(s), planner_(p) {
	set_role(this, "settings");
	setProperty("region", "settings");
	auto* all = new QVBoxLayout(this);
	all->setContentsMargins(0, 0, 0, 0);
	all->setSpacing(0);
	QScrollArea* page = new_page("settings", new_groups(), /*width=*/46, /*above=*/0.8);
	page->setHorizontalScrollBarPolicy(Qt::ScrollBarAsNeeded);
	all->addWidget(page, 1);
	auto* foot = new QWidget;
	auto* buttons = new QHBoxLayout(foot);
	buttons->setContentsMargins(em(), em(0.5), em(), em(0.6));
	auto* cancel = new QPushButton("Cancel");
	cancel->setToolTip("Leave the settings as they were (Esc)");
	auto* apply = new QPushButton("Apply");
	apply->setToolTip("Ctrl+Enter");
	apply->setProperty("main", true);
	connect(cancel, &QPushButton::clicked, this, [this] { close(false); });
	connect(apply, &QPushButton::clicked, this, [this] { close(true); });
	buttons->addStretch(1);
	buttons->addWidget(cancel);
	buttons->addWidget(apply);
	all->addWidget(foot);
}

QWidget* SettingsPage::new_groups() {
	auto* groups = new QWidget;
	auto* column = new QVBoxLayout(groups);
	column->setContentsMargins(0, 0, 0, 0);
	column->setSpacing(em(0.8));
	column->addWidget(new_label("Settings", "huge"));

	memory_ = new MemoryPanel;
	memory_->changed = [this] {
		policy_->setEditText(text_of(memory_->kv()));
		poll();
	};
	column->addWidget(new_group("Memory for conversations",
	                            "What the model remembers of a conversation takes memory. Less of it per word lets "
	                            "conversations be longer, and costs some quality. Memory and length hold for this "
	                            "conversation and for new ones. This conversation is read again with the next "
	                            "question; an answer under way ends as it began.",
	                            memory_));
	auto* answers = new QWidget;
	QFormLayout* form = new_form(answers);
	system_ = new QPlainTextEdit;
	set_role(system_, "field");
	system_->setTabChangesFocus(true);
	system_->setFixedHeight(em(4));
	system_->setPlaceholderText("You are a helpful assistant who answers briefly.");
	add_row(form, "Instructions", system_, "What the model is told before each conversation: its role, tone, language");
	add_row(form, "Creativity", temperature_ = new_real(0, 100, 0.1),
	        "0: always the likeliest word; 0.8: varied; above 1.2: wild. Experts call it temperature.");
	add_row(form, "Longest answer", most_ = new_whole(0, 1 << 30, "no limit"),
	        "In tokens; a token is about three quarters of a word");
	column->addWidget(new_group("Answers", "", answers));

	auto* looks = new QWidget;
	form = new_form(looks);
	theme_ = new Calm<QComboBox>;
	for (const auto& [name, value] : {std::pair{"As the desktop", "system"}, {"Light", "light"}, {"Dark", "dark"}})
		theme_->addItem(name, value);
	add_row(form, "Colours", theme_, "Light or dark");
	scale_ = new Calm<QComboBox>;
	scale_->addItem("As the desktop", 0.);
	for (const int n : {80, 90, 100, 110, 125, 150, 175, 200, 250}) scale_->addItem(QString("%1 %").arg(n), n / 100.);
	add_row(form, "Text size", scale_, "Ctrl++ and Ctrl+- change it at any time");
	for (QComboBox* b : {theme_, scale_}) b->setMaximumWidth(em(12));
	column->addWidget(new_group("Appearance", "", looks));

	auto* computer = new QWidget;
	form = new_form(computer);
	device_ = new Calm<QComboBox>;
	device_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
	add_row(form, "Runs on", device_,
	        "The graphics processor that computes the answers; a change loads the model again");
	column->addWidget(new_group("This computer", "", computer));

	expert_ = new QCheckBox("Show settings for experts");
	column->addWidget(expert_);
	column->addWidget(experts_ = new_expert());
	connect(expert_, &QCheckBox::toggled, experts_, &QWidget::setVisible);
	column->addStretch();
	return groups;
}

QWidget* SettingsPage::new_expert() {
	auto* expert = new QWidget;
	QFormLayout* form = new_form(expert);
	policy_ = new Calm<QComboBox>;
	policy_->setEditable(true);
	policy_->setSizeAdjustPolicy(QComboBox::AdjustToMinimumContentsLengthWithIcon);
	for (size_t i = 0; i < kvrun_policy_count(); ++i) {
		kvrun_policy_info info = KVRUN_POLICY_INFO_INIT;
		if (kvrun_policy_get(i, &info) != KVRUN_OK) continue;
		policy_->addItem(info.name);
		policy_->setItemData(policy_->count() - 1, QString(info.summary), Qt::ToolTipRole);
	}
	add_row(form, "Cache policy", policy_, "How the cache stores tokens, with options: zipcache,ratio=0.4");
	template_ = new Calm<QComboBox>;
	template_->setEditable(true);
	add_row(form, "Chat template", template_,
	        "How a conversation is written for the model: a name, or the path of a Jinja file");
	add_row(form, "Top k", top_k_ = new_whole(0, 1 << 20, "all"), "Only the k likeliest words are drawn from");
	add_row(form, "Top p", top_p_ = new_real(0.01, 1, 0.05),
	        "Only the likeliest words that together have this probability");
	add_row(form, "Min p", min_p_ = new_real(0, 1, 0.01),
	        "Only words at least this likely, compared with the likeliest");
	add_row(form, "Repeat penalty", repeat_ = new_real(0.1, 10, 0.05), "Above 1: words that were said get less likely");
	add_row(form, "Seed", seed_ = new_whole(-1, 1 << 30, "drawn"), "The same seed and settings give the same answer");
	cache_ = new QCheckBox("Below each conversation, how every token of it is stored");
	add_row(form, "Cache in view", cache_, "Ctrl+Shift+M shows and hides it at any time");
	connect(policy_, &QComboBox::currentTextChanged, this, [this](const QString& text) {
		if (text.toStdString() == memory_->kv()) return;
		memory_->set(text.trimmed().toStdString(), memory_->ctx());
		poll();
	});
	return new_group("Expert", "", expert);
}

void SettingsPage::open() {
	if (!changed()) {
		Settings s = state_.settings;
		if (const Conversation* c = state_.current()) {
			const Memory m = state_.live(c->id).memory.value_or(Memory{c->kv, c->ctx});
			s.kv = m.kv, s.ctx = m.ctx;
		}
		fill(s);
		opened_ = draft();
	}
	listed_.clear();
	fill_devices();
	shown_.reset();
	poll();
	memory_->findChild<QSlider*>()->setFocus();
}

void SettingsPage::keep(const Typed& t) {
	Settings before = t.before, now = t.now;
	before.scale = state_.settings.scale; // Ctrl++ has changed it
	if (t.now.scale == t.before.scale) now.scale = before.scale;
	fill(before);
	opened_ = draft();
	fill(now);
}

std::optional<SettingsPage::Typed> SettingsPage::typed() const {
	if (!changed()) return std::nullopt;
	return Typed{*opened_, draft()};
}

bool SettingsPage::changed() const {
	if (!opened_) return false;
	Settings before = *opened_;
	const Settings now = draft();
	before.recent = now.recent, before.encoders = now.encoders; // a load has changed them
	return to_json(before) != to_json(now);
}

void SettingsPage::fill(const Settings& s) {
	memory_->set(s.kv, s.ctx);
	policy_->setEditText(text_of(memory_->kv()));
	system_->setPlainText(text_of(s.system));
	const Sampling& p = s.sampling;
	temperature_->setValue(p.temperature), most_->setValue(p.max_tokens);
	top_k_->setValue(int(std::clamp<int64_t>(p.top_k, 0, 1 << 20))), top_p_->setValue(p.top_p),
	    min_p_->setValue(p.min_p), repeat_->setValue(p.repeat_penalty);
	seed_->setValue(int(std::clamp<int64_t>(p.seed, -1, 1 << 30)));
	theme_->setCurrentIndex(std::max(0, theme_->findData(text_of(s.theme))));
	int at = 0; // index of the nearest size
	for (int i = 1; i < scale_->count() && s.scale > 0; ++i)
		if (at == 0 ||
		    std::abs(scale_->itemData(i).toDouble() - s.scale) < std::abs(scale_->itemData(at).toDouble() - s.scale))
			at = i;
	scale_->setCurrentIndex(at);
	expert_->setChecked(s.expert);
	experts_->setVisible(s.expert);
	cache_->setChecked(s.show_cache);
	template_->clear();
	template_->addItem("");
	for (const std::string& name : state_.facts.templates) template_->addItem(text_of(name));
	template_->lineEdit()->setPlaceholderText("the model's own");
	template_->setEditText(text_of(s.chat_template));
	if (device_->findData(text_of(s.device)) < 0) device_->addItem(text_of(s.device), text_of(s.device));
	device_->setCurrentIndex(device_->findData(text_of(s.device)));
}

void SettingsPage::fill_devices() {
	const QString now = device_->count() ? device_->currentData().toString() : text_of(state_.settings.device);
	device_->clear();
	device_->addItem("The best device", QString(""));
	for (const DeviceEntry& d : listed_) {
		const QString name = text_of(d.name);
		device_->addItem(d.refused.empty()
		                     ? QString("%1 (%2 free)").arg(name, text_of(human_size(d.free_bytes)))
		                     : QString("%1 cannot be used: %2").arg(name, text_of(window_words(d.refused))),
		                 name);
		if (!d.refused.empty()) device_->setItemData(device_->count() - 1, 0, Qt::UserRole - 1); // disabled
	}
	int at = device_->findData(now);
	if (at < 0) {
		device_->addItem(now, now);
		at = device_->count() - 1;
	}
	device_->setCurrentIndex(at);
}

PlanRequest SettingsPage::request() const {
	const std::string model = !state_.model.empty()             ? state_.model
	                          : !state_.settings.recent.empty() ? state_.settings.recent.front()
	                                                            : "";
	PlanRequest r{model, device_->currentData().toString().toStdString(), memory_->kv(), memory_->ctx(), 0};
	const Loaded& f = state_.facts;
	// the loaded model frees its memory before the next one is loaded
	if (state_.phase == EnginePhase::Ready && r.device == state_.settings.device)
		r.memory_bytes = f.weight_bytes + f.activation_bytes + f.kv_budget_bytes;
	return r;
}

bool SettingsPage::waiting() const { // for results that are not shown yet
	if (!isVisible()) return false;
	const std::optional<Plan> plan = planner_.plan();
	return !plan || !shown_ || !(*shown_ == plan->request) || listed_.empty();
}

void SettingsPage::poll() {
	const PlanRequest r = request();
	planner_.ask(r);
	if (listed_.empty() && !planner_.devices().empty()) {
		listed_ = planner_.devices();
		fill_devices();
	}
	const std::optional<Plan> plan = planner_.plan();
	if (!plan || (shown_ && *shown_ == plan->request)) return;
	shown_ = plan->request;
	memory_->show_plan(plan, !r.model.empty());
}

Settings SettingsPage::draft() const {
	Settings s = state_.settings;
	s.kv = memory_->kv(), s.ctx = memory_->ctx();
	s.system = system_->toPlainText().toStdString();
	s.chat_template = template_->currentText().trimmed().toStdString();
	s.device = device_->currentData().toString().toStdString();
	s.theme = theme_->currentData().toString().toStdString();
	s.scale = scale_->currentData().toDouble();
	s.expert = expert_->isChecked(), s.show_cache = cache_->isChecked();
	Sampling& p = s.sampling;
	p.temperature = temperature_->value(), p.max_tokens = most_->value();
	p.top_k = top_k_->value(), p.top_p = top_p_->value(), p.min_p = min_p_->value(),
	p.repeat_penalty = repeat_->value();
	p.seed = seed_->value();
	return s;
}

void SettingsPage::close(bool apply) {
	if (!apply && changed() &&
	    !confirm(this, "Discard what was changed here?", "Nothing of it has been applied yet.", "Discard", "Keep"))
		return;
	if (apply) {
		const Settings now = draft();
		const PlanRequest r = request();
		if (const std::string fault = now.kv == opened_->kv ? "" : policy_fault(r.model, now.kv); !fault.empty()) {
			state_.problem = "Not applied: " + window_words(fault) + ".";
			refused();
			return;
		}
		state_.apply(*opened_, now);
	}
	opened_.reset();
	closed(apply);
}

} // namespace kvrun::desktop
