package engine

import "slices"

// Part is what one sequence takes in of a batch: the arguments of Session.Feed, and
// what became of them.
type Part struct {
	Session Session
	IDs     []int32
	Want    func(position int) bool // nil: the last position alone
	Each    func(position int, logits []float32) error
	Err     error // set by FeedBatch; nil when all tokens were fed
}

// Batcher is an engine that runs several sequences in one pass over its weights.
// Decoding reads every weight for each token, so that is where the time goes: a
// token for each of many sequences costs little more than one for a single sequence.
type Batcher interface {
	// FeedBatch feeds every part, each of another session of this engine, as its
	// Session.Feed does. Sessions may differ in length, in how many tokens they take
	// in, and in their caches. A part that fails leaves the others as they are; its
	// error is in Part.Err, and the first of these is returned.
	FeedBatch(parts []Part) error
}

// FeedBatch feeds every part, in one pass where the engine is a Batcher and no session
// an Audit, and else one after the other. What it returns, and what it leaves in the
// parts, is as for Batcher.
func FeedBatch(e Engine, parts []Part) error {
	audited := slices.ContainsFunc(parts, func(p Part) bool { _, is := p.Session.(*Audit); return is })
	if b, ok := e.(Batcher); ok && !audited {
		return b.FeedBatch(parts)
	}
	var first error
	for i := range parts {
		p := &parts[i]
		if p.Err = nil; len(p.IDs) > 0 {
			p.Err = p.Session.Feed(p.IDs, p.Want, p.Each)
		}
		if first == nil {
			first = p.Err
		}
	}
	return first
}
