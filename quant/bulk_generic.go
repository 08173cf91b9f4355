//go:build !amd64

package quant

func encodeF16(dst []byte, src []float32)        { encodeF16Go(dst, src) }
func encodeBF16(dst []byte, src []float32)       { encodeBF16Go(dst, src) }
func decodeF16(dst []float32, src []byte)        { decodeF16Go(dst, src) }
func decodeBF16(dst []float32, src []byte)       { decodeBF16Go(dst, src) }
func encodeQ8_0(dst []byte, src []float32)       { encodeQ8_0Go(dst, src) }
func decodeQ8_0(dst []float32, src []byte)       { decodeQ8_0Go(dst, src) }
func encodeF16Words(_ []uint16, _ []float32) int { return 0 }
func decodeF16Words(_ []float32, _ []uint16) int { return 0 }
func scanBulk(_ *Stats, _ DType, _ []byte) int   { return 0 }

func decodeQ4_0(dst []float32, src []byte) { decodeQ4_0Go(dst, src) }
func decodeQ4_1(dst []float32, src []byte) { decodeQ4_1Go(dst, src) }
func decodeQ5_0(dst []float32, src []byte) { decodeQ5_0Go(dst, src) }
func decodeQ5_1(dst []float32, src []byte) { decodeQ5_1Go(dst, src) }
func decodeQ4K(dst []float32, src []byte)  { decodeQ4KGo(dst, src) }
func decodeQ5K(dst []float32, src []byte)  { decodeQ5KGo(dst, src) }
func decodeQ6K(dst []float32, src []byte)  { decodeQ6KGo(dst, src) }

func roundSums(sums *[3]float64, q []int32, x []float64, inverse, shift, top, bias float64) {
	roundSumsGo(sums, q, x, inverse, shift, top, bias)
}
