//go:build cgo

// The part of ONNX Runtime's C interface that the plugin uses, declared anew so that
// the module needs no header of ONNX Runtime to be built. A test compares offsets,
// sizes and constants with the real header.

#ifndef FPA_ORT_H
#define FPA_ORT_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define ORT_CALL __stdcall
#else
#define ORT_CALL
#endif

// The version asked for, of ONNX Runtime 1.17: the first with a parallel loop for
// kernels. Later ones have it too.
enum { ort_version = 17 };

enum { status_fail = 1, status_invalid_argument = 2 };  // OrtErrorCode
enum { element_float = 1, element_float16 = 10 };       // ONNXTensorElementDataType
enum { kind_required = 0, kind_optional = 1 };          // OrtCustomOpInputOutputCharacteristic
enum { memory_default = 0 };                            // OrtMemType

typedef struct ort_status ort_status;
typedef struct ort_value ort_value;
typedef struct ort_tensor_info ort_tensor_info;
typedef struct ort_kernel_info ort_kernel_info;
typedef struct ort_kernel_context ort_kernel_context;
typedef struct ort_session_options ort_session_options;
typedef struct ort_op_domain ort_op_domain;
typedef struct ort_custom_op ort_custom_op;

// ort_api is OrtApi, a table of functions that only grows. Functions that return a
// status return NULL when all is well.
typedef struct ort_api {
  ort_status *(ORT_CALL *create_status)(int code, const char *message);
  void *skip1[25];
  ort_status *(ORT_CALL *create_custom_op_domain)(const char *name, ort_op_domain **out);
  ort_status *(ORT_CALL *custom_op_domain_add)(ort_op_domain *, const ort_custom_op *);
  ort_status *(ORT_CALL *add_custom_op_domain)(ort_session_options *, ort_op_domain *);
  void *skip2[22];
  ort_status *(ORT_CALL *get_tensor_mutable_data)(ort_value *, void **out);
  void *skip3[8];
  ort_status *(ORT_CALL *get_tensor_element_type)(const ort_tensor_info *, int *out);
  ort_status *(ORT_CALL *get_dimensions_count)(const ort_tensor_info *, size_t *out);
  ort_status *(ORT_CALL *get_dimensions)(const ort_tensor_info *, int64_t *out, size_t n);
  void *skip4[2];
  ort_status *(ORT_CALL *get_tensor_type_and_shape)(const ort_value *, ort_tensor_info **out);
  void *skip5[19];
  ort_status *(ORT_CALL *attribute_float)(const ort_kernel_info *, const char *name, float *out);
  ort_status *(ORT_CALL *attribute_int64)(const ort_kernel_info *, const char *name, int64_t *out);
  ort_status *(ORT_CALL *attribute_string)(const ort_kernel_info *, const char *name, char *out, size_t *n);
  ort_status *(ORT_CALL *context_input_count)(const ort_kernel_context *, size_t *out);
  ort_status *(ORT_CALL *context_output_count)(const ort_kernel_context *, size_t *out);
  ort_status *(ORT_CALL *context_input)(const ort_kernel_context *, size_t i, const ort_value **out);
  ort_status *(ORT_CALL *context_output)(ort_kernel_context *, size_t i, const int64_t *dims, size_t n, ort_value **out);
  void *skip6;
  void(ORT_CALL *release_status)(ort_status *);
  void *skip7[5];
  void(ORT_CALL *release_tensor_info)(ort_tensor_info *);
  void *skip8[62];
  ort_status *(ORT_CALL *attribute_floats)(const ort_kernel_info *, const char *name, float *out, size_t *n);
  void *skip9[111];
  ort_status *(ORT_CALL *parallel_for)(const ort_kernel_context *, void (*f)(void *, size_t), size_t n, size_t batches, void *data);
} ort_api;

typedef struct ort_api_base {
  const ort_api *(ORT_CALL *get_api)(uint32_t version);
  const char *(ORT_CALL *get_version_string)(void);
} ort_api_base;

// ort_custom_op is OrtCustomOp as of version 17. What is not used is left out by
// its kind: a pointer that may be NULL.
struct ort_custom_op {
  uint32_t version;
  void *create_kernel;
  const char *(ORT_CALL *get_name)(const ort_custom_op *);
  const char *(ORT_CALL *get_execution_provider)(const ort_custom_op *);
  int(ORT_CALL *get_input_type)(const ort_custom_op *, size_t i);
  size_t(ORT_CALL *get_input_count)(const ort_custom_op *);
  int(ORT_CALL *get_output_type)(const ort_custom_op *, size_t i);
  size_t(ORT_CALL *get_output_count)(const ort_custom_op *);
  void *kernel_compute;
  void(ORT_CALL *kernel_destroy)(void *kernel);
  int(ORT_CALL *get_input_characteristic)(const ort_custom_op *, size_t i);
  int(ORT_CALL *get_output_characteristic)(const ort_custom_op *, size_t i);
  int(ORT_CALL *get_input_memory_type)(const ort_custom_op *, size_t i);
  int(ORT_CALL *get_variadic[4])(const ort_custom_op *);
  ort_status *(ORT_CALL *create_kernel_v2)(const ort_custom_op *, const ort_api *, const ort_kernel_info *, void **kernel);
  ort_status *(ORT_CALL *kernel_compute_v2)(void *kernel, ort_kernel_context *);
  void *infer_output_shape;
  void *versions[2];
  void *in_place[4];
};

#endif
