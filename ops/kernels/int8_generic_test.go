//go:build !amd64

package kernels

import "testing"

// eachInt8Level is eachLevel: there are no kernels for bytes.
func eachInt8Level(t *testing.T, test func(t *testing.T)) { eachLevel(t, test) }
