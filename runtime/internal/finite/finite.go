// Package finite words the errors of numbers that an engine cannot work with, which
// are the same for all engines.
package finite

import (
	"fmt"
	"math"

	"github.com/firstpassage/fpa/quant"
)

// largestF16 is the first number that rounds to infinity in float16.
const largestF16 = 65520

// MostKey is the largest magnitude of an element of a key or value that a cache of
// type t holds.
func MostKey(t quant.DType) float64 {
	if t == quant.F16 {
		return math.Nextafter(largestF16, 0)
	}
	return math.MaxFloat32
}

// Input is the error of a number x that attention cannot work with: what is "query",
// "key", "value", "field" or "level". A number that is finite is too large for the
// cache.
func Input(layer int, what string, position int, x float32) error {
	if x-x == 0 {
		return fmt.Errorf("layer %d: a %s at position %d is %g, which the cache type f16 cannot hold (at most 65504); use f32 or q8_0", layer, what, position, x)
	}
	return fmt.Errorf("layer %d: a %s at position %d is %g: the weights are damaged, or overflow", layer, what, position, x)
}

// Logits checks that no logit is NaN or infinite.
func Logits(logits []float32, position int) error {
	for id, l := range logits {
		if l-l != 0 {
			return fmt.Errorf("the logit of token %d at position %d is %g: the weights are damaged, or overflow", id, position, l)
		}
	}
	return nil
}
