package model

import (
	"math"
	"testing"

	"github.com/firstpassage/fpa/ops/reference"
)

// TestLlama3Factors compares with the oracle's, at the values of Llama 3.1 and 3.2.
func TestLlama3Factors(t *testing.T) {
	for _, factor := range []float64{8, 32} {
		want := reference.Llama3Factors(128, 500000, factor, 1, 4, 8192)
		got := llama3Factors(128, 500000, factor, 1, 4, 8192)
		for i := range want {
			if !(math.Abs(float64(got[i])/want[i]-1) < 1e-6) {
				t.Errorf("factor %d of %g is %g, expected %g", i, factor, got[i], want[i])
			}
		}
	}
}
