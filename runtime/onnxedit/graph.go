package onnxedit

import (
	"container/heap"
	"errors"
	"slices"

	"github.com/firstpassage/fpa/format/onnx"
)

// uses calls f for each name that a node uses from the graph it is in or those
// around it, in nested graphs too. Names may come several times.
func uses(n *onnx.Node, f func(name string)) {
	for _, name := range n.Inputs {
		if name != "" {
			f(name)
		}
	}
	for _, a := range n.Attributes {
		for _, g := range a.Graphs() {
			own := map[string]bool{}
			for _, v := range g.Inputs {
				own[v.Name] = true
			}
			for _, t := range g.Initializers {
				own[t.Name] = true
			}
			for _, t := range g.SparseInitializers {
				if t.Values != nil {
					own[t.Values.Name] = true
				}
			}
			for _, inner := range g.Nodes {
				for _, name := range inner.Outputs {
					own[name] = true
				}
			}
			for _, inner := range g.Nodes {
				uses(inner, func(name string) {
					if !own[name] {
						f(name)
					}
				})
			}
			for _, v := range g.Outputs {
				if !own[v.Name] {
					f(v.Name)
				}
			}
		}
	}
}

// outputsOf are the names of a scope's outputs.
func (s *scope) outputsOf() []string {
	if s.graph == nil {
		return s.function.Outputs
	}
	var names []string
	for _, v := range s.graph.Outputs {
		names = append(names, v.Name)
	}
	return names
}

// prune removes those of the candidates whose outputs nothing uses, then the
// initializers and notes of types that only they had, and returns the nodes that
// went. The nodes must be sorted.
func prune(s *scope, candidates map[*onnx.Node]bool) []*onnx.Node {
	count := map[string]int{}
	for _, name := range s.outputsOf() {
		count[name]++
	}
	for _, n := range *s.nodes {
		uses(n, func(name string) { count[name]++ })
	}
	gone := map[*onnx.Node]bool{}
	lost := map[string]bool{} // values that went, and names that they used
	var removed []*onnx.Node
	for _, n := range slices.Backward(*s.nodes) {
		if !candidates[n] || slices.ContainsFunc(n.Outputs, func(name string) bool { return name != "" && count[name] > 0 }) {
			continue
		}
		gone[n] = true
		removed = append(removed, n)
		uses(n, func(name string) {
			count[name]--
			lost[name] = true
		})
		for _, name := range n.Outputs {
			lost[name] = true
		}
	}
	*s.nodes = slices.DeleteFunc(*s.nodes, func(n *onnx.Node) bool { return gone[n] })
	if s.graph == nil {
		return removed
	}
	unused := func(name string) bool { return lost[name] && count[name] == 0 }
	inputs := map[string]bool{}
	for _, v := range s.graph.Inputs {
		inputs[v.Name] = true
	}
	s.graph.Initializers = slices.DeleteFunc(s.graph.Initializers, func(t *onnx.Tensor) bool {
		return unused(t.Name) && !inputs[t.Name]
	})
	s.graph.ValueInfo = slices.DeleteFunc(s.graph.ValueInfo, func(v *onnx.ValueInfo) bool {
		return unused(v.Name) && !inputs[v.Name]
	})
	return removed
}

// ints is a heap of numbers.
type ints []int

func (h ints) Len() int           { return len(h) }
func (h ints) Less(i, j int) bool { return h[i] < h[j] }
func (h ints) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *ints) Push(x any)        { *h = append(*h, x.(int)) }
func (h *ints) Pop() any {
	old := *h
	x := old[len(old)-1]
	*h = old[:len(old)-1]
	return x
}

// sortNodes puts each node after those that it uses, and otherwise leaves the order
// as it is. It fails when nodes form a cycle.
func sortNodes(nodes []*onnx.Node) error {
	maker := map[string]int{}
	for i, n := range nodes {
		for _, name := range n.Outputs {
			if name != "" {
				maker[name] = i
			}
		}
	}
	next := make([][]int, len(nodes)) // users of each node's outputs
	waits := make([]int, len(nodes))
	for i, n := range nodes {
		uses(n, func(name string) {
			if from, ok := maker[name]; ok {
				next[from] = append(next[from], i)
				waits[i]++
			}
		})
	}
	ready := &ints{}
	for i, w := range waits {
		if w == 0 {
			heap.Push(ready, i)
		}
	}
	sorted := make([]*onnx.Node, 0, len(nodes))
	for ready.Len() > 0 {
		i := heap.Pop(ready).(int)
		sorted = append(sorted, nodes[i])
		for _, j := range next[i] {
			if waits[j]--; waits[j] == 0 {
				heap.Push(ready, j)
			}
		}
	}
	if len(sorted) < len(nodes) {
		return errors.New("the nodes form a cycle")
	}
	copy(nodes, sorted)
	return nil
}
