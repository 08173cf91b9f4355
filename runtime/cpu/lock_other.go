//go:build !(linux || darwin || freebsd || netbsd || openbsd)

package cpu

import "errors"

// lockPages fails: there is no such thing here that is worth the trouble.
func lockPages([]byte) error { return errors.New("not supported on this system") }

func lockLimit() (limit uint64, limited bool) { return 0, false }
