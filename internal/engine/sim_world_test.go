package engine

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"

	"klbr/internal/klbr"
)

// world is a whole klbr without I/O: a store that can fail, workers and models
// that answer when the schedule says so, and people who do what they like. It
// performs what the engine asks for and checks its promises after each step.
type world struct {
	rng   *rand.Rand
	state *State
	log   []klbr.Record
	rows  rowStore
	now   int64
	life  int
	hist  []any // what happened, for a failure's message

	turns   map[Attempt]*simTurn // attempts that run
	models  map[int64]CallModel  // requests under way, by seq of model.called
	stale   []ModelDone          // answers that may still come, although nobody wants them
	kernel  int64                // generation of the process that runs, or 0
	cell    *RunCell             // that runs in it
	asked   bool                 // it was interrupted
	effects map[int64]bool       // to try or to ask after → it was tried
	tried   map[int64]int
	ran     map[int64]int
	replies map[ReplyTo]func(Action)
	nextTo  ReplyTo
	nextID  int
	ids     []Admit // admissions that may be repeated
	answers map[string]int64
	quiet   bool // no more faults
}

// simTurn is a policy: it runs its turn's script from the top, one call after
// the other.
type simTurn struct {
	row   klbr.TurnRow
	step  int
	await bool
}

// script is what the policy of a turn does, the same in every attempt.
func script(turn int64) []string {
	r := rand.New(rand.NewPCG(uint64(turn), 7))
	var ops []string
	for range 1 + r.IntN(5) {
		ops = append(ops, []string{"model", "cell", "model", "say", "effect", "note"}[r.IntN(6)])
	}
	return append(ops, "model", "say")
}

func newWorld(seed uint64) *world {
	w := &world{
		rng: rand.New(rand.NewPCG(seed, 1)), rows: newRowStore(), now: 1,
		tried: map[int64]int{}, ran: map[int64]int{}, answers: map[string]int64{},
	}
	w.forget()
	w.state = NewState("sim")
	w.quiet = true // a session whose first commit fails is none
	w.do(Open{Workspace: "/w", Release: "r0"})
	w.do(Load{Life: "life0", Cause: LoadStart})
	w.quiet = false
	return w
}

// forget is the end of the daemon: all that is not in the store goes.
func (w *world) forget() {
	w.turns, w.models, w.stale = map[Attempt]*simTurn{}, map[int64]CallModel{}, nil
	w.kernel, w.cell, w.asked = 0, nil, false
	w.effects, w.replies = map[int64]bool{}, map[ReplyTo]func(Action){}
}

// do steps an event, commits and acts. The commit fails now and then.
func (w *world) do(ev Event) {
	w.now++
	w.hist = append(w.hist, ev)
	out := Step(w.state, w.now, ev)
	changes := w.state.TakeChanges()
	if len(out.Records) > 0 && !w.quiet && w.rng.IntN(60) == 0 {
		w.failedCommit()
		return
	}
	w.log = append(w.log, out.Records...)
	w.rows.apply(changes)
	for _, a := range out.Actions {
		w.perform(a)
	}
	w.check()
}

// failedCommit throws memory away, as the runtime does.
func (w *world) failedCommit() {
	w.hist = append(w.hist, "commit failed")
	for _, c := range w.models {
		w.stale = append(w.stale, ModelDone{Turn: c.Turn, Lane: c.Lane, Key: c.Key, Called: c.Called})
	}
	clear(w.models)
	clear(w.turns)
	clear(w.replies)
	clear(w.effects)
	w.state = FromSnapshot(w.rows.snapshot())
	w.do(Load{Life: w.lifeName(), Cause: LoadCommitFailed})
}

func (w *world) lifeName() string { return fmt.Sprintf("life%d", w.life) }

// crash is a SIGKILL of the daemon.
func (w *world) crash() {
	w.hist = append(w.hist, "daemon killed")
	w.life++
	w.forget()
	w.state = FromSnapshot(w.rows.snapshot())
	w.do(Load{Life: w.lifeName(), Cause: LoadStart})
}

func (w *world) expect(f func(Action)) ReplyTo {
	w.nextTo++
	w.replies[w.nextTo] = f
	return w.nextTo
}

func (w *world) answer(to ReplyTo, a Action) {
	if f := w.replies[to]; f != nil {
		delete(w.replies, to)
		f(a)
	}
}

func (w *world) perform(a Action) {
	switch a := a.(type) {
	case Reply:
		w.answer(a.To, a)
	case ReplyRecorded:
		if a.Seq < 1 || a.Seq > int64(len(w.log)) || a.Opened < 1 || a.Opened > a.Seq {
			w.fail("an answer points at record %d, opened at %d", a.Seq, a.Opened)
		}
		w.answer(a.To, a)
	case StartTurn:
		w.turns[Attempt{a.Turn.Turn, a.Turn.Attempt}] = &simTurn{row: a.Turn}
	case CancelTurn:
		delete(w.turns, a.Attempt)
	case CallModel:
		w.models[a.Called] = a
	case CancelModel:
		if c, ok := w.models[a.Called]; ok {
			w.stale = append(w.stale, ModelDone{Turn: c.Turn, Lane: c.Lane, Key: c.Key, Called: c.Called})
			delete(w.models, a.Called)
		}
	case RunCell:
		if w.ran[a.Cell]++; w.ran[a.Cell] > 1 {
			w.fail("cell %d was run twice", a.Cell)
		}
		if w.cell != nil {
			w.fail("cell %d was started beside cell %d", a.Cell, w.cell.Cell)
		}
		w.cell, w.asked = &a, false
	case InterruptCell:
		if w.cell != nil && w.cell.Cell == a.Cell {
			w.asked = true
		}
	case EndKernel:
		if w.kernel == a.Generation {
			w.kernel = 0
		}
		if w.cell != nil && w.cell.Generation == a.Generation {
			w.cell = nil
		}
	case TryEffect:
		if w.tried[a.Effect]++; w.tried[a.Effect] > 1 {
			w.fail("effect %d was tried twice", a.Effect)
		}
		w.effects[a.Effect] = true
	case AskEffect:
		w.effects[a.Effect] = false
	}
}

// pick gives one key of a map, deterministically.
func pick[K cmp.Ordered, V any](r *rand.Rand, m map[K]V) (K, bool) {
	keys := sorted(m)
	if len(keys) == 0 {
		var zero K
		return zero, false
	}
	return keys[r.IntN(len(keys))], true
}

// progress lets one thing that is under way come to an outcome. It says
// whether there was any.
func (w *world) progress() bool {
	var can []func()
	for _, a := range slices.SortedFunc(mapKeys(w.turns), func(a, b Attempt) int {
		return cmp.Or(cmp.Compare(a.Turn, b.Turn), cmp.Compare(a.Attempt, b.Attempt))
	}) {
		if t := w.turns[a]; !t.await {
			can = append(can, func() { w.policy(a, t) })
		}
	}
	if seq, ok := pick(w.rng, w.models); ok {
		can = append(can, func() { w.modelDone(seq) })
	}
	if w.cell != nil {
		can = append(can, w.cellProgress)
	}
	if n, ok := pick(w.rng, w.effects); ok {
		can = append(can, func() {
			delete(w.effects, n)
			out := []klbr.EffectOutcome{klbr.EffectDone, klbr.EffectFailed, klbr.EffectUnknown}[w.rng.IntN(3)]
			w.do(EffectDone{Effect: n, Outcome: out})
		})
	}
	if len(can) == 0 {
		return false
	}
	can[w.rng.IntN(len(can))]()
	return true
}

func mapKeys[K comparable, V any](m map[K]V) func(func(K) bool) {
	return func(yield func(K) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

func (w *world) modelDone(seq int64) {
	c := w.models[seq]
	delete(w.models, seq)
	done := ModelDone{Turn: c.Turn, Lane: c.Lane, Key: c.Key, Called: seq, Route: c.Route}
	if w.rng.IntN(6) == 0 {
		done.Err = klbr.Errorf(klbr.CodeModelFailed, "no")
	} else {
		done.Answer = klbr.Message{Role: "assistant", Content: fmt.Sprint("answer to ", seq)}
	}
	if w.rng.IntN(10) == 0 {
		w.stale = append(w.stale, done) // it will come twice
	}
	w.do(done)
}

func (w *world) cellProgress() {
	c := *w.cell
	if w.kernel != c.Generation {
		if w.kernel = c.Generation; w.rng.IntN(8) > 0 {
			w.do(KernelUp{Generation: c.Generation, PID: 1})
			return
		}
	}
	f := klbr.CellFinished{Cell: c.Cell, Generation: c.Generation, Status: klbr.CellOK,
		Bound: []string{fmt.Sprint("v", c.Cell%3), fmt.Sprint("w", c.Cell)}}
	switch {
	case w.asked && w.rng.IntN(3) == 0: // it does not heed: the generation is killed
		f.Status, f.Reason = klbr.CellStopped, "person"
		w.kernel, w.cell = 0, nil
		w.do(KernelDown{Generation: c.Generation, Reason: "killed", Partial: &f})
		return
	case w.asked:
		f.Status = klbr.CellStopped
	case w.rng.IntN(3) == 0:
		w.do(CellOutput{Generation: c.Generation, Output: klbr.CellOutput{Cell: c.Cell, N: 1, Text: "x"}})
		return
	case w.rng.IntN(4) == 0:
		f.Status = klbr.CellError
	case w.rng.IntN(5) == 0 && c.Cell > 1:
		f.Freed = []string{fmt.Sprint("v", c.Cell%3)}
		f.Bound = nil
	}
	w.cell = nil
	w.do(CellDone{Finished: f})
}

// policy makes an attempt's next call, or returns.
func (w *world) policy(a Attempt, t *simTurn) {
	ops := script(t.row.Turn)
	if t.step == len(ops) {
		delete(w.turns, a)
		w.do(TurnReturned{Turn: a.Turn, Attempt: a.Attempt})
		return
	}
	if !w.quiet && w.rng.IntN(50) == 0 {
		delete(w.turns, a)
		w.do(TurnReturned{Turn: a.Turn, Attempt: a.Attempt, Err: klbr.Errorf(klbr.CodePolicyFailed, "raised")})
		return
	}
	op := ops[t.step]
	c := Caller{Attempt: a, Key: fmt.Sprint(op, t.step)}
	t.await = true
	c.Reply = w.expect(func(r Action) {
		t.await = false
		t.step++
		switch r := r.(type) {
		case ReplyRecorded:
			w.sameAnswer(a.Turn, c.Key, r.Seq)
		case Reply:
			if r.Err != nil && (r.Err.Code == klbr.CodeKeyReused || r.Err.Code == klbr.CodeInvalid) {
				w.fail("turn %d's call %s was refused: %v", a.Turn, c.Key, r.Err)
			}
			if r.Err != nil && r.Err.Code == klbr.CodeFenced {
				delete(w.turns, a)
			}
		}
	})
	switch op {
	case "model":
		w.do(w.modelCall(c, t))
	case "cell":
		c.Args = c.Key
		w.do(CellRun{Caller: c, Code: c.Key, TimeoutMS: 1000})
	case "say":
		w.do(Say{Caller: c, Text: c.Key})
	case "note":
		w.do(Note{Caller: c, Text: c.Key})
	case "effect":
		c.Args = c.Key
		w.do(EffectRequest{Caller: c, Type: "test", Body: json.RawMessage(`{}`)})
	}
}

// modelCall repeats a recorded call as it was, and makes a new one from what
// waits in the lane now.
func (w *world) modelCall(c Caller, t *simTurn) ModelCall {
	for _, r := range slices.Backward(w.log) {
		if r.Kind != "model.called" || r.Turn != c.Turn {
			continue
		}
		body, _ := r.Decode()
		if b := body.(*klbr.ModelCalled); b.Key == c.Key {
			c.Args = b.Args
			ev := ModelCall{Caller: c, Route: b.Route, Base: b.Base, Append: b.Append, Reset: b.Reset, Join: b.Joined, Upto: w.state.Session.Seq}
			return ev
		}
	}
	l := w.state.Lanes[t.row.Lane]
	ev := ModelCall{Caller: c, Route: "llm", Base: l.LedgerHead, Upto: w.state.Session.Seq}
	ev.Append = []klbr.Message{{Role: "user", Content: fmt.Sprintf("turn %d %s", c.Turn, c.Key)}}
	if ev.Base == "" || w.rng.IntN(20) == 0 {
		ev.Base, ev.Reset = "", "because"
	}
	for _, a := range w.state.Waiting[t.row.Lane] {
		if a.Mode == klbr.LaneSteer && a.Author == t.row.Author && w.rng.IntN(2) == 0 {
			ev.Join = append(ev.Join, a.Seq)
			ev.Append = append(ev.Append, klbr.Message{Role: "user", Content: fmt.Sprint("joined ", a.Seq)})
		}
	}
	b, _ := json.Marshal([]any{ev.Base, ev.Append, ev.Reset, ev.Join})
	ev.Args = klbr.Digest(b)
	return ev
}

// sameAnswer checks that a key has one outcome for ever.
func (w *world) sameAnswer(turn int64, key string, seq int64) {
	id := fmt.Sprint(turn, " ", key)
	if was, ok := w.answers[id]; ok && was != seq {
		w.fail("call %s was answered with record %d and then %d", id, was, seq)
	}
	w.answers[id] = seq
}

// fault does one of the things that must not matter.
func (w *world) fault() {
	switch w.rng.IntN(17) {
	case 0:
		w.crash()
	case 1:
		w.do(Stopping{Life: w.lifeName(), Reason: "signal"})
		w.crash()
	case 2: // a policy worker dies
		var as []Attempt
		for a := range w.turns {
			as = append(as, a)
		}
		slices.SortFunc(as, func(a, b Attempt) int { return cmp.Compare(a.Turn, b.Turn) })
		for _, a := range as {
			delete(w.turns, a)
		}
		w.do(WorkerDown{Attempts: as, Reason: "exit", Error: "signal 9"})
	case 3: // the kernel dies
		if w.kernel != 0 {
			gen := w.kernel
			w.kernel, w.cell = 0, nil
			w.do(KernelDown{Generation: gen, Reason: "exit"})
		}
	case 4:
		w.do(KernelReset{By: "owner", Reply: w.expect(func(Action) {})})
	case 5:
		w.do(TurnStop{Lane: klbr.MainLane, By: "owner", Reply: w.expect(func(Action) {})})
	case 6:
		w.do(SessionStop{By: "owner", Reply: w.expect(func(Action) {})})
	case 7, 8:
		w.do(SessionResume{By: "owner", Reply: w.expect(func(Action) {})})
	case 9:
		w.do(SessionDrain{By: "owner", Reply: w.expect(func(Action) {})})
	case 10, 16:
		if len(w.stale) > 0 {
			late := w.stale[0]
			w.stale = w.stale[1:]
			late.Answer = klbr.Message{Role: "assistant", Content: "late"}
			w.do(late)
		}
	case 11: // an answer of a kernel that is over
		if g := w.state.Session.Kernel; g > 1 && w.state.Session.Cells > 1 {
			w.do(CellDone{Finished: klbr.CellFinished{Cell: 1 + w.rng.Int64N(w.state.Session.Cells-1), Generation: g - 1, Status: klbr.CellOK}})
		}
	case 12:
		epoch := w.state.Session.Epoch - w.rng.Int64N(2)
		w.do(Activate{Epoch: epoch, Release: fmt.Sprint("r", w.rng.IntN(9)), By: "owner", Reply: w.expect(func(Action) {})})
	case 13:
		w.do(PersonCell{Lane: klbr.MainLane, ID: w.newID(), Code: "1+1", Reply: w.expect(func(Action) {})})
	case 14: // a message for a turn that is over
		if w.turns[Attempt{1, 1}] == nil {
			w.do(TurnReturned{Turn: 1, Attempt: 1})
		}
	case 15:
		w.do(EffectDone{Effect: 1, Outcome: klbr.EffectDone})
	}
}

func (w *world) newID() string {
	w.nextID++
	return fmt.Sprint("id", w.nextID)
}

// send admits a new message or repeats an old one, sometimes changed.
func (w *world) send() {
	ev := Admit{Lane: []string{klbr.MainLane, klbr.MainLane, klbr.MaintenanceLane}[w.rng.IntN(3)]}
	ev.Message = klbr.MessageAdmitted{Source: "client", SourceID: w.newID(), Author: []string{"owner", "ann"}[w.rng.IntN(2)], Text: w.newID(), Mode: klbr.LaneSteer}
	if len(w.ids) > 0 && w.rng.IntN(3) == 0 {
		ev = w.ids[w.rng.IntN(len(w.ids))]
		if w.rng.IntN(3) == 0 {
			ev.Message.Text += "!"
		}
	} else {
		w.ids = append(w.ids, ev)
	}
	if a, ok := w.rows.admissions[[2]string{"client", ev.Message.SourceID}]; ok {
		ev.Dup = &a
	}
	dup := ev.Dup
	ev.Reply = w.expect(func(r Action) {
		rep := r.(Reply)
		if dup == nil {
			return
		}
		changed := dup.Digest != klbr.AdmissionDigest(ev.Lane, ev.Message)
		if changed && (rep.Err == nil || rep.Err.Code != klbr.CodeIDReused) {
			w.fail("a changed message was admitted under id %s", ev.Message.SourceID)
		}
		if !changed && (rep.Err != nil || rep.Value.(Admitted).Seq != dup.Seq) {
			w.fail("a repeated message got %+v", rep)
		}
	})
	w.do(ev)
}

type simFailure struct{ text string }

func (w *world) fail(format string, args ...any) {
	panic(simFailure{fmt.Sprintf(format, args...)})
}

// rowStore is the store's tables as maps.
type rowStore struct {
	session    klbr.SessionRow
	lanes      map[string]klbr.LaneRow
	turns      map[int64]klbr.TurnRow
	calls      map[CallID]klbr.CallRow
	effects    map[int64]klbr.EffectRow
	admissions map[[2]string]klbr.AdmissionRow
	names      map[string]int64
	usage      int
}

func newRowStore() rowStore {
	return rowStore{
		lanes: map[string]klbr.LaneRow{}, turns: map[int64]klbr.TurnRow{}, calls: map[CallID]klbr.CallRow{},
		effects: map[int64]klbr.EffectRow{}, admissions: map[[2]string]klbr.AdmissionRow{}, names: map[string]int64{},
	}
}

func (s *rowStore) apply(c klbr.Changes) {
	if c.Session != nil {
		s.session = *c.Session
	}
	for _, l := range c.Lanes {
		s.lanes[l.Lane] = l
	}
	for _, t := range c.Turns {
		s.turns[t.Turn] = t
	}
	for _, k := range c.Calls {
		s.calls[CallID{k.Turn, k.Key}] = k
	}
	for _, k := range c.CallsGone {
		delete(s.calls, CallID{k.Turn, k.Key})
	}
	for _, e := range c.Effects {
		s.effects[e.Effect] = e
	}
	for _, a := range c.Admissions {
		s.admissions[[2]string{a.Source, a.SourceID}] = a
	}
	s.usage += len(c.Usage)
	if c.NamesReset {
		clear(s.names)
	}
	for _, n := range c.NamesGone {
		delete(s.names, n)
	}
	for _, n := range c.Names {
		s.names[n.Name] = n.Cell
	}
}

// snapshot is the open work, as a store loads it.
func (s *rowStore) snapshot() klbr.Snapshot {
	snap := klbr.Snapshot{Session: s.session}
	for _, k := range sorted(s.lanes) {
		snap.Lanes = append(snap.Lanes, s.lanes[k])
	}
	for _, k := range sorted(s.turns) {
		if t := s.turns[k]; t.State == klbr.TurnRunning || t.State == klbr.TurnParked {
			snap.Turns = append(snap.Turns, t)
		}
	}
	for _, k := range sortedCalls(s.calls) {
		snap.Calls = append(snap.Calls, s.calls[k])
	}
	for _, k := range sorted(s.effects) {
		if e := s.effects[k]; e.Settled == 0 {
			snap.Effects = append(snap.Effects, e)
		}
	}
	for _, a := range s.admissions {
		if a.Waiting {
			snap.Admissions = append(snap.Admissions, a)
		}
	}
	slices.SortFunc(snap.Admissions, func(a, b klbr.AdmissionRow) int { return cmp.Compare(a.Seq, b.Seq) })
	for _, n := range sorted(s.names) {
		snap.Names = append(snap.Names, klbr.NameRow{Session: s.session.Session, Name: n, Cell: s.names[n]})
	}
	return snap
}

// check holds the invariants that are true after every step.
func (w *world) check() {
	if got, want := w.state.Snapshot(), w.rows.snapshot(); !reflect.DeepEqual(got, want) {
		w.fail("memory and rows differ:\n%+v\n%+v", got, want)
	}
	inFlight := map[int64]bool{}
	for id := range w.state.live.inFlight {
		c := w.state.Calls[id]
		if c == nil || c.Settled != 0 {
			w.fail("call %v is in flight and settled", id)
		}
		inFlight[c.Opened] = true
	}
	for seq := range w.models {
		if !inFlight[seq] {
			w.fail("the request of record %d runs without an owner", seq)
		}
	}
	if len(inFlight) != len(w.models) {
		w.fail("%d calls are said to be in flight, %d are", len(inFlight), len(w.models))
	}
	open := w.state.OpenCell()
	if (open == nil) != (w.cell == nil) || open != nil && open.Number != w.cell.Cell {
		w.fail("the open cell is %+v, the one that runs %+v", open, w.cell)
	}
	for a := range w.turns {
		if t := w.state.Turns[a.Turn]; t == nil || t.State != klbr.TurnRunning || t.Attempt != a.Attempt {
			w.fail("attempt %v runs without an owner", a)
		}
	}
}
