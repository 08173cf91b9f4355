package tokenizer

// newPrecompiled is replaced below.
func newPrecompiled(charsmap []byte, where string) (normalizer, error) {
	return nil, unsupported(where, "the normalizer \"Precompiled\" is not supported yet")
}
