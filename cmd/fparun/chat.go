package main

import (
	"fmt"

	"github.com/firstpassage/fpa/runtime/chat"
	"github.com/firstpassage/fpa/runtime/model"
	"github.com/firstpassage/fpa/runtime/session"
	"github.com/firstpassage/fpa/runtime/tokenizer"
)

// chatMessages is a chat that begins with the user's message, after a system
// message where one is given.
func chatMessages(system, prompt string) []session.Message {
	var messages []session.Message
	if system != "" {
		messages = append(messages, session.Message{Role: "system", Content: system})
	}
	return append(messages, session.Message{Role: "user", Content: prompt})
}

// renderChat puts messages into the model's chat template, up to the start of the
// answer.
func renderChat(f *model.File, t *tokenizer.Tokenizer, messages []session.Message) (string, error) {
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
	for _, m := range messages {
		in.Messages = append(in.Messages, chat.Message{Role: m.Role, Content: m.Content})
	}
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
