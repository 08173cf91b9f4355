//go:build cgo

package main

import (
	"errors"
	"strings"
	"testing"
)

// TestPanic: a panic becomes an error that says so.
func TestPanic(t *testing.T) {
	none := []int{}
	err := guard(func() error { return errors.New(string(rune(none[len(none)]))) })
	if !errors.As(err, new(panicked)) || !strings.Contains(err.Error(), "index out of range") {
		t.Errorf("error %v, expected the panic", err)
	}
	plain := errors.New("plain")
	if err := guard(func() error { return plain }); err != plain {
		t.Errorf("error %v, expected %v", err, plain)
	}
}
