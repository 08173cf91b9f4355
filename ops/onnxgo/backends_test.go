package onnxgo

import (
	"strings"
	"testing"

	"github.com/gomlx/gomlx/backends"
)

// others holds the backends that operators are run on beside the pure-Go one; a
// constructor skips the test where its backend is not at hand.
var others = map[string]func(t testing.TB) backends.Backend{}

// TestOtherBackends runs one case of each operator on them, as graphs of inputs;
// compiling is what takes long there.
func TestOtherBackends(t *testing.T) {
	goldens := readGoldens(t)
	for name, open := range others {
		t.Run(name, func(t *testing.T) {
			b := open(t)
			seen := make(map[string]bool)
			for _, c := range operatorCases() {
				operator, _, _ := strings.Cut(c.name, " ")
				if seen[operator] {
					continue
				}
				seen[operator] = true
				m, given := c.model(t)
				p, err := Convert(m)
				if err != nil {
					t.Fatal(err)
				}
				s, err := NewSession(b, p)
				if err != nil {
					t.Fatal(err)
				}
				out, err := s.Run(given)
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
					continue
				}
				for i, want := range goldens[c.name] {
					if d := asGolden(t, out[names(m.Graph.Outputs)[i]]).differs(want); d != "" {
						t.Errorf("%s: output %d: %s", c.name, i, d)
					}
				}
			}
		})
	}
}
