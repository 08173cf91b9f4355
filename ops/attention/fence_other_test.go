//go:build !linux

package attention

import "testing"

// fence allocates n elements.
func fence[T any](_ testing.TB, n int) []T { return make([]T, n) }
