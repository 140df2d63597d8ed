package klbr

// The rows are the checkpoint: they change in the same transaction as the
// records that change them, and can be rebuilt by folding the log. Times are
// microseconds since 1970 UTC, as in Record.

// SessionState is what a session accepts.
type SessionState string

const (
	SessionOpen    SessionState = "open"
	SessionHeld    SessionState = "stopped"  // admits, starts nothing
	SessionClosing SessionState = "draining" // admits nothing, finishes what it has
	SessionClosed  SessionState = "drained"  // admits nothing, has nothing
)

// SessionRow is one session.
type SessionRow struct {
	Session   string
	Seq       int64 // of the newest record
	State     SessionState
	Workspace string
	Release   string // active
	Previous  string // the one before, for rollback; empty: none
	Epoch     int64
	Probation bool
	// Kernel is the current generation, 0 before the first; KernelLife is the
	// daemon's life that started its process, or empty.
	Kernel     int64
	KernelLife string
	Turns      int64 // number of the newest turn
	Cells      int64
	Effects    int64
	OpenedAt   int64
	ChangedAt  int64 // time of the newest record
}

// LaneRow is one lane.
type LaneRow struct {
	Session string
	Lane    string
	Mode    LaneMode
	Running int64 // turn number, or 0
	// The ledger: digest and number of the messages that the model has, and
	// the seq of the model.called that began it.
	LedgerHead  string
	LedgerCount int
	LedgerFrom  int64
	// LedgerSeq is how far the policy had read the log when it made the last
	// model call: what stands after it may be new to the model.
	LedgerSeq int64
}

// TurnState is where a turn is.
type TurnState string

const (
	TurnRunning    TurnState = "running"
	TurnParked     TurnState = "interrupted" // between two attempts
	TurnDone       TurnState = "finished"
	TurnDidFail    TurnState = "failed"
	TurnWasStopped TurnState = "stopped"
)

// TurnRow is one turn.
type TurnRow struct {
	Session string
	Turn    int64
	Lane    string
	Message int64 // seq of the message that began it
	ReplyTo int64 // seq of the message that joined last
	Author  string
	State   TurnState
	Attempt int
	Strikes int // crashes in a row with nothing settled in between
	Release string
	Epoch   int64
	Totals  TurnTotals
	// After, BaseHead and BaseCount are the lane's ledger when the turn first
	// started: what the model did not know then stands after seq After.
	After     int64
	BaseHead  string
	BaseCount int
	From      int64 // seq of its first turn.started
	Upto      int64 // seq of the record that ended it, or 0
	Started   int64
	Ended     int64
}

// CallKind is what an acting call does.
type CallKind string

const (
	CallModel  CallKind = "model"
	CallCell   CallKind = "cell"
	CallEffect CallKind = "effect"
	CallSay    CallKind = "say"
	CallNote   CallKind = "note"
)

// CallRow is one keyed call of a running turn, or a person's cell that runs
// (Turn 0, Key "cell:<n>"). The rows of a turn go when it ends.
type CallRow struct {
	Session string
	Turn    int64
	Key     string
	Kind    CallKind
	Args    string // digest
	Opened  int64  // seq
	Settled int64  // seq of the settling record, 0 while open
	Number  int64  // cell or effect number, 0 for others
	Lane    string
	// Base and BaseCount are the ledger before a model call.
	Base      string
	BaseCount int
	Upto      int64 // what the policy had read when it first made a model call
	// Generation is the kernel's, for a cell.
	Generation int64
}

// EffectRow is one effect that is not settled, or was.
type EffectRow struct {
	Session  string
	Effect   int64
	Turn     int64
	Key      string
	Type     string
	Outcome  EffectOutcome // empty while open
	Intended int64         // seq
	Settled  int64         // seq or 0
	RemoteID string
	Reason   string
}

// AdmissionRow is one admission key. Turn is 0 while the message waits.
type AdmissionRow struct {
	Session  string
	Source   string
	SourceID string
	Digest   string // of the body
	Seq      int64
	Lane     string
	Author   string
	Mode     LaneMode
	Turn     int64
	// Waiting: a message with no turn yet. A person's cell and a refused
	// message never wait.
	Waiting bool
}

// UsageRow is one model answer's cost.
type UsageRow struct {
	Session string
	Seq     int64 // of model.answered
	Turn    int64
	Route   string
	Model   string
	Usage   Usage
	Time    int64
}

// NameRow is a top-level name of the current kernel generation and the cell
// that bound it last.
type NameRow struct {
	Session string
	Name    string
	Cell    int64
}

// Changes are the rows that a batch of records changed: upserts by primary
// key, and deletions.
type Changes struct {
	Session    *SessionRow
	Lanes      []LaneRow
	Turns      []TurnRow
	Calls      []CallRow
	CallsGone  []CallRow // Turn and Key name the row
	Effects    []EffectRow
	Admissions []AdmissionRow
	Usage      []UsageRow
	Names      []NameRow
	NamesGone  []string
	NamesReset bool // all names go first
}

// Batch is what one step commits: the records, in order, and the rows that
// they changed. Records carry Session, Seq and Time.
type Batch struct {
	Session string
	Records []Record
	Changes Changes
}

// Snapshot is a session's open work, as the rows hold it.
type Snapshot struct {
	Session    SessionRow
	Lanes      []LaneRow
	Turns      []TurnRow      // running and interrupted ones
	Calls      []CallRow      // of those, and persons' cells
	Effects    []EffectRow    // unsettled
	Admissions []AdmissionRow // waiting messages, by seq
	Names      []NameRow
}
