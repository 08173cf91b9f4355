// Compares the declarations of ort.h with the real header of ONNX Runtime.

#include <onnxruntime_c_api.h>
#include <stdio.h>

#include "ort.h"

static int compared, wrong;

static void compare(const char *what, size_t ours, size_t real) {
  compared++;
  if (ours != real) {
    wrong++;
    printf("%s: %zu in ort.h, %zu in the real header\n", what, ours, real);
  }
}

#define FIELD(ours, field, real, member) compare(#real "." #member, offsetof(ours, field), offsetof(real, member))
#define API(field, member) FIELD(ort_api, field, OrtApi, member)
#define OP(field, member) FIELD(ort_custom_op, field, OrtCustomOp, member)

int main(void) {
  API(create_status, CreateStatus);
  API(create_custom_op_domain, CreateCustomOpDomain);
  API(custom_op_domain_add, CustomOpDomain_Add);
  API(add_custom_op_domain, AddCustomOpDomain);
  API(get_tensor_mutable_data, GetTensorMutableData);
  API(get_tensor_element_type, GetTensorElementType);
  API(get_dimensions_count, GetDimensionsCount);
  API(get_dimensions, GetDimensions);
  API(get_tensor_type_and_shape, GetTensorTypeAndShape);
  API(attribute_float, KernelInfoGetAttribute_float);
  API(attribute_int64, KernelInfoGetAttribute_int64);
  API(attribute_string, KernelInfoGetAttribute_string);
  API(context_input_count, KernelContext_GetInputCount);
  API(context_output_count, KernelContext_GetOutputCount);
  API(context_input, KernelContext_GetInput);
  API(context_output, KernelContext_GetOutput);
  API(release_status, ReleaseStatus);
  API(release_tensor_info, ReleaseTensorTypeAndShapeInfo);
  API(attribute_floats, KernelInfoGetAttributeArray_float);
  API(parallel_for, KernelContext_ParallelFor);

  FIELD(ort_api_base, get_api, OrtApiBase, GetApi);
  FIELD(ort_api_base, get_version_string, OrtApiBase, GetVersionString);
  compare("sizeof(OrtApiBase)", sizeof(ort_api_base), sizeof(OrtApiBase));

  OP(version, version);
  OP(create_kernel, CreateKernel);
  OP(get_name, GetName);
  OP(get_execution_provider, GetExecutionProviderType);
  OP(get_input_type, GetInputType);
  OP(get_input_count, GetInputTypeCount);
  OP(get_output_type, GetOutputType);
  OP(get_output_count, GetOutputTypeCount);
  OP(kernel_compute, KernelCompute);
  OP(kernel_destroy, KernelDestroy);
  OP(get_input_characteristic, GetInputCharacteristic);
  OP(get_output_characteristic, GetOutputCharacteristic);
  OP(get_input_memory_type, GetInputMemoryType);
  OP(get_variadic, GetVariadicInputMinArity);
  OP(create_kernel_v2, CreateKernelV2);
  OP(kernel_compute_v2, KernelComputeV2);
  OP(infer_output_shape, InferOutputShapeFn);
  OP(versions, GetStartVersion);
  OP(in_place, GetMayInplace);
  compare("sizeof(OrtCustomOp)", sizeof(ort_custom_op), sizeof(OrtCustomOp));

  compare("ORT_FAIL", status_fail, ORT_FAIL);
  compare("ORT_INVALID_ARGUMENT", status_invalid_argument, ORT_INVALID_ARGUMENT);
  compare("sizeof(ONNXTensorElementDataType)", sizeof(int), sizeof(ONNXTensorElementDataType));
  compare("float", element_float, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT);
  compare("float16", element_float16, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16);
  compare("required", kind_required, INPUT_OUTPUT_REQUIRED);
  compare("optional", kind_optional, INPUT_OUTPUT_OPTIONAL);
  compare("memory", memory_default, OrtMemTypeDefault);
  printf("%d compared with version %d, %d wrong\n", compared, ORT_API_VERSION, wrong);
  return wrong != 0;
}
