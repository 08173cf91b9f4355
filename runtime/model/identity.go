package model

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"
)

// Identity is the SHA-256, in hexadecimal, of what the model computes with: its
// configuration and the name, type, shape and data of every tensor. Two files
// have the same identity when they hold the same weights in the same types,
// whatever their names, metadata and tokenizers. It reads all the weights, on as
// many threads as there are processors.
func (f *File) Identity() (string, error) {
	id, err := f.Parts.identity()
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Path, err)
	}
	return id, nil
}

func (p *Parts) identity() (string, error) {
	sums := make([][sha256.Size]byte, len(p.Tensors))
	queue := make(chan int)
	workers := min(runtime.GOMAXPROCS(0), len(p.Tensors))
	errs := make([]error, workers)
	var done sync.WaitGroup
	for w := range workers {
		done.Go(func() {
			for i := range queue {
				if err := hashTensor(&sums[i], &p.Tensors[i]); err != nil {
					errs[w] = err
				}
			}
		})
	}
	// The largest go first, so that no thread is left with one alone at the end.
	for _, i := range bySize(p.Tensors) {
		queue <- i
	}
	close(queue)
	done.Wait()
	for _, err := range errs {
		if err != nil {
			return "", err
		}
	}

	// One JSON value a line cannot be read in two ways.
	h := sha256.New()
	lines := json.NewEncoder(h)
	if err := lines.Encode(p.Config); err != nil {
		return "", err
	}
	for _, i := range byName(p.Tensors) {
		t := &p.Tensors[i]
		if err := lines.Encode([]any{t.Name, t.DType.String(), t.Shape, hex.EncodeToString(sums[i][:])}); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func bySize(tensors []Tensor) []int {
	return order(tensors, func(a, b *Tensor) int { return cmp.Compare(len(b.Data), len(a.Data)) })
}

func byName(tensors []Tensor) []int {
	return order(tensors, func(a, b *Tensor) int { return cmp.Compare(a.Name, b.Name) })
}

// order is the indices of tensors, sorted.
func order(tensors []Tensor, compare func(a, b *Tensor) int) []int {
	list := make([]int, len(tensors))
	for i := range list {
		list[i] = i
	}
	slices.SortFunc(list, func(i, j int) int { return compare(&tensors[i], &tensors[j]) })
	return list
}

// hashTensor hashes the data of a tensor, which may lie in a mapped file that is
// cut short meanwhile.
func hashTensor(sum *[sha256.Size]byte, t *Tensor) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			err = fmt.Errorf("tensor %s could not be read at address %#x: the file was changed or cut short while it was in use; load it again", t.Name, r.Addr())
		default:
			panic(r)
		}
	}()
	*sum = sha256.Sum256(t.Data)
	return nil
}
