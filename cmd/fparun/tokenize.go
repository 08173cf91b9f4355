package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/firstpassage/fpa/cmd/internal/cli"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// tokenizeFlags are the flags of tokenize.
type tokenizeFlags struct {
	model                          string
	text                           textFlags
	ids, decode, noSpecial, asText bool
	json                           bool
}

func newTokenize() *cobra.Command {
	var f tokenizeFlags
	c := &cobra.Command{
		Use:   "tokenize -m MODEL -p TEXT",
		Short: "Turn text into token ids, or back",
		Example: `  fparun tokenize -m passkey.gguf -p "The red key is 123."
  fparun tokenize -m passkey.gguf --decode -p "0 17 42"`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return runTokenize(c.InOrStdin(), c.OutOrStdout(), &f) },
	}
	fl := c.Flags()
	fl.StringVarP(&f.model, "model", "m", "", "model `file`")
	f.text.add(fl, "text (with --decode: token ids, separated by blanks or commas)")
	fl.BoolVar(&f.ids, "ids", false, "print the ids alone, on one line")
	fl.BoolVar(&f.decode, "decode", false, "turn ids into text")
	fl.BoolVar(&f.noSpecial, "no-special", false, "add no special tokens (such as one that begins the text); with --decode: leave them out")
	fl.BoolVar(&f.asText, "no-parse-special", false, "take the text of special tokens as ordinary text")
	fl.BoolVar(&f.json, "json", false, "print a JSON array")
	return c
}

func runTokenize(stdin io.Reader, stdout io.Writer, f *tokenizeFlags) error {
	if f.model == "" {
		return cli.Usage("no model given; use --model FILE")
	}
	text, err := f.text.read(stdin)
	if err != nil {
		return err
	}
	m, err := model.Open(f.model, model.OpenOptions{})
	if err != nil {
		return err
	}
	defer m.Close()
	t, err := m.Tokenizer()
	if err != nil {
		return err
	}
	if f.decode {
		return decodeIDs(stdout, t, text, f)
	}
	ids, err := t.Encode(text, tokenizer.EncodeOptions{AddSpecial: !f.noSpecial, ParseSpecial: !f.asText})
	if err != nil {
		return err
	}
	return printTokens(stdout, t, ids, f)
}

func decodeIDs(w io.Writer, t *tokenizer.Tokenizer, text string, f *tokenizeFlags) error {
	ids, err := parseIDs(text)
	if err != nil {
		return err
	}
	s, err := t.Decode(ids, f.noSpecial)
	if err != nil {
		return err
	}
	if f.json {
		return json.NewEncoder(w).Encode(s)
	}
	_, err = fmt.Fprintln(w, s)
	return err
}

func printTokens(out io.Writer, t *tokenizer.Tokenizer, ids []int32, f *tokenizeFlags) error {
	if f.json && f.ids {
		return json.NewEncoder(out).Encode(ids)
	}
	w := bufio.NewWriter(out)
	switch {
	case f.json:
		printJSONTokens(w, t, ids)
	case f.ids:
		for i, id := range ids {
			if i > 0 {
				w.WriteByte(' ')
			}
			w.WriteString(strconv.Itoa(int(id)))
		}
		w.WriteByte('\n')
	default:
		for _, id := range ids {
			name, _ := t.Token(id)
			fmt.Fprintf(w, "%6d  %q\n", id, name)
		}
	}
	return w.Flush() // and the first error of the writes before
}

// printJSONTokens prints an array, an object a token.
func printJSONTokens(w *bufio.Writer, t *tokenizer.Tokenizer, ids []int32) {
	type token struct {
		ID   int32  `json:"id"`
		Text string `json:"token"`
	}
	w.WriteString("[")
	for i, id := range ids {
		if i > 0 {
			w.WriteString(",\n ")
		}
		name, _ := t.Token(id)
		data, _ := json.Marshal(token{id, name}) // a number and a string always encode
		w.Write(data)
	}
	w.WriteString("]\n")
}

// parseIDs reads token ids separated by blanks, commas or the brackets of JSON.
func parseIDs(s string) ([]int32, error) {
	fields := strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(" \t\r\n,[]", r) })
	ids := make([]int32, len(fields))
	for i, field := range fields {
		n, err := strconv.ParseInt(field, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("token id %d is %q, expected a whole number below 2^31", i+1, field)
		}
		ids[i] = int32(n)
	}
	return ids, nil
}
