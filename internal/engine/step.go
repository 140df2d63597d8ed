package engine

import (
	"fmt"

	"klbr/internal/klbr"
)

// Out is what a step leaves: the records to commit, in order, and what to do
// once they are committed. Either may be empty.
type Out struct {
	Records []klbr.Record
	Actions []Action
}

// Step advances s by an event at time now (microseconds since 1970 UTC) and
// says what to commit and then to do. s already includes the records when Step
// returns: when their commit fails, s must be thrown away and loaded anew.
func Step(s *State, now int64, ev Event) Out {
	st := &step{State: s, now: now}
	switch ev := ev.(type) {
	case Open:
		st.open(ev)
	case Load:
		st.load(ev)
	case Admit:
		st.admit(ev)
	case ModelCall:
		st.modelCall(ev)
	case CellRun:
		st.cellRun(ev)
	case PersonCell:
		st.personCell(ev)
	case Say:
		st.say(ev)
	case Note:
		st.note(ev)
	case EffectRequest:
		st.effectRequest(ev)
	case ModelDone:
		st.modelDone(ev)
	case KernelUp:
		st.kernelUp(ev)
	case KernelDown:
		st.kernelDown(ev)
	case CellOutput:
		st.cellOutput(ev)
	case CellDone:
		st.cellDone(ev)
	case EffectDone:
		st.effectDone(ev)
	case TurnReturned:
		st.turnReturned(ev)
	case WorkerDown:
		st.workerDown(ev)
	case TurnStop:
		st.turnStop(ev)
	case SessionStop:
		st.sessionStop(ev)
	case SessionResume:
		st.sessionResume(ev)
	case SessionDrain:
		st.sessionDrain(ev)
	case KernelReset:
		st.operatorReset(ev)
	case LaneOpen:
		st.laneOpen(ev)
	case Activate:
		st.activate(ev)
	case Stopping:
		st.stoppingDaemon(ev)
	default:
		panic(fmt.Sprintf("engine: unknown event %T", ev))
	}
	st.settleDrain()
	return st.out
}

type step struct {
	*State
	now int64
	out Out
}

// emit appends a record and folds it, and returns its seq.
func (st *step) emit(lane string, turn int64, body klbr.Body) int64 {
	r := klbr.NewRecord(lane, turn, body)
	r.Session, r.Seq, r.Time = st.Session.Session, st.Session.Seq+1, st.now
	if err := st.State.fold(r, body); err != nil {
		panic("engine: " + err.Error()) // seq is ours: it always follows
	}
	st.out.Records = append(st.out.Records, r)
	return r.Seq
}

func (st *step) act(a Action) { st.out.Actions = append(st.out.Actions, a) }

func (st *step) reply(to ReplyTo, v any) {
	if to != 0 {
		st.act(Reply{To: to, Value: v})
	}
}

func (st *step) fail(to ReplyTo, err *klbr.Error) {
	if to != 0 {
		st.act(Reply{To: to, Err: err})
	}
}

func (st *step) open(ev Open) {
	st.emit("", 0, &klbr.SessionOpened{Workspace: ev.Workspace, Release: ev.Release})
	st.emit("", 0, &klbr.LaneOpened{Name: klbr.MainLane, Mode: klbr.LaneSteer})
	st.emit("", 0, &klbr.LaneOpened{Name: klbr.MaintenanceLane, Mode: klbr.LaneQueue})
}

// load takes up what an earlier life, or a failed commit, left open.
func (st *step) load(ev Load) {
	st.live.life, st.live.skills = ev.Life, ev.Skills
	if ev.Cause == LoadStart && (ev.Announce || !st.Idle()) {
		st.emit("", 0, &klbr.DaemonStarted{Version: ev.Version, Life: ev.Life, Clean: !st.anyRunning()})
	}
	st.loadKernel(ev)
	for _, n := range sorted(st.Effects) {
		e := st.Effects[n]
		st.act(AskEffect{Effect: n, Type: e.Type, Intended: e.Intended})
	}
	for _, n := range sorted(st.Turns) {
		t := st.Turns[n]
		if t.State == klbr.TurnRunning {
			reason, strikes := "daemon_died", t.Strikes+1
			if ev.Cause == LoadCommitFailed {
				reason, strikes = "commit_failed", t.Strikes
				st.act(CancelTurn{Attempt{t.Turn, t.Attempt}})
			}
			st.emit(t.Lane, t.Turn, &klbr.TurnInterrupted{Attempt: t.Attempt, Reason: reason, Strikes: strikes})
		}
		st.takeUp(t)
	}
	for _, name := range sorted(st.Lanes) {
		st.schedule(name)
	}
}

func (st *step) anyRunning() bool {
	for _, t := range st.Turns {
		if t.State == klbr.TurnRunning {
			return true
		}
	}
	return false
}

// loadKernel begins a new generation where the heap is gone, or where a cell's
// answer may have been missed.
func (st *step) loadKernel(ev Load) {
	row, cell := st.Session, st.OpenCell()
	switch {
	case cell != nil && ev.Cause == LoadCommitFailed:
		st.act(EndKernel{Generation: row.Kernel})
		st.newGeneration("commit_failed", nil)
	case cell != nil || (row.KernelLife != "" && row.KernelLife != ev.Life):
		st.newGeneration("daemon", nil)
	}
}

func (st *step) admit(ev Admit) {
	if d := ev.Dup; d != nil {
		if d.Digest != klbr.AdmissionDigest(ev.Lane, ev.Message) {
			err := klbr.Errorf(klbr.CodeIDReused, "message id %q was used before for another message", ev.Message.SourceID).
				WithHint("send with a new id")
			err.Seq = d.Seq
			st.fail(ev.Reply, err)
			return
		}
		st.reply(ev.Reply, Admitted{Seq: d.Seq, Duplicate: true, Held: d.Waiting && st.Session.State == klbr.SessionHeld})
		return
	}
	if err := st.closed(); err != nil {
		st.fail(ev.Reply, err)
		return
	}
	l := st.Lanes[ev.Lane]
	if l == nil {
		st.fail(ev.Reply, noLane(ev.Lane, st.Session.Session))
		return
	}
	m := ev.Message
	if m.Mode == "" || l.Mode == klbr.LaneQueue {
		m.Mode = l.Mode
	}
	seq := st.emit(ev.Lane, 0, &m)
	st.reply(ev.Reply, Admitted{Seq: seq, Held: st.Session.State == klbr.SessionHeld})
	st.schedule(ev.Lane)
}

// closed is the error for what may not be admitted now, or nil.
func (st *step) closed() *klbr.Error {
	switch st.Session.State {
	case klbr.SessionClosing, klbr.SessionClosed:
		return klbr.Errorf(klbr.CodeDraining, "session %s is %s and takes nothing new", st.Session.Session, st.Session.State).
			WithHint("klbr resume " + st.Session.Session)
	}
	return nil
}

func noLane(lane, session string) *klbr.Error {
	return klbr.Errorf(klbr.CodeNotFound, "session %s has no lane %q", session, lane).WithHint("open it with lane.open")
}

func (st *step) laneOpen(ev LaneOpen) {
	if l := st.Lanes[ev.Lane]; l != nil {
		if ev.Mode != "" && ev.Mode != l.Mode {
			st.fail(ev.Reply, klbr.Errorf(klbr.CodeExists, "lane %s is there already, with mode %s", ev.Lane, l.Mode))
			return
		}
		st.reply(ev.Reply, LaneOpened{Lane: *l})
		return
	}
	if err := st.closed(); err != nil {
		st.fail(ev.Reply, err)
		return
	}
	mode := ev.Mode
	if mode == "" {
		mode = klbr.LaneSteer
	}
	st.emit("", 0, &klbr.LaneOpened{Name: ev.Lane, Mode: mode})
	st.reply(ev.Reply, LaneOpened{Lane: *st.Lanes[ev.Lane], Opened: true})
}

func (st *step) sessionStop(ev SessionStop) {
	if st.Session.State != klbr.SessionHeld {
		st.emit("", 0, &klbr.SessionStopped{By: ev.By})
	}
	for _, n := range sorted(st.Turns) {
		st.stopTurn(st.Turns[n], ev.By)
	}
	st.dropQueue(func(cellRequest) bool { return true }, klbr.CodeSessionStopped)
	if c := st.OpenCell(); c != nil {
		st.interrupt(c, "person")
	}
	st.reply(ev.Reply, Done{})
}

func (st *step) sessionResume(ev SessionResume) {
	if st.Session.State != klbr.SessionOpen {
		st.emit("", 0, &klbr.SessionResumed{By: ev.By})
	}
	st.reply(ev.Reply, Done{})
	for _, name := range sorted(st.Lanes) {
		st.schedule(name)
	}
}

func (st *step) sessionDrain(ev SessionDrain) {
	if st.Session.State == klbr.SessionOpen || st.Session.State == klbr.SessionHeld {
		st.emit("", 0, &klbr.SessionDraining{By: ev.By})
		for _, name := range sorted(st.Lanes) {
			st.schedule(name) // what a held session admitted is accepted work
		}
	}
	st.reply(ev.Reply, Done{})
}

// settleDrain records that a draining session has nothing left.
func (st *step) settleDrain() {
	if st.Session.State == klbr.SessionClosing && st.Idle() {
		st.emit("", 0, &klbr.SessionDrained{By: "runtime"})
	}
}

func (st *step) activate(ev Activate) {
	row := st.Session
	if ev.Epoch != row.Epoch {
		err := klbr.Errorf(klbr.CodeEpochMismatch, "session %s is at epoch %d, not %d", row.Session, row.Epoch, ev.Epoch).
			WithHint("look at klbr status, then name the epoch that holds")
		err.Current = fmt.Sprint(row.Epoch)
		st.fail(ev.Reply, err)
		return
	}
	st.emit("", 0, &klbr.BehaviorActivated{
		Release: ev.Release, Previous: row.Release, Epoch: row.Epoch + 1, By: ev.By, Probation: true,
	})
	st.reply(ev.Reply, Activated{Epoch: row.Epoch + 1})
}

// stoppingDaemon parks what runs, so that the end of this life does not count
// against a turn.
func (st *step) stoppingDaemon(ev Stopping) {
	if st.Idle() {
		return
	}
	st.emit("", 0, &klbr.DaemonStopping{Life: ev.Life, Reason: ev.Reason})
	for _, n := range sorted(st.Turns) {
		if t := st.Turns[n]; t.State == klbr.TurnRunning {
			st.emit(t.Lane, t.Turn, &klbr.TurnInterrupted{Attempt: t.Attempt, Reason: "daemon_stopping", Strikes: t.Strikes})
			st.act(CancelTurn{Attempt{t.Turn, t.Attempt}})
		}
	}
}
