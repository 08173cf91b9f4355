//go:build cgo

// The plumbing between ONNX Runtime and the operator: everything that calls ONNX
// Runtime is here, so that Go never calls C, which costs more than being called.

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "_cgo_export.h"
#include "ort.h"

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#define TRY(expression)                       \
  do {                                        \
    ort_status *status_ = (expression);       \
    if (status_ != NULL) return status_;      \
  } while (0)

typedef struct {
  const ort_api *api;
  uintptr_t id;  // of the kernel in Go
  int element;   // of queries, keys and values
} kernel;

static int input_type(const ort_custom_op *op, size_t i);
static int output_type(const ort_custom_op *op, size_t i);

// Attributes.

static void drop(const ort_api *api, ort_status *status) {
  if (status != NULL) api->release_status(status);
}

// absent tells what a status means that came with reading an attribute: ONNX
// Runtime does not tell an attribute that is left out from one of another type, so
// the other types are tried.
static ort_status *absent(const ort_api *api, const ort_kernel_info *info, const char *name, const char *want, ort_status *failed) {
  float f;
  int64_t i;
  size_t n = 0, m = 0;
  drop(api, failed);
  ort_status *tries[] = {
      api->attribute_float(info, name, &f),
      api->attribute_int64(info, name, &i),
      api->attribute_string(info, name, NULL, &n),
      api->attribute_floats(info, name, NULL, &m),
  };
  int there = 0;
  for (size_t k = 0; k < sizeof tries / sizeof *tries; k++) {
    there |= tries[k] == NULL;
    drop(api, tries[k]);
  }
  if (!there) return NULL;
  char text[200] = "FirstPassageAttention: the attribute ";
  strncat(text, name, 40);
  strcat(text, " has a wrong type, expected ");
  strncat(text, want, 40);
  return api->create_status(status_invalid_argument, text);
}

static ort_status *read_float(const ort_api *api, const ort_kernel_info *info, const char *name, float *out) {
  float f;
  ort_status *failed = api->attribute_float(info, name, &f);
  if (failed != NULL) return absent(api, info, name, "a float", failed);
  *out = f;
  return NULL;
}

static ort_status *read_string(const ort_api *api, const ort_kernel_info *info, const char *name, char *out, size_t size) {
  size_t n = 0; // with its NUL
  ort_status *failed = api->attribute_string(info, name, NULL, &n);
  if (failed != NULL) return absent(api, info, name, "a string", failed);
  if (n > size) {
    strcpy(out, "(a long text)"); // which is none of the values
    return NULL;
  }
  return api->attribute_string(info, name, out, &n);
}

// read_floats allocates the list.
static ort_status *read_floats(const ort_api *api, const ort_kernel_info *info, const char *name, float **out, size_t *n) {
  ort_status *failed = api->attribute_floats(info, name, NULL, n);
  if (failed != NULL) return absent(api, info, name, "a list of floats", failed);
  *out = malloc((*n + 1) * sizeof **out);
  if (*out == NULL) return api->create_status(status_fail, "FirstPassageAttention: out of memory");
  return api->attribute_floats(info, name, *out, n);
}

static ort_status *read_attributes(const ort_api *api, const ort_kernel_info *info, fpa_attributes *a, float **bounds) {
  TRY(read_float(api, info, "scale", &a->scale));
  TRY(read_string(api, info, "interval", a->interval, sizeof a->interval));
  TRY(read_string(api, info, "cache", a->cache, sizeof a->cache));
  TRY(read_float(api, info, "cache_eps", &a->cache_eps));
  TRY(read_floats(api, info, "logit_bound", bounds, &a->logit_bounds));
  a->logit_bound = *bounds;
  return NULL;
}

static ort_status *ORT_CALL create_kernel(const ort_custom_op *op, const ort_api *api, const ort_kernel_info *info, void **out) {
  char error[FPA_TEXT] = "";
  float *bounds = NULL;
  fpa_attributes a = {.interval = "exclusive", .cache = "off", .half = input_type(op, 0) == element_float16};
  kernel *k = NULL;
  ort_status *status = read_attributes(api, info, &a, &bounds);
  if (status == NULL && (k = malloc(sizeof *k)) == NULL) {
    status = api->create_status(status_fail, "FirstPassageAttention: out of memory");
  }
  if (status == NULL) {
    *k = (kernel){api, fpaKernel(&a, error), input_type(op, 0)};
    if (k->id == 0) status = api->create_status(status_invalid_argument, error);
  }
  free(bounds);
  if (status != NULL) {
    free(k);
    return status;
  }
  *out = k;
  return NULL;
}

static void ORT_CALL destroy_kernel(void *p) {
  kernel *k = p;
  fpaRelease(k->id);
  free(k);
}

// Calls.

static ort_status *describe(const ort_api *api, const ort_tensor_info *info, int want, fpa_tensor *t) {
  int element;
  TRY(api->get_tensor_element_type(info, &element));
  if (element != want) {
    return api->create_status(status_invalid_argument, "FirstPassageAttention: an input has another element type than its kernel is for");
  }
  TRY(api->get_dimensions_count(info, &t->rank));
  if (t->rank > FPA_RANK) return NULL;
  return api->get_dimensions(info, t->dims, t->rank);
}

static ort_status *read_inputs(const kernel *k, const ort_kernel_context *context, fpa_call *call) {
  const ort_api *api = k->api;
  size_t n;
  TRY(api->context_input_count(context, &n));
  for (size_t i = 0; i < n && i < FPA_INPUTS; i++) {
    const ort_value *value = NULL;
    ort_tensor_info *info;
    fpa_tensor *t = &call->in[i];
    TRY(api->context_input(context, i, &value));
    if (value == NULL) continue;
    t->there = 1;
    TRY(api->get_tensor_type_and_shape(value, &info));
    ort_status *status = describe(api, info, i >= 3 && i <= 5 || i >= 8 ? element_float : k->element, t);
    api->release_tensor_info(info);
    if (status != NULL) return status;
    TRY(api->get_tensor_mutable_data((ort_value *)value, &t->data));
  }
  return NULL;
}

static ort_status *make_outputs(const ort_api *api, ort_kernel_context *context, fpa_call *call) {
  size_t n;
  TRY(api->context_output_count(context, &n));
  for (size_t i = 0; i < n && i < FPA_OUTPUTS; i++) {
    ort_value *value = NULL;
    fpa_tensor *t = &call->out[i];
    TRY(api->context_output(context, i, t->dims, t->rank, &value));
    if (value == NULL) continue;
    t->there = 1;
    TRY(api->get_tensor_mutable_data(value, &t->data));
  }
  return NULL;
}

static void run_unit(void *id, size_t unit) { fpaRun(*(uintptr_t *)id, unit); }

static ort_status *run(const ort_api *api, ort_kernel_context *context, fpa_call *call) {
  TRY(make_outputs(api, context, call));
  size_t units = fpaStart(call);
  if (units == 1) {
    run_unit(&call->id, 0);
    return NULL;
  }
  return units == 0 ? NULL : api->parallel_for(context, run_unit, units, 0, &call->id);
}

static ort_status *ORT_CALL compute(void *p, ort_kernel_context *context) {
  const kernel *k = p;
  fpa_call call = {0};
  TRY(read_inputs(k, context, &call));
  fpaBegin(k->id, &call);
  ort_status *status = NULL;
  if (call.id != 0) {
    status = run(k->api, context, &call);
    fpaEnd(&call);
  }
  if (status == NULL && call.error[0] != 0) {
    status = k->api->create_status(call.failed ? status_fail : status_invalid_argument, call.error);
  }
  return status;
}

// The operator's two variants, for float and for binary16, under one name.

static const char *ORT_CALL name(const ort_custom_op *op) {
  (void)op;
  return "FirstPassageAttention";
}

static const char *ORT_CALL provider(const ort_custom_op *op) {
  (void)op;
  return NULL; // the CPU's
}

static size_t ORT_CALL input_count(const ort_custom_op *op) {
  (void)op;
  return FPA_INPUTS;
}

static size_t ORT_CALL output_count(const ort_custom_op *op) {
  (void)op;
  return FPA_OUTPUTS;
}

static int ORT_CALL input_characteristic(const ort_custom_op *op, size_t i) {
  (void)op;
  return i < 6 ? kind_required : kind_optional;
}

static int ORT_CALL output_characteristic(const ort_custom_op *op, size_t i) {
  (void)op;
  return i < 1 ? kind_required : kind_optional;
}

static int ORT_CALL memory_type(const ort_custom_op *op, size_t i) {
  (void)op, (void)i;
  return memory_default;
}

static int ORT_CALL no_variadic(const ort_custom_op *op) {
  (void)op;
  return 1;
}

#define OPERATOR                                                                      \
  {                                                                                   \
    .version = ort_version, .get_name = name, .get_execution_provider = provider,     \
    .get_input_type = input_type, .get_input_count = input_count,                     \
    .get_output_type = output_type, .get_output_count = output_count,                 \
    .kernel_destroy = destroy_kernel, .get_input_characteristic = input_characteristic, \
    .get_output_characteristic = output_characteristic,                               \
    .get_input_memory_type = memory_type,                                             \
    .get_variadic = {no_variadic, no_variadic, no_variadic, no_variadic},             \
    .create_kernel_v2 = create_kernel, .kernel_compute_v2 = compute,                  \
  }

static const ort_custom_op variants[2] = {OPERATOR, OPERATOR};

static int ORT_CALL input_type(const ort_custom_op *op, size_t i) {
  if (i >= 3 && i <= 5 || i >= 8) return element_float;
  return op == &variants[1] ? element_float16 : element_float;
}

static int ORT_CALL output_type(const ort_custom_op *op, size_t i) {
  return i >= 3 ? element_float : input_type(op, 0);
}

// A domain must live as long as a session may use it, so there is one for each ONNX
// Runtime in the process, for ever.
typedef struct domain {
  const ort_api *api;
  ort_op_domain *domain;
  struct domain *next;
} domain;

static ort_status *new_domain(const ort_api *api, domain **list, ort_op_domain **out) {
  domain *d = malloc(sizeof *d);
  if (d == NULL) return api->create_status(status_fail, "FirstPassageAttention: out of memory");
  d->api = api;
  ort_status *status = api->create_custom_op_domain("ai.firstpassage", &d->domain);
  if (status != NULL) {
    free(d);
    return status;
  }
  for (size_t i = 0; i < 2 && status == NULL; i++) {
    status = api->custom_op_domain_add(d->domain, &variants[i]);
  }
  if (status != NULL) return status;
  d->next = *list;
  *list = d;
  *out = d->domain;
  return NULL;
}

static ort_status *find_domain(const ort_api *api, ort_op_domain **out) {
  static atomic_flag busy = ATOMIC_FLAG_INIT;
  static domain *list;
  while (atomic_flag_test_and_set(&busy)) {
  }
  *out = NULL;
  for (domain *d = list; d != NULL; d = d->next) {
    if (d->api == api) *out = d->domain;
  }
  ort_status *status = *out != NULL ? NULL : new_domain(api, &list, out);
  atomic_flag_clear(&busy);
  return status;
}

EXPORT ort_status *ORT_CALL RegisterCustomOps(ort_session_options *options, const ort_api_base *base) {
  const ort_api *api = base->get_api(ort_version);
  if (api == NULL) {
    // An older ONNX Runtime; the function that makes a status is the first of every
    // version.
    for (uint32_t v = ort_version - 1; v > 0 && api == NULL; v--) api = base->get_api(v);
    return api == NULL ? NULL : api->create_status(status_fail, "FirstPassageAttention: this ONNX Runtime is too old, expected 1.17 or later");
  }
  ort_op_domain *domain;
  TRY(find_domain(api, &domain));
  return api->add_custom_op_domain(options, domain);
}
