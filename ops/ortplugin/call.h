//go:build cgo

// What the plumbing for ONNX Runtime (plugin.c) and the operator (plugin.go) tell each
// other.

#ifndef FPA_CALL_H
#define FPA_CALL_H

#include <stddef.h>
#include <stdint.h>

enum { FPA_INPUTS = 10, FPA_OUTPUTS = 5, FPA_RANK = 4, FPA_TEXT = 1000 };

// fpa_attributes are the attributes of a node. Those that it leaves out have their
// defaults.
typedef struct {
  float scale;
  char interval[32], cache[32];
  float cache_eps;
  const float *logit_bound; // NULL: left out
  size_t logit_bounds;
  int half; // queries, keys and values are binary16
} fpa_attributes;

// fpa_tensor is an input or output.
typedef struct {
  void *data;
  int there;    // 0: left out
  size_t rank;
  int64_t dims[FPA_RANK]; // of no meaning beyond the rank, or when it is larger
} fpa_tensor;

typedef struct {
  fpa_tensor in[FPA_INPUTS];
  fpa_tensor out[FPA_OUTPUTS];
  uintptr_t id;         // of the call, once begun
  int failed;           // the program, not the inputs
  char error[FPA_TEXT]; // what is wrong
} fpa_call;

#endif
