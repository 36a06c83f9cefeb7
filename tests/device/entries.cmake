# Device tests: each file runs once per device, as test.device; a missing device is reported as skipped (77). If the
# program is started by hand, KVRUN_TEST_DEVICES chooses. lavapipe26 is a newer Mesa than Debian 12's, from
# ../shared/vendor.
set(device_tests attend batch fetch forks limits models ops pack policies replay session stored)
set(test_devices cpu lavapipe lavapipe26 swiftshader)
set(vendor_drivers ${PROJECT_SOURCE_DIR}/tests/support/vendor_drivers.sh ${PROJECT_BINARY_DIR}/vendor)
set(start_lavapipe26 ${vendor_drivers} lavapipe)
# cuda-host: the CUDA sources as plain C++, their grids run on the host (cuda/host_grid.h).
find_package(Boost 1.70 QUIET COMPONENTS context)
if(TARGET Boost::context)
	foreach(source ${KVRUN_CUDA_KERNELS})
		set_source_files_properties(${source} PROPERTIES LANGUAGE CXX
			COMPILE_OPTIONS "-xc++;-include;${CMAKE_CURRENT_SOURCE_DIR}/cuda/host_grid.h;-Wno-unknown-pragmas")
	endforeach()
	add_library(kvrun_cuda_host STATIC cuda/host_grid.cpp cuda/host_runtime.cpp ${KVRUN_CUDA_KERNELS})
	target_link_libraries(kvrun_cuda_host PUBLIC kvrun_backends PRIVATE kvrun_options Boost::context)
	if(CMAKE_BUILD_TYPE STREQUAL Release)
		target_compile_options(kvrun_cuda_host PRIVATE -O3) # every kernel runs here
	endif()
	set_source_files_properties(support/devices.cpp PROPERTIES COMPILE_DEFINITIONS KVRUN_TEST_CUDA_HOST)
else()
	message(STATUS "no Boost.Context: the tests of the CUDA sources on the host are skipped")
endif()
file(GLOB device_sources CONFIGURE_DEPENDS device/test_*.cpp)
add_executable(kvrun_device_tests device/main.cpp support/devices.cpp support/kept_devices.cpp ${device_sources})
computes(kvrun_device_tests)
target_link_libraries(kvrun_device_tests PRIVATE kvrun_engine kvrun_tune kvrun_eval kvrun_env
	nlohmann_json::nlohmann_json PkgConfig::XXHASH
	doctest::doctest $<TARGET_NAME_IF_EXISTS:kvrun_cuda_host>)
target_compile_definitions(kvrun_device_tests PRIVATE KVRUN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
# a filter that matches no test case, and rows of which none runs, must not pass
set(ran_nothing "test cases: +0 |assertions: +0 ")
function(device_test name suite) # further arguments: the environment; EXCEPT patterns of test cases
	cmake_parse_arguments(PARSE_ARGV 2 arg "" "" "EXCEPT")
	set_property(GLOBAL APPEND PROPERTY device_suites ${suite})
	string(REGEX MATCH "lavapipe26" device ${name})
	if(arg_EXCEPT)
		list(JOIN arg_EXCEPT "," patterns)
		set(except --test-case-exclude=${patterns})
	endif()
	add_test(NAME ${name} COMMAND ${start_${device}} $<TARGET_FILE:kvrun_device_tests> --source-file=*test_${suite}*
		--no-version ${except})
	set_tests_properties(${name} PROPERTIES TIMEOUT ${device_limit} SKIP_RETURN_CODE 77
		ENVIRONMENT "${arg_UNPARSED_ARGUMENTS}" FAIL_REGULAR_EXPRESSION "${ran_nothing}")
endfunction()
# Nearly all of the time is the drivers' compilers, for each kernel anew. So lavapipe's entries run every n-th row of
# each test case (KVRUN_TEST_EVERY), the others one row in n over all test cases (KVRUN_TEST_ONE_IN), another n for
# each: what is left out on one driver runs on another. Where an entry with the validation layer has a multiple of the n
# of the entry without it, the driver's cache has its kernels. Forks and session files are the host's work: not on
# SwiftShader, which takes ten times as long as the others, and where engines share an open device
# (support/kept_devices.h). tools/dev/nightly.sh lavapipe lavapipe26 swiftshader run all rows.
set(rows_swiftshader KVRUN_TEST_ONE_IN=17)
foreach(row attend=131 images=7 models=89 ops=113 policies=61 session=5)
	string(REGEX MATCH "^[a-z]+" suite ${row})
	string(REPLACE ${suite} KVRUN_TEST_ONE_IN rows_${suite}_swiftshader ${row})
endforeach()
foreach(row attend=9 draft=7 fetch=13 host_weights=11 images=7 lora=37 models=13 ops=53 pack=7 policies=23 recurrent=17
		split=61 windows=7)
	string(REGEX MATCH "^[a-z_]+" suite ${row})
	string(REPLACE ${suite} KVRUN_TEST_EVERY rows_${suite}_lavapipe ${row})
endforeach()
foreach(suite attend fetch models ops pack policies)
	set(rows_${suite}_lavapipe26 KVRUN_TEST_ONE_IN=23)
endforeach()
foreach(suite batch images replay session)
	set(rows_${suite}_lavapipe26 KVRUN_TEST_ONE_IN=3)
endforeach()
set(left_out batch.swiftshader forks.lavapipe26 forks.swiftshader replay.swiftshader stored.lavapipe26
	stored.swiftshader)
# Where SwiftShader's compiler takes longest, and what the host decides; other devices run these test cases.
set(except_fetch_swiftshader EXCEPT
	"*a fork goes on*,*alone and beside sessions*,*latents: the same bits*,*begins anew*,*latents: a policy*"
	"*windows*,*KVRUN_CHECK*,*poisoned*")
set(except_session_swiftshader EXCEPT
	"*budget is spent*,*in two turns*,*few partial states*,*does not fit*,*KVRUN_CHECK*")
# of whole models, the logits
set(only_logits EXCEPT "*stories260K*,*greedy tokens*,*also read images*,*one tensor in the file*")
set(except_models_lavapipe26 ${only_logits})
set(except_models_swiftshader ${only_logits})
set(except_policies_swiftshader EXCEPT "*with softcaps*,*cancelled prompt*,*in every run*,*bundled model*,*first step*")
# many test cases with tables of few rows
set(rows_encoder_lavapipe KVRUN_TEST_ONE_IN=5)
set(rows_forks_lavapipe KVRUN_TEST_ONE_IN=2)
set(rows_format_screen_lavapipe KVRUN_TEST_ONE_IN=3)
set(rows_indexer_lavapipe KVRUN_TEST_ONE_IN=5)
set(rows_latent_lavapipe KVRUN_TEST_ONE_IN=7)
set(rows_prediction_lavapipe KVRUN_TEST_ONE_IN=3)
set(except_format_screen_lavapipe EXCEPT "*screen: latents*")
foreach(suite ${device_tests})
	foreach(device ${test_devices})
		if(NOT ${suite}.${device} IN_LIST left_out)
			device_test(${suite}.${device} ${suite} KVRUN_TEST_DEVICES=${device} ${rows_${device}}
				${rows_${suite}_${device}} ${except_${suite}_${device}})
		endif()
	endforeach()
endforeach()
foreach(suite assistant dflash draft encoder entries eval format_screen indexer latent mixtures prediction recurrent
		split windows)
	device_test(${suite}.cpu ${suite} KVRUN_TEST_DEVICES=cpu)
	device_test(${suite}.lavapipe ${suite} KVRUN_TEST_DEVICES=lavapipe ${rows_${suite}_lavapipe}
		${except_${suite}_lavapipe})
endforeach()
device_test(lora.cpu lora KVRUN_TEST_DEVICES=cpu)
device_test(lora.lavapipe lora KVRUN_TEST_DEVICES=lavapipe ${rows_lora_lavapipe})
device_test(lora.lavapipe.sync lora KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync KVRUN_TEST_EVERY=74)
set(except_positions EXCEPT "*in Qwen's models*,*in Gemma's models*")
set(except_images_swiftshader ${except_positions})
set(except_images_lavapipe26 ${except_positions})
foreach(device cpu lavapipe lavapipe26 swiftshader)
	device_test(images.${device} images KVRUN_TEST_DEVICES=${device} ${rows_images_${device}}
		${except_images_${device}})
endforeach()
device_test(images.lavapipe.sync images KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync KVRUN_TEST_EVERY=10
	${except_positions})
set(rows_audio_swiftshader KVRUN_TEST_ONE_IN=5)
foreach(device cpu lavapipe swiftshader)
	device_test(audio.${device} audio KVRUN_TEST_DEVICES=${device} ${rows_audio_${device}})
endforeach()
device_test(host_weights.cpu host_weights KVRUN_TEST_DEVICES=cpu)
device_test(host_weights.lavapipe host_weights KVRUN_TEST_DEVICES=lavapipe ${rows_host_weights_lavapipe})
device_test(split.lavapipe.validate split KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 KVRUN_TEST_ONE_IN=19)
device_test(host_weights.lavapipe.validate host_weights KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1
	KVRUN_TEST_ONE_IN=19)
device_test(host_weights.lavapipe.sync host_weights KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync
	KVRUN_TEST_ONE_IN=15)
# The validation layer reports nothing: core checks, synchronisation. It sees calls, barriers and bindings, which rows
# of one op share.
device_test(ops.lavapipe.validate ops KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 ${rows_ops_lavapipe})
device_test(ops.lavapipe.sync ops KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync ${rows_ops_lavapipe})
# Dispatches run in pieces, as on a slow or busy device: gl_NumWorkGroups is then a piece's.
device_test(ops.lavapipe.pieces ops KVRUN_TEST_DEVICES=lavapipe KVRUN_SUBMIT_MS=1
	KVRUN_TEST_CAPS=texel_range=0,cpu=0,int_dot=2,vendor=4318,cores=1 KVRUN_TEST_ONE_IN=97)
device_test(ops.swiftshader.validate ops KVRUN_TEST_DEVICES=swiftshader KVRUN_VALIDATE=1 KVRUN_TEST_ONE_IN=211)
# T65: Vulkan's required limits and no optional feature at all. Chips that have them, by Mesa's drivers (tools/arm.md):
# shared V3D before Mesa 26; push V3D; range Adreno; groups all of Arm boards; push_descriptor V3D; subgroup_ops V3D
# 4.2; int_dot Adreno, Mali before v9. None has a workgroup as small (V3D 256) or an alignment as large (Adreno and V3D
# 64).
string(CONCAT minimum "KVRUN_TEST_CAPS=workgroup=128,shared=16384,push=128,range=134217728,groups=65535,align=256,"
	"push_descriptor=0,subgroup_ops=0,texel_range=0,int_dot=0")
device_test(ops.lavapipe.minimum ops KVRUN_TEST_DEVICES=lavapipe ${minimum} KVRUN_TEST_ONE_IN=79)
# GPU kernels on a driver that executes cooperative matrices
device_test(ops.lavapipe26.matrices ops KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_CAPS=texel_range=0
	KVRUN_TEST_ONE_IN=151)
device_test(attend.lavapipe26.kept attend KVRUN_TEST_DEVICES=lavapipe26
	KVRUN_TEST_CAPS=texel_range=0,tune_shared_queries=1 KVRUN_TEST_ONE_IN=61)
# AMD: 4 subgroups share wide queries
device_test(attend.lavapipe26.queries attend KVRUN_TEST_DEVICES=lavapipe26
	KVRUN_TEST_CAPS=texel_range=0,vendor=4098,tune_prompt_queries=128 KVRUN_TEST_ONE_IN=97)
# Heads of up to 512 channels: shared memory of AMD's and NVIDIA's GPUs, more than lavapipe says it has. Its own is the
# host's, so it executes these kernels all the same.
add_test(NAME attend.lavapipe26.wide COMMAND ${start_lavapipe26} $<TARGET_FILE:kvrun_device_tests> --no-version
	"--test-case=*wide heads*,*however the prompt is cut*")
set_tests_properties(attend.lavapipe26.wide PROPERTIES TIMEOUT ${device_limit} SKIP_RETURN_CODE 77
	FAIL_REGULAR_EXPRESSION "${ran_nothing}"
	ENVIRONMENT
	"KVRUN_TEST_DEVICES=lavapipe26;KVRUN_TEST_CAPS=texel_range=0,shared=46080,vendor=4098;KVRUN_TEST_ONE_IN=11")
# scores in registers (VK_NV_cooperative_matrix2)
device_test(attend.lavapipe26.rows attend KVRUN_TEST_DEVICES=lavapipe26
	KVRUN_TEST_CAPS=texel_range=0,tune_register_scores=1 KVRUN_TEST_ONE_IN=131)
# what kvrun tune --kernels measures on NVIDIA GPUs
device_test(tune.lavapipe26 tune KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_CAPS=texel_range=0,vendor=4318
	KVRUN_TEST_EVERY=5)
device_test(images.lavapipe26.matrices images KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_CAPS=texel_range=0
	KVRUN_TEST_ONE_IN=17 ${except_positions})
device_test(session.lavapipe26.matrices session KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_CAPS=texel_range=0
	KVRUN_TEST_ONE_IN=13)
device_test(pack.lavapipe26.matrices pack KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_CAPS=texel_range=0
	KVRUN_TEST_ONE_IN=19)
device_test(policies.lavapipe26.matrices policies KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_CAPS=texel_range=0
	KVRUN_TEST_ONE_IN=29)
# GPU kernels with the workgroup sizes of one vendor's GPUs (32 to 1024 lanes, several subgroups), and with integer dot
# products, which these drivers have but do not report as fast.
set(as_gpu "KVRUN_TEST_CAPS=texel_range=0,cpu=0,int_dot=2,vendor=") # PCI ids: AMD 4098, NVIDIA 4318, Intel 32902
device_test(ops.lavapipe.int8.validate ops KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 ${as_gpu}4098
	KVRUN_TEST_ONE_IN=61)
device_test(attend.lavapipe26.int8 attend KVRUN_TEST_DEVICES=lavapipe26 ${as_gpu}32902 KVRUN_TEST_ONE_IN=41)
device_test(attend.lavapipe.int8 attend KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4318 KVRUN_TEST_ONE_IN=61)
device_test(attend.lavapipe.int8.validate attend KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 ${as_gpu}4098
	KVRUN_TEST_ONE_IN=79)
device_test(fetch.lavapipe.int8 fetch KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4318 KVRUN_TEST_ONE_IN=13)
device_test(pack.lavapipe.int8 pack KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4318 KVRUN_TEST_ONE_IN=19)
device_test(replay.lavapipe.int8 replay KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4318 KVRUN_TEST_ONE_IN=17)
device_test(session.lavapipe.int8 session KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4318 KVRUN_TEST_ONE_IN=15)
device_test(latent.lavapipe.int8 latent KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4098 KVRUN_TEST_ONE_IN=17)
device_test(latent.lavapipe.validate latent KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 KVRUN_TEST_ONE_IN=14)
device_test(latent.swiftshader latent KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_ONE_IN=17
	EXCEPT "*expanded form*,*pack latents*,*attn_kv_b*,*rows of one step*")
device_test(images.lavapipe.int8 images KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4098 KVRUN_TEST_ONE_IN=13
	${except_positions})
device_test(models.lavapipe.int8 models KVRUN_TEST_DEVICES=lavapipe ${as_gpu}4098 KVRUN_TEST_ONE_IN=47 ${only_logits})
# Choices of kvrun tune --kernels, other ones than kvrun's own: results within tolerances, and rows with the same bits
# whatever comes with them. The first set is rounded as by default, the second in f32.
set(tuned ${as_gpu}4318,cores=1,tune_matvec_rows=4,tune_tile_fill=32,tune_pieces=400)
set(tuned_f32 ${as_gpu}4098,tune_project_int8=0,tune_attend_int8=0,tune_matvec_rows=1,tune_tile_fill=512,tune_pieces=50)
foreach(row ops=61=53 batch=7=7 session=5=7)
	string(REPLACE "=" ";" row ${row})
	list(GET row 0 suite)
	list(GET row 1 n)
	list(GET row 2 n_f32)
	device_test(${suite}.lavapipe.tuned ${suite} KVRUN_TEST_DEVICES=lavapipe ${tuned} KVRUN_TEST_ONE_IN=${n})
	device_test(${suite}.lavapipe.tuned_f32 ${suite} KVRUN_TEST_DEVICES=lavapipe ${tuned_f32}
		KVRUN_TEST_ONE_IN=${n_f32})
endforeach()
device_test(batch.lavapipe.texels_off batch KVRUN_TEST_DEVICES=lavapipe KVRUN_TEST_CAPS=tune_texels=0
	KVRUN_TEST_ONE_IN=5)
device_test(ops.lavapipe26.tile_buffers ops KVRUN_TEST_DEVICES=lavapipe26
	KVRUN_TEST_CAPS=texel_range=0,tune_tile_buffers=2,tune_tile_fill=512 KVRUN_TEST_ONE_IN=197)
device_test(session.lavapipe26.attend_f32 session KVRUN_TEST_DEVICES=lavapipe26
	KVRUN_TEST_CAPS=texel_range=0,tune_attend_matrices=0 KVRUN_TEST_ONE_IN=5)
# GPU-assisted validation: kernels marked IN_BOUNDS (shaders/CMakeLists.txt) stay inside their buffers. It is slow, so a
# few rows run here; KVRUN_VALIDATE=gpu with the same program runs them all.
set(gpu_assisted KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=gpu)
# The longest kernels of their kind are left out: with the layer's code in them the compiler takes minutes.
set(gpu_assisted ${gpu_assisted} EXCEPT "*wide heads*,*softcaps*,*partial states*,*a row of matmul*")
device_test(ops.lavapipe.gpu ops ${as_gpu}4098,robust=0 KVRUN_TEST_ONE_IN=199 ${gpu_assisted})
device_test(attend.lavapipe.gpu attend ${as_gpu}4318,robust=0 KVRUN_TEST_ONE_IN=113 ${gpu_assisted})
# SwiftShader's subgroups have 4 lanes.
device_test(ops.swiftshader.int8 ops KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_CAPS=int_dot=2 KVRUN_TEST_ONE_IN=127)
device_test(attend.swiftshader.int8 attend KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_CAPS=int_dot=2
	KVRUN_TEST_ONE_IN=197
	EXCEPT "*several rows and caches*,*parameters in bytes*,*partial states*,*wide heads*,*balanced keys*")
device_test(attend.lavapipe.minimum attend KVRUN_TEST_DEVICES=lavapipe ${minimum} KVRUN_TEST_ONE_IN=43)
device_test(pack.lavapipe.minimum pack KVRUN_TEST_DEVICES=lavapipe ${minimum} KVRUN_TEST_ONE_IN=17)
device_test(policies.lavapipe.minimum policies KVRUN_TEST_DEVICES=lavapipe ${minimum} KVRUN_TEST_ONE_IN=67)
# Whole sequences under the layer.
device_test(session.lavapipe.validate session KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 KVRUN_TEST_EVERY=4)
device_test(session.lavapipe.sync session KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync KVRUN_TEST_EVERY=2)
device_test(pack.lavapipe.validate pack KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=1 ${rows_pack_lavapipe})
device_test(policies.lavapipe.sync policies KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync KVRUN_TEST_EVERY=68)

# The CUDA sources without a GPU: on the host, and compiled to PTX. Fibers are slow: whole tables of packing and
# attention, and a part of the others. tools/dev/nightly.sh cuda-host runs all.
set(rows_ops_cudahost KVRUN_TEST_EVERY=5)
set(rows_models_cudahost KVRUN_TEST_EVERY=23)
set(rows_session_cudahost KVRUN_TEST_EVERY=17)
set(except_models_cudahost EXCEPT "*stories260K*")
set(rows_latent_cudahost KVRUN_TEST_ONE_IN=9)
set(rows_host_weights_cudahost KVRUN_TEST_EVERY=11)
set(rows_images_cudahost KVRUN_TEST_EVERY=6)
set(rows_audio_cudahost KVRUN_TEST_EVERY=2)
set(except_host_weights_cudahost EXCEPT "*three times as large*,*cross the bus once*")
foreach(suite attend audio host_weights images latent models ops pack replay session)
	device_test(${suite}.cudahost ${suite} KVRUN_TEST_DEVICES=cuda-host ${rows_${suite}_cudahost}
		${except_${suite}_cudahost})
endforeach()
device_test(split.cudahost split KVRUN_TEST_DEVICES=cuda-host KVRUN_TEST_EVERY=59
	EXCEPT "*under every kind of policy*,*every policy has the bits*")
device_test(assistant.cudahost assistant KVRUN_TEST_DEVICES=cuda-host KVRUN_TEST_ONE_IN=6)
device_test(assistant.swiftshader assistant KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_ONE_IN=16)
device_test(encoder.cudahost encoder KVRUN_TEST_DEVICES=cuda-host KVRUN_TEST_ONE_IN=4)
device_test(encoder.swiftshader encoder KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_ONE_IN=6)
device_test(encoder.lavapipe26 encoder KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_ONE_IN=3)
device_test(encoder.lavapipe.sync encoder KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync KVRUN_TEST_ONE_IN=4)
device_test(dflash.cudahost dflash KVRUN_TEST_DEVICES=cuda-host KVRUN_TEST_ONE_IN=6)
device_test(dflash.swiftshader dflash KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_ONE_IN=16)
device_test(entries.cudahost entries KVRUN_TEST_DEVICES=cuda-host KVRUN_TEST_ONE_IN=3)
device_test(entries.lavapipe26 entries KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_ONE_IN=2)
device_test(entries.lavapipe.sync entries KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync KVRUN_TEST_ONE_IN=2)
device_test(entries.swiftshader entries KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_ONE_IN=3)
device_test(indexer.lavapipe26 indexer KVRUN_TEST_DEVICES=lavapipe26 KVRUN_TEST_ONE_IN=6)
device_test(indexer.cudahost indexer KVRUN_TEST_DEVICES=cuda-host KVRUN_TEST_ONE_IN=17)
device_test(indexer.lavapipe.sync indexer KVRUN_TEST_DEVICES=lavapipe KVRUN_VALIDATE=sync KVRUN_TEST_ONE_IN=10)
device_test(indexer.swiftshader indexer KVRUN_TEST_DEVICES=swiftshader KVRUN_TEST_ONE_IN=21)
device_test(prediction.cudahost prediction KVRUN_TEST_DEVICES=cuda-host KVRUN_TEST_EVERY=29
	EXCEPT "*has no room*,*a layer that is right*")
add_test(NAME policies.cudahost COMMAND kvrun_device_tests --no-version --source-file=*test_policies.cpp
	"--test-case=*every policy on a model of every family*,*fp16 has the bits*,*first step after a prompt*")
add_test(NAME batch.cudahost COMMAND kvrun_device_tests --no-version --source-file=*test_batch.cpp
	"--test-case=*logits of rows of any policies*,*a stream's own*")
set_tests_properties(policies.cudahost batch.cudahost PROPERTIES TIMEOUT ${device_limit} SKIP_RETURN_CODE 77
	ENVIRONMENT "KVRUN_TEST_DEVICES=cuda-host;KVRUN_TEST_EVERY=61" FAIL_REGULAR_EXPRESSION "${ran_nothing}")
add_test(NAME draft.swiftshader COMMAND kvrun_device_tests --no-version --source-file=*test_draft.cpp
	"--test-case=*rows of one sequence*,*refuse by name*")
foreach(name draft.cudahost draft.lavapipe.int8)
	add_test(NAME ${name} COMMAND kvrun_device_tests --no-version --source-file=*test_draft.cpp
		"--test-case=*rows of one sequence*")
endforeach()
set_tests_properties(draft.swiftshader draft.cudahost draft.lavapipe.int8 PROPERTIES TIMEOUT ${device_limit}
	SKIP_RETURN_CODE 77 FAIL_REGULAR_EXPRESSION "${ran_nothing}")
set_tests_properties(draft.swiftshader PROPERTIES ENVIRONMENT "KVRUN_TEST_DEVICES=swiftshader;KVRUN_TEST_EVERY=7")
set_tests_properties(draft.lavapipe.int8 PROPERTIES
	ENVIRONMENT "KVRUN_TEST_DEVICES=lavapipe;${as_gpu}4318;KVRUN_TEST_EVERY=7")
set_tests_properties(draft.cudahost PROPERTIES ENVIRONMENT "KVRUN_TEST_DEVICES=cuda-host;KVRUN_TEST_EVERY=4")
# Each file of test cases runs in some entry.
get_property(device_suites GLOBAL PROPERTY device_suites)
list(JOIN device_suites "|" device_suites)
foreach(source ${device_sources})
	if(NOT ${source} MATCHES "/test_(${device_suites})[^/]*$")
		message(FATAL_ERROR "${source} runs in no entry; tests/device/entries.cmake needs one")
	endif()
endforeach()
# The same on an NVIDIA GPU; skipped without one. The program itself prints what it finds, with and without a driver.
if(KVRUN_HAS_CUDA)
	foreach(suite ${device_tests})
		device_test(${suite}.cuda ${suite} KVRUN_TEST_DEVICES=cuda)
	endforeach()
	add_test(NAME cuda_row COMMAND kvrun devices --json)
	set_tests_properties(cuda_row PROPERTIES PASS_REGULAR_EXPRESSION "\"backend\": \"cuda\"")
else()
	add_test(NAME cuda_row COMMAND ${CMAKE_COMMAND} -E echo
		"skipped: built without the CUDA toolkit, nvcc compiled nothing")
	set_tests_properties(cuda_row PROPERTIES SKIP_REGULAR_EXPRESSION "skipped:")
endif()
if(TARGET kvrun_cuda_host)
	add_executable(kvrun_cuda_tests support/main.cpp support/devices.cpp support/kept_devices.cpp
		cuda/test_cuda_codes.cpp
		cuda/test_cuda_faults.cpp
		cuda/test_host_grid.cpp
	)
	computes(kvrun_cuda_tests)
	target_link_libraries(kvrun_cuda_tests PRIVATE kvrun_engine kvrun_env kvrun_cuda_host doctest::doctest)
	target_compile_definitions(kvrun_cuda_tests PRIVATE KVRUN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
	foreach(name cuda_codes cuda_faults host_grid)
		add_test(NAME ${name} COMMAND kvrun_cuda_tests --source-file=*test_${name}.cpp --no-version)
		set_tests_properties(${name} PROPERTIES TIMEOUT ${host_limit} SKIP_RETURN_CODE 77
			FAIL_REGULAR_EXPRESSION "${ran_nothing}")
	endforeach()
endif()
add_test(NAME cuda_ptx COMMAND ${CMAKE_CURRENT_SOURCE_DIR}/cuda/ptx.sh ${CMAKE_CURRENT_BINARY_DIR}/ptx
	${KVRUN_CUDA_KERNELS})
set_tests_properties(cuda_ptx PROPERTIES TIMEOUT ${host_limit} SKIP_RETURN_CODE 77)
