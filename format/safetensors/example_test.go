package safetensors_test

import (
	"bytes"
	"fmt"
	"log"

	"github.com/firstpassage/fpa/format"
	"github.com/firstpassage/fpa/format/safetensors"
	"github.com/firstpassage/fpa/quant"
)

func Example() {
	var file bytes.Buffer
	err := safetensors.Write(&file, []safetensors.Tensor{
		{Name: "ids", DType: quant.U8, Shape: format.Shape{3}, Data: []byte{7, 8, 9}},
		{Name: "logits", DType: quant.F32, Shape: format.Shape{1, 2}, Data: make([]byte, 8)},
	}, map[string]string{"made by": "an example"})
	if err != nil {
		log.Fatal(err)
	}
	f, err := safetensors.Parse(file.Bytes(), format.Limits{})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range f.Tensors() {
		fmt.Println(t.Name, t.DType, t.Shape, len(t.Data))
	}
	fmt.Println(f.Metadata())

	_, err = safetensors.Parse(file.Bytes()[:file.Len()-1], format.Limits{})
	fmt.Println(err)
	// Output:
	// logits F32 [1, 2] 8
	// ids U8 [3] 3
	// map[made by:an example]
	// at byte 109: tensor "ids": data_offsets [8, 11] reach beyond the 10 bytes of data in the file; it is cut short
}
