package chat_test

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/firstpassage/fpa/runtime/chat"
)

func Example() {
	tmpl, err := chat.Parse(`{% for m in messages %}
<|{{ m.role }}|>{{ m.content | trim }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{%- endif %}`, chat.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	text, err := tmpl.Render(chat.Input{
		Messages: []chat.Message{
			{Role: "system", Content: "Be brief."},
			{Role: "user", Content: " Hello! "},
		},
		AddGenerationPrompt: true,
	})
	fmt.Println(text, err)
	// Output:
	// <|system|>Be brief.
	// <|user|>Hello!
	// <|assistant|> <nil>
}

// Messages with parts or tool calls come as JSON, whose order is kept.
func ExampleMessage() {
	var messages []chat.Message
	if err := json.Unmarshal([]byte(`[{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]`), &messages); err != nil {
		fmt.Println(err)
		return
	}
	tmpl, err := chat.Parse(`{{ messages | tojson }}`, chat.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tmpl.Render(chat.Input{Messages: messages}))
	// Output: [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}] <nil>
}

// A template can refuse its input; the kind of the error says so.
func ExampleError() {
	tmpl, err := chat.Parse("{{ raise_exception('only one message, please') }}", chat.Limits{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = tmpl.Render(chat.Input{})
	var e *chat.Error
	fmt.Println(errors.As(err, &e), e.Kind == chat.Raised, e.Msg)
	// Output: true true only one message, please
}
