package reference

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
)

// tensor is an entry of a safetensors file.
type tensor struct {
	shape  []int
	values []float64
}

// readSafetensors reads a trusted file of test data: a header length of eight
// bytes, a JSON header, and little-endian data.
func readSafetensors(t testing.TB, path string) map[string]tensor {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(data)
	var header map[string]json.RawMessage
	if err := json.Unmarshal(data[8:8+n], &header); err != nil {
		t.Fatalf("%s: %v", path, err)
	}
	tensors := map[string]tensor{}
	for name, raw := range header {
		if name == "__metadata__" {
			continue
		}
		var entry struct {
			Dtype   string
			Shape   []int
			Offsets [2]int `json:"data_offsets"`
		}
		if err := json.Unmarshal(raw, &entry); err != nil {
			t.Fatalf("%s: %s: %v", path, name, err)
		}
		b := data[8+int(n):][entry.Offsets[0]:entry.Offsets[1]]
		x := tensor{shape: entry.Shape}
		for len(b) > 0 {
			switch entry.Dtype {
			case "F32":
				x.values = append(x.values, float64(math.Float32frombits(binary.LittleEndian.Uint32(b))))
				b = b[4:]
			case "BF16":
				x.values = append(x.values, float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b))<<16)))
				b = b[2:]
			case "I32":
				x.values = append(x.values, float64(int32(binary.LittleEndian.Uint32(b))))
				b = b[4:]
			default:
				t.Fatalf("%s: %s has type %s", path, name, entry.Dtype)
			}
		}
		tensors[name] = x
	}
	return tensors
}

// foxConfig is the part of a forgetting transformer's config.json that has an
// effect; both published layouts are covered.
type foxConfig struct {
	VocabSize        int     `json:"vocab_size"`
	HiddenSize       int     `json:"hidden_size"`
	Layers           int     `json:"num_hidden_layers"`
	Heads            int     `json:"num_heads"`
	KeyHeads         *int    `json:"num_kv_heads"`
	HiddenAct        string  `json:"hidden_act"`
	NormEps          float64 `json:"norm_eps"`
	RopeBase         float64 `json:"rope_base"`
	UseRope          bool    `json:"use_rope"`
	UseOutputGate    bool    `json:"use_output_gate"`
	OutputGateAct    string  `json:"ogate_act"`
	FGateType        string  `json:"fgate_type"`
	UseOutputNorm    bool    `json:"use_output_norm"`
	QKNorm           bool    `json:"qk_norm"`
	QKNormShareParam bool    `json:"qk_norm_share_param_across_head"`
	UseKShift        bool    `json:"use_k_shift"`
	UseVShift        bool    `json:"use_v_shift"`
}

// loadFox reads a forgetting transformer from a folder.
func loadFox(t testing.TB, folder string) *Decoder {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join(folder, "config.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f foxConfig
	if err := json.Unmarshal(raw, &f); err != nil {
		t.Fatal(err)
	}
	file := readSafetensors(t, filepath.Join(folder, "model.safetensors"))

	d := f.HiddenSize / f.Heads
	c := Config{
		Vocab: f.VocabSize, Hidden: f.HiddenSize, Layers: f.Layers,
		Heads: f.Heads, KeyHeads: f.Heads, KeyDim: d, ValueDim: d,
		NormEps: f.NormEps, QKNorm: NormNone, QKNormEps: 1e-5,
		KeyShift: f.UseKShift, ValueShift: f.UseVShift, OutputNorm: f.UseOutputNorm,
		FieldHeads: f.Heads, FieldKind: Walk, FieldActivation: LogSigmoid, LevelKind: Tied,
	}
	if f.KeyHeads != nil {
		c.KeyHeads = *f.KeyHeads
	}
	if f.UseRope {
		c.Rotary = Rotary{Dim: d, Base: f.RopeBase}
	}
	if f.QKNorm {
		c.QKNorm = NormHead
		if f.QKNormShareParam {
			c.QKNorm = NormShared
		}
	}
	if f.UseOutputGate {
		c.OutputGate = Sigmoid
		if f.OutputGateAct == "silu" && !f.UseOutputNorm {
			c.OutputGate = SiLU
		}
	}
	if f.FGateType == "none" {
		c.FieldKind = NoField
	}
	switch f.HiddenAct {
	case "swish":
		c.Activation = SiLU
	case "sigmoid":
		c.Activation = Sigmoid
	default:
		t.Fatalf("hidden_act %q", f.HiddenAct)
	}
	c.FeedForward = file["model.layers.0.mlp.down_proj.weight"].shape[1]

	// The candidates for each GGUF name; the first that the file holds is it.
	names := map[string][]string{
		"attn_norm.weight":        {"attn_norm.weight"},
		"attn_q.weight":           {"attn.q_proj.weight"},
		"attn_q.bias":             {"attn.q_proj.bias"},
		"attn_k.weight":           {"attn.k_proj.weight", "attn.k_proj.linear.weight"},
		"attn_k.bias":             {"attn.k_proj.bias"},
		"attn_v.weight":           {"attn.v_proj.weight", "attn.v_proj.linear.weight"},
		"attn_v.bias":             {"attn.v_proj.bias"},
		"attn_k_shift.weight":     {"attn.k_proj.shift_proj.weight"},
		"attn_v_shift.weight":     {"attn.v_proj.shift_proj.weight"},
		"attn_output.weight":      {"attn.o_proj.weight"},
		"attn_q_norm.weight":      {"attn.q_norm.weight"},
		"attn_k_norm.weight":      {"attn.k_norm.weight"},
		"attn_output_norm.weight": {"attn.output_norm.weight"},
		"attn_gate.weight":        {"attn.ogate_proj.weight", "attn.g_proj.weight"},
		"attn_field.weight":       {"attn.fgate_proj.weight", "attn.f_proj.weight"},
		"attn_field.bias":         {"attn.fgate_proj.bias", "attn.f_proj.bias", "attn.fgate_bias"},
		"ffn_norm.weight":         {"mlp_norm.weight"},
		"ffn_down.weight":         {"mlp.down_proj.weight"},
	}
	used := map[string]bool{}
	take := func(name string) []float64 {
		x, ok := file[name]
		if !ok {
			return nil
		}
		used[name] = true
		return x.values
	}
	w, err := LoadWeights(c, func(name string) []float64 {
		switch name {
		case "token_embd.weight":
			return take("model.embeddings.weight")
		case "output_norm.weight":
			return take("model.norm.weight")
		case "output.weight":
			return take("lm_head.weight")
		}
		var layer int
		var rest string
		if _, err := fmt.Sscanf(name, "blk.%d.%s", &layer, &rest); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		prefix := fmt.Sprintf("model.layers.%d.", layer)
		if rest == "ffn_gate.weight" || rest == "ffn_up.weight" {
			if up := take(prefix + "mlp.up_proj.weight"); up != nil {
				if rest == "ffn_up.weight" {
					return up
				}
				return take(prefix + "mlp.gate_proj.weight")
			}
			// One matrix, the gate's rows first.
			both := take(prefix + "mlp.gate_proj.weight")
			if rest == "ffn_gate.weight" {
				return both[:len(both)/2]
			}
			return both[len(both)/2:]
		}
		for _, candidate := range names[rest] {
			if x := take(prefix + candidate); x != nil {
				return x
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for name := range file {
		if !used[name] {
			t.Errorf("%s: tensor %s was not used", folder, name)
		}
	}
	return &Decoder{Config: c, Weights: w}
}

// checkGolden compares a decoder with the goldens of a case at the given
// prompt lengths: logits, negative log-likelihoods, and the greedy run that
// follows, token by token. It returns the largest differences of the first two.
func checkGolden(t *testing.T, d *Decoder, golden map[string]tensor, lengths []int, limit float64) (dLogit, dNLL float64) {
	t.Helper()
	vocab := d.Config.Vocab
	for _, n := range lengths {
		length := fmt.Sprint(n)
		ids := ints(golden["ids."+length].values)
		if len(ids) != n {
			t.Fatalf("ids.%d has %d elements", n, len(ids))
		}
		state := d.NewState()
		logits, err := d.Forward(state, ids)
		if err != nil {
			t.Fatal(err)
		}
		want := golden["logits."+length].values
		positions := ints(golden["pos."+length].values)
		if len(positions) == 0 || len(want) != len(positions)*vocab {
			t.Fatalf("T=%s: %d positions, %d logits", length, len(positions), len(want))
		}
		for n, pos := range positions {
			dLogit = math.Max(dLogit, maxDiff(logits[pos*vocab:(pos+1)*vocab], want[n*vocab:(n+1)*vocab]))
		}
		dNLL = math.Max(dNLL, maxDiff(NLL(logits, ids, vocab), golden["nll."+length].values))

		greedy := ints(golden["greedy."+length].values)
		if len(greedy) == 0 {
			t.Fatalf("T=%s: no greedy run", length)
		}
		next := argmax(logits[len(logits)-vocab:])
		for n, want := range greedy {
			if next != want {
				t.Errorf("T=%s: greedy token %d is %d, want %d", length, n, next, want)
				break
			}
			if logits, err = d.Forward(state, []int{next}); err != nil {
				t.Fatal(err)
			}
			next = argmax(logits)
		}
	}
	if !(dLogit <= limit && dNLL <= limit) {
		t.Errorf("logits differ by %.3g, nll by %.3g; limit %g", dLogit, dNLL, limit)
	}
	return dLogit, dNLL
}

func ints(x []float64) []int {
	var out []int
	for _, v := range x {
		out = append(out, int(v))
	}
	return out
}

// argmax returns the lowest index of the largest element.
func argmax(x []float64) int {
	best := 0
	for i, v := range x {
		if v > x[best] {
			best = i
		}
	}
	return best
}

// maxDiff returns the largest difference of two slices; +inf if their lengths
// or their NaNs and infinities differ.
func maxDiff(a, b []float64) float64 {
	if len(a) != len(b) {
		return math.Inf(1)
	}
	largest := 0.0
	for i := range a {
		if a[i] == b[i] {
			continue
		}
		diff := math.Abs(a[i] - b[i])
		if math.IsNaN(diff) {
			return math.Inf(1)
		}
		largest = math.Max(largest, diff)
	}
	return largest
}

// goldenLimit is the largest difference allowed to goldens whose arithmetic
// was float32 outside of the softmax.
const goldenLimit = 5e-5

// foxKinds are the two precisions of a case's weights, each with the golden
// file made from exactly these weights.
var foxKinds = []struct{ weights, golden string }{
	{"f32", "golden_f32.safetensors"},
	{"bf16", "golden_bf16w.safetensors"},
}

func testFox(t *testing.T, folder, weights, golden string) {
	t.Run(filepath.Base(folder)+"/"+weights, func(t *testing.T) {
		d := loadFox(t, filepath.Join(folder, weights))
		logit, nll := checkGolden(t, d, readSafetensors(t, filepath.Join(folder, golden)), []int{1, 7, 64, 300}, goldenLimit)
		t.Logf("largest difference: logits %.2g, nll %.2g", logit, nll)
	})
}

func TestDecoderFoxGoldens(t *testing.T) {
	// To keep the folder small, it holds the bfloat16 weights alone.
	for _, name := range []string{"fla_gqa_full", "fox_pro"} {
		testFox(t, filepath.Join("testdata", "fox", name), foxKinds[1].weights, foxKinds[1].golden)
	}
}

func TestDecoderFoxGoldensShared(t *testing.T) {
	shared := os.Getenv("FPA_SHARED")
	if shared == "" {
		t.Skip("FPA_SHARED is not set: the other forgetting-transformer cases are not at hand")
	}
	cases, err := filepath.Glob(filepath.Join(shared, "cases", "fox", "*", "case.json"))
	if err != nil || len(cases) == 0 {
		t.Fatalf("no cases/fox/*/case.json in FPA_SHARED (%v)", err)
	}
	for _, file := range cases {
		for _, kind := range foxKinds {
			testFox(t, filepath.Dir(file), kind.weights, kind.golden)
		}
	}
}

func normals(rng *rand.Rand, n int, scale float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = scale * rng.NormFloat64()
	}
	return x
}
