package convert

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
	"github.com/firstpassage/fpa/runtime/cpu"
	"github.com/firstpassage/fpa/runtime/engine"
	"github.com/firstpassage/fpa/runtime/model"
)

// Lengths are the numbers of tokens on which two models are compared.
var Lengths = []int{1, 7, 64, 300}

// Difference is how far the logits of two models lie apart on one text.
type Difference struct {
	Tokens  int     `json:"tokens"`
	MaxAbs  float64 `json:"max_abs"`       // largest difference of a logit
	Largest float64 `json:"largest_logit"` // largest magnitude of a logit of the first model
	KL      float64 `json:"kl"`            // mean over positions of KL(first || second), in nats
	SameTop float64 `json:"same_top_1"`    // share of positions with the same best token
}

// chunk is how many tokens are run at a time, so that the logits of one chunk,
// not of a whole text, are held.
const chunk = 64

// Compare runs two models of one vocabulary on the same random ids, with an
// uncompressed cache in float32, and compares the logits of every position.
func Compare(ctx context.Context, a, b *model.Model, length, threads int) (Difference, error) {
	d := Difference{Tokens: length}
	if a.VocabSize != b.VocabSize {
		return d, fmt.Errorf("the vocabularies have %d and %d entries", a.VocabSize, b.VocabSize)
	}
	rng := rand.New(rand.NewPCG(uint64(length), 0))
	ids := make([]int32, length)
	for i := range ids {
		ids[i] = int32(rng.IntN(a.VocabSize))
	}
	sa, closeA, err := session(a, threads)
	if err != nil {
		return d, err
	}
	defer closeA()
	sb, closeB, err := session(b, threads)
	if err != nil {
		return d, err
	}
	defer closeB()

	all := func(int) bool { return true }
	var want []float32
	same := 0
	for len(ids) > 0 {
		if err := ctx.Err(); err != nil {
			return d, err
		}
		n := min(chunk, len(ids))
		want = want[:0]
		err := sa.Feed(ids[:n], all, func(_ int, l []float32) error {
			want = append(want, l...)
			return nil
		})
		if err != nil {
			return d, fmt.Errorf("the first model: %w", err)
		}
		first := sb.Len()
		err = sb.Feed(ids[:n], all, func(pos int, got []float32) error {
			i := (pos - first) * a.VocabSize
			if d.add(want[i:i+a.VocabSize], got) {
				same++
			}
			return nil
		})
		if err != nil {
			return d, fmt.Errorf("the second model: %w", err)
		}
		ids = ids[n:]
	}
	d.KL = max(0, d.KL/float64(length)) // rounding can leave less than 0
	d.SameTop = float64(same) / float64(length)
	return d, nil
}

func session(m *model.Model, threads int) (engine.Session, func(), error) {
	e, err := cpu.New(m, cpu.Options{Threads: threads, Chunk: chunk, NoRepack: true}) // for a few tokens
	if err != nil {
		return nil, nil, err
	}
	s, err := e.NewSession(quant.F32, cache.Policy{Mode: cache.Off})
	if err != nil {
		e.Close()
		return nil, nil, err
	}
	return s, e.Close, nil
}

// add takes in one position, and says whether both models prefer one token.
func (d *Difference) add(want, got []float32) (sameTop bool) {
	topW, topG := 0, 0
	for i := range want {
		d.MaxAbs = max(d.MaxAbs, math.Abs(float64(want[i])-float64(got[i])))
		d.Largest = max(d.Largest, math.Abs(float64(want[i])))
		if want[i] > want[topW] {
			topW = i
		}
		if got[i] > got[topG] {
			topG = i
		}
	}
	sumW, sumG := 0.0, 0.0
	for i := range want {
		sumW += math.Exp(float64(want[i] - want[topW]))
		sumG += math.Exp(float64(got[i] - got[topG]))
	}
	logW := float64(want[topW]) + math.Log(sumW)
	logG := float64(got[topG]) + math.Log(sumG)
	for i := range want {
		w := float64(want[i]) - logW
		d.KL += math.Exp(w) * (w - (float64(got[i]) - logG))
	}
	return topW == topG
}

// tolerance is how far a logit may move, as a share of the largest logit (or of
// 1, when all are smaller): a few times what rounding the weights to the type
// does to random models of 2 to 16 layers, and to small trained ones. That is enough
// to find a damaged file; how good one of few bits is, KL and perplexity tell.
var tolerance = map[quant.DType]float64{
	quant.F32: 1e-4, quant.F16: 2e-2, quant.BF16: 0.15, quant.Q8_0: 0.2, quant.Q6_K: 0.3,
	quant.Q5_K: 0.6, quant.Q5_1: 0.6, quant.Q5_0: 0.6, quant.Q4_K: 1, quant.Q4_1: 1, quant.Q4_0: 1,
}

// Allowed is the largest difference that passes: atol when it is positive, or
// else the tolerance of the type times the largest logit.
func (d Difference) Allowed(t quant.DType, atol float64) float64 {
	if atol > 0 {
		return atol
	}
	return tolerance[t] * max(1, d.Largest)
}

// TensorDifference compares a tensor of two models.
type TensorDifference struct {
	Name    string  `json:"name"`
	TypeA   string  `json:"type_a,omitempty"`
	TypeB   string  `json:"type_b,omitempty"`
	MaxAbs  float64 `json:"max_abs"`
	RMSE    float64 `json:"rmse"`
	Problem string  `json:"problem,omitempty"` // missing on one side, or of another shape
}

// CompareTensors compares the tensors of two models by name, in the order of
// the first, then those that only the second has.
func CompareTensors(ctx context.Context, a, b *model.Parts) ([]TensorDifference, error) {
	inB := make(map[string]*model.Tensor)
	for i := range b.Tensors {
		inB[b.Tensors[i].Name] = &b.Tensors[i]
	}
	var out []TensorDifference
	for i := range a.Tensors {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		ta := &a.Tensors[i]
		tb := inB[ta.Name]
		delete(inB, ta.Name)
		d, err := compareTensor(ta, tb)
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	for i := range b.Tensors {
		if name := b.Tensors[i].Name; inB[name] != nil {
			out = append(out, TensorDifference{Name: name, TypeB: inB[name].DType.String(), Problem: "only the second model has this tensor"})
		}
	}
	return out, nil
}

func compareTensor(a, b *model.Tensor) (TensorDifference, error) {
	d := TensorDifference{Name: a.Name, TypeA: a.DType.String()}
	if b == nil {
		d.Problem = "only the first model has this tensor"
		return d, nil
	}
	d.TypeB = b.DType.String()
	if !a.Shape.Equal(b.Shape) {
		d.Problem = fmt.Sprintf("shapes %v and %v differ", a.Shape, b.Shape)
		return d, nil
	}
	var e quant.Error
	restA, restB := a.Data, b.Data
	for len(restA) > 0 {
		n := min(pieceElements, len(restA)/a.DType.BlockBytes()*a.DType.BlockLen())
		na, nb := bytesOf(a.DType, n), bytesOf(b.DType, n)
		if err := addError(&e, restA[:na], a.DType, restB[:nb], b.DType, n); err != nil {
			return d, fmt.Errorf("tensor %s: %w", a.Name, err)
		}
		restA, restB = restA[na:], restB[nb:]
	}
	d.MaxAbs, d.RMSE = e.Max, e.RMSE()
	return d, nil
}

// CoarsestType is the type, of those in Types, with the largest tolerance that a
// matrix of the model has.
func CoarsestType(p *model.Parts) quant.DType {
	coarsest := quant.F32
	for i := range p.Tensors {
		if t := p.Tensors[i].DType; tolerance[t] > tolerance[coarsest] {
			coarsest = t
		}
	}
	return coarsest
}
