package main

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
)

// TestRandom compares with numbers that Python's random.Random gives.
func TestRandom(t *testing.T) {
	// r = random.Random("eval-0-one-256-0")
	// print([r.getrandbits(32) for _ in range(3)], r.random(), r.randint(2, 5), r.choice("abcdefg"),
	//       r.sample(list("abcdefgh"), 3), r.randint(10000, 99999))
	// for i in range(1000): x = r.getrandbits(32)
	// print(x)
	r := newRandom("eval-0-one-256-0")
	list := strings.Split("abcdefgh", "")
	got := fmt.Sprintln([]uint32{r.uint32(), r.uint32(), r.uint32()}, r.float64(), r.between(2, 5), r.choice(list[:7]),
		r.sample(list, 3), r.between(10000, 99999))
	if want := "[3738877176 2030905320 3971920932] 0.5310924371900871 4 d [d g b] 37446\n"; got != want {
		t.Errorf("%s, expected %s", got, want)
	}
	var last uint32
	for range 1000 { // past the state's end
		last = r.uint32()
	}
	if last != 1830568244 {
		t.Errorf("the thousandth is %d, expected 1830568244", last)
	}
}

// prompts runs the command.
func prompts(t *testing.T, args ...string) []line {
	t.Helper()
	var out bytes.Buffer
	if err := run(append(args, "-m", ".."), &out, io.Discard); err != nil {
		t.Fatalf("%s: %v", strings.Join(args, " "), err)
	}
	return decode(t, &out)
}

func decode(t *testing.T, r io.Reader) (lines []line) {
	t.Helper()
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	for {
		var l line
		if err := d.Decode(&l); err == io.EOF {
			return lines
		} else if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, l)
	}
}

// TestSameAsPython makes the evaluation sets, which the training code has written,
// anew.
func TestSameAsPython(t *testing.T) {
	lengths := "256,512,1024,2048,4096,8192,16384"
	if testing.Short() {
		lengths = "256,512,1024"
	}
	for _, task := range []string{"one", "three"} {
		got := prompts(t, "--task", task, "--count", "50", "--lengths", lengths)
		f, err := os.Open("../eval-" + task + ".jsonl.gz")
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		z, err := gzip.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		want := decode(t, z)
		if len(got) != 50*(strings.Count(lengths, ",")+1) || len(want) != 350 {
			t.Fatalf("%d prompts are made, %d read", len(got), len(want))
		}
		for i, l := range got {
			if l != want[i] {
				t.Fatalf("task %s, prompt %d of length %d: %.300q…, expected %.300q…", task, i, l.Length, l.Prompt, want[i].Prompt)
			}
		}
	}
}

// TestLong makes one of the lengths that are not in the sets. The command itself
// counts the tokens.
func TestLong(t *testing.T) {
	got := prompts(t, "--count", "3", "--lengths", "32768", "--seed", "5")
	if len(got) != 3 || got[0].Depth != 0 || got[1].Depth != 0.5 || got[2].Depth != 1 || got[1].Factor != 128 {
		t.Fatalf("%d prompts", len(got))
	}
	for _, l := range got {
		key := strings.Trim(l.Answer, " .")
		at := strings.Index(l.Prompt, key)
		if share := float64(at) / float64(len(l.Prompt)); at < 0 || strings.Count(l.Prompt, key) != 1 || share < l.Depth-0.01 || share > l.Depth+0.01 {
			t.Errorf("depth %g: the key is at %g of the prompt", l.Depth, share)
		}
		if !strings.HasSuffix(l.Prompt, " What is the pass key? The pass key is") {
			t.Errorf("the prompt ends %q", l.Prompt[len(l.Prompt)-50:])
		}
	}
}

func TestRefused(t *testing.T) {
	for says, args := range map[string]string{
		"too short":           "--lengths 40",
		"--lengths: 0":        "--lengths 0",
		"use --lengths":       "",
		"--task":              "--lengths 256 --task two",
		"--count is 0":        "--lengths 256 --count 0",
		"unexpected argument": "--lengths 256 x",
		"no such file":        "--lengths 256 -m nowhere",
	} {
		err := run(append([]string{"-m", ".."}, strings.Fields(args)...), io.Discard, io.Discard)
		if err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: error %v, expected %q", args, err, says)
		}
	}
}
