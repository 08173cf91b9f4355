package tokenizer_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"github.com/firstpassage/fpa/runtime/tokenizer"
)

func Example() {
	data, err := os.ReadFile(filepath.Join("testdata", "bbpe_llama3", "tokenizer.json"))
	if err != nil {
		log.Fatal(err)
	}
	t, err := tokenizer.FromJSON(data)
	if err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode("The fox <|eot_id|>", tokenizer.EncodeOptions{AddSpecial: true, ParseSpecial: true})
	if err != nil {
		log.Fatal(err)
	}
	text, err := t.Decode(ids, true)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ids)
	fmt.Printf("%q\n", text)
	// Output:
	// [1200 309 270 78 87 220 1204]
	// "The fox "
}

func ExampleStream() {
	data, err := os.ReadFile(filepath.Join("testdata", "bbpe_llama3", "tokenizer.json"))
	if err != nil {
		log.Fatal(err)
	}
	t, err := tokenizer.FromJSON(data)
	if err != nil {
		log.Fatal(err)
	}
	ids, err := t.Encode("안녕", tokenizer.EncodeOptions{})
	if err != nil {
		log.Fatal(err)
	}
	s := t.NewStream(true)
	for _, id := range ids {
		text, err := s.Add(id)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q ", text) // nothing until a character is complete
	}
	fmt.Printf("%q\n", s.Flush())
	// Output:
	// "" "" "안" "" "" "녕" ""
}
