package gguf

// Keys that have the same name in every file.
const (
	KeyArchitecture        = "general.architecture"         // str, [a-z0-9]+
	KeyType                = "general.type"                 // str, "model"
	KeyQuantizationVersion = "general.quantization_version" // u32, QuantizationVersion
	KeyAlignment           = "general.alignment"            // u32, absent: DefaultAlignment
	KeyFileType            = "general.file_type"            // u32, a FileType
	KeyName                = "general.name"                 // str
	KeyAuthor              = "general.author"               // str
	KeyOrganization        = "general.organization"         // str
	KeyVersion             = "general.version"              // str, "v1.0"
	KeyBaseName            = "general.basename"             // str
	KeyFineTune            = "general.finetune"             // str
	KeySizeLabel           = "general.size_label"           // str, see SizeLabel
	KeyDescription         = "general.description"          // str
	KeyQuantizedBy         = "general.quantized_by"         // str
	KeyLicense             = "general.license"              // str, SPDX
	KeyLicenseName         = "general.license.name"         // str
	KeyLicenseLink         = "general.license.link"         // str
	KeyURL                 = "general.url"                  // str
	KeyRepoURL             = "general.repo_url"             // str
	KeySourceURL           = "general.source.url"           // str
	KeySourceRepoURL       = "general.source.repo_url"      // str
	KeyBaseModelCount      = "general.base_model.count"     // u32
	KeyTags                = "general.tags"                 // [str]
	KeyLanguages           = "general.languages"            // [str]

	// From generation_config.json.
	KeySamplingTemp          = "general.sampling.temp"           // f32
	KeySamplingTopK          = "general.sampling.top_k"          // i32
	KeySamplingTopP          = "general.sampling.top_p"          // f32
	KeySamplingMinP          = "general.sampling.min_p"          // f32
	KeySamplingPenaltyRepeat = "general.sampling.penalty_repeat" // f32

	KeySplitNo      = "split.no"            // u16, from 0
	KeySplitCount   = "split.count"         // u16
	KeySplitTensors = "split.tensors.count" // i32, of all parts

	KeyTokenizerModel     = "tokenizer.ggml.model"                    // str: gpt2, llama, t5, bert
	KeyTokenizerPre       = "tokenizer.ggml.pre"                      // str: gpt-2, llama-bpe, qwen2, smollm
	KeyTokens             = "tokenizer.ggml.tokens"                   // [str]
	KeyTokenType          = "tokenizer.ggml.token_type"               // [i32], a TokenType each
	KeyTokenTypeCount     = "tokenizer.ggml.token_type_count"         // u32, of BERT's segments
	KeyScores             = "tokenizer.ggml.scores"                   // [f32]
	KeyMerges             = "tokenizer.ggml.merges"                   // [str], "a b"
	KeyBOS                = "tokenizer.ggml.bos_token_id"             // u32
	KeyEOS                = "tokenizer.ggml.eos_token_id"             // u32
	KeyEOT                = "tokenizer.ggml.eot_token_id"             // u32
	KeyEOM                = "tokenizer.ggml.eom_token_id"             // u32
	KeyUnknown            = "tokenizer.ggml.unknown_token_id"         // u32
	KeySeparator          = "tokenizer.ggml.seperator_token_id"       // u32; misspelt in every file
	KeyPadding            = "tokenizer.ggml.padding_token_id"         // u32
	KeyMask               = "tokenizer.ggml.mask_token_id"            // u32
	KeyAddBOS             = "tokenizer.ggml.add_bos_token"            // bool
	KeyAddEOS             = "tokenizer.ggml.add_eos_token"            // bool
	KeyAddSeparator       = "tokenizer.ggml.add_sep_token"            // bool
	KeyAddSpacePrefix     = "tokenizer.ggml.add_space_prefix"         // bool
	KeyRemoveExtraSpaces  = "tokenizer.ggml.remove_extra_whitespaces" // bool
	KeyPrecompiledCharmap = "tokenizer.ggml.precompiled_charsmap"     // [u8]
	KeyHFTokenizer        = "tokenizer.huggingface.json"              // str, the whole tokenizer.json
	KeyChatTemplate       = "tokenizer.chat_template"                 // str; named ones at KeyChatTemplate + "." + name
	KeyChatTemplates      = "tokenizer.chat_templates"                // [str], the names

	// KeyTextEscape says how text is rewritten before it is tokenized and after it
	// is decoded, which neither KeyHFTokenizer nor the keys above can say: "json"
	// is tokenizer.EscapeJSON. Absent: text is taken as it is.
	KeyTextEscape = "fpaconv.tokenizer.text_escape" // str

	// Provenance, written by this module's converter.
	KeySourceSHA256        = "fpaconv.source.sha256"          // str
	KeySourceFormat        = "fpaconv.source.format"          // str
	KeyConverterVersion    = "fpaconv.version"                // str
	KeyVerifiedMaxAbsError = "fpaconv.verified.max_abs_error" // f32
)

// MaxHFTokenizerBytes bounds the value of KeyHFTokenizer: readers in browsers
// stop at strings of 10 MB, so a longer tokenizer.json is left out.
const MaxHFTokenizerBytes = 9_000_000

// Architectures.
const (
	ArchFPA   = "fpa"
	ArchLlama = "llama"
)

// Keys of an architecture, without the architecture's name: see ArchKey.
const (
	VocabSize         = "vocab_size"                       // u32
	ContextLength     = "context_length"                   // u32
	EmbeddingLength   = "embedding_length"                 // u32
	BlockCount        = "block_count"                      // u32
	FeedForwardLength = "feed_forward_length"              // u32
	HeadCount         = "attention.head_count"             // u32
	HeadCountKV       = "attention.head_count_kv"          // u32
	AttnKeyLength     = "attention.key_length"             // u32
	AttnValueLength   = "attention.value_length"           // u32
	NormEpsilon       = "attention.layer_norm_rms_epsilon" // f32
	AttentionScale    = "attention.scale"                  // f32, absent: 1/sqrt(key_length)
	LogitScale        = "logit_scale"                      // f32

	RopeDimensionCount    = "rope.dimension_count"                 // u32
	RopeFreqBase          = "rope.freq_base"                       // f32
	RopeScalingType       = "rope.scaling.type"                    // str
	RopeScalingFactor     = "rope.scaling.factor"                  // f32
	RopeScalingOrigLength = "rope.scaling.original_context_length" // u32
	RopeScalingAttnFactor = "rope.scaling.attn_factor"             // f32

	// Of the architecture fpa alone.
	FieldKind             = "attention.field.kind"       // str: walk, direct, none
	FieldActivation       = "attention.field.activation" // str: identity, tanh, log_sigmoid, neg_softplus
	FieldHeadCount        = "attention.field.head_count" // u32
	LevelKind             = "attention.level.kind"       // str: tied, offset, relative, absolute
	Interval              = "attention.interval"         // str: exclusive, inclusive
	QKNorm                = "attention.qk_norm"          // str: none, head, shared
	QKNormEpsilon         = "attention.qk_norm_epsilon"  // f32
	OutputGate            = "attention.output_gate"      // str: none, sigmoid, silu
	OutputNorm            = "attention.output_norm"      // bool
	AttnKeyShift          = "attention.key_shift"        // bool
	AttnValueShift        = "attention.value_shift"      // bool
	LogitBound            = "attention.logit_bound"      // [f32], block_count x head_count
	FeedForwardActivation = "feed_forward.activation"    // str: silu, sigmoid, gelu, gelu_tanh
)

// ArchKey is the full name of an architecture's key: ArchKey(ArchFPA,
// BlockCount) is "fpa.block_count".
func ArchKey(arch, key string) string { return arch + "." + key }

// TokenType is an element of tokenizer.ggml.token_type.
type TokenType int32

// The token types.
const (
	TokenNormal      TokenType = 1
	TokenUnknown     TokenType = 2
	TokenControl     TokenType = 3
	TokenUserDefined TokenType = 4
	TokenUnused      TokenType = 5
	TokenByte        TokenType = 6
)
