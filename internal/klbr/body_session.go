package klbr

// DaemonStarted is written to a session that the daemon opens at its start.
type DaemonStarted struct {
	Version string `json:"version"`
	Life    string `json:"life"`  // random id of this run of the daemon
	Clean   bool   `json:"clean"` // the life before ended with daemon.stopping
}

// DaemonStopping is written to a session with work under way when the daemon
// is asked to end. What it interrupts does not count against a turn.
type DaemonStopping struct {
	Life   string `json:"life"`
	Reason string `json:"reason"` // "signal" or "drain"
}

// SessionOpened is always seq 1.
type SessionOpened struct {
	Workspace string `json:"workspace"` // absolute path
	Release   string `json:"release"`   // SHA-256 of the release it begins with
}

// SessionDrained says that admission is closed and accepted work is done.
type SessionDrained struct {
	By string `json:"by"`
}

// SessionDraining closes admission; accepted work goes on.
type SessionDraining struct {
	By string `json:"by"`
}

// SessionStopped holds the session: messages are admitted and wait.
type SessionStopped struct {
	By string `json:"by"`
}

// SessionResumed ends a stop or a drain.
type SessionResumed struct {
	By string `json:"by"`
}

// LaneMode is what becomes of a message that arrives while a turn runs.
type LaneMode string

const (
	// LaneSteer lets it join the running turn at its next model call.
	LaneSteer LaneMode = "steer"
	// LaneQueue gives it a turn of its own.
	LaneQueue LaneMode = "queue"
)

// LaneOpened begins a lane.
type LaneOpened struct {
	Name string   `json:"name"`
	Mode LaneMode `json:"mode"`
}

// LaneForked begins a lane whose past is From's, up to and without UptoSeq.
type LaneForked struct {
	Name    string `json:"name"`
	From    string `json:"from"`
	UptoSeq int64  `json:"upto_seq"`
}

// NoteLogged is a line for the person or for later debugging.
type NoteLogged struct {
	Key  string `json:"key,omitempty"`
	By   string `json:"by"` // policy, runtime
	Text string `json:"text"`
}

// ScheduleSet and ScheduleCancelled belong to the maintenance schedule.
type ScheduleSet struct {
	ID   string `json:"id"`
	When string `json:"when"`
	Text string `json:"text"`
}

// ScheduleCancelled ends a schedule.
type ScheduleCancelled struct {
	ID string `json:"id"`
	By string `json:"by"`
}

// WorkspaceChanged is committed before the rename that it describes.
type WorkspaceChanged struct {
	Path   string `json:"path"`             // relative to the workspace root
	Before string `json:"before,omitempty"` // SHA-256; empty: the file was not there
	After  string `json:"after,omitempty"`  // SHA-256; empty: the file is gone
	Cell   int64  `json:"cell,omitempty"`
}

// BehaviorPublished names a release that was written.
type BehaviorPublished struct {
	Release string `json:"release"`
	HostAPI int    `json:"host_api"`
	Files   int    `json:"files"`
}

// BehaviorActivated swaps the release; turns that start later run it.
type BehaviorActivated struct {
	Release   string `json:"release"`
	Previous  string `json:"previous"`
	Epoch     int64  `json:"epoch"` // the new one
	By        string `json:"by"`
	Probation bool   `json:"probation"`
}

// BehaviorRolledBack ends a probation that failed.
type BehaviorRolledBack struct {
	Release string `json:"release"` // the one that is active again
	Failed  string `json:"failed"`
	Epoch   int64  `json:"epoch"` // the new one
	Reason  string `json:"reason"`
}

// PolicyFailed is an exception out of turn(), a malformed call, a worker exit
// that we did not cause, or silence.
type PolicyFailed struct {
	Attempt int    `json:"attempt,omitempty"`
	Release string `json:"release"`
	Epoch   int64  `json:"epoch"`
	Reason  string `json:"reason"` // exception, exit, silence, load
	Error   string `json:"error"`
}

func (DaemonStarted) RecordKind() (Kind, int)      { return "daemon.started", 1 }
func (DaemonStopping) RecordKind() (Kind, int)     { return "daemon.stopping", 1 }
func (SessionOpened) RecordKind() (Kind, int)      { return "session.opened", 1 }
func (SessionDraining) RecordKind() (Kind, int)    { return "session.draining", 1 }
func (SessionDrained) RecordKind() (Kind, int)     { return "session.drained", 1 }
func (SessionStopped) RecordKind() (Kind, int)     { return "session.stopped", 1 }
func (SessionResumed) RecordKind() (Kind, int)     { return "session.resumed", 1 }
func (LaneOpened) RecordKind() (Kind, int)         { return "lane.opened", 1 }
func (LaneForked) RecordKind() (Kind, int)         { return "lane.forked", 1 }
func (NoteLogged) RecordKind() (Kind, int)         { return "note.logged", 1 }
func (ScheduleSet) RecordKind() (Kind, int)        { return "schedule.set", 1 }
func (ScheduleCancelled) RecordKind() (Kind, int)  { return "schedule.cancelled", 1 }
func (WorkspaceChanged) RecordKind() (Kind, int)   { return "workspace.changed", 1 }
func (BehaviorPublished) RecordKind() (Kind, int)  { return "behavior.published", 1 }
func (BehaviorActivated) RecordKind() (Kind, int)  { return "behavior.activated", 1 }
func (BehaviorRolledBack) RecordKind() (Kind, int) { return "behavior.rolled_back", 1 }
func (PolicyFailed) RecordKind() (Kind, int)       { return "policy.failed", 1 }

func init() {
	register[DaemonStarted]()
	register[DaemonStopping]()
	register[SessionOpened]()
	register[SessionDraining]()
	register[SessionDrained]()
	register[SessionStopped]()
	register[SessionResumed]()
	register[LaneOpened]()
	register[LaneForked]()
	register[NoteLogged]()
	register[ScheduleSet]()
	register[ScheduleCancelled]()
	register[WorkspaceChanged]()
	register[BehaviorPublished]()
	register[BehaviorActivated]()
	register[BehaviorRolledBack]()
	register[PolicyFailed]()
}
