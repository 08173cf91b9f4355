package reference_test

import (
	"fmt"

	"github.com/firstpassage/fpa/ops/reference"
)

// Nested scopes: the field goes up when a scope opens and down when one
// closes. With a large slope a key is seen exactly as long as the scope it was
// written in is open.
func ExampleParallel() {
	depth := []float64{1, 2, 3, 2, 1} // ( ( ( ) )
	x := reference.Operands{
		Batch: 1, QueryHeads: 1, KeyHeads: 1, FieldHeads: 1, New: 5, KeyDim: 1, ValueDim: 5,
		Query: make([]float64, 5), Key: make([]float64, 5), // all keys match alike
		Value: make([]float64, 25),
		Field: depth, Level: depth, Slope: []float64{1e6},
	}
	for j := range depth {
		x.Value[j*5+j] = 1 // the value tells the position
	}
	r, err := reference.Parallel(x)
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range depth {
		fmt.Printf("%.2f\n", r.Output[i*5:(i+1)*5])
	}
	// Output:
	// [1.00 0.00 0.00 0.00 0.00]
	// [0.50 0.50 0.00 0.00 0.00]
	// [0.33 0.33 0.33 0.00 0.00]
	// [0.33 0.33 0.00 0.33 0.00]
	// [0.50 0.00 0.00 0.00 0.50]
}

// A key is removed when its penalty proves that it, and all keys removed
// before it, will never weigh more than Eps together.
func ExampleBudget() {
	b := reference.Budget{Bound: 2, Eps: 1e-3}
	fmt.Printf("threshold %.2f\n", b.Threshold())
	for _, penalty := range []float64{5, 12, 13, 40} {
		fmt.Println(penalty, b.Remove(penalty))
	}
	fmt.Println(b.Removed(), "removed")
	// Output:
	// threshold 12.29
	// 5 false
	// 12 false
	// 13 true
	// 40 true
	// 2 removed
}
