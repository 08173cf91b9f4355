package chat

import (
	"strings"
	"unicode"
	"unicode/utf8"

	"golang.org/x/text/cases"
	"golang.org/x/text/language"
)

// What Python's str methods do, where Go's strings differ.

func upper(s string) string {
	if isASCII(s) {
		return strings.ToUpper(s)
	}
	return cases.Upper(language.Und).String(s)
}

func lower(s string) string {
	if isASCII(s) {
		return strings.ToLower(s)
	}
	return cases.Lower(language.Und).String(s)
}

// titleRune is the title case of one character, which can be several.
func titleRune(r rune) string {
	if r < utf8.RuneSelf {
		return string(unicode.ToUpper(r))
	}
	if u := cases.Upper(language.Und).String(string(r)); utf8.RuneCountInString(u) == 1 {
		return string(unicode.ToTitle(r))
	}
	return cases.Title(language.Und, cases.NoLower).String(string(r))
}

// capitalize is str.capitalize: the first character in title case, the rest in
// lower case.
func capitalize(s string) string {
	if s == "" {
		return s
	}
	r, n := utf8.DecodeRuneInString(s)
	return titleRune(r) + lowerAfter(s, n)
}

// lowerAfter is the part of lower(s) that belongs to s[n:]. A final sigma looks
// different from others, so what stands before counts.
func lowerAfter(s string, n int) string {
	return lower(s)[len(lower(s[:n])):]
}

// isCased reports characters that str.title takes for letters of a word.
func isCased(r rune) bool {
	return unicode.In(r, unicode.Lu, unicode.Ll, unicode.Lt, unicode.Other_Lowercase, unicode.Other_Uppercase)
}

// title is str.title: every run of cased characters begins in title case.
func title(s string) (string, error) {
	if strings.ContainsAny(s, "Σσς") {
		return "", refused("title of text with a Greek sigma")
	}
	var b strings.Builder
	inWord := false
	for _, r := range s {
		if inWord {
			b.WriteString(lower(string(r)))
		} else {
			b.WriteString(titleRune(r))
		}
		inWord = isCased(r)
	}
	return b.String(), nil
}

// titleFilter is the filter title, which differs from the method: words begin
// after white space, '-' and opening brackets only.
func titleFilter(s string) string {
	var b strings.Builder
	word := func(w string) {
		if w != "" {
			_, n := utf8.DecodeRuneInString(w)
			b.WriteString(upper(w[:n]) + lower(w[n:]))
		}
	}
	start := 0
	for i, r := range s {
		if isSpace(r) || strings.ContainsRune("-({[<", r) {
			word(s[start:i])
			b.WriteString(upper(string(r)))
			start = i + utf8.RuneLen(r)
		}
	}
	word(s[start:])
	return b.String()
}

// stripFunc removes characters at the ends: those in chars, or white space.
func stripFunc(s string, chars value, left, right bool) (string, error) {
	drop := isSpace
	switch c := chars.(type) {
	case nil:
	case string:
		drop = func(r rune) bool { return strings.ContainsRune(c, r) }
	case markup:
		return "", refused("a string that safe or escape marked as an argument")
	default:
		return "", failed("strip arg must be None or str, not %s", typeName(chars))
	}
	if left {
		s = strings.TrimLeftFunc(s, drop)
	}
	if right {
		s = strings.TrimRightFunc(s, drop)
	}
	return s, nil
}

// split is str.split: at sep, or at runs of white space when sep is nil;
// negative max means no bound.
func split(s string, sep *string, max int64) ([]string, error) {
	if sep != nil {
		if *sep == "" {
			return nil, failed("empty separator")
		}
		return strings.SplitN(s, *sep, splitCount(s, max)), nil
	}
	var parts []string
	for {
		s = strings.TrimLeftFunc(s, isSpace)
		if s == "" {
			return parts, nil
		}
		end := strings.IndexFunc(s, isSpace)
		if end < 0 || max >= 0 && int64(len(parts)) >= max {
			return append(parts, s), nil
		}
		parts = append(parts, s[:end])
		s = s[end:]
	}
}

// splitCount turns Python's bound on the splits into Go's on the parts.
func splitCount(s string, max int64) int {
	if max < 0 || max > int64(len(s)) {
		return -1
	}
	return int(max) + 1
}

// rsplit is str.rsplit: as split, but counted from the end.
func rsplit(s string, sep *string, max int64) ([]string, error) {
	if max < 0 {
		return split(s, sep, max)
	}
	if sep != nil && *sep == "" {
		return nil, failed("empty separator")
	}
	var parts []string // the last first
	for {
		end, width := -1, 0
		if sep == nil {
			s = strings.TrimRightFunc(s, isSpace)
			if s == "" {
				break
			}
			if end = strings.LastIndexFunc(s, isSpace); end >= 0 {
				_, width = utf8.DecodeRuneInString(s[end:])
			}
		} else {
			end, width = strings.LastIndex(s, *sep), len(*sep)
		}
		if end < 0 || int64(len(parts)) >= max {
			parts = append(parts, s)
			break
		}
		parts = append(parts, s[end+width:])
		s = s[:end]
	}
	for i, j := 0, len(parts)-1; i < j; i, j = i+1, j-1 {
		parts[i], parts[j] = parts[j], parts[i]
	}
	return parts, nil
}

// splitLines is str.splitlines: Python knows more ends of a line than \n.
func splitLines(s string, keep bool) []string {
	var lines []string
	start := 0
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		end := i
		i += n
		switch r {
		case '\r':
			if i < len(s) && s[i] == '\n' {
				i++
			}
		case '\n', '\v', '\f', 0x1c, 0x1d, 0x1e, 0x85, 0x2028, 0x2029:
		default:
			continue
		}
		if keep {
			end = i
		}
		lines = append(lines, s[start:end])
		start = i
	}
	if start < len(s) {
		lines = append(lines, s[start:])
	}
	return lines
}

// everyRune is Python's pattern for str.isalpha and its kin: all characters,
// and at least one.
func everyRune(s string, ok func(rune) bool) bool {
	return s != "" && strings.IndexFunc(s, func(r rune) bool { return !ok(r) }) < 0
}

// anyCase is str.islower and str.isupper: no character of the wrong cases, and
// one at least of the right one.
func anyCase(s string, right func(rune) bool, wrong ...func(rune) bool) bool {
	found := false
	for _, r := range s {
		for _, w := range wrong {
			if w(r) {
				return false
			}
		}
		found = found || right(r)
	}
	return found
}

func isLowerRune(r rune) bool { return unicode.In(r, unicode.Ll, unicode.Other_Lowercase) }
func isUpperRune(r rune) bool { return unicode.In(r, unicode.Lu, unicode.Other_Uppercase) }

func isLower(s string) bool { return anyCase(s, isLowerRune, isUpperRune, unicode.IsTitle) }
func isUpper(s string) bool { return anyCase(s, isUpperRune, isLowerRune, unicode.IsTitle) }
