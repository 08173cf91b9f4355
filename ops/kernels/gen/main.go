// Command gen writes the amd64 assembly of packages kernels and quant:
//
//	go generate ./ops/kernels ./quant     (from the root of the main module)
//
// Each kernel is one Go function here, parametrised by the instruction set
// (isa): AVX2 with FMA and F16C in 256-bit registers, or AVX-512 (F, BW, DQ,
// VL) in 512-bit ones. The emitted files are committed, so building the main
// module needs neither this program nor its libraries; it is a module of its
// own for that reason.
//
// To add a kernel: write its emitter, list it in main, declare what it computes
// in plain Go in package kernels, dispatch to it there, and let the tests
// compare the two.
//
// The library, avo 0.6.0, asks for a version of golang.org/x/tools that does
// not compile with Go 1.26; go.mod asks for a newer one.
package main

import (
	"flag"
	"fmt"
	"os"

	. "github.com/mmcloughlin/avo/build"
)

func main() {
	pkg := flag.String("for", "kernels", "what to generate: kernels, few, int8, packed, limbs (all of package kernels) or quant")
	flag.Parse()
	switch *pkg {
	case "kernels":
		defineConstants()
		prefetch()
		pause()
		for _, v := range []isa{avx2, avx512} {
			for _, t := range []element{f32, f16, bf16, i8} {
				v.gemv(t)
			}
			for _, t := range []blockType{q8, q4, q41, q5, q51} {
				v.gemvBlocks(t)
			}
			for _, t := range []superType{q4K, q5K, q6K} {
				v.gemvSuper(t)
			}
			for tokens := 1; tokens <= v.tileTokens; tokens++ {
				v.tile(tokens)
			}
			v.accumulate(f32)
			v.accumulate(f16)
			v.accumulate(i8)
			v.elementwise()
			v.attention()
		}
	case "packed":
		defineTurns()
		for _, p := range packedTypes {
			for n := 1; n <= packedVectors; n++ {
				avx512.packed(p, n)
			}
			avx512.widenPacked(p)
		}
		avx512.turnBytes()
		avx512.splitPairs()
	case "int8":
		int8Kernels()
	case "limbs":
		avx512.limbs()
	case "few":
		defineMasks()
		defineWordMasks()
		for _, v := range []isa{avx2, avx512} {
			for _, t := range []element{f32, f16, bf16} {
				for n := 1; n <= v.fewVectors(); n++ {
					v.few(t, n)
				}
			}
		}
	case "quant":
		defineByteOrder()
		defineLaneOrder()
		conversions()
	default:
		fmt.Fprintf(os.Stderr, "gen: cannot generate %q\n", *pkg)
		os.Exit(2)
	}
	Generate()
}
