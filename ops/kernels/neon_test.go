package kernels

import (
	"bufio"
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write testdata/neon.txt anew, with the disassembler's words")

// macro is an instruction of neon_arm64.h.
type macro struct {
	name     string
	operands []string
	terms    []string // of its word, joined by bitwise or
}

// word is the instruction with register numbers first, first+7, first+14.
func (m macro) word(t *testing.T, first int) (word uint32, call string) {
	t.Helper()
	values, names := map[string]int{}, []string{}
	for i, name := range m.operands {
		values[name] = first + 7*i
		names = append(names, strconv.Itoa(first+7*i))
	}
	for _, term := range m.terms {
		name, shift := term, 0
		if before, after, found := strings.Cut(term, "<<"); found {
			n, err := strconv.Atoi(after)
			if err != nil {
				t.Fatal(m.name, err)
			}
			name, shift = before, n
		}
		v, known := values[strings.Trim(name, "()")]
		if !known {
			n, err := strconv.ParseUint(name, 0, 32)
			if err != nil {
				t.Fatal(m.name, err)
			}
			word |= uint32(n)
		}
		word |= uint32(v) << shift
	}
	return word, fmt.Sprintf("%s(%s)", m.name, strings.Join(names, ", "))
}

func readMacros(t *testing.T) (all []macro) {
	t.Helper()
	f, err := os.Open("neon_arm64.h")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	define := regexp.MustCompile(`^#define (\w+)\((\w(?:, \w)*)\) +WORD \$\((.*)\)$`)
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m := define.FindStringSubmatch(lines.Text())
		if m == nil {
			if strings.HasPrefix(lines.Text(), "#") {
				t.Fatalf("not understood: %s", lines.Text())
			}
			continue
		}
		all = append(all, macro{m[1], strings.Split(m[2], ", "), strings.Split(m[3], " | ")})
	}
	return all
}

// TestNEON holds the words of neon_arm64.h against testdata/neon.txt, which says
// what each is in the disassembler's words, and that against the disassembler
// of GNU binutils where there is one.
func TestNEON(t *testing.T) {
	golden := filepath.Join("testdata", "neon.txt")
	var words []byte
	var calls []string
	for _, m := range readMacros(t) {
		for _, first := range []int{0, 17} {
			word, call := m.word(t, first)
			words = binary.LittleEndian.AppendUint32(words, word)
			calls = append(calls, fmt.Sprintf("%-20s %08x", call, word))
		}
	}
	if len(calls) < 40 {
		t.Fatalf("only %d instructions found", len(calls))
	}
	t.Run("objdump", func(t *testing.T) {
		objdump, err := exec.LookPath("aarch64-linux-gnu-objdump")
		if err != nil {
			if os.Getenv("FPA_REQUIRE_ORACLES") == "1" {
				t.Fatal(err)
			}
			t.Skip("no aarch64-linux-gnu-objdump (Debian: binutils-aarch64-linux-gnu)")
		}
		file := filepath.Join(t.TempDir(), "words")
		if err := os.WriteFile(file, words, 0o600); err != nil {
			t.Fatal(err)
		}
		text, err := exec.Command(objdump, "-D", "-b", "binary", "-m", "aarch64", file).Output()
		if err != nil {
			t.Fatal(err)
		}
		line := regexp.MustCompile(`(?m)^ +[0-9a-f]+:\t([0-9a-f]{8}) +\t(.*)$`)
		var got strings.Builder
		for i, m := range line.FindAllStringSubmatch(string(text), -1) {
			if !strings.HasSuffix(calls[i], m[1]) {
				t.Fatalf("%s is disassembled as %s", calls[i], m[1])
			}
			fmt.Fprintf(&got, "%s  %s\n", calls[i], strings.ReplaceAll(m[2], "\t", " "))
		}
		if *update {
			if err := os.WriteFile(golden, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("the disassembler says:\n%s", &got)
		}
	})
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(want), "\n"), "\n")
	if len(lines) != len(calls) {
		t.Fatalf("%d lines in %s, %d instructions", len(lines), golden, len(calls))
	}
	for i, call := range calls {
		if !strings.HasPrefix(lines[i], call+"  ") {
			t.Errorf("got %s, want %s", call, lines[i])
		}
	}
}
