// Package engine says what an engine is: something that runs a model over sequences,
// tokens in, logits out, each with a cache that can be measured. Packages cpu and xla
// are engines; FeedBatch runs several sequences in one pass over the weights.
package engine

import (
	"io"

	"github.com/firstpassage/fpa/quant"
	"github.com/firstpassage/fpa/runtime/cache"
)

// Engine runs one model. An engine and its sessions belong to one goroutine.
type Engine interface {
	// NewSession starts an empty sequence, with K and V of type t in a cache that
	// drops keys by the policy. It fails when the engine cannot do either.
	NewSession(t quant.DType, p cache.Policy) (Session, error)
	// RestoreSession reads a session that Session.Save wrote, of this model, with
	// the same type and policy. It goes on to the same logits, to the bit where
	// tokens are fed in the same chunks. The input is not trusted: whatever it
	// holds, the error says what is wrong with it.
	RestoreSession(r io.Reader, t quant.DType, p cache.Policy) (Session, error)
	// Threads is the number of threads the engine uses on the processor.
	Threads() int
	// Close ends the engine. Its sessions are of no further use.
	Close()
}

// Session is one sequence.
type Session interface {
	// Feed runs ids through the model after all that was fed before. each is
	// called with the logits, one a vocabulary entry, of every position that want
	// asks for, in order; it may change them, and they are valid during the call.
	// Positions count from the start of the sequence. A nil want asks for the
	// last position alone.
	//
	// It fails when an id is outside the vocabulary (before anything is fed), when
	// logits come out not finite, when the model's file can no longer be read, or
	// with the error that each returns; after any but the first the session is of
	// no further use.
	Feed(ids []int32, want func(position int) bool, each func(position int, logits []float32) error) error
	// Len is the number of tokens fed.
	Len() int
	// CacheStats measures the cache.
	CacheStats() cache.Stats
	// Save writes the state of the session: its cache and what else the next token
	// needs, but neither the tokens nor which model it belongs to.
	Save(w io.Writer) error
}
