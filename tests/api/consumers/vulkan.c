/* An application that calls Vulkan itself and has libkvrun.a, which must not take its functions. */
#include <kvrun.h>

#include <stdio.h>
#include <vulkan/vulkan.h>

int main(void)
{
	VkApplicationInfo application = {0};
	VkInstanceCreateInfo info = {0};
	VkInstance instance = VK_NULL_HANDLE;
	kvrun_devices *list = NULL;
	uint32_t version = 0;

	application.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO;
	application.apiVersion = VK_API_VERSION_1_1;
	info.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO;
	info.pApplicationInfo = &application;
	if (vkEnumerateInstanceVersion(&version) || version < VK_API_VERSION_1_1) {
		fprintf(stderr, "no Vulkan 1.1\n");
		return 1;
	}
	if (vkCreateInstance(&info, NULL, &instance) == VK_SUCCESS) /* not without a driver */
		vkDestroyInstance(instance, NULL);
	if (kvrun_devices_list(&list, NULL) || kvrun_devices_count(list) == 0) {
		fprintf(stderr, "error: %s\n", kvrun_last_error());
		return 1;
	}
	kvrun_devices_free(list);
	return 0;
}
