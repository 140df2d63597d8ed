package klbr

// CellStarted is committed before the code is sent to the kernel. Lane and
// turn are those of the record; a person's own cell has neither turn nor key.
type CellStarted struct {
	Key        string `json:"key,omitempty"`
	Args       string `json:"args,omitempty"`
	Cell       int64  `json:"cell"` // dense per session, from 1
	Generation int64  `json:"generation"`
	Code       string `json:"code"`
	TimeoutMS  int64  `json:"timeout_ms"` // 0: none
	By         string `json:"by"`         // "model" or "person"
	Private    bool   `json:"private,omitempty"`
	SourceID   string `json:"source_id,omitempty"` // a person's cell: the client's id
}

// CellOutput is one ordered piece of what a cell showed: text that it or its
// children wrote, or a displayed value.
type CellOutput struct {
	Cell int64 `json:"cell"`
	N    int   `json:"n"` // from 1 in each cell
	// Text was written to descriptor 1 or 2. Bytes that are no UTF-8 are
	// replaced by U+FFFD.
	Text string `json:"text,omitempty"`
	// Omitted bytes stood between the output before and this one.
	Omitted int64 `json:"omitted,omitempty"`
	// Data is a displayed value: media type → text, or artifact:SHA256 for
	// binary data.
	Data map[string]string `json:"data,omitempty"`
}

// CellStatus is how a cell ended.
type CellStatus string

const (
	CellOK      CellStatus = "ok"
	CellError   CellStatus = "error"
	CellStopped CellStatus = "stopped" // interrupted by a person, a time-out or the end of its turn
	CellLost    CellStatus = "lost"    // its kernel died: what it did outside is unknown
)

// CellFinished settles a cell.
type CellFinished struct {
	Key        string     `json:"key,omitempty"`
	Cell       int64      `json:"cell"`
	Generation int64      `json:"generation"`
	Status     CellStatus `json:"status"`
	ElapsedUS  int64      `json:"elapsed_us"`
	// Result is the repr of the last expression's value, capped; empty for None.
	Result string `json:"result,omitempty"`
	// Reason says why a cell was stopped: person, timeout, turn_over.
	Reason string      `json:"reason,omitempty"`
	Error  *CellRaised `json:"error,omitempty"`
	Bound  []string    `json:"bound,omitempty"` // top-level names bound or rebound
	Freed  []string    `json:"freed,omitempty"` // top-level names deleted
	// OutputBytes counts all that was written; Truncated says that the records
	// hold head and tail only, and Whole names the artifact with everything (up
	// to a bound).
	OutputBytes int64  `json:"output_bytes"`
	Truncated   bool   `json:"truncated,omitempty"`
	Whole       string `json:"whole,omitempty"`
	// Lost is set on a lost cell: what the new generation no longer has.
	Lost *KernelLoss `json:"lost,omitempty"`
	Late bool        `json:"late,omitempty"`
}

// CellRaised is an exception out of a cell.
type CellRaised struct {
	Name      string `json:"name"`      // ValueError
	Message   string `json:"message"`   // str(e)
	Traceback string `json:"traceback"` // the cell's frames and the last line
}

// KernelLoss is the receipt of a heap that is gone.
type KernelLoss struct {
	Generation int64      `json:"generation"` // the new one
	Names      []LostName `json:"names,omitempty"`
	More       int        `json:"more,omitempty"` // names beyond those listed
}

// LostName is a top-level name and the cell that made it.
type LostName struct {
	Name string `json:"name"`
	Cell int64  `json:"cell"`
}

// KernelStarted: the process of a generation is up.
type KernelStarted struct {
	Generation int64  `json:"generation"`
	Life       string `json:"life"`
	PID        int    `json:"pid"`
	Python     string `json:"python"` // version
}

// KernelReset begins a generation with an empty heap. Every generation has
// one, the first included.
type KernelReset struct {
	Reason         string     `json:"reason"` // first, operator, exit, killed, daemon, memory
	Text           string     `json:"text"`   // says that heap state was not restored
	SkillsRevision string     `json:"skills_revision"`
	Loss           KernelLoss `json:"loss"`
}

// JobStarted and JobFinished frame a background run.
type JobStarted struct {
	Job  int64    `json:"job"`
	Cell int64    `json:"cell,omitempty"`
	Argv []string `json:"argv"`
}

// JobFinished: see JobStarted.
type JobFinished struct {
	Job    int64  `json:"job"`
	Status string `json:"status"` // exited, signalled, stopped, lost
	Exit   int    `json:"exit"`
}

func (CellStarted) RecordKind() (Kind, int)   { return "cell.started", 1 }
func (CellOutput) RecordKind() (Kind, int)    { return "cell.output", 1 }
func (CellFinished) RecordKind() (Kind, int)  { return "cell.finished", 1 }
func (KernelStarted) RecordKind() (Kind, int) { return "kernel.started", 1 }
func (KernelReset) RecordKind() (Kind, int)   { return "kernel.reset", 1 }
func (JobStarted) RecordKind() (Kind, int)    { return "job.started", 1 }
func (JobFinished) RecordKind() (Kind, int)   { return "job.finished", 1 }

func init() {
	register[CellStarted]()
	register[CellOutput]()
	register[CellFinished]()
	register[KernelStarted]()
	register[KernelReset]()
	register[JobStarted]()
	register[JobFinished]()
}
