package model

import "github.com/firstpassage/fpa/format/hf"

// Generation is what a model says about how to generate: ids that begin and end
// a text, and sampling defaults; nil where it says nothing.
type Generation struct {
	BOS, PAD    int   // -1 when absent
	EOS         []int // any of these ends a generation
	Temperature *float32
	TopK        *int
	TopP        *float32
	MinP        *float32
}

// GenerationOf reads the generation settings of a checkpoint; those of
// generation_config.json come before those of config.json.
func GenerationOf(c *hf.Checkpoint) (Generation, error) {
	g := Generation{BOS: -1, PAD: -1}
	if err := g.read(c.Config()); err != nil {
		return g, err
	}
	if data := c.GenerationConfig(); data != nil {
		generation, err := hf.ParseConfig(data, "generation_config.json")
		if err != nil {
			return g, err
		}
		return g, g.read(generation)
	}
	return g, nil
}

// read takes in what one file says.
func (g *Generation) read(c *hf.Config) error {
	r := &configReader{c: c}
	g.BOS = r.int("bos_token_id", g.BOS)
	g.PAD = r.int("pad_token_id", g.PAD)
	if ids := read(r, func() ([]int64, error) { return c.IntList("eos_token_id") }); len(ids) > 0 {
		g.EOS = nil
		for _, id := range ids {
			g.EOS = append(g.EOS, int(id))
		}
	}
	number := func(key string, to **float32) {
		if c.Has(key) {
			v := float32(r.float(key, 0))
			*to = &v
		}
	}
	number("temperature", &g.Temperature)
	number("top_p", &g.TopP)
	number("min_p", &g.MinP)
	if c.Has("top_k") {
		k := r.int("top_k", 0)
		g.TopK = &k
	}
	if c.Has("do_sample") && !r.bool("do_sample") {
		g.Temperature = new(float32) // greedy
	}
	return r.err
}
