package engine

import (
	"cmp"
	"maps"
	"slices"

	"klbr/internal/klbr"
)

// CallID names a keyed call. A person's cell has turn 0.
type CallID struct {
	Turn int64
	Key  string
}

// State is a session's open work. All but live is a fold of the log and is
// what the store's rows hold.
type State struct {
	Session klbr.SessionRow
	Lanes   map[string]*klbr.LaneRow
	Turns   map[int64]*klbr.TurnRow // running and parked ones
	Calls   map[CallID]*klbr.CallRow
	Effects map[int64]*klbr.EffectRow // open ones
	Waiting map[string][]*klbr.AdmissionRow
	Names   map[string]int64 // of the current generation: name → cell

	dirty dirty
	live  live
}

// live is what a restart forgets: who waits for what, and what is under way in
// this life.
type live struct {
	life     string
	skills   string         // revision, for the next generation
	inFlight map[CallID]int // model calls whose request is made → attempt that asked last
	waiters  map[CallID][]ReplyTo
	queue    []cellRequest // cells that wait for the kernel, first come first
	stopping int64         // the cell that is being interrupted, or 0
}

// cellRequest is a cell that waits for the kernel.
type cellRequest struct {
	id    CallID
	lane  string
	cell  klbr.CellStarted
	reply []ReplyTo
}

// dirty names the rows that changed since TakeChanges.
type dirty struct {
	session    bool
	lanes      map[string]bool
	turns      map[int64]klbr.TurnRow
	calls      map[CallID]bool
	callsGone  map[CallID]bool
	effects    map[int64]klbr.EffectRow
	admissions map[[2]string]klbr.AdmissionRow
	usage      []klbr.UsageRow
	names      map[string]bool
	namesReset bool
}

// NewState is the state of a session with an empty log.
func NewState(session string) *State {
	s := &State{
		Session: klbr.SessionRow{Session: session},
		Lanes:   map[string]*klbr.LaneRow{},
		Turns:   map[int64]*klbr.TurnRow{},
		Calls:   map[CallID]*klbr.CallRow{},
		Effects: map[int64]*klbr.EffectRow{},
		Waiting: map[string][]*klbr.AdmissionRow{},
		Names:   map[string]int64{},
	}
	s.dirty.clear()
	s.live = live{
		inFlight: map[CallID]int{},
		waiters:  map[CallID][]ReplyTo{},
	}
	return s
}

// FromSnapshot is the state that the store's rows hold.
func FromSnapshot(snap klbr.Snapshot) *State {
	s := NewState(snap.Session.Session)
	s.Session = snap.Session
	for _, l := range snap.Lanes {
		s.Lanes[l.Lane] = &l
	}
	for _, t := range snap.Turns {
		s.Turns[t.Turn] = &t
	}
	for _, c := range snap.Calls {
		s.Calls[CallID{c.Turn, c.Key}] = &c
	}
	for _, e := range snap.Effects {
		s.Effects[e.Effect] = &e
	}
	for _, a := range snap.Admissions {
		s.Waiting[a.Lane] = append(s.Waiting[a.Lane], &a)
	}
	for _, q := range s.Waiting {
		slices.SortFunc(q, func(a, b *klbr.AdmissionRow) int { return cmp.Compare(a.Seq, b.Seq) })
	}
	for _, n := range snap.Names {
		s.Names[n.Name] = n.Cell
	}
	return s
}

// Snapshot is the state as rows, each list sorted by its key: the inverse of
// FromSnapshot.
func (s *State) Snapshot() klbr.Snapshot {
	snap := klbr.Snapshot{Session: s.Session}
	for _, k := range sorted(s.Lanes) {
		snap.Lanes = append(snap.Lanes, *s.Lanes[k])
	}
	for _, k := range sorted(s.Turns) {
		snap.Turns = append(snap.Turns, *s.Turns[k])
	}
	for _, k := range sortedCalls(s.Calls) {
		snap.Calls = append(snap.Calls, *s.Calls[k])
	}
	for _, k := range sorted(s.Effects) {
		snap.Effects = append(snap.Effects, *s.Effects[k])
	}
	for _, q := range s.Waiting {
		for _, a := range q {
			snap.Admissions = append(snap.Admissions, *a)
		}
	}
	slices.SortFunc(snap.Admissions, func(a, b klbr.AdmissionRow) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, n := range sorted(s.Names) {
		snap.Names = append(snap.Names, klbr.NameRow{Session: s.Session.Session, Name: n, Cell: s.Names[n]})
	}
	return snap
}

// TakeChanges gives the rows that changed since it was last called, in a
// deterministic order, and forgets them.
func (s *State) TakeChanges() klbr.Changes {
	d := &s.dirty
	var c klbr.Changes
	if d.session {
		row := s.Session
		c.Session = &row
	}
	for _, k := range sorted(d.lanes) {
		c.Lanes = append(c.Lanes, *s.Lanes[k])
	}
	for _, k := range sorted(d.turns) {
		c.Turns = append(c.Turns, d.turns[k])
	}
	for _, k := range sortedCalls(d.calls) {
		c.Calls = append(c.Calls, *s.Calls[k])
	}
	for _, k := range sortedCalls(d.callsGone) {
		c.CallsGone = append(c.CallsGone, klbr.CallRow{Session: s.Session.Session, Turn: k.Turn, Key: k.Key})
	}
	for _, k := range sorted(d.effects) {
		c.Effects = append(c.Effects, d.effects[k])
	}
	for _, a := range d.admissions {
		c.Admissions = append(c.Admissions, a)
	}
	slices.SortFunc(c.Admissions, func(a, b klbr.AdmissionRow) int {
		return cmp.Or(cmp.Compare(a.Seq, b.Seq), cmp.Compare(a.Source, b.Source), cmp.Compare(a.SourceID, b.SourceID))
	})
	c.Usage = d.usage
	c.NamesReset = d.namesReset
	for _, n := range sorted(d.names) {
		if cell, ok := s.Names[n]; ok {
			c.Names = append(c.Names, klbr.NameRow{Session: s.Session.Session, Name: n, Cell: cell})
		} else if !d.namesReset {
			c.NamesGone = append(c.NamesGone, n)
		}
	}
	d.clear()
	return c
}

func (d *dirty) clear() {
	*d = dirty{
		lanes:      map[string]bool{},
		turns:      map[int64]klbr.TurnRow{},
		calls:      map[CallID]bool{},
		callsGone:  map[CallID]bool{},
		effects:    map[int64]klbr.EffectRow{},
		admissions: map[[2]string]klbr.AdmissionRow{},
		names:      map[string]bool{},
	}
}

func (d *dirty) admission(a klbr.AdmissionRow) {
	d.admissions[[2]string{a.Source, a.SourceID}] = a
}

// OpenCell is the call of the cell that runs, or nil.
func (s *State) OpenCell() *klbr.CallRow {
	for _, c := range s.Calls {
		if c.Kind == klbr.CallCell && c.Settled == 0 {
			return c
		}
	}
	return nil
}

// QueuedCells are the calls that wait for the kernel, in order.
func (s *State) QueuedCells() []CallID {
	ids := make([]CallID, 0, len(s.live.queue))
	for _, q := range s.live.queue {
		ids = append(ids, q.id)
	}
	return ids
}

// Admitted is the row of a key that was admitted since the last TakeChanges,
// and so is in no store yet; nil where there is none.
func (s *State) Admitted(source, id string) *klbr.AdmissionRow {
	if a, ok := s.dirty.admissions[[2]string{source, id}]; ok {
		return &a
	}
	return nil
}

// Idle says that nothing is open: no turn, call, effect or waiting message.
func (s *State) Idle() bool {
	for _, q := range s.Waiting {
		if len(q) > 0 {
			return false
		}
	}
	return len(s.Turns) == 0 && len(s.Calls) == 0 && len(s.Effects) == 0 && len(s.live.queue) == 0
}

func sorted[K cmp.Ordered, V any](m map[K]V) []K {
	return slices.Sorted(maps.Keys(m))
}

func sortedCalls[V any](m map[CallID]V) []CallID {
	return slices.SortedFunc(maps.Keys(m), func(a, b CallID) int {
		return cmp.Or(cmp.Compare(a.Turn, b.Turn), cmp.Compare(a.Key, b.Key))
	})
}
