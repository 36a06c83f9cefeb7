// Instance: loader, layers, and messages of the validation layer.
#include "backends/vulkan/device.h"
#include "engine/core/log.h"
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <iterator>

namespace kvrun::vk {
namespace {

constexpr const char* kLayer = "VK_LAYER_KHRONOS_validation";

// Warnings of GPU-assisted validation about the layer itself: what it does not check (kvrun uses no buffer device
// addresses), and which features and limits of the device it changes.
constexpr const char* kAboutItself[] = {"No buffer device address checking will be attempted",
                                        "Warning that validation is adjusting settings", "Internal Warning: "};

std::atomic<size_t> unreported{0}; // validation messages of all instances that were not thrown yet

// Messages can come after the last wait(), from destruction; the process must then exit with an error.
void fail_exit() {
	if (unreported.load() == 0) return;
	std::fprintf(stderr, "error: the Vulkan validation layer has reported %zu problems\n", unreported.load());
	std::fflush(stderr);
	std::_Exit(1);
}

VkBool32 VKAPI_PTR on_message(VkDebugUtilsMessageSeverityFlagBitsEXT, VkDebugUtilsMessageTypeFlagsEXT,
                              const VkDebugUtilsMessengerCallbackDataEXT* data, void* user) {
	std::string text = data->pMessage ? data->pMessage : "(no text)";
	const auto has = [&](const char* s) { return text.find(s) != text.npos; };
	if (std::any_of(std::begin(kAboutItself), std::end(kAboutItself), has)) return VK_FALSE;
	if (data->pMessageIdName && !has(data->pMessageIdName)) // newer layers leave the name out
		text = fmt::format("{}: {}", data->pMessageIdName, text);
	static_cast<Messages*>(user)->add(std::move(text));
	return VK_FALSE;
}

struct Layers { // structs for VkInstanceCreateInfo under validation
	std::vector<VkValidationFeatureEnableEXT> on;
	std::vector<VkValidationFeatureDisableEXT> off;
	VkValidationFeaturesEXT features = make<VkValidationFeaturesEXT>(VK_STRUCTURE_TYPE_VALIDATION_FEATURES_EXT);
#ifdef VK_EXT_layer_settings
	const VkBool32 yes = VK_TRUE;
	// synchronisation validation of newer layers checks accesses by shaders only if this is set
	const VkLayerSettingEXT shader_accesses{kLayer, "syncval_shader_accesses_heuristic",
	                                        VK_LAYER_SETTING_TYPE_BOOL32_EXT, 1, &yes};
	VkLayerSettingsCreateInfoEXT settings =
	    make<VkLayerSettingsCreateInfoEXT>(VK_STRUCTURE_TYPE_LAYER_SETTINGS_CREATE_INFO_EXT);
#endif
	VkDebugUtilsMessengerCreateInfoEXT messenger =
	    make<VkDebugUtilsMessengerCreateInfoEXT>(VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT);
};

// Core checks together with synchronisation or GPU-assisted validation are slow, and print each problem twice.
void set_up_validation(Layers& v, const std::string& mode, Messages& sink) {
	if (mode == "sync") {
		v.on = {VK_VALIDATION_FEATURE_ENABLE_SYNCHRONIZATION_VALIDATION_EXT};
		v.off = {VK_VALIDATION_FEATURE_DISABLE_CORE_CHECKS_EXT};
	} else if (mode == "gpu") {
		v.on = {VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_EXT,
		        VK_VALIDATION_FEATURE_ENABLE_GPU_ASSISTED_RESERVE_BINDING_SLOT_EXT};
		v.off = {VK_VALIDATION_FEATURE_DISABLE_CORE_CHECKS_EXT};
	} else if (mode != "1") {
		fail(Code::Invalid, "validation is '{}', expected 0, 1, sync or gpu", mode);
	}
	if (!validation_layer_version())
		fail(Code::Device, "validation '{}' needs {}, which is not installed; install package vulkan-validationlayers",
		     mode, kLayer);
#ifdef VK_EXT_layer_settings
	v.settings.settingCount = 1;
	v.settings.pSettings = &v.shader_accesses;
	v.features.pNext = &v.settings;
#endif
	v.features.enabledValidationFeatureCount = uint32_t(v.on.size());
	v.features.pEnabledValidationFeatures = v.on.data();
	v.features.disabledValidationFeatureCount = uint32_t(v.off.size());
	v.features.pDisabledValidationFeatures = v.off.data();
	v.messenger.messageSeverity =
	    VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT;
	v.messenger.messageType =
	    VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT | VK_DEBUG_UTILS_MESSAGE_TYPE_PERFORMANCE_BIT_EXT;
	v.messenger.pfnUserCallback = on_message;
	v.messenger.pUserData = &sink;
	v.messenger.pNext = &v.features;
}

} // namespace

uint32_t validation_layer_version() {
	uint32_t n = 0;
	VK_TRY(vkEnumerateInstanceLayerProperties(&n, nullptr));
	std::vector<VkLayerProperties> all(n);
	VK_TRY(vkEnumerateInstanceLayerProperties(&n, all.data()));
	for (const VkLayerProperties& l : all)
		if (!std::strcmp(l.layerName, kLayer)) return l.specVersion;
	return 0;
}

void Messages::add(std::string text) {
	log_line(0, "validation: " + text);
	std::lock_guard lock(mutex_);
	all_.push_back(std::move(text));
	++unreported;
}
std::string Messages::first() const {
	std::lock_guard lock(mutex_);
	return all_.empty() ? "" : all_.front();
}
size_t Messages::count() const {
	std::lock_guard lock(mutex_);
	return all_.size();
}
void Messages::take() {
	std::lock_guard lock(mutex_);
	if (all_.size() == taken_) return;
	const size_t first = taken_;
	unreported -= all_.size() - taken_;
	taken_ = all_.size();
	fail(Code::Internal, "Vulkan validation: {}", all_[first]);
}

Instance::Instance(const std::string& mode) {
	if (const std::string why = load_loader(); !why.empty()) fail(Code::Device, "{}", why);
	if (loader_is_stuck()) fail(Code::Device, "Vulkan is out of use since a driver ran out of memory; start again");
	uint32_t version = VK_API_VERSION_1_0;
	if (vkEnumerateInstanceVersion) VK_TRY(vkEnumerateInstanceVersion(&version));
	if (version < VK_API_VERSION_1_3)
		fail(Code::Device, "the Vulkan loader is version {}.{}, kvrun needs 1.3; install a newer libvulkan1",
		     VK_API_VERSION_MAJOR(version), VK_API_VERSION_MINOR(version));

	VkApplicationInfo app = make<VkApplicationInfo>(VK_STRUCTURE_TYPE_APPLICATION_INFO);
	app.pApplicationName = app.pEngineName = "kvrun";
	app.apiVersion = VK_API_VERSION_1_3;
	VkInstanceCreateInfo info = make<VkInstanceCreateInfo>(VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO);
	info.pApplicationInfo = &app;

	Layers validation;
	const bool validate = !mode.empty() && mode != "0";
	const char* extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
	if (validate) {
		set_up_validation(validation, mode, messages_);
		info.pNext = &validation.messenger; // also covers vkCreateInstance and vkDestroyInstance
		info.enabledLayerCount = 1;
		info.ppEnabledLayerNames = &kLayer;
		info.enabledExtensionCount = 1;
		info.ppEnabledExtensionNames = extensions;
	}
	const VkResult r = call_loader([&] { return vkCreateInstance(&info, nullptr, &instance_); });
	if (r == VK_ERROR_INCOMPATIBLE_DRIVER)
		fail(Code::Device,
		     "no Vulkan driver found; install package mesa-vulkan-drivers or the GPU vendor's driver, or check "
		     "VK_DRIVER_FILES and VK_ICD_FILENAMES");
	if (r < 0) fail_call(r, "vkCreateInstance");
	volkLoadInstanceOnly(instance_);
	if (validate) {
		static const bool registered = std::atexit(fail_exit) == 0;
		validation.messenger.pNext = nullptr;
		VK_TRY(vkCreateDebugUtilsMessengerEXT(instance_, &validation.messenger, nullptr, &messenger_));
		KV_ASSERT(registered && messenger_);
		destroy_messenger_ = vkDestroyDebugUtilsMessengerEXT;
	}
}

Instance::~Instance() {
	if (loader_is_stuck()) return; // the call would never return
	if (messenger_) destroy_messenger_(instance_, messenger_, nullptr);
	vkDestroyInstance(instance_, nullptr);
}

} // namespace kvrun::vk
