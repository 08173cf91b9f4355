package main

import (
	"errors"
	"fmt"
	"math"
	"strings"

	"github.com/firstpassage/fpa/ops/attention"
)

// attributes are the attributes of a node, with defaults filled in.
type attributes struct {
	scale           float32
	interval, cache string
	eps             float32   // of cache "bounded"; 0: left out
	bound           []float32 // nil: left out
}

// options are what they mean.
type options struct {
	scale     float32
	inclusive bool
	threshold []float64 // nil: every key is kept
}

// exactEps is the weight that the cache "exact" may drop in all: 2^-25 moves a
// head's output by at most 2^-24 of the largest value, the rounding of float32.
const exactEps = 0x1p-25

func (a attributes) options() (options, error) {
	o := options{scale: a.scale}
	if !(math.Abs(float64(a.scale)) <= math.MaxFloat32) {
		return o, fmt.Errorf("scale is %g, expected a finite number; 0 for 1/sqrt of the keys' width", a.scale)
	}
	switch a.interval {
	case "exclusive":
	case "inclusive":
		o.inclusive = true
	default:
		return o, fmt.Errorf("interval is %q, expected \"exclusive\" or \"inclusive\"", a.interval)
	}
	eps := exactEps
	switch a.cache {
	case "off":
		return o, nil
	case "exact":
	case "bounded":
		eps = float64(a.eps)
		if !(eps > 0 && eps < 1) {
			return o, fmt.Errorf("cache_eps is %g, expected a number above 0 and below 1 with cache \"bounded\"", a.eps)
		}
	default:
		return o, fmt.Errorf("cache is %q, expected \"off\", \"exact\" or \"bounded\"", a.cache)
	}
	if o.inclusive {
		return o, fmt.Errorf("cache is %q with the inclusive interval, in which no key can be dropped safely; expected \"off\"", a.cache)
	}
	if len(a.bound) == 0 {
		return o, fmt.Errorf("cache is %q without logit_bound, expected a bound for each query head", a.cache)
	}
	for i, u := range a.bound {
		if !(u >= 0 && u <= math.MaxFloat32) {
			return o, fmt.Errorf("logit_bound[%d] is %g, expected a finite number that is not negative", i, u)
		}
		o.threshold = append(o.threshold, attention.Threshold(float64(u), eps))
	}
	return o, nil
}

// tensor is the shape of an input; nil: left out.
type tensor []int64

// The inputs, in order, and their dimensions by name.
var inputs = [...]struct {
	name string
	dims []string
}{
	{"query", []string{"B", "Hq", "T", "D"}},
	{"key", []string{"B", "Hkv", "T", "D"}},
	{"value", []string{"B", "Hkv", "T", "Dv"}},
	{"field", []string{"B", "Hf", "T"}},
	{"level", []string{"B", "Hf", "T"}},
	{"slope", []string{"Hf"}},
	{"past_key", []string{"B", "Hkv", "P", "D"}},
	{"past_value", []string{"B", "Hkv", "P", "Dv"}},
	{"past_level", []string{"B", "Hf", "P"}},
	{"past_low", []string{"B", "Hf", "P"}},
}

const required = 6 // inputs; those of the past come together

// shape finds the sizes that the inputs' shapes agree on.
func shape(in *[len(inputs)]tensor) (attention.Shape, error) {
	var s attention.Shape
	past := 0
	for i, t := range in {
		switch {
		case i >= required && t != nil:
			past++
		case i < required && t == nil:
			return s, fmt.Errorf("the input %s is missing", inputs[i].name)
		}
	}
	if past != 0 && past != len(inputs)-required {
		return s, errors.New("some of past_key, past_value, past_level and past_low are missing, expected all or none")
	}
	sizes := [...]struct {
		name string
		size *int
	}{
		{"B", &s.Batch}, {"Hq", &s.QueryHeads}, {"Hkv", &s.KeyHeads}, {"Hf", &s.FieldHeads},
		{"T", &s.New}, {"P", &s.Past}, {"D", &s.KeyDim}, {"Dv", &s.ValueDim},
	}
	var from [len(sizes)]string // the input that gave the size first
	for i, t := range in {
		if t == nil {
			continue
		}
		x := &inputs[i]
		if len(t) != len(x.dims) {
			return s, fmt.Errorf("%s has %d dimensions, expected [%s]", x.name, len(t), strings.Join(x.dims, ", "))
		}
		for axis, n := range t {
			for k := range sizes {
				z := &sizes[k]
				switch {
				case z.name != x.dims[axis]:
				case from[k] == "":
					*z.size, from[k] = int(n), x.name
				case int64(*z.size) != n:
					return s, fmt.Errorf("%s has shape %d, expected [%s] with %s = %d as in %s",
						x.name, []int64(t), strings.Join(x.dims, ", "), z.name, *z.size, from[k])
				}
			}
		}
	}
	return s, s.Check()
}
