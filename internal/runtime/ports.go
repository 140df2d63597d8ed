package runtime

import (
	"context"
	"encoding/json"
	"io"
	"time"

	"klbr/internal/klbr"
)

// Store is the durable log and its rows.
type Store interface {
	Incarnation() string
	Commit(ctx context.Context, b klbr.Batch) error
	Load(ctx context.Context, session string) (klbr.Snapshot, error)
	Sessions(ctx context.Context) ([]klbr.SessionRow, error)
	OpenWork(ctx context.Context) ([]string, error)
	Records(ctx context.Context, session string, after int64, limit int) ([]klbr.Record, error)
	Page(ctx context.Context, session string, lanes []string, before int64, limit int) ([]klbr.Record, bool, error)
	Lane(ctx context.Context, session, lane string, after int64, kinds []klbr.Kind, limit int) ([]klbr.Record, error)
	Record(ctx context.Context, session string, seq int64) (klbr.Record, error)
	Turn(ctx context.Context, session string, turn int64) (klbr.TurnRow, error)
	TurnRecords(ctx context.Context, session string, turn int64) ([]klbr.Record, error)
	Admissions(ctx context.Context, session string, source string, ids []string) (map[string]klbr.AdmissionRow, error)
	Effects(ctx context.Context, session string, openOnly bool) ([]klbr.EffectRow, error)
}

// Artifacts keeps bytes by their SHA-256. Put is durable when it returns.
type Artifacts interface {
	PutBytes(ctx context.Context, b []byte) (sha256 string, err error)
	ReadAll(sha256 string, max int64) ([]byte, error)
	Create(ctx context.Context) (Spill, error)
}

// Spill is an artifact that is being written.
type Spill interface {
	io.Writer
	// Keep makes it durable and names it.
	Keep() (sha256 string, err error)
	// Drop forgets it. Either Keep or Drop is called, once.
	Drop()
}

// Models makes model calls.
type Models interface {
	Do(ctx context.Context, r ModelRequest, onDelta func(ModelDelta)) (klbr.Message, klbr.ModelOutcome, error)
	// Status says how the route for turns is, from a probe at most a few
	// seconds old.
	Status(ctx context.Context) PartStatus
	// Shape is what a policy must know of a route.
	Shape(route string) (ModelShape, error)
}

// ModelShape is what a policy must know of a route.
type ModelShape struct {
	Tools           string // native or fenced
	ContextTokens   int
	MaxOutputTokens int
}

// ModelRequest is one call. Messages is the whole conversation.
type ModelRequest struct {
	Route    string
	Messages []klbr.Message
	Tools    []klbr.Tool
	Params   klbr.ModelParams
}

// ModelDelta is a piece of a streamed answer. Restart: what came before is
// void, the call was made again.
type ModelDelta struct {
	Text      string
	Reasoning string
	Restart   bool
}

// Workers starts Python processes.
type Workers interface {
	StartKernel(ctx context.Context, s KernelSpec) (Kernel, error)
	StartPolicy(ctx context.Context, s PolicySpec, host func(HostCall)) (Policy, error)
	Status(ctx context.Context) PartStatus
}

// KernelSpec is a kernel to start.
type KernelSpec struct {
	Session    string
	Generation int64
	Workspace  string
}

// CellSink takes a running cell's output. Its methods are called in order, by
// one goroutine at a time, and must not block long.
type CellSink interface {
	Live(offset int64, text string)
	Output(klbr.CellOutput)
}

// Kernel is one generation's process.
type Kernel interface {
	// Run blocks until the cell ended. died is set when the generation ended
	// with it: the result then holds what is known.
	Run(cell int64, code string, timeout time.Duration, sink CellSink, spill io.Writer) (f klbr.CellFinished, died bool)
	Interrupt(cell int64, reason string)
	Kill()
	Done() <-chan struct{}
	PID() int
	Python() string
	ExitReason() string
}

// PolicySpec is a policy worker to start.
type PolicySpec struct {
	Session string
	Release string
}

// HostCall is a request of a policy. Reply is called once, from any goroutine.
type HostCall struct {
	Method string
	Params json.RawMessage
	Reply  func(result any, err error)
}

// Policy is one policy worker, which runs one release.
type Policy interface {
	// RunTurn returns when turn() did. An error with code policy_failed is an
	// exception; other codes come from the policy itself.
	RunTurn(ctx context.Context, p TurnParams) error
	CancelTurn(turn int64, attempt int)
	Check(ctx context.Context) error
	Kill()
	Done() <-chan struct{}
	ExitReason() string
}

// TurnParams is what turn() is told: docs/workers.md, turn.run.
type TurnParams struct {
	Turn            int64       `json:"turn"`
	Attempt         int         `json:"attempt"`
	Lane            string      `json:"lane"`
	Session         string      `json:"session"`
	Message         int64       `json:"message"`
	After           int64       `json:"after"`
	Ledger          LedgerHead  `json:"ledger"`
	ContextTokens   int         `json:"context_tokens"`
	Tools           string      `json:"tools"`
	MaxOutputTokens int         `json:"max_output_tokens"`
	Workspace       string      `json:"workspace"`
	Facts           []string    `json:"facts"`
	Guidance        string      `json:"guidance"`
	Person          string      `json:"person"`
	Skills          []SkillLine `json:"skills"`
	Budgets         TurnBudgets `json:"budgets"`
	Started         int64       `json:"started"`
}

// LedgerHead is a ledger's digest and length.
type LedgerHead struct {
	Head  string `json:"head"`
	Count int    `json:"count"`
}

// SkillLine offers a skill.
type SkillLine struct {
	ID   string `json:"id"`
	Line string `json:"line"`
}

// TurnBudgets bound a turn. The policy keeps them.
type TurnBudgets struct {
	MaxCalls        int `json:"max_calls"`
	MaxMinutes      int `json:"max_minutes"`
	MaxOutputTokens int `json:"max_output_tokens"`
}

// Transport makes one type of effect happen.
type Transport interface {
	// Try makes it happen. It is called at most once for an effect.
	Try(ctx context.Context, e Effect) EffectResult
	// Ask finds out what became of an effect that may have been tried.
	Ask(ctx context.Context, e Effect) EffectResult
}

// Effect is one effect to make happen or to ask after.
type Effect struct {
	Session string
	Number  int64
	Body    json.RawMessage
}

// EffectResult is how an effect came out.
type EffectResult struct {
	Outcome  klbr.EffectOutcome
	RemoteID string
	Reason   string
}
