package cli

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bytes is a number of bytes for people: 12 B, 3.4 kB, 5.6 MB.
func Bytes(n int64) string {
	v := float64(n)
	for _, unit := range []string{"B", "kB", "MB"} {
		if v < 999.5 {
			if unit == "B" {
				return fmt.Sprintf("%d B", n)
			}
			return fmt.Sprintf("%.3g %s", v, unit)
		}
		v /= 1000
	}
	return fmt.Sprintf("%.3g GB", v)
}

// ParseBytes reads a number of bytes: digits and an optional K, M or G, which are
// powers of 1000.
func ParseBytes(s string) (int64, error) {
	unit, digits := int64(1), s
	if s != "" {
		if i := strings.IndexByte("KMG", strings.ToUpper(s)[len(s)-1]); i >= 0 {
			unit, digits = []int64{1e3, 1e6, 1e9}[i], s[:len(s)-1]
		}
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64/unit {
		return 0, fmt.Errorf("%q is no size, expected such as 500M or 4G", s)
	}
	return n * unit, nil
}
