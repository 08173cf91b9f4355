package quant_test

import (
	"fmt"

	"github.com/firstpassage/fpa/quant"
)

// A row is stored with 8 bits an element, and the error measured.
func Example() {
	row := make([]float32, 64)
	for i := range row {
		row[i] = float32(i%8) / 7
	}
	size, err := quant.Q8_0.Bytes(int64(len(row)))
	if err != nil {
		fmt.Println(err)
		return
	}
	stored := make([]byte, size)
	if err := quant.Encode(stored, quant.Q8_0, row); err != nil {
		fmt.Println(err)
		return
	}
	back := make([]float32, len(row))
	if err := quant.Decode(back, quant.Q8_0, stored); err != nil {
		fmt.Println(err)
		return
	}
	var e quant.Error
	e.Add(row, back)
	fmt.Printf("%d bytes for %d, RMSE %.4f, largest error %.4f\n", size, 4*len(row), e.RMSE(), e.Max)

	stats, err := quant.Scan(quant.Q8_0, stored)
	fmt.Printf("%d elements, %d zero, largest %.3f, %v\n", stats.Count, stats.Zero, stats.Max, err)
	// Output:
	// 68 bytes for 256, RMSE 0.0021, largest error 0.0034
	// 64 elements, 8 zero, largest 1.000, <nil>
}
