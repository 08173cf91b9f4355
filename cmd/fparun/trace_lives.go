package main

import (
	"math"
	"sort"
)

// lives says how long the keys of one head live.
type lives struct {
	// fades[j] is the first query position at which key j has a penalty, dies[j]
	// the first at which it is dead; T where that is not within the text.
	// j <= fades[j] <= dies[j].
	fades, dies []int32
}

// newLives follows the keys of a head: a key's penalty at query i is
// slope * max(0, level - low), where low is the least field after the key, or
// from the key on with the inclusive interval, up to i. It takes O(T log T).
func newLives(field, level []float64, slope, dead float64, inclusive bool) lives {
	penalty := func(j int, low float64) float64 { return slope * math.Max(0, level[j]-low) }
	return lives{
		fades: firstPassage(field, inclusive, func(j int, low float64) bool { return penalty(j, low) > 0 }),
		dies:  firstPassage(field, inclusive, func(j int, low float64) bool { return penalty(j, low) >= dead }),
	}
}

// firstPassage returns, for every position j, the first position i after j (or at
// j, if inclusive) with passed(j, field[i]); T where there is none. passed must
// hold for every value below one that it holds for.
//
// So only positions whose field is lower than all between them and j can be the
// first. They are kept in a stack, from the last and lowest at the bottom to the
// next one at the top, as j goes backwards.
func firstPassage(field []float64, inclusive bool, passed func(j int, low float64) bool) []int32 {
	n := len(field)
	first := make([]int32, n)
	var records []int
	for j := n - 1; j >= 0; j-- {
		if !inclusive {
			first[j] = firstRecord(records, field, j, passed)
		}
		for len(records) > 0 && field[records[len(records)-1]] >= field[j] {
			records = records[:len(records)-1]
		}
		records = append(records, j)
		if inclusive {
			first[j] = firstRecord(records, field, j, passed)
		}
	}
	return first
}

// firstRecord is the uppermost of the records at which key j is passed.
func firstRecord(records []int, field []float64, j int, passed func(j int, low float64) bool) int32 {
	top := len(records) - 1
	k := sort.Search(len(records), func(k int) bool { return passed(j, field[records[top-k]]) })
	if k == len(records) {
		return int32(len(field))
	}
	return int32(records[top-k])
}

// counts returns the number of live keys and that of kept ones, live or fading,
// for the query at each position.
func (l *lives) counts() (live, kept []int) {
	n := len(l.fades)
	live, kept = make([]int, n+1), make([]int, n+1)
	for j := range n {
		live[j]++
		live[l.fades[j]]--
		kept[j]++
		kept[l.dies[j]]--
	}
	for i := 1; i < n; i++ {
		live[i] += live[i-1]
		kept[i] += kept[i-1]
	}
	return live[:n], kept[:n]
}
