//go:build !amd64

package quant

import "testing"

// eachPath runs a test in plain Go and with the assembly, where there is one.
func eachPath(t *testing.T, test func(t *testing.T)) { t.Run("generic", test) }
