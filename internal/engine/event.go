package engine

import (
	"encoding/json"

	"klbr/internal/klbr"
)

// Event is something that happened. The concrete types are in this file.
type Event interface{ event() }

// ReplyTo names a caller that waits for an answer; 0 is nobody.
type ReplyTo uint64

type (
	// Open begins a session. It is a new state's first event.
	Open struct{ Workspace, Release string }

	// Load is the first event after a state was loaded from the store: at the
	// daemon's start, or after a commit failed.
	Load struct {
		Life     string // of this daemon
		Version  string
		Skills   string // revision that new generations get
		Cause    LoadCause
		Announce bool // write daemon.started even when nothing was open
	}

	// Admit is a message. Dup is what its key was admitted as before, or nil.
	Admit struct {
		Lane    string
		Message klbr.MessageAdmitted
		Dup     *klbr.AdmissionRow
		Reply   ReplyTo
	}

	// ModelCall is the policy asking for a model call.
	ModelCall struct {
		Caller
		Route  string
		Base   string
		Append []klbr.Message
		Reset  string
		Join   []int64
		Tools  []klbr.Tool
		Params klbr.ModelParams
		Upto   int64 // how far this attempt has read the log
	}

	// CellRun is the policy asking for a cell.
	CellRun struct {
		Caller
		Code      string
		TimeoutMS int64
	}

	// Say is the policy speaking to the person.
	Say struct {
		Caller
		Text string
	}

	// Note is the policy writing into the log.
	Note struct {
		Caller
		Text string
	}

	// EffectRequest is the policy asking for an effect.
	EffectRequest struct {
		Caller
		Type string
		Body json.RawMessage
	}

	// PersonCell is a person's own cell.
	PersonCell struct {
		Lane    string
		ID      string // the client's
		Code    string
		Private bool
		Dup     *klbr.AdmissionRow
		Reply   ReplyTo
	}

	// ModelDone is the outcome of the request that model.called at seq Called
	// stands for. Err nil: Answer holds.
	ModelDone struct {
		Turn    int64
		Lane    string
		Key     string
		Called  int64
		Route   string
		Answer  klbr.Message
		Outcome klbr.ModelOutcome
		Err     *klbr.Error
	}

	// KernelUp: the process of a generation runs.
	KernelUp struct {
		Generation int64
		PID        int
		Python     string
	}

	// KernelDown: the process of a generation is gone. Partial is what is known
	// of the cell that ran in it, if one did.
	KernelDown struct {
		Generation int64
		Reason     string
		Partial    *klbr.CellFinished
	}

	// CellOutput is a durable piece of a running cell's output.
	CellOutput struct {
		Generation int64
		Output     klbr.CellOutput
	}

	// CellDone: a cell ended and its kernel lives.
	CellDone struct{ Finished klbr.CellFinished }

	// EffectDone is how a try, or an inquiry after a restart, came out.
	EffectDone struct {
		Effect   int64
		Outcome  klbr.EffectOutcome
		RemoteID string
		Reason   string
	}

	// TurnReturned: turn() returned (Err nil) or raised.
	TurnReturned struct {
		Turn    int64
		Attempt int
		Err     *klbr.Error
	}

	// WorkerDown: a policy worker ended, or could not be started, with these
	// attempts under way. Reason is exit, silence or load; for silence, Blame
	// is the turn that was silent.
	WorkerDown struct {
		Attempts []Attempt
		Reason   string
		Error    string
		Blame    int64
	}

	// TurnStop ends a turn: the one named, or what runs in Lane.
	TurnStop struct {
		Turn  int64
		Lane  string
		By    string
		Reply ReplyTo
	}

	// SessionStop, SessionResume and SessionDrain are the operator's.
	SessionStop struct {
		By    string
		Reply ReplyTo
	}
	// SessionResume ends a stop or a drain.
	SessionResume struct {
		By    string
		Reply ReplyTo
	}
	// SessionDrain closes admission.
	SessionDrain struct {
		By    string
		Reply ReplyTo
	}

	// KernelReset is the operator's reset of the heap.
	KernelReset struct {
		By    string
		Reply ReplyTo
	}

	// LaneOpen begins a lane.
	LaneOpen struct {
		Lane  string
		Mode  klbr.LaneMode
		Reply ReplyTo
	}

	// Activate swaps the release where Epoch is the one that holds. The release
	// has passed its check before.
	Activate struct {
		Epoch   int64
		Release string
		By      string
		Reply   ReplyTo
	}

	// Stopping: the daemon was asked to end.
	Stopping struct{ Life, Reason string }
)

// LoadCause says why a state was loaded.
type LoadCause string

const (
	LoadStart        LoadCause = "start"
	LoadCommitFailed LoadCause = "commit_failed"
)

// Attempt is one run of turn().
type Attempt struct {
	Turn    int64
	Attempt int
}

// Caller identifies an acting call of a policy. Args is the digest of its
// arguments.
type Caller struct {
	Attempt
	Key   string
	Args  string
	Reply ReplyTo
}

func (Open) event()          {}
func (Load) event()          {}
func (Admit) event()         {}
func (ModelCall) event()     {}
func (CellRun) event()       {}
func (Say) event()           {}
func (Note) event()          {}
func (EffectRequest) event() {}
func (PersonCell) event()    {}
func (ModelDone) event()     {}
func (KernelUp) event()      {}
func (KernelDown) event()    {}
func (CellOutput) event()    {}
func (CellDone) event()      {}
func (EffectDone) event()    {}
func (TurnReturned) event()  {}
func (WorkerDown) event()    {}
func (TurnStop) event()      {}
func (SessionStop) event()   {}
func (SessionResume) event() {}
func (SessionDrain) event()  {}
func (KernelReset) event()   {}
func (LaneOpen) event()      {}
func (Activate) event()      {}
func (Stopping) event()      {}
