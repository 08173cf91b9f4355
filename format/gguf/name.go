package gguf

import (
	"fmt"
	"regexp"
	"strings"
)

// FileName is a file name by the GGUF naming convention
// (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention):
//
//	[Sidecar-]BaseName-SizeLabel[-FineTune]-Version[-Encoding][-Type][-Shard].gguf
//
// BaseName, SizeLabel and Version are required. Example:
// FPA-124M-v1.0-Q8_0.gguf.
type FileName struct {
	Sidecar   string // mmproj or mtp; empty for a model by itself
	BaseName  string // letters, digits and "-"
	SizeLabel string // 124M, 8x7B; see the function SizeLabel
	FineTune  string
	Version   string // v1.0
	Encoding  string // F16, Q8_0, Q4_K_M; see FileType.String
	Type      string // LoRA or vocab; empty for a model
	Shard     string // 00001-of-00003; empty for a model in one file
}

// The convention's regular expression looks ahead to keep LoRA and vocab from
// being read as an Encoding. Go's regexp has no look-ahead; two expressions
// do the same, tried in turn: with an optional Encoding, and without one.
var (
	namePattern     = regexp.MustCompile(nameHead + `(?:-(?P<Encoding>\w+))?` + nameTail)
	bareNamePattern = regexp.MustCompile(nameHead + nameTail)
)

const (
	nameHead = `^(?:(?P<Sidecar>mmproj|mtp)-)?` +
		`(?P<BaseName>[A-Za-z0-9\s]*(?:-(?:[A-Za-z\s][A-Za-z0-9\s]*|[0-9\s]*))*)` +
		`-(?P<SizeLabel>(?:\d+x)?(?:\d+\.)?\d+[A-Za-z](?:-[A-Za-z]+(?:\d+\.)?\d+[A-Za-z]+)?)` +
		`(?:-(?P<FineTune>[A-Za-z0-9\s-]+))?` +
		`-(?P<Version>v\d+(?:\.\d+)*)`
	nameTail = `(?:-(?P<Type>LoRA|vocab))?(?:-(?P<Shard>\d{5}-of-\d{5}))?\.gguf$`
)

// ParseFileName takes a file name, without folders, apart. ok is false when
// it does not follow the convention, as many names in use do not.
func ParseFileName(name string) (n FileName, ok bool) {
	if n, ok := matchName(namePattern, name); ok &&
		!strings.HasPrefix(n.Encoding, "LoRA") && !strings.HasPrefix(n.Encoding, "vocab") {
		return n, true
	}
	return matchName(bareNamePattern, name)
}

// matchName takes a name apart by one expression.
func matchName(pattern *regexp.Regexp, name string) (n FileName, ok bool) {
	m := pattern.FindStringSubmatch(name)
	if m == nil {
		return FileName{}, false
	}
	for i, group := range pattern.SubexpNames() {
		switch group {
		case "Sidecar":
			n.Sidecar = m[i]
		case "BaseName":
			n.BaseName = m[i]
		case "SizeLabel":
			n.SizeLabel = m[i]
		case "FineTune":
			n.FineTune = m[i]
		case "Version":
			n.Version = m[i]
		case "Encoding":
			n.Encoding = m[i]
		case "Type":
			n.Type = m[i]
		case "Shard":
			n.Shard = m[i]
		}
	}
	return n, true
}

// String is the file name. Characters that the convention does not allow in
// BaseName and FineTune become "-", a missing BaseName becomes "model", a
// missing Version v1.0.
func (n FileName) String() string {
	base, version := nameWords(n.BaseName), n.Version
	if base == "" {
		base = "model"
	}
	if version == "" {
		version = "v1.0"
	} else if !strings.HasPrefix(version, "v") {
		version = "v" + version
	}
	var parts []string
	for _, part := range []string{n.Sidecar, base, n.SizeLabel, nameWords(n.FineTune), version, n.Encoding, n.Type, n.Shard} {
		if part != "" {
			parts = append(parts, part)
		}
	}
	return strings.Join(parts, "-") + ".gguf"
}

var notInName = regexp.MustCompile(`[^A-Za-z0-9]+`)

// nameWords turns everything but letters and digits into single "-".
func nameWords(s string) string {
	return strings.Trim(notInName.ReplaceAllString(s, "-"), "-")
}

// SizeLabel is the number of parameters as file names and general.size_label
// carry it: in thousands (K), millions (M), billions (B) or trillions (T),
// with two digits at least: 124M, 1.5B, 0.35K. It is rounded half up, in the
// next unit where rounding reaches 1000. A negative number counts as 0.
func SizeLabel(parameters int64) string {
	units := []struct {
		size   int64
		letter string
	}{{1e3, "K"}, {1e6, "M"}, {1e9, "B"}, {1e12, "T"}}
	n := max(parameters, 0)
	u := 0
	for u+1 < len(units) && n >= units[u+1].size-units[u].size/2 {
		u++
	}
	unit := units[u].size
	whole, rest := n/unit, n%unit
	// rounded is n/unit times scale, rounded; rest*scale is below 10^14.
	rounded := func(scale int64) int64 { return whole*scale + (rest*scale+unit/2)/unit }
	letter := units[u].letter
	if r := rounded(100); r < 100 {
		return fmt.Sprintf("0.%02d%s", r, letter)
	}
	if r := rounded(10); r < 100 {
		return fmt.Sprintf("%d.%d%s", r/10, r%10, letter)
	}
	return fmt.Sprintf("%d%s", rounded(1), letter)
}
