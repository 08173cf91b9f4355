package main

import (
	"fmt"

	"github.com/firstpassage/fpa/runtime/chat"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// chatPrompt puts a prompt into the model's chat template: as the user's message,
// after a system message where one is given, up to the start of the answer.
func chatPrompt(f *model.File, t *tokenizer.Tokenizer, system, prompt string) (string, error) {
	source, err := f.ChatTemplate()
	if err != nil {
		return "", err
	}
	if source == "" {
		return "", fmt.Errorf("%s: --chat: the model carries no chat template", f.Path)
	}
	template, err := chat.Parse(source, chat.Limits{})
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Path, err)
	}
	in := chat.Input{AddGenerationPrompt: true}
	if system != "" {
		in.Messages = append(in.Messages, chat.Message{Role: "system", Content: system})
	}
	in.Messages = append(in.Messages, chat.Message{Role: "user", Content: prompt})
	if f.Generation.BOS >= 0 {
		in.BOSToken, _ = t.Token(int32(f.Generation.BOS))
	}
	if len(f.Generation.EOS) > 0 {
		in.EOSToken, _ = t.Token(int32(f.Generation.EOS[0]))
	}
	text, err := template.Render(in)
	if err != nil {
		return "", fmt.Errorf("%s: %w", f.Path, err)
	}
	return text, nil
}
