// Runs a model of one operator without past in ONNX Runtime, from C, with the plugin.
// The arguments are the library of ONNX Runtime, the plugin, and the model. A single
// position sees itself alone, so the output is its value.

#include <dlfcn.h>
#include <onnxruntime_c_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const OrtApi *api;

static void check(OrtStatus *status) {
  if (status == NULL) return;
  fprintf(stderr, "%s\n", api->GetErrorMessage(status));
  exit(1);
}

static OrtValue *tensor(OrtMemoryInfo *memory, float *data, const int64_t *shape, size_t rank) {
  size_t n = 1;
  OrtValue *value;
  for (size_t i = 0; i < rank; i++) n *= shape[i];
  check(api->CreateTensorWithDataAsOrtValue(memory, data, n * sizeof *data, shape, rank,
                                            ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, &value));
  return value;
}

int main(int argc, char **argv) {
  if (argc != 4) return 2;
  void *library = dlopen(argv[1], RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "%s\n", dlerror());
    return 1;
  }
  const OrtApiBase *(*base)(void) = (const OrtApiBase *(*)(void))dlsym(library, "OrtGetApiBase");
  api = base()->GetApi(17);

  OrtEnv *env;
  OrtSessionOptions *options;
  OrtSession *session;
  OrtMemoryInfo *memory;
  check(api->CreateEnv(ORT_LOGGING_LEVEL_FATAL, "test", &env));
  check(api->CreateSessionOptions(&options));
  check(api->RegisterCustomOpsLibrary_V2(options, argv[2]));
  check(api->CreateSession(env, argv[3], options, &session));
  check(api->CreateCpuMemoryInfo(OrtArenaAllocator, OrtMemTypeDefault, &memory));

  float query[] = {1, 2}, key[] = {3, 4}, v[] = {5, 6, 7}, field[] = {-1}, level[] = {-1}, slope[] = {1};
  const int64_t wide[] = {1, 1, 1, 2}, values[] = {1, 1, 1, 3}, one[] = {1, 1, 1};
  const char *names[] = {"query", "key", "value", "field", "level", "slope"};
  const OrtValue *in[] = {
      tensor(memory, query, wide, 4), tensor(memory, key, wide, 4), tensor(memory, v, values, 4),
      tensor(memory, field, one, 3), tensor(memory, level, one, 3), tensor(memory, slope, one, 1),
  };
  const char *results[] = {"output"};
  OrtValue *out = NULL;
  float *y;
  check(api->Run(session, NULL, names, in, 6, results, 1, &out));
  check(api->GetTensorMutableData(out, (void **)&y));
  if (memcmp(y, v, sizeof v) != 0) {
    fprintf(stderr, "output %g %g %g, expected the value 5 6 7\n", y[0], y[1], y[2]);
    return 1;
  }

  in[1] = tensor(memory, key, values, 4); // too wide for the query
  out = NULL;
  OrtStatus *status = api->Run(session, NULL, names, in, 6, results, 1, &out);
  if (status == NULL || api->GetErrorCode(status) != ORT_INVALID_ARGUMENT) {
    fprintf(stderr, "a key of another width is no invalid argument\n");
    return 1;
  }
  printf("%s\n", api->GetErrorMessage(status));
  api->ReleaseStatus(status);
  api->ReleaseSession(session);
  api->ReleaseSessionOptions(options);
  return 0;
}
