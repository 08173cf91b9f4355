package main

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/firstpassage/fpa/ops/attention"
)

func TestOptions(t *testing.T) {
	nan, big := float32(math.NaN()), float32(math.Inf(1))
	for _, tt := range []struct {
		in   attributes
		want options
		err  string // a part of it
	}{
		{in: attributes{0, "exclusive", "off", 0, nil}, want: options{}},
		{in: attributes{0.5, "inclusive", "off", 0, []float32{3}}, want: options{0.5, true, nil}},
		{in: attributes{0, "exclusive", "exact", 0, []float32{3, 0}}, want: options{0, false, []float64{6 + 45*math.Ln2, 45 * math.Ln2}}},
		{in: attributes{0, "exclusive", "bounded", 0.25, []float32{1}}, want: options{0, false, []float64{2 + 22*math.Ln2}}},

		{in: attributes{nan, "exclusive", "off", 0, nil}, err: "scale"},
		{in: attributes{big, "exclusive", "off", 0, nil}, err: "scale"},
		{in: attributes{0, "", "off", 0, nil}, err: "interval"},
		{in: attributes{0, "exclusive", "budget", 0, nil}, err: `cache is "budget"`},
		{in: attributes{0, "exclusive", "exact", 0, nil}, err: "logit_bound"},
		{in: attributes{0, "exclusive", "exact", 0, []float32{1, -1}}, err: "logit_bound[1]"},
		{in: attributes{0, "exclusive", "exact", 0, []float32{nan}}, err: "logit_bound[0]"},
		{in: attributes{0, "exclusive", "exact", 0, []float32{big}}, err: "logit_bound[0]"},
		{in: attributes{0, "exclusive", "bounded", 0, []float32{1}}, err: "cache_eps"},
		{in: attributes{0, "exclusive", "bounded", 1, []float32{1}}, err: "cache_eps"},
		{in: attributes{0, "exclusive", "bounded", nan, []float32{1}}, err: "cache_eps"},
		{in: attributes{0, "inclusive", "exact", 0, []float32{1}}, err: "inclusive"},
	} {
		got, err := tt.in.options()
		switch {
		case tt.err != "":
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("%+v: error %v, expected one about %s", tt.in, err, tt.err)
			}
		case err != nil:
			t.Errorf("%+v: %v", tt.in, err)
		case got.scale != tt.want.scale || got.inclusive != tt.want.inclusive ||
			!slices.EqualFunc(got.threshold, tt.want.threshold, func(a, b float64) bool { return math.Abs(a-b) < 1e-12 }):
			t.Errorf("%+v: %+v, expected %+v", tt.in, got, tt.want)
		}
	}
}

func TestShape(t *testing.T) {
	good := func() [len(inputs)]tensor {
		return [len(inputs)]tensor{
			{2, 4, 5, 8}, {2, 2, 5, 8}, {2, 2, 5, 6}, {2, 4, 5}, {2, 4, 5}, {4},
			{2, 2, 7, 8}, {2, 2, 7, 6}, {2, 4, 7}, {2, 4, 7},
		}
	}
	in := good()
	got, err := shape(&in)
	if want := (attention.Shape{
		Batch: 2, QueryHeads: 4, KeyHeads: 2, FieldHeads: 4, New: 5, Past: 7, KeyDim: 8, ValueDim: 6,
	}); err != nil || got != want {
		t.Errorf("%+v, %v, expected %+v", got, err, want)
	}
	for i := required; i < len(in); i++ {
		in[i] = nil
	}
	if got, err = shape(&in); err != nil || got.Past != 0 {
		t.Errorf("without past: %+v, %v", got, err)
	}
	for _, tt := range []struct {
		input int
		shape tensor
		err   string // a part of it
	}{
		{0, nil, "query is missing"},
		{5, nil, "slope is missing"},
		{9, nil, "some of past_key"},
		{0, tensor{2, 4, 5}, "query has 3 dimensions, expected [B, Hq, T, D]"},
		{5, tensor{}, "slope has 0 dimensions"},
		{1, tensor{3, 2, 5, 8}, "key has shape [3 2 5 8], expected [B, Hkv, T, D] with B = 2 as in query"},
		{2, tensor{2, 2, 4, 6}, "T = 5"},
		{4, tensor{2, 4, 6}, "level"},
		{5, tensor{3}, "Hf = 4"},
		{7, tensor{2, 2, 7, 5}, "Dv = 6 as in value"},
		{9, tensor{2, 4, 8}, "P = 7 as in past_key"},
	} {
		in := good()
		in[tt.input] = tt.shape
		if _, err := shape(&in); err == nil || !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s of shape %d: error %v, expected one with %q", inputs[tt.input].name, tt.shape, err, tt.err)
		}
	}
	in = good()
	in[0][1] = 3
	if _, err := shape(&in); err == nil || !strings.Contains(err.Error(), "3 query heads over 2 key heads") {
		t.Errorf("3 query heads over 2: %v", err)
	}
}
