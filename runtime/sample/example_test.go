package sample_test

import (
	"fmt"
	"log"

	"github.com/firstpassage/fpa/runtime/sample"
)

func Example() {
	p := sample.Defaults()
	p.Temp = 0          // the best token each time ...
	p.RepeatPenalty = 3 // ... unless it was there already
	if err := p.Validate(); err != nil {
		log.Fatal(err)
	}
	s := sample.New(p, 42)
	logits := []float32{1, 2, 4, 3} // of a model that always says the same
	for range 3 {
		id, err := s.Sample(logits)
		if err != nil {
			log.Fatal(err)
		}
		s.Accept(id)
		fmt.Println(id)
	}
	// Output:
	// 2
	// 3
	// 1
}
