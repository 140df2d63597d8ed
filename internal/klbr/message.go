package klbr

import (
	"bytes"
	"encoding/json"
	"fmt"
)

// Message is one message of a model's conversation, independent of any
// provider's spelling. Its JSON form is canonical: Canonical gives the bytes
// that the ledger digests.
type Message struct {
	Role       string     `json:"role"` // system, user, assistant or tool
	Content    string     `json:"content"`
	Reasoning  string     `json:"reasoning,omitempty"`
	ToolCalls  []ToolCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"` // on role tool: the call it answers
	Refusal    string     `json:"refusal,omitempty"`
	// Extra holds opaque provider data that must return unmodified
	// (reasoning_details, signatures).
	Extra json.RawMessage `json:"extra,omitempty"`
}

// ToolCall is one call that a model asked for. Arguments is JSON text of an
// object, valid by construction: the model client refuses what is not.
type ToolCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments string          `json:"arguments"`
	Extra     json.RawMessage `json:"extra,omitempty"`
}

// Tool is a function that a model may call. Schema is its JSON schema; its
// bytes are sent as they are.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"`
}

// Usage is what a provider reported for one call. A nil field was not
// reported, which is not zero.
type Usage struct {
	PromptTokens     *int64 `json:"prompt_tokens,omitempty"`
	CompletionTokens *int64 `json:"completion_tokens,omitempty"`
	CachedTokens     *int64 `json:"cached_tokens,omitempty"`      // part of PromptTokens
	CacheWriteTokens *int64 `json:"cache_write_tokens,omitempty"` // part of PromptTokens
	ReasoningTokens  *int64 `json:"reasoning_tokens,omitempty"`   // part of CompletionTokens
	// Source names where unusual figures came from ("timings"), or is empty.
	Source string `json:"source,omitempty"`
}

// Canonical is the message's JSON without HTML escaping and without a final
// newline. It errs where Extra is not JSON.
func (m Message) Canonical() ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return nil, fmt.Errorf("encode message: %w", err)
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// ChainLedger is the ledger's head after messages follow head:
// h' = SHA-256(h, "\n", Canonical(m)) for each in turn. The empty ledger's
// head is "".
func ChainLedger(head string, messages ...Message) (string, error) {
	for i, m := range messages {
		b, err := m.Canonical()
		if err != nil {
			return "", fmt.Errorf("message %d: %w", i, err)
		}
		head = Digest([]byte(head), []byte("\n"), b)
	}
	return head, nil
}
