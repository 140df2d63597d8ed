package runtime

import (
	"klbr/internal/klbr"
)

// Info is what hello tells a client.
type Info struct {
	Version     string     `json:"version"`
	Incarnation string     `json:"incarnation"`
	Life        string     `json:"life"`
	State       string     `json:"state"` // ready or draining
	Model       PartStatus `json:"model"`
	Python      PartStatus `json:"python"`
}

// PartStatus says how a part that klbr depends on is.
type PartStatus struct {
	State string `json:"state"` // ready, unreachable, unknown
	Name  string `json:"name,omitempty"`
	Hint  string `json:"hint,omitempty"`
}

// SessionStatus is docs/protocol.md's Session.
type SessionStatus struct {
	Session   string            `json:"session"`
	State     klbr.SessionState `json:"state"`
	Seq       int64             `json:"seq"`
	Workspace string            `json:"workspace"`
	Release   string            `json:"release"`
	Epoch     int64             `json:"epoch"`
	Probation bool              `json:"probation"`
	Kernel    KernelStatus      `json:"kernel"`
	Running   []TurnStatus      `json:"running"`
	Queued    []QueuedMessage   `json:"queued"`
	Cells     []CellStatus      `json:"cells"`
	Turns     int64             `json:"turns"`
	OpenedAt  int64             `json:"opened_at"`
	ChangedAt int64             `json:"changed_at"`
	Trouble   string            `json:"trouble,omitempty"`
}

// KernelStatus is a session's kernel now.
type KernelStatus struct {
	Generation int64 `json:"generation"`
	Running    bool  `json:"running"`
}

// TurnStatus is a running turn.
type TurnStatus struct {
	Turn    int64  `json:"turn"`
	Lane    string `json:"lane"`
	Attempt int    `json:"attempt"`
	Message int64  `json:"message"`
	Started int64  `json:"started"`
	State   string `json:"state"` // policy, model, cell, waiting
	Cell    int64  `json:"cell,omitempty"`
	// WaitsFor says what a waiting turn waits for ("the kernel, which runs cell 4 of lane main").
	WaitsFor string `json:"waits_for,omitempty"`
}

// QueuedMessage is an admitted message with no turn yet.
type QueuedMessage struct {
	Seq    int64  `json:"seq"`
	Lane   string `json:"lane"`
	Author string `json:"author"`
	Text   string `json:"text"`
}

// CellStatus is a cell that runs.
type CellStatus struct {
	Cell    int64  `json:"cell"`
	Lane    string `json:"lane"`
	Turn    int64  `json:"turn,omitempty"`
	Started int64  `json:"started"`
}

// LaneStatus is docs/protocol.md's Lane.
type LaneStatus struct {
	Lane    string        `json:"lane"`
	Mode    klbr.LaneMode `json:"mode"`
	Running int64         `json:"running"`
}

// Message is something to admit.
type Message struct {
	Lane   string // empty: main
	Source string // "client" for people's clients
	ID     string // unique within Source
	Author string // "owner"
	Text   string
	Queue  bool
}

// Admitted answers a message after its commit.
type Admitted struct {
	Seq       int64 `json:"seq"`
	Duplicate bool  `json:"duplicate"`
	Held      bool  `json:"held"`
}

// Cell is a person's cell to run.
type Cell struct {
	Lane    string // empty: main
	ID      string
	Code    string
	Private bool
}

// CellAccepted answers a person's cell after cell.started has committed.
type CellAccepted struct {
	Cell int64 `json:"cell"`
	Seq  int64 `json:"seq"`
}

// ResetResult answers a reset.
type ResetResult struct {
	Generation int64  `json:"generation"`
	Text       string `json:"text"`
}

// Cursor is a place in a session's log.
type Cursor struct {
	Incarnation string `json:"incarnation,omitempty"`
	// Seq is the last record that the client has; 0: nothing; -n: it wants the
	// newest n.
	Seq int64 `json:"seq"`
}

// Update is what a subscription gives next: records, then whether they reach
// the live end for the first time, then text of open calls.
type Update struct {
	Records []klbr.Record
	Upto    int64 // the cursor after Records
	Live    bool  // set once
	Deltas  []Delta
}

// Delta is text of an open call that no record holds yet.
type Delta struct {
	Turn      int64      `json:"turn,omitempty"`
	Lane      string     `json:"lane"`
	Call      int64      `json:"call"`   // seq of model.called or cell.started
	Kind      string     `json:"kind"`   // model or cell
	Offset    int64      `json:"offset"` // bytes of UTF-8 since the call began
	Text      string     `json:"text"`
	Reasoning *DeltaText `json:"reasoning,omitempty"`
}

// DeltaText is a second text beside the first.
type DeltaText struct {
	Offset int64  `json:"offset"`
	Text   string `json:"text"`
}
