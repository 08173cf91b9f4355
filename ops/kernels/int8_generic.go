//go:build !amd64

package kernels

func roundRecords(to []record, x []float32) { roundRecordsGo(to, x) }

func int8Group(f *packedForm, n int, y []float32, ldy int, data []byte, heads int, records []record) {
	int8GroupGo(f, n, y, ldy, data, heads, records)
}
