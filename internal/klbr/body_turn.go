package klbr

import "encoding/json"

// MessageAdmitted is the durable form of something that arrived. (Session,
// Source, SourceID) is its key.
type MessageAdmitted struct {
	Source   string   `json:"source"`    // client, discord, schedule, job, …
	SourceID string   `json:"source_id"` // unique within the source
	Author   string   `json:"author"`    // "owner" or a source's own id of a person
	Text     string   `json:"text"`
	Mode     LaneMode `json:"mode"` // steer: may join a running turn of the same author
	// Attachments are artifacts.
	Attachments []Attachment `json:"attachments,omitempty"`
}

// Attachment names an artifact that came with a message.
type Attachment struct {
	SHA256 string `json:"sha256"`
	Name   string `json:"name"`
	Media  string `json:"media"` // media type
	Size   int64  `json:"size"`  // bytes
}

// MessageRefused is something that arrived and was not admitted for good.
type MessageRefused struct {
	Source   string `json:"source"`
	SourceID string `json:"source_id"`
	Author   string `json:"author"`
	Reason   string `json:"reason"`
}

// MessageEdited and MessageDeleted say what became of a message at its source.
type MessageEdited struct {
	Message int64  `json:"message"` // seq of message.admitted
	Text    string `json:"text"`
}

// MessageDeleted: see MessageEdited.
type MessageDeleted struct {
	Message int64 `json:"message"`
}

// MessageSaid is the turn speaking to its person.
type MessageSaid struct {
	Key  string `json:"key"`
	Text string `json:"text"`
	// ReplyTo is the seq of the message that the turn joined last: the answer
	// goes to where it came from.
	ReplyTo int64 `json:"reply_to"`
}

// QuestionAsked parks a turn until it is answered or expires.
type QuestionAsked struct {
	Key     string   `json:"key"`
	Text    string   `json:"text"`
	Choices []string `json:"choices,omitempty"`
	Expires int64    `json:"expires,omitempty"` // microseconds since 1970
}

// QuestionAnswered settles a question.
type QuestionAnswered struct {
	Question int64  `json:"question"` // seq of question.asked
	Answer   string `json:"answer"`
	By       string `json:"by"`
}

// QuestionExpired settles a question with no.
type QuestionExpired struct {
	Question int64 `json:"question"`
}

// TurnStarted begins an attempt at a turn.
type TurnStarted struct {
	Message int64  `json:"message"` // seq of message.admitted
	Attempt int    `json:"attempt"` // from 1
	Release string `json:"release"`
	Epoch   int64  `json:"epoch"`
}

// TurnTotals is what a turn cost. Token sums are over reported figures only.
type TurnTotals struct {
	ModelCalls       int   `json:"model_calls"`
	Cells            int   `json:"cells"`
	PromptTokens     int64 `json:"prompt_tokens"`
	CompletionTokens int64 `json:"completion_tokens"`
}

// AdmissionDigest identifies the body of something admitted: a repeated id
// with another digest is id_reused. How it was to be queued is no part of it.
func AdmissionDigest(lane string, m MessageAdmitted) string {
	b, err := json.Marshal([]any{lane, m.Author, m.Text, m.Attachments})
	if err != nil {
		panic("klbr: encode admission: " + err.Error())
	}
	return Digest(b)
}

// TurnFinished: the policy says that it is done.
type TurnFinished struct {
	Attempt int        `json:"attempt"`
	Totals  TurnTotals `json:"totals"`
}

// TurnFailed ends a turn with a reason that the person sees.
type TurnFailed struct {
	Attempt int        `json:"attempt"`
	Error   Error      `json:"error"`
	Totals  TurnTotals `json:"totals"`
}

// TurnStopped: a person ended it.
type TurnStopped struct {
	Attempt int        `json:"attempt"`
	By      string     `json:"by"`
	Totals  TurnTotals `json:"totals"`
}

// TurnInterrupted ends an attempt; the turn is taken up again or fails.
type TurnInterrupted struct {
	Attempt int    `json:"attempt"`
	Reason  string `json:"reason"` // daemon_died, daemon_stopping, commit_failed, worker_exit, rolled_back
	Strikes int    `json:"strikes"`
}

// ModelCalled is committed before the request is made.
type ModelCalled struct {
	Key     string `json:"key"`
	Args    string `json:"args"` // digest of the call's arguments
	Attempt int    `json:"attempt"`
	Route   string `json:"route"`
	Base    string `json:"base"` // the ledger's head before
	Head    string `json:"head"` // and after Append
	Kept    int    `json:"kept"` // leading messages of the request before that this one repeats
	Count   int    `json:"count"`
	// Upto is how far the policy had read the log when it first made this call.
	Upto int64 `json:"upto"`
	// Append is what is new, Reset why the ledger was begun anew (Base is "").
	Append []Message `json:"append"`
	Reset  string    `json:"reset,omitempty"`
	// Joined are the seqs of messages that joined the turn with this call.
	Joined []int64     `json:"joined,omitempty"`
	Tools  []Tool      `json:"tools,omitempty"`
	Params ModelParams `json:"params"`
}

// ModelParams are the request's settings beside messages and tools.
type ModelParams struct {
	MaxTokens   int             `json:"max_tokens,omitempty"`
	Temperature *float64        `json:"temperature,omitempty"`
	ToolChoice  string          `json:"tool_choice,omitempty"` // auto (default) or none
	Options     json.RawMessage `json:"options,omitempty"`
	// CutFence, when set, ends the stream after the first complete fenced
	// block whose info string is one of these words.
	CutFence []string `json:"cut_fence,omitempty"`
}

// ModelAnswered settles a model call with its answer.
type ModelAnswered struct {
	Key    string  `json:"key"`
	Called int64   `json:"called"` // seq of model.called
	Route  string  `json:"route"`
	Answer Message `json:"answer"`
	Head   string  `json:"head"` // the ledger's head with the answer
	Count  int     `json:"count"`
	ModelOutcome
	// Late: the call was over when the answer came. It is no part of the ledger.
	Late bool `json:"late,omitempty"`
}

// ModelOutcome is what the route reported about an answer.
type ModelOutcome struct {
	Model   string `json:"model"`  // as the server names it
	Finish  string `json:"finish"` // stop, tool_calls, length, content_filter, cut
	Usage   *Usage `json:"usage,omitempty"`
	FirstUS int64  `json:"first_us"` // request to first token, microseconds
	TotalUS int64  `json:"total_us"`
	// Dropped counts the bytes that were cut off after a fenced block, when
	// the server sent them.
	Dropped int `json:"dropped,omitempty"`
	// Leak names a tool call that the model wrote as text.
	Leak string `json:"leak,omitempty"`
}

// ModelFailed settles a model call without an answer. Its append stays.
type ModelFailed struct {
	Key    string `json:"key"`
	Called int64  `json:"called"`
	Error  Error  `json:"error"`
}

// EffectIntended is committed before the effect is tried.
type EffectIntended struct {
	Key    string          `json:"key"`
	Args   string          `json:"args"`
	Effect int64           `json:"effect"` // dense per session
	Type   string          `json:"type"`   // discord.message, …
	Body   json.RawMessage `json:"body"`
}

// EffectOutcome is done, failed or unknown.
type EffectOutcome string

const (
	EffectDone    EffectOutcome = "done"
	EffectFailed  EffectOutcome = "failed"
	EffectUnknown EffectOutcome = "unknown"
)

// EffectSettled says how an effect ended.
type EffectSettled struct {
	Key      string        `json:"key"`
	Effect   int64         `json:"effect"`
	Outcome  EffectOutcome `json:"outcome"`
	RemoteID string        `json:"remote_id,omitempty"`
	Reason   string        `json:"reason,omitempty"`
	Late     bool          `json:"late,omitempty"`
}

// ContextCompacted replaces the lane's past, up to and with UptoSeq, by a
// summary.
type ContextCompacted struct {
	Key     string `json:"key"`
	UptoSeq int64  `json:"upto_seq"`
	Summary string `json:"summary"`
}

func (MessageAdmitted) RecordKind() (Kind, int)  { return "message.admitted", 1 }
func (MessageRefused) RecordKind() (Kind, int)   { return "message.refused", 1 }
func (MessageEdited) RecordKind() (Kind, int)    { return "message.edited", 1 }
func (MessageDeleted) RecordKind() (Kind, int)   { return "message.deleted", 1 }
func (MessageSaid) RecordKind() (Kind, int)      { return "message.said", 1 }
func (QuestionAsked) RecordKind() (Kind, int)    { return "question.asked", 1 }
func (QuestionAnswered) RecordKind() (Kind, int) { return "question.answered", 1 }
func (QuestionExpired) RecordKind() (Kind, int)  { return "question.expired", 1 }
func (TurnStarted) RecordKind() (Kind, int)      { return "turn.started", 1 }
func (TurnFinished) RecordKind() (Kind, int)     { return "turn.finished", 1 }
func (TurnFailed) RecordKind() (Kind, int)       { return "turn.failed", 1 }
func (TurnStopped) RecordKind() (Kind, int)      { return "turn.stopped", 1 }
func (TurnInterrupted) RecordKind() (Kind, int)  { return "turn.interrupted", 1 }
func (ModelCalled) RecordKind() (Kind, int)      { return "model.called", 1 }
func (ModelAnswered) RecordKind() (Kind, int)    { return "model.answered", 1 }
func (ModelFailed) RecordKind() (Kind, int)      { return "model.failed", 1 }
func (EffectIntended) RecordKind() (Kind, int)   { return "effect.intended", 1 }
func (EffectSettled) RecordKind() (Kind, int)    { return "effect.settled", 1 }
func (ContextCompacted) RecordKind() (Kind, int) { return "context.compacted", 1 }

func init() {
	register[MessageAdmitted]()
	register[MessageRefused]()
	register[MessageEdited]()
	register[MessageDeleted]()
	register[MessageSaid]()
	register[QuestionAsked]()
	register[QuestionAnswered]()
	register[QuestionExpired]()
	register[TurnStarted]()
	register[TurnFinished]()
	register[TurnFailed]()
	register[TurnStopped]()
	register[TurnInterrupted]()
	register[ModelCalled]()
	register[ModelAnswered]()
	register[ModelFailed]()
	register[EffectIntended]()
	register[EffectSettled]()
	register[ContextCompacted]()
}
